"""Prompts and turns as tokens: the tiny template, ChatML, no template, incomplete tokenizers."""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from envs.text import message
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.tiny_lm import tiny_tokenizer

CHATML = (
    "{% for message in messages %}<|user|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
)
"""The form of Qwen's template, with marks of the tiny tokenizer.

`<|user|>` is im_start and `<|end|>` is im_end.
"""
PAD, END, USER, ASSISTANT, TOOL = 256, 257, 259, 260, 261
QUESTION, RESULT = message("user", "12+34="), message("tool", "46")


def chat(template="tiny", **tokens):
    """Chat tokenizer on the tiny vocabulary; `tokens` replaces pad_token, eos_token, bos_token."""
    tiny = tiny_tokenizer()
    if template == "tiny" and not tokens:
        return ChatTokenizer(tiny)
    settings = {"pad_token": "<|pad|>", "eos_token": "<|end|>", **tokens}
    bare = PreTrainedTokenizerFast(
        tokenizer_object=tiny.backend_tokenizer,
        **{name: token for name, token in settings.items() if token},
    )
    bare.chat_template = tiny.chat_template if template == "tiny" else template
    return ChatTokenizer(bare)


def test_a_bare_question_stays_bare():
    assert chat().encode_prompt([QUESTION]) == tuple(b"12+34=")


def test_a_prompt_beyond_the_tokenizers_limit_gets_no_warning_of_transformers(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [caplog.handler])
    short = chat()
    short.tokenizer.model_max_length = 3
    assert len(short.encode_prompt([QUESTION])) == 6
    assert caplog.messages == []


def test_a_turn_after_an_ended_one_begins_with_what_is_new():
    assert chat().encode_turn([RESULT]) == (TOOL, *b"46", ASSISTANT)


def test_a_turn_after_one_that_was_cut_off_closes_it_first():
    assert chat().encode_turn([RESULT], closed=False) == (END, TOOL, *b"46", ASSISTANT)


def test_several_messages_may_come_between_two_turns():
    assert chat().encode_turn([RESULT, message("user", "?")]) == (
        TOOL,
        *b"46",
        USER,
        *b"?",
        ASSISTANT,
    )


def test_in_chatml_we_add_the_line_end_after_the_closing_mark():
    tokenizer = chat(CHATML)
    assert tokenizer.encode_prompt([QUESTION]) == (
        USER,
        *b"user\n12+34=",
        END,
        *b"\n",
        USER,
        *b"assistant\n",
    )
    assert tokenizer.encode_turn([RESULT]) == (
        *b"\n",
        USER,
        *b"tool\n46",
        END,
        *b"\n",
        USER,
        *b"assistant\n",
    )
    assert tokenizer.encode_turn([RESULT], closed=False)[:2] == (END, *b"\n")


@given(
    words=st.lists(
        st.text(alphabet="ab 1+", min_size=1, max_size=5).filter(str.strip), min_size=1, max_size=3
    ),
    template=st.sampled_from(["tiny", CHATML]),
)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_turns_put_one_behind_the_other_are_the_whole_chat(words, template):
    tokenizer = chat(template)
    messages = [QUESTION]
    tokens = tokenizer.encode_prompt(messages)
    for word in words:
        said = word.strip()
        tokens = (*tokens, *tokenizer.encode_text(said), END, *tokenizer.encode_turn([RESULT]))
        messages += [message("assistant", said), RESULT]
    assert tokens == tokenizer.encode_prompt(messages)


def test_without_a_template_contents_are_joined_by_line_ends():
    tokenizer = chat(None)
    assert tokenizer.encode_prompt([QUESTION]) == tuple(b"12+34=")
    assert tokenizer.encode_prompt([message("system", "Add."), QUESTION]) == tuple(b"Add.\n12+34=")
    assert tokenizer.encode_turn([RESULT]) == tuple(b"\n46\n")


def test_decoding_omits_special_tokens_and_replaces_bytes_that_are_not_text():
    assert chat().decode((*b"46", END, PAD)) == "46"
    assert chat().decode((0xC3,)) == "\ufffd"


def test_a_tokenizer_without_padding_pads_with_its_end():
    tokenizer = chat(None, pad_token=None)
    assert (tokenizer.pad_id, tokenizer.stop_ids) == (END, frozenset({END}))


def test_the_templates_own_end_of_turn_stops_too():
    # as in Qwen's base models: another token ends a text
    tokenizer = chat(CHATML, eos_token="<|system|>")
    assert tokenizer.stop_ids == {258, END}
    assert tokenizer.end_id == END


@pytest.mark.parametrize("pad", [None, "<|pad|>"])
def test_a_tokenizer_without_an_end_is_refused(pad):
    with pytest.raises(ConfigError, match=r"no response could end: set eos_token"):
        chat(None, pad_token=pad, eos_token=None)


def test_a_role_that_the_template_refuses_is_reported():
    refusing = (
        "{% for m in messages %}"
        "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    with pytest.raises(
        ConfigError, match="refuses messages of the roles user, assistant, tool: no tools"
    ):
        chat(refusing).encode_turn([RESULT])


def test_a_template_that_drops_the_assistants_words_is_refused():
    with pytest.raises(ConfigError, match="omits the assistant's words"):
        chat("{{ messages[0]['content'] }}")


def test_further_stop_tokens_come_from_the_models_generation_config(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert load_chat_tokenizer(tmp_path).stop_ids == {END}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, PAD]}))
    assert load_chat_tokenizer(tmp_path).stop_ids == {END, PAD}


def test_a_folder_without_tokenizer_is_reported(tmp_path):
    with pytest.raises(MissingAssetError, match="holds no tokenizer"):
        load_chat_tokenizer(tmp_path)


def test_a_damaged_tokenizer_is_reported(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.* cannot be loaded"):
        load_chat_tokenizer(tmp_path)


def test_half_a_surrogate_pair_is_refused_before_it_is_saved_again(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"note": "\ud83d\ude00"}))  # two halves are a letter
    load_chat_tokenizer(tmp_path).save(tmp_path / "saved")
    file.write_text(json.dumps(content | {"note": "a\ud800"}))
    with pytest.raises(CheckpointError, match=r"config\.json is damaged.*surrogates not allowed"):
        load_chat_tokenizer(tmp_path)


def test_a_tools_answer_with_half_a_surrogate_pair_is_read_with_a_question_mark():
    half, mark = (chat().encode_turn([message("tool", f"a{sign}")]) for sign in "\ud800?")
    assert half == mark


def test_a_tokenizer_whose_vocabulary_is_damaged_is_reported(tmp_path):
    """The library tokenizers raises a plain Exception."""
    tiny_tokenizer().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["vocab"]["1"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"Exception: .*floating point.* Copy or download"):
        load_chat_tokenizer(tmp_path)
