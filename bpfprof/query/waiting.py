"""Stacks -> which of them wait in functions of libraries that are known to, by known/waiting.txt."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bpfprof.known.waiting import COPIES, DOWNLOAD, LAUNCH, OF_DEVICE, SPIN, SPIN_OWN, UPLOAD, WORK, kind_of
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import group_numbers
from bpfprof.query.functions import Ints
from bpfprof.query.stack_frames import Bools, StackFrames

_LAST = 3  # frames that tell the end of a stack: what was waited for, the system call, and who made it
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)


class StackWaits:
    """Of all stacks. What Python a library calls back is the program's own: it waits for nothing by that."""

    def __init__(self, stack_frames: StackFrames) -> None:
        self._stack_frames = stack_frames
        frames = stack_frames.frames
        self._is_python = np.array([it.kind == FrameKind.PYTHON for it in frames], np.bool_)
        # The table is of native code: a function of Python may have any name.
        self.kinds = np.array([kind_of(it.name, it.file) if it.kind in _NATIVE else 0 for it in frames], np.int64)
        self.device_frame = self._innermost(np.isin(self.kinds, (*OF_DEVICE, LAUNCH)))
        self.of_device = np.append(self.kinds, 0)[self.device_frame]
        self.for_device = np.isin(self.of_device, OF_DEVICE)
        self.for_device |= self._like_whole(self.for_device)

    @cached_property
    def launches(self) -> Bools:
        """Whether each stack hands work to a device."""
        return np.asarray(self.of_device == LAUNCH)

    @cached_property
    def copies(self) -> Bools:
        """Whether each stack copies to or from a device."""
        return np.isin(self.of_device, COPIES)

    @cached_property
    def copies_pageable(self) -> tuple[Bools, Bools]:
        """Whether each stack copies memory that is not pinned (to a device, from one).

        A call that does not wait for the copy says so by taking its time all the same.
        """
        frames = self._stack_frames.frames
        is_async = np.array([*("Async" in frame.name for frame in frames), False], np.bool_)[self.device_frame]
        return is_async & (self.of_device == UPLOAD), is_async & (self.of_device == DOWNLOAD)

    @cached_property
    def spins(self) -> Bools:
        """Whether each stack, on a CPU, waits for other threads or ranks."""
        frames, kinds = self._stack_frames.frames, self.kinds
        has_name = np.array([bool(frame.name) for frame in frames], np.bool_)
        named = self._innermost(np.isin(kinds, (SPIN, WORK)) | ((kinds == SPIN_OWN) & has_name))
        named_kind = np.append(kinds, 0)[named]
        # The kernel's part of a call is its; so is that of one that gives the CPU away.
        is_code = [it.kind in (*_NATIVE, FrameKind.PYTHON) and not it.name.endswith("sched_yield") for it in frames]
        inner = np.append(kinds, 0)[self._stack_frames.innermost_of_best(is_code)]
        own = (inner == SPIN_OWN) & (named_kind != WORK)
        return np.asarray(((named_kind == SPIN) | own) & (self.of_device == 0))

    def _like_whole(self, chosen: Bools) -> Bools:
        """Stacks of which only the inner part is known, and that end as whole ones do that are all chosen: in the same
        line of Python, and the same last frames."""
        frames = self._stack_frames
        is_mark = [frame.kind == FrameKind.TRUNCATED for frame in frames.frames]
        python = frames.innermost_python()
        cut = frames.have(is_mark) & (python >= 0) & ~chosen
        if not cut.any() or not chosen.any():
            return np.zeros_like(chosen)
        first, number = group_numbers(column + 1 for column in (python, *frames.last_frames(_LAST)))
        found: Bools = np.zeros(len(first), np.bool_)
        found[number[chosen & (python >= 0)]] = True
        found[number[~cut & ~chosen]] = False
        return cut & found[number]

    def _innermost(self, marked: Bools) -> Ints:
        """Of each stack its innermost marked frame, -1: none, or it has called Python."""
        ranks = np.where(marked | self._is_python, 1, 0)
        found = self._stack_frames.innermost_of_best(ranks.tolist())
        return np.where(np.append(marked, False)[found], found, -1)
