"""The shape every table of moves has. Pure."""

from collections.abc import Mapping

Moves = Mapping[str, frozenset[str]]
