"""The shipped tiny vision-language model: a byte-level Qwen2.5-VL that transformers reads.

Its tokenizer is that of `siirl.models.tiny_lm` with picture tokens, and a chat template with one
mark per role. A picture of 64 x 64 pixels has 16 places. Model, tokenizer and
`preprocessor_config.json` are an ordinary Hugging Face folder, which needs no code of siirl.
`assets/tiny_vlm/make.py` trains it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken

from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.models.seen_pictures import PictureReader
from siirl.models.tiny_lm import END, PAD, tiny_tokenizer
from siirl.models.vision_inputs import VisionInputs

VISION_START = "<|vision_start|>"
PICTURE = "<|image_pad|>"
VISION_END = "<|vision_end|>"
VIDEO = "<|video_pad|>"  # unused, but transformers' configuration needs its id
MARKS = (VISION_START, PICTURE, VISION_END, VIDEO)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}"
    f"{{{{- '{VISION_START}{PICTURE}{VISION_END}' -}}}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    f"{{%- if message['role'] == 'assistant' -%}}{{{{- '{END}' -}}}}{{%- endif -%}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


@dataclass(frozen=True)
class TinyVLMShape:
    """Size of the model; the default has 0.6 million weights."""

    width: int = 96
    layers: int = 3
    heads: int = 3
    feed_forward: int = 256
    max_length: int = 512
    vision_width: int = 64
    vision_layers: int = 2
    vision_heads: int = 2
    patch: int = 8
    """Side length of a patch in pixels; four patches are one place."""
    most_pixels: int = 64 * 64
    """A larger picture is shrunk."""


def tiny_seeing_tokenizer(shape: TinyVLMShape | None = None) -> ChatTokenizer:
    """The tokenizer, with a reader of pictures."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    shape = shape or TinyVLMShape()
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = shape.max_length
    processor = Qwen2VLImageProcessorPil(
        patch_size=shape.patch,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": (2 * shape.patch) ** 2, "longest_edge": shape.most_pixels},
    )
    reader = PictureReader(processor, token=tokenizer.convert_tokens_to_ids(PICTURE))
    return ChatTokenizer(tokenizer, reader=reader, place="the tiny model")


def new_tiny_vlm(*, seed: int, shape: TinyVLMShape | None = None) -> LanguageModel:
    """Transformers' Qwen2_5_VLForConditionalGeneration in float32, with weights from `seed`."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    shape = shape or TinyVLMShape()
    chat = tiny_seeing_tokenizer(shape)
    tokenizer = chat.tokenizer
    start, picture, end, video, pad, stop = tokenizer.convert_tokens_to_ids([*MARKS, PAD, END])
    half = shape.width // shape.heads // 2
    generation: dict[str, Any] = {"eos_token_id": stop, "pad_token_id": pad, "dtype": "float32"}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.heads,
            "intermediate_size": shape.feed_forward,
            "max_position_embeddings": shape.max_length,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                # time, height and width in the published proportion of 16 : 24 : 24
                "mrope_section": [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8],
            },
            "pad_token_id": pad,
            "eos_token_id": stop,
            "bos_token_id": None,
        },
        vision_config={
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_width,
            "intermediate_size": 2 * shape.vision_width,
            "num_heads": shape.vision_heads,
            "patch_size": shape.patch,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 4 * shape.patch,
            "out_hidden_size": shape.width,
            "fullatt_block_indexes": [shape.vision_layers - 1],
        },
        image_token_id=picture,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        **generation,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        causal_lm = Qwen2_5_VLForConditionalGeneration(config).eval()
    assert chat.reader is not None
    return LanguageModel(causal_lm, vision_inputs=VisionInputs(chat.reader.vision))
