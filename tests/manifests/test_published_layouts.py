"""Our loaders against the published names, shapes and types of real checkpoints, without memory."""

import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, VJEPA2Model

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from siirl.errors import CheckpointError
from siirl.models.openvla_checkpoint import load_openvla, load_openvla_oft
from siirl.models.openvla_oft import OpenVLAOFT, ResidualMLP
from siirl.models.pi import Pi
from siirl.models.pi_checkpoint import load_pi0, load_pi05
from siirl.models.pretrained import plan_causal_lm, read_config
from siirl.models.smolvla_checkpoint import load_smolvla
from siirl.preflight.model_shapes import read_shape
from tests.manifests.published import NAMES, Manifest, read_manifest, write_headers
from tests.models.tiny_openvla import ACTION, PREPROCESSOR, tokenizer
from vjepa.release_checkpoint import ARCHITECTURES, compare, encoder_tensors
from vjepa.vision_transformer import VideoTransformer

SMOLVLA = Path(__file__).parents[1] / "models" / "smolvla" / "checkpoint"
PI = Path(__file__).parents[1] / "models" / "pi"
RELEASE = {name: f"vjepa2_{name.replace('-', '_')}" for name in ARCHITECTURES}
LIBERO = EnvSpec(
    "libero",
    ("only",),
    gymnasium.spaces.Dict(
        {
            IMAGES: gymnasium.spaces.Box(0, 255, (2, 256, 256, 3), np.uint8),
            PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (8,)),
        }
    ),
    gymnasium.spaces.Box(-1, 1, (7,), np.float32),
    10,
)


