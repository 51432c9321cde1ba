"""Conventions of OpenVLA and OpenVLA-OFT checkpoints for LIBERO: images, proprioception, actions.

Facts from the public evaluation code (github.com/moojink/openvla-oft:
experiments/robot/libero/libero_utils.py, experiments/robot/openvla_utils.py,
experiments/robot/robot_utils.py, prismatic/vla/action_tokenizer.py, prismatic/vla/constants.py,
MIT):

- Images: LIBERO's are upside down, and the training data were rotated by 180 degrees; relative to
  our upright images, left and right are exchanged. Then JPEG (quality 95), Lanczos to 224x224, the
  middle 90 % of the area, bilinear back to 224x224. Agent view first, then the wrist.
- Proprioception: gripper position, axis times angle, two fingers (what `env=libero` gives), to [-1,
  1] by the 1 % and 99 % quantiles.
- Actions: six numbers in [-1, 1] by the quantiles, and the fingers from 0 (closed) to 1 (open). The
  benchmark wants -1 open, +1 closed.
- Tokens: 256 edges from -1 to 1, the bins counted down from the end of the vocabulary (of 32,000
  for Llama 2). Chunks of 8 actions.

Left out: the networks (siirl.models), and TensorFlow, which prepares images there.
`envs.libero.tensorflow_images` replaces it: a checkpoint's image differs in about one value in a
thousand, by one grey level (tested).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.libero.tensorflow_images import cropped_image, resized_image, stored_image

IMAGE_SIZE = 224
CHUNK_LENGTH = 8
BINS = 256
LLAMA_VOCABULARY = 32_000
SMALLEST_RANGE = 1e-8  # avoids a division by zero for a constant quantity
STATISTICS_FILE = "dataset_statistics.json"
PROMPT = "In: What action should the robot take to {instruction}?\nOut:"


@dataclass(frozen=True)
class Quantiles:
    """Range of each number in the training data; numbers with `mask` False are not scaled."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mask: NDArray[np.bool_]

    def normalise(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Scale to [-1, 1], clipped, for the network's input."""
        scaled = 2 * (values - self.low) / (self.high - self.low + SMALLEST_RANGE) - 1
        return np.clip(np.where(self.mask, scaled, values), -1.0, 1.0)

    def unnormalise(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Scale the network's output from [-1, 1]."""
        return np.where(
            self.mask,
            0.5 * (values + 1) * (self.high - self.low + SMALLEST_RANGE) + self.low,
            values,
        )


def read_statistics(
    checkpoint: Path, *, data: str | None = None
) -> tuple[Quantiles, Quantiles | None]:
    """Read quantiles of actions and, if the checkpoint has them, of proprioception.

    Args:
        checkpoint: The folder of the checkpoint, with `dataset_statistics.json`, or else
            `norm_stats` in its `config.json`.
        data: The data set or its suite: `spatial` is `libero_spatial_no_noops` or
            `libero_spatial`. None: the only data set.

    Raises:
        ValueError: The file is missing or lacks the data set.
    """
    path, statistics = _statistics(checkpoint)
    names = (
        (data, f"libero_{data}_no_noops", f"libero_{data}")
        if data is not None
        else tuple(statistics)
    )
    known = [name for name in names if name in statistics]
    if not known:
        raise ValueError(
            f"{path} knows {', '.join(sorted(statistics))}, but none of "
            f"{', '.join(map(str, names))}: was it trained on {data!r}?"
        )
    if data is None and len(known) > 1:
        raise ValueError(
            f"{path} has statistics of several data sets, {', '.join(sorted(statistics))}: name "
            "one of them."
        )
    chosen = statistics[known[0]]
    return _quantiles(chosen["action"]), _quantiles(
        chosen["proprio"]
    ) if "proprio" in chosen else None


def _statistics(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the statistics, and its statistics by data set."""
    for path, inside in (
        (checkpoint / STATISTICS_FILE, None),
        (checkpoint / "config.json", "norm_stats"),
    ):
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} is damaged ({error}): download the checkpoint's file again."
            ) from error
        statistics = content if inside is None else content.get(inside)
        if statistics:
            return path, statistics
    raise ValueError(
        f"The checkpoint {checkpoint} has no {STATISTICS_FILE}: without it actions cannot be "
        "un-normalised."
    )


def policy_image(upright: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert our image [size, size, 3] for the checkpoints: uint8 [224, 224, 3]."""
    return cropped_image(resized_image(stored_image(published_image(upright)), IMAGE_SIZE))


def published_image(upright: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """LIBERO's own image turned by 180 degrees: ours with left and right exchanged."""
    return np.ascontiguousarray(upright[:, ::-1])


def environment_actions(normalised: NDArray[Any], *, quantiles: Quantiles) -> NDArray[np.float32]:
    """Convert network outputs [N, 7] to actions of `env=libero`, float32 [N, 7] in [-1, 1]."""
    actions = quantiles.unnormalise(np.asarray(normalised, np.float64))
    actions[:, -1] = -np.sign(2 * actions[:, -1] - 1)  # 0 closed, 1 open, to +1 closed, -1 open
    return np.clip(actions, -1.0, 1.0).astype(np.float32)


def normalised_actions(actions: NDArray[Any], *, quantiles: Quantiles) -> NDArray[np.float64]:
    """Convert actions of `env=libero` [N, 7] to training targets; inverts `environment_actions`."""
    theirs = np.array(actions, np.float64)
    theirs[:, -1] = (1 - theirs[:, -1]) / 2
    return quantiles.normalise(theirs)


def action_tokens(
    normalised: NDArray[Any], *, vocabulary: int = LLAMA_VOCABULARY
) -> NDArray[np.int64]:
    """Return token ids of normalised actions; the bin of -1 is the vocabulary's last token."""
    return np.asarray(vocabulary - np.digitize(np.clip(normalised, -1.0, 1.0), _edges()), np.int64)


def action_values(
    tokens: NDArray[np.int64], *, vocabulary: int = LLAMA_VOCABULARY
) -> NDArray[np.float64]:
    """Return normalised actions of token ids: bin centres.

    256 edges make 255 bins; the last id also means the last bin.
    """
    edges = _edges()
    middles = (edges[:-1] + edges[1:]) / 2
    return np.asarray(middles[np.clip(vocabulary - tokens - 1, 0, BINS - 2)])


def prompt(instruction: str) -> str:
    """The question that the checkpoints were trained to answer."""
    return PROMPT.format(instruction=instruction.lower())


def _quantiles(statistics: dict[str, Any]) -> Quantiles:
    low = np.asarray(statistics["q01"], np.float64)
    high = np.asarray(statistics["q99"], np.float64)
    return Quantiles(low, high, np.asarray(statistics.get("mask", np.ones(low.shape, bool)), bool))


def _edges() -> NDArray[np.float64]:
    return np.linspace(-1.0, 1.0, BINS)
