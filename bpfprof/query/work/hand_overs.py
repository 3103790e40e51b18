"""Stacks -> whether each waits for what another thread or process does."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.spans import CONDITION_LOCK
from bpfprof.query.code.stack_frames import Bools, StackFrames

# Waits for what another thread does, by (end of the path, functions) of their innermost Python frame: a lock is what
# they are made of. A lock that several want for themselves is acquired in the function that uses it.
_HAND_OVERS = (
    ("threading.py", {"wait", "wait_for", "join", "_wait_for_tstate_lock", "_shutdown"}),
    ("queue.py", {"get", "put", "join"}),
    ("concurrent/futures/_base.py", {"result", "wait", "as_completed"}),
)
_CONDITION_WAIT = ("threading.py", "wait")
_HAND_OVERS_IN_C = (
    *("pthread_cond_", "__pthread_cond_", "pthread_join", "__pthread_clockjoin", "pthread_barrier_wait"),
    *("gomp_barrier_wait", "gomp_team_barrier_wait", "_queue_SimpleQueue_get", "simplequeue_get", "std::condition_var"),
)
# Of Abseil, which JAX and TensorFlow wait with; its namespace has its version.
_HAND_OVERS_OF_ABSEIL = re.compile(
    r"absl::(?:lts_\d+::)?(?:CondVar::Wait|Notification::WaitFor|BlockingCounter::Wait|Barrier::Block|Mutex::Await)"
)
_POOLS = ("multiprocessing/", "concurrent/futures/", "torch/multiprocessing/")  # folders of a path
# `with lock:` of multiprocessing is a fight as one of threads is.
_ACQUIRES = ("multiprocessing/synchronize.py", "__enter__")
# Threads of OpenMP wait for each other; their library has no names where it is stripped.
_OPENMP = ("libgomp", "libomp", "libiomp")
_COLLECTIVES, _COLLECTIVES_IN_C = ("/torch/distributed/",), ("c10d::",)


def hand_overs(frames: Sequence[Frame], stack_frames: StackFrames) -> tuple[Bools, Bools]:
    """(whether each stack waits for what another thread does, whether for what another process of a pool does)"""
    python = [
        any(
            frame.name.rpartition(".")[2] in names and ("/" + frame.file).endswith("/" + tail)
            for tail, names in _HAND_OVERS
        )
        for frame in frames
    ]
    in_python = np.array([*python, False])[stack_frames.innermost_python()]
    in_c = [
        frame.kind == FrameKind.NATIVE
        and (frame.name.startswith(_HAND_OVERS_IN_C) or bool(_HAND_OVERS_OF_ABSEIL.match(frame.name)))
        for frame in frames
    ]
    tail, name = _ACQUIRES
    acquires = [frame.file.endswith(tail) and frame.name.rpartition(".")[2] == name for frame in frames]
    in_pool = stack_frames.in_files(_POOLS) & ~np.array([*acquires, False])[stack_frames.innermost_python()]
    return in_python | stack_frames.have(in_c) | stack_frames.in_objects(_OPENMP), in_pool


def take_again(spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Whether each span is in Condition.wait(), but not for notify(): it takes the lock of its condition again."""
    path, name = _CONDITION_WAIT
    is_it = [frame.name.rpartition(".")[2] == name and frame.file.endswith(path) for frame in stack_frames.frames]
    in_wait = np.array([*is_it, False])[stack_frames.innermost_python()][spans["stack"]]
    found: Bools = in_wait & (spans["lock"] > 0) & (spans["lock"] & np.uint64(CONDITION_LOCK) == 0)
    return found


def are_collectives(stack_frames: StackFrames) -> Bools:
    """Whether each stack of Python waits for the other ranks of torch.distributed."""
    in_c = stack_frames.have(
        [frame.kind == FrameKind.NATIVE and frame.name.startswith(_COLLECTIVES_IN_C) for frame in stack_frames.frames]
    )
    in_python = stack_frames.innermost_python() >= 0
    return (in_c & in_python) | stack_frames.in_files(_COLLECTIVES)
