"""Stacks of a recording as frames a person reads."""

from __future__ import annotations

import sys

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.statuses import Status
from bpfprof.stacks import python_frames as python_source
from bpfprof.stacks.stitch import StackSource
from tests.unit.recording.hand_made import HandMade

FAULT, NO_PYTHON = int(Status.PYTHON_FRAME_FAULT), int(Status.NO_PYTHON)
# How entries are marked: 3.11 marks a real frame; 3.12 and later put a frame of their own (a shim) below it.
MARKS_3_11 = {"interpreter": "cpython", "version": "3.11.2", "entry_marks_from": 1, "shim_is_python": True}
MARKS_3_12 = {"interpreter": "cpython", "version": "3.12.4", "entry_marks_from": 3, "shim_is_python": False}


def names(frames: tuple[Frame, ...]) -> list[str]:
    return [frame.name for frame in frames]


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process(**MARKS_3_11)
    return empty


def test_frames_come_root_first(made: HandMade) -> None:
    leaf, middle, root = (made.code(name) for name in ("leaf", "middle", "root"))
    stack = made.stack((leaf, 0, 0), (middle, 0, 0), (root, 0, 0))
    other = made.stack((middle, 0, 0))
    source = StackSource(made.recording())
    assert names(source.frames(stack, 0)) == ["root", "middle", "leaf"]
    assert names(source.frames(other, 0)) == ["middle"]


def test_entries_of_3_11_are_kept(made: HandMade) -> None:
    leaf, root = made.code("leaf"), made.code("root")
    stack = made.stack((leaf, 0, 0), (leaf, 0, 1), (root, 0, 1))
    assert names(StackSource(made.recording()).frames(stack, 0)) == ["root", "leaf", "leaf"]


def test_shims_of_3_12_are_dropped(made: HandMade) -> None:
    process = made.process(101, **MARKS_3_12)
    leaf, root, shim = (made.code(name, process) for name in ("leaf", "root", "<interpreter trampoline>"))
    stack = made.stack((leaf, 0, 0), (shim, 0, 3), (root, 0, 1), (shim, 0, 4), process=process)
    source = StackSource(made.recording())
    assert names(source.frames(stack, 0)) == ["root", "leaf"]


def test_each_stack_goes_by_the_marks_of_its_process(made: HandMade) -> None:
    newer = made.process(101, **MARKS_3_12)
    code = made.code("run")
    stacks = [made.stack((code, 0, 3), process=process) for process in (0, newer)]
    source = StackSource(made.recording())
    assert [names(source.frames(stack, 0)) for stack in stacks] == [["run"], []]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs a line table as it is from 3.11 on")
def test_frames_from_before_an_exec_are_kept(made: HandMade) -> None:
    """A process that became another program is described anew: it runs no Python now, but it did."""
    code = example.__code__
    number = made.code("example", linetable=code.co_linetable, first_line=code.co_firstlineno)
    last = max((line, start) for start, _, line in code.co_lines() if line is not None)
    stack = made.stack((number, last[1], 0), (number, 0, 1))
    made.processes.append(
        {"index": 0, "name": "sleep", "interpreter": "", "entry_marks_from": 0, "shim_is_python": False}
    )
    recording = made.recording()
    frames = StackSource(recording).frames(stack, 0)
    assert recording.processes[0].name == "sleep"
    assert names(frames) == ["example", "example"] and frames[-1].line == last[0]


def test_a_stack_that_is_not_whole_begins_with_its_mark(made: HandMade) -> None:
    stack = made.stack((made.code("leaf"), 0, 0), status=FAULT)
    source = StackSource(made.recording())
    first, second = source.frames(stack, 0)
    assert (first.kind, first.name) == (FrameKind.TRUNCATED, "Python frame unreadable")
    assert second.name == "leaf"


def test_no_stack_has_only_its_mark(made: HandMade) -> None:
    source = StackSource(made.recording())
    assert source.frames(0, NO_PYTHON) == (Frame(FrameKind.TRUNCATED, "no Python frames"),)
    assert source.frames(0, 0) == ()
    assert source.frames(0, 250) == (Frame(FrameKind.TRUNCATED, "status 250"),)


