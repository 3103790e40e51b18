"""Spans of a thread and the times of its steps -> the pieces of them that are in each."""

from __future__ import annotations

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.query.code.functions import Ints


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
