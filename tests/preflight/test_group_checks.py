"""Resource groups that cannot work: each refusal names `dag.groups`, its value and the remedy."""

import pytest

from siirl.errors import SiirlError
from siirl.params.parser import parse
from siirl.preflight.early_checks import check_early

SEVERAL = ("pipeline=grpo", "env=math", "trainer.n_gpus_per_node=2")


def problems(*words: str) -> str:
    parsed = parse([*SEVERAL, *words])
    try:
        check_early(parsed.config, named=parsed.named)
    except SiirlError as error:
        return str(error)
    return ""


def test_two_groups_of_one_rank_are_sound():
    assert problems("dag.groups={rollout:1,train:1}") == ""
    assert problems("dag.groups={rollout:null,train:null}") == ""


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ("{rollout:2}", "dag.groups lacks 'train': name 'train' and 'rollout'"),
        ("{train:2}", "dag.groups lacks 'rollout'"),
        ("{train:1,rolout:1}", "Unknown group in dag.groups 'rolout'"),
        ("{rollout:one,train:1}", "dag.groups={rollout: 'one'} must be a number of ranks"),
        ("{rollout:'1',train:1}", "dag.groups={rollout: '1'} must be a number of ranks"),
        ("{rollout:0,train:2}", "dag.groups={rollout: 0}: a group has at least one rank"),
        ("{rollout:-1,train:3}", "dag.groups={rollout: -1}: a group has at least one rank"),
        ("{rollout:true,train:1}", "dag.groups={rollout: true} must be a number of ranks, or null"),
        ("{rollout:1,train:1.5}", "dag.groups={train: 1.5} must be a number of ranks"),
    ],
)
def test_groups_that_name_no_ranks_are_refused(groups, sentence):
    assert sentence in problems(f"dag.groups={groups}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trainer.max_staleness=1"], "needs separate rollout ranks: set dag.groups"),
        (["dag.groups={rollout:1,train:1}", "rollout=server"], "dag.groups with rollout=server"),
        (
            ["dag.groups={rollout:1,train:1}", "actor_rollout_ref.rollout.mode=async"],
            "set trainer.max_staleness=1 or more",
        ),
        (["dag.groups={rollout:1,train:1}", "data.task_sampling=learnable"], "use even"),
    ],
)
def test_settings_that_need_other_ranks_are_refused(words, sentence):
    assert sentence in problems(*words)


def test_a_lag_whose_checkpoints_wait_for_an_unending_schedule_is_refused():
    two = ("dag.groups={rollout:1,train:1}", "trainer.deterministic=true")
    assert problems(*two, "trainer.max_staleness=64") == ""
    with pytest.raises(SiirlError, match=r"max_staleness=1795720030 .* must be at most 64"):
        problems(*two, "trainer.max_staleness=1795720030")
