"""Documents by name: bad ones with what is to be found in them, good ones, and pairs that mean the same or do not."""

from typing import Any, TypeAlias

import pytest

Raw: TypeAlias = dict[str, Any]


def node(key: str, **fields: Any) -> Raw:
    return {"key": key, "command": ["true"], **fields}


def gated(*nodes: Raw, **fields: Any) -> Raw:
    """A gated document; fields that are None are left out."""
    raw = {"contract": "forge.plan/1", "name": "g", "project": "p", "nodes": list(nodes) or [node("a")], **fields}
    return {name: value for name, value in raw.items() if value is not None}


def program(*nodes: Raw, **fields: Any) -> Raw:
    return gated(*nodes, executionMode="program", **fields)


def edge(source: Any, target: Any, **fields: Any) -> Raw:
    return {"from": source, "to": target, **fields}


def claim(resource: str, access: str = "write", resource_class: str = "logical", **fields: Any) -> Raw:
    return {"resource": resource, "class": resource_class, "access": access, **fields}


def ref(artifact: str, version: Any = 1) -> Raw:
    return {"artifact": artifact, "version": version}


def history(name: str, version: int = 1, **fields: Any) -> Raw:
    return {"name": name, "version": version, "history": True, **fields}


def a_to_z(*keys: str) -> Raw:
    """A ring: each node waits for the one before, and the first for the last."""
    return gated(*map(node, keys), edges=[edge(*pair) for pair in zip(keys, (*keys[1:], keys[0]), strict=True)])


def _bad(rows: tuple[str, ...], *cases: tuple[Any, ...]) -> list[Any]:
    """rows: requirements these cases prove. A case: its name, the document, each problem to be found: code and path."""
    marks = [pytest.mark.req(*rows)] if rows else []
    return [pytest.param(raw, list(finds), id=name, marks=marks) for name, raw, *finds in cases]


