"""How long the summary of a recording, which is there already, may take to be made."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType


class OutOfTimeError(BaseException):
    """Raised wherever the summary is being made. No Exception: nothing that goes on after one of those takes it."""


class TimeLimit:
    """Within the `with` block, of the main thread, OutOfTimeError is raised when it is over. It begins with `begin()`.

    message: a line for standard error after the least time, where that is not all there is; also where it ends so late
        that both are due.
    """

    def __init__(self, part: float, message: str) -> None:
        self._part, self._message = part, message
        self._said = False
        self._message_s = self._end_s = 0.0  # time.monotonic()

    def begin(self, least_s: float, recorded_s: float) -> None:
        """From now on it is `least_s`, or the part of what was recorded if that is longer; infinite: no limit."""
        self._message_s = time.monotonic() + least_s
        self._end_s = max(self._message_s, time.monotonic() + self._part * max(recorded_s, 1e-9))

    def __enter__(self) -> None:
        if not self._end_s:
            return
        signal.signal(signal.SIGALRM, self._rang)
        _ring_at(self._message_s)

    def __exit__(self, *_: object) -> None:
        self._end_s = 0.0  # one that rings now says nothing
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _rang(self, _number: int, _frame: FrameType | None) -> None:
        if not self._end_s:
            return
        if not self._said and self._end_s > self._message_s:
            self._said = True
            os.write(2, f"{self._message}\n".encode(errors="replace"))
        if time.monotonic() >= self._end_s:
            raise OutOfTimeError
        _ring_at(self._end_s)


def _ring_at(moment_s: float) -> None:
    if moment_s < float("inf"):
        signal.setitimer(signal.ITIMER_REAL, max(0.001, moment_s - time.monotonic()))
