"""Identities and what refers to them: node keys, artifact versions, edges, cycles."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from graphs.documents.model import Artifact, ArtifactRef, Limits
from graphs.documents.report import ROOT, Path, Report, quoted, suggestion
from graphs.documents.structure import INVALID
from graphs.ordering import Edge, EdgeKind, find_cycles

Shape: TypeAlias = Mapping[str, Any]  # what check_structure gave back: well formed, perhaps incomplete
Pair: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Links:
    """What the references of a document resolve to."""

    edges: tuple[Edge, ...]
    artifacts: tuple[Artifact, ...]


def items_of(shape: Shape, name: str, path: Path) -> Iterator[tuple[Any, Path]]:
    """The well-formed items of a list field, each with its place in the document as it was written."""
    for index, item in enumerate(shape.get(name, ())):
        if item is not INVALID:
            yield item, ((path, name), index)


def link(shape: Shape, report: Report, limits: Limits) -> Links:
    """Resolve every reference, and report those that lead nowhere, twice or in a circle."""
    linker = _Linker(report)
    linker.read_keys(shape)
    linker.read_artifacts(shape)
    written = len(shape.get("edges", ())) + sum(
        len(node.get("needs", ())) for node, _ in items_of(shape, "nodes", ROOT)
    )
    if written > limits.max_edges:  # a flood ends here, before anything is made of each
        linker.report_flood(written, limits)
        return linker.links()
    linker.read_edges(shape)
    linker.read_consumers(shape)
    linker.check_order(limits)
    return linker.links()


def report_case_twins(first: dict[str, tuple[str, Path]], name: str, path: Path, report: Report, what: str) -> None:
    """Report ``name`` if an earlier one differs from it only in case. ``first``: the earlier ones, case folded."""
    earlier, _ = first.setdefault(name.casefold(), (name, path))
    if earlier != name:
        report.add("case_twin", path, f"{what} {quoted(name)} differs from {quoted(earlier)} only in case")


@dataclass(slots=True)
class _Linker:
    report: Report
    keys: dict[str, Path] = field(default_factory=dict)
    produced: dict[ArtifactRef, str | None] = field(default_factory=dict)  # None: by a node whose key is malformed
    history: set[ArtifactRef] = field(default_factory=set)
    additive: set[ArtifactRef] = field(default_factory=set)
    versions: dict[str, list[int]] = field(default_factory=dict)  # of every artifact that there is, sorted
    edges: dict[Pair, EdgeKind] = field(default_factory=dict)
    written_at: dict[Pair, Path] = field(default_factory=dict)

    def read_keys(self, shape: Shape) -> None:
        folded: dict[str, tuple[str, Path]] = {}
        for node, path in items_of(shape, "nodes", ROOT):
            key = node.get("key")
            if key is None:
                continue
            place: Path = (path, "key")
            if key in self.keys:
                self.report.add("duplicate_node", place, f"another node has the key {quoted(key)}")
            self.keys.setdefault(key, path)
            report_case_twins(folded, key, place, self.report, "the key")

    def read_artifacts(self, shape: Shape) -> None:
        folded: dict[str, tuple[str, Path]] = {}
        for node, path in items_of(shape, "nodes", ROOT):
            for item, place in items_of(node, "produces", path):
                ref = _ref(item)
                if ref in self.produced:
                    self.report.add("duplicate_artifact", place, f"{_named(ref)} is produced twice")
                self.produced.setdefault(ref, node.get("key"))
                report_case_twins(folded, ref.artifact, (place, "artifact"), self.report, "the artifact")
        declared: set[ArtifactRef] = set()
        for item, place in items_of(shape, "artifacts", ROOT):
            ref = ArtifactRef(item["name"], int(item["version"]))
            report_case_twins(folded, ref.artifact, (place, "name"), self.report, "the artifact")
            self._declare(ref, item, place, is_repeated=ref in declared)
            declared.add(ref)
        for ref in sorted({*self.produced, *self.history}):
            self.versions.setdefault(ref.artifact, []).append(ref.version)

    def _declare(self, ref: ArtifactRef, item: Shape, place: Path, *, is_repeated: bool) -> None:
        if is_repeated:
            self.report.add("duplicate_artifact", place, f"{_named(ref)} is declared twice")
        elif item.get("history", False):
            self.history.add(ref)
            if ref in self.produced:
                self.report.add("duplicate_artifact", place, f"{_named(ref)} is history, and yet a node produces it")
        elif ref not in self.produced:
            self.report.add(
                "unproduced_artifact", place, f"no node produces {_named(ref)}", "accepted before? say `history: true`"
            )
        if item.get("additive", False):
            self.additive.add(ref)

    def read_edges(self, shape: Shape) -> None:
        for item, place in items_of(shape, "edges", ROOT):
            source, target = item["from"], item["to"]
            if self._ends_exist(((source, (place, "from")), (target, (place, "to")))):
                self._add((source, target), EdgeKind(item.get("kind", EdgeKind.SUCCESS)), place)
        for node, path in items_of(shape, "nodes", ROOT):
            for source, place in items_of(node, "needs", path):
                if self._ends_exist(((source, place),)) and "key" in node:
                    self._add((source, node["key"]), EdgeKind.SUCCESS, place)

    def _ends_exist(self, ends: tuple[tuple[str, Path], ...]) -> bool:
        missing = [(key, place) for key, place in ends if key not in self.keys]
        for key, place in missing:
            message = f"there is no node {quoted(key)}"
            self.report.add("dangling_edge", place, message, partial(suggestion, key, self.keys))
        return not missing

    def _add(self, pair: Pair, kind: EdgeKind, place: Path) -> None:
        if pair in self.edges:
            self.report.add("duplicate_edge", place, f"the edge {_arrow(pair)} is written twice", "keep one of them")
            return
        self.edges[pair] = kind
        self.written_at[pair] = place

    def read_consumers(self, shape: Shape) -> None:
        for node, path in items_of(shape, "nodes", ROOT):
            seen: set[ArtifactRef] = set()
            for item, place in items_of(node, "consumes", path):
                ref = _ref(item)
                if ref in seen:
                    self.report.add("duplicate_artifact", place, f"{_named(ref)} is consumed twice")
                    continue
                seen.add(ref)
                if "key" in node:
                    self._consume(ref, node["key"], place)

    def _consume(self, ref: ArtifactRef, consumer: str, place: Path) -> None:
        if ref in self.history:
            return
        if ref not in self.produced:
            self._report_unproduced(ref, place)
            return
        producer = self.produced[ref]
        if producer is None:
            return
        kind = self.edges.get((producer, consumer))
        if kind is None:
            self._add((producer, consumer), EdgeKind.SUCCESS, place)
        elif kind is not EdgeKind.SUCCESS:
            self.report.add(
                "edge_kind_conflict",
                place,
                f"{_named(ref)} exists only after {quoted(producer)} succeeded, but the edge between them waits for "
                f"`{kind}`",
                "remove the edge, or consume nothing of it",
            )

    def _report_unproduced(self, ref: ArtifactRef, place: Path) -> None:
        message = f"no node produces {_named(ref)}"
        if versions := self.versions.get(ref.artifact):
            there_is = f"there is version {', '.join(map(str, versions[:10]))}"
            self.report.add("unproduced_version", (place, "version"), message, there_is)
        else:
            self.report.add("unproduced_artifact", (place, "artifact"), message, partial(self._artifact_hint, ref))

    def _artifact_hint(self, ref: ArtifactRef) -> str:
        near = suggestion(ref.artifact, self.versions)
        return near or "accepted before? declare it in `artifacts` with `history: true`"

    def report_flood(self, count: int, limits: Limits) -> None:
        message = f"{count} edges, counting `needs` and `consumes`; a graph has at most {limits.max_edges}"
        self.report.add("too_many_edges", (ROOT, "edges"), message)

    def check_order(self, limits: Limits) -> None:
        if len(self.edges) > limits.max_edges:
            self.report_flood(len(self.edges), limits)
            return
        for cycle in find_cycles(self.keys, (Edge(*pair) for pair in self.edges)):
            around = (*cycle, cycle[0])
            self.report.add(
                "cycle",
                self.written_at[around[0], around[1]],
                f"{' -> '.join(around[:50])}{' ...' if len(around) > 50 else ''}: each waits for the one before it",
                "remove one of these edges",
            )

    def links(self) -> Links:
        artifacts = [
            Artifact(ref.artifact, ref.version, ref in self.additive, producer)
            for ref, producer in self.produced.items()
        ]
        artifacts += [
            Artifact(ref.artifact, ref.version, ref in self.additive) for ref in self.history - self.produced.keys()
        ]
        return Links(
            edges=tuple(Edge(source, target, kind) for (source, target), kind in sorted(self.edges.items())),
            artifacts=tuple(sorted(artifacts, key=lambda artifact: (artifact.name, artifact.version))),
        )


def _ref(item: Shape) -> ArtifactRef:
    return ArtifactRef(item["artifact"], int(item["version"]))


def _named(ref: ArtifactRef) -> str:
    return f"{ref.artifact} version {ref.version}"


def _arrow(pair: Pair) -> str:
    return f"{pair[0]} -> {pair[1]}"
