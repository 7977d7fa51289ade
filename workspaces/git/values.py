"""What goes in and comes out of git: frozen values, and names for what git calls by many names.

A path is repository-relative, with ``/`` between parts, as a ``str`` in which undecodable bytes are surrogate escapes
(PEP 383), so every name git can hold survives the round trip. Ids are full object ids, refs are full names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def from_bytes(raw: bytes) -> str:
    """One name as git printed it. Fixed to UTF-8, so that the locale of the server does not matter."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def shown(path: str) -> str:
    r"""``path`` for people and JSON: bytes that are no UTF-8 become ``\xff``. Never passed back to git."""
    return to_bytes(path).decode("utf-8", "backslashreplace")


def shown_all(paths: Iterable[str]) -> list[str]:
    return [shown(path) for path in sorted(paths)]


def require_id(value: str) -> str:
    """``value`` if it is a full object id. Anything else is our own bug, so it is no ForgeError."""
    if not _OBJECT_ID.fullmatch(value):
        raise ValueError(f"not a full object id: {value!r}")
    return value


def require_ref(value: str) -> str:
    """``value`` if it is a full ref name; git itself checks the rest."""
    if not value.startswith("refs/") or any(ord(char) <= 0x20 for char in value):
        raise ValueError(f"not a full ref name: {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a commit is by. Always an argument: nobody's own git identity is ever borrowed."""

    name: str
    email: str

    def __post_init__(self) -> None:
        for text in (self.name, self.email):
            if not text.strip() or any(char in text for char in "<>\n\0"):
                raise ValueError(f"not usable in a commit: {text!r}")


FORGE = Identity("Forge", "forge@localhost")  # reflogs and helper commits


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as git stores it: whole seconds since 1970 and an offset like ``+0200``."""

    seconds: int
    offset: str = "+0000"

    @classmethod
    def at(cls, when: datetime) -> "Moment":
        """when: aware; only its instant is kept."""
        if when.tzinfo is None:
            raise ValueError("a commit needs an aware datetime")
        return cls(int(when.timestamp()))

    def __str__(self) -> str:
        return f"@{self.seconds} {self.offset}"


class Mode(StrEnum):
    """The five kinds of entry a git tree holds."""

    FILE = "100644"
    EXECUTABLE = "100755"
    SYMLINK = "120000"
    GITLINK = "160000"
    DIRECTORY = "040000"


@dataclass(frozen=True, slots=True)
class Blob:
    """The content of one path: mode and object id (of a commit, when the mode is a gitlink)."""

    mode: str
    id: str


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between two commits; ``None`` is absence. A rename is one path gone and one come."""

    path: str
    old: Blob | None
    new: Blob | None

    @property
    def is_gitlink(self) -> bool:
        return self.new is not None and self.new.mode == Mode.GITLINK


@dataclass(frozen=True, slots=True)
class Branch:
    ref: str
    tip: str


@dataclass(frozen=True, slots=True)
class Worktree:
    """One place where the repository is checked out. ``git_dir`` holds its own HEAD and index."""

    path: Path
    git_dir: Path
    head: str | None  # None: the branch has no commit yet, or the registration is torn
    branch: str | None  # None: detached
    is_main: bool


@dataclass(frozen=True, slots=True)
class Checkout:
    """A worktree that Forge made: on ``branch`` (full ref) or detached, started at ``base``."""

    path: Path
    git_dir: Path
    branch: str | None
    base: str

    @property
    def worktree(self) -> Worktree:
        return Worktree(self.path, self.git_dir, None, self.branch, is_main=False)


@dataclass(frozen=True, slots=True)
class Removal:
    """Whether a checkout is gone. ``kept_because`` is a sentence, and ``paths`` what stood in the way."""

    removed: bool
    kept_because: str = ""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SealedCandidate:
    """A commit offered for a branch. ``commits`` is the line from ``base`` (not in it) to ``commit``, oldest first."""

    commit: str
    tree: str
    base: str
    commits: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """A candidate on a newer base. ``commits`` pairs old with new; ``dropped`` were already on the new base."""

    commit: str
    tree: str
    base: str
    commits: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]

    @property
    def is_already_there(self) -> bool:
        return self.commit == self.base


@dataclass(frozen=True, slots=True)
class LandingProof:
    """What was true of the commit before the branch moved to it."""

    base: str
    candidate: str
    tree: str
    commits: tuple[str, ...]
    paths: tuple[str, ...]


class Verdict(StrEnum):
    """What a landing is, judged by the world alone."""

    LANDED = "landed"
    DUE = "due"
    STALE = "stale"


class PushOutcome(StrEnum):
    PUSHED = "pushed"
    ALREADY_THERE = "already_there"
    REJECTED = "rejected"  # the remote branch is elsewhere, or the remote said no: a person or a new landing decides
    UNREACHABLE = "unreachable"  # nothing is known: try again


@dataclass(frozen=True, slots=True)
class PushResult:
    """``remote_tip`` is what the remote branch was last seen at; ``detail`` git's own words."""

    outcome: PushOutcome
    remote_tip: str | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    commit: str
    subject: str


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """``kind``: added, modified, deleted, untracked or unmerged."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What differs from the last commit, whoever did it. ``root`` is None where there is no repository."""

    root: Path | None
    changed: tuple[ChangedPath, ...]
    warnings: tuple[str, ...]