BAD = [
    # the document as a whole
    *_bad(
        (),
        ("no mapping", ["forge.plan/1"], "wrong_type"),
        ("nothing", None, "wrong_type"),
        ("an unknown field", gated(nodse=[]), "unknown_field nodse"),
        ("an unknown field of a node", gated(node("a", owned_files=[])), "unknown_field nodes[0].owned_files"),
        ("an unknown field with odd letters", gated(node("a", **{"a b": 1})), 'unknown_field nodes[0]["a b"]'),
        ("a title of numbers", gated(title=7), "wrong_type title"),
        ("a title too long", gated(title="x" * 201), "too_long title"),
        ("a title with NUL", gated(title="a\0b"), "malformed title"),
        ("a title with half a character", gated(title="\ud800"), "not_unicode title"),
        ("no nodes at all", gated(nodes=None), "missing_field nodes"),
        ("an empty list of nodes", {**gated(), "nodes": []}, "empty nodes"),
        ("nodes as a mapping", {**gated(), "nodes": {"a": {}}}, "wrong_type nodes"),
        ("a node that is text", {**gated(), "nodes": ["a"]}, "wrong_type nodes[0]"),
        ("parallelism of zero", gated(parallelism=0), "out_of_range parallelism"),
        ("parallelism of 1001", gated(parallelism=1001), "out_of_range parallelism"),
        ("parallelism in halves", gated(parallelism=1.5), "wrong_type parallelism"),
        ("parallelism of truth", gated(parallelism=True), "wrong_type parallelism"),
    ),
    # identities: contract, graph, project, foundation
    *_bad(
        ("WG-02",),
        ("no contract", gated(contract=None), "contract_identity contract"),
        ("another contract", gated(contract="forge.plan/2"), "contract_identity contract"),
        ("no name", gated(name=None), "graph_identity name"),
        ("a name in capitals", gated(name="Graph"), "graph_identity name"),
        ("a name with a line end", gated(name="graph\n"), "graph_identity name"),
        ("a name of 64 characters", gated(name="g" * 64), "graph_identity name"),
        ("no project", gated(project=None), "project_identity project"),
        ("a malformed project", gated(project="a/b"), "project_identity project"),
        ("a foundation without revision", gated(foundation={}), "foundation_identity foundation.revision"),
        ("a short revision", gated(foundation={"revision": "89cda2c"}), "foundation_identity foundation.revision"),
        ("a branch as foundation", gated(foundation="main"), "foundation_identity foundation"),
    ),
    # identities: nodes
    *_bad(
        ("WG-02",),
        ("a node without key", gated({"command": ["true"]}), "node_identity nodes[0].key"),
        ("a key with a slash", gated(node("a/b")), "node_identity nodes[0].key"),
        ("a key that starts with a dash", gated(node("-a")), "node_identity nodes[0].key"),
        ("a key twice", gated(node("a"), node("b"), node("a")), "duplicate_node nodes[2].key"),
        ("keys that differ in case", gated(node("Add"), node("add")), "case_twin nodes[1].key"),
    ),
    # identities: edges
    *_bad(
        ("WG-02", "WG-04", "WG-05"),
        ("an edge without from", gated(edges=[{"to": "a"}]), "edge_identity edges[0].from"),
        ("an edge without to", gated(edges=[{"from": "a"}]), "edge_identity edges[0].to"),
        ("an edge from a number", gated(edges=[edge(1, "a")]), "edge_identity edges[0].from"),
        ("an edge from nowhere", gated(edges=[edge("x", "a")]), "dangling_edge edges[0].from"),
        ("an edge to nowhere", gated(edges=[edge("a", "x")]), "dangling_edge edges[0].to"),
        (
            "an edge between nowheres",
            gated(edges=[edge("x", "y")]),
            "dangling_edge edges[0].from",
            "dangling_edge edges[0].to",
        ),
        ("a need of nothing", gated(node("a", needs=["x"])), "dangling_edge nodes[0].needs[0]"),
        ("a malformed need", gated(node("a", needs=["x y"])), "edge_identity nodes[0].needs[0]"),
        (
            "an edge twice",
            gated(node("a"), node("b"), edges=[edge("a", "b"), edge("a", "b")]),
            "duplicate_edge edges[1]",
        ),
        (
            "an edge of two kinds",
            gated(node("a"), node("b"), edges=[edge("a", "b"), edge("a", "b", kind="always")]),
            "duplicate_edge edges[1]",
        ),
        (
            "an edge and a need",
            gated(node("b", needs=["a"]), node("a"), edges=[edge("a", "b")]),
            "duplicate_edge nodes[0].needs[0]",
        ),
        ("a need twice", gated(node("a"), node("b", needs=["a", "a"])), "duplicate_edge nodes[1].needs[1]"),
        (
            "an unknown kind",
            gated(node("a"), node("b"), edges=[edge("a", "b", kind="sucess")]),
            "unknown_value edges[0].kind",
        ),
    ),
    # cycles
    *_bad(
        ("WG-03",),
        ("a cycle of one", gated(edges=[edge("a", "a")]), "cycle edges[0]"),
        ("a node that needs itself", gated(node("a", needs=["a"])), "cycle nodes[0].needs[0]"),
        ("a cycle of two", a_to_z("a", "b"), "cycle edges[0]"),
        ("a cycle of five", a_to_z("d", "e", "a", "b", "c"), "cycle edges[2]"),
        (
            "two cycles",
            gated(*map(node, "abcd"), edges=[edge("a", "b"), edge("b", "a"), edge("c", "d"), edge("d", "c")]),
            "cycle edges[0]",
            "cycle edges[2]",
        ),
        (
            "a cycle through an artifact",
            gated(node("a", produces=[ref("x")], needs=["b"]), node("b", consumes=[ref("x")])),
            "cycle nodes[1].consumes[0]",
        ),
        (
            "a node that consumes its own",
            gated(node("a", produces=[ref("x")], consumes=[ref("x")])),
            "cycle nodes[0].consumes[0]",
        ),
    ),
    # identities: artifacts
    *_bad(
        ("WG-02", "WG-06"),
        (
            "a malformed artifact",
            gated(node("a", produces=[ref("x y")])),
            "artifact_identity nodes[0].produces[0].artifact",
        ),
        (
            "an artifact without version",
            gated(node("a", produces=[{"artifact": "x"}])),
            "artifact_identity nodes[0].produces[0].version",
        ),
        ("version zero", gated(node("a", produces=[ref("x", 0)])), "artifact_identity nodes[0].produces[0].version"),
        (
            "a version in words",
            gated(node("a", produces=[ref("x", "1")])),
            "artifact_identity nodes[0].produces[0].version",
        ),
        (
            "a malformed declared artifact",
            gated(artifacts=[{"name": "", "version": 1}]),
            "artifact_identity artifacts[0].name",
        ),
        (
            "an artifact produced twice",
            gated(node("a", produces=[ref("x")]), node("b", produces=[ref("x")])),
            "duplicate_artifact nodes[1].produces[0]",
        ),
        (
            "an artifact declared twice",
            gated(artifacts=[history("x"), history("x")]),
            "duplicate_artifact artifacts[1]",
        ),
        (
            "an artifact of history and of a node",
            gated(node("a", produces=[ref("x")]), artifacts=[history("x")]),
            "duplicate_artifact artifacts[0]",
        ),
        (
            "an artifact consumed twice",
            gated(node("a", consumes=[ref("x"), ref("x")]), artifacts=[history("x")]),
            "duplicate_artifact nodes[0].consumes[1]",
        ),
        (
            "artifacts that differ in case",
            gated(node("a", produces=[ref("Api"), ref("api", 2)])),
            "case_twin nodes[0].produces[1].artifact",
        ),
        (
            "an unknown artifact",
            gated(node("a", consumes=[ref("x")])),
            "unproduced_artifact nodes[0].consumes[0].artifact",
        ),
        (
            "a wrong version",
            gated(node("a", produces=[ref("x", 1)]), node("b", consumes=[ref("x", 2)])),
            "unproduced_version nodes[1].consumes[0].version",
        ),
        (
            "a wrong version of history",
            gated(node("a", consumes=[ref("x", 2)]), artifacts=[history("x")]),
            "unproduced_version nodes[0].consumes[0].version",
        ),
        (
            "a declared artifact nobody makes",
            gated(artifacts=[{"name": "x", "version": 1}]),
            "unproduced_artifact artifacts[0]",
        ),
        (
            "consumed after failure",
            gated(
                node("a", produces=[ref("x")]), node("b", consumes=[ref("x")]), edges=[edge("a", "b", kind="failure")]
            ),
            "edge_kind_conflict nodes[1].consumes[0]",
        ),
        (
            "consumed in any case",
            gated(
                node("a", produces=[ref("x")]), node("b", consumes=[ref("x")]), edges=[edge("a", "b", kind="always")]
            ),
            "edge_kind_conflict nodes[1].consumes[0]",
        ),
    ),
    # requirements
    *_bad(
        (),
        ("a requirement without text", gated(requirements=[{"id": "r"}]), "missing_field requirements[0].text"),
        ("a requirement without id", gated(requirements=[{"text": "t"}]), "requirement_identity requirements[0].id"),
        (
            "a requirement twice",
            gated(requirements=[{"id": "r", "text": "t"}] * 2),
            "duplicate_requirement requirements[1].id",
        ),
        (
            "requirements that differ in case",
            gated(requirements=[{"id": "r", "text": "t"}, {"id": "R", "text": "t"}]),
            "case_twin requirements[1].id",
        ),
        (
            "a requirement that is perhaps mandatory",
            gated(requirements=[{"id": "r", "text": "t", "mandatory": "yes"}]),
            "wrong_type requirements[0].mandatory",
        ),
    ),
    # commands and environment
    *_bad(
        (),
        ("no command", gated({"key": "a"}), "missing_field nodes[0].command"),
        ("a command line", gated(node("a", command="make all")), "wrong_type nodes[0].command"),
        ("an empty command", gated(node("a", command=[])), "empty nodes[0].command"),
        ("an empty argument", gated(node("a", command=["make", ""])), "empty nodes[0].command[1]"),
        ("an argument with NUL", gated(node("a", command=["a\0"])), "malformed nodes[0].command[0]"),
        ("a number as argument", gated(node("a", command=["sleep", 5])), "wrong_type nodes[0].command[1]"),
        ("a variable with a dash", gated(node("a", env={"A-B": "x"})), 'env_name nodes[0].env["A-B"]'),
        ("a variable of numbers", gated(node("a", env={"A": 1})), "wrong_type nodes[0].env.A"),
        ("a variable with NUL", gated(node("a", env={"A": "\0"})), "malformed nodes[0].env.A"),
        (
            "a variable of Forge",
            gated(node("a", env={"FORGE_ATTEMPT": "1"})),
            "reserved_name nodes[0].env.FORGE_ATTEMPT",
        ),
        (
            "a variable of Forge by default",
            gated(defaults={"env": {"FORGE_HOME": "/"}}),
            "reserved_name defaults.env.FORGE_HOME",
        ),
    ),
    # numbers
    *_bad(
        (),
        ("a deadline of zero", gated(node("a", deadlineSeconds=0)), "out_of_range nodes[0].deadlineSeconds"),
        ("a negative grace", gated(node("a", graceSeconds=-1)), "out_of_range nodes[0].graceSeconds"),
        ("no room for output", gated(node("a", outputLimitBytes=1)), "out_of_range nodes[0].outputLimitBytes"),
        ("a priority too high", gated(node("a", priority=1001)), "out_of_range nodes[0].priority"),
        ("a default priority too low", gated(defaults={"priority": -1001}), "out_of_range defaults.priority"),
        ("revisions without end", gated(node("a", maxRevisions=101)), "out_of_range nodes[0].maxRevisions"),
        ("no attempt at all", gated(node("a", retry={"attempts": 0})), "out_of_range nodes[0].retry.attempts"),
        ("an unknown retry class", gated(node("a", retry={"class": "always"})), "unknown_value nodes[0].retry.class"),
        ("a command as default", gated(defaults={"command": ["true"]}), "unknown_field defaults.command"),
    ),
    # paths
    *_bad(
        ("PX-51",),
        ("an absolute path", gated(node("a", ownedFiles=["/etc/passwd"])), "path_absolute nodes[0].ownedFiles[0]"),
        ("a path upwards", gated(node("a", ownedFiles=["src/../../x"])), "path_parent nodes[0].ownedFiles[0]"),
        ("a path with a dot", gated(node("a", ownedFiles=["./x"])), "path_not_normalised nodes[0].ownedFiles[0]"),
        (
            "a path with an empty segment",
            gated(node("a", ownedFiles=["a//b"])),
            "path_not_normalised nodes[0].ownedFiles[0]",
        ),
        (
            "a path with two slashes at its end",
            gated(node("a", ownedFiles=["a//"])),
            "path_not_normalised nodes[0].ownedFiles[0]",
        ),
        ("an empty path", gated(node("a", ownedFiles=[""])), "empty nodes[0].ownedFiles[0]"),
        ("the root", gated(node("a", ownedFiles=["/"])), "path_absolute nodes[0].ownedFiles[0]"),
        ("a path with NUL", gated(node("a", ownedFiles=["a\0b"])), "path_nul nodes[0].ownedFiles[0]"),
        ("the git directory", gated(node("a", ownedFiles=[".git/config"])), "path_git nodes[0].ownedFiles[0]"),
        ("a git directory inside, in capitals", gated(node("a", reads=["sub/.GIT"])), "path_git nodes[0].reads[0]"),
        ("a path twice", gated(node("a", ownedFiles=["a", "a"])), "duplicate_path nodes[0].ownedFiles[1]"),
        (
            "a file that is a directory",
            gated(node("a", ownedFiles=["a", "a/"])),
            "duplicate_path nodes[0].ownedFiles[1]",
        ),
        ("a name too long for a file system", gated(node("a", reads=["é" * 128])), "path_too_long nodes[0].reads[0]"),
    ),
    # claims
    *_bad(
        ("GC-03", "GC-04"),
        (
            "a claim without resource",
            gated(node("a", claims=[{"class": "logical", "access": "read"}])),
            "resource_identity nodes[0].claims[0].resource",
        ),
        (
            "a claim without access",
            gated(node("a", claims=[{"resource": "r", "class": "logical"}])),
            "missing_field nodes[0].claims[0].access",
        ),
        (
            "a resource with a space",
            gated(node("a", claims=[claim("a b")])),
            "resource_identity nodes[0].claims[0].resource",
        ),
        (
            "an unknown class",
            gated(node("a", claims=[claim("r", resource_class="virtual")])),
            "unknown_value nodes[0].claims[0].class",
        ),
        ("an unknown access", gated(node("a", claims=[claim("r", "own")])), "unknown_value nodes[0].claims[0].access"),
        (
            "an unknown mode of a claim",
            gated(node("a", claims=[claim("r", mode="friendly")])),
            "unknown_mode nodes[0].claims[0].mode",
        ),
        (
            "a claim twice",
            gated(node("a", claims=[claim("r", "read"), claim("r", "read")])),
            "duplicate_claim nodes[0].claims[1]",
        ),
        (
            "resources that differ in case",
            gated(node("a", claims=[claim("f:x")]), node("b", primary="F:x")),
            "case_twin nodes[1].primary",
        ),
        (
            "a resource of Forge",
            gated(node("a", claims=[claim("forge:queue", "read")])),
            "reserved_name nodes[0].claims[0].resource",
        ),
        (
            "units of an idea",
            gated(node("a", claims=[claim("f", units=2)])),
            "units_not_physical nodes[0].claims[0].units",
        ),
        (
            "no unit",
            gated(node("a", claims=[claim("gpu", resource_class="physical", units=0)])),
            "out_of_range nodes[0].claims[0].units",
        ),
        (
            "a read-only write",
            gated(node("a", claims=[claim("r", mode="read-only")])),
            "claim_mode_conflict nodes[0].claims[0].mode",
        ),
        (
            "a claim on an artifact it does not consume",
            gated(node("a", claims=[claim("artifact:p/x", "read", version=1)])),
            "artifact_claim_mismatch nodes[0].claims[0].resource",
        ),
        (
            "a claim on another version than it consumes",
            gated(
                node("a", consumes=[ref("x")], claims=[claim("artifact:p/x", "read", version=2)]),
                artifacts=[history("x")],
            ),
            "artifact_claim_mismatch nodes[0].claims[0].version",
        ),
        (
            "a claim on no version of what it consumes",
            gated(node("a", consumes=[ref("x")], claims=[claim("artifact:p/x", "read")]), artifacts=[history("x")]),
            "artifact_claim_mismatch nodes[0].claims[0].version",
        ),
    ),
    # modes
    *_bad(
        ("GC-04", "GC-05", "PX-37"),
        ("an unknown execution mode", gated(executionMode="fast"), "unknown_mode executionMode"),
        (
            "an unknown workspace mode",
            gated(executionMode="program", workspaceMode="own"),
            "unknown_mode workspaceMode",
        ),
        ("a workspace mode without mode", gated(workspaceMode="shared"), "workspace_mode_conflict workspaceMode"),
        (
            "a workspace mode in gated mode",
            gated(executionMode="gated", workspaceMode="isolated"),
            "workspace_mode_conflict workspaceMode",
        ),
        ("an unknown work mode", gated(node("a", workMode="readonly")), "unknown_mode nodes[0].workMode"),
        (
            "a write claim of a reader",
            gated(node("a", workMode="read-only", claims=[claim("r")])),
            "write_in_read_only nodes[0].claims[0].access",
        ),
        (
            "an exclusive claim of a reader",
            program(node("a", workMode="read-only", claims=[claim("r", "exclusive")])),
            "write_in_read_only nodes[0].claims[0].access",
        ),
        (
            "files of a reader",
            gated(node("a", workMode="read-only", ownedFiles=[])),
            "write_in_read_only nodes[0].ownedFiles",
        ),
        (
            "a primary of a reader",
            gated(node("a", workMode="read-only", primary="r")),
            "write_in_read_only nodes[0].primary",
        ),
        (
            "a cooperative read of a reader",
            gated(node("a", workMode="read-only", claims=[claim("r", "read", mode="cooperative")])),
            "claim_mode_conflict nodes[0].claims[0].mode",
        ),
        ("a gated writer without primary", gated(node("a", primary=None)), "primary_missing nodes[0].primary"),
        (
            "a gated writer with two primaries",
            gated(node("a", claims=[claim("r"), claim("s", "exclusive")])),
            "primary_ambiguous nodes[0].claims",
        ),
        (
            "a primary that is only read",
            gated(node("a", primary="r", claims=[claim("r", "read")])),
            "primary_conflict nodes[0].claims[0].access",
        ),
        ("a malformed primary", gated(node("a", primary="a b")), "resource_identity nodes[0].primary"),
        ("an artifact as primary", gated(node("a", primary="artifact:p/x")), "reserved_name nodes[0].primary"),
        (
            "an isolated writer without files",
            program(node("a"), workspaceMode="isolated"),
            "isolated_without_files nodes[0].ownedFiles",
        ),
        (
            "an isolated integrator",
            program(node("a", ownedFiles=[]), workspaceMode="isolated"),
            "isolated_without_files nodes[0].ownedFiles",
        ),
        (
            "an isolated writer of a directory",
            program(node("a", ownedFiles=["src/"]), workspaceMode="isolated"),
            "isolated_directory nodes[0].ownedFiles[0]",
        ),
        (
            "an isolated writer with malformed files",
            program(node("a", ownedFiles="src"), workspaceMode="isolated"),
            "wrong_type nodes[0].ownedFiles",
        ),
    ),
    # the format of verdicts
    *_bad(
        ("PX-50",),
        ("a verdict format", gated(verdictFormat="json"), "verdict_format_override verdictFormat"),
        (
            "a verdict format of a node",
            program(node("a", verdictFormat={})),
            "verdict_format_override nodes[0].verdictFormat",
        ),
        (
            "a verdict format by default",
            gated(defaults={"verdict_format": 1}),
            "verdict_format_override defaults.verdict_format",
        ),
        (
            "a verdict format of a claim",
            gated(node("a", claims=[claim("r", verdictFormat="x")])),
            "verdict_format_override nodes[0].claims[0].verdictFormat",
        ),
        (
            "a verdict format by the environment",
            gated(node("a", env={"FORGE_VERDICT_FORMAT": "x"})),
            "verdict_format_override nodes[0].env.FORGE_VERDICT_FORMAT",
        ),
    ),
    # several at once: each once, in the order of their paths
    *_bad(
        (),
        (
            "a misspelt field beside a cycle",
            {**a_to_z("b", "a"), "parralelism": 3},
            "cycle edges[1]",
            "unknown_field parralelism",
        ),
        (
            "a node without command still has a key and an artifact",
            gated({"key": "a", "produces": [ref("x")]}, node("b", consumes=[ref("x")], needs=["a"])),
            "missing_field nodes[0].command",
        ),
        (
            "the tenth after the second",
            gated(*[node(f"n{number}", priority=5000 if number in (2, 10) else 0) for number in range(11)]),
            "out_of_range nodes[2].priority",
            "out_of_range nodes[10].priority",
        ),
    ),
]

