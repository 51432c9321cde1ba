"""OpenVLA on FSDP2: the gradient of two ranks is that of one, within float32 rounding.

OpenVLA-OFT with action tokens and with a regression head, but the first form, whose distribution
calls the language model after the module's own pass. Trained whole and by adapters.
"""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tensordict import TensorDict
from tiny_training import largest_difference, make_actor, make_engine

from envs.registry import env_spec
from siirl.engine.training.collectives import OneProcess
from siirl.models import openvla_vision
from siirl.models.policy_loader import build_policy
from siirl.params.model_args import LoraArguments
from tests.models.tiny_openvla import ENCODERS, know_tiny_encoders, write_checkpoint

ROWS, CHUNKS = 3, 2
FORMS = {
    "tokens": ("openvla_oft", {"state": True}),
    "regression": ("openvla_oft", {"state": True, "head": True}),
    "first": ("openvla", {}),
}
"""Name of the model, and what its checkpoint holds."""
TEMPERATURE = 1.3
TOLERANCE = 1e-5  # relative, max norm


def trajectories(policy):
    """Three episodes of two chunks; the last chunks were partly executed."""
    generator = torch.Generator().manual_seed(0)
    tokens = CHUNKS * policy.tokens_per_chunk
    images = torch.randint(
        256, (ROWS, CHUNKS, 1, 224, 224, 3), generator=generator, dtype=torch.uint8
    )
    state = 2 * torch.rand(ROWS, CHUNKS, 8, generator=generator) - 1
    words = torch.stack(
        [
            torch.from_numpy(policy.tokenize_instruction(text))
            for text in ("open", "pick up bowl", "")
        ]
    )
    with torch.no_grad():
        distribution = policy(
            pixel_values=images.flatten(0, 1),
            proprioception=state.flatten(0, 1),
            instruction_ids=words.repeat_interleave(CHUNKS, dim=0),
        ).tempered(TEMPERATURE)
        uniforms = torch.rand(ROWS * CHUNKS, policy.uniforms_per_chunk, generator=generator)
        choices, log_probs = distribution.act(uniforms)
    executed_B1 = torch.tensor([[1.0], [0.56], [0.63]]) * tokens
    batch = TensorDict(
        {
            "pixel_values": images,
            "proprioception": state,
            "instruction_ids": words,
            "responses": choices.view(ROWS, tokens),
            "response_mask": (torch.arange(tokens) < executed_B1).float(),
            "advantages": torch.randn(ROWS, 1, generator=generator).expand(-1, tokens).clone(),
            "old_log_probs": log_probs.view(ROWS, tokens) - 0.05,
            "rollout_log_probs": log_probs.view(ROWS, tokens),
            "policy_version": torch.zeros(ROWS, dtype=torch.long),
        },
        batch_size=[ROWS],
    )
    batch["uid"] = [str(row) for row in range(ROWS)]
    return batch


def update(ranks, model, folder, lora=None, micro_batch=1):
    """The whole gradient of one update, and its metrics."""
    openvla_vision.ENCODERS.update(ENCODERS)  # of a separate process, which ends with the test
    spec = env_spec("libero", assets="stand_in", camera="agentview")
    policy = build_policy(model, path=folder, spec=spec, seed=0, options={})
    batch = trajectories(policy)
    if lora is not None:
        policy.adapt(lora, seed=0)
    if ranks.size == 2:
        batch = batch[:1] if ranks.rank == 0 else batch[1:]
    engine = make_engine(
        ranks, module=policy, micro_batch_size=micro_batch, temperature=TEMPERATURE
    )
    metrics = make_actor(engine, entropy_coef=0.01).update(batch)
    return {"gradient": engine.gradients[0], "metrics": metrics}


@pytest.fixture
def form(request, monkeypatch, tmp_path):
    """Name and folder of a model."""
    know_tiny_encoders(monkeypatch)
    model, content = FORMS[request.param]
    return model, str(write_checkpoint(tmp_path, **content))


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
@pytest.mark.parametrize(
    "lora", [None, pytest.param(LoraArguments(rank=2), marks=pytest.mark.slow)]
)  # slow: each process imports peft
@pytest.mark.parametrize(
    "form",
    ["tokens", *(pytest.param(name, marks=pytest.mark.slow) for name in ("regression", "first"))],
    indirect=True,
)
def test_gradient_of_two_ranks_is_that_of_one(form, lora):
    alone = update(OneProcess(), *form, lora)
    assert alone["metrics"]["actor/grad_norm"] > 0
    assert alone["metrics"]["rollout/log_prob_gap"] < 1e-4
    assert lora is None or all(".lora_" in name for name in alone["gradient"])
    for together in run_on_ranks(update, *form, lora):
        assert largest_difference(together["gradient"], alone["gradient"]) < TOLERANCE
        norm = alone["metrics"]["actor/grad_norm"]
        assert together["metrics"]["actor/grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
        assert together["metrics"]["rollout/log_prob_gap"] < 1e-4


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_the_gradient_does_not_depend_on_micro_batches(form):
    whole, cut = (update(OneProcess(), *form, micro_batch=size) for size in (ROWS, 1))
    assert largest_difference(cut["gradient"], whole["gradient"]) < TOLERANCE
