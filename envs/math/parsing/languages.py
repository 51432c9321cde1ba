r"""Reads answers in languages other than English: their marks, the words before them, and the units
after the number.

`La respuesta es 11.`, `答案是 11。` and `Ответ: 11` mark answers as `The answer is 11.` does. The words
before them must come from a closed table of conclusions (`por lo tanto`). After the number any
harmless words may follow (`30 конфет`), because the words that change it are listed by language in
`foreign_changes`: `mil`, `oder`, `不` are never harmless.

Sources: the exemplars of MGSM (Shi et al. 2022, arXiv 2210.03057) in Bengali, Chinese, French,
German, Japanese, Russian, Spanish, Swahili, Telugu and Thai; the answer prefixes of OpenAI's
simple-evals for MGSM.
"""

import re
from fractions import Fraction

from envs.math.parsing.foreign_changes import (
    CHANGING_CHARACTERS,
    CHANGING_FOREIGN_WORDS,
    CHANGING_PARTS,
    PHRASES,
)
from envs.math.parsing.foreign_units import FOREIGN_UNITS
from envs.math.parsing.quantities import is_unit
from envs.math.parsing.vocabulary import CHANGING, LINKS, words

NOUNS = {
    "ar": "الإجابة الجواب",
    "bn": "উত্তর",
    "de": "antwort",
    "el": "απάντηση",
    "es": "respuesta",
    "fr": "réponse",
    "hi": "उत्तर जवाब",
    "id": "jawaban jawabannya",
    "it": "risposta",
    "nl": "antwoord",
    "pl": "odpowiedź",
    "pt": "resposta",
    "ru": "ответ",
    "sv": "svaret svar",
    "sw": "jibu",
    "te": "సమాధానం జవాబు",
    "tr": "cevap yanıt",
    "uk": "відповідь",
    "vi": "đáp_án đáp_số câu_trả_lời",
}
"""The word for `answer`, by language (ISO 639-1); an underscore is a space."""
NOUNS_WITHOUT_SPACES = "答案 答え 解答 答 正解 こたえ 정답 답변 답 คำตอบ"
"""The same in Chinese, Japanese, Korean and Thai, where words need no space between them."""
CALLED = (
    "final finale correcta correcte correta corretta cuối_cùng đúng akhir النهائية النهائي สุดท้าย"
)
"""Attributes that follow the word: `la respuesta final`."""
COPULAS = (
    "es est ist lautet beträgt é è is to wynosi равен adalah ni är er là هي هو είναι হল হলো হচ্ছে है"
)
COPULAS_WITHOUT_SPACES = "应该是 就是 是 等于 等於 为 為 选 選 は 은 는 คือ"
"""`答案应该是18` is an answer; `答案可能是18` is not, because the word for `maybe` is not a copula."""
ENDINGS = "です でした になります となります である だ 입니다 이다 예요 이에요 है हैं ครับ ค่ะ"
"""Endings of a sentence after its number."""
FOREIGN_LINKS = words(
    """
    de del des du la las el los le les il lo gli i der die das den dem des em en na nas al au aux do
    da di por para per pro pour par à zu im am in je jede jeden jedem cada chaque ogni und y et e в
    на за каждый каждую total totale insgesamt zusammen gesamt ensemble juntos всего вместе итого 一共
    总共 全部 합계 모두 全部で
    """
)
FOREIGN_VERBS = words(
    """
    hay son tiene tienen es est sont ont ist sind hat haben são tem há è sono ha hanno cuesta kostet
    gana ganan paga pagan necesita vende compra gagne paie coûte verdient bezahlt zahlt braucht
    verkauft guadagna paga ganha custa verdient betaalt queda quedan sobran reste restent bleibt
    bleiben resta restano restam rimane rimangono sobram produce produit
    """
)
HARMLESS_FOREIGN_WORDS = FOREIGN_LINKS | FOREIGN_VERBS | words(COPULAS)
FOREIGN_JOIN = re.compile(
    r"[,;]?\s*(?:\b(?:o|ou|u|oder|oppure|или)\b|或者?|または|또는)[\s$\\({]*[-+]?[0-9]",
    re.IGNORECASE,
)
"""`oder 5`: another number after a first one."""
CONCLUDING = words(
    """
    la el le die der das o a il lo the het de juiste mi ma meine por tanto así asi que entonces
    luego en consecuencia finalmente donc ainsi alors par conséquent finalement enfin also somit
    daher deshalb folglich damit schließlich dann portanto logo assim então isso quindi dunque
    perciò pertanto infine dus daarom y et und en e и итак значит таким образом следовательно
    поэтому тогда окончательный правильный итоговый richtige endgültige korrekte correct final
    finale correcta bonne finalen właściwa correto kwa hiyo সুতরাং তাই इसलिए अतः ดังนั้น vậy do đó
    nên jadi maka więc zatem poprawna так отже إذن إذًا لذلك
    """
)
"""Words that may precede a mark of another language, in its clause."""
FOREIGN_RETRACTIONS = words(
    "nein non no нет não nej nie но однако pero mais aber sondern ma però sino espera perdón "
    "pardon warte attendez o ou oder или"
)
RETRACTING_CHARACTERS = re.compile(
    r"\s*(?:不|但|等|可是|或|错|いや|しかし|または|아니|하지만|그러나)"
)
"""Beginnings of a next sentence that retract an answer."""
COMPUTED = re.compile(r".*=\s*[-$]?[0-9][0-9.,]*")
"""A computation in front of a mark that no full stop ends, as in Thai."""
DIGIT = re.compile(r"[0-9]")
VERB_WITHOUT_SPACES = re.compile(
    "应该是|就是|是|等于|等於|为|為|得到|得出|可得|求得|解得|得|共有|还有|有|一共|共|了|剩下|余下|は|은(?= )|는(?= )|คือ"
)
"""Verbs and particles after which the number stands, in a script without spaces between words."""
SUPPOSED = re.compile("如果|假如|要是")
DOUBTING_CHARACTERS = re.compile("[不没無无非否或错錯但如若约估猜吗嗎？?许許假]|可能|大概|要是")
CONCLUDING_CHARACTERS = re.compile(
    r"(?:所以|因此|因而|故而|故|则|則|那么|那麼|即|综上所述|综上|綜上|可知|可得|于是|最终|最終|最后|最後|"
    r"正确|正確|标准|本题|此题|这道题|该题|问题|的|我的|应|"
    r"したがって|従って|よって|ゆえに|だから|つまり|最終的な|最終|따라서|그러므로|그래서|그러니까|최종|正しい|この問題の|解|得|为|是|，|,|\s)*"
)


