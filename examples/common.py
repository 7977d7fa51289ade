"""What the demos share: a Forge of their own in a directory of their own, driven through the public console only.

    demo = prepare(directory)     # repository, graph document, home, registered project
    demo.up()                     # `forge up` as a child process
    demo.run()                    # `forge run`: admit and follow;  or demo.admit(), then demo.wait()
    demo.down()                   # SIGTERM, clean exit
    demo.verify()                 # looks at the world, not at what Forge says about it

Each step may be called on its own, and ``up`` again after ``down`` or ``kill``, which is what the crash tests do.
Standard library only.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
MARKER = ".forge-demo"  # stands in every directory a demo made, so that nothing else is ever removed

READY_S = 60.0
STOP_S = 60.0
RUN_S = 600.0
STEP_S = 120.0
LEFT_OVER_S = 15.0


class Failure(Exception):
    """One clear line about what went wrong."""


# --- the console -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Console:
    """The commands of ``forge`` a demo needs. Everything a demo assumes about the console stands in this class."""

    home: Path
    database_url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Ours without any other Forge that the caller may be using."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "GIT_"))}
        inherited.pop("DATABASE_URL", None)
        inherited.pop("DJANGO_SETTINGS_MODULE", None)
        own = {"FORGE_HOME": str(self.home)} | ({"DATABASE_URL": self.database_url} if self.database_url else {})
        return inherited | own

    def init(self) -> None:
        self._call("init")

    def add_project(self, name: str, path: Path, *, target: str, checks: Mapping[str, Sequence[str]]) -> None:
        given = [f"--check={check}={shlex.join(command)}" for check, command in checks.items()]
        self._call("project", "add", name, str(path), "--target", target, *given)

    def up(self, address: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """In a session of its own: Ctrl-C is for the demo, which then stops it in order."""
        return subprocess.Popen(
            [_forge(), "up", "--bind", address],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def run(self, document: Path) -> int:
        """Admit and follow in this terminal; the exit code, 0 when the graph completed."""
        command = [_forge(), "run", str(document)]
        try:
            return subprocess.run(command, env=self.environment, timeout=RUN_S, check=False).returncode
        except subprocess.TimeoutExpired:
            raise Failure(f"the graph did not end within {RUN_S:.0f} s") from None

    def admit(self, document: Path) -> None:
        self._call("run", "--detach", str(document))

    def wait(self, graph: str, timeout: float) -> None:
        self._call("watch", graph, timeout=timeout)

    def result(self, graph: str) -> Path:
        """The result document; its path is the last word the command prints."""
        words = self._call("result", graph).split()
        path = Path(words[-1]) if words else Path()
        if not path.is_file():
            raise Failure(f"`forge result {graph}` named no file: {' '.join(words) or 'it printed nothing'}")
        return path

    def _call(self, *arguments: str, timeout: float = STEP_S) -> str:
        return output([_forge(), *arguments], env=self.environment, timeout=timeout)


def _forge() -> str:
    """The console script of the environment we run in, else the one on the PATH."""
    beside = Path(sys.executable).with_name("forge")
    found = str(beside) if beside.exists() else shutil.which("forge")
    if not found:
        raise Failure("no `forge` beside this Python and none on the PATH; run `make demo`, or `pip install -e .`")
    return found


# --- a demo ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command[:100]})"


@dataclass(frozen=True)
class Run:
    """One real run of a node, as its own process recorded it. Monotonic seconds, comparable between processes."""

    node: str
    pid: int
    start: float
    end: float


@dataclass(frozen=True)
class Landed:
    """What a verified demo left on the target branch."""

    commits: list[str]  # oldest first
    tree: str
    result: Path
    facts: list[str]  # one sentence for each thing that was checked


@dataclass
class Demo:
    """A prepared demo.

    base:     commit that the target branch had before anything ran
    landings: how many commits must land
    tests:    command that must succeed in a fresh clone
    counters: where the nodes record their runs, see calculator/workers/presence.py
    once:     nodes that must have run exactly once
    together: nodes that must have run at the same time
    """

    directory: Path
    repository: Path
    document: Path
    graph: str
    project: str
    base: str
    landings: int
    tests: Sequence[str]
    counters: Path | None = None
    once: Sequence[str] = ()
    together: Sequence[str] = ()
    target: str = "main"
    database_url: str = ""
    runtime: subprocess.Popen[bytes] | None = None
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def log(self) -> Path:
        return self.directory / "runtime.log"

    @property
    def console(self) -> Console:
        return Console(self.home, self.database_url)

    def install(self, checks: Mapping[str, Sequence[str]]) -> None:
        """Make the home and register the repository."""
        self.console.init()
        self.console.add_project(self.project, self.repository, target=self.target, checks=checks)

    # the runtime

    def up(self) -> None:
        """Start the runtime and wait until it answers."""
        with self.log.open("ab") as log:
            self.runtime = runtime = self.console.up(self.address, log)

        def answers() -> bool:
            if runtime.poll() is not None:
                raise Failure(f"`forge up` ended at once with exit code {runtime.returncode}")
            host, _, port = self.address.partition(":")
            with socket.socket() as client:
                client.settimeout(1)
                return client.connect_ex((host, int(port))) == 0

        wait_until(answers, READY_S, f"`forge up` did not answer on {self.address} within {READY_S:.0f} s")

    def down(self) -> None:
        """Stop the runtime as a service manager would, and insist on a clean end. Nothing to do when none runs."""
        runtime, self.runtime = self.runtime, None
        if runtime is None:
            return
        runtime.terminate()
        try:
            code = runtime.wait(STOP_S)
        except subprocess.TimeoutExpired:
            runtime.kill()
            runtime.wait()
            raise Failure(f"`forge up` did not end within {STOP_S:.0f} s of SIGTERM") from None
        if code:
            raise Failure(f"`forge up` ended with exit code {code} after SIGTERM")

    def kill(self) -> None:
        """SIGKILL everything of this Forge except the shims at work and what they supervise.

        Everything is stopped before anything is killed, so that a shim that just takes its first order is either seen
        at work and spared, or dies before its command starts; and nobody can react to the death of somebody else.
        """
        stopped: set[int] = set()
        while fresh := {process.pid for process in self.processes()} - stopped - self._supervised():
            for pid in fresh:
                send(pid, signal.SIGSTOP)
            stopped |= fresh
        spared = self._supervised()
        for pid in stopped:
            send(pid, signal.SIGCONT if pid in spared else signal.SIGKILL)
        if self.runtime is not None:
            self.runtime.wait()
            self.runtime = None

    def _supervised(self) -> set[int]:
        """Shims, known by working in the directory of their job, and everything below them."""
        parents = {pid: parent_of(pid) for pid in pids()}
        found = {pid for pid in parents if working_directory(pid).startswith(f"{self.home}/jobs/")}
        while below := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= below
        return found

    def processes(self) -> list[Process]:
        """Every process of this demo, except those we were started from: see ``belongs_to``."""
        return [Process(pid, command_of(pid)) for pid in pids() - ancestors() if belongs_to(pid, self.directory)]

    # the graph

    def run(self) -> None:
        """Admit the graph and follow it in this terminal."""
        if code := self.console.run(self.document):
            raise Failure(f"the graph did not complete: `forge run` ended with exit code {code}")

    def admit(self) -> None:
        self.console.admit(self.document)

    def wait(self, timeout: float = RUN_S) -> None:
        """Return once the graph has completed; Failure when it ended otherwise or not in time."""
        self.console.wait(self.graph, timeout)

    # the proof

    def verify(self) -> Landed:
        """Look at repository, recorded runs and processes. Call it after ``down``."""
        commits = self._landed_commits()
        facts = [f"{len(commits)} commits in one first-parent chain on {self.base[:7]}, checkout clean"]
        if self.once:
            facts.append(self._each_ran_once())
        if self.together:
            facts.append(self._ran_together())
        self._test_fresh_clone()
        facts.append(f"`{shlex.join(self.tests)}` passes in a fresh clone")
        result = self.console.result(self.graph)
        self._nothing_left_over()
        facts.append("no process is left over")
        tree = git(self.repository, "rev-parse", f"refs/heads/{self.target}^{{tree}}")
        return Landed(commits, tree, result, facts)

    def _landed_commits(self) -> list[str]:
        branch = f"refs/heads/{self.target}"
        history = git(self.repository, "rev-list", "--first-parent", branch).split()
        if self.base not in history:
            raise Failure(f"{self.target} no longer stands on the commit it started from, {self.base[:7]}")
        landed = history[: history.index(self.base)][::-1]
        if git(self.repository, "rev-list", f"{self.base}..{branch}").split() != landed[::-1]:
            raise Failure(f"what landed on {self.target} is no single chain: it has merges")
        if len(landed) != self.landings:
            raise Failure(f"{len(landed)} commits landed on {self.target} instead of {self.landings}")
        if dirt := git(self.repository, "status", "--porcelain"):
            raise Failure(f"the repository's own checkout is not clean: {dirt.splitlines()[0]}")
        return landed

    def _each_ran_once(self) -> str:
        for node in self.once:
            lines = read_lines(self._counter(node, "runs"))
            if len(lines) != 1:
                raise Failure(f"node {node} ran {len(lines)} times instead of once: {lines}")
        return f"each of {len(self.once)} nodes ran exactly once"

    def _ran_together(self) -> str:
        runs = self.runs()
        missing = [node for node in self.together if node not in runs]
        if missing:
            raise Failure(f"no recorded start and end of {', '.join(missing)}")
        spans = [runs[node] for node in self.together]
        overlap = min(run.end for run in spans) - max(run.start for run in spans)
        if overlap <= 0 or len({run.pid for run in spans}) != len(spans):
            raise Failure(f"{named(self.together)} did not run at the same time: {spans}")
        who = ", ".join(str(run.pid) for run in spans)
        return f"{named(self.together)} ran at the same time for {overlap:.2f} s (processes {who})"

    def runs(self) -> dict[str, Run]:
        """The finished runs that nodes recorded, by node; of several runs the last."""
        found: dict[str, Run] = {}
        for path in sorted(self.counters.glob("*.span")) if self.counters else ():
            span: dict[str, Any] = json.loads(path.read_text())
            if span.get("end") is not None:
                found[span["node"]] = Run(span["node"], span["pid"], span["start"], span["end"])
        return found

    def _counter(self, node: str, kind: str) -> Path:
        if self.counters is None:
            raise Failure("this demo keeps no counters")
        return self.counters / f"{node}.{kind}"

    def _test_fresh_clone(self) -> None:
        clone = self.directory / "clone"
        shutil.rmtree(clone, ignore_errors=True)
        git(self.directory, "clone", "--quiet", "--branch", self.target, str(self.repository), str(clone))
        output(self.tests, cwd=clone)

    def _nothing_left_over(self) -> None:
        try:
            wait_until(lambda: not self.processes(), LEFT_OVER_S, "")
        except Failure:
            left = ", ".join(str(process) for process in self.processes())
            raise Failure(f"processes are left over: {left}") from None


# --- the whole demo --------------------------------------------------------------------------------------------------


def main(title: str, name: str, prepare: Callable[[Path], Demo]) -> int:
    """Run one demo from nothing to its last line; the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    directory = Path(os.environ.get("DEMO_DIR") or ROOT / ".demo").absolute() / name
    demo: Demo | None = None
    say(f"Forge demo: {title}")
    try:
        demo = prepare(directory)
        say(f"  repository  {demo.repository}", f"  graph       {demo.document}", f"  runtime log {demo.log}")
        demo.up()
        say(f"  dashboard   {dashboard(demo)}", "")
        demo.run()
        demo.down()
        landed = demo.verify()
    except (Failure, OSError, subprocess.SubprocessError) as failure:
        _give_up(demo)
        return fail(str(failure), demo)
    except KeyboardInterrupt:
        _give_up(demo)
        return fail("interrupted", demo)
    show(demo, landed)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _give_up(demo: Demo | None) -> None:
    """Leave no runtime behind; the failure that brought us here is the one worth telling."""
    if demo is not None:
        with suppress(Failure):
            demo.down()


