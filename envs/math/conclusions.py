r"""The answer of a text in which nothing is marked: its last line where that is a value alone, or
its closing sentence.

`**85**`, `$2\sqrt{3}$` or `Total: $650` alone on the last line is an answer, and so is a last
sentence that states one value plainly: `Therefore, the area is 15 square units.` Only the end of a
text
counts: a number in the middle answers nothing. The rules for what may stand around the value are
those of marked answers (`envs.math.leads`, `envs.math.quantities`), and stricter: nothing
provisional (`So far ...`), no second value, no doubt in the sentence before.
"""

import re

from envs.math.agreement import is_mathematics, without_units
from envs.math.answers import MarkedAnswer, in_plain_signs
from envs.math.approximation import size_of
from envs.math.clauses import COMPARED, main_clause, without_asides
from envs.math.contrasts import contrasted
from envs.math.conversions import read_compound
from envs.math.dress import EMPHASISED, MARKUP, undressed
from envs.math.languages import after_conclusion, in_english, leads_elsewhere
from envs.math.leads import ASKS_A_BOUND, BOUND, changes, denies, is_rough
from envs.math.notation import in_latex, numeral
from envs.math.plain_text import DRESS, plain
from envs.math.quantities import read_quantity, stem, words_of
from envs.math.sentences import SENTENCE_END
from envs.math.statements import ASKS_THE_REST, KEPT, PARTED, read_statement
from envs.math.vocabulary import ALTERNATIVES, AMOUNTS, CARDINALS, CHANGING, HEDGES, LINKS, words

