"""Vision of language models in Qwen2.5-VL's layout: builds a decoder's inputs for texts with
pictures.

Pictures are encoded separately. Their positions in the text are given, not found by the picture
token: a policy may generate that token, and it is then text, both in training and in generation.
"""

# B row, S token, D entry of a hidden state, K patch, N picture, F token of any picture, V
# value of a patch

from dataclasses import dataclass
from typing import Any

import torch

from siirl.models.seen_pictures import VisionConstants


@dataclass(frozen=True)
class SeenPictures:
    """Pictures of a forward pass, and where they are in its texts."""

    patches_KV: torch.Tensor
    """uint8, the patches of all pictures, one after the other."""
    grids_N3: torch.Tensor
    """Time, height and width of each, in patches."""
    row_F: torch.Tensor
    place_F: torch.Tensor
    """Row and position of each encoded token, in the order of the patches."""
    rotary_BS3: torch.Tensor
    """Rotary positions of every token of the pass."""


@dataclass(frozen=True)
class VisionInputs:
    """Turns tokens and pictures into the inputs of transformers' decoder."""

    vision: VisionConstants

    def inputs(
        self,
        decoder: Any,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        *,
        seen: SeenPictures | None,
        generates: bool,
    ) -> dict[str, torch.Tensor]:
        """Arguments of `decoder`.

        Args:
            decoder: transformers' decoder, with its picture encoder.
            input_ids: int64 [B, S].
            position_ids: int64 [B, S]; rotary positions too, if there are no pictures.
            seen: The pictures; None: text only.
            generates: Whether this rank alone makes the pass; otherwise every rank runs the
                encoder.
        """
        embedded_BSD = decoder.get_input_embeddings()(input_ids)
        rotary_BS3 = position_ids[..., None].expand(-1, -1, 3) if seen is None else seen.rotary_BS3
        if seen is not None and len(seen.row_F):
            features_FD = self._features(decoder, seen.patches_KV, seen.grids_N3)
            embedded_BSD = embedded_BSD.index_put(
                (seen.row_F, seen.place_F), features_FD.to(embedded_BSD.dtype)
            )
        elif not generates:
            # ranks gather the encoder's weights together, even for rows without pictures
            embedded_BSD = embedded_BSD + 0 * self._nothing_seen(decoder, input_ids.device)
        return {
            "inputs_embeds": embedded_BSD,
            # the first of the four axes separates packed texts
            "position_ids": torch.cat([position_ids[None], rotary_BS3.permute(2, 0, 1)]),
        }

    def _features(
        self, decoder: Any, patches_KV: torch.Tensor, grids_N3: torch.Tensor
    ) -> torch.Tensor:
        """Encoded pictures [F, D], in the order of their positions."""
        encoded = decoder.get_image_features(
            self.vision.normalised(patches_KV), grids_N3, return_dict=True
        )
        return torch.cat(list(encoded.pooler_output))

    def _nothing_seen(self, decoder: Any, device: torch.device) -> torch.Tensor:
        """A number that depends on every weight of the encoder."""
        side = self.vision.merge
        patches_KV = torch.zeros((side**2, self.vision.values), dtype=torch.uint8, device=device)
        grid_13 = torch.tensor([[1, side, side]], device=device)
        return self._features(decoder, patches_KV, grid_13).sum()
