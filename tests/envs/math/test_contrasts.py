"""Another value that is denied beside the answer."""

import pytest

from envs.math.parsing.contrasts import Contrast, contrasted, denies_itself
from envs.math.parsing.quantities import read_quantity


@pytest.mark.parametrize(
    ("text", "contrast"),
    [
        ("18, not 17", Contrast("18", "17")),
        ("18 rather than 17", Contrast("18", "17")),
        ("300 meters, not 300 feet", Contrast("300 meters", "300 feet")),
        (
            "x = 15 (the other root, x = -3, is extraneous and is rejected)",
            Contrast("x = 15", "-3"),
        ),
        ("5 (we discard -2 because a length cannot be negative)", Contrast("5", "-2")),
        ("5; the negative solution is discarded", Contrast("5", "")),
        ("5, as x = -2 is not valid", Contrast("5", "-2")),
        ("\\sqrt{2} ($x = -\\sqrt{2}$ is rejected)", Contrast("\\sqrt{2}", "-\\sqrt{2}")),
    ],
)
def test_denied_value_is_distinguished_from_the_answer(text, contrast):
    assert contrasted(text) == contrast


@pytest.mark.parametrize(
    "text",
    [
        "18",
        "18 (rejected)",
        "18 (17 is not rejected)",
        "18 (17 is also possible)",
        "18 or 17",
        "18 (or 17, if 18 is rejected)",
        "18, not really",
        "18 (16 and 17 are rejected)",
    ],
)
def test_anything_else_denies_no_other_value(text):
    assert contrasted(text) is None


@pytest.mark.parametrize(
    ("answer", "denied", "itself"),
    [
        ("18", "18", True),
        ("18", "17", False),
        ("300 meters", "300 feet", False),
        ("300 meters", "300 meters", True),
        ("300", "300 feet", True),
        ("5", "x = 5", True),
    ],
)
def test_answer_may_deny_its_number_only_in_another_unit(answer, denied, itself):
    assert denies_itself(read_quantity(answer), Contrast(answer, denied)) is itself
