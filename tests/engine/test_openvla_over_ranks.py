"""OpenVLA-OFT on FSDP2: the gradient of two ranks is that of one, within float32 rounding.

Trained whole and by adapters.
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

ROWS, CHUNKS, TOKENS = 3, 2, 56
TOLERANCE = 1e-5  # relative, max norm


def trajectories(policy):
    """Three episodes of two chunks; the last chunks were partly executed."""
    generator = torch.Generator().manual_seed(0)
    batch = TensorDict(
        {
            "pixel_values": torch.randint(
                256, (ROWS, CHUNKS, 1, 224, 224, 3), generator=generator, dtype=torch.uint8
            ),
            "proprioception": 2 * torch.rand(ROWS, CHUNKS, 8, generator=generator) - 1,
            "instruction_ids": torch.stack(
                [
                    torch.from_numpy(policy.tokenize_instruction(text))
                    for text in ("open", "pick up bowl", "")
                ]
            ),
            "responses": torch.randint(256, (ROWS, CHUNKS * TOKENS), generator=generator),
            "response_mask": (
                torch.arange(CHUNKS * TOKENS) < torch.tensor([[112], [63], [70]])
            ).float(),
            "advantages": torch.randn(ROWS, 1, generator=generator)
            .expand(-1, CHUNKS * TOKENS)
            .clone(),
            "old_log_probs": torch.full((ROWS, CHUNKS * TOKENS), -5.5),
        },
        batch_size=[ROWS],
    )
    batch["rollout_log_probs"] = batch["old_log_probs"]
    batch["policy_version"] = torch.ones(
        ROWS, dtype=torch.long
    )  # older than the weights: their log-probs are not compared
    batch["uid"] = [str(row) for row in range(ROWS)]
    return batch


def update(ranks, folder, lora=None):
    """The whole gradient of one update, and its metrics."""
    openvla_vision.ENCODERS.update(ENCODERS)  # of a separate process, which ends with the test
    spec = env_spec("libero", assets="stand_in", camera="agentview")
    policy = build_policy("openvla_oft", path=folder, spec=spec, seed=0, options={})
    if lora is not None:
        policy.adapt(lora, seed=0)
    engine = make_engine(ranks, module=policy, micro_batch_size=1)
    batch = trajectories(policy)
    metrics = make_actor(engine).update(
        batch[:1]
        if ranks.rank == 0 and ranks.size == 2
        else batch[1:]
        if ranks.size == 2
        else batch
    )
    return {"gradient": engine.gradients[0], "norm": metrics["actor/grad_norm"]}


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
@pytest.mark.parametrize(
    "lora", [None, pytest.param(LoraArguments(rank=2), marks=pytest.mark.slow)]
)  # slow: each process imports peft
def test_gradient_of_two_ranks_is_that_of_one(monkeypatch, tmp_path, lora):
    folder = str(write_checkpoint(tmp_path, state=True))
    know_tiny_encoders(monkeypatch)
    alone = update(OneProcess(), folder, lora)
    assert alone["norm"] > 0
    assert lora is None or all(".lora_" in name for name in alone["gradient"])
    for together in run_on_ranks(update, folder, lora):
        assert largest_difference(together["gradient"], alone["gradient"]) < TOLERANCE
        assert together["norm"] == pytest.approx(alone["norm"], rel=TOLERANCE)
