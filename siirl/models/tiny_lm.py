"""The shipped tiny language model: a byte-level Qwen3 that transformers and vLLM read.

Its tokenizer encodes any text: tokens 0 to 255 are the bytes, and eight more are marks. There are
no merges: a model that adds digit by digit learns from few questions, and a tiny vocabulary leaves
the weights to the layers. Model and tokenizer are an ordinary Hugging Face folder, which needs no
code of siirl. (Not Qwen2: transformers reads any tokenizer next to it as Qwen's own, which
normalises text and has one token more.) `siirl warm-start env=math` trains it.

Its chat template is minimal. If the first message is a user's, it has no mark and the answer
follows directly (`12+34=46`), so a question with one answer costs no mark. Every other message is
preceded by the token of its role, and the assistant's message ends with `<|end|>`:

    user, assistant:
        12+34=46<|end|>
    user, assistant, tool, assistant:
        12+34=<tool_call>…</tool_call><|end|><|tool|>46<|assistant|>46<|end|>
    system, user, assistant:
        <|system|>…<|user|>12+34=<|assistant|>46<|end|>
"""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

PAD = "<|pad|>"
END = "<|end|>"
ROLE_MARKS = {
    "system": "<|system|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "tool": "<|tool|>",
}
SPECIAL_TOKENS = (PAD, END, *ROLE_MARKS.values())
TAGS = ("<tool_call>", "</tool_call>")
"""Tokens that count as ordinary text: an environment reads them (`envs.tools.calls`)."""
NUM_BYTES = 256

_USER_BEGINS = "messages[0]['role'] == 'user'"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if loop.first and message['role'] == 'user' -%}{{- message['content'] -}}"
    f"{{%- elif loop.index0 == 1 and message['role'] == 'assistant' and {_USER_BEGINS} -%}}"
    "{{- message['content'] + '<|end|>' -}}"
    "{%- else -%}{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- if message['role'] == 'assistant' -%}{{- '<|end|>' -}}{%- endif -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt and not (messages | length == 1 and {_USER_BEGINS}) -%}}"
    "{{- '<|assistant|>' -}}{%- endif -%}"
)


@dataclass(frozen=True)
class TinyLMShape:
    """Size of the model; the default has 0.7 million weights."""

    width: int = 128
    layers: int = 3
    heads: int = 4  # of 32 entries each, the minimum of vLLM's attention on a CPU
    feed_forward: int = 384
    max_length: int = 2048
    """Tokens of prompt and response: a few turns with tools, or a program with its task."""


def tiny_tokenizer() -> Any:
    """The tokenizer, as transformers' fast tokenizer."""
    from transformers import PreTrainedTokenizerFast

    letters = _letters_of_bytes()
    spelling = Tokenizer(
        BPE(vocab={letter: byte for byte, letter in enumerate(letters)}, merges=[])
    )
    spelling.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    spelling.decoder = ByteLevelDecoder()
    spelling.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    spelling.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=spelling,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=TinyLMShape.max_length,
        clean_up_tokenization_spaces=False,
    )


def new_tiny_lm(*, seed: int, shape: TinyLMShape | None = None) -> Any:
    """Transformers' Qwen3ForCausalLM in float32, with weights drawn from `seed`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = shape or TinyLMShape()
    tokens = NUM_BYTES + len(SPECIAL_TOKENS) + len(TAGS)
    config = Qwen3Config(
        vocab_size=tokens,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.width // shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.max_length,
        tie_word_embeddings=True,
        pad_token_id=NUM_BYTES + SPECIAL_TOKENS.index(PAD),
        eos_token_id=NUM_BYTES + SPECIAL_TOKENS.index(END),
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _letters_of_bytes() -> list[str]:
    """The letter of each byte in byte-level tokenizers, as in GPT-2.

    A printable byte is itself; the others are letters from 256 on. Printable bytes are ! to ~, ¡ to
    ¬ and ® to ÿ (https://github.com/openai/gpt-2, encoder.py).
    """
    printing = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    return [chr(byte if byte in printing else next(others)) for byte in range(NUM_BYTES)]
