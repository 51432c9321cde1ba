"""Language models that see: Qwen2.5-VL's layout, hidden states of texts with pictures in them.

Pictures are encoded apart, and their places in the text are given, not found by the picture token:
a policy may say that token, which is then text, in training as in generation.
"""

# B row, S token or place, D entry of a hidden state, K patch, N picture, F place of any picture

from dataclasses import dataclass
from typing import Any

import torch

from siirl.models.language_model import LanguageModel
from siirl.models.seen_pictures import Eyes
from siirl.params.model_args import LoraArguments


@dataclass(frozen=True)
class SeenPictures:
    """Pictures of a forward pass, and where they are in its texts."""

    patches_KV: torch.Tensor
    """uint8, the patches of all pictures, one after the other."""
    grids_N3: torch.Tensor
    """Time, height and width of each, in patches."""
    row_F: torch.Tensor
    place_F: torch.Tensor
    """Row and place of each encoded place, in the order of the patches."""
    rotary_BS3: torch.Tensor
    """Rotary positions of every token of the pass."""


class SeeingLanguageModel(LanguageModel):
    """A causal language model with a vision encoder, without its head.

    Args:
        causal_lm: Made by transformers' AutoModelForImageTextToText.
        eyes: Constants of its vision.
        lora: The adapters in `causal_lm`, or None.
    """

    def __init__(self, causal_lm: Any, *, eyes: Eyes, lora: LoraArguments | None = None) -> None:
        super().__init__(causal_lm, lora=lora)
        self.eyes = eyes

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        seen: SeenPictures | None = None,
    ) -> torch.Tensor:
        """See `LanguageModel.forward`.

        Args:
            input_ids: int64 [B, S].
            position_ids: int64 [B, S]; rotary positions too, if there are no pictures.
            attention_mask: See `LanguageModel.forward`.
            cache: See `LanguageModel.forward`.
            seen: The pictures; None: text only.
        """
        decoder = self.causal_lm.base_model
        embedded_BSD = decoder.get_input_embeddings()(input_ids)
        rotary_BS3 = position_ids[..., None].expand(-1, -1, 3) if seen is None else seen.rotary_BS3
        if seen is not None and len(seen.row_F):
            features_FD = self._features(seen.patches_KV, seen.grids_N3)
            embedded_BSD = embedded_BSD.index_put(
                (seen.row_F, seen.place_F), features_FD.to(embedded_BSD.dtype)
            )
        elif cache is None:
            # on several ranks the encoder must run, even for rows without pictures
            embedded_BSD = embedded_BSD + 0 * self._nothing_seen(input_ids.device)
        output = decoder(
            inputs_embeds=embedded_BSD,
            # the first of the four separates packed texts
            position_ids=torch.cat([position_ids[None], rotary_BS3.permute(2, 0, 1)]),
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return output.last_hidden_state

    def _features(self, patches_KV: torch.Tensor, grids_N3: torch.Tensor) -> torch.Tensor:
        """Encoded pictures [F, D], in the order of their places."""
        encoded = self.causal_lm.base_model.get_image_features(
            self.eyes.normalised(patches_KV), grids_N3, return_dict=True
        )
        return torch.cat(list(encoded.pooler_output))

    def _nothing_seen(self, device: torch.device) -> torch.Tensor:
        """A number that depends on every weight of the encoder."""
        side = self.eyes.merge
        patches_KV = torch.zeros((side**2, self.eyes.values), dtype=torch.uint8, device=device)
        return self._features(patches_KV, torch.tensor([[1, side, side]], device=device)).sum()
