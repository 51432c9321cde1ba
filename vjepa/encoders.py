"""Video encoders behind one protocol, which turns a clip of any length into one embedding.

`tiny` is the encoder that this repository trained (assets/vjepa_tiny). `random` is the same network
untrained, and `pixels` the frames themselves: baselines that a trained encoder must beat. V-JEPA 2
comes from a transformers folder or hub id (vjepa.transformers_encoder) or from an original `.pt`
file (vjepa.release_checkpoint). Left out: training, rewards.
"""

# Axes: B clip, T frame or tubelet, N token, D channel of the latents, E channel of the embedding.

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vjepa.clips import prepare
from vjepa.latent_encoder import ON_CPU, EncoderPlacement, LatentEncoder
from vjepa.pooling import MOMENTS, OVER_TIME, POOLINGS, Pooling
from vjepa.readout import ReadOut
from vjepa.release_checkpoint import load_release
from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig

REPOSITORY = Path(__file__).resolve().parents[1]
TINY_FOLDERS = (
    REPOSITORY / "assets" / "vjepa_tiny",
    REPOSITORY / "siirl" / "_data" / "assets" / "vjepa_tiny",
)  # checkout, wheel
DEFAULT_POOLING = "last_change"
RANDOM_SEED = 0


class VideoEncoder(Protocol):
    """Turns clips into embeddings. A clip's embedding does not depend on the other clips, up to
    rounding.
    """

    name: str
    frames_per_clip: int
    image_size: int
    embedding_size: int

    def encode(self, clips: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Embeddings float32 [B, E] of clips uint8 [T, height, width, 3]; each clip may have its
        own T, height and width.

        Raises:
            ValueError: An invalid clip, or a clip without frames; the message names its row.
        """
        ...


class RawPixelEncoder:
    """Downscaled pixels of the last and the first frame: a baseline without learning."""

    name = "pixels"
    frames_per_clip = 2
    image_size = 16
    embedding_size = 2 * 3 * 16 * 16

    def encode(self, clips: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """See `VideoEncoder.encode`."""
        if len(clips) == 0:
            return np.zeros((0, self.embedding_size), np.float32)
        video_B3THW = prepare(
            clips, frames_per_clip=self.frames_per_clip, image_size=self.image_size, crop=False
        )
        final = video_B3THW[:, :, 1].flatten(1)
        first = video_B3THW[:, :, 0].flatten(1)
        return torch.cat((final, final - first), dim=1).numpy()


class PixelsOverTime:
    """Downscaled pixels of `MOMENTS` frames spread over the clip, concatenated."""

    name = "pixels"
    frames_per_clip = 2 * MOMENTS
    image_size = RawPixelEncoder.image_size
    embedding_size = MOMENTS * 3 * image_size**2

    def encode(self, clips: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """See `VideoEncoder.encode`; uses the second of every two frames, to include the last
        one.
        """
        if len(clips) == 0:
            return np.zeros((0, self.embedding_size), np.float32)
        video_B3THW = prepare(
            clips, frames_per_clip=self.frames_per_clip, image_size=self.image_size, crop=False
        )
        return video_B3THW[:, :, 1::2].transpose(1, 2).flatten(1).numpy()


def wrap(
    model: VideoTransformer,
    *,
    name: str,
    pooling: str | Pooling,
    crop: bool,
    placement: EncoderPlacement,
) -> LatentEncoder:
    """Wrap a `VideoTransformer` as a `VideoEncoder`."""
    config = model.config
    return LatentEncoder(
        name=name,
        network=model,
        grid=config.grid,
        width=config.width,
        frames_per_clip=config.frames_per_clip,
        image_size=config.image_size,
        pooling=pooling,
        crop=crop,
        placement=placement,
    )


def load_tiny(
    folder: Path, *, pooling: str | None = None, placement: EncoderPlacement = ON_CPU
) -> LatentEncoder:
    """The encoder that `vjepa.train_tiny` wrote into `folder`.

    Raises:
        FileNotFoundError: No `config.json` or `model.safetensors` there.
        ValueError: Weights that are truncated or belong to another network.
    """
    config = read_tiny_config(folder)
    model = VideoTransformer(VideoTransformerConfig(**config["model"]))
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise FileNotFoundError(
            f"{weights} is missing; make it with the command in {folder / 'config.json'}."
        )
    try:
        tensors = load_file(weights)
        readout = _take_readout(tensors) if config["pooling"] == "readout" else None
        model.load_state_dict(tensors)
    except SafetensorError as error:
        raise ValueError(
            f"{weights} cannot be read ({error}): it is truncated or not a safetensors file. "
            "Download it again."
        ) from error
    except RuntimeError as error:
        raise ValueError(
            f"{weights} does not belong to the network that {folder / 'config.json'} describes: "
            f"{error}"
        ) from error
    return wrap(
        model,
        name=folder.name,
        pooling=pooling or readout or config["pooling"],
        crop=False,
        placement=placement,
    )


def _take_readout(tensors: dict[str, Tensor]) -> ReadOut:
    """Remove the read-out's tensors from a file's tensors, and return the read-out."""
    taken = {
        name.removeprefix("readout."): tensors.pop(name)
        for name in sorted(tensors)
        if name.startswith("readout.")
    }
    readout = ReadOut(num_features=taken.get("mean", torch.zeros(0)).numel())
    readout.load_state_dict(taken)
    return readout.requires_grad_(False)


def read_tiny_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a folder that `vjepa.train_tiny` wrote."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, so {folder} has no video encoder.")
    config = json.loads(path.read_text())
    if "model" not in config or "pooling" not in config:
        raise ValueError(
            f"{path} has no 'model' and 'pooling': it was not written by vjepa.train_tiny."
        )
    return config


def tiny_folder() -> Path:
    """Path of the shipped encoder, in a checkout or an installed wheel."""
    for folder in TINY_FOLDERS:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"The shipped video encoder is in none of {', '.join(map(str, TINY_FOLDERS))}; reinstall "
        "the package."
    )


def random_network() -> VideoTransformer:
    """The shipped network without training, as a control for its architecture."""
    config = read_tiny_config(tiny_folder())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_SEED)
        return VideoTransformer(VideoTransformerConfig(**config["model"]))


def load_video_encoder(
    name_or_path: str = "tiny",
    *,
    pooling: str | None = None,
    frames_per_clip: int | None = None,
    architecture: str | None = None,
    placement: EncoderPlacement = ON_CPU,
) -> VideoEncoder:
    """Load the encoder that `name_or_path` names.

    Args:
        name_or_path: `tiny`, `random`, `pixels`, an original V-JEPA 2 file (`.pt`), a folder (ours
            or transformers'), or the hub id of a V-JEPA 2 model (`owner/name`).
        pooling: A name in `vjepa.pooling.POOLINGS`; by default the encoder's own.
        frames_per_clip: For V-JEPA 2: frames sampled from each episode (64 in the release; fewer
            are faster).
        architecture: For a `.pt` file whose name is not the release's: `vitl`, `vith`, `vitg` or
            `vitg-384`.
        placement: Device, type and batch of an encoder with weights; by default the CPU in float32.

    Raises:
        ValueError: An unknown name; the message has the known ones.
        FileNotFoundError: A missing file or folder.
    """
    path = Path(name_or_path)
    if name_or_path == "tiny":
        return load_tiny(tiny_folder(), pooling=pooling, placement=placement)
    if name_or_path == "random":
        return wrap(
            random_network(),
            name="random",
            pooling=pooling or DEFAULT_POOLING,
            crop=False,
            placement=placement,
        )
    if name_or_path == "pixels":
        return PixelsOverTime() if pooling == OVER_TIME else RawPixelEncoder()
    if path.suffix == ".pt":
        model = load_release(path, architecture=architecture, frames_per_clip=frames_per_clip)
        return wrap(
            model,
            name=path.stem,
            pooling=pooling or DEFAULT_POOLING,
            crop=True,
            placement=placement,
        )
    if path.is_dir() and "model_type" not in json.loads((path / "config.json").read_text()):
        return load_tiny(path, pooling=pooling, placement=placement)
    if path.is_dir() or name_or_path.count("/") == 1:
        from vjepa.transformers_encoder import load_transformers

        return load_transformers(
            name_or_path,
            pooling=pooling or DEFAULT_POOLING,
            frames_per_clip=frames_per_clip,
            placement=placement,
        )
    raise ValueError(
        f"Unknown video encoder {name_or_path!r}. Known: pixels, random, tiny, a folder, a .pt "
        "file of the V-JEPA 2 release, "
        f"or a hub id such as facebook/vjepa2-vitl-fpc64-256. Poolings: {', '.join(POOLINGS)}."
    )
