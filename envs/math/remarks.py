r"""Sentences after an answer that only remark on it, such as `This agrees with the example`.

A remark may say anything that neither doubts nor denies, and that does not go on to another number.
One that has a number itself is passed over only behind an answer that is plainly final: alone on its
line, emphasised, concluded (`Therefore ...`), or the first sentence of the text.
"""

import re

from envs.math.clauses import ADDRESSED, IMAGINED
from envs.math.foreign_changes import ONLY_FOREIGN_WORDS
from envs.math.last_lines import PLEASANTRY
from envs.math.plain_sentences import GOING_ON, has_number, is_harmful
from envs.math.provisional import words_asked
from envs.math.sentences import taken_back
from envs.math.statements import BECAUSE
from envs.math.values import CUT_OFF, ITEM
from envs.math.vocabulary import words

CALM = words(
    """
    estimate estimates estimated confident certain certainly sure always usually typically what why
    without
    """
)
"""Doubts about a number, and none in a sentence beside it."""
NEXT = words("need must still remains now next multiply divide add subtract double")
"""Words that go on to a number that is not said yet."""
COMMON_MISTAKE = re.compile(
    r"(?:a|one|the most) (?:common|typical|frequent) (?:mistake|error|slip|trap) (?:is|would be)\b",
    re.IGNORECASE,
)


def is_remark(sentence: str) -> bool:
    """Whether `sentence` leaves the answer before it as it is."""
    numbered, said = has_number(sentence), words_asked(sentence)
    if (numbered and 0 < len(said) < 3) or ITEM.match(sentence):
        return False
    addressed = ADDRESSED.match(sentence) is not None and not numbered
    if any(form.match(sentence) for form in (PLEASANTRY, IMAGINED, COMMON_MISTAKE)):
        return True
    if taken_back(sentence, "") or CUT_OFF.search(sentence):
        return False
    if addressed:
        return True
    if is_harmful(BECAUSE.sub(sentence[-1], sentence), unless=CALM) or ONLY_FOREIGN_WORDS & said:
        return False
    return not (GOING_ON if numbered else NEXT) & said
