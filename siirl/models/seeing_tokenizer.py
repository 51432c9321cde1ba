"""The tokenizer of a model that sees: `<image>` in a message becomes the places of its picture."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.question_pictures import PLACEHOLDER, PictureSource
from envs.text import Message
from siirl.errors import ConfigError
from siirl.models.chat import ChatTokenizer
from siirl.models.seen_pictures import PictureReader, Pictures, expanded


class SeeingTokenizer(ChatTokenizer):
    """A tokenizer with its chat template, and a reader of pictures.

    Args:
        tokenizer: A tokenizer of transformers.
        reader: Reads pictures as the model's own processor does.
        further: Further arguments of `ChatTokenizer`.

    Raises:
        ConfigError: See `ChatTokenizer`; or no chat template, which writes the picture tokens.
    """

    def __init__(self, tokenizer: Any, *, reader: PictureReader, **further: Any) -> None:
        super().__init__(tokenizer, **further)
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"{self.place} has no chat template, and pictures are placed by one: copy "
                "chat_template.json of the model's own there."
            )
        self.reader = reader

    def encode_prompt(
        self, messages: Sequence[Message], pictures: Sequence[PictureSource] = ()
    ) -> tuple[int, ...]:
        """See `ChatTokenizer.encode_prompt`.

        Raises:
            ValueError: A picture that cannot be read, or is not in its place.
        """
        if not pictures:
            return super().encode_prompt(messages)
        ids = self._ids(self._render([_in_parts(entry) for entry in messages], generate=True))
        places = self.pictures_of(pictures).places_N.tolist()
        return expanded(ids, places, token=self.reader.eyes.token)

    def pictures_of(self, sources: Sequence[PictureSource]) -> Pictures:
        """See `ChatTokenizer.pictures_of`; without sources a `Pictures` of none."""
        read: Pictures = self.reader.read(tuple(sources))
        return read

    def save(self, folder: str | Path) -> None:
        """See `ChatTokenizer.save`; also how the model sees."""
        super().save(folder)
        self.reader.processor.save_pretrained(folder)


def _in_parts(entry: Message) -> Any:
    """The message in the form in which chat templates take pictures."""
    parts = [part for part in re.split(f"({PLACEHOLDER})", entry["content"]) if part]
    return {
        "role": entry["role"],
        "content": [
            {"type": "image"} if part == PLACEHOLDER else {"type": "text", "text": part}
            for part in parts
        ],
    }
