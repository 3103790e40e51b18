"""Loops of ranks -> when each recording began, by one clock: their host's, or of several the collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.query.code.functions import Ints
from bpfprof.query.steps.pieces import merged
from bpfprof.query.steps.ranks import RankLoop

_SAME_BOOT_NS = 10_000_000_000  # by so much a clock may have been set between recordings
_MOST_ENDS = 1500  # of collectives, from the middle of a recording: each of one is compared with each of the other
_BIN_NS = 2_000_000  # all ranks leave a collective within it
_LEAST_ENDS, _ENDS = 5, 0.2  # so many of the ends of one, and such a part, are ends of the other's as well
_BEYOND_CHANCE = 8.0  # standard errors of as many as would be by chance
_AS_MANY = 0.9  # times the most: of steps that are all alike, who is one step away has about as many


@dataclass(frozen=True)
class Clocks:
    """zeros_ns: when the recording of each loop began. are_one: by a clock that tells who came first."""

    zeros_ns: list[int]
    are_one: bool


def clocks_of(loops: Sequence[RankLoop]) -> Clocks:
    """By CLOCK_MONOTONIC of one host, if all are of it; else by the time of day, which the ends of collectives correct:
    there all go on at once."""
    if all(_has_clock_of(each, loops[0]) for each in loops):
        return Clocks([each.zero_ns for each in loops], are_one=True)
    zeros = [each.zero_ns + each.unix_ns for each in loops]
    ends = [zero + runs(each)[1] for zero, each in zip(zeros, loops)]
    best = int(np.argmax([len(each) for each in ends]))
    found: list[int | None] = []
    for place, loop in enumerate(loops):
        known = next((number for number in range(place) if _has_clock_of(loop, loops[number])), -1)
        if known >= 0 and found[known] is not None:
            found.append(found[known])  # of a host its recordings are apart by what its own clock says
            zeros[place] = zeros[known] + loop.zero_ns - loops[known].zero_ns
        else:
            found.append(0 if _has_clock_of(loop, loops[best]) else _apart_ns(ends[best], ends[place]))
    apart = [each for each in found if each is not None]
    if len(apart) < len(loops):
        return Clocks(zeros, are_one=False)
    return Clocks([zero + ns for zero, ns in zip(zeros, apart)], are_one=True)


def runs(loop: RankLoop) -> tuple[Ints, Ints]:
    """Since its recording began, from when until when it communicates without doing anything else."""
    chosen = loop.communicates
    return merged(loop.start_ns[chosen], loop.end_ns[chosen])


def _has_clock_of(loop: RankLoop, other: RankLoop) -> bool:
    """Whether they are of one host, which was not started again between them."""
    return loop.host == other.host and abs(loop.unix_ns - other.unix_ns) < _SAME_BOOT_NS


def _apart_ns(wanted: Ints, ends: Ints) -> int | None:
    """What is to be added to these ends, so that most of them are wanted ones; None: they are not of the same
    collectives. Of several such times the one that says least against the clocks."""
    wanted, ends = (each[max(0, (len(each) - _MOST_ENDS) // 2) :][:_MOST_ENDS] for each in (wanted, ends))
    if min(len(wanted), len(ends)) < _LEAST_ENDS:
        return None
    apart = np.sort((wanted[:, None] - ends[None, :]).reshape(-1))
    count = np.searchsorted(apart, apart + _BIN_NS, side="right") - np.arange(len(apart))
    likely = apart[count >= _AS_MANY * count.max()]
    nearest_ns = likely[np.argmin(np.abs(likely))]
    first = int(np.argmax(np.where(np.abs(apart - nearest_ns) <= 2 * _BIN_NS, count, 0)))
    by_chance = len(apart) * _BIN_NS / max(1.0, min(float(np.ptp(wanted)), float(np.ptp(ends))))
    least = _LEAST_ENDS + by_chance + _BEYOND_CHANCE * np.sqrt(by_chance)
    if count[first] < max(least, _ENDS * min(len(wanted), len(ends))):
        return None
    return int(np.median(apart[first : first + count[first]]))
