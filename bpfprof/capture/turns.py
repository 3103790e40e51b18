"""How often what was born is looked at at once: at a bounded cost, and beyond that in blocks.

Of a block most of what lives for a millisecond only is gone when it is looked at, and then nothing of it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Of a CPU, in this thread; who reads for it takes some more. The second one where a screen shows the last seconds: what
# was missed comes again.
SHARE, SHARE_OF_SCREEN = 0.2, 0.02
_PAUSE_S = 0.25  # between two looks whether a buffer fills
_AHEAD_S = 0.1  # CPU time that may be taken before: a command line of some tens of programs is followed at once


class Turns:
    """Turns that something of the targets asks for; those of the clock do not count."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._paid_until_s = 0.0  # time.monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Within the block it is looked."""
        begin_s = time.thread_time()
        yield
        cost_s = time.thread_time() - begin_s
        self._paid_until_s = max(self._paid_until_s, time.monotonic() - _AHEAD_S / self._share) + cost_s / self._share

    def rest(self, until_s: float, pause: Callable[[float], bool]) -> None:
        """Until it is paid for what the last ones have cost, or until then (time.monotonic()).

        pause: waits so many seconds, or is true as there is something that cannot wait.
        """
        while (rest_s := min(self._paid_until_s, until_s) - time.monotonic()) > 0:
            if pause(min(rest_s, _PAUSE_S)):
                return
