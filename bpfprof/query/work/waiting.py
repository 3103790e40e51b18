"""Stacks -> which of them wait in functions of libraries that are known to, by known/waiting.txt."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from bpfprof.known.frameworks import XLA
from bpfprof.known.waiting import (
    COPIES,
    COPY,
    DOWNLOAD,
    KINDS,
    LAUNCH,
    MEMORY,
    OF_DEVICE,
    QUERY,
    SPIN,
    SPIN_OWN,
    SYNC,
    UPLOAD,
    WORK,
    kind_of,
)
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import group_numbers
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames

QUEUE = len(KINDS) + 1  # beside KINDS: a launch that waits until the device has room for it
_LAST = 3  # frames that tell the end of a stack: what was waited for, the system call, and who made it
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)
# What a loop that waits calls in each of its turns, and how much of the time of what only calls that is in it: it lets
# others have the CPU, which is long, or looks at the time.
_YIELDS = ("sched_yield",), 0.95
_CLOCKS = ("sched_yield", "clock_gettime", "vdso_clock_gettime", "gettimeofday"), 0.5
_IN_CALL = 0.5  # the same of the call itself, where that is the loop
_AROUND = 0.8  # of the time of a function that spins, in those that it calls for that
_IN_LOOP = 0.1  # the same of a frame that has called such a loop
_COPIES = re.compile(r"_*(?:GI_)?mem(?:p?cpy|move)(?:_\w+)?")  # also in what CANN has in place of libc's
_COPIES_IN = re.compile(r"(?:.*/)?(?:lib(?:c|c_sec|securec)\b|ld-)[^/]*")
_TOLD = re.compile(r"\w+Memcpy(?:HtoA|AtoH)\w*|(?:cl|ur)Enqueue(?:Mem)?(?:Buffer|Image)?(?:Read|Write)\w*")  # of COPY
_PAGE_FAULTS = re.compile(
    r"(?:asm_)?(?:exc_)?page_fault|do_page_fault|do_user_addr_fault|handle_mm_fault|\w*(?:get|pin)_user_pages\w*"
)


class StackWaits:
    """Of all stacks. What Python a library calls back is the program's own: it waits for nothing by that.

    cpu_ns: for each stack how long it was on a CPU. of_device: for each one of KINDS, QUEUE, or 0.
    """

    def __init__(self, stack_frames: StackFrames, cpu_ns: Ints) -> None:
        self._stack_frames, self._cpu_ns = stack_frames, cpu_ns
        frames = stack_frames.frames
        self._is_python = np.array([frame.kind == FrameKind.PYTHON for frame in frames], np.bool_)
        # The table is of native code: a function of Python may have any name.
        self.kinds = np.array(
            [kind_of(frame.name, frame.file) if frame.kind in _NATIVE else 0 for frame in frames], np.int64
        )
        self.device_frame = self._innermost(np.isin(self.kinds, (*OF_DEVICE, LAUNCH)))
        self.of_device = np.append(self.kinds, 0)[self.device_frame]
        for kinds, turn, then in (((LAUNCH,), _YIELDS, QUEUE), ((UPLOAD, DOWNLOAD, MEMORY), _CLOCKS, SYNC)):
            self.of_device[self._in_loops(np.isin(self.of_device, kinds), *turn)] = then
        self.for_device = np.isin(self.of_device, (*OF_DEVICE, QUEUE))
        self.for_device |= self._like_whole(self.for_device)

    @cached_property
    def in_xla(self) -> Bools:
        """Whether each stack's call of a device is one of XLA's own, which asks any kind of device, and the CPU."""
        names = (frame.file.rpartition("/")[2] for frame in self._stack_frames.frames)
        return np.array([*(bool(XLA.match(name)) for name in names), False], np.bool_)[self.device_frame]

    @cached_property
    def launches(self) -> Bools:
        """Whether each stack hands work to a device."""
        return np.asarray(self.of_device == LAUNCH)

    @cached_property
    def queries(self) -> Bools:
        """Whether each stack asks whether a device is done."""
        return np.asarray(self.of_device == QUERY)

    @cached_property
    def copies(self) -> Bools:
        """Whether each stack copies to or from a device."""
        return np.isin(self.of_device, COPIES)

    @cached_property
    def copies_pageable(self) -> tuple[Bools, Bools, Bools]:
        """Whether each stack copies memory that is not pinned (to a device, from one, either way).

        A call that does not wait for the copy says so by taking its time all the same. Of other calls it is known where
        the CPU copies, or pages are not there or have yet to be pinned. Of one whose name has no direction the latter
        alone say it: from host to host the CPU copies, too.
        """
        stack_frames, frames = self._stack_frames, self._stack_frames.frames
        is_async = np.array([*("Async" in frame.name for frame in frames), False], np.bool_)[self.device_frame]
        inner = stack_frames.innermost_of_best([frame.kind in _NATIVE for frame in frames])
        faults = stack_frames.have([_is_page_fault(frame) for frame in frames])
        copied: Bools = np.array([*map(_is_copy, frames), False], np.bool_)[inner] | faults
        is_told = np.array([*(_TOLD.fullmatch(frame.name) is not None for frame in frames), False])[self.device_frame]
        up, down = self.of_device == UPLOAD, self.of_device == DOWNLOAD
        either = np.where(is_told, copied, faults) & (self.of_device == COPY)
        return (is_async | copied) & up, (is_async | copied) & down, either

    @cached_property
    def spins(self) -> Bools:
        """Whether each stack, on a CPU, waits for other threads or ranks."""
        frames, kinds = self._stack_frames.frames, self.kinds
        has_name = np.array([bool(frame.name) for frame in frames], np.bool_)
        named = self._innermost(np.isin(kinds, (SPIN, WORK)) | ((kinds == SPIN_OWN) & has_name))
        named_kind = np.append(kinds, 0)[named]
        # The kernel's part of a call is its; so is that of one that gives the CPU away.
        is_code = [
            each.kind in (*_NATIVE, FrameKind.PYTHON) and not each.name.endswith("sched_yield") for each in frames
        ]
        inner = np.append(kinds, 0)[self._stack_frames.innermost_of_best(is_code)]
        own = (inner == SPIN_OWN) & (named_kind != WORK)
        spins = ((named_kind == SPIN) | own) & (self.of_device == 0)
        return np.asarray(spins | (self._around(spins) & (self.of_device == 0)))

    def _around(self, spins: Bools) -> Bools:
        """Stacks that end in a native function which hardly does anything but call those that spin."""
        frames = self._stack_frames
        if not spins.any():
            return spins
        inner = frames.innermost_of_best([each.kind in (*_NATIVE, FrameKind.PYTHON) for each in frames.frames])
        is_native = np.array([*(each.kind in _NATIVE for each in frames.frames), False])
        # Of those that some stack ends in and that spin in another.
        asked = np.intersect1d(inner[~spins & is_native[inner]], frames.flat[spins[frames.stack_of]])
        places = np.flatnonzero(np.isin(frames.flat, asked))
        pairs = np.unique(frames.flat[places] << 32 | frames.stack_of[places])
        frame, stack = pairs >> 32, pairs & (1 << 32) - 1
        all_ns = np.bincount(frame, self._cpu_ns[stack], len(frames.frames) + 1)
        spun_ns = np.bincount(frame, np.where(spins, self._cpu_ns, 0)[stack], len(frames.frames) + 1)
        return np.asarray((spun_ns > _AROUND * np.maximum(all_ns, 1))[inner])

    def _in_loops(self, calls: Bools, names: tuple[str, ...], in_turn: float) -> Bools:
        """Of stacks in calls of a device those that wait there in a loop which calls functions of these names.

        Of what is below the caller of such a loop a good part is in those, and of what is below a turn of it nearly
        all. So of a library whose functions have no names it is known which of its time is waiting.
        """
        frames = self._stack_frames
        is_code = [each.kind in _NATIVE for each in frames.frames]
        is_poll = np.array(
            [*(each.kind in _NATIVE and each.name.lstrip("_") in names for each in frames.frames), False]
        )
        polls: Bools = calls & is_poll[frames.innermost_of_best(is_code)]
        if not polls.any():
            return polls
        inside = self._inside(calls)
        frame, stack = frames.flat[inside], frames.stack_of[inside]
        _, once = np.unique(frame << 32 | stack, return_index=True)
        spent, polled = (
            np.bincount(frame[once], np.where(chosen, self._cpu_ns, 0)[stack[once]], len(frames.frames))
            for chosen in (calls, polls)
        )
        part = polled / np.maximum(spent, 1)
        # For each stack that polls the innermost frame that is more than a turn is the loop's caller.
        outside = polls[stack] & (part[frame] < in_turn)
        caller = np.full(frames.count, -1, np.int64)
        np.maximum.at(caller, stack[outside], inside[outside])
        callers = np.unique(frames.flat[caller[caller >= 0]])
        is_call = np.isin(callers, self.device_frame[polls])
        of_loop = np.isin(frame, callers[part[callers] >= np.where(is_call, _IN_CALL, _IN_LOOP)])
        found: Bools = polls.copy()
        found[stack[of_loop]] = True
        return found

    def _inside(self, calls: Bools) -> Ints:
        """Of these stacks the places in `flat` that are of the call of a device, and below it."""
        frames, places = self._stack_frames, np.arange(len(self._stack_frames.flat))
        is_call = frames.flat == self.device_frame[frames.stack_of]
        call_at = np.zeros(frames.count, np.int64)
        np.maximum.at(call_at, frames.stack_of[is_call], places[is_call])
        return np.asarray(places[calls[frames.stack_of] & (places >= call_at[frames.stack_of])])

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
        """For each stack its innermost marked frame, -1: none, or it has called Python."""
        ranks = np.where(marked | self._is_python, 1, 0)
        found = self._stack_frames.innermost_of_best(ranks.tolist())
        return np.where(np.append(marked, False)[found], found, -1)


def _is_copy(frame: Frame) -> bool:
    return _COPIES.fullmatch(frame.name) is not None and _COPIES_IN.fullmatch(frame.file) is not None


def _is_page_fault(frame: Frame) -> bool:
    return frame.kind == FrameKind.KERNEL and _PAGE_FAULTS.fullmatch(frame.name) is not None
