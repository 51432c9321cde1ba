"""SmolVLA against LeRobot's numbers (`smolvla/make_reference.py`), and as a policy of siirl."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from siirl.algos.flow_distributions import FlowEnd, FlowNoise, FlowSDE
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.models.policy_loader import build_policy, save_policy
from siirl.models.prefix_layers import embed_time
from siirl.models.smolvla_network import scaled_and_padded
from siirl.params.model_args import LoraArguments
from tests.models.lerobot_reference import random_weights
from tests.models.published_flows import (
    WATCHED,
    observed,
    require_merged_adapters,
    require_same_chunks,
    require_same_files,
    require_same_log_probs,
    robot,
    run_lerobot,
)
from tests.models.smolvla.variants import VARIANTS, published

FOLDER = Path(__file__).parent / "smolvla"
CHECKPOINT = FOLDER / "checkpoint"


def make(path=CHECKPOINT, *, spec=None, **options):
    return build_policy("smolvla", path=str(path), spec=spec or robot(), seed=0, options=options)


@pytest.fixture(scope="module")
def reference():
    return load_file(FOLDER / "reference.safetensors")


@pytest.fixture(scope="module")
def tasks():
    with safe_open(FOLDER / "reference.safetensors", framework="pt") as stored:
        return json.loads(stored.metadata()["tasks"])


@pytest.fixture(scope="module")
def policy():
    return make()


def euler(policy, observation, noise_NKA) -> torch.Tensor:
    """Chunks [N, K, A] of the whole network, from noise without random steps."""
    flow = policy(**observation)
    x_NF = noise_NKA.flatten(1)[:, policy.order_F]
    for step in range(flow.steps):
        x_NF = x_NF + flow._velocity_at(x_NF, step) / flow.steps
    return x_NF[:, policy.order_F.argsort()].view(noise_NKA.shape)


def test_an_instruction_has_lerobots_tokens(policy, reference, tasks):
    for task, tokens, mask in zip(tasks, reference["tokens"], reference["mask"], strict=True):
        found = policy.tokenize_instruction(task)
        assert found[mask.numpy()].tolist() == tokens[mask].tolist()
        assert (found[~mask.numpy()] == -1).all()


def test_state_is_scaled_and_actions_are_restored_as_lerobot_does(policy, reference):
    _, state = policy.prepare(
        images=reference["images"][0].numpy(), proprioception=reference["state"][0].numpy()
    )
    np.testing.assert_allclose(state, reference["normalised_state"][0], rtol=1e-6, atol=1e-6)
    sampled = reference["sampled"][0].numpy()
    expected = np.clip(reference["unnormalised"][0], -1, 1)
    found = policy.action_tokenizer.decode(sampled.flatten())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    inside = np.abs(expected.numpy()) < 1
    coded = policy.action_tokenizer.encode(found).reshape(sampled.shape)
    np.testing.assert_allclose(coded[inside], sampled[inside], rtol=1e-4, atol=1e-5)


def test_a_chunk_from_the_same_noise_is_lerobots(policy, reference, tasks):
    with torch.no_grad():
        found = euler(policy, observed(policy, reference, tasks), reference["noise"])
    torch.testing.assert_close(found[..., :7], reference["sampled"], rtol=1e-4, atol=1e-4)


def test_velocities_and_gradients_are_lerobots(reference, tasks):
    policy = make(train_expert_only=False, freeze_vision_encoder=False)
    observation = observed(policy, reference, tasks)
    noise, time = reference["noise"], reference["time"]
    actions = torch.nn.functional.pad(reference["actions"], (0, 2))
    x_NKA = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
    prefix = policy.model.prefix(
        observation["pixel_values"], observation["instruction_ids"], observation["proprioception"]
    )
    v_NKA = policy.model.velocity(prefix.context, prefix.valid_NL, x_NKA[:, None], time[:, None])[
        :, 0
    ]
    losses = (noise - actions - v_NKA).square()
    torch.testing.assert_close(losses, reference["losses"], rtol=1e-4, atol=1e-5)
    losses.mean().backward()
    weights = dict(policy.named_parameters())
    names = [name.removeprefix(WATCHED) for name in reference if name.startswith(WATCHED)]
    assert len(names) == 5
    for name in names:
        expected = reference[WATCHED + name]
        torch.testing.assert_close(weights[name].grad, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_kinds_of_attention_are_lerobots(tmp_path, variant, reference, tasks):
    folder = copied(tmp_path, VARIANTS[variant])
    state = load_file(CHECKPOINT / "model.safetensors")
    joint = variant == "self_attention"  # which layers project the prefix's keys
    for layer in range(4):
        for part in "kv":
            name = f"model.vlm_with_expert.lm_expert.layers.{layer}.self_attn.{part}_proj.weight"
            state[name] = torch.empty(8, 12 if joint else 8)
    save_file(published(random_weights(state, seed=1)), folder / "model.safetensors")
    policy = make(folder)
    with torch.no_grad():
        found = euler(policy, observed(policy, reference, tasks), reference["noise"])
    torch.testing.assert_close(
        found[..., :7], reference[f"{variant}.actions"], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("noise", "kind"), [("sde", FlowSDE), ("learnt", FlowNoise), ("end", FlowEnd)]
)
def test_a_sampled_chunk_has_the_log_prob_that_training_computes(noise, kind, reference, tasks):
    policy = make(noise=noise)
    require_same_log_probs(policy, observed(policy, reference, tasks), kind)


def test_the_prefix_is_computed_once_for_all_steps_of_a_chunk(policy, reference, tasks):
    passes = []
    text = policy.model.vlm_with_expert.vlm.model.text_model
    hooks = [layer.register_forward_hook(lambda *_: passes.append(1)) for layer in text.layers]
    with torch.no_grad():
        policy(**observed(policy, reference, tasks)).mode()
    for hook in hooks:
        hook.remove()
    assert len(passes) == len(text.layers)


def test_only_what_lerobot_trains_has_a_gradient(reference, tasks):
    for flags, expected in (
        ({}, ("lm_expert", "action_", "state_proj")),
        (
            {"train_expert_only": False},
            ("lm_expert", "action_", "state_proj", "text_model", "connector"),
        ),
    ):
        policy = make(**flags)
        flow = policy(**observed(policy, reference, tasks))
        uniforms = torch.full((3, policy.uniforms_per_chunk), 0.4)
        flow.log_prob(flow.sample(uniforms).detach()).sum().backward()
        trained = {name for name, weight in policy.named_parameters() if weight.grad is not None}
        asked = {name for name, weight in policy.named_parameters() if weight.requires_grad}
        assert trained == asked
        assert all(any(part in name for part in expected) for name in trained)
        assert all(any(part in name for name in trained) for part in expected)


def test_adapters_are_trained_instead_of_the_weights_and_merged_when_read(
    tmp_path, reference, tasks
):
    policy = make()
    observation = observed(policy, reference, tasks)
    require_merged_adapters(policy, observation, folder=tmp_path, read=make)


def test_adapters_without_names_are_where_weights_would_be_trained():
    policy = make()
    policy.adapt(LoraArguments(rank=2), seed=0)
    places = ("model.vlm_with_expert.lm_expert.", "model.action_", "model.state_proj")
    assert len(policy.adapted) == 4 * 7 + 5
    assert all(name.startswith(places) for name in policy.adapted)


def test_an_adapter_of_an_unread_layer_is_refused():
    with pytest.raises(ConfigError, match=r"lm_head would have no effect"):
        make().adapt(LoraArguments(rank=2, target_modules=("lm_head",)), seed=0)


def test_a_saved_policy_is_read_again_without_the_first_folder(tmp_path, reference, tasks):
    first = tmp_path / "first"
    shutil.copytree(CHECKPOINT, first)
    save_policy(make(first), tmp_path / "second")
    shutil.rmtree(first)
    again = make(tmp_path / "second")
    one, other = (policy(**observed(policy, reference, tasks)).mode() for policy in (make(), again))
    assert torch.equal(one, other)


def test_images_are_scaled_and_padded_at_the_left_and_the_top():
    pixels = torch.ones(1, 3, 2, 4)
    found = scaled_and_padded(pixels, 8, 8)
    assert found.shape == (1, 3, 8, 8)
    assert found[0, 0, :4].sum() == 0 and (found[0, 0, 4:] == 1).all()


def test_times_have_the_periods_of_the_published_range():
    found = embed_time(torch.tensor([1.0]), 4, periods=(0.004, 4.0))[0]
    expected = [np.sin(2 * np.pi / 0.004), 1.0, np.cos(2 * np.pi / 0.004), np.cos(2 * np.pi / 4)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["libero", "libero (stand-in assets)"])
def test_libero_is_seen_as_lerobots_data_show_it(name):
    image = np.arange(48 * 64 * 3, dtype=np.uint8).reshape(1, 48, 64, 3).repeat(2, axis=0)
    state = np.zeros(8, np.float32)
    turned, _ = make(spec=robot(name=name)).prepare(images=image, proprioception=state)
    plain, _ = make().prepare(images=image, proprioception=state)
    assert (plain == image).all()
    assert (turned == image[:, :, ::-1]).all()


def copied(tmp_path, changes) -> Path:
    """The checkpoint with other entries in config.json."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"type": "pi0"}, "its type is 'pi0', expected 'smolvla'"),
        ({"n_obs_steps": 2}, "n_obs_steps=2 is not supported"),
        ({"adapt_to_pi_aloha": True}, "ALOHA"),
        ({"use_peft": True}, "merge them into the weights first"),
        ({"add_image_special_tokens": True}, "markers around images"),
        ({"num_expert_layers": 2}, "as many layers as the language model"),
        ({"attention_mode": "linear"}, "attention_mode='linear' must be one of"),
        ({"chunk_size": "fifty"}, "chunk_size='fifty' must be a whole number"),
        ({"n_action_steps": 7}, "n_action_steps=7 is more than chunk_size"),
        ({"input_features": {}}, "it lacks observation.state"),
        ({"output_features": {"action": 7}}, "does not give each name a type and a shape"),
        ({"max_action_dim": 6}, "action has more numbers than max_action_dim=6"),
        ({"train_expert_only": "yes"}, "train_expert_only='yes' must be true or false"),
        ({"min_period": None}, "min_period=None must be a positive number"),
        ({"max_period": "4"}, "max_period='4' must be a positive number"),
        ({"expert_width_multiplier": 0}, "expert_width_multiplier=0 must be a positive number"),
        ({"resize_imgs_with_padding": [512]}, r"resize_imgs_with_padding=\[512\] must be null"),
        ({"self_attn_every_n_layers": None}, "self_attn_every_n_layers=None must be a whole"),
        ({"num_vlm_layers": 3}, r"holds another model than SmolVLA: unexpected .*layers\.3"),
    ],
)
def test_a_config_that_siirl_cannot_follow_is_refused(tmp_path, changes, told):
    with pytest.raises(CheckpointError, match=told):
        make(copied(tmp_path, changes))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"chunk_length": 7}, "chunk_length=7 must be from 1 to 6"),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"noise": "white"}, "noise='white' must be 'learnt'"),
        ({"noise_std": [0.1, 0.2]}, "noise_std is read with noise=learnt or end"),
        ({"images": 3}, "images=3 must be from 1 to 2"),
        ({"train_expert_only": "no"}, "train_expert_only='no' must be true or false"),
        ({"freeze_vision_encoder": 0}, "freeze_vision_encoder=0 must be true or false"),
    ],
)
def test_an_invalid_option_is_refused(options, told):
    with pytest.raises((ValueError, ConfigError), match=told):
        make(**options)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (robot(cameras=1), "reads 2 cameras .* has 1.*env.camera=both"),
        (robot(state=4), "reads 8 numbers of observation.state, but 'arm' has 4"),
        (robot(actions=4), "has actions of 7 numbers"),
    ],
)
def test_another_robot_is_refused(spec, told):
    with pytest.raises(ConfigError, match=told):
        make(spec=spec)


