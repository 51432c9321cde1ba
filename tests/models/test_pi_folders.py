"""Folders of pi0 and pi0.5 that are read, or refused with a sentence."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.models.policy_loader import build_policy
from tests.models.published_flows import robot
from tests.models.test_pi import KINDS, checkpoint, make


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def copied(tmp_path, kind, changes) -> Path:
    """The checkpoint with other entries in config.json."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint(kind), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"type": "smolvla"},
            "does not describe a LeRobot pi0: its type is 'smolvla', expected 'pi0'",
        ),
        ({"use_relative_actions": True}, "relative to the state"),
        ({"use_peft": True}, "merge them into the weights first"),
        ({"num_inference_steps": 0}, "num_inference_steps=0 must be a whole number"),
        ({"image_resolution": [64, 64]}, "images of 32 pixels does not fit image_resolution"),
        ({"image_resolution": None}, "does not fit image_resolution=None"),
        ({"freeze_vision_encoder": "no"}, "freeze_vision_encoder='no' must be true or false"),
    ],
)
def test_a_config_that_siirl_cannot_follow_is_refused(tmp_path, changes, told):
    with pytest.raises(CheckpointError, match=told):
        make("pi0", copied(tmp_path, "pi0", changes))


def test_a_config_without_lerobots_later_settings_is_read(tmp_path):
    folder = copied(tmp_path, "pi05", {})
    config = json.loads((folder / "config.json").read_text())
    for name in ("train_expert_only", "freeze_vision_encoder", "use_relative_actions"):
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    assert make("pi05", folder).io_format.images == 2


def test_cameras_that_lerobot_adds_are_left_out(tmp_path):
    folder = copied(tmp_path, "pi0", {})
    config = json.loads((folder / "config.json").read_text())
    empty = {"type": "VISUAL", "shape": [3, 32, 32]}
    config["input_features"]["observation.images.empty_camera_0"] = empty
    (folder / "config.json").write_text(json.dumps(config))
    assert make("pi0", folder).io_format.images == 2


def test_a_folder_without_the_tokenizer_is_refused_with_its_place(tmp_path, kind):
    folder = copied(tmp_path, kind, {})
    shutil.move(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(MissingAssetError, match=r"google/paligemma-3b-pt-224.*options\.tokenizer"):
        make(kind, folder)
    assert make(kind, folder, tokenizer=str(tmp_path)).chunk_length == 4


def test_another_models_tokenizer_is_refused(tmp_path):
    folder = copied(tmp_path, "pi0", {})
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"]["far"] = 300
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(CheckpointError, match="a token 300, but the policy has 262 tokens"):
        make("pi0", folder)


LAYER = "model.paligemma_with_expert.gemma_expert.model.layers.2."
VISION = "model.paligemma_with_expert.paligemma.model.vision_tower.vision_model."


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda w: w.pop(f"{LAYER}mlp.up_proj.weight"), "missing .*up_proj"),
        (lambda w: w.pop("model.state_proj.bias"), "missing model.state_proj.bias"),
        (lambda w: w.update({"more": torch.ones(1)}), "unexpected model.more"),
        (lambda w: w.update({"model.state_proj.bias": torch.ones(3)}), r"is \(3,\), expected"),
        (
            lambda w: [w.pop(name) for name in list(w) if name.startswith(LAYER)],
            "the language model has 3 layers and heads of 4, the action expert 2 and 4",
        ),
        (
            lambda w: w.pop(f"{VISION}embeddings.patch_embedding.weight"),
            "has no .*patch_embedding.weight: it is not a complete pi0 of LeRobot",
        ),
    ],
)
def test_weights_of_which_some_are_missing_or_wrong_are_refused(tmp_path, change, told):
    folder = copied(tmp_path, "pi0", {})
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=told):
        make("pi0", folder)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"chunk_length": 7}, "chunk_length=7 must be from 1 to 6"),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"noise_std": [0.1, 0.2]}, "noise_std is read with noise=learnt or end"),
        ({"images": 3}, "images=3 must be from 1 to 2"),
        ({"pad_state": 1}, "pad_state=1 must be true or false"),
        ({"train_expert_only": "no"}, "train_expert_only='no' must be true or false"),
    ],
)
def test_an_invalid_option_is_refused(options, told):
    with pytest.raises((ValueError, ConfigError), match=told):
        make("pi05", **options)


def test_new_weights_are_refused(kind):
    with pytest.raises(ConfigError, match=rf"lerobot-train --policy\.type={kind}"):
        build_policy(kind, path=None, spec=robot(), seed=0, options={})


def test_a_processor_that_makes_actions_relative_is_refused(tmp_path, kind):
    folder = copied(tmp_path, kind, {})
    file = folder / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    [step] = [s for s in content["steps"] if s["registry_name"] == "relative_actions_processor"]
    step["config"]["enabled"] = True
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="the unsupported step 'relative_actions_processor'"):
        make(kind, folder)
