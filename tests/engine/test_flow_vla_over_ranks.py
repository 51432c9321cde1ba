"""SmolVLA, pi0 and pi0.5 on FSDP2: gradients, and the reads of each rank.

The distribution calls the velocity network after the module's own pass, when FSDP2 has freed the
blocks' weights.
"""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tensordict import TensorDict
from tiny_training import largest_difference, make_actor, make_engine
from torch.distributed.tensor import DTensor

from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import ActingModule, acting_copy
from siirl.models.policy_loader import build_policy
from siirl.params.model_args import LoraArguments
from tests.models.published_flows import robot
from tests.models.test_pi import checkpoint
from tests.models.test_smolvla import CHECKPOINT

ROWS, CHUNKS, TOKENS = 3, 2, 28
TOLERANCE = 1e-5  # relative, max norm
PLACES = {"smolvla": CHECKPOINT, "pi0": checkpoint("pi0"), "pi05": checkpoint("pi05")}
EXPERT = {"noise": "sde", "train_expert_only": True}
END = {"noise": "end", "train_expert_only": True}
WHOLE = {"noise": "learnt", "train_expert_only": False, "freeze_vision_encoder": False}
CASES = {
    "expert of smolvla": ("smolvla", EXPERT),
    "end of smolvla": ("smolvla", END),
    "smolvla": ("smolvla", WHOLE),
    "expert of pi0": ("pi0", EXPERT),
    "pi0": ("pi0", WHOLE),
    "end of pi0": ("pi0", {**WHOLE, "noise": "end"}),
    "pi05": ("pi05", WHOLE),
}
ON_TWO_RANKS = ("smolvla", "end of pi0")
"""Cases that run on two ranks with each change; the others are slow there."""


def policy_of(case, *, weights=True):
    name, options = CASES[case]
    return build_policy(
        name,
        path=str(PLACES[name]),
        spec=robot(),
        seed=0,
        options=dict(options),
        weights=weights,
    )


def trajectories(policy) -> TensorDict:
    """Three episodes of two chunks, partly executed, with choices that the policy drew."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(
        256, (ROWS, CHUNKS, 2, 48, 64, 3), generator=generator, dtype=torch.uint8
    )
    state = torch.randn(ROWS, CHUNKS, 8, generator=generator)
    words = torch.stack(
        [torch.from_numpy(policy.tokenize_instruction(text)) for text in ("open", "pick it", "go")]
    )
    uniforms = torch.rand(ROWS * CHUNKS, policy.uniforms_per_chunk, generator=generator)
    with torch.no_grad():
        flow = policy(
            pixel_values=images.flatten(0, 1),
            proprioception=state.flatten(0, 1),
            instruction_ids=words.repeat_interleave(CHUNKS, dim=0),
        )
        choices = flow.sample(uniforms)
        log_probs = flow.log_prob(choices).view(ROWS, -1)
    tokens = CHUNKS * TOKENS
    batch = TensorDict(
        {
            "pixel_values": images,
            "proprioception": state,
            "instruction_ids": words,
            "responses": choices.view(ROWS, tokens, *choices.shape[2:]),
            "response_mask": (torch.arange(tokens) < torch.tensor([[56], [14], [35]])).float(),
            "advantages": torch.randn(ROWS, 1, generator=generator).expand(-1, tokens).clone(),
            "old_log_probs": log_probs - 0.05,
            "rollout_log_probs": log_probs,
            "policy_version": torch.zeros(ROWS, dtype=torch.long),
        },
        batch_size=[ROWS],
    )
    batch["uid"] = [str(row) for row in range(ROWS)]
    return batch


def update(ranks, case, lora=None, micro_batch=1):
    """The whole gradient of one update, and its metrics."""
    policy = policy_of(case)
    batch = trajectories(policy)
    if lora is not None:
        policy.adapt(lora, seed=0)
    if ranks.size == 2:
        batch = batch[:1] if ranks.rank == 0 else batch[1:]
    engine = make_engine(ranks, module=policy, micro_batch_size=micro_batch, temperature=1.0)
    metrics = make_actor(engine).update(batch)
    return {"gradient": engine.gradients[0], "metrics": metrics}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_does_not_depend_on_micro_batches(case):
    whole = update(OneProcess(), case, micro_batch=ROWS)
    cut = update(OneProcess(), case, micro_batch=1)
    assert largest_difference(cut["gradient"], whole["gradient"]) < TOLERANCE


@pytest.mark.parametrize(
    ("case", "lora"),
    [
        *(
            pytest.param(case, None, marks=() if case in ON_TWO_RANKS else pytest.mark.slow)
            for case in CASES
        ),
        pytest.param("expert of smolvla", LoraArguments(rank=2), marks=pytest.mark.slow),
        pytest.param("pi0", LoraArguments(rank=2), marks=pytest.mark.slow),
        pytest.param("pi05", LoraArguments(rank=2), marks=pytest.mark.slow),
    ],
)  # with adapters each process imports peft
def test_the_gradient_of_two_ranks_is_that_of_one(case, lora):
    alone = update(OneProcess(), case, lora)
    assert float(alone["metrics"]["actor/grad_norm"]) > 0
    assert lora is None or all(".lora_" in name for name in alone["gradient"])
    for together in run_on_ranks(update, case, lora):
        assert largest_difference(together["gradient"], alone["gradient"]) < TOLERANCE
        assert together["metrics"]["rollout/log_prob_gap"] < 1e-4


def loaded_by_parts(ranks, case):
    """Weights that were planned, read after sharding, and sent to an acting copy."""
    policy = policy_of(case, weights=False)
    on_meta = all(weight.is_meta for weight in policy.parameters())
    acting = acting_copy(policy, torch.float32)
    engine = make_engine(ranks, module=policy)
    [pair] = ActingModule(acting, trained=engine.module).take_weights(engine.weights_in_turn())
    sharded = all(isinstance(weight, DTensor) for weight in engine.module.parameters())
    return {
        "weights": {name: tensor.clone() for name, tensor in engine.upload_weights().items()},
        "facts": (on_meta, sharded, pair.agrees),
    }


@pytest.mark.parametrize("case", ["smolvla", pytest.param("pi05", marks=pytest.mark.slow)])
def test_weights_that_each_rank_read_by_parts_are_those_of_the_file(case):
    expected = policy_of(case).state_dict()
    for found in run_on_ranks(loaded_by_parts, case):
        assert found["facts"] == (True, True, True)
        assert found["weights"].keys() == expected.keys()
        assert all(torch.equal(found["weights"][name], expected[name]) for name in expected)