def test_the_words_are_those_of_the_recording(made: HandMade) -> None:
    made.start["status_texts"] = {"4": "worded by another version"}
    assert StackSource(made.recording()).reason(4) == "worded by another version"


def test_code_that_is_missing_or_unreadable_says_so(made: HandMade) -> None:
    unreadable = made.code("", reason="the code object is not readable")
    stack = made.stack((unreadable, 0, 0), (0, 0, 0), (99, 0, 0))
    frames = StackSource(made.recording()).frames(stack, 0)
    missing = "[code object missing from the recording]"
    assert names(frames) == [missing, missing, "[the code object is not readable]"]
    assert all(frame.kind == FrameKind.PYTHON and frame.line == 0 for frame in frames)


def example(value: int) -> int:
    total = 0
    for step in range(value):
        total += step
    return total


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs a line table as it is from 3.11 on")
def test_lines_are_those_being_executed(made: HandMade) -> None:
    code = example.__code__
    number = made.code("example", linetable=code.co_linetable, first_line=code.co_firstlineno)
    offsets = {line: start for start, _, line in reversed(list(code.co_lines())) if line is not None}
    stacks = {line: made.stack((number, offset, 0)) for line, offset in offsets.items()}
    assert len(stacks) >= 4
    not_started, far = made.stack((number, -2, 0)), made.stack((number, 1 << 30, 0))
    source = StackSource(made.recording())
    for line, stack in stacks.items():
        (frame,) = source.frames(stack, 0)
        assert (frame.name, frame.file, frame.line) == ("example", "/srv/a.py", line)
    assert source.frames(not_started, 0)[0].line == code.co_firstlineno
    assert code.co_firstlineno <= source.frames(far, 0)[0].line <= code.co_firstlineno + 4


def test_without_a_version_a_frame_has_its_first_line(made: HandMade) -> None:
    other = made.process(101, python=None, entry_marks_from=9)
    stack = made.stack((made.code("run", other, linetable=b"\xff" * 9, first_line=42), 6, 0), process=other)
    assert StackSource(made.recording()).frames(stack, 0)[0].line == 42


def test_a_damaged_line_table_does_no_harm(made: HandMade) -> None:
    stack = made.stack(
        *((made.code("run", linetable=bytes(range(200, 256)), first_line=7), offset, 0) for offset in (0, 90))
    )
    assert names(StackSource(made.recording()).frames(stack, 0)) == ["run", "run"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs a line table as it is from 3.11 on")
def test_a_line_table_is_decoded_once(made: HandMade, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    original = python_source.LineTable.decode

    def decode(version: tuple[int, int], linetable: bytes, first_line: int) -> python_source.LineTable:
        decoded.append(first_line)
        return original(version, linetable, first_line)

    monkeypatch.setattr(python_source.LineTable, "decode", staticmethod(decode))
    number = made.code("run", linetable=example.__code__.co_linetable)
    for offset in (0, 2, 4, 4, 2):
        made.stack((number, offset, 0))
    recording = made.recording()
    source = python_source.PythonSource(recording)
    assert len(source.frames(0, 5)) == 5 and len(decoded) == 1


@pytest.mark.parametrize(
    ("shim_is_python", "expected"), [(True, [False, False, True, True]), (False, [False, False, True, False])]
)
def test_functions_that_were_not_read_are_told(shim_is_python: bool, expected: list[bool]) -> None:
    """A frame that stands for a call of C and is no function need not be read."""
    made = HandMade()
    made.process(shim_is_python=shim_is_python)
    known, unread = made.code("f"), made.code("", reason="replaced")
    for frames in ([(known, 0, 0), (known, 0, 1)], [(unread, 0, 0), (known, 0, 1)], [(known, 0, 0), (unread, 0, 1)]):
        made.stack(*frames)
    assert StackSource(made.recording()).lacks_names.tolist() == expected
