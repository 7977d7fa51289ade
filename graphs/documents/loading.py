"""From text to a JSON value. YAML is read as another spelling of JSON and nothing more.

We read YAML from the parser's events instead of through a constructor: so aliases cannot multiply, tags cannot build
objects, repeated keys are seen, and a plain word is a number only where JSON would say so. In YAML 1.1, which PyYAML
speaks, `on` is true, `0755` is 493, `1:30` is 90 and `2026-08-01` a date.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import yaml

from core.canonical import MAX_INTEGER, is_unicode
from graphs.documents.model import DEFAULT_LIMITS, Limits
from graphs.documents.report import ROOT, Path, Report, quoted

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where the wheel has it: five times faster
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class _Repeated(dict[str, Any]):
    """A mapping that had a key twice. Found by the walk over the finished value, which knows the path."""

    __slots__ = ("key",)

    def __init__(self, value: dict[str, Any], key: str) -> None:
        super().__init__(value)
        self.key = key


class _Refused(Exception):
    """The text cannot be read any further."""

    def __init__(self, code: str, message: str, hint: str = "", path: Path = ROOT) -> None:
        super().__init__(code, message, hint, path)
        self.code, self.message, self.hint, self.path = code, message, hint, path


def load(source: str | bytes, *, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The JSON value that ``source`` spells, as dict, list, str, int, float, bool or None.

    source: JSON or YAML, one document; bytes are UTF-8, a byte order mark is ignored
    Raises: DocumentInvalid: too_large, not_utf8, empty_document, syntax_error, several_documents, duplicate_key,
            too_deep, too_many_nodes, too_many_edges, yaml_alias, yaml_tag, key_not_text, number_out_of_range,
            not_unicode
    """
    report = Report()
    try:
        text = _text(source, limits)
        value = _read(text, limits)
    except _Refused as refused:
        report.add(refused.code, refused.path, refused.message, refused.hint)
        report.raise_if_any()
        raise AssertionError("unreachable") from refused
    _check_values(value, report, limits)
    _check_counts(value, report, limits)
    report.raise_if_any()
    return value


def _text(source: str | bytes, limits: Limits) -> str:
    try:
        data = source.encode() if isinstance(source, str) else source
        if len(data) > limits.max_bytes:
            raise _Refused("too_large", f"{len(data)} bytes; a document has at most {limits.max_bytes}")
        text = data.decode("utf-8-sig")
    except UnicodeError:
        raise _Refused("not_utf8", "the text is not UTF-8") from None
    if not text.strip():
        raise _Refused("empty_document", "there is no document", "start with `contract: forge.plan/1`")
    return text


def _read(text: str, limits: Limits) -> Any:
    """JSON where it starts like JSON; YAML's `{a: b}` starts like that too, so a failure there is no answer yet."""
    if text.lstrip()[0] not in "{[":
        return _read_yaml(text, limits)
    try:
        return _read_json(text)
    except json.JSONDecodeError as error:
        try:
            return _read_yaml(text, limits)
        except _Refused as refused:
            if refused.code != "syntax_error":
                raise
            raise _Refused(
                "syntax_error", f"neither JSON nor YAML: {error.msg}, line {error.lineno}, column {error.colno}"
            ) from None


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_mapping, parse_constant=_not_a_number)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _Refused("too_deep", "nested too deeply to be read") from None
    except ValueError:  # Python refuses to convert thousands of digits
        raise _Refused("number_out_of_range", "a number with thousands of digits") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Repeated(value, key)
        seen.add(key)
    raise AssertionError("fewer keys than pairs, yet none repeated")


def _not_a_number(name: str) -> NoReturn:
    raise _Refused("number_out_of_range", f"{name} is not a number in JSON")


def _read_yaml(text: str, limits: Limits) -> Any:
    try:
        return _YamlReader(yaml.parse(text, Loader=_LOADER), limits).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise _Refused("syntax_error", f"{reason}{where}") from None


