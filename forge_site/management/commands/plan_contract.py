"""forge plan_contract"""

from __future__ import annotations

from typing import Any

from forge_site.management.base import ForgeCommand
from graphs.documents import plan_contract_text


class Command(ForgeCommand):
    help = (
        "Print the JSON Schema that a graph document must follow. Editors check and complete documents with it; `forge run`\n"
        "also checks what a schema cannot say: cycles, unknown nodes, overlapping writers."
    )
    examples = ("forge plan_contract > forge.schema.json",)
    needs_home = False

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(plan_contract_text(), ending="")
