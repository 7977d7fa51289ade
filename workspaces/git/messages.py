"""Commit messages as bytes, and the trailers at their end.

Not ``git interpret-trailers``: it runs whatever ``trailer.<name>.command`` the configuration names.
"""

import re
from collections.abc import Sequence

_TRAILER = re.compile(rb"[A-Za-z0-9][A-Za-z0-9-]*: ?\S.*")


def with_trailers(message: bytes, trailers: Sequence[tuple[str, str]]) -> bytes:
    """``message`` with each trailer its block does not have yet.

    Raises: ValueError for a trailer that would not be read back as one line
    """
    message = message.rstrip() + b"\n"
    block = _trailer_block(message)
    missing = []
    for key, value in trailers:
        line = f"{key}: {value}".encode()
        if not _TRAILER.fullmatch(line):
            raise ValueError(f"not a trailer: {line!r}")
        if line not in block and line not in missing:
            missing.append(line)
    if not missing:
        return message
    return message + (b"" if block else b"\n") + b"\n".join(missing) + b"\n"


def has_trailer(message: bytes, key: str) -> bool:
    return any(line.startswith(f"{key}:".encode()) for line in _trailer_block(message))


def _trailer_block(message: bytes) -> list[bytes]:
    """The last paragraph when each of its lines is a trailer or continues one, and it is not the subject."""
    paragraphs = re.split(rb"\n[ \t]*\n", message.strip())
    lines = paragraphs[-1].splitlines() if len(paragraphs) > 1 else []
    is_block = bool(lines) and _TRAILER.fullmatch(lines[0]) is not None
    return lines if is_block and all(_TRAILER.fullmatch(line) or line[:1] in b" \t" for line in lines) else []
