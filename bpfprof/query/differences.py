"""Profiles of two sides -> what differs: time by group on each side, with standard errors.

Time is that of working threads: on a CPU, ready for one, and in waits that are not idle. What a thread was ready it is
given in the functions that it ran meanwhile, so that a busy host makes none of them faster. Own time: of the innermost
Python function.

A recording is cut into BLOCKS parts of time, and the error of a sum is told by how much each part differs from the next
(J. von Neumann, The mean square successive difference, 1941): so a program that changes slowly has no larger error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.functions import owner_frames
from bpfprof.query.origins import origins

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Key = tuple[str, ...]

BLOCKS = 20
GROUPINGS = ("function", "line", "file", "library", "thread", "reason")
_LEAST_SHARE = 0.01  # of the time of a side: a group that has less on both is not tested
_FALSE_ALARMS = 0.05  # of comparisons of a program with itself, over all of their groups (S. Holm, 1979)
_MANY = 3  # recordings of a side: from here on their own differences are an error, too


@dataclass(frozen=True)
class Difference:
    """Of one group: seconds of each side, after it was normalised, and the standard error of their difference.

    key: what the groups have in common, as GROUPINGS says: (function, file), (function, file, line), (file,), ...
    """

    key: Key
    before_s: float
    after_s: float
    error_s: float
    is_beyond_noise: bool

    @property
    def difference_s(self) -> float:
        return self.after_s - self.before_s

    @property
    def change(self) -> float:
        """Of the time before; infinite for what was not there."""
        return self.difference_s / self.before_s if self.before_s else math.inf


@dataclass(frozen=True)
class Comparison:
    """differences: those beyond noise first, then the largest; of `wall_s` seconds of each side, 0: of a whole run."""

    differences: tuple[Difference, ...]
    wall_s: float


def compare(before: Sequence[Profile], after: Sequence[Profile], by: str, per_run: bool = False) -> Comparison:
    """Profiles have to be built with their spans (else ValueError). Each side is the mean of its profiles.

    per_run: sums of a run each, and not of the same wall time: for a program that does the same work each time.
    """
    sides = [[_sums(profile, by) for profile in side] for side in (before, after)]
    wall_s = sum(_wall_s(profile) for profile in before) / len(before)
    scales = [
        [1.0 if per_run else wall_s / max(_wall_s(profile), 1e-9) for profile in side] for side in (before, after)
    ]
    keys = sorted({key for side in sides for sums in side for key in sums})
    rows = [_difference(key, sides, scales) for key in keys]
    least = [_LEAST_SHARE * sum(side) for side in zip(*((row.before_s, row.after_s) for row in rows))] or [0.0, 0.0]
    tested = [row for row in rows if row.before_s >= least[0] or row.after_s >= least[1]]
    tested.sort(key=_Row.probability)
    beyond: set[Key] = set()
    for number, row in enumerate(tested):
        if row.probability() > _FALSE_ALARMS / (len(tested) - number):
            break
        beyond.add(row.key)
    found = [Difference(row.key, row.before_s, row.after_s, row.error_s, row.key in beyond) for row in rows]
    found.sort(key=lambda it: (not it.is_beyond_noise, -abs(it.difference_s), it.key))
    return Comparison(tuple(found), 0.0 if per_run else wall_s)


@dataclass(frozen=True)
class _Row:
    """As Difference; freedom: degrees of it that the error has."""

    key: Key
    before_s: float
    after_s: float
    error_s: float
    freedom: int

    def probability(self) -> float:
        """That a difference as large is there by chance: Student's t, by the normal one (D. L. Wallace, 1959)."""
        if not self.error_s:
            return 1.0
        t = (self.after_s - self.before_s) / self.error_s
        deviation = math.sqrt(self.freedom * math.log1p(t * t / self.freedom)) * (1 - 3 / (4 * self.freedom))
        return math.erfc(deviation / math.sqrt(2))


def _difference(key: Key, sides: list[list[dict[Key, Floats]]], scales: list[list[float]]) -> _Row:
    none = np.zeros(BLOCKS + 1)
    means, variance, freedom = [], 0.0, 0
    for side, scale in zip(sides, scales):
        blocks = [sums.get(key, none) * factor for sums, factor in zip(side, scale)]
        values = np.array([each[:BLOCKS].sum() for each in blocks])
        inside = sum(_variance(each) for each in blocks) / len(blocks) ** 2
        between = float(values.var(ddof=1)) / len(values) if len(values) >= _MANY else 0.0
        means.append(float(values.mean()))
        variance += max(inside, between)
        freedom += len(values) - 1 if between > inside else len(values) * (BLOCKS - 1)
    return _Row(key, means[0], means[1], math.sqrt(variance), freedom)