TAIL = 4000  # characters of a text that its conclusion is sought in
RULE = re.compile(r"[-*_=\s]*$")
ITEM = re.compile(r"(?:[-*+\u2022|]|\(?[0-9a-z]{1,2}[.)]|#+)\s+")
CUT_OFF = re.compile(r"(?:[,;:+/=(\[{<-]|\.\.\.?|\u2026|\?)[\s*_$]*$")
OPEN = re.compile(r"[-+*/(\[{]$(?<!\*\*)")
"""A line that continues in the next one."""
ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\{(?:align|aligned|gather|equation|split)\*?\}|\\\\[ \t]*$", re.MULTILINE
)
FENCES = {"```": re.compile(r"```[a-z]*$"), "$$": re.compile(r"\$\$$"), "\\]": re.compile(r"\\\[$")}
PLEASANTRY = re.compile(
    r"(?:i hope (?:this|that|it) (?:helps|is (?:clear|correct|helpful))|hope (?:this|that|it) helps|let me know|feel free|"
    r"\$?\\(?:blacksquare|square|qed)\$?|\u220e|\u25a0|q\.?e\.?d|done|[\u2705\u2713\u2714])[^0-9]{0,160}$",
    re.IGNORECASE,
)
QUOTED = re.compile(r"^> ?(?=\*\*|\$)")
ROW = re.compile(r"\|([^|]*[A-Za-z][^|]*)\|([^|]*[0-9][^|]*)\|")
CHECK = re.compile(
    r"[*_]{0,2}(?:check|verification|to (?:check|verify))\b[^:]{0,40}:", re.IGNORECASE
)
DENIED = re.compile(
    r"\b(?:not|no|wrong|but|however)\b|n['\u2019]t\b|[\u2260\u2717\u2718\u274c]|\\neq?\b",
    re.IGNORECASE,
)
NAMED_SET = re.compile(
    r"(?<=\bis )all (?:real numbers|reals)$|(?<=\bare )no (?:real )?solutions$|(?<=\bhas )no (?:real )?solutions?$"
)
SYSTEM = re.compile(
    r"(?<![\w$])\$?(?!(?P<same>[a-z]) ?=.*(?P=same) ?=)[a-z] ?= ?-?[0-9][0-9./]*\$?(?:,? and |, )\$?[a-z] ?= ?-?[0-9][0-9./]*\$?$"
)
"""`x = 3 and y = -2`, two letters."""
DIGITS = re.compile(r"[0-9][0-9.,]*")
NUMBER = re.compile(r"[-+$\u20ac\u00a3]{0,2}\.?[0-9]")
YES_OR_NO = re.compile(r"(Yes|No)\b(?:, (?!wait|but|or|maybe)|[.!]*$)")
ASKS_YES_OR_NO = re.compile(
    r"(?:^|[.!?] +|, )(?:is|are|was|were|do|does|did|can|could|will|has|have|must|should)\b[^.!?]*\?\s*$",
    re.IGNORECASE,
)
CHOICE = re.compile(r"\(?([A-J])\)?\.?")
OPTION = re.compile(
    r"(?:\b(?:option|choice)(?: is)?:? \(?(?P<named>[A-J])\)?(?: is (?:the )?correct(?: (?:one|option|choice))?)?"
    r"|(?:^|[ ,])\(?(?P<first>[A-J])\)? is (?:the )?(?:correct|right|final) (?:answer|option|choice))$"
)
TEXT = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+)?")
MATRIX = re.compile(r"\\(?:begin|end)\{(?:[a-z]?matrix|cases)\}")
JOINT = re.compile(r"(?<=[0-9})$]),? (?:or|and) (?=[$\\(]{0,3}(?:[a-z] ?=|-?[0-9\\]))")
MATHEMATICAL = re.compile(
    r"[0-9]|\\(?:pi|infty|frac|sqrt|mathbb|varnothing|emptyset)|[\u03c0\u221e\u00b2\u00b3\u2070-\u209f]|^[a-z]\W"
)
CONTRACTED = re.compile(r"\b(it|that|this|there|he|she)['\u2019]s\b", re.IGNORECASE)
LABEL = re.compile(r"(?P<label>[A-Za-z][A-Za-z ']{0,80}?)\s*[:=]\s*(?P<value>.*[0-9].*)", re.DOTALL)
LABELS = (
    AMOUNTS
    | LINKS
    | words(
        "the final grand overall net result results solution sum product difference quotient "
        "average mean median revenue number altogether"
    )
)
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|possibly|either|unsure|guess|might|could|probably|uncertain|not sure|cannot (?:say|tell))\b",
    re.IGNORECASE,
)
PROVISIONAL = words(
    """
    far best worst yet first next initially intermediate partial provisional temporary temporarily
    example instance suppose imagine previous previously earlier wrong naive bound upper lower
    possible option options candidate candidates trial attempt step subtotal before without except
    supposed expected meant original old try trying test consider choose pick let let's second
    another other others also say given hint note check twice half double triple thrice claim claims
    claimed someone some one many most few any not never
    """
)
"""Words of a sentence whose number is no final answer; those of the question are harmless."""
SHARES = "half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundred|thousand|million"
VALUE = re.compile(
    r"(?<![\w.,^_{(\\*$#-])(?:\\?\$|\\\(|\((?=-?[0-9])|[\u20ac\u00a3\u00a5\u20b9]|\\\{|\\(?:sqrt|[dt]?frac|pi|infty|sin|cos|tan|ln|log|binom)(?![a-z])"
    r"|(?<=is )[a-z](?= ?[-+^\u00b2\u00b3])|(?:sqrt|exp)\("
    r"|[-\u2212]?(?:\.?[0-9]|[\u221a\u03c0\u00bc-\u00be])"
    rf"|(?:zero|{'|'.join(list(CARDINALS)[2:])}|(?:one|an?)(?= (?:{SHARES})\b))\b)",
    re.IGNORECASE,
)
"""Beginning of a value."""
CIRCUMSTANCES = re.compile(r"[A-Za-z,'\u2019 -]{0,120}")
PERIOD = re.compile(
    r" (?:over|in|after|during|within|for|at the end of|by the end of) (?:the |those |these |all )?"
    r"(?:[a-z]+ |[0-9]+ )?(?:second|minute|hour|day|week|month|year|trip|round|game)s?\b",
    re.IGNORECASE,
)
"""`over the three months`, `at the end of those 4 hours`: says when, whatever its number."""
PLACES = re.compile(
    r" (?:to|at|in|for|of|below|above|between|up|from|on|that|who|which|when|after|because|since|as|with|left|available|altogether)\b",
    re.IGNORECASE,
)
WORDS = re.compile(r"[A-Za-z]+(?:['\u2019][A-Za-z]+)*")
LIMITING = re.compile(
    r"\b(?:every|each|per|(?<!up )(?<!down )(?<!increased )(?<!decreased )(?<!dropped )"
    r"(?<!fell )(?<!rose )(?<!grew )(?<!differ )(?<!won )by|all|these|those|this|my|part|step)[\s$\\(]*$",
    re.IGNORECASE,
)
DATE = re.compile(
    r"\b(?:Jan|Febr)uary $|\b(?:March|April|May|June|July|August) $|\b(?:Septem|Octo|Novem|Decem)ber $"
)
"""`bought on July 12` names a day."""
STATED = re.compile(
    r"\b(?:is|are|was|were|has|have|had|equals) (?:[a-z]+ ){0,3}[$\\(]{0,3}-?[0-9][0-9.,]*(?!\s*[-+*/\u00d7\u00f7=^0-9.])",
    re.IGNORECASE,
)
"""A value that is stated before the last one."""
OPERATED = re.compile(
    r"[\u00b2\u00b3^]|[0-9]\s*[a-z]\b|\b[a-z]\s*[-+*/]\s*[0-9]|[0-9]\s*[-+*/]\s*[a-z]\b"
)
"""The left side of an equation that is not solved: `2x = 18`."""


