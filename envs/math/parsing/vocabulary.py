r"""Words that may stand beside a number in an answer, and words that may not.

A unit (`UNITS`, `COUNTED`), a linking word (`LINKS`) and the words of the question leave a number
unchanged. `CHANGING` words change the number, make it doubtful or retract it, even if they occur in
the question. An unlisted word is unknown, so it invalidates the answer. The only open class is
plural nouns (`is_plural_noun`).

Sources: units of the SI brochure (9th edition, tables 2, 4 and 8) and of NIST Handbook 44, appendix
C; counted things by their frequency after "How many" in GSM8K's training questions; number words as
in Merriam-Webster's table of numbers.
"""

import re

WORDS = re.compile(r"[A-Za-z]+(?:['\u2019][A-Za-z]+)*")


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
CARDINALS = {word: number for number, word in enumerate(ONES.split())}
CARDINALS |= {word: 10 * number for number, word in enumerate(TENS.split(), start=2)}
SCALES = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

UNITS: dict[str, str] = {
    spelling: name
    for name, spellings in {
        "%": "% percent percents percentage pct",
        "degree": "° degree degrees deg ˚",
        "radian": "radian radians rad",
        "celsius": "°C celsius centigrade",
        "fahrenheit": "°F fahrenheit",
        "dollar": "$ dollar dollars usd bucks US$",
        "cent": "¢ cent cents pennies penny",
        "euro": "€ euro euros eur",
        "pound": "£ gbp lb lbs pound pounds",  # money and weight have one name
        "yen": "¥ yen jpy yuan cny rmb",
        "rupee": "₹ rupee rupees rs inr",
        "peso": "peso pesos",
        "franc": "franc francs chf",
        "real": "r$ reais",
        "krona": "kr krona kronor krone kroner kronen",
        "zloty": "zł złoty złotych zloty zlotys",
        "baht": "baht",
        "rand": "rand",
        "lira": "lira liras lire",
        "ruble": "ruble rubles rouble roubles",
        "second": "s sec secs second seconds",
        "millisecond": "ms millisecond milliseconds",
        "minute": "min mins minute minutes",
        "hour": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks wk wks",
        "month": "month months",
        "year": "year years yr yrs",
        "decade": "decade decades",
        "century": "century centuries",
        "am": "am AM",
        "pm": "pm",
        "o'clock": "o'clock",
        "millimetre": "mm millimeter millimeters millimetre millimetres",
        "centimetre": "cm centimeter centimeters centimetre centimetres cms",
        "metre": "m meter meters metre metres",
        "kilometre": "km kilometer kilometers kilometre kilometres kms",
        "inch": "in inch inches",
        "foot": "ft foot feet",
        "yard": "yd yds yard yards",
        "mile": "mi mile miles",
        "acre": "acre acres",
        "hectare": "ha hectare hectares",
        "milligram": "mg milligram milligrams",
        "gram": "g gram grams",
        "kilogram": "kg kilogram kilograms kilo kilos kgs",
        "tonne": "ton tons tonne tonnes",
        "ounce": "oz ounce ounces",
        "millilitre": "ml mL milliliter milliliters millilitre millilitres cc",
        "litre": "l L liter liters litre litres",
        "cup": "cup cups",
        "pint": "pint pints pt",
        "quart": "quart quarts qt",
        "gallon": "gal gallon gallons",
        "teaspoon": "tsp teaspoon teaspoons",
        "tablespoon": "tbsp tablespoon tablespoons",
        "mph": "mph",
        "kph": "kph kmh kmph",
        "knot": "knot knots",
        "calorie": "cal calorie calories kcal",
        "newton": "N newton newtons",
        "pascal": "Pa pascal pascals",
        "joule": "J joule joules",
        "kilojoule": "kJ kilojoule kilojoules",
        "watt": "W watt watts",
        "kilowatt": "kW kilowatt kilowatts",
        "kilowatt-hour": "kWh",
        "volt": "V volt volts",
        "ampere": "A amp amps ampere amperes",
        "ohm": "ohm ohms",
        "hertz": "Hz hertz",
        "kilohertz": "kHz kilohertz",
        "byte": "byte bytes",
        "kilobyte": "kb kilobyte kilobytes",
        "megabyte": "mb megabyte megabytes",
        "gigabyte": "gb gigabyte gigabytes",
        "terabyte": "tb terabyte terabytes",
        "bit": "bit bits",
        "mole": "mol mole moles",
        "unit": "unit units",
    }.items()
    for spelling in spellings.split()
}
"""Spelling to the name of the unit. Two spellings of a unit are the same answer; two units are not.
"""

