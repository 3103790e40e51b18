"""Work beside the recording, in a thread of its own: the most urgent first, one after another.

It has the nice value of the thread that began it. At a lower priority than the recording, which has to be the first on
a busy machine, it would have no CPU while it holds the GIL, and the recording would wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
from collections.abc import Callable

_SWITCH_INTERVAL_S = 0.001  # the recording waits at most so long for the interpreter
URGENT = -1


class Background:
    """A daemon thread with a queue. What it is given must not raise."""

    def __init__(self) -> None:
        self._tasks: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._is_closed = False
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._run, name="bpfprof-background", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """The tid of its thread."""
        return self._thread.native_id or 0

    @property
    def open_count(self) -> int:
        """Tasks that are not done yet."""
        return self._tasks.unfinished_tasks

    def starved_s(self) -> float:
        """How long its thread has waited for a CPU."""
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"/proc/self/task/{self.thread_id}/schedstat", "rb") as file,
        ):
            return int(file.read().split()[1]) / 1e9
        return 0.0

    def add(self, priority: int, task: Callable[[], None]) -> None:
        """Runs it after all of a lower number and those of its own that were added before."""
        self._tasks.put((priority, next(self._order), task))

    def wait(self, timeout_s: float) -> bool:
        """Waits until everything is done; false when that takes longer."""
        with self._tasks.all_tasks_done:
            return self._tasks.all_tasks_done.wait_for(lambda: not self.open_count, timeout_s)

    def close(self, timeout_s: float = 0.5) -> bool:
        """Drops what has not begun; waits so long for what has. True when nothing runs any more."""
        self._is_closed = True
        self.add(URGENT, lambda: None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closed:
            _, _, task = self._tasks.get()
            if not self._is_closed:
                task()
            self._tasks.task_done()
