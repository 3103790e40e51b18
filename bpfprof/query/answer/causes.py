"""Rows of work -> what a verdict counts each as: mostly its share.

Time that a thread spends for a device is the device's, whether it waits or its CPU is in the kernel meanwhile. Time for
which pages of memory are not there has a cause of its own: a share does not tell it from other work.
"""

from __future__ import annotations

import re

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import sums_by
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_number
from bpfprof.query.answer.percent import percent
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.shares import (
    CHILD,
    DEVICE,
    GIL,
    GPU,
    IDLE,
    LOCK,
    NATIVE,
    PYTHON,
    READY,
    SHARE_OF_WORD,
    SHARES,
    SLEEP,
    SPIN,
)
from bpfprof.query.work.table import Work

CAUSES = tuple(SHARE_OF_WORD)
MEMORY = len(SHARES)
_SAID = 0.1  # of a mix: from here on a part of it is said

# Functions of the kernel that make room in memory, or bring back what was moved out of it (Linux 5.10 to 6.18). Some
# have a name that begins with underscores in one version, and not in another.
_MAKES_ROOM = re.compile(
    r"try_to_free_\w*pages|do_try_to_free_pages|_*alloc_pages_direct_(?:reclaim|compact)|_*mem_cgroup_handle_over_high"
    r"|reclaim_(?:high|throttle)|shrink_(?:node|lruvec)\w*|do_swap_page|swapin_\w+|swap_read_\w+|swap_write\w+"
)
_IOCTL = re.compile(r"_*(?:x64_sys_|libc_)?ioctl")
_PAGE_FAULT = reason_number("pagefault")
# A verdict has them from another thread, or they have nothing to do with the kernel's work for the thread.
_NEVER_MEMORY = (READY, GIL, LOCK, SLEEP, CHILD, GPU, SPIN)


def causes_of(work: Work) -> Ints:
    """For each row a place in CAUSES; IDLE and HANDED are what they were, beyond them."""
    rows, frames = work.rows, work.stack_frames
    causes = np.where(rows["share"] >= IDLE, rows["share"] + len(CAUSES) - IDLE, rows["share"])
    is_cpu = np.isin(rows["share"], (PYTHON, NATIVE))
    causes[is_cpu & in_ioctl(frames)[rows["stack"]]] = DEVICE
    makes_room = makes_room_in(frames)[rows["stack"]] & ~np.isin(rows["share"], _NEVER_MEMORY)
    is_fault = (rows["state"] == ThreadState.OFF_CPU) & (rows["reason"] == _PAGE_FAULT)
    causes[(makes_room | is_fault) & (rows["share"] < IDLE)] = MEMORY
    return causes


def cause_ns(rows: npt.NDArray[np.void], causes: Ints) -> Ints:
    """For each of CAUSES."""
    return sums_by(causes, rows["ns"], len(CAUSES) + 2)[: len(CAUSES)]


def largest_cause(parts: tuple[float, ...]) -> tuple[str, float]:
    """The largest of CAUSES; CPU time is one, called as the larger part of it."""
    cpu = parts[PYTHON] + parts[NATIVE]
    other = max(range(READY, len(CAUSES)), key=parts.__getitem__)
    if cpu >= parts[other]:
        return ("native" if parts[NATIVE] > parts[PYTHON] else "python"), cpu
    return CAUSES[other], parts[other]


def mix_of(by_cause: Ints) -> str:
    """`59% sleep, 40% CPU`: what most of the time is spent on, "" where that is one thing."""
    spent = {"CPU": int(by_cause[[PYTHON, NATIVE]].sum())}
    for cause in range(READY, len(CAUSES)):
        share = SHARE_OF_WORD[CAUSES[cause]]
        spent[share.among if cause == CHILD else share.name] = int(by_cause[cause])
    whole_ns = max(sum(spent.values()), 1)
    large = sorted((-ns, word) for word, ns in spent.items() if ns >= _SAID * whole_ns)
    return ", ".join(f"{percent(-ns / whole_ns)} {word}" for ns, word in large) if len(large) > 1 else ""


def makes_room_in(frames: StackFrames) -> Bools:
    """Whether each stack is in what the kernel does when memory is short."""
    return frames.have(
        [frame.kind == FrameKind.KERNEL and bool(_MAKES_ROOM.fullmatch(frame.name)) for frame in frames.frames]
    )


def in_ioctl(frames: StackFrames) -> Bools:
    """Whether each stack is in an ioctl(): its function in the C library does nothing but ask the kernel."""
    kinds = (FrameKind.KERNEL, FrameKind.NATIVE)
    return frames.have([frame.kind in kinds and bool(_IOCTL.fullmatch(frame.name)) for frame in frames.frames])