def concluded_answer(text: str, *, question: str = "") -> MarkedAnswer | None:
    """The answer at the end of `text`, in which nothing is marked; None where it ends in anything
    else than an answer.
    """
    tail, whole = in_plain_signs(text[-TAIL:]), len(text) <= TAIL
    stated = without_asides(tail.rstrip())
    answer = None if stated is None else _at_the_end(stated, whole=whole, question=question)
    return answer if answer is not None else _at_the_end(tail, whole=whole, question=question)


def _at_the_end(text: str, *, whole: bool, question: str) -> MarkedAnswer | None:
    lines = _last_lines(text, whole=whole)
    if not lines:
        return None
    last, before = lines[-1], lines[:-1]
    position = len(text) - len(last)
    alone = _alone(last, question=question, whole=not before)
    if alone is not None:
        return MarkedAnswer(alone, position, _spoils(before, alone, question=question))
    sentence = _last_sentence(last)
    concluded = _concluded(sentence, question=question)
    if concluded is None and leads_elsewhere(sentence.rstrip(".\u3002 ")):
        concluded = _concluded_elsewhere(sentence, question=question)
    return None if concluded is None else MarkedAnswer(concluded, position)


def _last_lines(text: str, *, whole: bool) -> list[str]:
    """The lines of `text` that are not empty, a block of mathematics or code as one, without what
    only ends the text.
    """
    thought, closed, said = text.rpartition("</think>")
    text = said if closed else text
    text = text.rpartition("<|message|>")[2]  # the last channel of a chat template
    if "<think>" in text:
        return []
    text = ENVIRONMENT.sub("\n", text)
    lines = [
        QUOTED.sub("", _row(line.strip(" \t\r&")))
        for line in MARKUP.sub(" ", text).replace("</s>", " ").splitlines()
    ]
    lines = [line for line in lines if line and (line in FENCES or not RULE.fullmatch(line))]
    while lines and (PLEASANTRY.match(lines[-1]) or _is_check(lines)):
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


def _row(line: str) -> str:
    """A row `| **Total** | **37** |` of a table as `Total: 37`; another line unchanged."""
    row = ROW.fullmatch(line)
    return line if row is None else f"{row[1].strip(' *_')}: {row[2].strip()}"


def _is_check(lines: list[str]) -> bool:
    """Whether the last of `lines` confirms an answer that stands above it."""
    return len(lines) > 1 and CHECK.match(lines[-1]) is not None and not DENIED.search(lines[-1])


def _alone(line: str, *, question: str, whole: bool) -> str | None:
    """The value that `line` is, without its dress; None where it holds anything else."""
    if ITEM.match(line) or CUT_OFF.search(line):
        return None
    inside = undressed(line.replace("**", " ") if ":" in line else line)
    if not inside or "?" in inside or (inside.endswith("!") and "$" not in line):
        return None
    if (
        read_quantity(inside, question=question) is not None
        or read_compound(inside, question=question) is not None
    ):
        return inside
    if CHOICE.fullmatch(inside) or _is_mathematics(inside) or numeral(inside) is not None:
        return inside
    inside = inside.replace("**", "")
    parts = read_statement(inside, question=question) if NUMBER.match(inside) else ()
    if parts and not any(isinstance(part, str) for part in parts):
        return inside
    option = re.match(r"\(?[A-J][.)]\s+(?=\S)", inside)
    if option is not None and read_quantity(inside[option.end() :]) is not None:
        return inside
    labelled = LABEL.fullmatch(DRESS.sub(r"\1", inside))
    if labelled is not None and _is_plain_label(labelled["label"], question=question):
        return labelled["value"].strip()
    named = TEXT.fullmatch(re.sub(r"\\text ?\{([^{}]*)\}", r"\1", inside))
    dressed = whole or inside != line.rstrip(".")
    return (
        inside
        if named is not None and dressed and not CHANGING & set(named[0].lower().split())
        else None
    )


