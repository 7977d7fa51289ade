"""Fixtures of the tests that land on real repositories."""

from tests.recovery.conftest import forge, repo

__all__ = ["forge", "repo"]
