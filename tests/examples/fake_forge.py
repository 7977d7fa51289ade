"""A stand-in for the console: lands the graph's work in the plainest way, so that a demo can be tested without Forge.

Runs the writers at once, each in a clone of its own, then everything else in order. FAKE_FORGE chooses how to fail.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

HOME = Path(os.environ["FORGE_HOME"])
FAILS = os.environ.get("FAKE_FORGE", "")


def main(command: str, *arguments: str) -> int:
    commands: dict[str, Callable[..., int | None]] = {
        "init": init,
        "project": add_project,
        "up": up,
        "run": run,
        "watch": watch,
        "result": result,
    }
    return commands[command](*arguments) or 0


def init() -> None:
    HOME.mkdir()


def add_project(verb: str, name: str, path: str, *options: str) -> None:
    assert verb == "add"
    (HOME / "project.json").write_text(json.dumps({"name": name, "path": path, "options": options}))


def up(option: str, address: str) -> int:
    if FAILS == "up":
        print("cannot start: no luck today", flush=True)
        return 3
    host, _, port = address.partition(":")
    with socket.create_server((host, int(port))):
        print(f"sign in at http://{address}/login/once", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(4 if FAILS == "down" else 0))
        while True:
            signal.pause()


def run(*arguments: str) -> int:
    graph: dict[str, Any] = yaml.safe_load(Path(arguments[-1]).read_text())
    repository = Path(json.loads((HOME / "project.json").read_text())["path"])
    environment = {"PATH": os.environ["PATH"], **graph["defaults"]["env"]}
    writers = [node for node in graph["nodes"] if not node.get("needs")]
    if FAILS == "run":
        print("node add failed", flush=True)
        return 1
    clones = [clone(repository, node["key"]) for node in writers]
    started = [
        subprocess.Popen(node["command"], cwd=directory, env=environment)
        for node, directory in zip(writers, clones, strict=True)
    ]
    for process in started:
        assert process.wait() == 0
    for node, directory in zip(writers, clones, strict=True):
        land(node, directory, repository)
    for node in graph["nodes"]:
        if node.get("needs"):
            directory = clone(repository, node["key"])
            subprocess.run(node["command"], cwd=directory, env=environment, check=True)
            if node.get("workMode") != "read-only":
                land(node, directory, repository)
    return 0


def clone(repository: Path, key: str) -> Path:
    directory = HOME / "checkouts" / key
    git(HOME, "clone", "--quiet", str(repository), str(directory))
    return directory


def land(node: dict[str, Any], directory: Path, repository: Path) -> None:
    for path in node["ownedFiles"]:
        if path.endswith("/"):
            shutil.copytree(directory / path, repository / path, dirs_exist_ok=True)
        else:
            shutil.copyfile(directory / path, repository / path)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", node["title"])


def git(directory: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Fake", "-c", "user.email=fake@example.invalid")
    subprocess.run(["git", *identity, *arguments], cwd=directory, check=True)


def watch(graph: str) -> None:
    """Everything has ended before ``run`` returned."""


def result(graph: str) -> None:
    path = HOME / "result.json"
    path.write_text("{}")
    print(f"Result of {graph}: {path}")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
