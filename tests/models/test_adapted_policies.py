"""LoRA in VLA policies: only adapters train, the base is the reference, checkpoints are merged.

Slow: it imports peft.
"""

import copy

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import move_adapters

from envs.registry import env_spec
from siirl.errors import ConfigError
from siirl.models.policy_loader import build_policy
from siirl.params.model_args import LoraArguments
from tests.models.tiny_openvla import know_tiny_encoders, write_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning"),
]
LORA = LoraArguments(rank=2, alpha=6.0)


OPTIONS = {
    "tiny_vla": {"instruction_length": 24},
    "openvla_oft": {"images": 2},
    "tiny_flow_vla": {"width": 16, "chunk_length": 2},
    "control_policy": {"width": 16, "chunk_length": 2},
}
TASKS = {"control_policy": ["object/1"]}  # it reads no instruction


def policy_in(name, folder, **further):
    path = None if folder is None else str(folder)
    return build_policy(
        name,
        path=path,
        spec=env_spec("libero", assets="stand_in", image_size=64, tasks=TASKS.get(name)),
        seed=0,
        options={**OPTIONS.get(name, {}), **further},
    ).eval()


FORMS = {
    "tiny_vla": ("tiny_vla", None),
    "control_policy": ("control_policy", None),
    "flow, end": ("tiny_flow_vla", {"noise": "end"}),
    "flow, learnt": ("tiny_flow_vla", {"noise": "learnt"}),
    "flow, sde": ("tiny_flow_vla", {"noise": "sde"}),
    "tokens": ("openvla_oft", {"state": True}),
    "regression": ("openvla_oft", {"state": True, "head": True}),
    "first": ("openvla", {}),
}
"""Name of the model, and what its checkpoint holds, or the flow's noise."""


@pytest.fixture(params=FORMS)
def start(request, monkeypatch, tmp_path):
    """Its name, and a policy without adapters."""
    know_tiny_encoders(monkeypatch)
    name, content = FORMS[request.param]
    if name == "tiny_flow_vla":
        return name, policy_in(name, None, **content)
    folder = None if content is None else write_checkpoint(tmp_path / "start", **content)
    return name, policy_in(name, folder)


def adapted(policy, lora=LORA):
    """A copy with adapters that change its output (peft starts them at no change)."""
    policy = copy.deepcopy(policy)
    policy.adapt(lora, seed=0)
    move_adapters(policy)
    return policy


def says(policy):
    """Log-probs of the first token, or of numbers that are 0, at each place of two chunks."""
    generator = torch.Generator().manual_seed(1)
    size = 224 if hasattr(policy, "vision_backbone") else 64
    images = torch.randint(256, (2, 2, size, size, 3), generator=generator, dtype=torch.uint8)
    texts = ("open drawer", "pick up bowl")
    with torch.no_grad():
        distribution = policy(
            pixel_values=images[:, : getattr(policy, "images", 2)],
            proprioception=2 * torch.rand(2, 8, generator=generator) - 1,
            instruction_ids=torch.stack(
                [torch.from_numpy(policy.tokenize_instruction(text)) for text in texts]
            ),
        )
        return distribution.log_prob(torch.zeros_like(distribution.mode()))


def test_new_adapters_change_nothing_and_are_all_that_is_trained(start):
    _, policy = start
    other = copy.deepcopy(policy)
    other.adapt(LORA, seed=0)
    torch.testing.assert_close(says(other), says(policy), rtol=0, atol=0)
    assert {name for name, weight in other.named_parameters() if weight.requires_grad} == {
        name for name, _ in other.named_parameters() if ".lora_" in name
    }


def test_the_policy_below_its_adapters_is_unchanged(start):
    _, policy = start
    other = adapted(policy)
    moved = says(other)
    assert float((moved - says(policy)).abs().max()) > 0.01
    with other.without_adapter():
        torch.testing.assert_close(says(other), says(policy), rtol=0, atol=0)
    torch.testing.assert_close(says(other), moved, rtol=0, atol=0)


def test_a_checkpoint_is_read_as_a_plain_policy_with_the_same_output(start, tmp_path):
    name, policy = start
    other, checkpoint = adapted(policy), tmp_path / "checkpoint"
    checkpoint.mkdir()
    save_file(
        {name: weight.contiguous() for name, weight in other.state_dict().items()},
        checkpoint / "model.safetensors",
    )
    other.describe(checkpoint, notes={})
    other.describe_adapters(checkpoint)
    plain = policy_in(name, checkpoint)
    assert plain.lora is None
    assert list(plain.state_dict()) == list(policy.state_dict())
    log_probs = says(other)
    torch.testing.assert_close(
        says(plain), log_probs, rtol=1e-4, atol=1e-5 * float(log_probs.abs().max())
    )


def test_layers_that_are_missing_or_that_no_pass_reads_are_refused(start):
    name, policy = start
    with pytest.raises(ConfigError, match=r"target_modules\) 'queries'"):
        adapted(policy, LoraArguments(rank=2, target_modules=("queries",)))
    if name == "openvla_oft":
        with pytest.raises(
            ConfigError, match=r"an adapter in language_model\.lm_head would have no effect"
        ):
            adapted(policy, LoraArguments(rank=2, target_modules=("lm_head", "q_proj")))
