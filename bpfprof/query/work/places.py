"""Work -> the places of the user's own code where the time went: CPU, ready and waits, own and with what was called."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import each_once, sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.query.code.functions import function_of_frames, object_name
from bpfprof.query.code.origins import import_path
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.work.shares import DEVICE, DISK, HANDED, LOCK, NATIVE, NET, PYTHON, READY
from bpfprof.query.work.table import Work

WITH_OBJECTS = (DISK, NET, DEVICE, LOCK)  # shares of which a descriptor's file or peer says more
_MOST = 0.5


@dataclass(frozen=True)
class Place:
    """A function; own: in stacks whose frame of the user's own code it is, total: in stacks that have it anywhere.

    frame: its line with most of what is mostly its own time, a place in Profile.frames. mostly: (share, number of a
    lock or 0) -> nanoseconds, most first. objects: share -> what descriptors were of for most of it, places in
    Profile.objects.
    """

    frame: int
    cpu_ns: int
    ready_ns: int
    wait_ns: int
    total_ns: int
    mostly: tuple[tuple[tuple[int, int], int], ...] = field(default=())
    objects: dict[int, int] = field(default_factory=dict)

    @property
    def own_ns(self) -> int:
        """All of its own."""
        return self.cpu_ns + self.ready_ns + self.wait_ns


def places_of(profile: Profile, work: Work, rows: npt.NDArray[np.void] | None = None, first: int = -1) -> list[Place]:
    """Of working time, or of these rows of it, those with most of their own first; `first`: but before them this one.

    It is the function of a place in Profile.frames, -1: none.
    """
    rows = work.working if rows is None else rows
    functions = np.append(function_of_frames(profile.frames), -1)
    own = functions[work.own[rows["stack"]]]
    found = []
    totals = _totals(work, rows, functions)
    for function in np.unique(own[own >= 0]).tolist():
        of_it = picked(rows, own == function)
        by_share = sums_by(of_it["share"], of_it["ns"], HANDED + 1)
        cpu_ns, ready_ns = int(by_share[[PYTHON, NATIVE]].sum()), int(by_share[READY])
        mostly = tuple(((share.value, share.frame), share.ns) for share in _by_share(of_it))
        found.append(
            Place(
                _line_of(work, of_it, mostly[0][0]),
                cpu_ns,
                ready_ns,
                int(by_share.sum()) - cpu_ns - ready_ns,
                int(totals[function]),
                mostly,
                _objects_of(of_it),
            )
        )
    of_first = functions[first] if first >= 0 else -1
    return sorted(found, key=lambda each: (functions[each.frame] != of_first, -each.own_ns, each.frame))


def _objects_of(rows: npt.NDArray[np.void]) -> dict[int, int]:
    if not rows["object"].any():  # mostly
        return {}
    return {share: best for share in WITH_OBJECTS if (best := top_object(picked(rows, rows["share"] == share))[0]) >= 0}


def top_place(
    work: Work, chosen: Bools, functions: npt.NDArray[np.int64], in_python: bool = False
) -> tuple[int, float]:
    """(the frame of the function with most time in the chosen rows, its part of that time); (-1, 0) without any."""
    own, ns = work.own[work.rows["stack"][chosen]], work.rows["ns"][chosen]
    is_python = [frame.kind == FrameKind.PYTHON or not in_python for frame in work.stack_frames.frames]
    counts = np.array([*is_python, False])[own]
    own, ns = own[counts], ns[counts]
    if not len(own):
        return -1, 0.0
    best = totals_of(functions[own], ns)[0]
    of_it = functions[own] == best.value
    return most_of(own[of_it], ns[of_it]), best.ns / max(int(ns.sum()), 1)


def top_object(rows: npt.NDArray[np.void]) -> tuple[int, float]:
    """(what descriptors were of for most of these rows, a place in Profile.objects, its part); (-1, 0): nothing."""
    if not rows["object"].any():
        return -1, 0.0
    best = next(found for found in totals_of(rows["object"], rows["ns"]) if found.value)
    part = best.ns / int(rows["ns"].sum())
    return (best.value - 1, part) if part >= _MOST else (-1, 0.0)


def most_of(values: npt.NDArray[np.int64], ns: npt.NDArray[np.int64]) -> int:
    """The value with most time."""
    return totals_of(values, ns)[0].value


def _line_of(work: Work, rows: npt.NDArray[np.void], mostly: tuple[int, int]) -> int:
    """The function's line with most time of this share and lock, CPU time being one: that which a verdict names."""
    share, lock = mostly
    shares = (PYTHON, NATIVE) if share in (PYTHON, NATIVE) else (share,)
    is_one = np.logical_or.reduce([rows["share"] == each for each in shares])
    chosen = picked(rows, is_one & ((share != LOCK) | (rows["lock"] == lock)))
    return most_of(work.own[chosen["stack"]], chosen["ns"])


def place_text(frame: Frame) -> str:
    """`parse (x.py:12)`, with a library's path from its package on."""
    name = frame.name or "a function that has no name"
    return f"{name} ({file_text(frame)})" if frame.file else name


def file_text(frame: Frame) -> str:
    """`x.py:12`; of a package `django/template/base.py:906`; of native code the object."""
    if frame.kind != FrameKind.PYTHON:
        return object_name(frame.file)
    path = import_path(frame.file)
    return f"{path}:{frame.line}" if frame.line else path


def _by_share(rows: npt.NDArray[np.void]):  # type: ignore[no-untyped-def]
    return totals_of(rows["share"], rows["ns"], np.where(rows["share"] == LOCK, rows["lock"], 0))


def _totals(work: Work, rows: npt.NDArray[np.void], functions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each function the time of stacks that have it."""
    frames = work.stack_frames
    of_stack = sums_by(rows["stack"], rows["ns"], max(1, frames.count))
    pairs = each_once(frames.stack_of * len(functions) + functions[frames.flat])
    stacks, of_function = np.divmod(pairs, len(functions))
    return sums_by(of_function, of_stack[stacks], len(functions))