GOOD: list[tuple[str, Raw]] = [
    ("the smallest", gated()),
    ("pure ordering", gated(node("a"), node("b"), edges=[edge("a", "b")])),
    (
        "literal names",
        gated(node("a", ownedFiles=["*.py", "-x", ":(top)a", "a b", "a\nb", "~", "a\\b", "..a", ".gitignore"])),
    ),
    ("a competitive claim", gated(node("a", workMode="competitive", primary="f", claims=[claim("f", isolated=True)]))),
    ("a named primary among two writes", gated(node("a", primary="r", claims=[claim("r"), claim("s")]))),
    (
        "a device for a reader alone",
        gated(node("a", workMode="read-only", claims=[claim("gpu", "exclusive", "physical")])),
    ),
    ("a program writer without primary", program(node("a", primary=None, claims=[claim("r"), claim("s")]))),
    ("an isolated writer", program(node("a", ownedFiles=["src/a.py"]), workspaceMode="isolated")),
    ("an isolated reader", program(node("a", workMode="read-only"), workspaceMode="isolated")),
    ("history", gated(node("a", consumes=[ref("x", 3)]), artifacts=[history("x", 3)])),
    (
        "a newer version from an older",
        gated(node("a", consumes=[ref("x", 1)], produces=[ref("x", 2)]), artifacts=[history("x", 1)]),
    ),
    ("whole numbers with a point", gated(node("a", priority=3.0), parallelism=2.0)),
    ("keys alike but not equal", gated(node("a1"), node("a-1"), node("a_1"))),
]

