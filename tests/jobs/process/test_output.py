"""The ring, without processes: what the reader makes of whatever the writer wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.process import output, shim


def write(directory: Path, chunks: list[bytes], cap: int) -> shim.Capture:
    """Let the shim's writer store ``chunks`` one by one."""
    read_end, write_end = os.pipe()
    capture = shim.Capture(read_end, "stdout", cap)
    for chunk in chunks:
        os.write(write_end, chunk)
        capture.pump()
    os.close(write_end)
    capture.drain()
    for fd in (read_end, *capture.files.values()):
        os.close(fd)
    return capture


@pytest.fixture
def jobdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", [1, 3, 7, 64])
@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 19, 20, 21, 23, 40, 333])
@pytest.mark.parametrize("cap", [20, 21])
def test_head_gap_and_tail_add_up_to_the_stream(jobdir: Path, size: int, length: int, cap: int) -> None:
    stream = bytes(position % 251 for position in range(length))
    chunks = [stream[start : start + size] for start in range(0, length, size)]

    write(jobdir, chunks, cap)

    captured = output.read(jobdir, "stdout")
    assert captured.total == length
    if length <= cap:
        assert captured == output.Captured(stream, 0, b"")
    else:
        assert (captured.head, captured.tail) == (stream[: cap // 2], stream[cap // 2 - cap :])


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_follower_gets_each_kept_byte_once_in_order_and_is_told_the_gap(jobdir: Path, limit: int) -> None:
    stream = bytes(range(200))
    write(jobdir, [stream], 50)

    got, skipped, offset = b"", 0, 0
    while (chunk := output.read_from(jobdir, "stdout", offset, limit=limit)).data:
        got, skipped, offset = got + chunk.data, skipped + chunk.skipped, chunk.next_offset

    assert got == stream[:25] + stream[-25:]
    assert (skipped, offset) == (150, 200)


def test_bytes_that_the_writer_may_be_changing_are_not_shown(jobdir: Path) -> None:
    stream = bytes(range(100))
    write(jobdir, [stream], 40)
    with (jobdir / "stdout.tail").open("r+b") as file:
        file.write(shim.RING_HEADER.pack(20, 105, 100))  # announced five more, wrote some of them, then we looked
        file.write(b"\xff\xff\xff")

    assert output.read(jobdir, "stdout").tail == stream[85:]


def test_nothing_was_written(tmp_path: Path) -> None:
    assert output.read(tmp_path, "stdout") == output.Captured(b"", 0, b"")
    assert output.read_from(tmp_path, "stdout", 0) == output.Chunk(b"", 0, 0)


def test_a_cap_of_nothing_keeps_nothing_and_counts_everything(jobdir: Path) -> None:
    capture = write(jobdir, [b"x" * 100], 0)

    assert capture.total == 100
    assert output.read(jobdir, "stdout", total=100) == output.Captured(b"", 100, b"")
