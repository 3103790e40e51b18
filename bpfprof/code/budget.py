"""How much of something each process may have recorded, so that others keep theirs."""

from __future__ import annotations

import time

_FEW = 1024  # processes
# Of those that come when all is spent each has one part in so many of what it would have had, and all of them together
# as much once more. Who had less than one part in so many of what a process has at once need not be known.
_KEPT, _SMALL = 4, 16


class Budget:
    """So much of a process at once, then so much a second, and so much of all together.

    When that is spent, because there are very many or because some took much, each still gets a small equal part.
    """

    def __init__(self, at_once: int, per_s: int, of_all: int) -> None:
        self._at_once, self._per_s, self._of_all, self._left = at_once, per_s, of_all, of_all
        self._had: dict[int, int] = {}
        self._met_count, self._most_known = 0, _FEW  # processes
        self._left_of: dict[int, tuple[float, float]] = {}  # and since when, time.monotonic()
        self._many = _FEW

    def spend(self, pid: int, count: int) -> None:
        """A process had so many."""
        now_s = time.monotonic()
        self._left_of[pid] = self._left_now(pid, now_s) - count, now_s
        self._left -= count
        self._met_count += pid not in self._had
        self._had[pid] = self._had.get(pid, 0) + count
        if len(self._had) > self._most_known:
            self._had = {pid: had for pid, had in self._had.items() if had * _SMALL >= self._at_once}
            self._most_known = max(_FEW, 2 * len(self._had))
        if len(self._left_of) > self._many:
            # Who may have nearly as much as at first need not be known; most of these have ended.
            much = self._at_once - self._at_once // _SMALL
            of_others = self._left_of.items()
            self._left_of = {pid: each for pid, each in of_others if self._left_now(pid, now_s) <= much}
            self._many = max(_FEW, 2 * len(self._left_of))

    def renew(self) -> None:
        """What all had was given up: all together have as much as at first. Of a process so much a second it is."""
        self._left, self._met_count, self._most_known = self._of_all, 0, _FEW
        self._had.clear()

    def is_spent(self, pid: int) -> bool:
        """Whether a process is to have no more for now."""
        if pid in self._left_of and self._left_now(pid, time.monotonic()) <= 0:
            return True
        if self._left > 0:
            return False
        part = self._of_all // (_KEPT * (self._met_count + 1))
        return self._left <= -self._of_all or self._had.get(pid, 0) >= part

    def _left_now(self, pid: int, now_s: float) -> float:
        left, since_s = self._left_of.get(pid, (self._at_once, now_s))
        return min(self._at_once, left + self._per_s * (now_s - since_s))