def test_one_camera_of_two_can_be_left_out():
    assert make(spec=robot(cameras=1), images=1).io_format.images == 1


def test_new_weights_are_refused():
    with pytest.raises(ConfigError, match=r"lerobot-train --policy\.type=smolvla"):
        build_policy("smolvla", path=None, spec=robot(), seed=0, options={})


def test_a_checkpoint_of_an_older_lerobot_is_refused_with_its_conversion(tmp_path):
    folder = copied(tmp_path, {})
    (folder / "policy_preprocessor.json").unlink()
    with pytest.raises(
        MissingAssetError, match=r"lerobot\.processor\.migrate_policy_normalization"
    ):
        make(folder)


def test_a_checkpoint_without_statistics_of_its_features_is_refused(tmp_path):
    """As lerobot/smolvla_base: it has statistics under the names of other robots."""
    folder = copied(tmp_path, {})
    statistics = {"so100.buffer.action.mean": torch.zeros(6)}
    save_file(statistics, folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors")
    with pytest.raises(CheckpointError, match="smolvla_base is only a start"):
        make(folder)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("policy_preprocessor_step_5_normalizer_processor", "observation.state.mean"),
        ("policy_postprocessor_step_0_unnormalizer_processor", "action.std"),
    ],
)
def test_statistics_that_are_not_finite_are_refused(tmp_path, file, name):
    """A data set with one NaN gives such statistics; every action would be NaN."""
    folder = copied(tmp_path, {})
    statistics = load_file(folder / f"{file}.safetensors")
    statistics[name][0] = torch.nan
    save_file(statistics, folder / f"{file}.safetensors")
    with pytest.raises(CheckpointError, match=f"{name}.* that is not finite among the statistics"):
        make(folder)


