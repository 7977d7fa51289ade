"""Download the published source of a library, check its digest, and make it a repository.

Usage: make_repository.py DIRECTORY

Two commits: the library as published, and the style that the work is to reach: style.toml, there
under the name ruff.toml (here it would rule our own files).
"""

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.common import Failure, commit_all, output, start_repository

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "library.txt"  # version and digest are pinned there
DOWNLOAD_S = 300.0


def make_repository(directory: Path, *, python: str | Path = sys.executable) -> str:
    """Make it in ``directory``, which must not exist yet; the id of the latest commit on main.

    python: an interpreter with pip
    """
    start_repository(directory)
    with tempfile.TemporaryDirectory() as scratch:
        source = unpack(download(Path(scratch), python), Path(scratch, "source"))
        for path in source.iterdir():
            shutil.move(path, directory / path.name)
        commit_all(directory, f"Import {source.name} as published", when="2024-01-01T12:00:00+0000")
    shutil.copyfile(HERE / "style.toml", directory / "ruff.toml")
    return commit_all(directory, "Say which style the work is to reach", when="2024-01-02T12:00:00+0000")


def download(directory: Path, python: str | Path) -> Path:
    """The source distribution; pip refuses it when its digest is another than the pinned one."""
    options = (
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        "boltons",
        "--require-hashes",
    )
    output(
        [python, "-m", "pip", "download", *options, "-r", LIBRARY, "-d", directory],
        timeout=DOWNLOAD_S,
    )
    (archive,) = directory.glob("*.tar.gz")
    return archive


def unpack(archive: Path, directory: Path) -> Path:
    """The one directory inside the archive."""
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later: nothing outside, no devices, sane modes
            content.extraction_filter = tarfile.data_filter
        content.extractall(directory)
    (top,) = directory.iterdir()
    return top


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    try:
        print(make_repository(Path(sys.argv[1])))
    except (Failure, OSError) as failure:
        raise SystemExit(f"make_repository: {failure}") from None
