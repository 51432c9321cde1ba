"""A network that gives latents, and a pooling that makes an embedding of them: what every video
encoder with weights is.
"""

# Axes: B clip, T frame or tubelet, N token, D channel of the latents, E channel of the embedding.

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vjepa.clips import prepare
from vjepa.pooling import Pooling, pooling_of


class LatentEncoder:
    """A network that gives latents, and a pooling that makes an embedding of them."""

    def __init__(
        self,
        *,
        name: str,
        network: Callable[[Tensor], Tensor],
        grid: tuple[int, int, int],
        width: int,
        frames_per_clip: int,
        image_size: int,
        pooling: str | Pooling,
        crop: bool,
        batch_size: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Wrap `network`.

        Args:
            name: What metrics and errors call it.
            network: From a video [B, 3, T, size, size] to latents [B, N, D], tokens over time, then
                rows, then columns.
            grid: Tubelets, rows and columns of a clip's tokens.
            width: D.
            frames_per_clip: Frames sampled from each clip.
            image_size: Height and width that the network sees.
            pooling: A name in `vjepa.pooling.POOLINGS`, or a function such as a trained read-out.
            crop: Resize and crop as V-JEPA 2's preprocessor does; if not, the whole image is kept.
            batch_size: Clips encoded at once; bounds memory.
            device: Where the network lies.
            dtype: What the network computes in; embeddings are float32 whatever it is.
        """
        self.name, self.frames_per_clip, self.image_size = name, frames_per_clip, image_size
        self._network, self._grid, self._crop, self._batch_size = network, grid, crop, batch_size
        self._pooling = pooling_of(pooling) if isinstance(pooling, str) else pooling
        self._device, self._dtype = device, dtype
        self.embedding_size = self._pooling(torch.zeros(1, *grid, width)).shape[1]

    def encode(self, clips: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """See `VideoEncoder.encode`."""
        embeddings = np.zeros((len(clips), self.embedding_size), np.float32)
        for rows, video in self._batches(clips):
            with torch.inference_mode():
                latents = self._network(video.to(self._device, self._dtype)).unflatten(
                    1, self._grid
                )
                embeddings[rows] = self._pooling(latents.float()).cpu().numpy()
        return embeddings

    def _batches(self, clips: Sequence[NDArray[np.uint8]]) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(clips), self._batch_size):
            rows = slice(start, min(start + self._batch_size, len(clips)))
            yield (
                rows,
                prepare(
                    clips[rows],
                    frames_per_clip=self.frames_per_clip,
                    image_size=self.image_size,
                    crop=self._crop,
                    first_row=start,
                ),
            )