def _any_of(text: str) -> str:
    return "|".join(
        re.escape(word.replace("_", " ")) for word in sorted(text.split(), key=len, reverse=True)
    )


SPACED_NOUNS = _any_of(" ".join(NOUNS.values()))
NOUN = (
    rf"(?:(?<![^\W\d_])(?:{SPACED_NOUNS})(?: (?:{_any_of(CALLED)}))?"
    rf"|(?:{_any_of(NOUNS_WITHOUT_SPACES)}))"
)
THUS = "donc|ainsi|also|somit|daher|entonces|pues|então|quindi|dunque"
COPULA = (
    rf"(?: (?:{_any_of(COPULAS)})(?![^\W\d_])(?: (?:{THUS})\b)?"
    rf"| ?(?:{_any_of(COPULAS_WITHOUT_SPACES)}))"
)
FOREIGN_MARK = re.compile(
    rf"(?P<foreign_label>{NOUN}[ \t*_}}]{{0,8}}(?::|(?<= )[\u2014\u2013-](?= )))"
    rf"|(?P<foreign_phrase>{NOUN}{COPULA} ?:?)"
    rf"|(?P<foreign_choice>选[择项]?:?\s*(?=[(（]?[A-E](?![A-Za-z])))"
    rf"|(?P<foreign_turned>\b(?:ist|lautet) die (?:richtige |endgültige )?antwort\b:?)"
    rf"|(?P<foreign_bare>(?:^|(?<=[.\u3002\u0964] ))[#*_ \t]{{0,8}}{NOUN}"
    rf"(?:[*_ \t]{{0,8}}$|[*_ \t]{{1,8}}(?=[$*]{{0,3}}[-0-9])))",
    re.IGNORECASE | re.MULTILINE,
)
"""Labels with a colon or a dash, sentences, and headings or prefixes that begin a line."""
ASCII_STEMS = (
    "respuesta",
    "antwort",
    "antwoord",
    "resposta",
    "risposta",
    "jibu",
    "svar",
    "cevap",
    "jawaban",
)
LETTERS = r"(?:[^\W\d_]|[\u0300-\u036f\u064b-\u065f\u0900-\u0963\u0970-\u0dff\u0e31\u0e34-\u0e4e])+"
"""Letters with the signs that some scripts write over and under them."""
WORD = re.compile(rf"{LETTERS}(?:['\u2019-]{LETTERS})*")
THINGS = re.compile(rf"(?<=[0-9$)}}\]] ){WORD.pattern}(?: {WORD.pattern}){{0,4}}(?=\W*$)")
SUBJECT = re.compile(rf"(?:{WORD.pattern}[,:]? ){{1,6}}(?=[-$\\(*]*[0-9])")
"""Words after and before a number."""
OF = words("of de di da do des del du von vom van aus од из от од dari của w z")
SCRIPT = re.compile("[\u0400-\u0dff\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""A letter that occurs neither in English nor in mathematics."""
THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?![0-9.])")
DECIMALS = re.compile(r"[0-9]\.[0-9]{1,2}(?![0-9])|(?<![0-9])0\.[0-9]")
LAST_LETTER = 0x530  # after Latin, Greek and Cyrillic
COMMAND = re.compile(r"\\[A-Za-z]+")
SPELLINGS = {
    spelling.replace("_", " "): name
    for name, spellings in FOREIGN_UNITS.items()
    for spelling in spellings.split()
}
WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
UNIT = re.compile(
    "|".join(
        re.escape(spelling)
        if WITHOUT_SPACES.match(spelling)
        else rf"(?<![^\W\d_]){re.escape(spelling)}(?![^\W\d_])"
        for spelling in sorted(SPELLINGS, key=len, reverse=True)
    ),
    re.IGNORECASE,
)
FOREIGN_SCALES = {
    **dict.fromkeys(["mil", "mille", "tausend", "тысяч", "тысячи", "тысяча", "千"], 1000),
    **dict.fromkeys(["万", "萬", "만"], 10_000),
    **dict.fromkeys(["亿", "億", "억"], 100_000_000),
}
SCALED = re.compile(
    rf"(?<![0-9.,])(?P<number>[0-9]+(?:\.[0-9]+)?)\s?"
    rf"(?P<scale>{'|'.join(FOREIGN_SCALES)})(?![0-9a-zа-я])",
    re.IGNORECASE,
)
"""A scale is a part of the number, like `million` in English."""
INTRODUCTION = re.compile("^[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+(?=[-0-9$])")
"""Words before the number in a script without spaces."""
ENDING = re.compile(rf"\s?(?:{_any_of(ENDINGS)})$")
THING = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af ]++(?=[^0-9]*$)")
"""The counted thing, in a script without spaces between words."""
PUNCTUATION = {
    **{0xFF10 + digit: str(digit) for digit in range(10)},
    **{
        zero + digit: str(digit)
        for zero in (0x0660, 0x06F0, 0x0966, 0x09E6, 0x0C66, 0x0E50)
        for digit in range(10)
    },
    **{
        ord(sign): ascii_sign
        for sign, ascii_sign in zip("：．－＝（）％＄￥＋／？～", ":.-=()%$¥+/?~", strict=True)
    },
    **{
        ord("，"): ", ",
        ord("、"): ", ",
        ord("；"): "; ",
        0x3000: " ",
        ord("！"): "。",
        ord("।"): "。",
        ord("｡"): "。",
    },
}
"""Full-width signs and the digits of other scripts, as ASCII."""


