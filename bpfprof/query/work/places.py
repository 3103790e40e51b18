"""Work -> the places of the user's own code where the time went: CPU, ready and waits, own and with what was called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import each_once, group_numbers, sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.query.code.functions import Ints, function_of_frames, object_name
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
    totals = _totals(work, rows, functions)
    is_known = functions[work.own[rows["stack"]]] >= 0
    rows = rows if is_known.all() else picked(rows, is_known)
    found, place = np.unique(functions[work.own[rows["stack"]]], return_inverse=True)
    by_share = sums_by(place * (HANDED + 1) + rows["share"], rows["ns"], len(found) * (HANDED + 1))
    by_share = by_share.reshape(-1, HANDED + 1)
    cpu_ns, ready_ns = by_share[:, [PYTHON, NATIVE]].sum(axis=1), by_share[:, READY]
    mostly = _by_share(rows, place, len(found))
    columns = (
        _lines_of(work, rows, place, mostly),
        cpu_ns.tolist(),
        ready_ns.tolist(),
        (by_share.sum(axis=1) - cpu_ns - ready_ns).tolist(),
        totals[found].tolist(),
        mostly,
        _objects_of(rows, place, len(found)),
    )
    places = [Place(*row) for row in zip(*columns)]
    of_first = functions[first] if first >= 0 else -1
    return sorted(places, key=lambda each: (functions[each.frame] != of_first, -each.own_ns, each.frame))


def _by_share(rows: npt.NDArray[np.void], place: Ints, count: int) -> list[tuple[tuple[tuple[int, int], int], ...]]:
    """`mostly` of each place."""
    columns = [place, rows["share"], np.where(rows["share"] == LOCK, rows["lock"], 0)]
    first, number = group_numbers(columns)
    place, share, lock = (column[first] for column in columns)
    ns = sums_by(number, rows["ns"], len(first))
    order = np.lexsort((lock, share, -ns, place))
    told = [((share, lock), ns) for share, lock, ns in zip(*(column[order].tolist() for column in (share, lock, ns)))]
    borders = np.searchsorted(place[order], np.arange(count + 1)).tolist()
    return [tuple(told[begin:end]) for begin, end in zip(borders, borders[1:])]


def _lines_of(
    work: Work, rows: npt.NDArray[np.void], place: Ints, mostly: Sequence[Sequence[tuple[tuple[int, int], int]]]
) -> list[int]:
    """For each place the line with most time of what is mostly its own, CPU time being one: a verdict names that."""
    most, lock = np.array([each[0][0] for each in mostly], np.int64).reshape(-1, 2).T
    share, most = (np.where(each == NATIVE, PYTHON, each) for each in (rows["share"], most))
    chosen = (share == most[place]) & ((share != LOCK) | (rows["lock"] == lock[place]))
    lines, place, ns = work.own[rows["stack"][chosen]], place[chosen], rows["ns"][chosen]
    first, number = group_numbers([place, lines])
    order = np.lexsort((lines[first], -sums_by(number, ns, len(first)), place[first]))
    first = first[order]
    found: list[int] = lines[first[np.diff(place[first], prepend=-1) > 0]].tolist()
    return found


def _objects_of(rows: npt.NDArray[np.void], place: Ints, count: int) -> list[dict[int, int]]:
    found: list[dict[int, int]] = [{} for _ in range(count)]
    for one in np.unique(place[(rows["object"] > 0) & np.isin(rows["share"], WITH_OBJECTS)]).tolist():
        of_it = picked(rows, place == one)
        of_shares = ((share, top_object(picked(of_it, of_it["share"] == share))[0]) for share in WITH_OBJECTS)
        found[one] = {share: best for share, best in of_shares if best >= 0}
    return found


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


def _totals(work: Work, rows: npt.NDArray[np.void], functions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each function the time of stacks that have it."""
    frames = work.stack_frames
    of_stack = sums_by(rows["stack"], rows["ns"], max(1, frames.count))
    pairs = each_once(frames.stack_of * len(functions) + functions[frames.flat])
    stacks, of_function = np.divmod(pairs, len(functions))
    return sums_by(of_function, of_stack[stacks], len(functions))
