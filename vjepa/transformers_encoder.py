"""V-JEPA 2 through Hugging Face transformers, from a local folder or a hub id, as a `VideoEncoder`.

transformers is imported only when a model is loaded. Its video processor needs torchvision, so
frames are prepared by `vjepa.clips`, which does the same. Left out: the predictor
(`skip_predictor=True`) and the classification heads.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from vjepa.latent_encoder import ON_CPU, EncoderPlacement, LatentEncoder


def load_transformers(
    name_or_path: str,
    *,
    pooling: str,
    frames_per_clip: int | None = None,
    placement: EncoderPlacement = ON_CPU,
) -> LatentEncoder:
    """The encoder of a V-JEPA 2 model.

    Raises:
        ValueError: A model of another type, or weights that cannot be read.
        FileNotFoundError: Neither a folder nor reachable on the Hub.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, VJEPA2Model

    _check_model_type(name_or_path)
    try:
        config = AutoConfig.from_pretrained(name_or_path)
        model = VJEPA2Model.from_pretrained(name_or_path, config=config, dtype=torch.float32)
    except SafetensorError as error:
        raise ValueError(
            f"The weights of {name_or_path} cannot be read ({error}); download them again."
        ) from error
    except OSError as error:
        raise FileNotFoundError(
            f"No V-JEPA 2 model {name_or_path!r}: {str(error).splitlines()[0]}"
        ) from error
    network = _Latents(model).requires_grad_(False)
    frames = frames_per_clip or config.frames_per_clip
    side = config.crop_size // config.patch_size
    return LatentEncoder(
        name=Path(name_or_path).name,
        network=network,
        grid=(frames // config.tubelet_size, side, side),
        width=config.hidden_size,
        frames_per_clip=frames,
        image_size=config.crop_size,
        pooling=pooling,
        crop=True,
        placement=placement,
    )


class _Latents(nn.Module):
    """The model with the axes of `vjepa.latent_encoder`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, video_B3THW: Tensor) -> Tensor:
        output = self.model(pixel_values_videos=video_B3THW.transpose(1, 2), skip_predictor=True)
        latents_BND: Tensor = output.last_hidden_state
        return latents_BND


def _check_model_type(name_or_path: str) -> None:
    config = Path(name_or_path) / "config.json"
    if config.is_file():
        model_type = json.loads(config.read_text()).get("model_type")
        if model_type != "vjepa2":
            raise ValueError(
                f"{config} describes a model of type {model_type!r}; only 'vjepa2' can encode "
                "clips."
            )
