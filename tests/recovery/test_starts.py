"""A start is recorded when it happens, not when the command ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import wake
from graphs.models import Node
from graphs.services import cancel_graph
from recovery import flows, selectors
from tests.running import Forge, Repo, gated, writer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def test_a_start_that_follows_its_checkout_is_recorded_by_the_tick_that_made_it(
    forge: Forge, repo: Repo, tmp_path: Path
) -> None:
    """The tick changes no row when it launches after an effect; it must wait for the shim's word all the same."""
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "sleep 600", "src/a", graceSeconds=1)))
    forge.tick.turn({wake.TICK})
    for repository in selectors.repositories_with_due_effects(forge.host.pk):
        flows.run_effects(repository)
    assert Node.objects.get().state == "queued"

    forge.tick.run()

    assert Node.objects.get().state == "running"
    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    forge.until_ended(graph)
