"""A search for an interpreter among files of strangers: what one look costs, and that it goes on with the next."""

from __future__ import annotations

import subprocess

import pytest

from bpfprof.cpython import detect
from bpfprof.cpython.detect import NotPython, find_interpreter
from bpfprof.model.ids import Pid


def test_a_look_takes_so_long_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_SEARCH_CPU_S", 0.0)
    without: dict[tuple[str, int], str] = {}
    found: list[object] = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"ready")
        process.stdout.read(5)
        for _ in range(3):
            found.append(find_interpreter(Pid(process.pid), without_runtime=without))
        process.stdin.close()
    unfinished = NotPython("not all of its files were looked at", retry=True)
    assert found[:2] == [unfinished] * 2, "cat, the C library and the loader"
    assert isinstance(found[2], NotPython) and found[2].reason == "no Python interpreter in this process"
    assert len(without) == 3