def _is_mathematics(text: str) -> bool:
    """Whether `text` is an expression, an equation, or a list of them joined by `or` and `and`."""
    bare = MATRIX.sub(" ", JOINT.sub(", ", without_units(text)).replace("$", " "))
    return is_mathematics(bare, truth="") and MATHEMATICAL.search(bare) is not None


def _is_plain_label(label: str, *, question: str) -> bool:
    said = [word.lower() for word in WORDS.findall(label)]
    if len(label) == 1:
        return True
    return all(
        word in LABELS or (stem(word) in words_of(question) and word not in CHANGING | PROVISIONAL)
        for word in said
    )


def _spoils(before: list[str], alone: str, *, question: str) -> bool:
    """Whether the line before a value alone holds another value, a doubt, or makes another thing of
    it.
    """
    if not before:
        return False
    line = before[-1]
    sentence = _last_sentence(line)
    if DOUBT.search(sentence) or _differs(line, alone, question=question):
        return True
    if line.endswith((".", "!", "?")):
        return False
    said = [word.lower() for word in WORDS.findall(sentence)]
    if OPEN.search(line) or (
        not line[-1].isdigit() and (PROVISIONAL | HEDGES) & set(said) - _words_asked(question)
    ):
        return True
    if line.endswith((":", ",")):
        return denies(sentence) or changes(sentence, question=question)
    return denies(sentence) or bool((ALTERNATIVES | LINKS) & set(said[-1:]))


def _words_asked(question: str) -> frozenset[str]:
    return frozenset(word.lower() for word in WORDS.findall(question))


def _differs(line: str, alone: str, *, question: str) -> bool:
    """Whether `line`, above the last one, is another value alone."""
    other = _alone(line, question=question, whole=False)
    other = (
        _alone(ITEM.sub("", line, count=1), question=question, whole=False)
        if other is None
        else other
    )
    if other is None or other == alone:
        return False
    names, values = _name_and_value(alone), _name_and_value(other)
    if names[0] != values[0]:
        return False
    mine, others = (read_quantity(value, question=question) for value in (names[1], values[1]))
    if mine is not None and others is not None:
        return mine.value != others.value
    sizes = size_of(in_latex(names[1])), size_of(in_latex(values[1]))
    if None not in sizes:
        return sizes[0] != sizes[1]
    return (
        others is not None
        or CHOICE.fullmatch(other) is not None
        or TEXT.fullmatch(other) is not None
    )


