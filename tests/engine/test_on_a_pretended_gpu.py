"""Acting and updates make no tensor on another device than their weights.

They run on a pretended GPU (`pretended_gpu`), where tensors of two devices do not meet. The CPU
computes for it, so the numbers are those of a run on the CPU, bit for bit.
"""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loss_cases import STILL, gradients
from pretended_gpu import OnGpu, WrongDeviceError, pretended_gpu
from tensordict import TensorDict
from test_losses_over_packed_text import TEMPERATURE, language_model, lines_of_text
from tiny_critic import experience, make_critic
from tiny_training import make_actor, make_engine, trajectories

from envs.registry import env_spec
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.chunk_windows import chunk_windows
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.rollout.acting import ActRequest
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import ActingModule, acting_copy
from siirl.files.paths import find
from siirl.models.policy import Policy
from siirl.models.policy_loader import build_policy
from siirl.models.weight_rows import in_rows
from siirl.params import ActorArguments
from tests.models.published_flows import robot
from tests.models.test_openvla_oft import spec_of
from tests.models.test_pi import make as make_pi
from tests.models.test_smolvla import CHECKPOINT
from tests.models.tiny_openvla import know_tiny_encoders, write_checkpoint
from vjepa.encoders import random_network, wrap
from vjepa.latent_encoder import EncoderPlacement

CPU = torch.device("cpu")
ROWS = 3


# The pretended GPU itself


def test_the_pretended_gpu_refuses_mixed_devices_and_conversion_to_arrays():
    with pretended_gpu() as gpu:
        far, near = torch.arange(3.0, device=gpu), torch.arange(3.0)
        assert (far.device, type(far * 2), type(far.cpu())) == (gpu, OnGpu, torch.Tensor)
        for wrong in (
            lambda: far + near,
            lambda: torch.cat([far, near]),
            lambda: near[far.long()],
            lambda: torch.nn.Linear(3, 1)(far),
        ):
            with pytest.raises(WrongDeviceError):
                wrong()
        with pytest.raises(WrongDeviceError):
            far.numpy()


def test_a_gpu_takes_single_numbers_and_indices_of_the_cpu():
    with pretended_gpu() as gpu:
        far = torch.arange(3.0, device=gpu)
        assert (far + torch.tensor(1.0)).tolist() == [1.0, 2.0, 3.0]
        assert far[torch.tensor([2, 0])].tolist() == [2.0, 0.0]


def test_gradients_are_on_the_gpu():
    with pretended_gpu() as gpu:
        layer = torch.nn.Linear(2, 1, bias=False).to(gpu)
        picked = layer(torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=gpu))[[1, 1]]
        picked.sum().backward()
        gradient = layer.weight.grad
    assert isinstance(gradient, OnGpu)
    assert gradient.tolist() == [[6.0, 8.0]]


# Losses


def text_engine(device: torch.device) -> Any:
    return make_engine(
        module=language_model(),
        scorer=text_scorer,
        temperature=TEMPERATURE,
        optim=STILL,
        device=device,
        micro_batch_size=100,
    )


BATCHES: dict[str, tuple[Callable[[torch.device], Any], Callable[[], TensorDict]]] = {
    "robots": (lambda device: make_engine(optim=STILL, device=device), lambda: trajectories(6)),
    "robots, cut": (
        lambda device: make_engine(
            optim=STILL, device=device, cut=lambda batch: chunk_windows(batch, chunks=2)
        ),
        lambda: trajectories(6),
    ),
    "text": (text_engine, lines_of_text),
}


@pytest.mark.parametrize(
    "of", ["robots", pytest.param("robots, cut", marks=pytest.mark.slow), "text"]
)
def test_every_policy_loss_has_the_numbers_of_the_cpu(of):
    make, rows = BATCHES[of]
    expected = gradients(make(CPU), rows())
    with pretended_gpu() as gpu:
        found = gradients(make(gpu), rows())
    for case, (gradient, metrics) in found.items():
        assert all(isinstance(part, OnGpu) for part in gradient.values())
        assert metrics == expected[case][1], case


def test_a_critic_has_the_numbers_of_the_cpu():
    def update(device: torch.device) -> dict[str, float]:
        critic, batch = make_critic(device=device), experience(6)
        batch["values"] = critic.compute_values(batch).values_BT
        return critic.update(batch)

    with pretended_gpu() as gpu:
        found = update(gpu)
    assert found == update(CPU)


# Policies


def openvla(folder: Path, **parts: bool) -> Policy:
    place = write_checkpoint(folder / "checkpoint", state=True, **parts)
    options = {"images": 2, "recompute": True}
    return build_policy("openvla_oft", path=str(place), spec=spec_of(), seed=0, options=options)


def shipped(name: str) -> Policy:
    task = env_spec("metaworld")
    return build_policy(name, path=str(find(f"assets/{name}")), spec=task, seed=0, options={})


POLICIES: dict[str, Callable[[Path], Policy]] = {
    "tokens": lambda folder: shipped("tiny_vla"),
    "flow": lambda folder: shipped("tiny_flow_vla"),
    "numbers": lambda folder: build_policy(
        "control_policy",
        path=None,
        spec=env_spec("gymnasium", id="Pendulum-v1"),
        seed=0,
        options={},
    ),
    "OpenVLA-OFT": openvla,
    "OpenVLA-OFT, regression": lambda folder: openvla(folder, head=True),
    "SmolVLA": lambda folder: build_policy(
        "smolvla", path=str(CHECKPOINT), spec=robot(), seed=0, options={}
    ),
    "pi0": lambda folder: make_pi("pi0"),
    "pi0.5": lambda folder: make_pi("pi05"),
}
SPACES = {"numbers": lambda: env_spec("gymnasium", id="Pendulum-v1")} | dict.fromkeys(
    ("SmolVLA", "pi0", "pi0.5"), robot
)
"""Environments of policies that are neither Meta-World's nor OpenVLA's."""


