"""How every command ends that does not end well: what is printed, and the exit code. Light: settings may be what is broken."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError

from core.errors import ForgeError
from core.names import did_you_mean
from graphs.errors import DocumentInvalid

EXIT_FAILED = 1  # the work did not end well
EXIT_REFUSED = 2  # the request was refused; nothing was written
EXIT_BUG = 70  # Forge is broken; --traceback shows where
EXIT_DETACHED = 130  # Ctrl-C: what was followed goes on. Not 0, so that `forge run g.yaml && deploy` does not deploy
EXIT_PIPE_CLOSED = 141  # whoever read the output has gone, as with every other tool

PATHS_SHOWN = 20
_NO_SUCH_TABLE = ("42P01", "42703")  # PostgreSQL: undefined table, undefined column


def report(error: BaseException) -> int:
    """Print an error for a person: one line each, with its code. Returns the exit code."""
    for line in lines_of(error):
        print(printable(line), file=sys.stderr)
    return EXIT_REFUSED if is_callers(error) else EXIT_BUG


def is_callers(error: BaseException) -> bool:
    """Whether somebody else than Forge's authors has to do something."""
    ours = isinstance(error, DataError | IntegrityError)
    return isinstance(error, ForgeError | DatabaseError | InterfaceError | ImproperlyConfigured | OSError) and not ours


def lines_of(error: BaseException) -> Iterator[str]:
    """Pure."""
    match error:
        case DocumentInvalid():
            yield from (f"error: {problem}" for problem in error.problems)
            if error.omitted:
                yield f"error: and {error.omitted} problems more [{error.code}]"
        case ForgeError():
            yield f"error: {error}{_branches(error)} [{error.code}]"
            paths = error.data.get("paths", [])
            yield from (f"       {path}" for path in paths[:PATHS_SHOWN])
            if len(paths) > PATHS_SHOWN:
                yield f"       and {len(paths) - PATHS_SHOWN} more"
        case ImproperlyConfigured():
            yield f"error: the settings cannot be used: {_first_line(error)} [settings_invalid]"
        case DatabaseError() | InterfaceError() if is_callers(error):
            yield _database(error)
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            yield f"error: {where}{error.strerror or error} [{_system_code(error)}]"
        case _:
            yield (
                f"error: Forge has a bug here: {type(error).__name__}: {_first_line(error)}"
                " (the same command with --traceback shows where) [internal_error]"
            )


def _branches(error: ForgeError) -> str:
    """What else could be meant, where git said which branches there are."""
    names = error.data.get("branches")
    return f".{did_you_mean(str(error.data['branch']), names, what='branches')}" if names else ""


def _database(error: BaseException) -> str:
    words = _first_line(error)
    if getattr(error.__cause__, "sqlstate", None) in _NO_SUCH_TABLE or words.startswith(
        ("no such table", "no such col")
    ):
        return (
            f"error: the database is not that of this version of Forge ({words}): `forge init` brings it up to date"
            " [database_not_migrated]"
        )
    if isinstance(error, OperationalError) and "database is locked" in words:
        return f"error: the database could not be read or written in time ({words}); try again [database_busy]"
    return f"error: the database cannot be used: {words}; look at DATABASE_URL and FORGE_HOME [database_unreachable]"


def _system_code(error: OSError) -> str:
    return "storage_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "system_error"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def printable(text: str) -> str:
    r"""``text`` without what a terminal would obey: names of files and messages of commands are other people's."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "replace").decode() for c in text)
