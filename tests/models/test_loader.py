"""Policy folders: written, read, and refused if damaged or wrong."""

import json

import gymnasium
import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

from envs.base import PROPRIOCEPTION, EnvSpec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, UnknownNameError
from siirl.models import TinyVLA, TinyVLAConfig, load_policy, save_policy
from siirl.models.policy_loader import build_policy

SPEC = EnvSpec(
    name="state",
    tasks=("only",),
    observation_space=gymnasium.spaces.Dict({PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (3,))}),
    action_space=gymnasium.spaces.Box(-1, 1, (2,)),
    max_episode_steps=10,
)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(1)
    save_policy(
        TinyVLA(TinyVLAConfig.for_env(SPEC, width=16)),
        tmp_path / "policy",
        notes={"command": "test"},
    )
    return tmp_path / "policy"


def test_a_saved_policy_reads_back_equal(folder):
    one, other = load_policy(folder), load_policy(folder)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config == TinyVLAConfig.for_env(SPEC, width=16)


def test_a_missing_folder_is_refused_with_the_way_to_make_one(tmp_path):
    with pytest.raises(MissingAssetError, match="siirl warm-start"):
        load_policy(tmp_path / "nothing")


def test_a_truncated_weight_file_is_named_with_its_size(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors \(1000 bytes\) is not a complete"
    ):
        load_policy(folder)


@pytest.fixture
def shards(folder):
    """The same policy in files of at most 20 kB, split by Hugging Face's own function."""
    # instead of the single file
    save_torch_state_dict(load_file(folder / "model.safetensors"), folder, max_shard_size=20_000)
    assert not (folder / "model.safetensors").exists()
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    return folder


def test_weights_in_several_files_read_as_from_one(folder, tmp_path):
    whole = load_policy(folder)
    (tmp_path / "cut").mkdir()
    save_torch_state_dict(whole.state_dict(), tmp_path / "cut", max_shard_size=20_000)
    (tmp_path / "cut" / "config.json").write_bytes((folder / "config.json").read_bytes())
    read = load_policy(tmp_path / "cut")
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), read.parameters(), strict=True)
    )


def test_a_file_of_several_that_is_missing_or_truncated_is_named(shards):
    last = sorted(shards.glob("model-*-of-*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=rf"{last.name} \(100 bytes\) is not a complete"):
        load_policy(shards)
    last.unlink()
    with pytest.raises(
        CheckpointError, match=rf"lacks {last.name}: model\.safetensors\.index\.json names"
    ):
        load_policy(shards)


def test_weights_of_another_model_name_what_does_not_fit(folder):
    description = json.loads((folder / "config.json").read_text())
    description["config"]["width"] = 32
    (folder / "config.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"head\.weight is \(272, 32\), expected \(272, 64\)"):
        load_policy(folder)


def test_a_config_of_something_else_is_refused(folder):
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(CheckpointError, match="it does not describe a siirl policy"):
        load_policy(folder)


def test_a_policy_of_another_environment_is_refused_before_anything_runs(folder):
    other = EnvSpec(
        "wide",
        ("only",),
        gymnasium.spaces.Dict({PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (9,))}),
        SPEC.action_space,
        10,
    )
    with pytest.raises(ConfigError, match="proprioception_size=3, but environment 'wide' has 9"):
        build_policy("tiny_vla", path=str(folder), spec=other, seed=0, options={})


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="tiny_vla"):
        build_policy("tiny_vlaa", path=None, spec=SPEC, seed=0, options={})


def test_the_seed_fixes_new_weights():
    one, other, third = (
        build_policy("tiny_vla", path=None, spec=SPEC, seed=seed, options={"width": 16})
        for seed in (3, 3, 4)
    )
    assert torch.equal(one.head.weight, other.head.weight)
    assert not torch.equal(one.head.weight, third.head.weight)


def users_policy(spec, path, width=16):
    """A callable that returns a Policy, for `actor_rollout_ref.model.policy=module:name`."""
    return TinyVLA(TinyVLAConfig.for_env(spec, width=width))


def test_a_users_own_policy_plugs_in_by_name():
    policy = build_policy(
        f"{__name__}:users_policy", path=None, spec=SPEC, seed=0, options={"width": 24}
    )
    assert policy.config.width == 24
