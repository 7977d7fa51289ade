"""The one error family. Each class has a stable code; what it carries is data, so every front end renders it alike."""

from typing import Any, ClassVar


class ForgeError(Exception):
    """Something a caller may have to handle. ``str(error)`` is one sentence for a person.

    code:        stable, the same in REST, MCP, console and admin
    http_status: what REST answers
    data:        the facts behind the sentence, JSON-compatible
    """

    code: ClassVar[str] = "forge_error"
    http_status: ClassVar[int] = 400

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(message or (type(self).__doc__ or self.code).splitlines()[0])
        self.data = data


class NotFound(ForgeError):
    """What was named does not exist. Check the name; nothing was changed."""

    code, http_status = "not_found", 404


class InvalidInput(ForgeError):
    """The request cannot be understood. Correct it and send it again; nothing was written."""

    code, http_status = "invalid_input", 400


class Conflict(ForgeError):
    """The request contradicts what is recorded. Read the recorded state first."""

    code, http_status = "conflict", 409


class RequestIdReused(Conflict):
    """The request id was used with other content. Send a new id for new content."""

    code = "request_id_reused"


class LostRace(Conflict):
    """Somebody moved the row since it was read. Reload and decide again."""

    code = "lost_race"


class IllegalMove(Conflict):
    """The table of moves has no such arrow from the present state."""

    code = "illegal_move"


class StaleFence(Conflict):
    """The presented fence is no longer the owner's. A stale worker gets no further."""

    code = "stale_fence"


class DatabaseBusy(ForgeError):
    """The database could not be written in time. Nothing was written; try again."""

    code, http_status = "database_busy", 503


class OutcomeUnknown(ForgeError):
    """The connection was lost while committing. Read the request id again to learn what happened."""

    code, http_status = "outcome_unknown", 503
