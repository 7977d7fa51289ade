"""What can go wrong with a repository, a checkout or a landing. The class says who has to do something.

Paths in ``data`` are in their printable form (see ``workspaces.git.values.shown``), since data has to fit into JSON
and a file name in git is any byte string without NUL.
"""

from core.errors import ForgeError


class GitError(ForgeError):
    """A repository could not be used as asked."""

    code, http_status = "git_error", 409


# --- the machine or git itself ------------------------------------------------------------------------------


class GitMissing(GitError):
    """The git program cannot be started. Install git 2.38 or newer on the home host of the project."""

    code, http_status = "git_missing", 503


class GitFailed(GitError):
    """Git ended with an error nobody expected. Its own words are in the data."""

    code, http_status = "git_failed", 500


class GitTimeout(GitError):
    """Git ran past its time limit and was ended with all its children. Try again, or raise the limit."""

    code, http_status = "git_timeout", 504


class GitOutputTooLarge(GitError):
    """Git printed more than the limit allows. Nothing was decided from the part that was read."""

    code, http_status = "git_output_too_large", 500


# --- repositories and branches ------------------------------------------------------------------------------


class PathMissing(GitError):
    """The path does not exist on this host. Correct the project's path."""

    code, http_status = "path_missing", 404


class NotARepository(GitError):
    """The path is not inside a git repository's files. Run git init there, or correct the project's path."""

    code, http_status = "not_a_repository", 422


class RepositoryNotOwned(GitError):
    """The repository belongs to another user, and git would follow his settings. Change the owner or trust it."""

    code, http_status = "repository_not_owned", 403


class RepositoryEmpty(GitError):
    """The repository has no commit yet. Make the first commit."""

    code, http_status = "repository_empty", 409


class BranchUnknown(GitError):
    """The repository has no such branch. Create it or name another one."""

    code, http_status = "branch_unknown", 404


class BranchNameInvalid(GitError):
    """The name can never be a branch of a git repository. Correct it."""

    code, http_status = "branch_name_invalid", 422


class RemoteUnknown(GitError):
    """The repository has no such remote. Add it with git remote add, or name another one."""

    code, http_status = "remote_unknown", 404


class RefMoved(GitError):
    """The reference is not where it was expected, so nothing was changed. Read it again and decide anew."""

    code, http_status = "ref_moved", 409


class RefLocked(GitError):
    """Another git process holds the reference, or left its lock behind. Try again; if it stays, remove the lock."""

    code, http_status = "ref_locked", 409


# --- checkouts ----------------------------------------------------------------------------------------------


class CheckoutDirty(GitError):
    """Somebody's own changes lie where Forge would write. Commit or move the named paths; they were not touched."""

    code, http_status = "checkout_dirty", 409


class CheckoutLocked(GitError):
    """Another git process works in this checkout. Try again when it has ended."""

    code, http_status = "checkout_locked", 409


class CheckoutUnmerged(GitError):
    """The checkout holds an unfinished merge. Resolve the named paths first."""

    code, http_status = "checkout_unmerged", 409


class CheckoutOccupied(GitError):
    """Files that are not Forge's lie where the checkout belongs. They are kept; move them or choose another path."""

    code, http_status = "checkout_occupied", 409


class CheckoutMismatch(GitError):
    """The checkout is not on the branch, commit or base it was made for."""

    code, http_status = "checkout_mismatch", 409


class CheckoutUnknown(GitError):
    """The repository has no checkout at this path."""

    code, http_status = "checkout_unknown", 404


class BranchCheckedOut(GitError):
    """The branch is checked out somewhere, and moving it alone would leave that checkout behind. Name the checkout."""

    code, http_status = "branch_checked_out", 409


# --- candidates ---------------------------------------------------------------------------------------------


class CandidateEmpty(GitError):
    """Nothing differs from the base, so there is nothing to land."""

    code, http_status = "candidate_empty", 409


class ScopeViolation(GitError):
    """Paths outside the declared scope were changed. Undo or declare them; nothing was committed or pinned."""

    code, http_status = "scope_violation", 409


class BaseRewritten(GitError):
    """The base is no ancestor of the candidate: its history was rewritten. Rebase the work onto its base."""

    code, http_status = "base_rewritten", 409


class MergeCommitInCandidate(GitError):
    """A candidate is a line of commits, and this one contains a merge. Rebase instead of merging."""

    code, http_status = "merge_commit_in_candidate", 409


class EmbeddedRepository(GitError):
    """A repository inside the checkout would become a bare link to a commit nobody has. Remove its .git directory."""

    code, http_status = "embedded_repository", 409


class SubmoduleChange(GitError):
    """The candidate moves a submodule, which this project does not allow. Undo the named paths."""

    code, http_status = "submodule_change", 409


class FilteredPath(GitError):
    """A changed file wants a filter program (as git-lfs does), and Forge runs none. Commit it inside the checkout."""

    code, http_status = "filtered_path", 409


class ReplayConflict(GitError):
    """The candidate and what landed meanwhile changed the same lines. Redo the named paths on the new base."""

    code, http_status = "replay_conflict", 409


# --- landing ------------------------------------------------------------------------------------------------


class LandingProofFailed(GitError):
    """The commit to land is not exactly what was checked. Nothing moved; a person has to look."""

    code, http_status = "landing_proof_failed", 409