def _name_and_value(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    return (name.strip(), value.strip()) if sign and "=" not in value else ("", text)


def _last_sentence(line: str) -> str:
    ends = [match.end() for match in SENTENCE_END.finditer(line) if match.end() < len(line)]
    sentences = [line[begin:end] for begin, end in zip([0, *ends], [*ends, len(line)], strict=True)]
    while len(sentences) > 1 and PLEASANTRY.match(sentences[-1]):
        sentences.pop()
    return sentences[-1].strip()


def _concluded(sentence: str, *, question: str) -> str | None:
    """The value that a closing `sentence` states, with its unit; None where it states none, or more
    than that.
    """
    if CUT_OFF.search(sentence) or ITEM.match(sentence):
        return None
    sentence = sentence.removeprefix("> ").replace("**", "").replace("__", "")
    sentence = CONTRACTED.sub(r"\1 is", sentence)
    contrast = contrasted(sentence)
    sentence = main_clause(contrast.answer if contrast is not None else sentence)
    for emphasised in EMPHASISED:
        sentence = emphasised.sub(r"\2", sentence)
    said = YES_OR_NO.match(sentence)
    if said is not None and ASKS_YES_OR_NO.search(question):
        return said[1]
    exclaimed = WORDS.search(sentence) is not None  # `18!` alone is a factorial
    sentence = re.sub(r"(?<=\S)[.!*_\s]*$" if exclaimed else r"(?<=\S)[.*_\s]*$", "", sentence)
    labelled = LABEL.fullmatch(sentence)
    named = labelled is not None and ":" in sentence[: labelled.start("value")]
    if labelled is not None and named and not _is_plain_label(labelled["label"], question=question):
        return None
    option = OPTION.search(sentence)
    if option is not None:
        lead = sentence[: option.start()]
        doubtful = denies(lead) or _is_provisional(lead, question=question)
        return None if doubtful else str(option["named"] or option["first"])
    for form in (NAMED_SET, SYSTEM):
        whole = form.search(sentence)
        if whole is not None and not _is_provisional(sentence[: whole.start()], question=question):
            return whole[0]
    for start in VALUE.finditer(sentence):
        lead, value = sentence[: start.start()], sentence[start.start() :]
        value = _without_circumstances(value, question=question)
        if _is_value(value, question=question):
            if _is_provisional(lead, question=question):
                return None
            parts = (
                ASKS_THE_REST.search(question) and PARTED.search(lead) and not KEPT.search(sentence)
            )
            if parts or LIMITING.search(lead) or DATE.search(lead):
                return None
            if is_rough(lead):
                return f"\\approx {value}"
            if denies(lead):
                return None
            joined = not _is_tuple(value) and changes(lead, question=question)
            return None if joined else value
    return None


def _is_tuple(value: str) -> bool:
    """Whether `value` is a point or a set, which no preposition joins to another number."""
    return re.fullmatch(r"\((?=.*,).*\)|\\langle.*|\\\{.*", undressed(value), re.DOTALL) is not None


def _concluded_elsewhere(sentence: str, *, question: str) -> str | None:
    """The only number, with its unit, of the last clause of a `sentence` in another language."""
    clause = after_conclusion(re.split(r"[,;:](?![0-9])", plain(sentence))[-1])
    english = in_english(clause, question=question)
    if english is None or len(DIGITS.findall(english)) != 1 or OPERATED.search(english):
        return None
    number = NUMBER.search(english)
    value = english[number.start() :] if number is not None else ""
    return value if _is_value(value, question=question) else None


def _without_circumstances(text: str, *, question: str) -> str:
    """The first words of `text` that are a value, where those after them neither change it nor hold
    another: `12 ways to arrange them`.
    """
    asked_words = _words_asked(question)
    asked_numbers = set(DIGITS.findall(question[-TAIL:]))
    for end in [match.start() for match in re.finditer(r"(?<=[A-Za-z0-9%$)}]) (?=[A-Za-z])", text)][
        :6
    ]:
        rest = PERIOD.sub(" ", text[end:])
        named = re.search(r"[A-Za-z$]", text[:end]) or re.match(r" [a-z]+ [a-z]+ than", rest)
        if named and COMPARED.fullmatch(rest) and _is_value(text[:end], question=question):
            return text[:end]
        if set(DIGITS.findall(rest)) <= asked_numbers:
            rest = DIGITS.sub(" ", rest)
        said = {word.lower() for word in WORDS.findall(rest)}
        if (
            not CIRCUMSTANCES.fullmatch(rest)
            or (said & (CHANGING | PROVISIONAL)) - asked_words
            or not _is_value(text[:end], question=question)
        ):
            continue
        counted = read_quantity(undressed(text[:end]), question=question)
        if PLACES.match(rest) or (counted is not None and counted.counted):
            return text[:end] if not _is_value(text, question=question) else text
    return text


def _is_value(text: str, *, question: str) -> bool:
    inside = undressed(text)
    if (
        read_quantity(inside, question=question) is not None
        or read_compound(inside, question=question) is not None
    ):
        return True
    parts = read_statement(inside, question=question) if NUMBER.match(inside) else ()
    return _is_mathematics(inside) or (
        bool(parts) and not any(isinstance(part, str) for part in parts)
    )


def _is_provisional(lead: str, *, question: str) -> bool:
    """Whether the words before a value make it no final one, or another value stands among them."""
    said = [word.lower() for word in WORDS.findall(lead)]
    bound = BOUND.search(lead.rstrip(" $\\(")) is not None and ASKS_A_BOUND.search(question)
    harmless = _words_asked(question) | ({"at", "most", "least"} if bound else set())
    if (PROVISIONAL | HEDGES - {"should"}) & set(said) - harmless:
        return True
    unsolved = lead.rstrip().endswith("=") and OPERATED.search(
        re.split(r"[,;]|\b(?:so|thus|therefore|hence|that)\b", lead, flags=re.IGNORECASE)[-1]
    )
    return (
        bool(unsolved)
        or STATED.search(re.split(r"[,;] (?:and )?(?:so|thus|therefore|hence)\b", lead)[-1])
        is not None
    )
