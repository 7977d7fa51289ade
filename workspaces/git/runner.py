"""Start one git process, feed it, and end it: environment, limits, and nothing of the repository's own code.

A repository's configuration and attributes can name programs (hooks, filters, drivers, an fsmonitor). Workers write
into the same configuration, so every call replaces the environment and overrides those settings. Overrides travel as
GIT_CONFIG_COUNT/KEY/VALUE, which beat every file and, unlike ``-c``, allow any character in a driver's name.

Source: git-config(1), gitattributes(5), git(1) "Environment variables"; git 2.39.
"""

import contextlib
import os
import select
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from workspaces.errors import GitFailed, GitMissing, GitOutputTooLarge, GitTimeout
from workspaces.git.values import FORGE, Identity, Moment, from_bytes, to_bytes

HARDENING: Mapping[str, str] = {
    # programs a repository could name
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": ":",
    "core.sshCommand": "ssh -o BatchMode=yes",
    "core.askPass": "",
    "credential.helper": "",  # the empty value clears the list
    "diff.external": "",
    "commit.gpgSign": "false",
    "push.gpgSign": "false",
    "log.showSignature": "false",
    # the network: a missing object is an error here, never a reason to connect; push opens what it needs
    "protocol.allow": "never",
    # work in the background, which would outlive the call and its lock
    "gc.auto": "0",
    "gc.autoDetach": "false",
    "maintenance.auto": "false",
    # what would make the same commands mean something else
    "core.quotePath": "false",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.untrackedCache": "false",
    "core.ignoreStat": "false",
    "core.trustctime": "true",  # the one field of a file's status that a program cannot set back
    "core.checkStat": "default",
    "core.splitIndex": "false",  # our private copies of an index stand alone
    "core.attributesFile": "/dev/null",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "merge.directoryRenames": "conflict",
    "merge.renormalize": "false",
    "submodule.recurse": "false",
    "push.recurseSubmodules": "no",
    "push.followTags": "false",
    "fetch.recurseSubmodules": "false",
    # ownership is checked by Repository.open, once and with an error that says what to do
    "safe.directory": "*",
}

GRACE_S = 2.0  # between asking git to stop, which lets it remove its own lock files, and killing it
ERROR_LIMIT = 16 * 1024  # bytes of stderr that are kept


@dataclass(frozen=True, slots=True)
class Finished:
    args: tuple[str, ...]
    code: int
    out: bytes
    error: str
    is_truncated: bool = False

    @property
    def line(self) -> str:
        """The output as one name: without its last newline, and only that one."""
        return from_bytes(self.out.removesuffix(b"\n"))

    @property
    def records(self) -> list[str]:
        """The output of ``-z``: its NUL-terminated records."""
        return [from_bytes(record) for record in self.out.split(b"\0")[:-1]]


