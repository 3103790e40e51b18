"""How long what is under way, and what is left to look at, may take when a recording ends; how many looks were cut."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from bpfprof.capture.stop import StopRequest
from bpfprof.proc.memory import TimeIsOverError, reads_until


class Limit:
    """Called: whether there is no more time. `cut_count`: looks that had not enough."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self.cut_count = 0

    def __call__(self) -> bool:
        return self._is_over()

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """A look in the block ends at the next read of a process's memory when there is no more time."""
        with contextlib.suppress(TimeIsOverError), reads_until(self):
            yield
        self.cut_count += self()


def after_asked(is_asked: Callable[[], bool], seconds: float) -> Limit:
    """So long after it was asked first: what is under way then is brought to its end."""
    until_s: list[float] = []

    def is_over() -> bool:
        if not until_s and is_asked():
            until_s.append(time.monotonic() + seconds)
        return bool(until_s) and time.monotonic() >= until_s[0]

    return Limit(is_over)


def until(end_s: float, stop: StopRequest) -> Limit:
    """Until then, or until one more signal comes."""
    count = stop.count
    return Limit(lambda: stop.count != count or time.monotonic() >= end_s)
