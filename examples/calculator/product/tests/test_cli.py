"""What the command line promises, whatever operations there are."""

from __future__ import annotations

import contextlib
import io
import unittest

from calculator import cli


def run(*arguments: str) -> tuple[int, str]:
    """Exit code of the command line and everything it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = cli.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, printed.getvalue()


class CommandLine(unittest.TestCase):
    def test_help_explains_the_arguments(self) -> None:
        code, printed = run("--help")

        self.assertEqual(code, 0)
        self.assertIn("operation", printed)

    def test_an_unknown_operation_is_refused(self) -> None:
        code, printed = run("guess", "1", "2")

        self.assertEqual(code, 2)
        self.assertIn("guess", printed)
