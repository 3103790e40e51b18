"""A part of the time of a recording."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.threads import Int64Array

Window = tuple[int, int]  # from, to: nanoseconds since the recording began
_MOST_NS = (1 << 63) - 1


class Cut(NamedTuple):
    """From when to when, on the kernel's clock."""

    from_ns: int
    to_ns: int

    @classmethod
    def of(cls, window: Window | None, start_ns: int) -> Cut:
        """start_ns: when the recording began. None: all of its time."""
        return cls(0, _MOST_NS) if window is None else cls(*(min(start_ns + ns, _MOST_NS) for ns in window))

    def times(self, at_ns: Int64Array) -> Int64Array:
        """Moments before the window as its begin, those after it as its end."""
        return np.asarray(at_ns.clip(self.from_ns, self.to_ns))

    def before_ns(self, begin_ns: Int64Array, ns: Int64Array) -> Int64Array:
        """How much of times is before the window."""
        return np.asarray((self.from_ns - begin_ns).clip(0, ns))

    def has(self, begin_ns: Int64Array, end_ns: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether times have a part in the window."""
        return np.asarray((end_ns > self.from_ns) & (begin_ns < self.to_ns))

    def begins_in(self, begin_ns: Int64Array, end_ns: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether the window begins in times."""
        return np.asarray((begin_ns < self.from_ns) & (end_ns > self.from_ns))
