"""Parts of a recording that goes on -> profiles for a server."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace

from bpfprof.capture.session import Progress
from bpfprof.model.profile import Profile
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.push.outbox import END_S, Outbox
from bpfprof.recording.part import GrowingRecording, Part, joined, part_recording

_NAMED_S = 2.5  # names of native functions come up to two seconds after their stack


class PushedParts:
    """Parts that have ended, until their names are here; each becomes a profile of its own."""

    def __init__(self, growing: GrowingRecording, outbox: Outbox, every_s: float, options: ProfileOptions) -> None:
        self._growing, self._outbox, self._options = growing, outbox, options
        self._least_ns = int(1e9 * every_s / 2)
        self._waiting: list[tuple[float, Part]] = []
        self._short: list[Part] = []  # the first one is: the totals are read when the recording begins

    def on_tick(self, _progress: Progress) -> None:
        now_s = time.monotonic()
        self._waiting += [(now_s + _NAMED_S, part) for part in self._whole()]
        while self._waiting and self._waiting[0][0] <= now_s:
            self._send(self._waiting.pop(0)[1])

    def send_rest(self) -> None:
        """At the end: what is left comes at once, and nothing is recorded that would have to wait for it."""
        rest = [part for _, part in self._waiting] + self._whole()
        for part in rest + ([joined(self._short)] if self._short else []):
            self._send(part, END_S)

    def _whole(self) -> list[Part]:
        whole = []
        for part in self._growing.take_parts():
            self._short.append(part)
            if part.until_ns - self._short[0].since_ns >= self._least_ns:
                whole.append(joined(self._short))
                self._short = []
        return whole

    def _send(self, part: Part, within_s: float = 0.0) -> None:
        tables = self._growing.tables
        recording = part_recording(tables, part).recording
        for name in ("processes", "objects", "files", "texts"):  # those of the whole recording, which grow meanwhile
            setattr(recording, name, copy(getattr(recording, name)))
        since_ns = part.since_ns - int(tables.start["start_ns"])
        began_ns = int(tables.start["started_unix_ns"]) + since_ns

        def made() -> Profile:
            profile = build_profile(recording, self._options)
            info = replace(profile.info, started_unix_ns=began_ns, duration_ns=part.until_ns - part.since_ns)
            return replace(profile, info=info)

        self._outbox.put(made, within_s)
        self._growing.forget(part.since_ns)
