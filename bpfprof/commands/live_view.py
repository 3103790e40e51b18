"""What `top` shows, again and again: made where it is recorded, changed by keys in a thread of their own."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bpfprof.commands.live_data import LiveData, Shown
from bpfprof.commands.live_files import dumped, write_flame_graph, write_seconds
from bpfprof.commands.live_keys import ENTER, ESCAPE, chosen_row, pressed, typed
from bpfprof.commands.outputs import is_read
from bpfprof.commands.sources import sources_now
from bpfprof.commands.terminal import for_terminal, terminal_size
from bpfprof.dataclass import dataclass
from bpfprof.errors import BpfprofError
from bpfprof.query.answer.moment import closer
from bpfprof.render.formats import RenderOptions
from bpfprof.render.top import HELP, TopLook, TopState, closer_lines, lines_without_clock, shown_places, with_clock

if TYPE_CHECKING:
    from bpfprof.capture.session import Progress, Session
    from bpfprof.capture.stop import StopRequest
    from bpfprof.commands.screen import Screen
    from bpfprof.query.answer.moment import Key, Moment
    from bpfprof.recording.part import GrowingRecording

EVERY_S, BATCH_EVERY_S = 1.0, 2.0
# A view is made so often that it takes this part of a CPU, but each 5 seconds; where bpfprof would take more than the
# second part in all, so seldom that it does not, but each 15.
_VIEW_PART, _OWN_PART = 0.012, 0.025
_MOST_S, _RARE_S = 5.0, 15.0
_NOTE_S = 5
_AFTER_S = 0.01  # a second has begun, the clock shows it


@dataclass(frozen=True)
class LiveOptions:
    """name: of files that are written. is_asked: every_s is obeyed, whatever a view costs. count: of tables that are
    printed, None: no end."""

    name: str
    on_screen: bool
    every_s: float
    is_asked: bool = False
    count: int | None = None


class LiveView:
    """What is shown, and what the user chose, the end of the recording, too."""

    def __init__(self, options: LiveOptions, stop: StopRequest) -> None:
        self.options = options
        self._stop, self._left = stop, options.count
        self._lock = threading.RLock()
        self._look = TopLook(has_keys=options.on_screen)
        self._is_typing = False
        self._wanted = ""  # a key that the thread that records has to act on
        self._note, self._note_until_s = "", 0.0
        self._pages: list[str] = []  # lines of a text that is shown instead
        self._paused: dict[bool, Shown | None] = {}  # since the start or not -> what was shown when it was paused
        # The lines that were shown last, without the clock.
        self._made: tuple[Moment, TopState, TopLook, list[str]] | None = None
        self._size, self._cpu_count = os.terminal_size((0, 0)), os.cpu_count() or 1
        self._fits = RenderOptions()  # of a screen, as its size is
        self._drawn: Moment | None = None
        self._has_new = False
        self._screen: Screen | None = None
        self._next_s = 0.0  # when there will be more to show
        # Of the last parts: when they were taken, CPU time of bpfprof by then, and that without what views took.
        self._used: deque[tuple[float, float, float]] = deque(maxlen=12)
        self._views_s = 0.0

    def begin(self, screen: Screen | None, session: Session, growing: GrowingRecording) -> None:
        """Before anything was recorded."""
        self._screen, self._session = screen, session
        self._fits = for_terminal(RenderOptions(), sys.stdout)
        self._data = LiveData(growing, self.options.every_s)

    # --- in the thread that records

    def tick(self, progress: Progress) -> None:
        """After each drain."""
        if self._wanted:
            self._act()
        begin_s, end_ns = time.thread_time(), self._data.end_ns
        self._has_new = False
        if self._data.has_more:
            self._stop.cuts(self._take)
        if self._stop.requested:
            return  # there may be half a table
        has_new = self._has_new
        if self._data.end_ns != end_ns:
            cost_s = time.thread_time() - begin_s
            self._used.append((time.monotonic(), progress.own_cpu_s, progress.own_cpu_s - self._views_s))
            self._views_s += cost_s
            if self.options.on_screen and not self.options.is_asked:
                self._session.pace.part_s = self._part_s(cost_s)
            self._next_s = time.monotonic() + self._session.pace.part_s
        if self._screen is None:
            shown = self._data.shown(False)
            if has_new and shown is not None and shown.moment.duration_ns >= 5e8 * self.options.every_s:
                self._print()
        elif has_new or self._size != terminal_size(sys.stdout) or self._is_note_over():
            self.draw()
        if not is_read() or (self._screen is not None and self._screen.is_gone):
            self._stop.request()

    def _take(self) -> None:
        self._has_new = self._data.take()

    def _act(self) -> None:
        key, self._wanted = self._wanted, ""
        if key == "r":
            self._data.reset()
            return
        if self._data.shown(False) is None:
            return
        write = write_seconds if key == "o" else write_flame_graph
        try:
            self._tell(f"written: {write(self._data.recording(), self.options.name)}")
        except BpfprofError as error:
            self._tell(str(error))

    def _print(self) -> None:
        click.echo("\n".join(self._lines()).rstrip() + "\n")
        sys.stdout.flush()
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._stop.request()

    # --- in both

    def draw(self) -> None:
        """Shows what there is, in the size that the terminal has now."""
        with self._lock:
            if self._screen is None:
                return
            before, self._size = self._size, terminal_size(sys.stdout)
            if self._size != before:
                self._fits = for_terminal(RenderOptions(), sys.stdout)
            if self._is_note_over():
                self._note = ""
            moment, lines = self._drawn, self._lines()
            self._drawn = self._made[0] if self._made else None
            self._screen.draw(lines, only_changed=self._size == before and moment is self._drawn)

    def tick_s(self) -> float:
        """Until the clock shows another second."""
        return 1.0 if self._screen is None else 1.0 - self._data.elapsed_s % 1.0 + _AFTER_S

    def _tell(self, note: str) -> None:
        self._note, self._note_until_s = note, time.monotonic() + _NOTE_S

    def _is_note_over(self) -> bool:
        return bool(self._note) and not self._is_typing and time.monotonic() > self._note_until_s

    def _part_s(self, view_s: float) -> float:
        """How long the next part is where a view takes so much CPU time."""
        usual_s = min(max(view_s / _VIEW_PART, self.options.every_s), max(_MOST_S, self.options.every_s))
        left = _OWN_PART - self._own_cpu(without_views=True)
        return max(usual_s, min(view_s / max(left, 1e-9), _RARE_S))

    def _own_cpu(self, without_views: bool = False) -> float:
        """Of one CPU, in the last parts."""
        if not self._used:
            return 0.0
        first, last = self._used[0], self._used[-1]
        passed_s, used_s = last[0] - first[0], last[1 + without_views] - first[1 + without_views]
        return used_s / passed_s if passed_s > 0 else 0.0

    def _shown(self) -> Shown | None:
        if self._look.is_paused:
            return self._paused[self._look.since_start]
        return self._data.shown(self._look.since_start)

    def _lines(self) -> list[str]:
        look, shown = self._sized(), self._shown()
        if self._pages:
            has_more = len(self._pages) > look.rows - 1
            return [*self._pages[: look.rows - 1], "Space: more; any other key: back" if has_more else "any key: back"]
        if shown is None:
            return ["bpfprof top: the first second is being recorded"]
        state = self._state(shown)
        timeless = replace(state, elapsed_s=0, own_cpu=0.0, next_s=0)
        if not self._made or self._made[0] is not shown.moment or self._made[1:3] != (timeless, look):
            self._made = shown.moment, timeless, look, lines_without_clock(shown.moment, state, look)
        return with_clock(self._made[3], shown.moment, state, look)

    def _sized(self) -> TopLook:
        fits = self._fits if self._screen else for_terminal(RenderOptions(), sys.stdout)
        rows = fits.rows + 1 if self._screen else fits.rows
        return replace(
            self._look, columns=fits.columns, rows=rows, has_color=fits.has_color, ascii_only=fits.ascii_only
        )

    def _state(self, shown: Shown) -> TopState:
        elapsed_s = int(shown.elapsed_s)
        return TopState(
            shown.places,
            shown.shares,
            shown.trends,
            elapsed_s,
            self._own_cpu(),
            self._cpu_count,
            self._session.progress.lost_count,
            self._note if time.monotonic() < self._note_until_s or self._is_typing else "",
            # Another one when the clock is: lines are made once a second.
            max(round(shown.elapsed_s + self._next_s - time.monotonic()) - elapsed_s, 0),
        )

    # --- in the thread of the keys

    def key(self, key: str) -> None:
        """Acts on a key that was pressed."""
        with self._lock:
            if self._pages:
                rows = self._sized().rows - 1
                self._pages = self._pages[rows:] if key == " " else []
            elif self._is_typing:
                self._type(key)
            else:
                self._press(key)
            self.draw()
        self._session.tick_now()

    def _type(self, key: str) -> None:
        self._look = typed(self._look, key)
        self._is_typing = key not in (*ENTER, ESCAPE)
        self._note = f"/{self._look.only}" if self._is_typing else ""

    def _press(self, key: str) -> None:
        if key == "p" and not self._look.is_paused:
            # The one that is looked at last: it is made anew.
            order = (not self._look.since_start, self._look.since_start)
            self._paused = {since_start: self._data.shown(since_start) for since_start in order}
        self._look = pressed(self._look, key, self._rows())
        if key == "q":
            self._stop.request()
        elif key == "/":
            self._is_typing, self._note = True, f"/{self._look.only}"
        elif key in ("r", "f", "o"):
            self._wanted = key
        elif key in ("h", "?"):
            self._pages = HELP.splitlines()
        elif key in ENTER:
            self._pages = self._closer()
        elif key == "d":
            shown = self._shown()
            pids = dict.fromkeys(thread.pid for thread in shown.moment.profile.threads) if shown else {}
            self._pages = dumped(list(pids), self._sized().columns)

    def _rows(self) -> list[Key]:
        shown = self._shown()
        return [place.key for place in shown_places(shown.places, self._look)] if shown else []

    def _closer(self) -> list[str]:
        """Lines and callers of the chosen function."""
        shown = self._shown()
        places = shown_places(shown.places, self._look) if shown else []
        if shown is None or not places:
            return []
        place = places[chosen_row(self._look, [each.key for each in places])]
        found = closer(shown.moment, place.key)
        sources = sources_now(found.pid, [place.frame.file])
        return closer_lines(place, found, shown.moment.whole_ns, self._sized().columns, sources)
