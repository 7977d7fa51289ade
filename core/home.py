"""Where an installation keeps its files. Only names here; whoever writes a file makes its directory."""

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings


@dataclass(frozen=True)
class Home:
    """The state directory of one installation on one host (``FORGE_HOME``)."""

    root: Path

    @property
    def node_file(self) -> Path:
        return self.root / "node"

    @property
    def runtime_lock(self) -> Path:
        return self.root / "runtime.lock"

    @property
    def tick_lock(self) -> Path:
        return self.root / "tick.lock"

    @property
    def quiet(self) -> Path:
        return self.root / "quiet"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def checkouts(self) -> Path:
        return self.root / "checkouts"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def wake_dir(self) -> Path:
        return self.root / "wake.d"

    @property
    def repository_locks(self) -> Path:
        return self.root / "repository-locks"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


def home() -> Home:
    return Home(Path(settings.FORGE_HOME))
