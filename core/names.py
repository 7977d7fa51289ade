"""Names that a person may have meant. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches

LISTED = 8


def did_you_mean(name: str, known: Iterable[str], *, what: str) -> str:
    """The rest of a sentence about a name nobody knows: the near ones, else what there is. Starts with a space.

    what: the known ones in the plural, `graphs`
    """
    names = list(dict.fromkeys(known))
    if near := get_close_matches(name, names, n=3, cutoff=0.6):
        return f" Did you mean {' or '.join(repr(one) for one in near)}?"
    if not names:
        return f" There are no {what} yet."
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f" The {what} are: {', '.join(names[:LISTED])}{more}."
