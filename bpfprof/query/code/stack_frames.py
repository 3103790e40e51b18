"""Stacks -> of each the frame that a question is about: the user's own code, or what the CPU time was spent in."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import COLLECTION, Frame, FrameKind
from bpfprof.query.code.functions import Ints, is_of_scheduler
from bpfprof.query.code.origins import GENERATED, OWN_CODE, STDLIB, is_runtime, origins

Bools = npt.NDArray[np.bool_]
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)
OWN_RANK = 7  # of a frame of the user's own code
NATIVE_RANK, LIBRARY_RANK = 3, 5  # of one of a library in C, and in Python
# What pip and Debian install to start a program (`bin/gunicorn`) looks like a script of the user's.
_LAUNCHER = re.compile(r".*/s?bin/[^/.]+", re.DOTALL)
# What a thread begins in says nothing of who started it.
_BEGINNINGS = re.compile(r"(?:libc|libpthread|ld-linux[\w-]*|libstdc\+\+|ld-musl[\w-]*)[-.].*")


class StackFrames:
    """The frames of all stacks in one row, root first, stack by stack. count: of stacks, those without frames, too."""

    def __init__(self, frames: Sequence[Frame], stacks: Sequence[tuple[int, ...]]) -> None:
        self.frames = frames
        self._libraries = [origin.library for origin in origins(frames)]
        lengths = np.fromiter(map(len, stacks), np.int64, len(stacks))
        self.flat = np.fromiter(chain.from_iterable(stacks), np.int64, int(lengths.sum()))
        self.stack_of = np.repeat(np.arange(len(stacks)), lengths)
        self._filled = np.flatnonzero(lengths)
        self._begin = (np.cumsum(lengths) - lengths)[self._filled]
        self.count = len(stacks)

    def innermost_of_best(self, ranks: Sequence[int]) -> Ints:
        """For each stack the innermost of the frames with the highest rank; -1: none has a rank above 0."""
        return self._best(ranks, is_outermost=False)

    def outermost_of_best(self, ranks: Sequence[int]) -> Ints:
        """The same of the outermost."""
        return self._best(ranks, is_outermost=True)

    def _best(self, ranks: Sequence[int], is_outermost: bool) -> Ints:
        found = np.full(self.count, -1, np.int64)
        if not len(self.flat):
            return found
        places = np.arange(len(self.flat))
        last = places[-1] if is_outermost else 0
        keys = np.array(ranks, np.int64)[self.flat] << 40 | np.abs(last - places)
        best = np.maximum.reduceat(keys, self._begin)
        found[self._filled] = np.where(best >> 40 > 0, self.flat[np.abs(last - (best & (1 << 40) - 1))], -1)
        return found

    def last_frames(self, count: int) -> list[Ints]:
        """For each stack its last frame, the one before it, and so on; -1 where there are no more."""
        found = [np.full(self.count, -1, np.int64) for _ in range(count)]
        lengths = np.bincount(self.stack_of, minlength=self.count)[self._filled]
        for back, column in enumerate(found, 1):
            is_there = lengths >= back
            column[self._filled[is_there]] = self.flat[(self._begin + lengths - back)[is_there]]
        return found

    def have(self, marked: Sequence[bool]) -> Bools:
        """Whether each stack has one of the marked frames."""
        found = np.zeros(self.count, np.bool_)
        found[self.stack_of[np.array([*marked, False], np.bool_)[self.flat]]] = True
        return found

    def pass_through(self, functions: Sequence[tuple[str, Collection[str]]]) -> Bools:
        """Whether each stack leads through one of these functions of Python: (end of the path, last words of names)."""
        return self.have(
            [
                frame.kind == FrameKind.PYTHON
                and any(
                    frame.name.rpartition(".")[2] in names and frame.file.endswith(file) for file, names in functions
                )
                for frame in self.frames
            ]
        )

    def in_objects(self, names: tuple[str, ...]) -> Bools:
        """Whether each stack is in native code of a file whose name begins so."""
        return self.have(
            [
                frame.kind == FrameKind.NATIVE and frame.file.rpartition("/")[2].startswith(names)
                for frame in self.frames
            ]
        )

    def in_functions(self, names: Collection[str]) -> Bools:
        """Whether each stack is in one of these native functions, whatever underscores they begin with."""
        return self.have([frame.kind == FrameKind.NATIVE and frame.name.lstrip("_") in names for frame in self.frames])

    def collect_garbage(self) -> Bools:
        """Whether each stack is in a collection of garbage."""
        return self.have([frame.kind == FrameKind.NATIVE and frame.name == COLLECTION for frame in self.frames])

    def in_files(self, parts: Collection[str]) -> Bools:
        """Whether the file of each stack's innermost Python frame has one of these in it."""
        marked = [frame.kind == FrameKind.PYTHON and any(part in frame.file for part in parts) for frame in self.frames]
        return np.array([*marked, False])[self.innermost_python()]

    def call_library(self, names: Collection[str]) -> Bools:
        """Whether each stack is in one of these libraries, called by the user's own code."""
        is_one = [library in names for library in self._libraries]
        innermost = self.innermost_of_best([one or name == OWN_CODE for one, name in zip(is_one, self._libraries)])
        return np.array([*is_one, False])[innermost] & (self.own_depths() > 0)

    def own_code(self) -> Ints:
        """For each stack the frame of the user's own code; without any the nearest to it, a library's before C."""
        return self.innermost_of_best(self.nearness.tolist())

    def outermost_own(self) -> Ints:
        """For each stack the outermost frame of the user's own code, -1: none."""
        found = np.full(self.count, -1, np.int64)
        places = np.flatnonzero(self._are_own())
        stacks, first = np.unique(self.stack_of[places], return_index=True)
        found[stacks] = self.flat[places[first]]
        return found

    def beginnings(self) -> Ints:
        """For each stack the outermost frame that may say who started its thread, -1: none."""
        return self.outermost_of_best(
            [
                frame.kind == FrameKind.PYTHON
                or (frame.kind in _NATIVE and not _BEGINNINGS.match(frame.file.rpartition("/")[2]))
                for frame in self.frames
            ]
        )

    @cached_property
    def nearness(self) -> Ints:
        """For each frame how near to the user's own code it is, OWN_RANK: it is; 0: marks."""
        return np.array([self._nearness(frame, lib) for frame, lib in zip(self.frames, self._libraries)], np.int64)

    def own_depths(self) -> Ints:
        """How many frames of the user's own code each stack has."""
        return np.bincount(self.stack_of[self._are_own()], minlength=self.count)

    def _are_own(self) -> Bools:
        """For each of `flat` whether it is the user's own code."""
        return np.asarray(np.append(self.nearness == OWN_RANK, False)[self.flat])

    def innermost_python(self) -> Ints:
        """For each stack its innermost Python frame, -1: none."""
        return self._innermost_python

    @cached_property
    def _innermost_python(self) -> Ints:
        return self.innermost_of_best([frame.kind == FrameKind.PYTHON for frame in self.frames])

    def are_native(self) -> Bools:
        """Whether each stack's time is of native code, which the interpreter and what it does for Python is not."""
        ranks = [
            0 if not library else 1 if frame.kind == FrameKind.KERNEL else 2 if is_runtime(library) else 3
            for frame, library in zip(self.frames, self._libraries)
        ]
        kinds = np.array([*(frame.kind for frame in self.frames), FrameKind.NOT_SAMPLED], np.int64)
        return np.isin(kinds[self.innermost_of_best(ranks)], [*_NATIVE, FrameKind.KERNEL])

    def _nearness(self, frame: Frame, library: str) -> int:
        if frame.kind == FrameKind.PYTHON:
            if library == OWN_CODE and not _LAUNCHER.fullmatch(frame.file):
                return OWN_RANK
            # Most of it is made by dataclasses and the like; `python -c` has nothing else.
            return 6 if library == GENERATED else 4 if library == STDLIB else LIBRARY_RANK
        if frame.kind in _NATIVE:
            return 2 if is_runtime(library) else NATIVE_RANK
        return 1 if frame.kind == FrameKind.KERNEL and not is_of_scheduler(frame) else 0
