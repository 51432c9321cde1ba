"""Video encoders with weights: a network computes latents, and a pooling turns them into an
embedding.

`EncoderPlacement` has the network's device, dtype and batch size. An encoder that shares a GPU with
a policy keeps its weights in host memory and copies them to the GPU during a call.
"""

# Axes: B clip, T frame or tubelet, N token, D channel of the latents, E channel of the embedding.

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from vjepa.clips import prepare
from vjepa.pooling import Pooling, pooling_of

# One clip of 64 frames of 256 pixels, whose 32 TFLOP (ViT-g) fill a GPU; or many clips of a small
# network.
TOKENS_PER_PASS = 8192


@dataclass(frozen=True)
class EncoderPlacement:
    """Device and types of an encoder's computation."""

    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    """Type of weights and activations; embeddings are always float32."""
    batch_size: int | None = None
    """Clips per forward pass, from any episodes; None: `TOKENS_PER_PASS` tokens."""
    offload: bool = False
    """Keep the weights in host memory, and copy them to the device for each call of `encode`."""


ON_CPU = EncoderPlacement()


class LatentEncoder:
    """A network that computes latents, and a pooling that turns them into an embedding.

    An embedding depends on the other clips of its pass only by rounding: at most 1e-5 of its norm
    in float32, and 2e-2 in bfloat16, which rounds products to 8 bits.
    """

    def __init__(
        self,
        *,
        name: str,
        network: nn.Module,
        grid: tuple[int, int, int],
        width: int,
        frames_per_clip: int,
        image_size: int,
        pooling: str | Pooling,
        crop: bool,
        placement: EncoderPlacement,
    ) -> None:
        """Wrap `network`.

        Args:
            name: Name in metrics and errors.
            network: From a video [B, 3, T, size, size] to latents [B, N, D], tokens over time, then
                rows, then columns. It is moved and cast.
            grid: Tubelets, rows and columns of a clip's tokens.
            width: D.
            frames_per_clip: Frames sampled from each clip.
            image_size: Height and width that the network sees.
            pooling: A name in `vjepa.pooling.POOLINGS`, or a function such as a trained read-out.
            crop: Resize and crop as V-JEPA 2's preprocessor does; otherwise the whole image is
                kept.
            placement: Device, type and batch.
        """
        self.name = name
        self.frames_per_clip = frames_per_clip
        self.image_size = image_size
        self._grid = grid
        self._crop = crop
        self.placement = placement
        self._pooling = pooling_of(pooling) if isinstance(pooling, str) else pooling
        self.embedding_size = self._pooling(torch.zeros(1, *grid, width)).shape[1]
        self.batch_size = placement.batch_size or max(1, TOKENS_PER_PASS // math.prod(grid))
        self._network = network.to(placement.dtype).eval()
        if not placement.offload:
            for part in self._modules():
                part.to(placement.device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, which are on the device while clips are encoded."""
        return sum(weight.nbytes for part in self._modules() for weight in part.parameters())

    def encode(self, clips: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """See `VideoEncoder.encode`."""
        embeddings = np.zeros((len(clips), self.embedding_size), np.float32)
        if len(clips) > 0:
            self._fill(embeddings, clips)
        if self.placement.offload and torch.device(self.placement.device).type == "cuda":
            torch.cuda.empty_cache()  # the policy's update needs the memory
        return embeddings

    @torch.inference_mode()
    def _fill(self, embeddings: NDArray[np.float32], clips: Sequence[NDArray[np.uint8]]) -> None:
        network = self._on_device(self._network)
        pooling = self._on_device(self._pooling)
        for rows, video in self._batches(clips):
            latents = network(video.to(self.placement.dtype)).unflatten(1, self._grid)
            embeddings[rows] = pooling(latents.float()).cpu().numpy()

    def _on_device(self, part: Pooling) -> Pooling:
        """`part` with its weights on the device, or with copies there for one call."""
        if not self.placement.offload or not isinstance(part, nn.Module):
            return part
        tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
        copies = {name: tensor.to(self.placement.device) for name, tensor in tensors.items()}
        return functools.partial(functional_call, part, copies)

    def _modules(self) -> list[nn.Module]:
        """The network, and a read-out that has weights."""
        return [self._network, *([self._pooling] if isinstance(self._pooling, nn.Module) else [])]

    def _batches(self, clips: Sequence[NDArray[np.uint8]]) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(clips), self.batch_size):
            rows = slice(start, min(start + self.batch_size, len(clips)))
            yield (
                rows,
                prepare(
                    clips[rows],
                    frames_per_clip=self.frames_per_clip,
                    image_size=self.image_size,
                    crop=self._crop,
                    first_row=start,
                    device=self.placement.device,
                ),
            )
