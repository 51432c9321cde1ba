"""Chats as tokens: a prompt, and the tokens after a finished turn.

Generated tokens are never encoded again. The tokens that a chat template puts after the assistant's
words are found by rendering a small chat with a placeholder: the text after the placeholder begins
the next turn. Any template that renders messages in order therefore works. A tokenizer without a
template joins contents by newlines, and adds nothing else (`12+34=` stays `12+34=`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.surrogates import without_surrogates
from siirl.errors import ConfigError, MissingAssetError
from siirl.files.documents import check_texts
from siirl.models.hub import cached_folder
from siirl.models.pretrained import (
    damage_named,
    first_line,
    import_model_classes,
    picture_model_config,
    source_of,
)
from siirl.params.key_names import MODEL_PATH

if TYPE_CHECKING:  # the module needs gymnasium
    from envs.question_pictures import PictureSource
    from envs.text import Message
    from siirl.models.seen_pictures import PictureReader, Pictures

# Does not occur elsewhere in the output of a chat template.
PLACEHOLDER = "[words of the assistant]"
TOKENIZER_FILES = "tokenizer.json, tokenizer_config.json, chat_template and generation_config.json"
PICTURE = "<image>"
"""Place of a picture in the words of a message (`envs.question_pictures.PLACEHOLDER`)."""
OPENING: list[Message] = [
    {"role": "user", "content": "[words of the user]"},
    {"role": "assistant", "content": PLACEHOLDER},
]


class ChatTokenizer:
    """A tokenizer with its chat template.

    Args:
        tokenizer: A tokenizer of transformers.
        further_stop_ids: Tokens in addition to its own end token at which a continuation ends
            (generation_config.json).
        place: Source of the tokenizer, for messages.
        reader: Reads pictures in the model's form (`siirl.models.seen_pictures.PictureReader`);
            None: the model reads text only.

    Raises:
        ConfigError: Neither a padding token nor an end token, an unusable template, or no template
            for a vision-language model.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        further_stop_ids: Sequence[int] = (),
        place: str = "the tokenizer",
        reader: PictureReader | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.place = place
        self.reader = reader
        if reader is not None and tokenizer.chat_template is None:
            raise ConfigError(
                f"{place} has no chat template, which places pictures in a prompt: copy the "
                "model's own chat_template.json there."
            )
        end = tokenizer.eos_token_id
        pad = tokenizer.pad_token_id
        if end is None and pad is None:
            raise ConfigError(
                f"{place} has neither a padding token nor an end-of-text token, so no response "
                "could end: set eos_token in its tokenizer_config.json."
            )
        self.pad_id = int(end if pad is None else pad)
        self._closing = self._closing_token()
        known = [end, self._closing, *further_stop_ids]
        self.stop_ids = frozenset(int(token) for token in known if token is not None)
        """Tokens that end a continuation."""
        if not self.stop_ids:
            raise ConfigError(
                f"{place} has no end-of-text token, so no response could end: set eos_token "
                "in its tokenizer_config.json."
            )

    @property
    def end_id(self) -> int:
        """The token that ends an assistant's turn: the template's, else the end-of-text token."""
        return min(self.stop_ids) if self._closing is None else self._closing

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's head may have more entries."""
        return len(self.tokenizer)

    def encode_prompt(
        self, messages: Sequence[Message], pictures: Sequence[PictureSource] = ()
    ) -> tuple[int, ...]:
        """Tokens of a chat, up to the start of the assistant's message.

        Args:
            messages: The chat.
            pictures: One for each placeholder in it (`envs.question_pictures`).

        Raises:
            ConfigError: The template refuses these messages (an unknown role), or pictures for a
                text model.
            ValueError: A picture that cannot be read, or is not in its place.
        """
        seen = self.pictures_of(pictures)
        if seen is not None and pictures:
            ids = self._ids(self._render([_in_parts(entry) for entry in messages], generate=True))
            return seen.in_places(ids)
        if self.tokenizer.chat_template is None:
            return (*self._beginning(), *self._ids(_joined(messages)))
        return self._ids(self._render(messages, generate=True))

    def encode_row(
        self, messages: Sequence[Message], pictures: Sequence[PictureSource] = ()
    ) -> tuple[int, ...]:
        """`encode_prompt` for a row of a prompt file.

        Raises ValueError also for a placeholder without a picture, if the model sees: the column of
        pictures is then missing. A text model reads the placeholder as text.
        """
        if self.pictures_of(pictures) is not None:
            _check_placeholders(messages, pictures=len(pictures))
        return self.encode_prompt(messages, pictures)

    def encode_turn(self, messages: Sequence[Message], *, closed: bool = True) -> tuple[int, ...]:
        """Tokens after an answer: its closing token, new messages, start of the next turn.

        Args:
            messages: New messages to the assistant (answers of tools, words of a user).
            closed: Whether the turn ended with one of `stop_ids`, which is then not repeated. False
                if a stop string or a limit cut the turn: the closing token then comes first.

        Raises:
            ConfigError: The chat template refuses these messages.
        """
        if self.tokenizer.chat_template is None:
            return self._ids(f"\n{_joined(messages)}\n")
        ids = self._ids(self._after_placeholder([*OPENING, *messages], generate=True))
        return ids[1:] if closed and ids[:1] == (self._closing,) else ids

    def pictures_of(self, sources: Sequence[PictureSource]) -> Pictures | None:
        """Pictures in the model's form; None for a text-only model.

        Raises:
            ConfigError: Pictures for a text-only model.
            ValueError: A picture that cannot be read.
        """
        if self.reader is not None:
            return self.reader.read(tuple(sources))
        if sources:
            raise ConfigError(
                f"{self.place} reads text only, but the row has pictures: choose a vision-language "
                "model (Qwen/Qwen2.5-VL-3B-Instruct, or model=tiny_vlm)"
            )
        return None

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of plain text, without template, beginning or end."""
        return self._ids(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, without special ones.

        Bytes that are not text become the replacement character.
        """
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def save(self, folder: str | Path) -> None:
        """Write its files into a model's folder."""
        self.tokenizer.save_pretrained(folder)
        if self.reader is not None:
            self.reader.processor.save_pretrained(folder)

    def _ids(self, text: str) -> tuple[int, ...]:
        # Templates include the begin-of-text token. Tools may answer with a lone surrogate.
        # not verbose: siirl checks lengths, and has its own words for those beyond a model's limit
        ids = self.tokenizer(without_surrogates(text), add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        return tuple(int(token) for token in ids)

    def _beginning(self) -> tuple[int, ...]:
        """The begin-of-text token, if this tokenizer puts one before plain text."""
        begin = self.tokenizer.bos_token_id
        first = self.tokenizer("a")["input_ids"][:1]
        return (begin,) if begin is not None and first == [begin] else ()

    def _render(self, messages: Sequence[Message | dict[str, Any]], *, generate: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=generate
                )
            )
        except TemplateError as error:
            roles = ", ".join(entry["role"] for entry in messages)
            raise ConfigError(
                f"The chat template of {self.place} refuses messages of the roles {roles}: {error}."
            ) from error

    def _after_placeholder(self, messages: Sequence[Message], *, generate: bool) -> str:
        _, found, after = self._render(messages, generate=generate).rpartition(PLACEHOLDER)
        if not found:
            raise ConfigError(
                f"The chat template of {self.place} omits the assistant's words, so no second turn "
                "can follow."
            )
        return after

    def _closing_token(self) -> int | None:
        """The special token with which the template closes the assistant's message."""
        if self.tokenizer.chat_template is None:
            return None
        after = self._ids(self._after_placeholder(OPENING, generate=False))
        marks = self.tokenizer.added_tokens_decoder
        return after[0] if after and after[0] in marks and marks[after[0]].special else None