@dataclass(frozen=True)
class Git:
    """How git is called.

    lock_fd:      an open file descriptor that every git child inherits, so that an flock on it is free only when the
                  last git has ended, even if we die first
    timeout_s:    per git process, in seconds
    output_limit: per git process, in bytes of stdout
    after:        called with the arguments of each git step that ended well; a failpoint for tests raises or kills here
    """

    lock_fd: int | None = None
    timeout_s: float = 120.0
    output_limit: int = 256 * 2**20
    executable: str = "git"
    after: Callable[[Sequence[str]], None] | None = None

    def run(
        self,
        *args: str,
        cwd: Path,
        git_dir: Path | None = None,
        work_tree: Path | None = None,
        index: Path | None = None,
        stdin: bytes = b"",
        ok: Collection[int] = (0,),
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Finished:
        """Run ``git <args>`` to its end.

        git_dir:     without it git looks for the repository from ``cwd`` upwards
        index:       instead of the worktree's own
        ok:          exit codes that are an answer; any other is GitFailed
        limit:       bytes of output after which git is ended and what was read is returned as truncated
        environment: on top of the replaced one
        Raises: GitMissing, GitFailed, GitTimeout, GitOutputTooLarge
        """
        process = self._start(
            self._arguments(args, git_dir=git_dir, work_tree=work_tree),
            cwd=cwd,
            environment={**_environment(config or {}, index), **(environment or {})},
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + self.timeout_s
        with _ended(process):
            out, error, is_complete = _exchange(process, stdin, deadline, self.output_limit if limit is None else limit)
            if out is None or (is_complete and not _wait(process, deadline)):
                raise GitTimeout(f"git {args[0]} ran longer than {self.timeout_s:g} s", command=args[0])
            if not is_complete and limit is None:
                raise GitOutputTooLarge(f"git {args[0]} printed more than {self.output_limit} bytes", command=args[0])
        finished = Finished(args, process.returncode, out, error.decode("utf-8", "replace"), not is_complete)
        if is_complete and finished.code not in ok:
            raise failure(args, finished.code, finished.error)
        if self.after is not None:
            self.after(args)
        return finished

    def ref_transaction(self, *, git_dir: Path, work_tree: Path | None, cwd: Path, message: str) -> "RefTransaction":
        """``update-ref --stdin``, kept open so that other work can happen while it holds its locks."""
        args = ("update-ref", "-m", message, "--stdin", "-z")
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the transaction
        process = self._start(
            self._arguments(args, git_dir=git_dir, work_tree=work_tree),
            cwd=cwd,
            environment=_environment({}, None),
            stderr=errors,
        )
        return RefTransaction(process, errors, self.timeout_s, self.after)

    def _arguments(self, args: Sequence[str], *, git_dir: Path | None, work_tree: Path | None) -> list[bytes]:
        command = [self.executable, "--no-pager", "--literal-pathspecs"]
        if git_dir is not None:
            command.append(f"--git-dir={git_dir}")
            # Without a work tree git would take its working directory for one.
            command.append("--bare" if work_tree is None else f"--work-tree={work_tree}")
        return [to_bytes(arg) for arg in (*command, *args)]

    def _start(
        self, command: list[bytes], *, cwd: Path, environment: Mapping[str, str], stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        try:
            # A session of its own: no terminal to ask questions on, and one group to end. Never preexec_fn (slow fork).
            return subprocess.Popen(
                command,
                cwd=cwd,
                env={to_bytes(key): to_bytes(value) for key, value in environment.items()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
                pass_fds=() if self.lock_fd is None else (self.lock_fd,),
            )
        except (FileNotFoundError, NotADirectoryError, PermissionError) as problem:
            if not cwd.is_dir():  # Popen reports both in the same way
                raise GitFailed(f"{cwd} is not a directory", path=str(cwd)) from problem
            raise GitMissing(
                f"cannot start {self.executable}: {problem.strerror}", executable=self.executable
            ) from problem


class RefTransaction:
    """One reference transaction: start, update, prepare (takes the locks), commit. Leaving it unfinished aborts it.

    If we are killed, git sees the end of its input, aborts and removes its locks by itself.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        errors: IO[bytes],
        timeout_s: float,
        after: Callable[[Sequence[str]], None] | None,
    ) -> None:
        self._process = process
        self._errors = errors
        self._timeout_s = timeout_s
        self._after = after

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # git is gone already
            self._process.stdin.close()
        with _ended(self._process):
            _wait(self._process, time.monotonic() + self._timeout_s)
        self._errors.close()

    def prepare(self, ref: str, new: str, old: str) -> None:
        """Check that ``ref`` is at ``old`` and lock it (and HEAD, where HEAD is on it). Nothing has changed yet."""
        self._say("start", f"start\0update {ref}\0{new}\0{old}\0")
        self._say("prepare", "prepare\0")

    def commit(self) -> None:
        self._say("commit", "commit\0")

    def _say(self, verb: str, request: str) -> None:
        args = ("update-ref", verb)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(to_bytes(request))
        except BrokenPipeError:
            raise self._failure(args) from None
        if self._answer() != f"{verb}: ok":
            raise self._failure(args)
        if self._after is not None:
            self._after(args)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        deadline, answer = time.monotonic() + self._timeout_s, b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise GitTimeout(f"git update-ref did not answer within {self._timeout_s:g} s", command="update-ref")
            byte = self._process.stdout.read(1)
            if not byte:
                break
            answer += byte
        return from_bytes(answer.removesuffix(b"\n"))

    def _failure(self, args: Sequence[str]) -> GitFailed:
        _wait(self._process, time.monotonic() + self._timeout_s)
        self._errors.seek(0)
        return failure(args, self._process.returncode or -1, self._errors.read(ERROR_LIMIT).decode("utf-8", "replace"))


def failure(args: Sequence[str], code: int, error: str) -> GitFailed:
    words = error.strip()
    return GitFailed(
        f"git {args[0]} failed ({code}): {words or 'no message'}", command=args[0], exit_code=code, error=words
    )


def signed(who: Identity, when: Moment, *, role: str) -> dict[str, str]:
    """The environment that makes ``who`` the author or committer (``role``) of what git writes."""
    return {f"GIT_{role}_NAME": who.name, f"GIT_{role}_EMAIL": who.email, f"GIT_{role}_DATE": str(when)}


def _environment(config: Mapping[str, str], index: Path | None) -> dict[str, str]:
    """All that git sees. Nothing is inherited but where programs and temporary files are."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "TMPDIR": tempfile.gettempdir(),
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_EDITOR": ":",
        "GIT_OPTIONAL_LOCKS": "0",  # looking at a person's worktree must not write its index
        "GIT_NO_LAZY_FETCH": "1",  # since git 2.44; before that protocol.allow stops it
        # Replacements and grafts let a worker show us another history than the one that would land.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": "/nonexistent",
        # For reflogs only; whoever commits passes its own.
        "GIT_AUTHOR_NAME": FORGE.name,
        "GIT_AUTHOR_EMAIL": FORGE.email,
        "GIT_COMMITTER_NAME": FORGE.name,
        "GIT_COMMITTER_EMAIL": FORGE.email,
    }
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    settings = {**HARDENING, **config}
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings.items()):
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment


def _exchange(
    process: subprocess.Popen[bytes], stdin: bytes, deadline: float, limit: int
) -> tuple[bytes, bytes, bool] | tuple[None, bytes, bool]:
    """Write ``stdin`` and read both outputs without one blocking the other.

    Returns: stdout (None when the deadline passed), the head of stderr, and whether stdout is all of it
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out, error, unsent = bytearray(), bytearray(), memoryview(stdin)
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ)
        pipes.register(process.stderr, selectors.EVENT_READ)
        if unsent:
            os.set_blocking(process.stdin.fileno(), False)
            pipes.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while pipes.get_map():
            ready = pipes.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None, bytes(error), False
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    try:
                        unsent = unsent[os.write(key.fd, unsent[:65536]) :]
                    except BrokenPipeError:  # git has read enough; its exit code says whether that is bad
                        unsent = unsent[:0]
                    if not unsent:
                        pipes.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    pipes.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    error += chunk[: ERROR_LIMIT - len(error)]
                else:
                    out += chunk
                    if len(out) > limit:
                        return bytes(out[:limit]), bytes(error), False
    return bytes(out), bytes(error), True


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """True when the process ended by itself before ``deadline``."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens inside: afterwards git and its group are gone and its pipes are closed."""
    try:
        yield
    finally:
        if process.returncode is None:
            _end_group(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait GRACE_S, kill. The leader is reaped last, so its number names this group and no other until the end."""
    descriptor = os.pidfd_open(process.pid)
    try:
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            if how == signal.SIGTERM:
                select.select([descriptor], [], [], GRACE_S)
    finally:
        os.close(descriptor)
    process.wait()