def show(demo: Demo, landed: Landed) -> None:
    """What landed, what was checked, and where to look."""
    say("", f"Landed on {demo.target}, oldest first:")
    for commit in landed.commits:
        subject = git(demo.repository, "show", "--no-patch", "--format=%h %s", commit)
        paths = git(demo.repository, "diff-tree", "--no-commit-id", "--name-only", "-r", commit).splitlines()
        shown = ", ".join(paths) if len(paths) <= 4 else f"{len(paths)} files"
        say(f"  {subject}  ({shown})")
    say("", "Checked from outside:", *(f"  {fact}" for fact in landed.facts))
    forge = f"FORGE_HOME={shlex.quote(str(demo.home))} {shlex.quote(_forge())}"
    say(
        "",
        "Where to look next:",
        f"  {forge} status",
        f"  {forge} result {demo.graph}",
        f"  {forge} up      # starts the runtime again and prints a link to the dashboard",
        f"  git -C {shlex.quote(str(demo.repository))} log --first-parent --stat {demo.target}",
        "",
        f"demo ok: landed={len(landed.commits)} repo={demo.repository} result={landed.result}",
    )


def fail(reason: str, demo: Demo | None) -> int:
    """The tail of the runtime's log for whoever has to find out, then one line that says what is wrong."""
    lines = read_lines(demo.log) if demo else []
    if demo and lines:
        say("", f"The end of {demo.log}:", *(f"  {line}" for line in lines[-30:]))
    print(f"demo failed: {reason}", file=sys.stderr, flush=True)
    return 1


