"""Native and kernel frames: rows of the recording to functions, files and lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import COLLECTION, Frame, FrameKind
from bpfprof.model.samples import NAME_EVAL, NAME_INLINED, NO_FILE, TRAMPOLINES
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedFile
from bpfprof.stacks.greenlets import begins_greenlet, is_between, is_greenlet_library, is_saving
from bpfprof.stacks.interpreter_frames import begins_collection, collects, is_internal

# What the evaluation function calls last before 3.11: Python/ceval.c, `exit_eval_frame` (v3.6.15 to v3.10.13).
_RESULT_CHECK = ("_Py_CheckFunctionResult", "_Py_CheckFunctionResult@plt")
_COLLECTION = Frame(FrameKind.NATIVE, COLLECTION)
_UNKNOWN_FILE = RecordedFile("memory", "[unknown]")
# What the kernel runs between an event and our program: kernel/trace/bpf_trace.c, include/linux/tracepoint.h (6.18).
_OWN_KERNEL_FRAME = re.compile(
    r"bpf_prog_.*|bpf_trace_run\d+|__bpf_trace_.*|__traceiter_.*|bpf_get_stack\w*|bpf_overflow_handler"
)


class NativeSource:
    """Frames of one recording, by the number of their row in its table of natives."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        names = recording.names
        self._names = names[np.argsort(names["native"], kind="stable")]
        self._begin = np.searchsorted(self._names["native"], np.arange(len(recording.natives) + 2))
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._shown: dict[tuple[int, bool, bool], tuple[tuple[Frame, ...], bool]] = {}
        self.is_eval = np.zeros(len(recording.natives) + 1, np.bool_)  # by number
        self.is_eval[names["native"][names["flags"] & NAME_EVAL > 0]] = True
        checks = [place for place, text in enumerate(recording.texts) if text in _RESULT_CHECK]
        self._is_check = np.zeros(len(recording.natives) + 1, np.bool_)
        self._is_check[names["native"][np.isin(names["function"], checks)]] = True
        memory = [number for number, file in enumerate(recording.files) if file.kind == "memory"]
        self.is_unknown_jit = np.append(False, np.isin(recording.natives["file"], [*memory, NO_FILE]))  # by number
        self.is_unknown_jit[names["native"]] = False
        numbers = np.flatnonzero(self.is_eval) - 1
        self._interpreters = set(recording.natives["file"][numbers].tolist())
        libraries = [number for number, file in enumerate(recording.files) if is_greenlet_library(file.path)]
        self.is_greenlet = np.append(False, np.isin(recording.natives["file"], libraries))  # by number
        beginnings = [place for place, text in enumerate(recording.texts) if begins_greenlet(text)]
        self.begins_greenlet = np.zeros(len(recording.natives) + 1, np.bool_)
        self.begins_greenlet[names["native"][np.isin(names["function"], beginnings)]] = True

    def frames(self, number: int) -> tuple[Frame, ...]:
        """The function at an address and what was inlined into it, root first."""
        if number not in self._frames:
            self._frames[number] = self._make(number)
        return self._frames[number]

    def checks_result(self, numbers: Sequence[int]) -> bool:
        """Whether the innermost call of the evaluation function, leaf first, has called what checks a result."""
        place = next((place for place, number in enumerate(numbers) if self.is_eval[number]), 0)
        return place > 0 and bool(self._is_check[numbers[place - 1]])

    def is_between_greenlets(self, numbers: Sequence[int]) -> bool:
        """Whether a stack, leaf first, is of a moment in which its Python frames may be another greenlet's."""
        return is_between(self._called(numbers))

    def saves_greenlet(self, numbers: Sequence[int]) -> bool:
        """Whether it is of one in which the stack of its greenlet is copied."""
        return is_saving(self._called(numbers))

    def _called(self, numbers: Sequence[int]) -> list[str]:
        """Functions that the innermost Python function has called, leaf first."""
        calls = itertools.takewhile(lambda number: not self.is_eval[number], numbers)
        return [self.frames(number)[-1].name for number in calls]

    def shown(self, number: int, collects_garbage: bool, is_leaf: bool) -> tuple[tuple[Frame, ...], bool]:
        """What a Python user sees of a frame, whose caller may be a part of a collection of garbage, and whether it is.

        Nothing is seen of CPython at work on the Python frames around it, and one frame of a collection. Code of the
        interpreter's own that has no name, as all of a stripped one, is seen where time passes in it: as the leaf.
        """
        key = number, collects_garbage, is_leaf
        found = self._shown.get(key)
        if found is None:
            found = self._shown[key] = self._make_shown(*key)
        return found

    def _make_shown(self, number: int, collects_garbage: bool, is_leaf: bool) -> tuple[tuple[Frame, ...], bool]:
        frames = self.frames(number)
        if frames[0].file == TRAMPOLINES:
            return (), False
        is_interpreter = number and int(self._recording.natives["file"][number - 1]) in self._interpreters
        name = frames[0].name if is_interpreter else ""
        if is_interpreter and not name and not is_leaf:
            return (), False
        if name == COLLECTION or begins_collection(name) or (collects_garbage and collects(name)):
            return (() if collects_garbage else (replace(_COLLECTION, file=frames[0].file),)), True
        return (() if is_internal(name) else frames), False

    def kernel_frames(self, numbers: npt.NDArray[np.uint32]) -> list[Frame]:
        """Root first, from leaf-first numbers; those of the measurement itself are left out."""
        frames = [frame for number in numbers.tolist() for frame in self.frames(number)]
        while frames and _OWN_KERNEL_FRAME.fullmatch(frames[0].name):
            del frames[0]
        return frames[::-1]

    def _make(self, number: int) -> tuple[Frame, ...]:
        if not number:
            return (Frame(FrameKind.NATIVE, "[frame missing from the recording]"),)
        row = self._recording.natives[number - 1]
        address, file = int(row["address"]), self._file(int(row["file"]))
        texts = self._recording.texts
        found = self._names[self._begin[number] : self._begin[number + 1]]
        if file.kind == "kernel":
            return (Frame(FrameKind.KERNEL, texts[found["function"][0]] if len(found) else ""),)
        frames = []
        for name in found[::-1]:  # innermost first in the recording
            kind = FrameKind.INLINED if name["flags"] & NAME_INLINED else FrameKind.NATIVE
            text, source = texts[name["function"]], texts[name["file"]]
            # With a name the address makes no difference.
            frames.append(Frame(kind, text, file.path, int(name["line"]), 0 if text else address, source))
        return tuple(frames) or (Frame(FrameKind.NATIVE, "", file.path, 0, address),)

    def _file(self, number: int) -> RecordedFile:
        if number == NO_FILE or number >= len(self._recording.files):
            return _UNKNOWN_FILE
        return self._recording.files[number]
