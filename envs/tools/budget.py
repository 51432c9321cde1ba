"""Text budget of an episode: characters, and tokens if there is a tokenizer."""

from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from envs.arguments import check_counts
from envs.surrogates import without_surrogates

OUT_OF_CHARACTERS, OUT_OF_TOKENS = "out of characters", "out of tokens"


class Budget:
    """Counts down over one episode."""

    def __init__(
        self, *, max_characters: int, max_tokens: int | None, tokenizer: Tokenizer | None
    ) -> None:
        self._max_characters = max_characters
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._characters = self._tokens = 0

    @classmethod
    def of(cls, *, max_characters: int, max_tokens: int | None, tokenizer: str | None) -> Self:
        """Check the bounds and read the tokenizer's file.

        Raises:
            ValueError: A bound below 1, or only one of token bound and tokenizer.
            FileNotFoundError: No such tokenizer.
        """
        check_counts(max_characters=max_characters, max_tokens=max_tokens)
        if (max_tokens is None) != (tokenizer is None):
            raise ValueError(
                "Set max_tokens and tokenizer together: tokens are counted with the model's "
                "tokenizer.json."
            )
        return cls(
            max_characters=max_characters,
            max_tokens=max_tokens,
            tokenizer=None if tokenizer is None else _read(Path(tokenizer)),
        )

    def restart(self) -> None:
        """Reset the counts for a new episode."""
        self._characters = self._tokens = 0

    def spend(self, *texts: str) -> str | None:
        """Count `texts`; returns the verdict if the budget is exhausted, else None."""
        self._characters += sum(map(len, texts))
        if self._characters > self._max_characters:
            return OUT_OF_CHARACTERS  # checked first, because counting tokens takes longer
        if self._tokenizer is None or self._max_tokens is None:
            return None
        encoded = self._tokenizer.encode_batch(
            [without_surrogates(text) for text in texts], add_special_tokens=False
        )
        self._tokens += sum(len(entry.ids) for entry in encoded)
        return OUT_OF_TOKENS if self._tokens > self._max_tokens else None


def _read(path: Path) -> Tokenizer:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no tokenizer {file} (env.kwargs.tokenizer): "
            "name a tokenizer.json or its folder."
        )
    return Tokenizer.from_file(str(file))
