"""Output of an attempt through the API: bounded pieces that add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_site import output
from jobs.models import Attempt
from jobs.process import shim
from jobs.states import AttemptState
from tests.factories import NOON, AttemptFactory
from tests.forge_site.conftest import Api

pytestmark = pytest.mark.django_db

LINES = "".join(f"line {n} äöü €\n" for n in range(200)).encode()


@pytest.fixture
def attempt(settings: Any, tmp_path: Path) -> Attempt:
    settings.FORGE_HOME = tmp_path
    attempt: Attempt = AttemptFactory.create()
    (tmp_path / "jobs" / str(attempt.pk)).mkdir(parents=True)
    return attempt


def written(attempt: Attempt, tmp_path: Path, content: bytes, name: str = "stdout") -> None:
    (tmp_path / "jobs" / str(attempt.pk) / name).write_bytes(content)


def test_a_program_polls_until_the_end(api: Api, attempt: Attempt, tmp_path: Path) -> None:
    def piece(offset: int) -> dict[str, Any]:
        body: dict[str, Any] = api(f"attempts/{attempt.pk}/output", stream="stdout", offset=offset).json()
        return body

    assert piece(0) == {"stream": "stdout", "offset": 0, "nextOffset": 0, "dropped": 0, "ended": False, "text": ""}
    written(attempt, tmp_path, b"begun\n")
    assert piece(0)["text"] == "begun\n"
    assert piece(6)["text"] == ""
    written(attempt, tmp_path, b"begun\nended\n")
    type(attempt).objects.filter(pk=attempt.pk).delete()
    AttemptFactory.create(pk=attempt.pk, job=attempt.job, state=AttemptState.SUCCEEDED, ended_at=NOON)

    assert (piece(6)["text"], piece(6)["ended"]) == ("ended\n", True)
    assert (piece(12)["text"], piece(12)["ended"]) == ("", True)


@pytest.mark.parametrize("limit", [4, 5, 7, 1000])
def test_pieces_of_any_size_put_together_are_the_text(attempt: Attempt, tmp_path: Path, limit: int) -> None:
    written(attempt, tmp_path, LINES)

    text, offset = "", 0
    while (piece := output.read(attempt, stream="stdout", offset=offset, limit=limit)).content:
        assert len(piece.content) <= limit
        text, offset = text + piece.text, piece.next_offset

    assert text == LINES.decode()


def test_the_end_begins_with_a_line(attempt: Attempt, tmp_path: Path) -> None:
    written(attempt, tmp_path, LINES)

    piece = output.read(attempt, stream="stdout", offset=-100)

    assert piece.text.startswith("line ")
    assert LINES.endswith(piece.content)
    assert piece.next_offset == len(LINES)
    assert 0 < len(piece.content) <= 100


def test_what_was_dropped_in_the_middle_is_counted(api: Api, attempt: Attempt, tmp_path: Path) -> None:
    """Ten bytes are kept in front, the latest eight behind; 30 were written."""
    ring = b"YZ" + b"STUVWX"
    written(attempt, tmp_path, b"0123456789")
    written(attempt, tmp_path, shim.RING_HEADER.pack(8, 28, 28) + ring, "stdout.tail")

    first = api(f"attempts/{attempt.pk}/output").json()
    second = api(f"attempts/{attempt.pk}/output", offset=first["nextOffset"]).json()

    assert (first["text"], first["dropped"]) == ("0123456789", 0)
    assert (second["dropped"], second["nextOffset"]) == (10, 28)
    assert len(second["text"]) == 8


def test_bytes_that_are_no_text_are_replaced_and_passed(attempt: Attempt, tmp_path: Path) -> None:
    written(attempt, tmp_path, b"a\xff\xfeb\xe2\x82")

    piece = output.read(attempt, stream="stdout")

    assert piece.text == "a��b"
    assert piece.next_offset == 4  # the rest of a character may still come


def test_an_unfinished_character_at_the_very_end_is_given_once_nothing_follows(
    attempt: Attempt, tmp_path: Path
) -> None:
    written(attempt, tmp_path, b"\xe2\x82")
    attempt.state = AttemptState.FAILED

    assert output.read(attempt, stream="stdout").text == "�"


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"stream": "../lock"}, "stream"),
        ({"offset": "x"}, "offset"),
        ({"limit": "0"}, "limit"),
        ({"tail": "1"}, "tail"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    api: Api, attempt: Attempt, query: dict[str, str], parameter: str
) -> None:
    response = api(f"attempts/{attempt.pk}/output", **query)

    assert response.status_code == 400
    assert response.json()["parameter"] == parameter


def test_an_answer_is_never_longer_than_the_limit(api: Api, attempt: Attempt, tmp_path: Path) -> None:
    written(attempt, tmp_path, b"x" * (output.LIMIT + 10))

    assert len(api(f"attempts/{attempt.pk}/output", limit=10**9).json()["text"]) == output.LIMIT
