"""Make the repository that the demo works on: a small package with a command line that has no operations yet.

Usage: make_repository.py DIRECTORY

`product/` is what the repository starts with. The workers go into `tools/` of the same repository, so that a node's
command finds them in its own checkout by a plain relative path. The same files give the same commit ids everywhere.
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.common import Failure, commit_all, start_repository

HERE = Path(__file__).resolve().parent
COMMITS = (
    ("Start a calculator with an empty command line", ("README.md", ".gitignore", "calculator")),
    ("Test what the command line promises", ("tests",)),
    ("Add the tools that will work on it", ("tools",)),
)


def make_repository(directory: Path) -> str:
    """Make it in ``directory``, which must not exist yet; the id of the latest commit on main."""
    start_repository(directory)
    tip = ""
    for day, (message, names) in enumerate(COMMITS, 1):
        for name in names:
            copy(HERE / ("workers" if name == "tools" else f"product/{name}"), directory / name)
        tip = commit_all(directory, message, when=f"2024-01-{day:02}T12:00:00+0000")
    return tip


def copy(source: Path, target: Path) -> None:
    """Contents only: modes, times and compiled files of our own checkout are nobody's business."""
    paths = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
    for path in paths:
        if "__pycache__" not in path.parts:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
            place.chmod(0o644)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    try:
        print(make_repository(Path(sys.argv[1])))
    except (Failure, OSError) as failure:
        raise SystemExit(f"make_repository: {failure}") from None
