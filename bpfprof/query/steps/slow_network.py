"""Loops of ranks that all wait in communication -> the network that is slow, where the kernel's estimates tell it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.query.steps.phases import COMMUNICATION
from bpfprof.query.steps.ranks import RankLoop

_SLOW_NS, _TIMES = 1_000_000, 5  # the shortest round trip of so much, and so many times those of others, is long
_MUCH = 0.2  # of a step, which each waits in communication
_CARRIES = 0.1  # of the bytes of the connection with most: one that carries less is for something else


@dataclass(frozen=True)
class SlowNetwork:
    """place: in the loops of the rank all of whose connections are slow, -1: of two ranks it is the network between.

    ns, others_ns: of the shortest round trip on its connections and on the best of those of the others, 0: there are no
    better ones. wait_ns: how long each waits in a step. function: in which the rank, or the first, mostly does.
    """

    place: int
    ns: int
    others_ns: int
    wait_ns: float
    function: Frame | None


def slow_network(loops: Sequence[RankLoop], waits_ns: Sequence[float], step_ns: float) -> SlowNetwork | None:
    """waits_ns: how long each waits for the others in a step. None: that is little, or no network is known to be slow.

    Both ends of a slow connection see it, so the rank is the one that has no others. Of two ranks it is the one that is
    not in bpfprof's network namespace.
    """
    best = [_round_trip_ns(each) for each in loops]
    if min(waits_ns) < _MUCH * step_ns or not all(best):
        return None
    place = int(np.argmax(best))
    others_ns = int(np.median([ns for other, ns in enumerate(best) if other != place]))
    if best[place] < _SLOW_NS or (len(loops) > 2 and best[place] < _TIMES * others_ns):
        return None
    if len(loops) == 2:
        apart = [number for number, each in enumerate(loops) if each.is_apart]
        place, others_ns = apart[0] if len(apart) == 1 else -1, 0
    wait_ns = float(np.mean(waits_ns))
    return SlowNetwork(place, max(best), others_ns, wait_ns, _where(loops[max(place, 0)]))


def _round_trip_ns(loop: RankLoop) -> int:
    """On the best of its connections that carry much; 0: none is known."""
    most = max((each.bytes for each in loop.connections), default=0)
    return min((each.ns for each in loop.connections if each.bytes >= _CARRIES * most), default=0)


def _where(loop: RankLoop) -> Frame | None:
    spent_ns = np.bincount(loop.what, loop.end_ns - loop.start_ns, len(loop.activities))
    is_it = [each.phase == COMMUNICATION and each.function is not None for each in loop.activities]
    return loop.activities[int(np.argmax(np.where(is_it, spent_ns, -1.0)))].function if any(is_it) else None
