"""Names of refs that Forge keeps in a repository. Pure."""


def candidate_ref(attempt_id: int) -> str:
    """Keeps what an attempt offered, whatever happens to its branch."""
    return f"refs/forge/candidate/{attempt_id}"


def offered_ref(entry_id: int, commit: str) -> str:
    """Keeps what a queue entry offers: the candidate, or its replay onto a newer tip."""
    return f"refs/forge/offered/{entry_id}-{commit[:12]}"
