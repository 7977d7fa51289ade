"""Writer: one operation of the calculator and its test.

Usage: write_operation.py add|multiply|power
"""

import sys
from pathlib import Path

from presence import recorded

MODULE = '''"""{title}."""


def {name}(left: float, right: float) -> float:
    """{promise}"""
    return left {sign} right
'''

TEST = '''"""{title}."""

import unittest

from calculator.{module} import {name}


class {title}(unittest.TestCase):
    def test_of_two_numbers(self) -> None:
        self.assertEqual({name}(2, 3), {two_and_three})

    def test_{law}(self) -> None:
        self.assertEqual({left}, {right})
'''

OPERATIONS = {
    "add": {
        "module": "addition",
        "title": "Addition",
        "promise": "The sum of two numbers.",
        "sign": "+",
        "two_and_three": "5",
        "law": "order_does_not_matter",
        "left": "add(0.5, 4)",
        "right": "add(4, 0.5)",
    },
    "multiply": {
        "module": "multiplication",
        "title": "Multiplication",
        "promise": "The product of two numbers.",
        "sign": "*",
        "two_and_three": "6",
        "law": "one_changes_nothing",
        "left": "multiply(7.5, 1)",
        "right": "7.5",
    },
    "power": {
        "module": "exponentiation",
        "title": "Exponentiation",
        "promise": "The first number raised to the power of the second.",
        "sign": "**",
        "two_and_three": "8",
        "law": "a_negative_exponent_inverts",
        "left": "power(4, -1)",
        "right": "1 / power(4, 1)",
    },
}


def main() -> int:
    name = sys.argv[1]
    others = [other for other in OPERATIONS if other != name]
    facts = {"name": name, **OPERATIONS[name]}
    with recorded(name, together_with=others):
        for path, text in (
            (Path("calculator") / f"{facts['module']}.py", MODULE),
            (Path("tests") / f"test_{facts['module']}.py", TEST),
        ):
            path.write_text(text.format(**facts))
            print(f"wrote {path}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
