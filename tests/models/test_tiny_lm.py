"""The byte-level tokenizer, the minimal chat template, and the folder that transformers reads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.tiny_lm import (
    NUM_BYTES,
    SPECIAL_TOKENS,
    TAGS,
    TinyLMShape,
    new_tiny_lm,
    tiny_tokenizer,
)

SMALL = TinyLMShape(width=32, layers=1, heads=2, feed_forward=32, max_length=64)
QUESTION = [{"role": "user", "content": "12+34="}]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny_lm")
    LanguageModel(new_tiny_lm(seed=3, shape=SMALL)).save(folder)
    ChatTokenizer(tiny_tokenizer()).save(folder)
    return folder


def test_a_byte_is_the_token_of_its_value(tokenizer):
    assert tokenizer("1+é\n\x00")["input_ids"] == [0x31, 0x2B, 0xC3, 0xA9, 0x0A, 0x00]


@given(
    text=st.text(max_size=40).filter(
        lambda text: not any(mark in text for mark in (*SPECIAL_TOKENS, *TAGS))
    )
)
@settings(derandomize=True, deadline=None)
def test_any_text_is_its_bytes_and_back(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_marks_come_after_the_bytes_and_tags_stay_in_the_text(tokenizer):
    assert len(tokenizer) == NUM_BYTES + len(SPECIAL_TOKENS) + len(TAGS) == 264
    ids = tokenizer("<|tool|>4</tool_call><|end|>")["input_ids"]
    assert ids == [261, 0x34, 263, 257]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "4</tool_call>"


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ("u", "U"),
        ("ua", "UA<|end|><|assistant|>"),
        ("uat", "UA<|end|><|tool|>T<|assistant|>"),
        ("uata", "UA<|end|><|tool|>T<|assistant|>A<|end|><|assistant|>"),
        ("su", "<|system|>S<|user|>U<|assistant|>"),
        ("uu", "U<|user|>U<|assistant|>"),
    ],
)
def test_a_chat_has_as_few_marks_as_possible(tokenizer, roles, text):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": names[role], "content": role.upper()} for role in roles]
    assert (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    )


def test_the_model_has_an_entry_for_every_token_and_ties_its_head():
    model = new_tiny_lm(seed=0, shape=SMALL)
    assert model.config.vocab_size == 264
    assert (model.config.eos_token_id, model.config.pad_token_id) == (257, 256)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_shipped_size_is_under_a_million_weights():
    assert 500_000 < sum(weight.numel() for weight in new_tiny_lm(seed=0).parameters()) < 800_000


def test_the_seed_fixes_the_weights_and_leaves_other_generators_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other, third = (new_tiny_lm(seed=seed, shape=SMALL).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_transformers_reads_the_folder_without_our_code(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    assert len(tokenizer) == model.config.vocab_size == 264
    assert tokenizer("e\u0301")["input_ids"] == [0x65, 0xCC, 0x81]  # nothing is normalised
    assert tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_dict=False
    ) == list(b"12+34=")
    assert torch.equal(model.lm_head.weight, new_tiny_lm(seed=3, shape=SMALL).lm_head.weight)


def test_the_folder_is_one_of_ours(folder):
    model, tokenizer = load_language_model(folder), load_chat_tokenizer(folder)
    assert (model.max_length, model.vocab_size, tokenizer.vocab_size) == (64, 264, 264)


def test_the_shipped_folder_has_the_shape_and_the_tokenizer_of_this_file(repository):
    folder = repository / "assets" / "tiny_lm"
    model, tokenizer = load_language_model(folder), load_chat_tokenizer(folder)
    fresh = LanguageModel(new_tiny_lm(seed=0))
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in fresh.state_dict().items()
    }
    assert (
        tokenizer.tokenizer.backend_tokenizer.to_str()
        == tiny_tokenizer().backend_tokenizer.to_str()
    )
    assert tokenizer.tokenizer.chat_template == tiny_tokenizer().chat_template
