"""Pushing a landed branch: an effect of its own, with the expected remote tip, told apart by outcome."""

from collections.abc import Mapping

from workspaces.errors import BaseRewritten, GitFailed, GitTimeout
from workspaces.git.repository import Repository
from workspaces.git.values import PushOutcome, PushResult, require_id, require_ref

# Transports that carry data. ``ext`` would run any program; unknown ones would run git-remote-<name>.
_TRANSPORTS = {f"protocol.{name}.allow": "always" for name in ("file", "ssh", "https", "http")}


def push(
    repo: Repository,
    *,
    remote: str,
    ref: str,
    commit: str,
    expected: str | None,
    environment: Mapping[str, str] | None = None,
) -> PushResult:
    """Put ``commit`` on the remote's ``ref`` if that still is at ``expected`` (None: does not exist). Never a rewind.

    Asking again after a crash is harmless: a remote that has the commit already answers ``already_there``.
    The remote's own hooks run on its side; ours never do.

    remote:      a configured name or a URL
    environment: what the transport needs, such as SSH_AUTH_SOCK or HOME
    Raises: BaseRewritten when ``commit`` does not descend from ``expected``
    """
    require_ref(ref)
    if expected is not None and not repo.is_ancestor(expected, require_id(commit)):
        raise BaseRewritten(f"{commit} does not descend from {expected}", base=expected, candidate=commit)
    url = _url(repo, remote)
    try:
        tip = _remote_tip(repo, url, ref, environment)
    except (GitFailed, GitTimeout) as problem:
        return PushResult(PushOutcome.UNREACHABLE, None, str(problem))
    if tip is not None and (tip == commit or _contains(repo, tip, commit)):
        return PushResult(PushOutcome.ALREADY_THERE, tip)
    if tip != expected:
        return PushResult(
            PushOutcome.REJECTED, tip, f"{ref} is at {tip or 'nothing'} there, not at {expected or 'nothing'}"
        )
    try:
        pushed = repo.run(
            "push", "--porcelain", "--no-verify", "--receive-pack=git-receive-pack",
            f"--force-with-lease={ref}:{expected or ''}", "--end-of-options", url, f"{commit}:{ref}",
            ok=(0, 1),
            environment=environment,
            config=_TRANSPORTS,
        )  # fmt: skip
    except (GitFailed, GitTimeout) as problem:  # it may have arrived all the same: the next try will see
        return PushResult(PushOutcome.UNREACHABLE, tip, str(problem))
    if pushed.code == 0:
        return PushResult(PushOutcome.PUSHED, commit)
    return PushResult(PushOutcome.REJECTED, tip, f"{pushed.line}\n{pushed.error}".strip())


def knows_remote(repo: Repository, remote: str) -> bool:
    """Whether ``remote`` is configured, or is itself a URL or path. Nothing is asked over the network."""
    return _url(repo, remote) != remote or "/" in remote or ":" in remote


def _url(repo: Repository, remote: str) -> str:
    """The push URL itself, so that ``remote.<name>.receivepack`` and the like do not apply."""
    found = repo.run("config", "-z", "--get", f"remote.{remote}.pushurl", ok=(0, 1)).records
    found = found or repo.run("config", "-z", "--get", f"remote.{remote}.url", ok=(0, 1)).records
    return found[-1] if found else remote


def _remote_tip(repo: Repository, url: str, ref: str, environment: Mapping[str, str] | None) -> str | None:
    listed = repo.run(
        "ls-remote", "--upload-pack=git-upload-pack", "--end-of-options", url, ref,
        environment=environment,
        config=_TRANSPORTS,
    )  # fmt: skip
    found = dict(line.split("\t")[::-1] for line in listed.line.splitlines())
    return found.get(ref)  # git matches by the end of the name


def _contains(repo: Repository, tip: str, commit: str) -> bool:
    """Whether ``tip`` descends from ``commit``, as far as this repository knows ``tip`` at all."""
    is_known = repo.run("cat-file", "-e", "--end-of-options", f"{require_id(tip)}^{{commit}}", ok=(0, 1, 128)).code == 0
    return is_known and repo.is_ancestor(commit, tip)
