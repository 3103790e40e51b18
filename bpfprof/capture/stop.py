"""Ctrl-C and SIGTERM ask for an end; the recording then ends itself, complete."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """Becomes `requested` when SIGINT or SIGTERM arrives within the `with` block."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
