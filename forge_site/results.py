"""The result document as a file: what a program reads when a graph has ended."""

from __future__ import annotations

import json
from pathlib import Path

from core.files import write_atomically
from core.home import home
from graphs.models import Graph
from graphs.selectors import result


def result_file(graph: Graph) -> Path:
    return home().results / str(graph.pk) / "result.json"


def write_result(graph: Graph, path: Path | None = None) -> Path:
    """Write it whole or not at all, and return where. path: instead of its place in the home"""
    path = path or result_file(graph)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(result(graph), indent=2) + "\n").encode(), mode=0o644)
    return path