SPELLINGS: list[tuple[str, Raw, Raw]] = [
    (
        "needs and edges",
        gated(node("a"), node("b", needs=["a"])),
        gated(node("a"), node("b"), edges=[edge("a", "b", kind="success")]),
    ),
    (
        "defaults and fields",
        gated(defaults={"priority": 7, "env": {"A": "1"}}),
        gated(node("a", priority=7, env={"A": "1"})),
    ),
    (
        "a default that nobody uses",
        gated(node("a", priority=1), defaults={"priority": 7}),
        gated(node("a", priority=1)),
    ),
    (
        "numbers of the contract",
        gated(),
        gated(node("a", deadlineSeconds=3600, graceSeconds=5, outputLimitBytes=1048576, priority=0, maxRevisions=3)),
    ),
    (
        "words of the contract",
        gated(),
        gated(node("a", workMode="cooperative", allowEmpty=False, retry={"attempts": 3}, stdin="", title=""), title=""),
    ),
    (
        "empty lists",
        gated(),
        gated(
            node("a", reads=[], claims=[], needs=[], env={}, outsideEffects=[]), edges=[], artifacts=[], requirements=[]
        ),
    ),
    ("shared by default", program(), program(workspaceMode="shared")),
    ("the default primary", gated(), gated(node("a", primary="node:p/g/a"))),
    ("a primary and its claim", gated(node("a", primary="f")), gated(node("a", claims=[claim("f")]))),
    (
        "a primary with its claim",
        gated(node("a", primary="f")),
        gated(node("a", primary="f", claims=[claim("f", mode="cooperative", isolated=True)])),
    ),
    (
        "no primary of a reader",
        gated(node("a", workMode="read-only")),
        gated(node("a", workMode="read-only", primary=None)),
    ),
    (
        "one unit",
        gated(node("a", claims=[claim("gpu", "write", "physical")])),
        gated(node("a", claims=[claim("gpu", "write", "physical", units=1)])),
    ),
    (
        "a declaration that adds nothing",
        gated(node("a", produces=[ref("x")])),
        gated(
            node("a", produces=[ref("x")]), artifacts=[{"name": "x", "version": 1, "additive": False, "history": False}]
        ),
    ),
    ("a whole number with a point", gated(node("a", priority=2)), gated(node("a", priority=2.0))),
    (
        "mandatory by default",
        gated(requirements=[{"id": "r", "text": "t"}]),
        gated(requirements=[{"id": "r", "text": "t", "mandatory": True}]),
    ),
]

