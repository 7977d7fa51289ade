"""What a caller of jobs may have to handle."""

from core.errors import Conflict, NotFound


class JobNotFound(NotFound):
    """No such job."""

    code = "job_not_found"


class AttemptNotOwned(Conflict):
    """The attempt key belongs to no attempt that may still write."""

    code = "attempt_not_owned"