def openvla_folder(place: Path, manifest: Manifest) -> Path:
    folder = write_headers(manifest, place)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    statistics = {"libero_goal_no_noops": {"action": ACTION}}
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def openvla(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAOFT:
    place = tmp_path_factory.mktemp("published") / "openvla"
    folder = openvla_folder(place, read_manifest("openvla_oft_7b"))
    return load_openvla_oft(folder, LIBERO, weights=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_holds_as_many_tensors_and_parameters_as_are_published(name: str) -> None:
    manifest = read_manifest(name)
    shapes = manifest.shapes()
    assert len(shapes) == manifest.content["count"]
    assert sum(map(prod, shapes.values())) == manifest.content["parameters"]


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_says_where_it_comes_from_and_what_was_not_checked(name: str) -> None:
    content = read_manifest(name).content
    assert all(content[key] for key in ("model", "source", "checked", "not_checked"))


def test_openvla_7b_finds_every_weight_under_its_published_name(openvla: OpenVLAOFT) -> None:
    shapes = read_manifest("openvla_oft_7b").shapes()
    ours = {name: tuple(tensor.shape) for name, tensor in openvla.state_dict().items()}
    assert ours == {name: shapes[name] for name in ours}
    assert sum(map(prod, ours.values())) == 7_498_156_704


def test_the_first_openvla_finds_the_same_weights(openvla: OpenVLAOFT, tmp_path: Path) -> None:
    """openvla/openvla-7b has the manifest's names and shapes, and its statistics in config.json."""
    manifest = read_manifest("openvla_oft_7b")
    folder = openvla_folder(tmp_path / "openvla", manifest)
    (folder / "dataset_statistics.json").unlink()
    statistics = {"norm_stats": {"bridge_orig": {"action": ACTION}}}
    (folder / "config.json").write_text(json.dumps(manifest.config | statistics))
    policy = load_openvla(folder, LIBERO, weights=False)
    shapes = {name: tensor.shape for name, tensor in policy.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in openvla.state_dict().items()}


def test_a_regression_head_has_its_published_names_and_shapes() -> None:
    with torch.device("meta"):
        head = ResidualMLP(7 * 4096, 4096, 7)
    ours = {f"module.model.{n}": tuple(tensor.shape) for n, tensor in head.state_dict().items()}
    assert ours == read_manifest("openvla_oft_regression_head").shapes()


def test_openvla_7b_leaves_out_only_what_no_pass_reads(openvla: OpenVLAOFT) -> None:
    """The encoders' last blocks and what follows them: the second-to-last block is read."""
    shapes = read_manifest("openvla_oft_7b").shapes()
    left_out = shapes.keys() - openvla.state_dict().keys()
    unread = tuple(
        f"vision_backbone.{encoder}."
        for encoder in (
            *("featurizer.blocks.23", "featurizer.norm"),
            *(f"fused_featurizer.{part}" for part in ("blocks.26", "norm", "attn_pool")),
        )
    )
    assert {name for name in left_out if not name.startswith(unread)} == set()
    assert sum(prod(shapes[name]) for name in left_out) == 43_080_480


def test_openvla_7b_reads_its_published_type(openvla: OpenVLAOFT) -> None:
    assert openvla.planned is not None
    assert {place.dtype for place in openvla.planned.stored.tensors.values()} == {torch.bfloat16}


def test_a_layout_that_lacks_a_block_is_refused(tmp_path: Path) -> None:
    content = dict(read_manifest("openvla_oft_7b").content)
    content["tensors"] = {
        pattern.replace("layers.{0..31}", "layers.{0..30}"): shape
        for pattern, shape in content["tensors"].items()
    }
    folder = openvla_folder(tmp_path / "openvla", Manifest(content))
    with pytest.raises(CheckpointError, match=r"layers\.31\.input_layernorm.*9 in all"):
        load_openvla_oft(folder, LIBERO, weights=False)


def test_qwen_7b_finds_every_weight_under_its_published_name(tmp_path: Path) -> None:
    manifest = read_manifest("qwen2_5_7b")
    folder = write_headers(manifest, tmp_path / "qwen")
    config = read_config(str(folder), trust_remote_code=False)
    made = plan_causal_lm(str(folder), config, dtype=torch.float32, trust_remote_code=False)
    assert made is not None
    module, planned = made
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == manifest.shapes()
    assert {place.dtype for place in planned.stored.tensors.values()} == {torch.bfloat16}


def lerobot_folder(place: Path, manifest: Manifest, *, tiny: Path, size: int) -> Path:
    """Published sizes, with the processors of a tiny checkpoint and statistics of `size` numbers."""
    folder = write_headers(manifest, place, files=1)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00001-of-00001.safetensors").rename(folder / "model.safetensors")
    for file in tiny.glob("policy_*"):
        shutil.copyfile(file, folder / file.name)
    numbers = {
        f"{name}.{part}": torch.ones(size)
        for name in ("observation.state", "action")
        for part in ("mean", "std", "q01", "q99")
    }
    for file in folder.glob("policy_*.safetensors"):
        save_file(numbers, file)
    return folder


def arm(size: int) -> EnvSpec:
    """Three cameras, state and actions of `size` numbers."""
    images = gymnasium.spaces.Box(0, 255, (3, 256, 256, 3), np.uint8)
    felt = gymnasium.spaces.Box(-1, 1, (size,))
    spaces = gymnasium.spaces.Dict({IMAGES: images, PROPRIOCEPTION: felt})
    box = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
    return EnvSpec("arm", ("only",), spaces, box, 10)


def test_smolvla_finds_every_weight_under_its_published_name_and_type(tmp_path: Path) -> None:
    manifest = read_manifest("smolvla_base")
    folder = lerobot_folder(tmp_path / "smolvla", manifest, tiny=SMOLVLA, size=6)
    (folder / "vlm").mkdir()
    (folder / "vlm" / "config.json").write_text(json.dumps(manifest.content["vlm"]))
    shutil.copyfile(SMOLVLA / "vlm" / "tokenizer.json", folder / "vlm" / "tokenizer.json")
    policy = load_smolvla(folder, arm(6), weights=False)
    ours = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    assert ours == manifest.shapes()
    assert policy.planned is not None
    stored = {name: place.dtype for name, place in policy.planned.stored.tensors.items()}
    assert stored == {name: getattr(torch, dtype) for name, dtype in manifest.types().items()}


@pytest.mark.parametrize(("kind", "load"), [("pi0", load_pi0), ("pi05", load_pi05)])
def test_pi_finds_every_weight_under_its_published_name_and_type(
    tmp_path: Path, kind: str, load: Callable[..., Pi]
) -> None:
    manifest = read_manifest(f"{kind}_base")
    tiny = PI / kind / "checkpoint"
    folder = lerobot_folder(tmp_path / kind, manifest, tiny=tiny, size=32)
    shutil.copyfile(tiny / "tokenizer.json", folder / "tokenizer.json")
    policy = load(folder, arm(32), weights=False)
    ours = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    assert ours == {f"model.{name}": shape for name, shape in manifest.shapes().items()}
    assert policy.planned is not None
    stored = {name: place.dtype for name, place in policy.planned.stored.tensors.items()}
    assert stored == {name: getattr(torch, dtype) for name, dtype in manifest.types().items()}


@pytest.mark.parametrize("name", ["openvla_oft_7b", "qwen2_5_7b"])
def test_the_memory_table_counts_the_weights_of_the_published_config(
    tmp_path: Path, name: str, openvla: OpenVLAOFT
) -> None:
    manifest = read_manifest(name)
    shape = read_shape(write_headers(manifest, tmp_path / name), images=1)
    assert shape is not None
    proprioception = 4096 * 8 + 4096 + 4096 * 4096 + 4096  # a separate file
    built = {
        "openvla_oft_7b": sum(weight.numel() for weight in openvla.parameters()) + proprioception,
        "qwen2_5_7b": manifest.content["parameters"],
    }
    assert shape.parameters == built[name]


def test_the_memory_table_counts_a_regression_head(tmp_path: Path) -> None:
    folder = write_headers(read_manifest("openvla_oft_7b"), tmp_path / "openvla")
    without = read_shape(folder, images=1)
    (folder / "action_head--150000_checkpoint.pt").touch()
    with_head = read_shape(folder, images=1)
    assert without is not None and with_head is not None
    head = read_manifest("openvla_oft_regression_head").content["parameters"]
    assert with_head.parameters - without.parameters == head + 7  # and the deviation


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_v_jepa_2_network_has_the_tensors_of_the_release(name: str) -> None:
    manifest = read_manifest(f"{RELEASE[name]}_pt")
    released = {
        key: torch.empty(shape, dtype=getattr(torch, manifest.dtype), device="meta")
        for key, shape in manifest.shapes().items()
    }
    # positions, which are not used
    optional = {key: torch.empty(1, device="meta") for key in manifest.content["optional"]}
    tensors = encoder_tensors({"encoder": released | optional}, path=Path(f"{name}.pt"))
    with torch.device("meta"):
        ours = VideoTransformer(ARCHITECTURES[name]).state_dict()
    assert not compare(tensors, {key: tuple(value.shape) for key, value in ours.items()})
    assert {value.dtype for value in ours.values()} == {torch.float32}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_v_jepa_2_model_of_transformers_has_the_tensors_of_the_hub(
    tmp_path: Path, name: str
) -> None:
    manifest = read_manifest(f"{RELEASE[name]}_hub")
    (tmp_path / "config.json").write_text(json.dumps(manifest.config))
    with torch.device("meta"):
        model = VJEPA2Model(AutoConfig.from_pretrained(tmp_path))
    ours = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert ours == manifest.shapes()
