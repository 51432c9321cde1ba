"""Pictures in the input form of Qwen's vision-language models: patches, tokens in a prompt,
positions.

A picture is resized, cut into square patches, and encoded; every `merge` x `merge` patches become
one token of the prompt, the picture token. The tokens of a picture have three rotary
positions: time, height and width (Wang et al. 2024, arXiv 2409.12191, section 2.1). For text, the
three are equal.

Patches stay bytes until the model normalises them: as float32, with the repeated frame of
transformers' processor, they would take eight times the memory.

Left out: videos.
"""

# K patch, N picture, S token of a text, V value of a patch (3 colours x patch x patch)

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envs.question_pictures import PLACEHOLDER, PictureSource
from siirl.errors import CheckpointError, MissingAssetError
from siirl.files.weight_files import CONFIG_FILE, PREPROCESSOR_FILE

PICTURES_KEPT = 64  # decoded at a time: the rollouts of a group run close together


@dataclass(frozen=True)
class VisionConstants:
    """Constants of a model's vision."""

    token: int
    """The picture token."""
    patch: int
    """Side length of a patch, in pixels."""
    merge: int
    """Side length of a token, in patches."""
    frames: int
    """Number of equal frames for a still picture."""
    mean: tuple[float, float, float]
    """Mean and deviation of the colours, in [0, 1]."""
    std: tuple[float, float, float]

    @property
    def values(self) -> int:
        """V, values of a patch."""
        return 3 * self.patch**2

    def normalised(self, patches_KV: torch.Tensor) -> torch.Tensor:
        """The encoder's input, float32 [K, 3 * frames * patch * patch]."""
        colours = patches_KV.view(-1, 3, 1, self.patch**2).float() / 255
        mean, std = (
            torch.tensor(of_colour, device=colours.device).view(3, 1, 1)
            for of_colour in (self.mean, self.std)
        )
        return ((colours - mean) / std).expand(-1, -1, self.frames, -1).flatten(1)


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures of a prompt, in order. Equal if they show the same."""

    patches_KV: NDArray[np.uint8]
    grids_N2: NDArray[np.int64]
    """Height and width of each picture in patches."""
    vision: VisionConstants
    number: int
    """Digest of the pictures; 0 for none."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pictures) and self.number == other.number

    def __hash__(self) -> int:
        return self.number

    @property
    def places_N(self) -> NDArray[np.int64]:
        """Tokens of each picture in the prompt."""
        return self.grids_N2.prod(1) // self.vision.merge**2

    @property
    def shifted(self) -> int:
        """How far the rotary positions after the pictures lag behind the token positions."""
        return int(self.places_N.sum() - (self.grids_N2.max(1) // self.vision.merge).sum())

    def positions(self, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Rotary positions [S, 3] of a text that begins with the prompt with these pictures.

        Picture tokens after the prompt are text: a policy may generate any token.
        """
        ids_S = np.asarray(ids)
        marks = np.flatnonzero(ids_S == self.vision.token)
        parts = []
        place = 0
        start = 0
        for (height, width), count in zip(
            self.grids_N2 // self.vision.merge, self.places_N, strict=True
        ):
            first = int(marks[0])
            parts += [
                _of_text(first - place, start),
                _of_grid(height, width, start + first - place),
            ]
            start += first - place + max(height, width)
            place = first + count
            marks = marks[count:]
        parts.append(_of_text(len(ids_S) - place, start))
        return np.concatenate(parts)

    def in_places(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Tokens of a prompt, with each picture token repeated for every token of its picture.

        Raises:
            ValueError: The numbers of picture tokens and pictures differ.
        """
        found = sum(one == self.vision.token for one in ids)
        if found != len(self.places_N):
            raise ValueError(
                f"the chat template turns {len(self.places_N)} {PLACEHOLDER} into {found} picture "
                "tokens: the text of the prompt contains the model's own picture token, or the "
                "template has none"
            )
        places = iter(self.places_N.tolist())
        runs = ([one] * (next(places) if one == self.vision.token else 1) for one in ids)
        return tuple(one for run in runs for one in run)

    def columns(self, ids: Sequence[int] | NDArray[np.int64]) -> dict[str, Any]:
        """Batch columns of a row with these pictures; `ids` are prompt and response."""
        return {
            "position_ids": self.positions(ids),
            "picture_patches": self.patches_KV,
            "picture_grids": np.repeat(self.grids_N2, self.grids_N2.prod(1), axis=0),
            "picture_number": self.number,
        }


def _of_text(count: int, start: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(start, start + count)[:, None], 3, axis=1)


def _of_grid(height: int, width: int, start: int) -> NDArray[np.int64]:
    time, row, column = np.mgrid[0:1, 0:height, 0:width]
    return start + np.stack([time.ravel(), row.ravel(), column.ravel()], axis=1)


def grids_of(grids_K2: torch.Tensor, *, vision: VisionConstants) -> torch.Tensor:
    """Time, height and width of each picture [N, 3], from the grids of its patches (0: padding)."""
    grids, place = [], 0
    rows = grids_K2.tolist()
    while place < len(rows) and rows[place][0]:
        height, width = rows[place]
        grids.append([1, height, width])
        place += height * width
    return torch.tensor(grids, dtype=torch.long, device=grids_K2.device).view(-1, 3)


class PictureReader:
    """Reads pictures like the model's own processor, with Pillow.

    Args:
        processor: transformers' `Qwen2VLImageProcessorPil`.
        token: The picture token.
    """

    def __init__(self, processor: Any, *, token: int) -> None:
        self.processor = processor
        self.vision = VisionConstants(
            token=token,
            patch=processor.patch_size,
            merge=processor.merge_size,
            frames=processor.temporal_patch_size,
            mean=tuple(processor.image_mean),
            std=tuple(processor.image_std),
        )
        self._kept = functools.lru_cache(maxsize=PICTURES_KEPT)(self._read)
        self.none = Pictures(
            np.zeros((0, self.vision.values), np.uint8), np.zeros((0, 2), np.int64), self.vision, 0
        )

    def __getstate__(self) -> dict[str, Any]:
        # another process does not need the cached pictures
        return {"processor": self.processor, "token": self.vision.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, sources: tuple[PictureSource, ...]) -> Pictures:
        """Read the pictures of a prompt; recent ones are cached.

        Raises:
            ValueError: A picture cannot be read, or the model does not accept its size.
        """
        return self._kept(sources)

    def _read(self, sources: tuple[PictureSource, ...]) -> Pictures:
        if not sources:
            return self.none
        found = [self._patches(source) for source in sources]
        patches_KV = np.concatenate([patches for patches, _ in found])
        grids_N2 = np.stack([grid for _, grid in found])
        digest = hashlib.sha256(patches_KV.tobytes() + grids_N2.tobytes()).digest()
        number = int.from_bytes(digest[:8], "big") >> 1 or 1
        return Pictures(patches_KV, grids_N2, self.vision, number)

    def _patches(self, source: PictureSource) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        picture = source.open()
        try:
            read = self.processor(
                images=[picture], do_rescale=False, do_normalize=False, return_tensors="np"
            )
        except ValueError as error:
            raise ValueError(f"the model does not accept {source.name}: {error}") from error
        frames = read["pixel_values"].reshape(-1, 3, self.vision.frames, self.vision.patch**2)
        return frames[:, :, 0].reshape(-1, self.vision.values).astype(np.uint8), read[
            "image_grid_thw"
        ][0, 1:]


def load_picture_reader(source: str, config: Any) -> PictureReader:
    """The reader of a model's folder or hub id.

    Args:
        source: Folder or hub id.
        config: The model's configuration.

    Raises:
        MissingAssetError: No `preprocessor_config.json`.
        CheckpointError: The file does not fit the model.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    try:
        processor = Qwen2VLImageProcessorPil.from_pretrained(source)
    except OSError as error:
        raise MissingAssetError(
            f"{source} has no {PREPROCESSOR_FILE}, which describes the model's picture "
            "inputs: copy the model's own file there."
        ) from error
    vision = config.vision_config
    for name, own, of_model in (
        ("patch_size", processor.patch_size, vision.patch_size),
        ("merge_size", processor.merge_size, vision.spatial_merge_size),
        ("temporal_patch_size", processor.temporal_patch_size, vision.temporal_patch_size),
    ):
        if own != of_model:
            raise CheckpointError(
                f"{source}: {name} is {own} in {PREPROCESSOR_FILE} but {of_model} in "
                f"{CONFIG_FILE}. Use both files of one model."
            )
    return PictureReader(processor, token=config.image_token_id)
