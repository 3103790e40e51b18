"""Loops of ranks -> the steps that they make together, by when these begin in each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.query.code.functions import Ints
from bpfprof.query.steps.pieces import cut_spans
from bpfprof.query.steps.ranks import RankLoop
from bpfprof.query.steps.steps import LOOP

_TOGETHER, _LEAST_BEGINS = 0.7, 3  # of the begins of steps are about those of all other ranks
_NEAR = 0.2  # of a step: so near are begins that are about the same
_SEEN = 0.5  # of the begins of the one with most: a loop of which fewer were seen tells nothing by its begins
_NEARLY_ALL = 0.9
_SECOND, _SLICE = 1e9, 0.5


def common_begins(loops: Sequence[RankLoop], zeros: Sequence[int]) -> list[Ints] | None:
    """Since each recording began, when the steps do of the loop of which most were seen, and that after the last, while
    all were recorded; None: the others do not step with it.

    They do if most of the begins of each are about where one of its is; of one that was seen to begin few, or none, if
    it communicates in nearly all its steps.
    """
    best = int(np.argmax([len(each.steps) for each in loops]))
    if len(loops[best].steps) < _LEAST_BEGINS:
        return None
    first = max(zero + int(each.start_ns[0]) for zero, each in zip(zeros, loops))
    last = min(zero + int(each.end_ns[-1]) for zero, each in zip(zeros, loops))
    begins = _begins(loops[best]) + zeros[best]
    begins = begins[(begins >= first) & (begins <= last)]
    if len(begins) < _LEAST_BEGINS:
        return None
    for place, (zero, each) in enumerate(zip(zeros, loops)):
        own = _begins(each) + zero
        own = own[(own >= first) & (own <= last)]
        if place == best:
            continue
        is_seen = len(own) >= _SEEN * len(begins)
        if not (_is_about_where(own, begins) if is_seen else _communicates(each, begins - zero)):
            return None
    return [begins - zero for zero in zeros]


def _begins(loop: RankLoop) -> Ints:
    """Of its steps, and of that after the last where it was seen to begin."""
    after = loop.steps.end_ns[-1:] if loop.steps.how == LOOP else loop.steps.end_ns[:0]
    return np.concatenate([loop.steps.begin_ns, after])


def slices(loops: Sequence[RankLoop], zeros: Sequence[int]) -> list[Ints] | None:
    """Since each recording began, borders of slices of the time of all; None: some do not communicate in most, or it is
    short."""
    first = max(zero + int(each.start_ns[0]) for zero, each in zip(zeros, loops))
    last = min(zero + int(each.end_ns[-1]) for zero, each in zip(zeros, loops))
    count = int((last - first) // (_SECOND * _SLICE))
    if count < _LEAST_BEGINS:
        return None
    borders = np.rint(np.linspace(first, last, count + 1)).astype(np.int64)
    found = [borders - zero for zero in zeros]
    return found if all(_communicates(each, of_it, _TOGETHER) for each, of_it in zip(loops, found)) else None


def _is_about_where(own: Ints, begins: Ints) -> bool:
    """Whether most of a loop's begins are as far from the nearest of the other's, before or after it."""
    own = own[own < begins[-1]]
    step = np.searchsorted(begins, own, side="right").clip(1) - 1
    # On a circle: the end of a step is the begin of the next.
    turn = np.exp(2j * np.pi * (own - begins[step]) / (begins[step + 1] - begins[step]))
    middle = np.angle(turn.sum())
    away = np.abs(np.angle(turn * np.exp(-1j * middle))) / (2 * np.pi)
    return bool(len(own) and np.mean(away < _NEAR) >= _TOGETHER)


def _communicates(loop: RankLoop, begins: Ints, part: float = _NEARLY_ALL) -> bool:
    """Whether it does in so many of these steps."""
    cut = cut_spans(loop.start_ns, loop.end_ns, begins[:-1], begins[1:])
    return len(np.unique(cut.step[loop.communicates[cut.span]])) >= part * (len(begins) - 1)
