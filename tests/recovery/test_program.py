"""Programs in a shared workspace, end to end: real processes, no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.models import Node
from jobs.models import Attempt
from tests.running import Forge, program, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def test_a_chain_runs_in_order_and_completes(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(
            {"key": "a", "command": ["sh", "-c", "echo a >> order"], "ownedFiles": ["order"]},
            {"key": "b", "command": ["sh", "-c", "echo b >> order"], "ownedFiles": ["order"], "needs": ["a"]},
            {"key": "c", "command": ["sh", "-c", "echo c >> order"], "ownedFiles": ["order"], "needs": ["b"]},
        )
    )

    assert forge.until_ended(graph) == "completed"

    assert (tmp_path / "order").read_text().split() == ["a", "b", "c"]
    assert states(graph) == {"a": "succeeded", "b": "succeeded", "c": "succeeded"}
    assert Attempt.objects.count() == 3


@pytest.mark.req("PX-20", "PX-22")
def test_a_failure_skips_exactly_what_depends_on_it(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(
            {"key": "bad", "command": ["false"], "workMode": "read-only"},
            {"key": "behind", "command": ["true"], "workMode": "read-only", "needs": ["bad"]},
            {"key": "far-behind", "command": ["true"], "workMode": "read-only", "needs": ["behind"]},
            {"key": "good", "command": ["true"], "workMode": "read-only"},
            {"key": "after-good", "command": ["true"], "workMode": "read-only", "needs": ["good"]},
        )
    )

    assert forge.until_ended(graph) == "partial"

    assert states(graph) == {
        "bad": "failed",
        "good": "succeeded",
        "after-good": "succeeded",
        "behind": "skipped",
        "far-behind": "skipped",
    }
    assert Node.objects.get(key="behind").outcome["node"] == "bad"


@pytest.mark.req("PX-20")
def test_a_failure_at_the_head_of_a_long_chain_skips_all_of_it_and_is_named_as_the_cause(
    forge: Forge, tmp_path: Path
) -> None:
    forge.add_project("p", tmp_path, plain=True)
    chain = [
        {"key": f"n{i}", "command": ["true"], "workMode": "read-only", "needs": [f"n{i - 1}"] if i else ["bad"]}
        for i in range(1500)  # deeper than Python's stack
    ]
    graph = forge.admit(program({"key": "bad", "command": ["false"], "workMode": "read-only"}, *chain))

    assert forge.until_ended(graph) == "partial"

    assert Node.objects.filter(graph=graph, state="skipped").count() == 1500
    assert Node.objects.get(graph=graph, key="n1499").outcome["node"] == "bad"
