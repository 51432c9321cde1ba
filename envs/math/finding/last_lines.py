r"""The last lines of a text, and the sentences at their end that leave the answer before them:
closings (a greeting, an offer, a confirming check), and remarks such as `This agrees with the
example`.

A remark may say anything that neither doubts nor denies the answer and does not lead on to another
number.

Left out: the answer before them (`conclusions`).
"""

import re

from envs.math.finding.values import CUT_OFF, ITEM
from envs.math.parsing.foreign_changes import ONLY_FOREIGN_WORDS
from envs.math.parsing.markup import MARKUP
from envs.math.parsing.provisional import IMAGINED, has_number, is_harmful, words_asked
from envs.math.parsing.sentences import SENTENCE_END, taken_back
from envs.math.parsing.statements import BECAUSE
from envs.math.parsing.vocabulary import words

RULE = re.compile(r"[-*_=\s]*$")
ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\{(?:align|aligned|gather|equation|split)\*?\}|\\\\[ \t]*$", re.MULTILINE
)
FENCES = {"```": re.compile(r"```[a-z]*$"), "$$": re.compile(r"\$\$$"), "\\]": re.compile(r"\\\[$")}
PLEASANTRY = re.compile(
    r"(?:i hope (?:this|that|it) (?:helps|is (?:clear|correct|helpful))|hope (?:this|that|it) helps"
    r"|let me know|feel free|"
    r"\$?\\(?:blacksquare|square|qed)\$?|\u220e|\u25a0|q\.?e\.?d|done"
    r"|[\u2705\u2713\u2714])[^0-9]{0,160}$"
    r"|(?:would you like|do you want|want me|shall i"
    r"|i can (?:also )?(?:show|explain|give|provide|walk)"
    r"|if you(?:['\u2019]d| would)? (?:like|want|have)|let me know|feel free"
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
    r"\b(?:not|no|wrong|but|however|while|whereas|instead|redo\w*|correct(?:ed|ing|ion)|mistake"
    r"|error)\b"
    r"|n['\u2019]t\b|[\u2260\u2717\u2718\u274c]|\\neq?\b",
    re.IGNORECASE,
)
ADDRESSED = re.compile(r"[^0-9]*\b(?:you|your)\b[^0-9]*$", re.IGNORECASE)
"""`Let me know if you have questions`, without a number."""
CALM = words(
    """
    estimate estimates estimated confident certain certainly sure always usually typically what why
    without
    """
)
"""Words that are doubts about a number, but not in a neighbouring sentence."""
NEXT = words("need must still remains now next multiply divide add subtract double")
"""Words that lead on to a number not stated yet."""
GOING_ON = words(
    """
    so then thus hence therefore making giving leaving bringing yielding totalling totaling adding
    plus gives makes leaves another total now next need find must still let finally altogether
    answer
    """
)
"""Words after a statement that continue from its number."""
COMMON_MISTAKE = re.compile(
    r"(?:a|one|the most) (?:common|typical|frequent) (?:mistake|error|slip|trap) (?:is|would be)\b",
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
    while lines and _is_closing(lines):
        lines = without_last_sentence(lines)
    opening = FENCES.get(lines[-1]) if lines else None
    if opening is not None:
        places = [place for place, line in enumerate(lines[:-1]) if opening.search(line)]
        if not places:
            return []
        first = places[-1]
        block = " ".join(lines[first + 1 : -1])
        lines = [*lines[:first], opening.sub("", lines[first]).strip(), block]
        lines = [line for line in lines if line]
    return lines if whole or thought else lines[1:]


def sentences_of(line: str) -> list[str]:
    """The sentences of `line`, with the text between them."""
    ends = [match.end() for match in SENTENCE_END.finditer(line) if match.end() < len(line)]
    return [line[begin:end] for begin, end in zip([0, *ends], [*ends, len(line)], strict=True)]


def without_last_sentence(lines: list[str]) -> list[str]:
    """`lines` without the last sentence."""
    rest = "".join(sentences_of(lines[-1])[:-1]).strip()
    return [*lines[:-1], rest] if rest else lines[:-1]


def _row(line: str) -> str:
    """A row `| **Total** | **37** |` of a table as `Total: 37`; another line unchanged."""
    row = ROW.fullmatch(line)
    return line if row is None else f"{row[1].strip(' *_')}: {row[2].strip()}"


def _is_closing(lines: list[str]) -> bool:
    """Whether the last sentence is a greeting or an offer, or confirms an answer before it."""
    *before, sentence = sentences_of(lines[-1])
    if PLEASANTRY.match(sentence) is not None:
        return True
    confirms = CHECK.match(sentence) is not None and not DENIED.search(sentence)
    return confirms and bool(before or lines[1:])


def is_remark(sentence: str) -> bool:
    """Whether `sentence` does not change the answer before it."""
    numbered, said = has_number(sentence), words_asked(sentence)
    if (numbered and 0 < len(said) < 3) or ITEM.match(sentence):
        return False
    addressed = ADDRESSED.match(sentence) is not None and not numbered
    if any(form.match(sentence) for form in (IMAGINED, COMMON_MISTAKE)):
        return True
    if taken_back(sentence, "") or CUT_OFF.search(sentence):
        return False
    if addressed:
        return True
    if is_harmful(BECAUSE.sub(sentence[-1], sentence), unless=CALM) or ONLY_FOREIGN_WORDS & said:
        return False
    return not (GOING_ON if numbered else NEXT) & said
