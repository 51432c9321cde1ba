"""Reads the original weight files of V-JEPA 2 (`vitl.pt`, `vith.pt`, `vitg.pt`, `vitg-384.pt`) into
a `VideoTransformer`.

Format, from the public code (github.com/facebookresearch/vjepa2, commit c2963a4:
`app/vjepa/train.py` writes, `src/hub/backbones.py` and `evals/` read): a dict with `encoder`,
`predictor`, `target_encoder`, optimiser and counters. The names of an encoder's parameters have its
wrappers' prefixes, `module.backbone.`. Some files have a `pos_embed`, which is not used because
positions are rotary. Left out: the predictor and V-JEPA 2-AC.
"""

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig

FRAMES_PER_CLIP = 64  # of the released models' last training phase
GIANT_MLP_RATIO = 48 / 11


def _released(
    image_size: int, width: int, depth: int, num_heads: int, mlp_ratio: float = 4.0
) -> VideoTransformerConfig:
    return VideoTransformerConfig(
        image_size=image_size, frames_per_clip=FRAMES_PER_CLIP, patch_size=16, tubelet_size=2,
        width=width, depth=depth, num_heads=num_heads, mlp_ratio=mlp_ratio,
    )  # fmt: skip


ARCHITECTURES: dict[str, VideoTransformerConfig] = {
    "vitl": _released(256, 1024, 24, 16),
    "vith": _released(256, 1280, 32, 16),
    "vitg": _released(256, 1408, 40, 22, GIANT_MLP_RATIO),
    "vitg-384": _released(384, 1408, 40, 22, GIANT_MLP_RATIO),
}
"""File name without `.pt`, and the network's shape (`src/hub/backbones.py`,
`src/models/vision_transformer.py`).
"""

ENCODER_KEYS = (
    "target_encoder",
    "encoder",
)  # the release's evaluations read the first, its hub code the second
WRAPPER_PREFIXES = ("module.", "backbone.")
UNUSED = ("pos_embed",)


@dataclass(frozen=True)
class Mismatch:
    """Differences between the tensors of a file and those that a network needs."""

    missing: list[str]
    unexpected: list[str]
    misshapen: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        parts = [
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("of another shape", self.misshapen),
        ]
        return "; ".join(
            f"{len(names)} {what}, for example {names[0]}" for what, names in parts if names
        )


def load_release(
    path: Path,
    *,
    architecture: str | VideoTransformerConfig | None = None,
    frames_per_clip: int | None = None,
) -> VideoTransformer:
    """The encoder in `path`, which should be one of the release's files.

    Args:
        path: The `.pt` file.
        architecture: A name in `ARCHITECTURES`, or your own shape; by default the file's name.
        frames_per_clip: Frames that a clip is sampled to; 64 by default.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A truncated or unknown file, or another architecture; the message has the
            difference.
    """
    config = (
        architecture
        if isinstance(architecture, VideoTransformerConfig)
        else _architecture_of(path, architecture)
    )
    if frames_per_clip is not None:
        config = replace(config, frames_per_clip=frames_per_clip)
    tensors = encoder_tensors(_read(path), path=path)
    with torch.device("meta"):
        model = VideoTransformer(config)
    mismatch = compare(
        tensors, {name: tuple(value.shape) for name, value in model.state_dict().items()}
    )
    if mismatch:
        raise ValueError(
            f"{path} does not contain the encoder {architecture or path.stem!r}: {mismatch}."
        )
    model.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    return model.requires_grad_(False)


def encoder_tensors(checkpoint: Any, *, path: Path) -> dict[str, Tensor]:
    """The encoder's parameters by their names without prefixes."""
    if not isinstance(checkpoint, Mapping):
        raise ValueError(
            f"{path} contains a {type(checkpoint).__name__}, not the dict of a V-JEPA 2 checkpoint."
        )
    for key in ENCODER_KEYS:
        if isinstance(checkpoint.get(key), Mapping):
            return {
                _bare(name): value
                for name, value in checkpoint[key].items()
                if _bare(name) not in UNUSED
            }
    known = ", ".join(sorted(map(str, checkpoint))[:8])
    raise ValueError(
        f"{path} has neither 'target_encoder' nor 'encoder', so it is not a V-JEPA 2 checkpoint. "
        f"It has: {known}."
    )


def compare(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> Mismatch:
    """Tensors that are missing, unexpected, or of another shape than in `shapes`."""
    return Mismatch(
        missing=sorted(set(shapes) - set(tensors)),
        unexpected=sorted(set(tensors) - set(shapes)),
        misshapen=[
            f"{name} {list(tensors[name].shape)} instead of {list(shape)}"
            for name, shape in sorted(shapes.items())
            if name in tensors and tuple(tensors[name].shape) != shape
        ],
    )


def _architecture_of(path: Path, name: str | None) -> VideoTransformerConfig:
    wanted = path.stem if name is None else name
    if wanted not in ARCHITECTURES:
        remedy = "Pass architecture=, or keep the release's file name." if name is None else ""
        known = ", ".join(ARCHITECTURES)
        raise ValueError(
            f"Unknown V-JEPA 2 architecture {wanted!r}. Known: {known}. {remedy}".rstrip()
        )
    return ARCHITECTURES[wanted]


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"No V-JEPA 2 weights at {path}; the release is at "
            "https://github.com/facebookresearch/vjepa2."
        )
    try:
        _check_stored(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        ValueError,
        zipfile.BadZipFile,
    ) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} cannot be read ({reason}): it is truncated or not a PyTorch weight file. "
            "Download it again."
        ) from error


def _check_stored(path: Path) -> None:
    """Refuse an archive that unpacks to more than its size, because a small file could fill the
    memory; `torch.save` does not compress.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ValueError(f"its {path.stat().st_size} bytes would unpack to {unpacked}")


def _bare(name: str) -> str:
    for prefix in WRAPPER_PREFIXES:
        name = name.removeprefix(prefix)
    return name
