r"""Returns the last lines of a text, and the last sentence of a line, without closings: rules,
greetings, offers, confirming checks.

Left out: their meaning (`envs.math.conclusions`).
"""

import re

from envs.math.markup import MARKUP
from envs.math.sentences import SENTENCE_END

RULE = re.compile(r"[-*_=\s]*$")
ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\{(?:align|aligned|gather|equation|split)\*?\}|\\\\[ \t]*$", re.MULTILINE
)
FENCES = {"```": re.compile(r"```[a-z]*$"), "$$": re.compile(r"\$\$$"), "\\]": re.compile(r"\\\[$")}
PLEASANTRY = re.compile(
    r"(?:i hope (?:this|that|it) (?:helps|is (?:clear|correct|helpful))|hope (?:this|that|it) helps|let me know|feel free|"
    r"\$?\\(?:blacksquare|square|qed)\$?|\u220e|\u25a0|q\.?e\.?d|done|[\u2705\u2713\u2714])[^0-9]{0,160}$"
    r"|(?:would you like|do you want|want me|shall i"
    r"|i can (?:also )?(?:show|explain|give|provide|walk)|if you(?:['\u2019]d| would)? (?:like|want|have)|let me know|feel free"
    r"|(?:great|good|nice) question|just ask)\b"
    r"(?!.*\b(?:answer|result|mistake|wrong|instead)\b).{0,200}$",
    re.IGNORECASE,
)
"""A greeting or an offer, which may hold numbers: `Would you like 3 more?`"""
QUOTED = re.compile(r"^> ?(?=\*\*|\$)")
ROW = re.compile(r"\|([^|]*[A-Za-z][^|]*)\|([^|]*[0-9][^|]*)\|")
CHECK = re.compile(
    r"[*_]{0,2}(?:check|verification|to (?:check|verify)"
    r"|(?:substituting|plugging) (?:it |this |them )?back)\b[^:]{0,40}:",
    re.IGNORECASE,
)
DENIED = re.compile(
    r"\b(?:not|no|wrong|but|however|while|whereas|instead|redo\w*|correct(?:ed|ing|ion)|mistake|error)\b"
    r"|n['\u2019]t\b|[\u2260\u2717\u2718\u274c]|\\neq?\b",
    re.IGNORECASE,
)


def last_lines(text: str, *, whole: bool) -> list[str]:
    """The nonempty lines of `text`, with a block of mathematics or code as one line, without
    closings.
    """
    thought, closed, said = text.rpartition("</think>")
    text = said if closed else text
    text = text.rpartition("<|message|>")[2]  # the last channel of a chat template
    if "<think>" in text:
        return []
    text = ENVIRONMENT.sub("\n", text).replace("&=", "=")
    lines = [
        QUOTED.sub("", _row(line.strip(" \t\r&")))
        for line in MARKUP.sub(" ", text).replace("</s>", " ").splitlines()
    ]
    lines = [line for line in lines if line and (line in FENCES or not RULE.fullmatch(line))]
    while lines and (_is_closing(lines[-1]) or _is_check(lines)):
        lines.pop()
    opening = FENCES.get(lines[-1]) if lines else None
    if opening is not None:
        first = next(
            (number for number in range(len(lines) - 2, -1, -1) if opening.search(lines[number])),
            None,
        )
        if first is None:
            return []
        block = " ".join(lines[first + 1 : -1])
        lines = [*lines[:first], opening.sub("", lines[first]).strip(), block]
        lines = [line for line in lines if line]
    return lines if whole or thought else lines[1:]


def sentences_of(line: str) -> list[str]:
    """The sentences of `line`, with what stands between them."""
    ends = [match.end() for match in SENTENCE_END.finditer(line) if match.end() < len(line)]
    return [line[begin:end] for begin, end in zip([0, *ends], [*ends, len(line)], strict=True)]


def _is_closing(line: str) -> bool:
    """Whether `line` is a greeting or an offer, or several."""
    return PLEASANTRY.match(line) is not None or all(map(PLEASANTRY.match, sentences_of(line)))


def _row(line: str) -> str:
    """A row `| **Total** | **37** |` of a table as `Total: 37`; another line unchanged."""
    row = ROW.fullmatch(line)
    return line if row is None else f"{row[1].strip(' *_')}: {row[2].strip()}"


def _is_check(lines: list[str]) -> bool:
    """Whether the last of `lines` confirms an answer above it."""
    return len(lines) > 1 and CHECK.match(lines[-1]) is not None and not DENIED.search(lines[-1])


def last_sentence(line: str) -> str:
    """The last sentence of `line` that is no greeting."""
    sentences = sentences_of(line)
    while len(sentences) > 1 and _is_remark(sentences[-1]):
        sentences.pop()
    return sentences[-1].strip()


def _is_remark(sentence: str) -> bool:
    check = CHECK.match(sentence) is not None and not DENIED.search(sentence)
    return check or PLEASANTRY.match(sentence) is not None