def may_be_foreign(text: str) -> bool:
    """Whether `text` may have a mark of another language; cheap, because most texts have none."""
    if not text.isascii():
        return True
    return any(map(text.lower().__contains__, ASCII_STEMS))


def concludes(lead: str) -> bool:
    """Whether the words of a clause before a foreign mark only lead to the answer."""
    clauses = re.split(r"[,;:](?![0-9])|\.(?=[^\s0-9])", lead.strip(" \t*_#>-"))
    computed = COMPUTED.match(clauses[-1])
    clause = clauses[-1][computed.end() :] if computed is not None else clauses[-1]
    if computed is not None and not has_foreign_change(clause) and not DIGIT.search(clause):
        return True
    if CONCLUDING_CHARACTERS.fullmatch(clause):
        return True
    known = all(word.lower() in CONCLUDING for word in WORD.findall(clause))
    return known and DIGIT.search(clause) is None


def after_conclusion(clause: str) -> str:
    """`clause` without the words for `therefore` at its beginning, in a script without spaces."""
    opening = CONCLUDING_CHARACTERS.match(clause)
    return clause if opening is None else clause[opening.end() :]


def has_foreign_change(text: str) -> bool:
    """Whether `text` holds a word or a character that changes a number in another language than
    English.
    """
    text = UNIT.sub(" ", text)
    if CHANGING_CHARACTERS & set(text) or CHANGING_PARTS.search(text):
        return True
    said = [word.lower() for word in WORD.findall(COMMAND.sub(" ", text))]
    return not CHANGING_FOREIGN_WORDS.isdisjoint(said) or PHRASES.search(text.lower()) is not None