def requests(policy: Policy, spaces: Any) -> list[ActRequest]:
    """An observation for each row, drawn from the spaces; the last one takes the mode."""
    numbers = np.random.default_rng(0)
    spaces.seed(0)
    ids = policy.tokenize_instruction("close the drawer")
    made = []
    for row in range(ROWS):
        observed = spaces.sample()
        felt = observed.get("proprioception")
        pixels, felt = policy.prepare(
            images=observed.get("images"),
            proprioception=None if felt is None else np.clip(felt, -1, 1).astype(np.float32),
        )
        uniforms = numbers.random(policy.uniforms_per_chunk, np.float32)
        made.append(ActRequest(str(row), pixels, felt, ids, uniforms if row else None))
    return made


def act_and_train(policy: Policy, asked: list[ActRequest], device: torch.device) -> Any:
    """What an acting pass chose, and the metrics of an update on it."""
    engine = make_engine(module=policy, device=device, temperature=1.0, micro_batch_size=2)
    acting = EmbodiedEngine(policy=policy, temperature=1.0, lockstep=True, batch_rows=ROWS)
    acting.expect(episodes=ROWS, at_once=ROWS)

    async def everybody() -> list[Any]:
        return await asyncio.gather(*(acting.act(request) for request in asked))

    answers = asyncio.run(everybody())
    seen = {
        "pixel_values": [request.pixel_values for request in asked],
        "proprioception": [request.proprioception for request in asked],
    }
    log_probs = torch.from_numpy(np.stack([answer.log_probs for answer in answers]))
    columns = {
        name: torch.from_numpy(np.stack(arrays))[:, None]
        for name, arrays in seen.items()
        if arrays[0] is not None
    } | {
        "instruction_ids": torch.from_numpy(np.stack([each.instruction_ids for each in asked])),
        "responses": torch.from_numpy(np.stack([answer.choices for answer in answers])),
        "response_mask": torch.ones_like(log_probs),
        "old_log_probs": log_probs,
        "advantages": torch.linspace(-1, 1, ROWS)[:, None].expand_as(log_probs),
    }
    batch = TensorDict(columns, batch_size=[ROWS])
    batch["uid"] = [str(row) for row in range(ROWS)]
    policy.observe(batch["proprioception"][:, 0], ranks=OneProcess())
    config = ActorArguments(ppo_mini_batch_size=1000)
    return log_probs, Actor(engine=engine, config=config, rollouts_per_prompt=1).update(batch)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_acts_and_trains_with_the_numbers_of_the_cpu(kind, tmp_path, monkeypatch):
    know_tiny_encoders(monkeypatch)
    policy = POLICIES[kind](tmp_path)
    of_openvla = spec_of if kind.startswith("OpenVLA") else functools.partial(env_spec, "metaworld")
    asked = requests(policy, SPACES.get(kind, of_openvla)().observation_space)
    with pretended_gpu() as gpu:
        log_probs, metrics = act_and_train(policy.to(gpu), asked, gpu)
    assert type(log_probs) is torch.Tensor
    expected, of_cpu = act_and_train(POLICIES[kind](tmp_path), asked, CPU)
    assert torch.equal(log_probs, expected)
    assert metrics == of_cpu
    assert metrics["actor/grad_norm"] > 0


# What holds and moves weights, and videos


def test_moments_and_counts_of_a_checkpoint_come_back_to_the_gpu(tmp_path):
    """The kernel that moves all weights at once reads the counts on the device."""
    with pretended_gpu() as gpu:
        saved, resumed = make_engine(device=gpu), make_engine(device=gpu)
        make_actor(saved).update(trajectories(6))
        saved.save(tmp_path)
        resumed.load(tmp_path)
        assert resumed.optimizer.defaults["fused"]
        for state in resumed.optimizer.state.values():
            assert all(isinstance(part, OnGpu) for part in state.values())
        found = [make_actor(each).update(trajectories(6, seed=1)) for each in (saved, resumed)]
    assert found[0] == found[1]


def test_an_acting_copy_takes_the_weights_on_its_device():
    with pretended_gpu() as gpu:
        trained = language_model().to(gpu)
        acting = acting_copy(trained, torch.bfloat16, device=gpu)
        [pair] = ActingModule(acting, trained=None).take_weights(
            in_rows(trained.state_dict().items())
        )
        assert pair.agrees
        assert all(isinstance(weight.data, OnGpu) for weight in acting.parameters())


def test_a_video_encoder_that_is_offloaded_computes_on_the_gpu_and_answers_with_arrays():
    videos = [np.random.default_rng(0).integers(0, 256, (9, 40, 40, 3), dtype=np.uint8)]
    found = {}
    with pretended_gpu() as gpu:
        for device in (gpu, CPU):
            placement = EncoderPlacement(device=device, offload=device is gpu)
            encoder = wrap(
                random_network(), name="", pooling="last_grid", crop=False, placement=placement
            )
            found[device.type] = encoder.encode(videos)
    np.testing.assert_array_equal(found["cuda"], found["cpu"])