def dashboard(demo: Demo) -> str:
    """The link that `forge up` printed, which signs the reader in; else the address."""
    links = [word for line in read_lines(demo.log) for word in line.split() if word.startswith("http://")]
    return next((link for link in links if demo.address in link), f"http://{demo.address}/")


def say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


# --- directories and documents ---------------------------------------------------------------------------------------


def fresh_directory(directory: Path) -> Path:
    """``directory``, empty. What an earlier demo left there is removed; anything else is refused.

    Raises: Failure when the directory holds something and no marker of ours, or when a process still works there
    """
    directory = Path(os.path.realpath(directory))
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).is_file():
            raise Failure(f"{directory} was not made by a demo (no {MARKER} in it); set DEMO_DIR to another directory")
        for pid in pids() - ancestors():
            if belongs_to(pid, directory):
                raise Failure(
                    f"something still runs in {directory}: stop process {Process(pid, command_of(pid))} first"
                )
        for path in directory.iterdir():
            if path.name != MARKER:  # last, so that an interrupted removal can be taken up again
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).write_text("Made by a demo of Forge, which removes everything in here when it runs again.\n")
    return directory


def fill_in(template: Path, document: Path, **values: str | Path) -> Path:
    """Write ``document``: the template with each ``$NAME`` replaced by the value, quoted as YAML wants it."""
    quoted = {name: json.dumps(str(value)) for name, value in values.items()}
    document.write_text(string.Template(template.read_text()).substitute(quoted))
    return document


