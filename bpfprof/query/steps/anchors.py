"""What a thread was seen at -> where it did what a step of a training loop does once: optimizer, wait for data."""

from __future__ import annotations

import numpy as np

from bpfprof.query.code.functions import Ints
from bpfprof.query.steps.loops import LEAST_TURNS, SURE, Seen, Turns
from bpfprof.query.steps.phases import BACKWARD, DATA, FORWARD, OPTIMIZER, StackPhases

_SURE_ANCHOR, _AGREED = 0.7, 0.97
_OFTENER = 1.25  # than once in a turn
# What is seen once a step: (the phases that are looked at, the one that follows another of them).
_ANCHORS = (
    ((FORWARD, BACKWARD, OPTIMIZER), OPTIMIZER),
    ((DATA, FORWARD, BACKWARD, OPTIMIZER), DATA),
    ((FORWARD, BACKWARD), BACKWARD),
)


def agrees(turns: Turns, places: Ints) -> bool:
    """Whether what happens once a step was seen once in each turn."""
    found = np.bincount(np.searchsorted(turns.begin, places, side="right"), minlength=len(turns.begin) + 1)[1:-1]
    return bool(len(found) and np.mean(found == 1) >= _AGREED)


def anchors_of(seen: Seen, phases: StackPhases) -> tuple[Ints, bool]:
    """(where what happens once a step was seen, whether it was seen each time); empty: not at all, or too seldom."""
    of_seen = phases.of_stack[seen.stack]
    most = np.zeros(0, np.int64)
    for names, anchor in _ANCHORS:
        chosen = np.flatnonzero(np.isin(of_seen, [phases.names.index(name) for name in names]))
        is_it = of_seen[chosen] == phases.names.index(anchor)
        first = np.flatnonzero(np.diff(is_it.astype(np.int64), prepend=-1))
        if len(first) < 2 * LEAST_TURNS:
            continue
        is_sure = np.add.reduceat(seen.evidence[chosen], first) >= SURE
        places = chosen[first[is_it[first]]]
        if min(np.mean(is_sure[is_it[first]]), np.mean(is_sure[~is_it[first]])) >= _SURE_ANCHOR:
            if anchor == DATA and _comes_in_bursts(seen, of_seen, places, phases):
                continue
            return places, True
        most = max(most, places, key=len)
    return most, False


def _comes_in_bursts(seen: Seen, of_seen: Ints, data: Ints, phases: StackPhases) -> bool:
    """Whether passes go back now once, now more often, between two waits for data: some of it was there already."""
    in_backward = of_seen == phases.names.index(BACKWARD)
    first = np.flatnonzero(np.diff(in_backward.astype(np.int64), prepend=0) > 0)
    first = first[seen.evidence[first] >= SURE]
    counts = np.bincount(np.searchsorted(data, first), minlength=len(data) + 1)[1:-1]
    if not len(counts) or counts.sum() <= _OFTENER * len(counts):
        return False
    return bool(np.mean(counts == np.median(counts)) < _AGREED)