def _variance(blocks: Floats) -> float:
    """Of the sum of all blocks; the last word is the least that it can be known to, which is one sample."""
    steps = np.diff(blocks[:BLOCKS])
    return float(BLOCKS * (steps**2).sum() / (2 * (BLOCKS - 1)) + blocks[BLOCKS] ** 2)


def _wall_s(profile: Profile) -> float:
    begin, end = _window(profile)
    return (end - begin) / 1e9


def _window(profile: Profile) -> tuple[int, int]:
    """From the first moment of a thread that is shown to the last, in nanoseconds."""
    threads = [thread for thread in profile.threads if thread.wall_ns]
    return (min(it.first_ns for it in threads), max(it.last_ns for it in threads)) if threads else (0, 0)


def _sums(profile: Profile, by: str) -> dict[Key, Floats]:
    """Of each group its seconds in each block, and then those of one sample."""
    if profile.spans is None:
        raise ValueError("differences are found in profiles that were built with their spans")
    spans = profile.spans
    wanted = (spans["flags"] & (SpanFlag.HIDDEN | SpanFlag.IDLE) == 0) & (spans["stands_for_ns"] > 0)
    spans = spans[wanted & (spans["state"] != ThreadState.UNKNOWN)]
    keys, groups = _groups(profile, spans, by)
    # A row for each group and thread, and one for each thread that was ready.
    is_ready = spans["state"] == ThreadState.RUNQUEUE
    threads = len(profile.threads)
    pairs, codes = np.unique(np.where(is_ready, 0, groups + 1) * threads + spans["thread"], return_inverse=True)
    group_of, thread_of = np.divmod(pairs, max(threads, 1))
    on_cpu, off_cpu = (np.zeros((len(pairs), BLOCKS)) for _ in range(2))
    start = spans["start_ns"].astype(np.float64)
    end = start + spans["duration_ns"]
    stands_for = spans["stands_for_ns"] / np.maximum(spans["duration_ns"], 1) / 1e9
    is_wait = spans["state"] == ThreadState.OFF_CPU
    borders = np.linspace(*_window(profile), BLOCKS + 1)
    for block, (low, high) in enumerate(zip(borders, borders[1:])):
        seconds = (end.clip(low, high) - start.clip(low, high)) * stands_for
        on_cpu[:, block] = np.bincount(codes, np.where(is_wait, 0, seconds), len(pairs))
        off_cpu[:, block] = np.bincount(codes, np.where(is_wait, seconds, 0), len(pairs))
    is_own = group_of > 0
    ran, was_ready = (np.zeros((threads, BLOCKS)) for _ in range(2))
    np.add.at(ran, thread_of[is_own], on_cpu[is_own])
    np.add.at(was_ready, thread_of[~is_own], on_cpu[~is_own])
    wanting = np.divide(ran + was_ready, ran, out=np.zeros_like(ran), where=ran > 0)
    sums = np.zeros((len(keys), BLOCKS + 1))
    sums[:, BLOCKS] = 1 / max(profile.info.rate_hz, 1)
    np.add.at(sums[:, :BLOCKS], group_of[is_own] - 1, (on_cpu * wanting[thread_of] + off_cpu)[is_own])
    return dict(zip(keys, sums))


def _groups(profile: Profile, spans: npt.NDArray[np.void], by: str) -> tuple[list[Key], Ints]:
    """(the groups, the number of each span's)"""
    if by == "thread":
        names: list[Key] = [(thread.thread_name,) for thread in profile.threads]
        numbers = spans["thread"]
    elif by == "reason":
        reasons, numbers = np.unique(spans["reason"] * (spans["state"] == ThreadState.OFF_CPU), return_inverse=True)
        names = [(reason_text(int(reason)) or "on CPU",) for reason in reasons]
    else:
        owners = owner_frames(profile.frames, profile.stacks)
        key_of = _key_of_frame(profile, by)
        names = [key_of(owner) if owner >= 0 else ("",) * _KEY_WORDS[by] for owner in owners]
        numbers = spans["stack"]
    keys = sorted(set(names))
    place = {key: index for index, key in enumerate(keys)}
    return keys, np.array([place[name] for name in names] or [0], np.int64)[numbers]


_KEY_WORDS = {"function": 2, "line": 3, "file": 1, "library": 1}


def _key_of_frame(profile: Profile, by: str) -> Callable[[int], Key]:
    if by == "library":
        libraries = [origin.library for origin in origins(profile.frames)]
        return lambda frame: (libraries[frame],)

    def key(number: int) -> Key:
        frame: Frame = profile.frames[number]
        name = frame.name or f"+0x{frame.offset:x}"
        return {"function": (name, frame.file), "line": (name, frame.file, str(frame.line)), "file": (frame.file,)}[by]

    return key
