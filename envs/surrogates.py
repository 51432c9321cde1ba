r"""Lone surrogates: halves of a pair (`\ud800`), which JSON can hold and files cannot."""

import json
import re
from typing import Any

ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
"""JSON's form of half a pair; two consecutive halves make a letter."""


def without_surrogates(text: str) -> str:
    """`text` with a question mark for each lone surrogate."""
    return text.encode("utf-8", "replace").decode()


def check_surrogates(document: str, value: Any) -> None:
    """Check `value`, which was read from the JSON `document`.

    Raises:
        UnicodeEncodeError: A text in it has a lone surrogate.
    """
    if ESCAPED.search(document):
        json.dumps(value, ensure_ascii=False).encode()
