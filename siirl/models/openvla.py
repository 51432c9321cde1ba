"""The first OpenVLA: a 7B VLA policy that generates the tokens of one action in turn.

Paper: https://arxiv.org/abs/2406.09246. Input of the language model: <s>, image patches, the
question, and the tokens so far; attention is causal (github.com/openvla/openvla,
prismatic/extern/hf/modeling_prismatic.py, MIT: `predict_action` calls transformers' `generate`).
siirl excludes tokens that are not action tokens; the published code maps such a token to the
nearest bin.

Questions of different lengths share a batch: padding lies between question and tokens, is masked,
and takes no positions.
"""

# N observation, V patch token, L token of the question, T token of an action, S token, D feature

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import DynamicCache

from siirl.algos.token_by_token import NextLogits, TokenByToken
from siirl.models.openvla_policy import OpenVLAPolicy, OpenVLATokenizer, Parts, bin_flops


class OpenVLA(OpenVLAPolicy):
    """The policy; see `Policy` for the contract.

    Args:
        parts: Networks of the checkpoint.
        action_tokenizer: Tokenizer of the actions.
    """

    chunk_length = 1
    distribution = TokenByToken

    def __init__(self, parts: Parts, *, action_tokenizer: OpenVLATokenizer) -> None:
        super().__init__(parts, attention="sdpa")
        self.action_tokenizer: OpenVLATokenizer = action_tokenizer

    @property
    def places_beside(self) -> int:
        """All tokens but the last."""
        return self.tokens_per_chunk - 1

    def head_flops(self) -> int:
        """See `OpenVLAPolicy.head_flops`."""
        return bin_flops(self)

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> TokenByToken:
        """Action tokens of 256 bins [N, T], each given those before; see `Policy.forward`."""
        embeddings_NSD, there_NS = self._asked(pixel_values, instruction_ids)
        answers = ActionTokenLogits(self, there_NS)
        return TokenByToken(
            answers.logits, answers.generation, embeddings_NSD, tokens=self.tokens_per_chunk
        )

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The last hidden state before the first token, [N, D]; see `Policy.features`."""
        embeddings_NSD, there_NS = self._asked(pixel_values, instruction_ids)
        return last_places(self.hidden(embeddings_NSD, there_NS), there_NS)

    def hidden(
        self, embeddings: torch.Tensor, there_NS: torch.Tensor, cache: DynamicCache | None = None
    ) -> torch.Tensor:
        """Last hidden states of `embeddings`, the last of the positions `there_NS`."""
        whole = bool(there_NS.all())
        positions_NS = there_NS.cumsum(1) - 1
        output = self.language_model.model(
            inputs_embeds=embeddings,
            attention_mask=None if whole else there_NS,
            position_ids=positions_NS[:, -embeddings.shape[1] :],
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def embedded_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings of action tokens, counted from the first one."""
        words: Any = self.language_model.get_input_embeddings()
        embedded: torch.Tensor = words(tokens + self.action_tokenizer.first)
        return embedded

    def _asked(
        self, pixel_values: torch.Tensor | None, instruction_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [N, S, D] of <s>, patches and question, and the positions that are not
        padding.
        """
        assert pixel_values is not None, "checked when the policy was made"
        ids_NL = self.question(instruction_ids)
        words_NLD = self.language_model.get_input_embeddings()(ids_NL)
        seen_NVD = self.seen(pixel_values, None).to(words_NLD.dtype)
        there_NL = ids_NL != self.padding
        there_NS = functional.pad(there_NL[:, 1:], (seen_NVD.shape[1] + 1, 0), value=True)
        return torch.cat([words_NLD[:, :1], seen_NVD, words_NLD[:, 1:]], dim=1), there_NS


@dataclass(frozen=True)
class ActionTokenLogits:
    """Logits of an OpenVLA's action tokens after its questions."""

    policy: OpenVLA
    there_NS: torch.Tensor

    def logits(self, context: torch.Tensor, tokens_NT: torch.Tensor) -> torch.Tensor:
        """Logits [N, T, 256], in one pass over question and tokens."""
        said_NTD = self.policy.embedded_tokens(tokens_NT[:, :-1]).to(context.dtype)
        there_NS = functional.pad(self.there_NS, (0, said_NTD.shape[1]), value=True)
        hidden_NSD = self.policy.hidden(torch.cat([context, said_NTD], dim=1), there_NS)
        asked = context.shape[1]
        first_ND = last_places(hidden_NSD[:, :asked], self.there_NS)
        hidden_NTD = torch.cat([first_ND[:, None], hidden_NSD[:, asked:]], dim=1)
        return self.policy.bin_logits(hidden_NTD, self.policy.action_tokenizer)

    def generation(self, context: torch.Tensor) -> NextLogits:
        """Keeps keys and values of the positions that were computed."""
        cache = DynamicCache(config=self.policy.language_model.config)
        there_NS = self.there_NS

        def following(token_N: torch.Tensor | None) -> torch.Tensor:
            nonlocal there_NS
            if token_N is None:
                hidden_NSD = self.policy.hidden(context, there_NS, cache)
                hidden_ND = last_places(hidden_NSD, there_NS)
            else:
                there_NS = functional.pad(there_NS, (0, 1), value=True)
                said_N1D = self.policy.embedded_tokens(token_N[:, None]).to(context.dtype)
                hidden_ND = self.policy.hidden(said_N1D, there_NS, cache)[:, 0]
            return self.policy.bin_logits(hidden_ND, self.policy.action_tokenizer)

        return following


def last_places(hidden_NSD: torch.Tensor, there_NS: torch.Tensor) -> torch.Tensor:
    """The hidden state [N, D] of each row's last position, before its padding."""
    last_N = there_NS.sum(1) - 1
    return hidden_NSD[torch.arange(len(hidden_NSD), device=hidden_NSD.device), last_N]
