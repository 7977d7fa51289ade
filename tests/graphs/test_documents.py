"""Graph documents: what is refused and with which words, what is equal, what stays as it was written."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs.documents import (
    Access,
    Artifact,
    Claim,
    Limits,
    Node,
    ResourceClass,
    RetryClass,
    WorkMode,
    WorkspaceMode,
    canonical,
    digest,
    load,
    node_from_spec,
    node_spec,
    parse,
    plan_contract,
    plan_contract_text,
    to_document,
)
from graphs.documents.report import Report, shown
from graphs.documents.structure import check_structure
from graphs.errors import PROBLEM_LIMIT, DocumentInvalid, Problem
from graphs.ordering import Edge, EdgeKind
from graphs.states import ExecutionMode
from tests.graphs.documents.cases import (
    BAD,
    DIFFERENT,
    GOOD,
    SPELLINGS,
    UNREADABLE,
    Raw,
    a_to_z,
    claim,
    edge,
    gated,
    history,
    node,
    program,
    ref,
)

FIXTURES = Path(__file__).parent / "documents"
PROGRAM = load((FIXTURES / "calculator_program.yaml").read_bytes())


def problems(action: Callable[[], object]) -> tuple[Problem, ...]:
    try:
        action()
    except DocumentInvalid as error:
        return error.problems
    return ()


def found(raw: Any, **options: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in problems(lambda: parse(raw, **options))]


@pytest.mark.parametrize(("raw", "expected"), BAD)
def test_a_bad_document_is_refused_with_code_and_path(raw: Any, expected: list[str]) -> None:
    before = copy.deepcopy(raw)

    assert [f"{code} {path}".strip() for code, path in found(raw)] == expected

    assert raw == before


def test_the_table_of_bad_documents_is_long_and_its_names_are_unique() -> None:
    assert len({case.id for case in BAD}) == len(BAD) >= 60


@pytest.mark.req("WG-07", "GC-05", "PX-51")
@pytest.mark.parametrize("raw", [case[1] for case in GOOD], ids=[case[0] for case in GOOD])
def test_a_good_document_is_accepted_and_round_trips(raw: Raw) -> None:
    document = parse(raw)

    assert parse(to_document(document)) == document
    assert canonical(parse(load(canonical(document)))) == canonical(document)


@pytest.mark.req("WG-07")
def test_an_ordering_edge_is_legal_but_a_declared_artifact_must_exist() -> None:
    raw = gated(node("a"), node("b"), edges=[edge("a", "b")])
    assert found(raw) == []

    raw["nodes"][1]["consumes"] = [ref("ghost")]
    assert found(raw) == [("unproduced_artifact", "nodes[1].consumes[0].artifact")]


@pytest.mark.req("WG-02")
def test_a_document_for_another_project_is_refused() -> None:
    assert found(gated(project="calc"), project="calc") == []
    assert found(gated(project="calc"), project="books") == [("wrong_project", "project")]


@pytest.mark.req("WG-03")
@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (gated(edges=[edge("a", "a")]), "a -> a"),
        (a_to_z("b", "a"), "a -> b -> a"),
        (a_to_z("d", "e", "a", "b", "c"), "a -> b -> c -> d -> e -> a"),
    ],
)
def test_the_nodes_of_a_cycle_are_named(raw: Raw, named: str) -> None:
    (problem,) = problems(lambda: parse(raw))

    assert named in problem.message


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (gated(node("a", owned_files=[])), "did you mean 'ownedFiles'?"),
        (gated(node("a", comand=["x"])), "did you mean 'command'?"),
        (gated(node("a", workMode="readonly")), "did you mean 'read-only'?"),
        (gated(node("build"), node("test", needs=["biuld"])), "did you mean 'build'?"),
        (gated(node("a", command=["sleep", 5])), "put it in quotes"),
        (gated(executionMode="fast"), "one of gated, program"),
        (gated(node("a", command="make")), 'for example ["python3", "tools/worker.py", "add"]'),
        (gated(node("a", produces=[ref("api")]), node("b", consumes=[ref("api", 2)])), "there is version 1"),
        (gated(zzz=1), ""),
    ],
)
def test_a_hint_says_what_to_write_instead(raw: Raw, hint: str) -> None:
    assert [problem.hint for problem in problems(lambda: parse(raw))] == [hint]


def test_problems_are_capped_with_a_note_and_keep_their_order() -> None:
    raw = gated(edges=[edge(f"x{number}", "a") for number in range(PROBLEM_LIMIT + 23)])

    with pytest.raises(DocumentInvalid) as caught:
        parse(raw)

    assert [problem.path for problem in caught.value.problems] == [f"edges[{n}].from" for n in range(PROBLEM_LIMIT)]
    assert caught.value.omitted == 23
    assert "123 problems" in str(caught.value)
    assert f"only the first {PROBLEM_LIMIT}" in str(caught.value)
    assert caught.value.data["problems"][0]["code"] == "dangling_edge"
    assert json.dumps(caught.value.data)


def test_the_order_of_problems_does_not_depend_on_the_order_of_keys() -> None:
    raw = {"zebra": 1, **a_to_z("b", "a"), "apple": 1, "parallelism": -1, "title": 4}
    expected = found(raw)

    for seed in range(20):
        items = list(raw.items())
        random.Random(seed).shuffle(items)
        assert found(dict(items)) == expected


# --- what a document means -------------------------------------------------------------------------------------------


def test_a_document_is_folded_into_its_model() -> None:
    document = parse(PROGRAM)
    nodes = {each.key: each for each in document.nodes}

    assert document.is_program
    assert document.workspace_mode is WorkspaceMode.SHARED
    assert document.foundation == "89cda2c6f5a1d0b3e4c7a8b9d2e1f0a3b4c5d6e7"
    assert list(nodes) == ["add", "combine", "mul", "report", "review-1", "sub"]
    assert document.edges == (
        Edge("add", "combine"),
        Edge("combine", "report", EdgeKind.ALWAYS),
        Edge("combine", "review-1"),
        Edge("mul", "combine"),
        Edge("review-1", "report", EdgeKind.FAILURE),
        Edge("sub", "combine"),
    )
    assert document.artifacts == (
        Artifact("add-module", 1, producer="add"),
        Artifact("style-guide", 4),
        Artifact("sub-module", 2, additive=True, producer="sub"),
    )
    assert dict(nodes["add"].env) == {"LANG": "C.UTF-8", "MODE": "0755"}
    assert (nodes["add"].deadline_s, nodes["sub"].deadline_s) == (1800, 60)
    assert (nodes["add"].priority, nodes["sub"].priority) == (5, -3)
    assert nodes["add"].retry.retry_class is RetryClass.IDEMPOTENT
    assert nodes["add"].owned_files == ("*.py", "-x", ":(top)a", "a b", "src/add.py")
    assert nodes["combine"].owned_files == ()
    assert nodes["report"].owned_files is None
    assert not nodes["report"].is_writer


def the_node(**fields: Any) -> Node:
    return parse(gated(node("a", **fields), artifacts=[history("x"), history("y")])).nodes[0]


def test_the_environment_of_a_node_wins_over_the_default_name_by_name() -> None:
    document = parse(gated(node("a", env={"A": "node"}), defaults={"env": {"A": "default", "B": "default"}}))

    assert dict(document.nodes[0].env) == {"A": "node", "B": "default"}


@pytest.mark.req("GC-05")
@pytest.mark.parametrize(
    ("fields", "primary"),
    [
        ({}, "node:p/g/a"),
        ({"primary": "f"}, "f"),
        ({"claims": [claim("f")]}, "f"),
        ({"claims": [claim("f", "exclusive"), claim("r", "read")]}, "f"),
        ({"claims": [claim("gpu", "write", "physical")]}, "node:p/g/a"),
        ({"primary": "f", "claims": [claim("f"), claim("s")]}, "f"),
        ({"produces": [ref("z")], "claims": [claim("artifact:p/z", version=1)]}, "node:p/g/a"),
        ({"workMode": "read-only"}, None),
    ],
)
def test_a_gated_writer_has_exactly_one_primary(fields: Raw, primary: str | None) -> None:
    found_node = the_node(**fields)

    assert found_node.primary == primary
    written = [each for each in found_node.all_claims(project="p") if each.resource == primary and each.writes]
    assert len(written) == (primary is not None)


def test_a_program_writer_has_a_primary_only_when_it_names_one() -> None:
    document = parse(program(node("a"), node("b", primary="f")))

    assert [each.primary for each in document.nodes] == [None, "f"]


@pytest.mark.req("GC-03")
def test_consuming_claims_a_read_and_producing_a_write_of_that_very_version() -> None:
    claims = the_node(consumes=[ref("x")], produces=[ref("x", 2)], primary="f").all_claims(project="p")

    assert claims == (
        Claim("artifact:p/x", ResourceClass.LOGICAL, Access.READ, WorkMode.COOPERATIVE, version=1, isolated=True),
        Claim("artifact:p/x", ResourceClass.LOGICAL, Access.WRITE, WorkMode.COOPERATIVE, version=2, isolated=True),
        Claim("f", ResourceClass.LOGICAL, Access.WRITE, WorkMode.COOPERATIVE, isolated=True),
    )


def test_a_written_claim_takes_the_place_of_the_derived_one() -> None:
    fields = {"consumes": [ref("x")], "primary": "f"}
    fields["claims"] = [claim("artifact:p/x", "read", version=1, isolated=False), claim("f", "exclusive")]

    claims = the_node(**fields).all_claims(project="p")

    assert [(each.resource, each.access, each.isolated) for each in claims] == [
        ("artifact:p/x", Access.READ, False),
        ("f", Access.EXCLUSIVE, True),
    ]


@pytest.mark.parametrize(
    ("raw", "isolated"),
    [
        (gated(node("a", claims=[claim("f", "read")])), True),
        (gated(node("a", claims=[claim("f", "read", "physical")])), False),
        (gated(node("a", claims=[claim("f", "read", isolated=False)])), False),
        (program(node("a", claims=[claim("f", "read")])), False),
        (program(node("a", claims=[claim("f", "read")], ownedFiles=["x"]), workspaceMode="isolated"), True),
    ],
)
def test_a_claim_is_isolated_as_its_workspace_is(raw: Raw, isolated: bool) -> None:
    assert parse(raw).nodes[0].claims[0].isolated is isolated


def test_an_artifact_implies_an_edge_from_its_producer_unless_one_is_written() -> None:
    maker, user = node("a", produces=[ref("x")]), node("b", consumes=[ref("x")])

    assert parse(gated(maker, user)).edges == (Edge("a", "b"),)
    assert parse(gated(maker, user, edges=[edge("a", "b")])) == parse(gated(maker, user))
    assert parse(gated(maker, {**user, "needs": ["a"]})) == parse(gated(maker, user))


@pytest.mark.req("PX-32", "PX-33")
def test_an_old_document_without_mode_is_gated_and_stays_without_mode() -> None:
    old = parse(load((FIXTURES / "without_mode.json").read_bytes()))
    explicit = parse({**to_document(old), "executionMode": "gated"})

    assert old.execution_mode is None
    assert old.mode is explicit.mode is ExecutionMode.GATED
    assert old.workspace_mode is None
    assert "executionMode" not in to_document(old)
    assert b"Mode" not in canonical(old).replace(b"workMode", b"")
    assert digest(old) != digest(explicit)
    assert parse(to_document(old)) == old


@pytest.mark.req("PX-33")
def test_the_digest_of_an_old_document_never_changes() -> None:
    """Pinned: when this fails, old documents would be read differently than when they were admitted."""
    old = parse(load((FIXTURES / "without_mode.json").read_bytes()))

    assert canonical(old) == (
        b'{"contract":"forge.plan/1","edges":[{"from":"write","to":"verify"}],"name":"ledger","nodes":'
        b'[{"command":["make","check"],"key":"verify","workMode":"read-only"},'
        b'{"command":["make","all"],"key":"write","ownedFiles":["ledger.py"]}],"project":"books"}'
    )


@pytest.mark.req("PX-50")
def test_a_verifier_may_talk_of_formats() -> None:
    document = parse(load((FIXTURES / "verifier_that_talks.yaml").read_bytes()))

    assert "verdictFormat" in document.nodes[0].stdin


# --- one meaning, one digest -----------------------------------------------------------------------------------------

UNORDERED = {"nodes", "edges", "requirements", "artifacts", "ownedFiles", "reads", "claims", "produces", "consumes"}
UNORDERED |= {"needs", "outsideEffects"}


def respelt(value: Any, chance: random.Random, name: str = "") -> Any:
    """The same document: other order of keys, and of lists in which order means nothing."""
    if isinstance(value, dict):
        items = [(key, respelt(item, chance, key)) for key, item in value.items()]
        chance.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        found_items = [respelt(item, chance) for item in value]
        if name in UNORDERED:
            chance.shuffle(found_items)
        return found_items
    return value


@pytest.mark.req("WG-01")
def test_a_hundred_shuffles_have_one_canonical_form() -> None:
    document = parse(PROGRAM)

    for seed in range(100):
        other = parse(respelt(PROGRAM, random.Random(seed)))
        assert other == document
        assert canonical(other) == canonical(document)
        assert digest(other) == digest(document)


@pytest.mark.req("WG-01")
@pytest.mark.parametrize(("one", "other"), [case[1:] for case in SPELLINGS], ids=[case[0] for case in SPELLINGS])
def test_two_spellings_of_one_meaning_are_equal(one: Raw, other: Raw) -> None:
    assert parse(one) == parse(other)
    assert digest(parse(one)) == digest(parse(other))


@pytest.mark.req("WG-01")
@pytest.mark.parametrize(("one", "other"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT])
def test_two_meanings_have_two_digests(one: Raw, other: Raw) -> None:
    assert digest(parse(one)) != digest(parse(other))
    assert parse(to_document(parse(other))) == parse(other)


def test_a_stored_node_specification_is_read_back_as_it_was() -> None:
    for raw in [PROGRAM, *(case[1] for case in GOOD)]:
        for each in parse(raw).nodes:
            assert node_from_spec(json.loads(json.dumps(node_spec(each)))) == each


def test_a_stored_node_specification_leaves_nothing_to_a_default() -> None:
    spec = node_spec(the_node())

    assert (spec["deadlineSeconds"], spec["priority"], spec["workMode"]) == (3600, 0, "cooperative")
    assert spec["primary"] == "node:p/g/a"


# --- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "path"), [case[1:] for case in UNREADABLE], ids=[case[0] for case in UNREADABLE]
)
def test_an_unreadable_text_is_refused_with_a_code(source: str | bytes, code: str, path: str) -> None:
    assert [(problem.code, problem.path) for problem in problems(lambda: load(source))] == [(code, path)]


@pytest.mark.parametrize(
    ("limits", "code", "path"),
    [
        (Limits(max_bytes=10), "too_large", ""),
        (Limits(max_depth=2), "too_deep", "nodes[0]"),
        (Limits(max_nodes=1), "too_many_nodes", "nodes"),
        (Limits(max_edges=1), "too_many_edges", "edges"),
    ],
)
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
def test_limits_are_kept(limits: Limits, code: str, path: str, write: Callable[[Raw], str]) -> None:
    raw = {"nodes": [{}, {}], "edges": [1, 2]}

    (first, *_) = problems(lambda: load(write(raw), limits=limits))

    assert (first.code, first.path) == (code, path)


def test_edges_are_counted_in_every_spelling() -> None:
    raw = gated(node("a"), node("b", needs=["a"]), node("c", needs=["a", "b"]))

    assert found(raw, limits=Limits(max_edges=3)) == []
    assert found(raw, limits=Limits(max_edges=2)) == [("too_many_edges", "edges")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-08-01", "2026-08-01"),
        ("2026-08-01 10:00:00", "2026-08-01 10:00:00"),
        ("0755", "0755"),
        ("0o17", "0o17"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("on", "on"),
        ("No", "No"),
        (".inf", ".inf"),
        (".5", ".5"),
        ("=", "="),
        ("-", "-"),
        ("+1", "+1"),
        ("'7'", "7"),
        ("7", 7),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("|\n  7\n", "7\n"),
    ],
)
def test_yaml_is_read_without_surprises(text: str, value: Any) -> None:
    if text == "-":
        text = "'-'"
    loaded = load(f"a: {text}")["a"]

    assert loaded == value
    assert type(loaded) is type(value)


def test_a_yaml_key_is_text_as_it_is_in_json() -> None:
    assert load("on: 1\n1: 2\nnull: 3\n") == {"on": 1, "1": 2, "null": 3}


@pytest.mark.parametrize("text", ["\ufeffa: 1", '\ufeff{"a": 1}', "{a: 1}", '{"a": 1,}', "--- \na: 1\n...\n"])
def test_other_spellings_of_one_value(text: str) -> None:
    assert load(text) == load(text.encode()) == {"a": 1}


TEXT = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_json_read_as_yaml_is_the_same_value(value: Raw) -> None:
    """Escaped surrogate pairs are the one thing of JSON that YAML does not know, hence the plain text."""
    as_json = json.dumps(value, ensure_ascii=False)

    assert load(as_json) == value
    assert load("# a comment, so that this is YAML\n" + as_json) == value


# --- the published schema --------------------------------------------------------------------------------------------

SCHEMA = plan_contract()
ORACLE = jsonschema.Draft202012Validator(SCHEMA)


def subschemas(schema: Any, where: str = "") -> Iterator[tuple[str, Raw]]:
    """Every property and definition of the contract, with references left as they are."""
    for group in ("properties", "$defs"):
        for name, child in schema.get(group, {}).items():
            yield f"{where}/{name}", child
            yield from subschemas(child, f"{where}/{name}")


@pytest.mark.req("PX-01")
def test_every_property_of_the_contract_is_described_with_an_example_that_it_accepts() -> None:
    for where, schema in subschemas(SCHEMA):
        whole = {**SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], **schema} if "$ref" in schema else schema
        if where == "/env":
            continue
        assert whole.get("title"), where
        assert whole.get("description"), where
        assert whole.get("examples"), where
        validator = jsonschema.Draft202012Validator({**schema, "$defs": SCHEMA["$defs"]})
        assert all(validator.is_valid(example) for example in whole["examples"]), where


@pytest.mark.req("PX-01")
def test_the_contract_is_a_valid_schema_and_its_own_example_is_a_valid_program() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    (example,) = json.loads(plan_contract_text())["examples"]
    document = parse(example)

    assert document.is_program
    assert document.edges == (Edge("add", "combine"), Edge("sub", "combine"))


def test_the_defaults_of_the_contract_are_those_of_the_model() -> None:
    definitions, blank = SCHEMA["$defs"], Node(key="a", command=("true",))

    assert definitions["deadlineSeconds"]["default"] == blank.deadline_s
    assert definitions["graceSeconds"]["default"] == blank.grace_s
    assert definitions["outputLimitBytes"]["default"] == blank.output_limit_bytes
    assert definitions["priority"]["default"] == blank.priority
    assert definitions["maxRevisions"]["default"] == blank.max_revisions
    assert definitions["retry"]["properties"]["attempts"]["default"] == blank.retry.attempts
    assert definitions["workMode"]["default"] == blank.work_mode
    assert definitions["edge"]["properties"]["kind"]["default"] == Edge("a", "b").kind
    assert SCHEMA["properties"]["nodes"]["maxItems"] == Limits().max_nodes
    assert SCHEMA["properties"]["edges"]["maxItems"] == Limits().max_edges


JUNK_VALUES: list[Any] = [
    *[None, True, False, 0, 1, -1, 1.0, 2.5, 2**31, 1e308],
    *["", "a", "A", "abc\n", "a b", "x" * 64, "x" * 256, "a\0", "a/b", "-a"],
    *["read-only", "gated", "program", "success", "logical", "write", "forge.plan/1", "f" * 40, "f" * 41],
    *[[], [""], [1], ["a"], {}, {"a": "b"}, {"A-B": "c"}, {"class": "idempotent"}],
    *[edge("a", "b"), ref("x"), claim("r")],
]
JUNK = st.sampled_from(JUNK_VALUES).map(copy.deepcopy)  # documents are changed in place


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) of a document."""
    found_places: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found_places += [(value, key), *places(value[key])]
    return found_places


