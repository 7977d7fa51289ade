"""The generated pages of the documentation say what the code says."""

from __future__ import annotations

import pytest

from tests.reference import PAGES, PLACE


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (PLACE / name).read_text() == PAGES[name](), "run `python -m tests.reference`"
