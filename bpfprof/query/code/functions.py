"""Stacks -> the functions that own them: what a person would name when asked where a thread was."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind

Ints = npt.NDArray[np.int64]

_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)
_ABI = re.compile(r"\.(?:cpython-[^.]*|abi3)(?=\.so$)")  # the tag of an extension module, PEP 3149
# Innermost of every wait, or of every wake-up: they say nothing.
_SCHEDULER = (
    "__schedule schedule io_schedule io_schedule_timeout schedule_timeout schedule_preempt_disabled "
    "schedule_hrtimeout_range schedule_hrtimeout_range_clock schedule_hrtimeout preempt_schedule_common "
    "try_to_wake_up default_wake_function wake_up_process wake_up_q wake_up_state autoremove_wake_function "
    "__wake_up __wake_up_common __wake_up_common_lock __wake_up_sync_key"
)
_OF_SCHEDULER = frozenset(_SCHEDULER.split())
_last: tuple[Sequence[Frame], Ints] = (), np.zeros(0, np.int64)  # frames, and what function_of_frames() says of them


def owner_frames(frames: Sequence[Frame], stacks: Sequence[tuple[int, ...]]) -> list[int]:
    """A stack's function: its innermost Python frame, else its innermost native, else kernel one, else -1."""
    kinds = [None if is_of_scheduler(frame) else frame.kind for frame in frames]
    return [_owner(kinds, stack) for stack in stacks]


def is_of_scheduler(frame: Frame) -> bool:
    """Whether it is a kernel function that all waits or wake-ups have, which is no stack's function."""
    return frame.kind == FrameKind.KERNEL and frame.name in _OF_SCHEDULER


def wait_owners(frames: Sequence[Frame], stacks: Sequence[tuple[int, ...]]) -> list[int]:
    """As owner_frames(); of a stack that was not taken it is the mark that says so."""
    owners = owner_frames(frames, stacks)
    return [
        stack[0] if owner < 0 and stack and frames[stack[0]].kind == FrameKind.NOT_SAMPLED else owner
        for owner, stack in zip(owners, stacks)
    ]


def _owner(kinds: Sequence[FrameKind | None], stack: tuple[int, ...]) -> int:
    native = kernel = -1
    for frame in reversed(stack):
        kind = kinds[frame]
        if kind == FrameKind.PYTHON:
            return frame
        if native < 0 and kind in _NATIVE:
            native = frame
        elif kernel < 0 and kind == FrameKind.KERNEL:
            kernel = frame
    return native if native >= 0 else kernel


def object_name(path: str) -> str:
    """`_umath.so` of `/v/numpy/_umath.cpython-311-x86_64-linux-gnu.so`."""
    return _ABI.sub("", path.rsplit("/", 1)[-1])


def function_name(frame: Frame) -> str:
    """`gemm`; of code whose names are not known that of its object, `libx.so (no names)`; "" of nothing known."""
    if frame.name or frame.kind not in _NATIVE:
        return frame.name
    return f"{object_name(frame.file) or 'code'} (no names)"


def function_of_frames(frames: Sequence[Frame]) -> Ints:
    """For each frame the first frame that differs from it in its line only.

    Code of one object whose names are not known is one function: how many there are is not known either. An array to
    read: all questions to one profile ask for the same, so the last one is kept.
    """
    global _last
    asked, known = _last
    if asked is frames:
        return known
    first: dict[tuple[int, str, str], int] = {}
    merged = [first.setdefault((frame.kind, frame.name, frame.file), index) for index, frame in enumerate(frames)]
    found = np.array(merged, np.int64)
    found.setflags(write=False)
    if isinstance(frames, tuple):  # which nobody changes
        _last = frames, found
    return found


def owner_functions(frames: Sequence[Frame], owners: Ints) -> Ints:
    """Of wait_owners() those that differ in their line only as one."""
    return np.where(owners >= 0, np.append(function_of_frames(frames), -1)[owners], -1)


def merged_stacks(functions: Ints, stacks: Sequence[tuple[int, ...]]) -> Ints:
    """For each stack the first stack that differs from it in lines only."""
    first: dict[tuple[int, ...], int] = {}
    names = functions.tolist()
    merged = [first.setdefault(tuple([names[frame] for frame in stack]), index) for index, stack in enumerate(stacks)]
    return np.array(merged, np.int64)
