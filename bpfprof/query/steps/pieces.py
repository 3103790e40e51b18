"""Spans of a thread and the times of its steps -> the pieces of them that are in each."""

from __future__ import annotations

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools


@dataclass(frozen=True)
class Pieces:
    """Spans of a thread cut at its steps. span: place in Profile.spans; step: place in Steps; ns: how much of it."""

    span: Ints
    step: Ints
    ns: Ints


def cut_spans(start_ns: Ints, end_ns: Ints, begin_ns: Ints, until_ns: Ints) -> Pieces:
    """Spans, which do not overlap, at steps, which do not either; both in the order of time."""
    first = np.searchsorted(until_ns, start_ns, side="right")
    counts = (np.searchsorted(begin_ns, end_ns, side="left") - first).clip(0)
    span = np.repeat(np.arange(len(start_ns)), counts)
    step = np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts) + first[span]
    ns = np.minimum(end_ns[span], until_ns[step]) - np.maximum(start_ns[span], begin_ns[step])
    return Pieces(span, step, ns)


def cut_where(
    start_ns: Ints, end_ns: Ints, chosen: Bools, begin_ns: Ints, until_ns: Ints
) -> tuple[Ints, Ints, Ints, Bools]:
    """Chosen spans cut at times: for each piece (place of its span, start and end, whether it is in these times)."""
    place = np.flatnonzero(chosen)
    if not len(place) or not len(begin_ns):
        return np.arange(len(start_ns)), start_ns, end_ns, np.zeros(len(start_ns), np.bool_)
    found = [(np.flatnonzero(~chosen), start_ns[~chosen], end_ns[~chosen], False)]
    # Between these times, before the first and after the last, too.
    between = np.append(np.int64(-1), until_ns), np.append(begin_ns, max(end_ns[-1], until_ns[-1]) + 1)
    for (begins, ends), is_in in (((begin_ns, until_ns), True), (between, False)):
        cut = cut_spans(start_ns[place], end_ns[place], begins, ends)
        at = np.maximum(start_ns[place][cut.span], begins[cut.step])
        found.append((place[cut.span], at, at + cut.ns, is_in))
    span, start, end = (np.concatenate([each[column] for each in found]) for column in range(3))
    is_in_them = np.repeat([each[3] for each in found], [len(each[0]) for each in found])
    order = np.argsort(start, kind="stable")
    return span[order], start[order], end[order], is_in_them[order]


def merged(begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """The same times, none of which overlap or touch, in their order."""
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, reached_ns = begin_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.flatnonzero(np.append(True, begin_ns[1:] > reached_ns[:-1])[: len(begin_ns)])
    last = np.append(first[1:], len(begin_ns))[: len(first)] - 1
    return begin_ns[first], reached_ns[last]