CASED = frozenset(spelling for spelling in UNITS if spelling != spelling.lower())
SHORT = words("s h m g l L W V A J N in am")
"""Spellings that may also be variables or words; they are units only after a space, at the end."""
LENGTHS = words("millimetre centimetre metre kilometre inch foot yard mile unit second")
"""Units that take an exponent."""

COUNTED = words(
    """
    acorn adult animal ant apple bag ball balloon banana basket bead bike bird block boat bone
    book bottle box boxes boy bracelet brick brother bus buses cake calculator can candle
    candies candy car card carrot cat chair chicken child children choice clip class classes
    coin cookie cow crayon cupcake customer deer die dice dish dishes dog doll donut drink duck
    edge egg employee eraser face factor family fish flower foot friend frog fruit game gift
    girl glass glasses goal goat goose geese guest hat horse hot-dog house item jar jellybean
    kid kitten ladies lap leaf leaves lemon letter loaf loaves lollipop man marble matches
    member men mice movie muffin night note notebook nut orange ounce pack package page painting
    pair paper passenger pen pencil people person pet photo picture pie piece pig pill pizza
    place plant plate player point potato present problem puppies question rabbit rose room row
    sandwich seat seed set sheep sheet shell shirt shoe shot side sister slice song stamp star
    step stick sticker story student sweet table team teacher teeth ticket tile time toy tomato
    trip tree triangle turtle vertex vertices vote wall way wheel window woman women word worker
    clothes
    """
)
"""Counted things with irregular plurals. Other plurals are recognised by their regular form."""

SUBSTANCES = words(
    """
    water milk juice sugar flour rice paint money gas gasoline soda coffee tea bread food sand
    soil pizza cake meat fruit work lemonade chocolate cheese butter oil fuel fabric ribbon rope
    wood gold silver paper land space homework change profit
    """
)
"""Quantities that units measure."""

LINKS = words("of per a an the in for on at from to by with and each every")
"""Words that need another word after them. `and` and `to` never join two numbers, because an answer
has only one number.
"""
CLOSINGS = words(
    """
    total altogether all overall left remaining each apiece daily weekly monthly yearly together
    combined old tall long wide deep high away apart square squared sq cubic whole full different
    distinct possible new red blue green yellow white black pink purple brown large small big little
    long clock age time speed area volume length width height cost price change now today tomorrow
    week day year morning evening afternoon night front back other her his their its our my your
    them it us i.e respectively later early late
    """
)
"""Words around a unit that do not change the number: `18 years old`, `18 square feet`, `18 in
total`.
"""

