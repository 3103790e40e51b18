"""Parts of a recording that goes on -> what there is to show: of the last seconds, and since the start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bpfprof.dataclass import dataclass
from bpfprof.profile.live import LiveSpans
from bpfprof.query.answer.moment import Key, LivePlace, Moment, SinceStart, moment_of, sums_of

if TYPE_CHECKING:
    from bpfprof.recording.contents import Recording
    from bpfprof.recording.part import GrowingRecording, Part

_WINDOW_NS = 10_000_000_000


@dataclass(frozen=True)
class Shown:
    """A moment; places and nanoseconds by SHARES: of the moment as it has them, or of all threads since the start."""

    moment: Moment
    places: list[LivePlace]
    shares: Sequence[int]
    trends: dict[Key, list[float]]
    elapsed_s: float


class LiveData:
    """The last 10 seconds, or as many as a table stands for, and sums since the start or the last reset.

    All is made in the thread that records; what is shown never waits for it. Sums since the start may lack the last
    seconds when they are first asked for, until the next take().
    """

    def __init__(self, growing: GrowingRecording, every_s: float) -> None:
        self._growing, self._window_ns = growing, max(_WINDOW_NS, int(1e9 * every_s))
        self._parts: list[Part] = []
        self.reset()

    def reset(self) -> None:
        """Forgets all there was."""
        self._live = LiveSpans(self._growing.tables)
        self._since, self._since_ns = SinceStart(), 0
        self._moment: Moment | None = None
        self._moment_ns = 0, 0  # from when to when
        # Since the start, as far as was added up; None: the moment is all there was.
        self._all: tuple[list[LivePlace], list[int]] | None = None
        self._wants_all, self._lacks_some = False, False
        self._trends: dict[Key, list[float]] = {}
        self._start_s = time.monotonic()

    @property
    def end_ns(self) -> int:
        """Of the last part that was taken."""
        return self._live.end_ns

    @property
    def elapsed_s(self) -> float:
        """Since the start or the last reset."""
        return time.monotonic() - self._start_s

    @property
    def has_more(self) -> bool:
        """Whether take() would have something to do."""
        return bool(self._parts or self._growing.has_parts or (self._wants_all and self._lacks_some))

    def take(self) -> bool:
        """Takes parts that have ended before the last one, whose names are here now; whether there is more to show."""
        parts, self._parts = self._parts, self._growing.take_parts()
        for part in parts:
            if self._live.gives_up_ns(part, self._window_ns) > self._since_ns:
                self._add_up()
            self._live.add(part, self._window_ns)
        if parts:
            self._growing.forget(self._live.since_ns)
            moment = moment_of(self._live.profile(), self._live.states())
            self._since.note(moment)
            self._trends = self._since.trends()
            self._moment, self._lacks_some = moment, self._since_ns > 0
            self._moment_ns = self._live.end_ns - moment.duration_ns, self._live.end_ns
        is_later = self._wants_all and self._lacks_some
        if is_later:
            rest = sums_of(self._live.profile(self._since_ns)) if self._since_ns < self._live.end_ns else None
            self._all, self._lacks_some = self._since.with_last(rest), False
        return bool(parts) or is_later

    def _add_up(self) -> None:
        """What is not in the sums since the start yet."""
        if self._live.end_ns > self._since_ns:
            moment = self._moment if self._moment_ns == (self._since_ns, self._live.end_ns) else None
            self._since.add(moment or sums_of(self._live.profile(self._since_ns)))
            self._since_ns = self._live.end_ns
            self._all = self._since.with_last(None)

    def shown(self, since_start: bool) -> Shown | None:
        """None before anything was recorded."""
        moment, added, self._wants_all = self._moment, self._all, since_start
        if moment is None:
            return None
        places, shares = added or (moment.places, moment.all_shares)
        if not since_start:
            places, shares = moment.places, moment.shares
        return Shown(moment, places, shares, self._trends, self.elapsed_s)

    def recording(self) -> Recording:
        """Of the last seconds."""
        return self._live.recording()
