"""What schedstat has late, and what it has wrong.

Time on the run queue is in a thread's run delay from when it was given a CPU. So at a moment when it waits for one, the
wait until then is missing, and it is too much in what comes after.

Some sleep of a thread that was moved to another CPU is in its run delay.

Since Linux 6.12 a thread that blocks may stay on its run queue for a while (DELAY_DEQUEUE, kernel/sched/features.h).
When the load balancer moves it meanwhile, sched_info_enqueue() (kernel/sched/stats.h) begins a run delay, and what
takes the thread off the queue later does not end it: the rest of its sleep is run delay. On a machine with more to run
than CPUs that was up to 60 ms in 2 s. Here the moves are heard of through the tracepoint sched_migrate_task.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.recording.contents import Recording

_MOVE = re.compile(r" (\d+)\.(\d{6}): sched_migrate_task: .* pid=(\d+) prio=")
_BUFFER_KB = 4096  # some 40,000 moves


@dataclass
class Moves:
    """Of every thread of the machine, (tid, CLOCK_MONOTONIC in ns), up to the end of `moves_of_threads()`."""

    rows: list[tuple[int, int]]

    def slept_in_run_delay_ns(
        self, recording: Recording, thread: int, first_ns: int = 0, last_ns: int = 1 << 62
    ) -> int:
        """How much sleep schedstat booked as run delay for a thread of the recording when it came back in this time."""
        tid = recording.threads[thread].tid
        moves = np.sort(np.array([ns for moved, ns in self.rows if moved == tid], np.int64))
        total_ns = 0
        for wait in recording.waits[recording.waits["thread"] == thread]:
            woken_ns = int(wait["time_ns"]) - int(wait["runqueue_ns"])
            place = int(np.searchsorted(moves, woken_ns - int(wait["blocked_ns"])))
            if place < len(moves) and moves[place] < woken_ns and first_ns <= wait["time_ns"] <= last_ns:
                total_ns += woken_ns - int(moves[place])
        return total_ns


@contextmanager
def moves_of_threads() -> Iterator[Moves]:
    """Filled when the block ends. Needs root."""
    moves = Moves([])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tracefs", "none", folder], check=True)
        instance = Path(folder) / "instances" / f"bpfprof-test-{os.getpid()}"
        try:
            instance.mkdir()
            (instance / "trace_clock").write_text("mono")
            (instance / "buffer_size_kb").write_text(str(_BUFFER_KB))
            (instance / "events" / "sched" / "sched_migrate_task" / "enable").write_text("1")
            yield moves
            (instance / "tracing_on").write_text("0")
            for seconds, microseconds, tid in _MOVE.findall((instance / "trace").read_text(errors="replace")):
                moves.rows.append((int(tid), int(seconds) * 1_000_000_000 + int(microseconds) * 1000))
        finally:
            instance.rmdir()
            subprocess.run(["umount", folder], check=True)


def stolen_of_machine_ns() -> int:
    """What the hypervisor and interrupts took of all CPUs since the start, by /proc/stat: in ticks of 10 ms."""
    irq, softirq, steal = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[6:9])
    return (irq + softirq + steal) * 10_000_000


def queued_ns(profile: Profile, recording: Recording, thread: int, at_ns: int) -> int:
    """How long a thread had been on the run queue at this time, CLOCK_MONOTONIC; needs the profile's timeline."""
    assert profile.spans is not None
    rows = profile.spans[profile.spans["thread"] == thread]
    start_ns = rows["start_ns"].astype(np.int64) + recording.start["start_ns"]
    before = max(0, int(np.searchsorted(start_ns, at_ns)) - 1)
    return int(at_ns - start_ns[before]) if rows["state"][before] == ThreadState.RUNQUEUE else 0