DIFFERENT: list[tuple[str, Raw, Raw]] = [
    ("no files and unrestricted", gated(), gated(node("a", ownedFiles=[]))),
    ("file and directory", gated(node("a", ownedFiles=["x"])), gated(node("a", ownedFiles=["x/"]))),
    ("no mode and gated", gated(), gated(executionMode="gated")),
    (
        "shared and isolated",
        program(node("a", ownedFiles=["x"])),
        program(node("a", ownedFiles=["x"]), workspaceMode="isolated"),
    ),
    ("order of arguments", gated(node("a", command=["x", "y"])), gated(node("a", command=["y", "x"]))),
    (
        "kinds of edges",
        gated(node("a"), node("b"), edges=[edge("a", "b")]),
        gated(node("a"), node("b"), edges=[edge("a", "b", kind="always")]),
    ),
    ("a primary in a program", program(), program(node("a", primary="node:p/g/a"))),
    (
        "a default primary beside a write",
        gated(node("a", claims=[claim("f")])),
        gated(node("a", primary="node:p/g/a", claims=[claim("f")])),
    ),
    (
        "a claim that says more",
        gated(node("a", primary="f")),
        gated(node("a", primary="f", claims=[claim("f", version=2)])),
    ),
    ("no grace", gated(), gated(node("a", graceSeconds=0))),
    ("no revision", gated(), gated(node("a", maxRevisions=0))),
    ("Unicode forms", gated(title="\u00e9"), gated(title="e\u0301")),
]