@st.composite
def nearly_valid(draw: st.DrawFn) -> Raw:
    """The program that uses every field, with up to three values replaced, removed or added."""
    raw: Raw = copy.deepcopy(PROGRAM)
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(places(raw)))
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "replace":
            container[key] = draw(JUNK)
        elif action == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[draw(st.sampled_from(["title", "version", "extra", "mode", "A", "verdictFormat"]))] = draw(JUNK)
        else:
            container.append(draw(JUNK))
    return raw


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(nearly_valid() | st.recursive(JUNK, lambda children: st.lists(children) | st.dictionaries(st.text(), children)))
def test_the_compiled_contract_and_the_published_schema_agree(raw: Any) -> None:
    report = Report()
    shape = check_structure(raw, report)

    assert (len(report) == 0) == ORACLE.is_valid(raw)
    if not len(report):
        assert shape is raw


def test_the_compiled_contract_and_the_published_schema_agree_on_every_single_change() -> None:
    """Exhaustive where the property test samples: each value of the program replaced by each kind of junk."""
    for position in range(len(places(PROGRAM))):
        for replacement in JUNK_VALUES[:: 3 - position % 3]:  # all of them for a third of the places, some for the rest
            raw = copy.deepcopy(PROGRAM)
            container, key = places(raw)[position]
            container[key] = copy.deepcopy(replacement)
            report = Report()
            check_structure(raw, report)
            assert (len(report) == 0) == ORACLE.is_valid(raw), (key, replacement)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(nearly_valid())
def test_whatever_is_not_refused_round_trips_and_whatever_is_refused_is_reported_in_order(raw: Raw) -> None:
    before = copy.deepcopy(raw)
    refused = problems(lambda: parse(raw))

    assert all(problem.code.isidentifier() and problem.message for problem in refused)
    assert refused == problems(lambda: parse(raw))
    if not refused:
        document = parse(raw)
        assert parse(to_document(document)) == document
        assert digest(parse(load(canonical(document)))) == digest(document)
    assert raw == before


def test_a_path_is_shown_as_it_would_be_written() -> None:
    assert shown(((((), "nodes"), 2), "env")) == "nodes[2].env"
    assert shown(((((), "a b"), 0), "é")) == '["a b"][0]["\\u00e9"]'