def test_a_processor_with_a_step_that_siirl_does_not_do_is_refused(tmp_path):
    folder = copied(tmp_path, {})
    file = folder / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    content["steps"].append({"registry_name": "delta_actions", "config": {}})
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="the unsupported step 'delta_actions'"):
        make(folder)


def test_a_checkpoint_without_the_vision_language_model_needs_its_files(tmp_path):
    folder = copied(tmp_path, {"vlm_model_name": "/no/such/folder"})
    shutil.move(folder / "vlm", tmp_path / "elsewhere")
    with pytest.raises(MissingAssetError, match=r"options\.vlm to a folder with config\.json"):
        make(folder)
    assert make(folder, vlm=str(tmp_path / "elsewhere")).chunk_length == 4
    (tmp_path / "elsewhere" / "tokenizer.json").unlink()
    with pytest.raises(MissingAssetError, match=r"No tokenizer\.json"):
        make(folder, vlm=str(tmp_path / "elsewhere"))


def lerobot(*words: object) -> None:
    script = FOLDER / "make_reference.py"
    run_lerobot(script, *words, variable="LEROBOT_PYTHON", version="0.4.4")


@pytest.mark.slow
def test_lerobot_makes_the_committed_files_again(tmp_path):
    lerobot(tmp_path)
    require_same_files(tmp_path, FOLDER)


@pytest.mark.slow
def test_lerobot_acts_with_a_folder_that_siirl_wrote_as_with_its_own(tmp_path, reference):
    policy = tmp_path / "policy"
    save_policy(make(), policy)
    lerobot(tmp_path, "--check", policy)
    require_same_chunks(tmp_path / "chunks.safetensors", reference)
