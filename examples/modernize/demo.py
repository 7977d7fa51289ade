"""The demo on real code (`make demo-real`): ruff and a codemod modernize a published library, its own tests decide.

Everything happens in .demo/modernize (or DEMO_DIR/modernize), through the `forge` console. Needs the package index for
the library and the tools.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.common import Demo, fill_in, fresh_directory, main, output, say
from examples.modernize.make_repository import make_repository

HERE = Path(__file__).resolve().parent
WRITERS = ("fstrings", "library", "tests", "docs", "misc", "lint")
INSTALL_S = 600.0


def prepare(directory: Path, *, database_url: str = "") -> Demo:
    """Tools, a repository with the library, a fresh Forge that knows it, and the graph; nothing runs yet."""
    directory = fresh_directory(directory)
    tools, repository = directory / "tools", directory / "repository"
    install_tools(tools)
    python = tools / "bin" / "python"
    tests = (str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    demo = Demo(
        directory=directory,
        repository=repository,
        document=fill_in(
            HERE / "graph.yaml",
            directory / "graph.yaml",
            RUFF=tools / "bin" / "ruff",
            PYTHON=python,
            FSTRINGS=HERE / "fstrings.py",
            REVIEW_API=HERE / "review_api.py",
        ),
        graph="modernize",
        project="boltons",
        base=make_repository(repository, python=python),
        landings=len(WRITERS),
        tests=tests,
        database_url=database_url,
    )
    demo.install({"tests": tests})
    return demo


def install_tools(directory: Path) -> None:
    """An environment of their own, so that the tools neither meet Forge's packages nor the user's."""
    say(f"  installing ruff, libcst and pytest into {directory}")
    output([sys.executable, "-m", "venv", directory])
    python, wanted = str(directory / "bin" / "python"), str(HERE / "tools.txt")
    options = ("--quiet", "--disable-pip-version-check")
    output([python, "-m", "pip", "install", *options, "-r", wanted], timeout=INSTALL_S)


if __name__ == "__main__":
    raise SystemExit(main("real tools modernize a published library", "modernize", prepare))