def named(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; none when there is no such file."""
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


# --- commands and git ------------------------------------------------------------------------------------------------


def output(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = STEP_S,
) -> str:
    """Standard output of a command, without the last newline. Failure with the end of what it said when it fails."""
    words = [str(word) for word in command]
    shown = shlex.join([Path(words[0]).name, *words[1:]])
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"`{shown}` did not end within {timeout:.0f} s") from None
    except FileNotFoundError:
        raise Failure(f"`{words[0]}` is not installed") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise Failure(f"`{shown}` failed with exit code {done.returncode}: {' / '.join(said[-3:])}")
    return done.stdout.rstrip("\n")


def git(directory: Path, *arguments: str, when: str = "") -> str:
    """One git command, untouched by the user's configuration, hooks and environment.

    when: date of a commit made by it, so that the same content gives the same commit id
    """
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_DEFAULT_HASH": "sha1",
        "GIT_TERMINAL_PROMPT": "0",
        **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "Demo"),
        **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "demo@example.invalid"),
        **(dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), when) if when else {}),
    }
    return output(["git", *arguments], cwd=directory, env=environment)


def start_repository(directory: Path) -> None:
    """An empty repository on branch main. The same commits get the same ids on every machine."""
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet", "--template=", "--initial-branch=main")
    git(directory, "config", "core.autocrlf", "false")
    git(directory, "config", "core.fileMode", "true")


def commit_all(directory: Path, message: str, *, when: str) -> str:
    """Commit everything there is, ignored files too, and return the commit id."""
    git(directory, "add", "--all", "--force")
    git(directory, "commit", "--quiet", "--message", message, when=when)
    return git(directory, "rev-parse", "HEAD")


# --- processes -------------------------------------------------------------------------------------------------------


def pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def ancestors() -> set[int]:
    """We and whoever started us: a shell or a `make` that happens to have our FORGE_HOME is no part of the demo."""
    found, pid = set[int](), os.getpid()
    while pid:
        found.add(pid)
        pid = parent_of(pid)
    return found


def belongs_to(pid: int, directory: Path) -> bool:
    """Whether the process is part of the demo in ``directory``: by its environment, or by working in its Forge's home.

    The second finds the spawner and idle shims, which have no environment to speak of.
    """
    ours = {f"FORGE_HOME={directory}/home".encode(), f"DEMO_COUNTERS={directory}/counters".encode()}
    if ours.intersection(read_proc(pid, "environ").split(b"\0")):
        return True
    return f"{working_directory(pid)}/".startswith(f"{directory}/home/")


def read_proc(pid: int, name: str) -> bytes:
    """A file of /proc/PID; empty when the process is gone or not ours to read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def command_of(pid: int) -> str:
    return read_proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip() or "ended"


def parent_of(pid: int) -> int:
    """0 when the process is gone."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def working_directory(pid: int) -> str:
    """Empty when the process is gone or not ours to read."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Look again and again; Failure with ``otherwise`` when ``condition`` has not become true in time."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise Failure(otherwise)
        time.sleep(0.05)  # noqa: TID251 - another process's doing, of which nobody tells us
