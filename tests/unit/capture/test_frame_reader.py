"""Frames of a look: each code object is read once, and all of them in a limited time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from bpfprof.capture import frame_reader as module
from bpfprof.capture.frame_reader import FrameReader
from bpfprof.capture.process import Process
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.model.ids import RuntimeAddress


def test_of_very_many_code_objects_the_rest_says_why_it_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, reads = [0.0], []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def read_code(address: int) -> CodeObject | Unresolved:
        now_s[0] += 1.0
        reads.append(address)
        at = RuntimeAddress(address)
        return CodeObject(at, "a.py", f"f{address}", f"f{address}", 1, b"", at, (0, 0, 0, 0))

    layout = SimpleNamespace(version=(3, 11), shim_is_python=False, entry_marks_from=1)
    process = SimpleNamespace(read_code=read_code, interpreter=SimpleNamespace(layout=layout))
    reader = FrameReader(cast(Process, process))
    frames = reader.frames([(address, address, 0) for address in (1, 2, 1, 3, 4, 5, 6, 7, 1)])
    unread = "[too many code objects to be read in time]"
    assert [frame.name for frame in frames] == ["f1", "f2", "f1", "f3", "f4", "f5", unread, unread, "f1"]
    assert reads == [1, 2, 3, 4, 5]
