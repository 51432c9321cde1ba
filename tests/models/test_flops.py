"""FLOPs by formula are those that torch counts, for every model that siirl trains."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from envs.registry import env_spec
from siirl.engine.training.device_peaks import peak_flops
from siirl.models.flops import decoder_flops, video_flops
from siirl.models.language_model import load_language_model
from siirl.models.openvla_policy import openvla_flops
from siirl.models.policy_loader import build_policy
from siirl.models.tiny_vla import load_policy, tiny_vla_flops
from tests.models.tiny_openvla import know_tiny_encoders, write_checkpoint
from vjepa.encoders import random_network


def counted(module, *arguments, **named):
    # torch counts no fused attention of a CPU
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
    ):
        module(*arguments, **named)
    return counter.get_total_flops()


def test_formula_for_the_shipped_policy_equals_torchs_count(repository):
    policy = load_policy(repository / "assets" / "tiny_vla")
    rows = 3
    observation = {
        "pixel_values": torch.zeros(rows, *policy.config.image_shape, 3, dtype=torch.uint8),
        "proprioception": torch.zeros(rows, policy.config.proprioception_size),
        "instruction_ids": torch.ones(rows, policy.config.instruction_length, dtype=torch.long),
    }
    assert counted(policy, **observation) == rows * tiny_vla_flops(policy)


def test_formula_for_the_shipped_language_model_equals_torchs_count(repository):
    model = load_language_model(str(repository / "assets" / "tiny_lm"))
    ids = torch.arange(2 * 12).view(2, 12) % 200
    places = torch.arange(12).expand(2, -1)

    def with_head():
        return model(ids, places) @ model.output_weight.T

    expected = decoder_flops(model.config, tokens=24, pairs=2 * 12**2, head_tokens=24)
    assert counted(with_head) == pytest.approx(expected, rel=2e-3)  # rotary products of positions


def test_formula_for_the_video_encoder_equals_torchs_count():
    network = random_network()
    config = network.config
    video = torch.zeros(2, 3, config.frames_per_clip, config.image_size, config.image_size)
    assert counted(network, video) == 2 * video_flops(config)


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
@pytest.mark.parametrize(
    ("model", "head"), [("openvla_oft", False), ("openvla_oft", True), ("openvla", False)]
)
def test_formula_for_openvla_equals_torchs_count(monkeypatch, tmp_path, model, head):
    folder = str(write_checkpoint(tmp_path, state=model == "openvla_oft", head=head))
    know_tiny_encoders(monkeypatch)
    spec = env_spec("libero", assets="stand_in", camera="agentview")
    policy = build_policy(model, path=folder, spec=spec, seed=0, options={})
    observation = {
        "pixel_values": torch.zeros(1, 1, 224, 224, 3, dtype=torch.uint8),
        "proprioception": torch.zeros(1, 8),
        "instruction_ids": torch.from_numpy(policy.tokenize_instruction("open drawer"))[None],
    }
    tokens = torch.zeros(1, policy.tokens_per_chunk, dtype=torch.long)
    question = int((observation["instruction_ids"] != policy.padding).sum())
    expected = openvla_flops(policy, question=question)
    found = counted(lambda: policy(**observation).scores(tokens))
    assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA H800", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA H20-3e", 148),
        ("NVIDIA L20", 119.5),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA A100-SXM4-80GB", 312),
    ],
)
def test_the_peak_is_that_of_the_device(name, teraflops):
    assert peak_flops(name, torch.bfloat16) == teraflops * 1e12


def test_an_unknown_device_has_no_peak():
    assert peak_flops("NVIDIA T1000", torch.bfloat16) is None
