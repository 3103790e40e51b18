"""What is known of calls of libraries that were counted (CALL_DTYPE of `samples`)."""

from __future__ import annotations

from enum import IntFlag
from typing import Any

import numpy as np

from bpfprof import array_types as npt

# enum cudaMemcpyKind of driver_types.h, CUDA 12.9, plus 1: which way a copy goes; 0: it has none, or it is not known.
DIRECTIONS = ("", "HtoH", "HtoD", "DtoH", "DtoD", "default")
_LENGTHS_FROM = 8  # the first of them has all that are shorter than 2 ** 8 * 1.5 ns


class CallFlag(IntFlag):
    """`flags` of CALL_DTYPE."""

    INSIDE = 1  # another call that is counted
    OPEN = 2  # it had not returned when the recording ended


def length_at(lengths: npt.NDArray[np.integer[Any]], share: float, longest_ns: int) -> int:
    """The length that so many calls are not longer than (0.5: the median), in nanoseconds; 0 where there are none.

    Within 23%, of 256 ns and more: they are counted in two parts of each power of two. longest_ns: no call was longer.
    """
    counts = np.cumsum(lengths, dtype=np.float64)
    if not len(counts) or counts[-1] <= 0:
        return 0
    place = int(np.searchsorted(counts, share * counts[-1]))
    return int(min(longest_ns, (_bound(place) * _bound(place + 1)) ** 0.5))


def _bound(place: int) -> float:
    """From which length on calls are counted there."""
    return float(2 ** (_LENGTHS_FROM + place // 2) * (1 + place % 2 / 2))
