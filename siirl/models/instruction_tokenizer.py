"""Hashes the words of an instruction into a fixed number of buckets, without a vocabulary file.

For the tiny VLA, which distinguishes a few dozen sentences; a language model has its own tokenizer.
"""

import re
import zlib

import numpy as np
from numpy.typing import NDArray

PADDING = 0


def hash_words(text: str, *, length: int, buckets: int) -> NDArray[np.int64]:
    """The first `length` words of `text` as ids in [1, buckets), padded with 0: int64 [length].

    The hash is CRC-32, which is the same on every machine and in every Python process.
    """
    words = re.findall(r"[a-z0-9]+", text.lower())[:length]
    ids = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in words]
    return np.array(ids + [PADDING] * (length - len(ids)), dtype=np.int64)
