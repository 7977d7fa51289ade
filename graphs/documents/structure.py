"""Checks a value against the published plan contract, by compiling the JSON Schema into closures.

The schema file stays the one place where shapes, limits and patterns are written down; the compiler reads what we
publish. It exists because the jsonschema library takes seconds for 10,000 nodes, and because our problems carry codes.
It knows only the keywords our contract uses and refuses to compile any other; a property test holds it to the verdicts
of the jsonschema library.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from core.canonical import is_unicode
from graphs.documents.report import ROOT, Path, Report, quoted, squashed, suggestion


class Invalid(Enum):
    """Stands where a malformed value was, so that its neighbours keep their positions."""

    INVALID = auto()


INVALID: Final = Invalid.INVALID

# Gives back the value, a copy without the malformed parts, or INVALID. The value itself is never changed.
Check: TypeAlias = Callable[[Any, Path, Report], Any]
Schema: TypeAlias = Mapping[str, Any]

_ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$comment", "$defs", "title", "description", "examples", "default", "x-code", "x-form"}
)
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"const", "enum", "pattern", "minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "propertyNames", "maxProperties"}),
}
_NAMES: Final = {"string": "text", "integer": "a whole number", "boolean": "true or false"}
_VERDICT_FIELD: Final = "verdictformat"  # squashed; the format of verdicts belongs to the executor


@cache
def plan_contract_text() -> str:
    """The published JSON Schema as it is in the file."""
    return files("graphs").joinpath("plan_contract.schema.json").read_text(encoding="utf-8")


def plan_contract() -> dict[str, Any]:
    """The published JSON Schema, a fresh copy."""
    schema: dict[str, Any] = json.loads(plan_contract_text())
    return schema


def check_structure(raw: Any, report: Report) -> dict[str, Any]:
    """Report every deviation from the contract, and give back what is well formed.

    Returns: ``raw`` itself when nothing is wrong; otherwise a copy in which malformed optional fields are left out and
             malformed items of lists are INVALID. The document and its nodes are kept even when a required field is
             missing, so that the later checks still see the rest
    """
    shape = _contract()(raw, ROOT, report)
    return shape if isinstance(shape, dict) else {}


@cache
def _contract() -> Check:
    schema = plan_contract()
    return _Compiler(schema["$defs"]).compile(schema, keep_partial=True)


class _Compiler:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def compile(self, schema: Schema, *, keep_partial: bool = False) -> Check:
        keep_partial = keep_partial or schema.get("$ref") == "#/$defs/node"
        schema = self._resolved(schema)
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kind, *rest = kinds
        if unknown := set(schema) - _ANNOTATIONS - _KEYWORDS[kind] - {"type"}:
            raise ValueError(f"the plan contract uses keywords the compiler does not know: {sorted(unknown)}")
        match kind:
            case "object" if "properties" in schema:
                check = self._object(schema, keep_partial)
            case "object":
                check = self._mapping(schema)
            case "array":
                check = self._array(schema)
            case "string":
                check = _string(schema)
            case "integer":
                check = _integer(schema)
            case _:
                check = _boolean(schema)
        if rest == ["null"]:
            return lambda value, path, report: None if value is None else check(value, path, report)
        if rest:
            raise ValueError(f"the compiler knows no type {kinds}")
        return check

    def _resolved(self, schema: Schema) -> Schema:
        """Follow a reference. Beside it stand only annotations, which replace those of the definition."""
        if "$ref" not in schema:
            return schema
        beside = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
        if not beside.keys() <= _ANNOTATIONS:
            raise ValueError(f"the plan contract constrains a reference: {sorted(beside)}")
        return {**self._resolved(self._definitions[schema["$ref"].removeprefix("#/$defs/")]), **beside}

    def _object(self, schema: Schema, keep_partial: bool) -> Check:
        """Named fields, no others."""
        properties: Mapping[str, Schema] = schema["properties"]
        if schema.get("additionalProperties") is not False or schema.keys() & {"propertyNames", "maxProperties"}:
            raise ValueError("the compiler knows named fields only when no others are allowed")
        checks = {name: self.compile(field) for name, field in properties.items()}
        required = {name: self._missing_code(properties[name]) for name in schema.get("required", ())}
        forms = {name: _form(self._resolved(properties[name])) for name in required}
        own_code = schema.get("x-code", "wrong_type")

        def check(value: Any, path: Path, report: Report) -> Any:
            if not isinstance(value, dict):
                report.add(own_code, path, f"a mapping is expected, not {quoted(value)}")
                return INVALID
            kept = value
            for name, item in value.items():
                field = checks.get(name)
                if field is None:
                    _report_unknown(name, path, report, checks)
                    result: Any = INVALID
                else:
                    result = field(item, (path, name), report)
                if result is not item:
                    kept = dict(kept) if kept is value else kept
                    kept[name] = result
                    if result is INVALID:
                        del kept[name]
            complete = True
            for name, code in required.items():
                if name not in kept:
                    complete = False
                    if name not in value:
                        report.add(code, (path, name), f"`{name}` is required", f"for example {forms[name]}")
            return kept if complete or keep_partial else INVALID

        return check

    def _missing_code(self, schema: Schema) -> str:
        return str(self._resolved(schema).get("x-code", "missing_field"))

    def _mapping(self, schema: Schema) -> Check:
        """Free names with values of one kind."""
        name_check = self.compile(schema["propertyNames"])
        value_check = self.compile(schema["additionalProperties"])
        most: int = schema["maxProperties"]

        def check(value: Any, path: Path, report: Report) -> Any:
            if not isinstance(value, dict):
                report.add("wrong_type", path, f"a mapping is expected, not {quoted(value)}")
                return INVALID
            if len(value) > most:
                report.add("too_many", path, f"{len(value)} entries; at most {most}")
                return INVALID
            kept = {
                name: item
                for name, item in value.items()
                if (name_check(name, (path, str(name)), report) is not INVALID)
                & (value_check(item, (path, str(name)), report) is not INVALID)
            }
            return value if len(kept) == len(value) else kept

        return check

    def _array(self, schema: Schema) -> Check:
        item_check = self.compile(schema["items"])
        least: int = schema.get("minItems", 0)
        most: int = schema["maxItems"]
        hint = f"for example {_json(schema['examples'][0])}"

        def check(value: Any, path: Path, report: Report) -> Any:
            if not isinstance(value, list):
                report.add("wrong_type", path, f"a list is expected, not {quoted(value)}", hint)
                return INVALID
            if len(value) < least:
                report.add("empty", path, "the list must not be empty", hint)
                return INVALID
            if len(value) > most:  # and the items stay unread: a flood ends here
                report.add("too_many", path, f"{len(value)} items; at most {most}")
                return INVALID
            kept = value
            for index, item in enumerate(value):
                result = item_check(item, (path, index), report)
                if result is not item:
                    kept = list(kept) if kept is value else kept
                    kept[index] = result
            return kept

        return check


def _string(schema: Schema) -> Check:
    words = (
        frozenset(schema["enum"]) if "enum" in schema else frozenset((schema["const"],)) if "const" in schema else None
    )
    least: int = schema.get("minLength", 0)
    most: int = schema.get("maxLength", 2**63)
    matches = re.compile(schema["pattern"]).search if "pattern" in schema else None
    code: str | None = schema.get("x-code")
    example = f"for example {_form(schema)}"

    def check(value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, str) and (
            value in words
            if words is not None
            else least <= len(value) <= most and (matches is None or matches(value)) and is_unicode(value)
        ):
            return value
        _explain(value, path, report)
        return INVALID

    def _explain(value: Any, path: Path, report: Report) -> None:
        if not isinstance(value, str):
            quote = "put it in quotes" if isinstance(value, bool | int | float) else example
            report.add(code or "wrong_type", path, f"text is expected, not {quoted(value)}", quote)
        elif words is not None:
            hint = suggestion(value, words) or f"one of {', '.join(sorted(words))}"
            report.add(code or "unknown_value", path, f"{quoted(value)} is not known here", hint)
        elif not is_unicode(value):
            report.add("not_unicode", path, "text with a lone surrogate")
        elif len(value) < least:
            report.add(code or "empty", path, "the text must not be empty", example)
        elif len(value) > most:
            report.add(code or "too_long", path, f"{len(value)} characters; at most {most}")
        else:
            report.add(code or "malformed", path, f"{quoted(value)} is not {schema['x-form']}", example)

    return check


def _integer(schema: Schema) -> Check:
    least: int = schema["minimum"]
    most: int = schema["maximum"]
    code: str | None = schema.get("x-code")

    def check(value: Any, path: Path, report: Report) -> Any:
        if _is_whole(value):
            if least <= value <= most:
                return value
            report.add(code or "out_of_range", path, f"{quoted(value)} is not between {least} and {most}")
        else:
            report.add(code or "wrong_type", path, f"a whole number is expected, not {quoted(value)}")
        return INVALID

    return check


def _is_whole(value: Any) -> bool:
    """JSON Schema counts 3.0 among the whole numbers, and true not among the numbers."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _boolean(schema: Schema) -> Check:
    code = schema.get("x-code", "wrong_type")

    def check(value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, bool):
            return value
        report.add(code, path, f"true or false is expected, not {quoted(value)}")
        return INVALID

    return check


def _report_unknown(name: Any, path: Path, report: Report, known: Mapping[str, Check]) -> None:
    if not isinstance(name, str):  # a Python caller; JSON has no such keys
        report.add("key_not_text", path, f"a key must be text, not {quoted(name)}")
    elif squashed(name) == _VERDICT_FIELD:
        report.add(
            "verdict_format_override",
            (path, name),
            "the format of verdicts belongs to Forge and cannot be set",
            "remove the field; a prompt may still describe the formats of your product",
        )
    else:
        report.add(
            "unknown_field", (path, name), f"there is no field {quoted(name)} here", lambda: suggestion(name, known)
        )


def _form(schema: Schema) -> str:
    return _json(schema["examples"][0])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
