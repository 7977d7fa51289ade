"""Canonical JSON: equal values, equal bytes; what has no such form is refused by name."""

import hashlib
import json
import random
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.canonical import MAX_DEPTH, MAX_INTEGER, NotCanonical, canonical_bytes, digest, digest_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ({"b": 1, "a": [1, 2.5, "x"]}, '{"a":[1,2.5,"x"],"b":1}'),
        ({"B": 1, "a": 2, "A": 3}, '{"A":3,"B":1,"a":2}'),
        ({"\U0001f600": 1, "\uffff": 2}, '{"\uffff":2,"\U0001f600":1}'),
        ((1, 2), "[1,2]"),
        ({"k": Colour.RED}, '{"k":"red"}'),
        ('é\n\x00"', '"é\\n\\u0000\\""'),
        ("e\u0301", '"e\u0301"'),
        (MAX_INTEGER, "9007199254740991"),
        (-MAX_INTEGER, "-9007199254740991"),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_a_value_has_exactly_this_text(value: Any, text: str) -> None:
    assert canonical_bytes(value) == text.encode()


def contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "not a finite number"),
        ({"a": [float("inf")]}, "not a finite number"),
        (-float("inf"), "not a finite number"),
        (MAX_INTEGER + 1, "a whole number beyond 2**53 - 1"),
        (-MAX_INTEGER - 1, "a whole number beyond 2**53 - 1"),
        ("\ud800", "text with a lone surrogate"),
        ({"\udc00": 1}, "text with a lone surrogate"),
        ({1: "a"}, "a key of type int"),
        ({None: "a"}, "a key of type NoneType"),
        ({"a": {1, 2}}, "a value of type set"),
        (b"bytes", "a value of type bytes"),
        (contains_itself(), f"nested deeper than {MAX_DEPTH}"),
    ],
)
def test_a_value_without_a_canonical_form_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(NotCanonical) as caught:
        canonical_bytes(value)

    assert caught.value.data["reason"] == reason
    assert str(caught.value).encode()


def test_a_refusal_says_where() -> None:
    with pytest.raises(NotCanonical) as caught:
        canonical_bytes({"nodes": [{"priority": 2**60}]})

    assert caught.value.data["path"] == "nodes/0/priority"


def test_a_digest_names_its_algorithm_and_is_of_the_bytes() -> None:
    assert digest({"a": 1}) == "sha256:" + hashlib.sha256(b'{"a":1}').hexdigest() == digest_of(b'{"a":1}')


@pytest.mark.req("WG-01")
def test_the_order_of_keys_does_not_matter() -> None:
    items = [(f"key-{n}", n) for n in range(30)]
    expected = canonical_bytes(dict(items))

    for seed in range(100):
        random.Random(seed).shuffle(items)
        assert canonical_bytes(dict(items)) == expected


@given(VALUES)
def test_the_bytes_are_json_of_the_same_value_and_stay_the_same(value: Any) -> None:
    data = canonical_bytes(value)

    assert json.loads(data) == value
    assert canonical_bytes(json.loads(data)) == data


@given(VALUES, VALUES)
def test_different_values_have_different_bytes(one: Any, other: Any) -> None:
    if canonical_bytes(one) == canonical_bytes(other):
        assert one == other