class _YamlReader:
    """Builds the value of one document from the events of a YAML parser."""

    def __init__(self, events: Iterator[yaml.Event], limits: Limits) -> None:
        self._events = events
        self._limits = limits
        self._readers: dict[type[yaml.Event], Callable[[Any, Path, int], Any]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._mapping,
            yaml.SequenceStartEvent: self._sequence,
            yaml.AliasEvent: self._alias,
        }

    def document(self) -> Any:
        event = next(self._events)
        while isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):  # comments only
            raise _Refused("empty_document", "there is no document", "start with `contract: forge.plan/1`")
        value = self._value(event, ROOT, 1)
        next(self._events)  # end of the document
        if not isinstance(next(self._events), yaml.StreamEndEvent):
            raise _Refused("several_documents", "more than one YAML document", "remove what follows `---`")
        return value

    def _value(self, event: yaml.Event, path: Path, depth: int) -> Any:
        if getattr(event, "tag", None) is not None:
            raise self._refused(event, path, "yaml_tag", "YAML tags are not used here", "remove the tag")
        if getattr(event, "anchor", None) is not None:
            return self._alias(event, path, depth)
        return self._readers[type(event)](event, path, depth)

    def _alias(self, event: Any, path: Path, depth: int) -> NoReturn:
        raise self._refused(event, path, "yaml_alias", "YAML anchors and aliases are not used here", "write it out")

    def _scalar(self, event: yaml.ScalarEvent, path: Path, depth: int) -> Any:
        text = event.value
        if not event.implicit[0]:  # quoted, or a block of text
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text[0] in "-0123456789" and (number := _NUMBER.fullmatch(text)):
            if len(text) > 400:
                raise self._refused(event, path, "number_out_of_range", "a number with hundreds of digits")
            return float(text) if number[1] or number[2] else int(text)
        return text

    def _sequence(self, event: yaml.SequenceStartEvent, path: Path, depth: int) -> list[Any]:
        self._check_depth(path, depth)
        items: list[Any] = []
        while not isinstance(event_ := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event_, (path, len(items)), depth + 1))
        return items

    def _mapping(self, event: yaml.MappingStartEvent, path: Path, depth: int) -> dict[str, Any]:
        self._check_depth(path, depth)
        pairs: list[tuple[str, Any]] = []
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self._refused(key, path, "key_not_text", "a key must be plain text")
            if key.tag is not None or key.anchor is not None:
                self._value(key, path, depth)
            name = key.value  # keys are text, as in JSON: `on:` and `1:` are "on" and "1"
            pairs.append((name, self._value(next(self._events), (path, name), depth + 1)))
        return _mapping(pairs)

    def _check_depth(self, path: Path, depth: int) -> None:
        if depth > self._limits.max_depth:
            raise _too_deep(path, self._limits)

    @staticmethod
    def _refused(event: yaml.Event, path: Path, code: str, message: str, hint: str = "") -> _Refused:
        where = f" (line {event.start_mark.line + 1})" if event.start_mark else ""
        return _Refused(code, message + where, hint, path)


def _too_deep(path: Path, limits: Limits) -> _Refused:
    return _Refused("too_deep", f"nested deeper than {limits.max_depth} levels", path=path)


def _check_values(value: Any, report: Report, limits: Limits) -> None:
    """Repeated keys, depth, and the values that JSON text can spell but JSON readers do not agree on."""
    pending: list[tuple[Any, Path, int]] = [(value, ROOT, 1)]
    while pending:
        item, path, depth = pending.pop()
        if not isinstance(item, dict | list):  # only the document itself; scalars inside are not worth the tuple
            _check_scalar(item, path, report)
            continue
        if depth > limits.max_depth:
            refused = _too_deep(path, limits)
            report.add(refused.code, path, refused.message)
            continue
        if isinstance(item, _Repeated):
            report.add("duplicate_key", (path, item.key), f"the key {quoted(item.key)} is written twice")
        if isinstance(item, dict) and not all(map(is_unicode, item)):
            report.add("not_unicode", path, "a key with a lone surrogate")
        for step, child in item.items() if isinstance(item, dict) else enumerate(item):
            if isinstance(child, dict | list):
                pending.append((child, (path, step), depth + 1))
            elif not _is_sound(child):
                _check_scalar(child, (path, step), report)


def _is_sound(value: Any) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or -MAX_INTEGER <= value <= MAX_INTEGER


def _check_scalar(value: Any, path: Path, report: Report) -> None:
    if _is_sound(value):
        return
    if isinstance(value, str):
        report.add("not_unicode", path, "text with a lone surrogate")
    else:
        report.add("number_out_of_range", path, "a number beyond what every JSON reader holds: 2**53 - 1, or finite")


def _check_counts(value: Any, report: Report, limits: Limits) -> None:
    if not isinstance(value, dict):
        return
    for name, most in (("nodes", limits.max_nodes), ("edges", limits.max_edges)):
        items = value.get(name)
        if isinstance(items, list) and len(items) > most:
            report.add(f"too_many_{name}", (ROOT, name), f"{len(items)} {name}; a graph has at most {most}")
