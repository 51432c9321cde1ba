"""OpenVLA's encoders built by timm, instead of our own modules: option `vision=timm`.

The blocks and the patch embedding are timm's; names of weights and outputs are those of
`siirl.models.openvla_vision`, so that the same checkpoints are read. timm needs torchvision, and
PyPI's torchvision needs torch's CUDA build: the extra `timm` is installed with TORCH_BUILD=cuda.
Left out: timm's own weights.
"""

# N image, P patch, D feature

import importlib
from types import ModuleType

import torch
from torch import nn

from siirl.errors import ConfigError
from siirl.models.openvla_vision import EncoderShape, LayerScale, VisionEncoder

LOADING = (ImportError, RuntimeError)
"""Errors of a missing timm or torchvision, and of a torchvision built for another torch."""


def load_timm() -> ModuleType:
    """The package.

    Raises:
        ConfigError: It is not installed, or its torchvision does not load.
    """
    try:
        return importlib.import_module("timm")
    except LOADING as error:
        raise ConfigError(
            f"actor_rollout_ref.model.options.vision=timm: timm does not load ({error}). Install "
            "it beside torch's CUDA build, make setup TORCH_BUILD=cuda, or leave the option out: "
            "our own modules compute the same."
        ) from error


class TimmEncoder(VisionEncoder):
    """A vision transformer up to its second-to-last block, built from timm's parts.

    Args:
        name: Name of the model in `timm.create_model`.
        shape: Shape of the transformer; the last block is not built.
        image_size: Height and width in pixels.
        recompute: Keep only the input of each block for the backward pass, and recompute the rest.
    """

    def __init__(self, name: str, shape: EncoderShape, *, image_size: int, recompute: bool) -> None:
        super().__init__(shape, image_size=image_size, recompute=recompute)
        made = load_timm().create_model(
            name,
            pretrained=False,
            num_classes=0,
            global_pool="",  # without SigLIP's pooling by attention
            img_size=image_size,
            patch_size=shape.patch,
            embed_dim=shape.width,
            depth=shape.blocks - 1,
            num_heads=shape.heads,
            mlp_ratio=(shape.hidden + 0.5) / shape.width,  # timm rounds down
            **({"reg_tokens": shape.registers} if shape.registers else {}),
        )
        self.patch_embed = made.patch_embed
        self.blocks = nn.ModuleList(made.blocks)
        if shape.scaled:
            for block in self.blocks:  # named as in OpenVLA's checkpoints
                block.ls1, block.ls2 = LayerScale(shape.width), LayerScale(shape.width)

    def embed(self, colours: torch.Tensor) -> torch.Tensor:
        """See `VisionEncoder.embed`."""
        patches: torch.Tensor = self.patch_embed(colours)
        return patches
