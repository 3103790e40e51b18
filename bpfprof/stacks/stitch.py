"""The frames of one stack in their true order, root first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind, mark
from bpfprof.model.statuses import NativeFlag, Status
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedProcess
from bpfprof.stacks.greenlets import only_call, own_count
from bpfprof.stacks.merge import Side, merge
from bpfprof.stacks.native_frames import NativeSource
from bpfprof.stacks.python_frames import KnownFunctions, PythonSource

_INEXACT = NativeFlag.BY_FRAME_POINTER | NativeFlag.BARE_LEAF
_NOTHING_KNOWN = RecordedProcess()
# 3.13 and later put this frame under constructors that they call by a short cut: _Py_InitCleanup, Python/specialize.c
# (v3.13.0).
_INIT_CLEANUP = Frame(FrameKind.PYTHON, "__init__", "__init__", 0)
_NUMBER_BYTES = 4
_MOST_PLANNED = 1 << 20  # frames: a stranger's recording may have no two stacks alike


class StackSource:
    """Stacks of one recording as tuples of frames. With `show_interpreter` CPython's own functions stay.

    known: what was made for recordings of the same programs before; more comes to it.
    """

    def __init__(
        self, recording: Recording, show_interpreter: bool = False, known: KnownFunctions | None = None
    ) -> None:
        self._recording = recording
        self._shows_interpreter = show_interpreter
        self._python = PythonSource(recording, known)
        self._native = NativeSource(recording)
        stacks = self._stacks = recording.stacks.copy()
        self._python_ends = np.cumsum(stacks["python_count"], dtype=np.int64)
        self._native_ends = np.cumsum(stacks["native_count"] + stacks["kernel_count"].astype(np.int64))
        self._native_begins = self._native_ends - stacks["native_count"] - stacks["kernel_count"]
        # For each process, and one that is not known.
        self._versions = [process.python for process in (*recording.processes, _NOTHING_KNOWN)]
        self._numbers = recording.native_frames["native"]  # of each native frame
        self._is_exposed = np.zeros(len(stacks), np.bool_)  # Python frames of one call, without its entry
        self._end_greenlets()
        self._is_eval = self._native.is_eval[self._numbers]
        # For each frame a byte, 1: it is; of bytes a part is had sooner than of an array.
        self._evals, self._jits = self._is_eval.tobytes(), self._native.is_unknown_jit[self._numbers].tobytes()
        self._entry_marks = self._entries()[0].tobytes()
        self._number_bytes = self._numbers.tobytes()
        self._plans: dict[tuple[Any, ...], list[Any]] = {}  # many stacks differ in their Python frames alone
        self._planned = 0  # frames in them
        self._has_cleanup = any(code.filename == _INIT_CLEANUP.file for code in recording.codes)
        self._texts: dict[str, str] = recording.start.get("status_texts", {})
        self.statuses = np.concatenate([[Status.STACK_NOT_TAKEN], self._statuses()]).astype(
            np.uint8
        )  # by number of the stack

    @property
    def is_python_only(self) -> npt.NDArray[np.bool_]:
        """For each stack by its number, whether native frames were not taken."""
        stacks = self._recording.stacks
        alone = (stacks["native_status"] == Status.STACK_NOT_TAKEN) & (stacks["python_count"] > 0)
        return np.concatenate([[False], alone])

    @property
    def is_without_rules(self) -> npt.NDArray[np.bool_]:
        """For each stack by its number, whether it leads through code that has no unwind rules."""
        return np.concatenate([[False], self._recording.stacks["native_flags"] & _INEXACT > 0])

    @property
    def lacks_names(self) -> npt.NDArray[np.bool_]:
        """For each stack by its number, whether it has a Python function of which nothing could be read."""
        stacks, frames = self._stacks, self._recording.python_frames
        processes = [*self._recording.processes, _NOTHING_KNOWN]
        # The frame that stands for the call of C and is no function.
        has_shims = np.array([not (process.shim_is_python or process.python is None) for process in processes])
        of_shims = np.repeat(has_shims[np.minimum(stacks["process"], len(processes) - 1)], stacks["python_count"])
        is_unread = np.array([True, *(bool(code.reason) for code in self._recording.codes)])
        is_lacking = is_unread[np.minimum(frames["code"][: len(of_shims)], len(is_unread) - 1)]
        is_lacking &= ~(of_shims & self._entries()[0][:-1])
        counts = stacks["python_count"]
        return np.concatenate([[False], _counts(is_lacking, self._python_ends - counts, counts) > 0])

    def reason(self, status: int) -> str:
        """Why a stack with this status is not whole; "" when it is."""
        return "" if status == Status.OK else str(self._texts.get(str(int(status)), f"status {status}"))

    def frames(self, stack: int, status: int) -> tuple[Frame, ...]:
        """Frames root first; a mark comes first where the root is missing. Stack 0 has only its mark."""
        frames: list[Frame] = []
        if stack:
            status = int(self.statuses[stack])
            frames = self._frames(stack)
        reason = self.reason(status)
        return (mark(FrameKind.TRUNCATED, reason), *frames) if reason else tuple(frames)

    def _frames(self, stack: int) -> list[Frame]:
        process, python_count, native_count, kernel_count, status, native_status, _ = self._stacks[stack - 1].item()
        python_end, begin = int(self._python_ends[stack - 1]), int(self._native_begins[stack - 1])
        python_begin, end = python_end - python_count, int(self._native_ends[stack - 1])  # kernel frames are last
        key = (
            self._number_bytes[_NUMBER_BYTES * begin : _NUMBER_BYTES * end],
            native_count,
            self._entry_marks[python_begin:python_end] + b"\1" * bool(self._is_exposed[stack - 1]),
            self._versions[min(process, len(self._versions) - 1)],
            self._process(process).shim_is_python,
            python_count > 0,
            native_status == Status.OK,
            status == Status.OK,
            kernel_count,
        )
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(begin, *key[1:-1]) + self._native.kernel_frames(self._numbers[end - kernel_count : end])
            self._planned += len(plan) + end - begin
            if self._planned > _MOST_PLANNED:
                self._plans.clear()
                self._planned = len(plan) + end - begin
            self._plans[key] = plan
        python = self._python.frames(python_begin, python_end)
        frames = [python[each] if each.__class__ is int else each for each in plan]
        if not self._has_cleanup:
            return frames
        return [frame for frame in frames if frame.file != _INIT_CLEANUP.file or frame != _INIT_CLEANUP]

    def _plan(
        self,
        begin: int,
        native_count: int,
        marks: bytes,
        version: tuple[int, int] | None,
        shim_is_python: bool,
        has_python: bool,
        native_complete: bool,
        python_complete: bool,
    ) -> list[Any]:
        """What stacks with these native frames and entry marks show, root first: frames, and places of Python ones."""
        end = begin + native_count
        native = self._numbers[begin:end].tolist()
        order = _order(
            self._evals[begin:end],
            marks,
            shim_is_python or version is None,
            native_complete,
            python_complete,
            self._shows_interpreter,
            self._returns(version, native),
        )
        hides = has_python and not self._shows_interpreter
        may_hide = hides and b"\1" in self._jits[begin:end]
        found: list[Any] = []
        collects_garbage = False
        for each in order:
            index, is_python = each >> 1, each & 1
            if is_python:
                collects_garbage = False
                found.append(index)
            elif may_hide and self._is_jit(native, begin, index):
                continue
            elif hides:
                shown, collects_garbage = self._native.shown(native[index], collects_garbage, index == 0)
                found += shown
            else:
                found += self._native.frames(native[index])
        return found

    def _native_numbers(self, row: int) -> list[int]:
        begin, count = int(self._native_begins[row]), int(self._stacks["native_count"][row])
        numbers: list[int] = self._numbers[begin : begin + count].tolist()
        return numbers

    def _end_greenlets(self) -> None:
        """Leaves the stacks of greenlets, with which whatever lay beyond was taken, only what is their own.

        One in which a greenlet is just being switched is marked.
        """
        stacks, of_greenlets = self._stacks, self._native.is_greenlet[self._numbers]
        has_greenlet = _counts(of_greenlets, self._native_begins, stacks["native_count"]) > 0
        is_known = (stacks["status"] == Status.OK) | (stacks["status"] == Status.NO_PYTHON)
        for row in np.flatnonzero(has_greenlet & is_known).tolist():
            native, process = self._native_numbers(row), self._process(int(stacks["process"][row]))
            if stacks["python_count"][row] and self._native.is_between_greenlets(native):
                stacks["native_status"][row] = Status.STACK_DISAGREES
                continue
            end = int(self._python_ends[row])
            marks = self._recording.python_frames["mark"][end - int(stacks["python_count"][row]) : end]
            runs = int(np.count_nonzero(marks >= process.entry_marks_from))
            is_eval = self._native.is_eval[native].tolist()
            may_be_unlinked = is_eval[0] or self._returns(process.python, native)
            is_greenlet, begins = (
                each[native].tolist() for each in (self._native.is_greenlet, self._native.begins_greenlet)
            )
            has_entries = runs > 0 or process.shim_is_python or not stacks["python_count"][row]
            if not has_entries and self._native.saves_greenlet(native):
                count = only_call(is_eval, is_greenlet, begins)
                self._is_exposed[row] = count is not None
            else:
                count = own_count(is_eval, is_greenlet, begins, runs, may_be_unlinked)
            if count is not None:
                stacks["native_count"][row], stacks["native_status"][row] = count, Status.OK

    def _entries(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """(of each Python frame and one more, of each stack): whether it is an entry, and how many there are."""
        stacks = self._stacks
        processes = [*self._recording.processes, _NOTHING_KNOWN]
        first_mark = np.array([process.entry_marks_from for process in processes])
        process = np.minimum(stacks["process"], len(first_mark) - 1)
        marks = self._recording.python_frames["mark"][: int(stacks["python_count"].sum())]
        is_entry = np.append(marks >= np.repeat(first_mark[process], stacks["python_count"]), True)
        return is_entry, _counts(is_entry, self._python_ends - stacks["python_count"], stacks["python_count"])

    def _is_jit(self, native: list[int], begin: int, index: int) -> bool:
        """Whether a frame is code of CPython's own JIT: made at run time, and called by the evaluation function."""
        is_called = index + 1 < len(native) and bool(self._is_eval[begin + index + 1])
        return is_called and bool(self._native.is_unknown_jit[native[index]])

    def _returns(self, version: tuple[int, int] | None, native: list[int]) -> bool:
        return version is not None and version < (3, 11) and self._native.checks_result(native)

    def _process(self, index: int) -> RecordedProcess:
        processes = self._recording.processes
        return processes[index] if index < len(processes) else _NOTHING_KNOWN

    def _statuses(self) -> npt.NDArray[np.uint8]:
        """For each stack as a whole."""
        stacks = self._stacks
        python, native = stacks["status"], stacks["native_status"]
        statuses = np.where((native != Status.OK) & (native != Status.STACK_NOT_TAKEN), native, python)
        has_native = stacks["native_count"] + stacks["kernel_count"] > 0
        statuses[has_native & (statuses == Status.NO_PYTHON)] = Status.OK
        # Of a process that never turned out to be one of Python none are missing, but in calls of Python.
        ran_python = np.array([process.python is not None for process in self._recording.processes] or [True])
        ran = ran_python[np.minimum(stacks["process"], len(ran_python) - 1)]
        ran |= _counts(np.append(self._is_eval, False), self._native_begins, stacks["native_count"]) > 0
        statuses[has_native & (statuses == Status.PYTHON_NOT_READY) & ~ran] = Status.OK
        statuses[(statuses == Status.OK) & self._disagree()] = Status.STACK_DISAGREES
        return statuses

    def _disagree(self) -> npt.NDArray[np.bool_]:
        """For each stack that is whole what merge() finds: native and Python frames tell of different calls."""
        stacks, native_begin = self._stacks, self._native_begins
        if not len(stacks):
            return np.zeros(0, np.bool_)
        is_eval = np.append(self._is_eval, False)
        evals = _counts(is_eval, native_begin, stacks["native_count"])
        leaf_is_eval = is_eval[native_begin] & (stacks["native_count"] > 0)
        is_entry, runs = self._entries()
        has_open_end = ~is_entry[self._python_ends - 1] & (stacks["python_count"] > 0)
        agrees = (evals == runs) | ((evals == runs + 1) & leaf_is_eval)
        for stack in np.flatnonzero((evals == runs + 1) & ~leaf_is_eval & (runs > 0)).tolist():
            process_of_stack = self._process(int(stacks["process"][stack]))
            agrees[stack] = self._returns(process_of_stack.python, self._native_numbers(stack))
        is_apart = (~agrees | has_open_end) & ~self._is_exposed & (stacks["python_count"] > 0)
        # Of one call the frame may not be linked yet, or not any more; of a call that has called C it is.
        lacks_all = (stacks["python_count"] == 0) & (stacks["status"] == Status.NO_PYTHON) & (evals > leaf_is_eval)
        return np.asarray((stacks["native_count"] > 0) & (is_apart | lacks_all))


@lru_cache(1 << 12)
def _order(is_eval: bytes, marks: bytes, *how: bool) -> tuple[int, ...]:
    """What merge() finds, root first: a frame's place << 1 | whether it is one of Python. Few stacks differ in this."""
    shim_is_python, native_complete, python_complete, keep_eval, returns = how
    merged = merge(
        [*map(bool, is_eval)],
        [*map(bool, marks)],
        shim_is_python=shim_is_python,
        native_complete=native_complete,
        python_complete=python_complete,
        keep_eval=keep_eval,
        returns=returns,
    )
    return tuple([index << 1 | (side is Side.PYTHON) for side, index in reversed(merged.order)])


def _counts(
    flags: npt.NDArray[np.bool_], begin: npt.NDArray[np.int64], count: npt.NDArray[np.uint16]
) -> npt.NDArray[np.int64]:
    """How many flags are set in each of these ranges."""
    before = np.concatenate([[0], np.cumsum(flags)])
    return np.asarray(before[begin + count] - before[begin])
