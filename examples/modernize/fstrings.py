"""A codemod: ``"%s is %r" % (name, value)`` becomes ``f"{name} is {value!r}"`` wherever that is certainly the same.

Usage: fstrings.py DIRECTORY

Certain means: the right side is a tuple as long as the text has places, or one value that is no tuple; every place is a
plain ``%s`` or ``%r``; and every value reads well inside braces. Everything else stays as it is, also `"%s" % value`
with a value of unknown type: should it be a tuple one day, the meaning would have changed.
"""

import re
import sys
from pathlib import Path

import libcst as cst
import libcst.matchers as m

PLACE = re.compile(r"%(.?)", re.DOTALL)
READABLE = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
UNWELCOME = re.compile(r"""['"\\{}\n#]""")  # before Python 3.12 an expression inside an f-string must not hold these
NO_TUPLE = m.Call(func=m.Name("len") | m.Name("repr") | m.Name("str") | m.Name("type")) | m.Attribute(
    attr=m.Name("__name__")
)


class PercentToFString(cst.CSTTransformer):
    """Rewrites one module and counts what it changed and what it left."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = 0
        self.left = 0

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        text = updated_node.left
        if not isinstance(updated_node.operator, cst.Modulo) or not isinstance(text, cst.SimpleString):
            return updated_node
        rewritten = f_string(text, values_of(updated_node.right))
        if rewritten is None:
            self.left += 1
            return updated_node
        self.changed += 1
        return rewritten.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)


def values_of(right: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The values that the places stand for; none when that is not certain."""
    if isinstance(right, cst.Tuple):
        return [element.value for element in right.elements if isinstance(element, cst.Element)]
    return [right] if m.matches(right, NO_TUPLE) else []


def f_string(text: cst.SimpleString, values: list[cst.BaseExpression]) -> cst.FormattedString | None:
    """The f-string that says the same, or None when that is not certain."""
    if text.prefix.lower() not in ("", "u") or has_hidden_signs(text) or not all(map(reads_well, values)):
        return None
    parts: list[cst.BaseFormattedStringContent] = []
    literal = ""
    remaining = list(values)
    for index, piece in enumerate(PLACE.split(text.raw_value)):  # literal, kind, literal, kind, ... literal
        if index % 2 == 0:
            literal += piece.replace("{", "{{").replace("}", "}}")
        elif piece == "%":
            literal += "%"
        elif piece in ("s", "r") and remaining:
            value = remaining.pop(0)
            parts.append(cst.FormattedStringText(literal))
            parts.append(cst.FormattedStringExpression(value, conversion="r" if piece == "r" else None))
            literal = ""
        else:
            return None
    if remaining or not parts:
        return None
    parts.append(cst.FormattedStringText(literal))
    return cst.FormattedString(parts=parts, start=f"f{text.quote}", end=text.quote)


def has_hidden_signs(text: cst.SimpleString) -> bool:
    r"""Whether an escape such as ``\x25`` spells a sign that means something to ``%`` or to an f-string."""
    spelled, meant = text.raw_value, text.evaluated_value
    return any(spelled.count(sign) != meant.count(sign) for sign in "%{}")


def reads_well(value: cst.BaseExpression) -> bool:
    return isinstance(value, READABLE) and not UNWELCOME.search(cst.Module([]).code_for_node(value))


def main() -> int:
    files = changed = left = 0
    for path in sorted(Path(sys.argv[1]).rglob("*.py")):
        source = path.read_bytes()
        rewriter = PercentToFString()
        rewritten = cst.parse_module(source).visit(rewriter)
        if rewriter.changed:
            path.write_bytes(rewritten.bytes)
            files += 1
            print(f"{path}: {rewriter.changed} rewritten", flush=True)
        changed += rewriter.changed
        left += rewriter.left
    print(f"{changed} expressions in {files} files rewritten, {left} left as they are")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
