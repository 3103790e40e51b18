"""How often the buffers are drained, and what is looked at in turns: as often as what came asks for."""

from __future__ import annotations

import time

# How often the buffers are drained: they hold two seconds of 50,000 switches a second. Less often, more so each time,
# where little comes and no code is new; sooner where what is new must be read from the target while it is there.
_TICK_S, _CALM_TICK_S, _SOON_TICK_S, _STARTING_TICK_S = 0.25, 1.0, 0.05, 0.02
_SLOWER = 1.5
# Of how long the youngest program runs: of one that ends before it is looked at again so much is not seen.
_OF_AGE = 0.1
# Of a part, where they are looked at while it goes on; the longest one, and that if nothing was born or mapped.
_PART_TICKS, _PART_TICK_S, _CALM_PART_TICK_S = 2, 1.0, 7.5
_NEWS_EVERY_S = 5.0  # the kernel side tells of births and mappings at once, but may have lost some
_WAKE_S = 5.0  # between two turns where nothing is due; the kernel side wakes who sleeps before the buffers are full
# Times what a drain took, of targets and of all: programs that begin make it cost 20% of a CPU at most, or 5%.
_DRAIN_REST, _DRAIN_REST_OF_ALL = 5, 20
_FEW_EVENTS, _MANY_EVENTS = 5_000, 20_000  # of a drain
_TOTALS_EVERY_S = 2.0
_LOOKS_EVERY_S, _LOOKS_REST = 1.0, 50  # the second times what looks took: they cost at most 2% of a CPU
_SELDOM = 10  # times as seldom, where nobody looks at it meanwhile


class Pace:
    """Of one recording. All times are time.monotonic() in seconds.

    part_s: a part of it ends each so many seconds, for a sink that is looked at while it grows; 0: none does.
    is_quiet: nobody looks before a part has ended, and what it costs matters more than when it comes.
    """

    def __init__(self, of_all: bool, part_s: float = 0.0, is_quiet: bool = False) -> None:
        self.part_s = part_s
        self._is_quiet = is_quiet
        self.seldom = _SELDOM if is_quiet else 1  # how many times as seldom all is looked at that is not new
        self.drained_s = 0.0
        self._rest = _DRAIN_REST_OF_ALL if of_all else _DRAIN_REST
        self._is_urgent = True  # the next drain should be soon
        self._cost_s = self._totals_s = self._next_totals_s = self._next_looks_s = 0.0
        self._has_news = True
        self._next_news_s = 0.0
        self._tick_s = _TICK_S

    @property
    def wake_s(self) -> float:
        """Until the next turn, at most: a part that has just ended is looked at soon."""
        has_part = self.part_s > 0 and not self._is_quiet and time.monotonic() < self._totals_s + _TICK_S
        return _TICK_S if has_part else _WAKE_S

    def wake(self, is_news: bool) -> None:
        """The loop has looked; is_news: something was born, or has mapped a file."""
        self._has_news |= is_news
        self._next_news_s = time.monotonic() + _NEWS_EVERY_S

    def news_due(self) -> bool:
        """Whether to look for what is born or mapped where nothing says that there is any."""
        return time.monotonic() >= self._next_news_s

    def due_s(self, youngest_s: float | None) -> float:
        """When the next drain is; youngest_s: for how long a program runs that has just begun, None where none has."""
        tick_s = self._tick_s
        if self._is_urgent:
            tick_s = _SOON_TICK_S
        elif youngest_s is None and self.part_s:
            longest_s = _PART_TICK_S if self._has_news else _CALM_PART_TICK_S
            tick_s = max(_TICK_S, min(self.part_s / _PART_TICKS, longest_s))
            if self._next_totals_s > self.drained_s:  # so that the part ends in time
                tick_s = min(tick_s, self._next_totals_s - self.drained_s)
        if youngest_s is not None:
            tick_s = min(tick_s, _TICK_S, max(_STARTING_TICK_S, _OF_AGE * youngest_s))
        return self.drained_s + min(max(tick_s, self._rest * self._cost_s), max(tick_s, _TICK_S))

    def taken(self, event_count: int) -> None:
        """A drain has taken so many out of the buffers."""
        self._tick_s = min(_SLOWER * self._tick_s, _CALM_TICK_S) if event_count < _FEW_EVENTS else _TICK_S
        self.drained_s, self._is_urgent, self._has_news = time.monotonic(), event_count > _MANY_EVENTS, False
        self._next_news_s = self.drained_s + _NEWS_EVERY_S

    def met(self, is_new: bool, is_urgent: bool) -> None:
        """Whether the drain brought code that is new, and so much that more of it must be read while it is there."""
        self._tick_s = _TICK_S if is_new else self._tick_s
        self._is_urgent |= is_urgent

    def cost(self, cpu_s: float) -> None:
        """Of the last drain."""
        self._cost_s = cpu_s

    def is_soon(self) -> bool:
        """Whether a drain is due even while the last looks are under way."""
        return time.monotonic() >= self.drained_s + _SOON_TICK_S

    # --- totals of all threads, and looks at stacks that lacked something

    def totals_due(self) -> bool:
        return time.monotonic() >= self._next_totals_s

    def totals_read(self) -> None:
        self._totals_s = time.monotonic()
        self._next_totals_s = self._totals_s + (self.part_s or _TOTALS_EVERY_S)

    def no_more_totals(self) -> None:
        """The last ones follow, of the last moment."""
        self._next_totals_s = float("inf")

    def looks_due(self) -> bool:
        return time.monotonic() >= self._next_looks_s

    def look_now(self) -> None:
        self._next_looks_s = 0.0

    def looked(self, begin_s: float) -> None:
        """They began then, and have ended now."""
        end_s = time.monotonic()
        self._next_looks_s = end_s + self.seldom * max(_LOOKS_EVERY_S, _LOOKS_REST * (end_s - begin_s))
