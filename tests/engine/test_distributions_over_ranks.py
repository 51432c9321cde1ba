"""The gradient of the shipped policies does not depend on micro-batches or ranks.

They have no blocks: FSDP2 shards them as one unit, and finds the output's tensors by itself.
"""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tensordict import TensorDict
from tiny_training import largest_difference, make_actor, make_engine

from siirl.engine.training.collectives import OneProcess
from siirl.models import ActionTokenizer, ContinuousActions, TinyVLA, TinyVLAConfig
from siirl.models.control_policy import ControlConfig, ControlPolicy
from siirl.models.tiny_backbone import TinyPolicy
from siirl.models.tiny_flow_vla import TinyFlowVLA, TinyFlowVLAConfig

ROWS, CHUNKS, SENSED = 5, 3, 4
KINDS = ("tokens", "decisions", "gaussian", "end", "learnt", "sde")
TOLERANCE = 1e-5  # relative, max norm


def policy_of(kind: str) -> TinyPolicy:
    """A small policy of tokens, of decisions, of a Gaussian, or a flow with this kind of noise."""
    torch.manual_seed(0)
    bounds = {"low": (-1.0, 0.0), "high": (1.0, 2.0)}
    sizes = {"chunk_length": 2, "proprioception_size": SENSED, "width": 8}
    if kind == "tokens":
        tokenizer = ActionTokenizer(bins=5, **bounds)
        return TinyVLA(TinyVLAConfig(action_tokenizer=tokenizer, **sizes))
    if kind == "decisions":
        tokenizer = ActionTokenizer.for_decisions((3, 5))
        return ControlPolicy(ControlConfig(action_tokenizer=tokenizer, **sizes))
    coding = ContinuousActions(**bounds)
    if kind == "gaussian":
        return ControlPolicy(ControlConfig(action_tokenizer=coding, **sizes))
    return TinyFlowVLA(TinyFlowVLAConfig(action_tokenizer=coding, steps=3, noise=kind, **sizes))


def trajectories(policy: TinyPolicy) -> TensorDict:
    """Ragged episodes with choices that the policy drew."""
    generator = torch.Generator().manual_seed(1)
    tokens = CHUNKS * policy.tokens_per_chunk
    sensed = torch.randn(ROWS, CHUNKS, SENSED, generator=generator)
    words = torch.randint(1, 9, (ROWS, 24), generator=generator)
    with torch.no_grad():
        distribution = policy(
            pixel_values=None,
            proprioception=sensed.flatten(0, 1),
            instruction_ids=words.repeat_interleave(CHUNKS, dim=0),
        )
        numbers = torch.rand(ROWS * CHUNKS, policy.uniforms_per_chunk, generator=generator)
        choices = distribution.sample(numbers)
        log_probs = distribution.log_prob(choices).view(ROWS, tokens)
    lengths_B1 = torch.tensor([[12], [5], [0], [8], [11]])
    batch = TensorDict(
        {
            "proprioception": sensed,
            "instruction_ids": words,
            "responses": choices.view(ROWS, tokens, *choices.shape[2:]),
            "response_mask": (torch.arange(tokens) < lengths_B1).float(),
            "advantages": torch.randn(ROWS, 1, generator=generator).expand(-1, tokens).clone(),
            "old_log_probs": log_probs - 0.05,
            "rollout_log_probs": log_probs,
            "ref_log_prob": log_probs + 0.1,
            "policy_version": torch.zeros(ROWS, dtype=torch.long),
        },
        batch_size=[ROWS],
    )
    batch["uid"] = [str(row) for row in range(ROWS)]
    return batch


def update(ranks, kind: str, micro_batch: int = 4):
    """The whole gradient of one update, and its metrics."""
    policy = policy_of(kind)
    batch = trajectories(policy)
    engine = make_engine(ranks, module=policy, micro_batch_size=micro_batch, temperature=1.0)
    if ranks.size == 2:
        batch = batch[:1] if ranks.rank == 0 else batch[1:]
    terms = {"entropy_coef": 0.01} if kind != "sde" else {}
    actor = make_actor(engine, use_kl_loss=True, kl_loss_coef=0.1, **terms)
    metrics = actor.update(batch)
    return {"gradient": engine.gradients[0], "metrics": metrics}


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_does_not_depend_on_micro_batches(kind):
    whole = update(OneProcess(), kind, micro_batch=ROWS)
    for size in (1, 2):
        cut = update(OneProcess(), kind, micro_batch=size)
        assert largest_difference(cut["gradient"], whole["gradient"]) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_two_ranks_is_that_of_one(kind):
    alone = update(OneProcess(), kind)
    assert float(alone["metrics"]["actor/grad_norm"]) > 0
    for together in run_on_ranks(update, kind):
        assert largest_difference(together["gradient"], alone["gradient"]) < TOLERANCE
        assert together["metrics"]["actor/kl_loss"] == pytest.approx(
            alone["metrics"]["actor/kl_loss"], rel=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_training_scores_choices_as_rollout_did(kind):
    metrics = update(OneProcess(), kind)["metrics"]
    assert metrics["rollout/log_prob_gap"] < 1e-4


@pytest.mark.parametrize("kind", ["end", "learnt"])
def test_every_weight_of_a_flow_with_a_learnt_deviation_has_a_gradient(kind):
    names = {name for name, _ in policy_of(kind).named_parameters()}
    gradient = update(OneProcess(), kind)["gradient"]
    assert set(gradient) == names
    assert all(part.any() for part in gradient.values())
