"""Rows of PIECE_DTYPE: single times of what spans that are sums are made of."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.threads import Int64Array
from bpfprof.model.grouping import ordered
from bpfprof.model.rows import Rows, picked
from bpfprof.model.spans import PIECE_DTYPE


def first_of_samples(
    sample: Int64Array, seen: npt.NDArray[np.bool_], begin: int, ns: Int64Array
) -> npt.NDArray[np.intp]:
    """The first piece with time of each sample that was not seen, which is seen then; begin: the place of the first."""
    named = np.flatnonzero((sample >= 0) & (ns > 0))
    places, first = np.unique(sample[named] - begin, return_index=True)
    is_new = ~seen[places]
    seen[places] = True
    return named[first[is_new]]


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
