"""Who may write: the identity of a grant, presented by its holder and compared part by part. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class GrantIdentity(Protocol):
    """All three must match the recorded grant; any other identity changes nothing."""

    @property
    def holder(self) -> str: ...
    @property
    def grant_id(self) -> int: ...
    @property
    def token(self) -> int: ...


@dataclass(frozen=True)
class Fence:
    """A worker's right to write. Only a grant makes one; every guarded write takes one (bors' lock proof).

    grant_id: the request that was granted
    token:    of the grant; each grant of the installation has a greater one than all before it
    Source:   fencing tokens, M. Kleppmann, "How to do distributed locking" (2016)
    """

    attempt_id: int
    grant_id: int
    token: int

    @property
    def holder(self) -> str:
        return f"attempt:{self.attempt_id}"


@dataclass(frozen=True)
class HeldGrant:
    """The same for a holder that is no attempt, as a queue entry (`entry:7`)."""

    holder: str
    grant_id: int
    token: int
