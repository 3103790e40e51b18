"""Rows of PIECE_DTYPE: single times of what spans that are sums are made of."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.threads import Int64Array
from bpfprof.account.window import Cut
from bpfprof.model.grouping import ordered, sums_by
from bpfprof.model.rows import Rows, one_after_another, picked
from bpfprof.model.spans import PIECE_DTYPE


class Gaps:
    """Times in which there were waits that were only added up. before_ns, inside_ns: of each thread, how much of them
    is before the window and in it."""

    def __init__(self, thread_count: int, cut: Cut, together_ns: int | None) -> None:
        """together_ns: as of pieces_of; None: pieces are not asked for."""
        self.before_ns, self.inside_ns = np.zeros((2, thread_count), np.int64)
        self._cut, self._together_ns, self._pieces = cut, together_ns, list[Rows]()

    @property
    def with_pieces(self) -> bool:
        return self._together_ns is not None

    @property
    def pieces(self) -> Rows:
        """PIECE_DTYPE of those inside, a thread for the span; start_ns: on the kernel's clock."""
        return one_after_another(PIECE_DTYPE, self._pieces)

    def add(self, thread: Int64Array, start_ns: Int64Array, ns: Int64Array) -> None:
        """Of some times of no length."""
        gap = np.flatnonzero(ns)
        thread, start_ns, ns = thread[gap], start_ns[gap], ns[gap]
        begin_ns, count = self._cut.times(start_ns), len(self.before_ns)
        self.before_ns += sums_by(thread, self._cut.before_ns(start_ns, ns), count)
        ns = self._cut.times(start_ns + ns) - begin_ns
        self.inside_ns += sums_by(thread, ns, count)
        if self._together_ns is not None:
            gap = np.flatnonzero(ns)
            self._pieces.append(pieces_of(thread[gap], begin_ns[gap], ns[gap], None, self._together_ns))


def is_first_of_samples(sample: Int64Array, seen: npt.NDArray[np.bool_], begin: int) -> npt.NDArray[np.bool_]:
    """For each piece whether it is the first of a sample that was not seen, which is seen then.

    begin: the place of the first sample.
    """
    run = np.flatnonzero((np.diff(sample, prepend=-1) != 0) & (sample >= 0))
    places, first = np.unique(sample[run] - begin, return_index=True)
    is_new = ~seen[places]
    seen[places] = True
    found = np.zeros(len(sample), np.bool_)
    found[run[first[is_new]]] = True
    return found


def pieces_of(
    span: Int64Array, start_ns: Int64Array, ns: Int64Array, count: Int64Array | None, together_ns: int
) -> Rows:
    """PIECE_DTYPE of these columns; with together_ns those of one span that begin in the same part of the time as one.

    Then they are in any order.
    """
    if together_ns and len(span):
        order, begin = ordered([span, start_ns // together_ns])
        span, start_ns = span[order[begin]], np.minimum.reduceat(start_ns[order], begin)
        ns, count = np.add.reduceat(ns[order], begin), None if count is None else np.add.reduceat(count[order], begin)
    pieces = np.zeros(len(span), PIECE_DTYPE)
    pieces["span"], pieces["start_ns"], pieces["duration_ns"] = span, start_ns, ns
    pieces["count"] = 0 if count is None else count
    return pieces


def in_order(pieces: Rows, spans: Rows) -> Rows:
    """By thread and time."""
    at_ns, threads = pieces["start_ns"].copy(), spans["thread"]
    if len(pieces) and threads.min() < threads.max():
        return picked(pieces, np.lexsort((at_ns, threads[pieces["span"]])))
    return picked(pieces, np.argsort(at_ns, kind="stable"))