DATES = words(
    """
    January February March April May June July August September October November December Monday
    Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)
"""Capitalised, because `may` is a hedge."""
ORDINARY_VERBS = words(
    """
    is are was were be been am has have had get gets got make makes made earn earns earned spend
    spends spent pay pays paid cost costs sell sells sold buy buys bought need needs needed eat
    eats ate use uses used give gives gave take takes took drive drives drove run runs ran walk
    walks walked read reads save saves saved collect collects collected weigh weighs weighed
    contain contains receive receives received lose loses lost want wants work works worked do
    does did will can remain remains write writes wrote travel travels travelled traveled equal
    equals sum gave finish finishes bake bakes baked drink drinks drank
    """
)
PREFACES = words(
    """
    he she it they we you there that this these those the a an of in for to and so thus
    therefore hence its her his their our my all each every both total final correct answer
    answers result value solution sum product difference number amount area volume perimeter
    length width height angle measure probability average mean median mode cost price profit
    speed distance time age exactly precisely simply clearly indeed obviously just equal
    altogether then together overall finally as which question problem per now after
    """
)
"""Words before a number that introduce it."""

AMOUNTS = words(
    """
    total totals answer value result amount profit cost price speed rate distance time age area
    volume perimeter length width height angle measure probability score out maximum minimum
    weight balance size count income salary savings loss change
    """
)
"""Nouns that `of` joins to their own amount: `a total of 72`."""
COMPUTED = words("sum product difference quotient average mean median")
"""Nouns that do so only after `a`: `the sum of 72` needs more numbers."""
NUMERALS = (
    words(
        """
    half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh
    sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth
    thousandths millionth millionths first twice thrice once double triple quadruple couple
    couples score scores gross few several many some any single none nil nought k infinity
    infinite hundreds thousands millions billions trillions dozens tens ones twos threes fours
    fives sixes sevens eights nines bn mn pair pairs twins triplets trios duos
    """
    )
    | frozenset(CARDINALS)
    | frozenset(SCALES)
)
OPERATIONS = words(
    """
    plus minus times over squared cubed power powers root roots cube cubes factorial factorials
    point raised divided multiplied multiple multiples modulo mod negative negatives positive
    opposite opposites inverse inverses reciprocal reciprocals log logarithm ln exponent pi base
    decimal repeating recurring squares doubled tripled halved backwards backward reversed swapped
    flipped inverted remainder
    """
)
COMPARISONS = words(
    """
    more less fewer least most under below above exceeding beyond greater smaller larger bigger
    higher lower up short shy nearly almost about around roughly approximately approx circa ish
    near close within between until till maximum minimum than upwards downwards upward downward
    exceeds exceed exceeded surpasses beats
    off extra additional
    """
)
ALTERNATIVES = words(
    """
    or nor either neither if unless else otherwise versus vs alternatively alternative but
    however though although except instead rather while whereas also besides unlike whether
    """
)
DOUBTS = words(
    """
    maybe perhaps possibly probably likely unlikely presumably supposedly apparently arguably
    might may could would should shall guess guesses guessing guessed think thinking thought
    believe believes suppose assume assuming assumed unsure uncertain uncertainty doubt doubts
    doubtful hopefully hope seem seems seemed seemingly appears unclear unknown undefined
    whatever something somewhat hmm um hm sure confident certain certainly depends depending
    estimate estimated estimates potentially conceivably tentatively what why sometimes usually
    typically always
    """
)
NEGATIONS = words(
    """
    no not never nope nah wrong wrongly incorrect incorrectly false falsely mistaken mistake
    error erroneous invalid cannot cant dont isnt wasnt without hardly barely untrue impossible
    fails fail lies lie non un anything nothing disagree deny reject rejected excluded excluding
    exclude contradiction contradicts nonsense extraneous discarded inadmissible
    """
)
RETRACTIONS = words(
    """
    wait actually sorry oops correction corrected scratch ignore disregard revised revise
    changed changes recheck redo edit typo meant undo retract withdraw withdrawn becomes
    """
)
CHANGING = NUMERALS | OPERATIONS | COMPARISONS | ALTERNATIVES | DOUBTS | NEGATIONS | RETRACTIONS
HEDGES = (ALTERNATIVES | DOUBTS | NEGATIONS | RETRACTIONS) - words(
    """
    while also changes what hope sure certain certainly confident would without besides always
    usually
    """
)
"""Words that make an answer doubtful anywhere in its sentence."""
AMBIGUOUS = words("quarters cubes squares roots scores couples pair pairs twins triplets")
"""Changing words that are objects (coins, blocks, plants) if the question mentions them."""
QUANTIFIERS = words("more fewer additional extra")
"""Words that do not change a number directly before the counted thing: `5 more dollars`, but not `5
less than`. At the end, they must also occur in the question.
"""
COMPARATIVES = words(
    """
    more less fewer extra additional older younger taller shorter longer wider deeper higher lower
    bigger larger smaller greater heavier lighter faster slower cheaper warmer colder hotter cooler
    richer poorer stronger weaker thicker thinner closer farther further
    """
)
"""Words that make a number a difference: `3 years older`, `5 more pens`."""
ABOUT_ITSELF = words(
    "answers fact facts unknown unknowns guess guesses hypothesis hypotheses assumption "
    "assumptions "
    "clue clues hint hints"
)
"""Things that a text counts in itself, not in its question."""
OF_A_SOLUTION = words(
    "digit digits step steps term terms example examples method methods line lines word words"
)
"""The same, if the question is known."""
NUMBERED = words(
    """
    step part case line equation figure section chapter page problem question exercise example
    theorem lemma rule method table paragraph
    """
)
"""Singular nouns that a number after them names: `step 8`."""

NO_NOUNS = words(
    """
    tops this thus plus minus as is was has does yes less unless perhaps always sometimes besides
    towards afterwards nevertheless nonetheless versus us his hers its ours yours theirs whereas
    across equals means says looks gets goes lets seems sounds feels happens makes becomes works
    others else indeed results ends begins varies differs
    shows proves gives yields implies follows leads holds fits solves satisfies explains confirms
    suggests tells requires completes comes brings agrees appears contains concludes states
    verifies justifies demonstrates establishes divides repeats
    """
)
"""Words ending in -s that are not plural nouns."""


def is_plural_noun(word: str) -> bool:
    """Whether the lower-case `word` looks like a regular plural and is not another word in -s."""
    if len(word) < 4 or not word.isalpha() or word in NO_NOUNS or word in CHANGING:
        return False
    return word.endswith("s") and not word.endswith(("ss", "us", "is", "ths", "ous"))


def is_counted(word: str) -> bool:
    """Whether `word` (lower case) names a counted thing, singular or plural."""
    return (
        word in COUNTED
        or word.removesuffix("s") in COUNTED
        or word.removesuffix("es") in COUNTED
        or is_plural_noun(word)
    )
