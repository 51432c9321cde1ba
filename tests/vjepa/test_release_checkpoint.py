"""Original V-JEPA 2 weight files: small files of the release's format."""

from pathlib import Path

import pytest
import torch

from vjepa.release_checkpoint import ARCHITECTURES, compare, load_release
from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig

SMALL = VideoTransformerConfig(
    image_size=32, frames_per_clip=4, patch_size=16, tubelet_size=2, width=24, depth=2, num_heads=2
)


def release_file(
    path: Path, *, key: str = "target_encoder", config: VideoTransformerConfig = SMALL
) -> VideoTransformer:
    """Write a file as `app/vjepa/train.py` of the release does, and return the network in it."""
    torch.manual_seed(0)
    model = VideoTransformer(config).eval()
    tensors = {f"module.backbone.{name}": value for name, value in model.state_dict().items()}
    tensors["module.backbone.pos_embed"] = torch.zeros(1, config.num_tokens, config.width)
    torch.save(
        {
            key: tensors,
            "predictor": {},
            "opt": {"state": {}},
            "scaler": None,
            "epoch": 3,
            "loss": 0.5,
            "lr": 1e-4,
        },
        path,
    )
    return model


@pytest.mark.parametrize(
    ("name", "millions"), [("vitl", 304), ("vith", 632), ("vitg", 1012), ("vitg-384", 1012)]
)
def test_sizes_are_those_of_the_release(name: str, millions: int) -> None:
    with torch.device("meta"):
        model = VideoTransformer(ARCHITECTURES[name])
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6) == millions


@pytest.mark.parametrize("key", ["target_encoder", "encoder"])
def test_a_file_of_the_releases_format_gives_the_network_back(tmp_path: Path, key: str) -> None:
    model = release_file(tmp_path / "small.pt", key=key)
    loaded = load_release(tmp_path / "small.pt", architecture=SMALL)
    video = torch.randn(1, 3, 4, 32, 32)
    torch.testing.assert_close(loaded(video), model(video), atol=0.0, rtol=0.0)


def test_the_averaged_encoder_is_preferred(tmp_path: Path) -> None:
    release_file(tmp_path / "small.pt")
    content = torch.load(tmp_path / "small.pt")
    content["encoder"] = {
        name: torch.full_like(value, 7.0) for name, value in content["target_encoder"].items()
    }
    torch.save(content, tmp_path / "small.pt")
    assert load_release(tmp_path / "small.pt", architecture=SMALL).norm.weight.max() == 1.0


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.pt"
    release_file(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"small.pt cannot be read .* truncated"):
        load_release(path, architecture=SMALL)


@pytest.mark.parametrize("content", [b"", b"not a weight file", b"\x80\x02}q\x00."])
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vitl.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"vitl\.pt"):
        load_release(path)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {}, "epoch": 1}, tmp_path / "vitl.pt")
    with pytest.raises(ValueError, match=r"neither 'target_encoder' nor 'encoder'.*epoch, model"):
        load_release(tmp_path / "vitl.pt")


def test_another_architecture_is_refused_with_what_differs(tmp_path: Path) -> None:
    release_file(tmp_path / "vitl.pt")
    with pytest.raises(
        ValueError,
        match=r"missing, for example blocks\.10.*of another shape, for example .* \[24\] instead of \[1024\]",
    ):
        load_release(tmp_path / "vitl.pt")


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'mine'\. Known: vitl, vith, vitg, vitg-384"):
        load_release(tmp_path / "mine.pt")


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No V-JEPA 2 weights"):
        load_release(tmp_path / "vitl.pt")


def test_differences_are_counted() -> None:
    mismatch = compare({"a": torch.zeros(2), "b": torch.zeros(1)}, {"a": (3,), "c": (1,)})
    assert (
        str(mismatch)
        == "1 missing, for example c; 1 unexpected, for example b; 1 of another shape, for example a [2] instead of [3]"
    )
