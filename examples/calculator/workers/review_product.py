"""Reviewer: runs the product's tests and uses its command line as a user would. Changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys

from presence import recorded

EXPECTED = {
    ("add", "2", "3"): "5",
    ("multiply", "6", "7"): "42",
    ("power", "2", "10"): "1024",
    ("power", "2", "-1"): "0.5",
}


def main() -> int:
    with recorded("review-product"):
        findings = review_tests() + review_command_line()
        for finding in findings:
            print(f"finding: {finding}", flush=True)
        print(f"{len(EXPECTED) + 2} checks, {len(findings)} findings", flush=True)
    return 1 if findings else 0


def review_tests() -> list[str]:
    done = python("-m", "unittest", "discover", "-s", "tests", "-t", ".")
    print(done.stderr, end="", flush=True)
    return [] if done.returncode == 0 else ["the product's tests fail"]


def review_command_line() -> list[str]:
    findings = []
    for arguments, expected in EXPECTED.items():
        done = python("-m", "calculator", *arguments)
        shown = f"calculator {' '.join(arguments)}"
        print(f"{shown} -> {done.stdout.strip()}", flush=True)
        if (done.returncode, done.stdout) != (0, f"{expected}\n"):
            findings.append(f"{shown} gave {done.stdout.strip() or done.stderr.strip()} instead of {expected}")
    if python("-m", "calculator", "divide", "1", "2").returncode != 2:
        findings.append("an unknown operation is not refused")
    return findings


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This Python on the checkout, which it leaves without a trace."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


if __name__ == "__main__":
    raise SystemExit(main())
