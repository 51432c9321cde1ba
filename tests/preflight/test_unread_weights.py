"""Keys of a KL whose weight is 0, of a reference without weights of its own, and numbers of rows
that a budget replaces are refused, because nothing reads them.
"""

import pytest

from siirl.params.parser import parse
from siirl.preflight.unread import unread_keys

ACTOR, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
IN_REWARD, IN_LOSS = "algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true"
NO_KL_IN_REWARD = "if the KL in the reward has a weight, but algorithm.kl_ctrl.kl_coef=0: raise it"
NO_KL_IN_LOSS = f"if the KL in the loss has a weight, but {ACTOR}.kl_loss_coef=0: raise it"


def refused(*words: str) -> dict[str, str]:
    """The refused keys of a text job, with the sentence of each."""
    pipeline = [] if "pipeline=ppo" in words else ["pipeline=grpo"]
    parsed = parse(["env=math", *pipeline, *words])
    found = unread_keys(parsed.config, text=True, named=parsed.named)
    return {place: str(problem) for place, problem in found.items()}


@pytest.mark.parametrize(
    ("job", "setting", "expected"),
    [
        ([IN_REWARD, "algorithm.kl_ctrl.kl_coef=0"], f"{REFERENCE}.path=x", NO_KL_IN_REWARD),
        ([IN_REWARD, "algorithm.kl_ctrl.kl_coef=0"], f"{REFERENCE}.offload=true", NO_KL_IN_REWARD),
        ([IN_REWARD, "algorithm.kl_ctrl.kl_coef=0"], "algorithm.kl_penalty=k3", NO_KL_IN_REWARD),
        (
            [IN_REWARD, "algorithm.kl_ctrl.kl_coef=0"],
            "algorithm.kl_ctrl.type=adaptive",
            NO_KL_IN_REWARD,
        ),
        ([IN_LOSS, f"{ACTOR}.kl_loss_coef=0"], f"{REFERENCE}.path=x", NO_KL_IN_LOSS),
        ([IN_LOSS, f"{ACTOR}.kl_loss_coef=0"], f"{ACTOR}.kl_loss_type=k2", NO_KL_IN_LOSS),
        ([], f"{REFERENCE}.path=x", "only if a KL term is used: set"),
        (
            [IN_LOSS, "actor_rollout_ref.model.lora.rank=4"],
            f"{REFERENCE}.offload=true",
            "by a reference policy with weights of its own",
        ),
        (
            ["pipeline=ppo"],
            "critic.micro_batch_size=1",
            f"only if {ACTOR}.micro_batch_tokens is null, but it is ",
        ),
    ],
)
def test_a_key_that_its_weight_or_budget_leaves_unread_is_refused_with_the_cause(
    job: list[str], setting: str, expected: str
) -> None:
    found = refused(*job, setting)
    (sentence,) = found.values()
    assert sentence.startswith(f"{setting} is read ")
    assert expected in sentence


@pytest.mark.parametrize(
    "words",
    [
        [IN_REWARD, IN_LOSS, "algorithm.kl_ctrl.kl_coef=0", f"{REFERENCE}.path=x"],
        [IN_REWARD, IN_LOSS, f"{ACTOR}.kl_loss_coef=0", f"{REFERENCE}.path=x"],
        [IN_REWARD, "algorithm.kl_penalty=k3", f"{REFERENCE}.offload=true"],
        [IN_LOSS, f"{ACTOR}.kl_loss_type=k2"],
        [
            *(IN_LOSS, "actor_rollout_ref.model.lora.rank=4"),
            *(f"{REFERENCE}.path=x", f"{REFERENCE}.offload=true"),
        ],
        ["pipeline=ppo", f"{ACTOR}.micro_batch_tokens=null", "critic.micro_batch_size=1"],
    ],
)
def test_a_key_of_a_kl_with_a_weight_and_a_number_of_rows_without_budget_are_read(
    words: list[str],
) -> None:
    assert refused(*words) == {}
