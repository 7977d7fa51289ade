"""What a spec refuses before it can do harm, and the promises of its file."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from jobs.process import receipts, shim
from jobs.process.receipts import Fence, Spec

FIELDS: dict[str, Any] = {
    "job": 1,
    "attempt": 2,
    "fence": Fence(3, 4),
    "argv": ("true",),
    "env": {},
    "cwd": "/",
    "marker": "m",
    "wake_dir": "/tmp",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"argv": ()},
        {"marker": ""},
        {"output_cap": -1},
        {"grace_s": -1.0},
        {"grace_s": float("inf")},
        {"grace_s": float("nan")},
        {"deadline_boottime": float("inf")},
        {"deadline_boottime": float("nan")},
        {"sweep_dir": "/"},
        {"sweep_dir": "/home"},
        {"sweep_dir": "relative/path/to"},
    ],
)
def test_a_spec_that_could_do_harm_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Spec(**FIELDS | wrong)


def test_the_spec_file_is_private_and_sealed(tmp_path: Path) -> None:
    receipts.write_spec(tmp_path, Spec(**FIELDS))

    path = tmp_path / "spec.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    body = shim.unseal(path.read_bytes())
    assert (body["v"], body["fence"], body["argv"]) == (1, {"grant": 3, "token": 4}, ["true"])
    assert body["boot_id"]


def test_without_files_nothing_is_known(tmp_path: Path) -> None:
    assert receipts.read_started(tmp_path) is None
    assert receipts.read_exit(tmp_path) is None


@pytest.mark.parametrize("field", ["cause", "exit_code", "survivors", "usage", "fence", "boottime"])
def test_a_sealed_receipt_that_lacks_a_field_is_an_error(tmp_path: Path, field: str) -> None:
    receipts.write_never_started(tmp_path, job=1, attempt=2, fence=Fence(3, 4))
    body = json.loads((tmp_path / "exit.json").read_bytes())
    del body["sha256"], body[field]
    (tmp_path / "exit.json").write_bytes(shim.seal(body))

    with pytest.raises(receipts.MalformedReceipt):
        receipts.read_exit(tmp_path)
