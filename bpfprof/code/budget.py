"""How much of something each process may have recorded, so that others keep theirs."""

from __future__ import annotations

import time


class Budget:
    """So much of a process at once, then so much a second, and so much of all together."""

    def __init__(self, at_once: int, per_s: int, of_all: int) -> None:
        self._at_once, self._per_s, self._left = at_once, per_s, of_all
        self._left_of: dict[int, tuple[float, float]] = {}  # and since when, time.monotonic()

    def spend(self, pid: int, count: int) -> None:
        """A process had so many."""
        now_s = time.monotonic()
        self._left_of[pid] = self._left_now(pid, now_s) - count, now_s
        self._left -= count

    def is_spent(self, pid: int) -> bool:
        """Whether a process is to have no more for now."""
        return self._left <= 0 or (pid in self._left_of and self._left_now(pid, time.monotonic()) <= 0)

    def _left_now(self, pid: int, now_s: float) -> float:
        left, since_s = self._left_of.get(pid, (self._at_once, now_s))
        return min(self._at_once, left + self._per_s * (now_s - since_s))
