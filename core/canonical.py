"""Canonical JSON: equal values have equal bytes, so that a digest is an identity. Pure.

Sorted keys (by code point), no insignificant whitespace, UTF-8 without escapes that are not needed. Text stays as it
is (no Unicode normalisation: two spellings of a file name are two names). Whole numbers stay within +-(2**53 - 1),
which every JSON reader holds exactly. ``1`` and ``1.0`` are different values here.

Source: close to RFC 8785 (JCS), but simpler where we need no interchange: code points instead of UTF-16 units order the
keys, and floats have Python's shortest form.
"""

import hashlib
import json
import math
from typing import Any, Final

from core.errors import InvalidInput

MAX_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 128  # also what ends a value that contains itself


class NotCanonical(InvalidInput):
    """The value has no canonical JSON form. The data say where and why."""

    code = "not_canonical"


def canonical_bytes(value: Any) -> bytes:
    """The one JSON text of ``value``.

    value:  None, bool, int, float, str, list, tuple (written as a list) and dict with text keys, nested
    Raises: NotCanonical for anything else, NaN, infinities, integers beyond 2**53 - 1, lone surrogates, depth over 128
    """
    _check(value, ())
    # check_circular: the depth limit of _check has already dealt with it
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
    )
    return text.encode()


def digest(value: Any) -> str:
    """``sha256:<64 hexadecimal digits>`` over the canonical bytes. Raises: NotCanonical."""
    return digest_of(canonical_bytes(value))


def digest_of(data: bytes) -> str:
    """The digest of bytes that are canonical already."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8, which a lone surrogate cannot."""
    if text.isascii():  # the usual case, and free
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(value: Any, path: tuple[str | int, ...]) -> None:
    if len(path) > MAX_DEPTH:
        raise _refused(path, f"nested deeper than {MAX_DEPTH}")
    match value:
        case None | bool():
            return
        case str():
            if not is_unicode(value):
                raise _refused(path, "text with a lone surrogate")
        case int():
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise _refused(path, "a whole number beyond 2**53 - 1")
        case float():
            if not math.isfinite(value):
                raise _refused(path, "not a finite number")
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, (*path, index))
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):  # json.dumps would silently turn 1 into "1", and then there are two
                    raise _refused(path, f"a key of type {type(key).__name__}")
                _check(key, path)
                _check(item, (*path, key))
        case _:
            raise _refused(path, f"a value of type {type(value).__name__}")


def _refused(path: tuple[str | int, ...], reason: str) -> NotCanonical:
    where = "/".join(str(step) for step in path[:8]).encode(errors="replace").decode()
    return NotCanonical(f"No canonical JSON: {reason} at /{where}", path=where, reason=reason)