def load_chat_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> ChatTokenizer:
    """Load the tokenizer of a model's folder or hub id; a vision-language model's reads pictures.

    Raises:
        MissingAssetError: No such folder or hub id, or no tokenizer in it.
        CheckpointError: A damaged tokenizer file.
        ConfigError: See `ChatTokenizer`.
    """
    import_model_classes()
    from transformers import AutoTokenizer

    source = source_of(path)
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("*tokenizer*")) and not any(folder.glob("*vocab*")):
        raise MissingAssetError(
            f"{MODEL_PATH}={source} holds no tokenizer (tokenizer.json): copy the model's own "
            "files there."
        )
    files = folder if folder.is_dir() else cached_folder(source)
    if files is not None:
        check_texts(files, remedy="Copy or download it again.")
    with damage_named(source, TOKENIZER_FILES):
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        except OSError as error:
            raise MissingAssetError(
                f"{MODEL_PATH}={source} has no readable tokenizer: {first_line(error)}"
            ) from error
        return ChatTokenizer(
            tokenizer,
            further_stop_ids=_generation_stops(source),
            place=source,
            reader=_picture_reader(source),
        )


def _picture_reader(source: str) -> PictureReader | None:
    config = picture_model_config(source)
    if config is None:
        return None
    # imports Pillow and transformers' image processors, which text models do not need
    from siirl.models.seen_pictures import load_picture_reader

    return load_picture_reader(source, config)


def _generation_stops(source: str) -> list[int]:
    """End tokens in a model's generation_config.json; chat models often have several."""
    from transformers import GenerationConfig

    try:
        stops = GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:
        return []
    if stops is None:
        return []
    return [stops] if isinstance(stops, int) else list(stops)


def _check_placeholders(messages: Sequence[Message], *, pictures: int) -> None:
    placeholders = sum(entry["content"].count(PICTURE) for entry in messages)
    if placeholders != pictures:
        raise ValueError(
            f"the prompt has {PICTURE} {placeholders} times, but the row has {pictures} pictures: "
            "give one for each in the column images (only a text model reads the placeholder as "
            "text)"
        )


def _in_parts(entry: Message) -> dict[str, Any]:
    """The message in the form of chat templates with pictures."""
    parts = [part for part in re.split(f"({PICTURE})", entry["content"]) if part]
    content = [
        {"type": "image"} if part == PICTURE else {"type": "text", "text": part} for part in parts
    ]
    return {"role": entry["role"], "content": content}


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(entry["content"] for entry in messages)
