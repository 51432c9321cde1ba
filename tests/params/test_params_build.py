"""Plain values to dataclasses: conversion, bounds, and errors with their place."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.errors import SiirlError
from siirl.params import SiiRLArguments
from siirl.params.build import as_text, build
from siirl.params.fields import option
from siirl.params.parser import known_keys
from siirl.params.schema import keys_of, type_name


@dataclass
class Wheel:
    """A wheel."""

    radius: float = option(0.3, "Radius in metres.", above=0)


@dataclass
class Cart:
    """A cart with every kind of field."""

    wheels: int = option(4, "How many.", minimum=2, maximum=8)
    colour: Literal["red", "blue"] = "red"
    names: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = (1,)
    load: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    wheel: Wheel = field(default_factory=Wheel)


def built(values: dict[str, Any]) -> tuple[Cart, list[str]]:
    problems: list[SiirlError] = []
    cart = build(Cart, values, problems=problems)
    return cart, [str(problem) for problem in problems]


def test_values_are_taken_over_and_the_rest_is_default() -> None:
    cart, problems = built(
        {"wheels": 3, "names": ["a"], "sizes": [2, 3], "extra": {"x": [1]}, "wheel": {"radius": 1}}
    )
    assert cart == Cart(wheels=3, names=["a"], sizes=(2, 3), extra={"x": [1]}, wheel=Wheel(1.0))
    assert problems == []


def test_an_integer_is_text_where_text_is_expected() -> None:
    assert built({"names": ["a", 10]})[0].names == ["a", "10"]


def test_an_integer_is_a_number_and_becomes_one() -> None:
    radius = built({"wheel": {"radius": 2}})[0].wheel.radius
    assert (radius, type(radius)) == (2.0, float)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"wheels": "4"}, "wheels"),
        ({"wheels": 4.0}, "wheels"),
        ({"wheels": True}, "wheels"),
        ({"colour": "green"}, "colour"),
        ({"names": ["a", 1.5]}, "names"),
        ({"sizes": ["x"]}, "sizes"),
        ({"load": "heavy"}, "load"),
        ({"extra": 3}, "extra"),
        ({"wheel": {"radius": None}}, "wheel.radius"),
        ({"wheel": 3}, "wheel"),
    ],
)
def test_a_wrong_type_is_one_problem_with_its_place(values: dict[str, Any], place: str) -> None:
    cart, problems = built(values)
    assert cart == Cart()
    assert len(problems) == 1
    assert problems[0].startswith(f"{place}=")


@pytest.mark.parametrize(
    ("text", "fits"), [("[2, 3]", True), ("[2, x]", False), ("[yes]", False), ("[2", False)]
)
def test_a_list_in_quotes_is_refused_with_the_remedy_if_its_items_fit(
    text: str, fits: bool
) -> None:
    [problem] = built({"sizes": text})[1]
    assert problem.endswith("leave out the quotes.") == fits


@pytest.mark.parametrize("wheels", [1, 9])
def test_bounds_include_their_ends(wheels: int) -> None:
    assert len(built({"wheels": wheels})[1]) == 1
    assert built({"wheels": 2})[1] == built({"wheels": 8})[1] == []


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
def test_a_number_must_be_finite_and_above_its_bound(radius: float) -> None:
    assert len(built({"wheel": {"radius": radius}})[1]) == 1


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    assert (
        "Unknown key 'wheel.radios' (config). Did you mean 'wheel.radius'?"
        in built({"wheel": {"radios": 1}})[1][0]
    )


def test_all_problems_are_collected() -> None:
    assert len(built({"wheels": 0, "colour": 1, "nothing": 2})[1]) == 3


@given(
    st.dictionaries(
        st.sampled_from(["wheels", "colour", "names", "sizes", "load", "extra", "wheel", "other"]),
        st.from_type(object),
    )
)
def test_any_value_becomes_a_problem_and_no_exception(values: dict[str, Any]) -> None:
    cart, problems = built(values)
    assert isinstance(cart, Cart)
    assert all(isinstance(problem, str) for problem in problems)


def test_a_plain_field_of_a_user_is_a_key() -> None:
    keys = {key.place: key for key in keys_of(Cart)}
    assert list(keys) == [
        "wheels",
        "colour",
        "names",
        "sizes",
        "load",
        "extra",
        "anything",
        "wheel.radius",
    ]
    assert keys["extra"].is_open


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (int, "integer"),
        (float | None, "number or null"),
        (tuple[str, ...], "list of text"),
        (tuple[int, ...], "list of integers"),
        (dict[str, Any], "mapping"),
        (Wheel, "Wheel"),
    ],
)
def test_types_are_described_in_words(hint: Any, name: str) -> None:
    assert type_name(hint) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-6, "1e-06"),
        (("a", 1), "[a,1]"),
        ({"a": None}, "{a: null}"),
        ("x", "x"),
    ],
)
def test_values_are_printed_in_command_line_syntax(value: object, text: str) -> None:
    assert as_text(value) == text


def test_every_key_has_a_help_text() -> None:
    assert [
        place
        for place, key in known_keys({}).items()
        if not key.metadata["help"].endswith((".", ";"))
    ] == []


def test_every_default_lies_within_its_own_bounds() -> None:
    problems: list[SiirlError] = []
    values: dict[str, Any] = {}
    for key in keys_of(SiiRLArguments):
        holder = values
        *groups, leaf = key.place.split(".")
        for name in groups:
            holder = holder.setdefault(name, {})
        holder[leaf] = list(key.default) if isinstance(key.default, tuple) else key.default
    assert build(SiiRLArguments, values, problems=problems) == SiiRLArguments()
    assert problems == []
