"""forge plan_contract"""

from __future__ import annotations

from typing import Any

from forge_site.management.base import ForgeCommand
from graphs.documents import plan_contract_text


class Command(ForgeCommand):
    help = "Print the JSON Schema that a graph document must follow."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(plan_contract_text())