def foreign_lead_changes(lead: str) -> bool:
    """Whether `lead`, the words before a number in another language than English, changes it. The
    words before the verb name the requested quantity, which may be anything without a doubt:
    `4月和5月共卖出了`.
    """
    clause = re.split(r"[,;:]", lead)[-1]
    verb = next(reversed([*VERB_WITHOUT_SPACES.finditer(clause)]), None)
    if verb is None:
        return has_foreign_change(clause)
    if SUPPOSED.search(lead):
        return True
    doubted = DOUBTING_CHARACTERS.search(clause, 0, verb.start()) is not None
    return doubted or has_foreign_change(clause[verb.end() :])


def ends_in_foreign_language(lead: str) -> bool:
    """Whether the last clause of `lead` is in another language than English."""
    clause = re.split(r"[,;:]", lead)[-1]
    said = [word.lower() for word in WORD.findall(COMMAND.sub(" ", clause))]
    return any(word in FOREIGN_VERBS or not word.isascii() for word in said)


def has_foreign_retraction(rest: str) -> bool:
    """Whether the words after an answer begin with a retraction in a language other than
    English.
    """
    first = WORD.search(rest)
    return RETRACTING_CHARACTERS.match(rest) is not None or (
        first is not None and first[0].lower() in FOREIGN_RETRACTIONS
    )


def in_english(
    statement: str, *, question: str, before: str = "", marked: bool = False
) -> str | None:
    """`statement` after a foreign mark with English units and without words that leave its number
    unchanged; None if a word changes it. The counted thing may have any name. `before` is the text
    up to `statement`; after a mark, the number may have a subject of any name.

        >>> in_english("56 manzanas en total", question="")
        '56 apples'
        >>> in_english("56 canicas", question="")
        '56'
        >>> in_english("56 o 57", question="") is None
        True
    """
    statement = ENDING.sub("", statement.strip().rstrip("。."))
    statement = SCALED.sub(_in_full, statement)
    if has_foreign_change(statement):
        return None
    if _groups_by_points(before or statement):
        statement = THOUSANDS.sub(lambda number: number[0].replace(".", ""), statement)
    subject = SUBJECT.match(statement) if marked else None
    if (
        subject is not None
        and _leaves_alone(said := WORD.findall(subject[0]))
        and said[-1] not in OF
    ):
        statement = statement[subject.end() :]
    statement = UNIT.sub(lambda match: f" {SPELLINGS[match[0].lower()]} ", statement)
    statement = THING.sub(" ", INTRODUCTION.sub("", statement))
    stems = {_stem(word) for word in WORD.findall(question)}
    harmless = [
        word
        for word in WORD.findall(COMMAND.sub(" ", statement))
        if word.lower() in HARMLESS_FOREIGN_WORDS or _stem(word) in stems
    ]
    for word in harmless:
        statement = re.sub(rf"(?<![^\W\d_\\]){re.escape(word)}(?![^\W\d_])", " ", statement)
    return THINGS.sub(_units, " ".join(statement.split())).strip()


def _groups_by_points(text: str) -> bool:
    """Whether `text`, in another language than English, has 1.500 for 1500: it ends in a script
    whose languages write decimals with a comma, and has no decimal with a point.
    """
    last = next((sign for sign in reversed(text) if sign.isalpha()), "")
    return last < chr(LAST_LETTER) and DECIMALS.search(text) is None


def _units(things: re.Match[str]) -> str:
    """The units among the words after a number; all of them if one changes it."""
    said = things[0].split()
    known = [word for word in said if is_unit(word) or word in LINKS]
    return " ".join(known if _leaves_alone(said) else said)


def _leaves_alone(said: list[str]) -> bool:
    return not any(word.lower() in CHANGING or (len(word) == 1 and word.isascii()) for word in said)


def _in_full(scaled: re.Match[str]) -> str:
    """`3万` as 30000."""
    number = Fraction(scaled["number"]) * FOREIGN_SCALES[scaled["scale"].lower()]
    return str(number) if number.denominator == 1 else scaled[0]


def _stem(word: str) -> str:
    """The beginning of a word, because its ending changes with case and number."""
    return word.lower()[:4]
