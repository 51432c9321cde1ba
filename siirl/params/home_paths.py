"""Quotes paths with `~` on a command line: `trainer.output_dir=~/runs`,
`data.train_files=[~/a.jsonl]`.

bash expands `~` in `name=~/file`, but not in `group.name=~/file`, and Hydra's grammar refuses it.
The code that opens the path expands it. Left out: `~` within a name, which the user has to quote.
"""

import re

_TEXT_OR_PATH = re.compile(
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""  # a quoted text stays as it is
    r"""|(?<=[=\[,:{\s])(~[^\s,\[\]{}()'"=:$]*)"""
)


def quote_homes(word: str) -> str:
    """`word` with quotes around each path that begins with `~`."""
    return _TEXT_OR_PATH.sub(lambda found: found[1] or f"'{found[2]}'", word)