UNREADABLE: list[tuple[str, str | bytes, str, str]] = [
    ("nothing", "", "empty_document", ""),
    ("blanks", b" \n\t", "empty_document", ""),
    ("comments", "# nothing here\n", "empty_document", ""),
    ("bytes that are no UTF-8", b"name: \xff", "not_utf8", ""),
    ("UTF-16", "name: g".encode("utf-16"), "not_utf8", ""),
    ("half a character", "name: \ud800", "not_utf8", ""),
    ("half a character in JSON", r'{"a": ["\ud800"]}', "not_unicode", "a[0]"),
    ("half a character in a key", r'{"\udc00": 1}', "not_unicode", ""),
    ("broken JSON", '{"a": 1', "syntax_error", ""),
    ("broken YAML", "a: [1\nb: 2", "syntax_error", ""),
    ("a control character", "a: \x01", "syntax_error", ""),
    ("two documents", "a: 1\n---\nb: 2\n", "several_documents", ""),
    ("a JSON key twice", '{"a": {"b": 1, "b": 2}}', "duplicate_key", "a.b"),
    ("a YAML key twice", "a:\n  - b: 1\n    b: 2\n", "duplicate_key", "a[0].b"),
    ("a YAML key in two spellings", "'1': a\n1: b\n", "duplicate_key", '["1"]'),
    ("an anchor", "a: &x 1", "yaml_alias", "a"),
    ("an alias", "a: *x", "yaml_alias", "a"),
    ("a merge", "a: &x {b: 1}\nc:\n  <<: *x\n", "yaml_alias", "a"),
    ("an anchored key", "&x a: 1", "yaml_alias", ""),
    ("a tag", "a: !!python/object/apply:os.system [x]", "yaml_tag", "a"),
    ("a tagged key", "!!str a: 1", "yaml_tag", ""),
    ("a list as key", "? [a]\n: 1\n", "key_not_text", ""),
    ("NaN", '{"a": NaN}', "number_out_of_range", ""),
    ("an infinity", '{"a": -Infinity}', "number_out_of_range", ""),
    ("a number beyond every float", '{"a": 1e999}', "number_out_of_range", "a"),
    ("a number beyond every float in YAML", "a: 1e999", "number_out_of_range", "a"),
    ("a whole number beyond 2**53", '{"a": 9007199254740992}', "number_out_of_range", "a"),
    ("a number of five thousand digits", '{"a": ' + "9" * 5000 + "}", "number_out_of_range", ""),
    ("a number of five thousand digits in YAML", "a: " + "9" * 5000, "number_out_of_range", "a"),
    ("JSON too deep", "[" * 33 + "]" * 33, "too_deep", "[0]" * 32),
    ("JSON far too deep", "[" * 100_000, "too_deep", ""),
    ("YAML too deep", "a: " + "[" * 32 + "]" * 32, "too_deep", "a" + "[0]" * 31),
]
