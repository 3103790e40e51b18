"""What a recording says of each thread against the scheduler: python -m tests.benchmarks.scheduler_accounts, as root.

/proc/PID/task/TID/schedstat of every thread is read once it records, and before it ends; the recording is cut to the
time between the two looks at each thread. Out come threads whose CPU time or time on the run queue is apart by more
than 1% of that time, either way, the worst first.

Three things are not the same in both. Time on the run queue is in schedstat from when a thread was given a CPU: what is
under way at a look is added. What a hypervisor took while a thread had a CPU is run queue in a recording, and not in
schedstat. And of a thread that is moved while it falls asleep, Linux 6.12 and later has some sleep for run delay
(tests/integration/schedstat.py): that is taken off where the moves were heard of (--moves).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from tests.integration.schedstat import Moves, moves_of_threads, queued_ns

RELATIVE = 0.01
_TICKS_NS = 10_000_000  # the kernel brings its figures up to date at a tick


@dataclass(frozen=True)
class Look:
    """CLOCK_MONOTONIC; nanoseconds on a CPU and on the run queue since the thread began."""

    at_ns: int
    ran_ns: int
    waited_ns: int


def looks() -> dict[int, Look]:
    """tid -> its figures, of every thread of the machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/schedstat"):
        try:
            ran, waited, _ = path.read_text().split()
        except (OSError, ValueError):
            continue  # it has ended
        found[int(path.parent.name)] = Look(time.monotonic_ns(), int(ran), int(waited))
    return found


def scheduler_times() -> dict[int, tuple[int, int]]:
    """tid -> (nanoseconds on a CPU, on the run queue) of every thread of the machine."""
    return {tid: (look.ran_ns, look.waited_ns) for tid, look in looks().items()}


def apart(
    recording: Recording, profile: Profile, before: dict[int, Look], after: dict[int, Look], moves: Moves
) -> tuple[int, list[str]]:
    """(threads compared, a line for each that the scheduler has otherwise, the worst first)"""
    assert profile.spans is not None
    ends = np.searchsorted(profile.spans["thread"], np.arange(len(profile.threads) + 1))
    lines, compared = [], 0
    for place, thread in enumerate(profile.threads):
        if thread.tid not in before or thread.tid not in after:
            continue
        first, last = before[thread.tid], after[thread.tid]
        window_ns = last.at_ns - first.at_ns
        start_ns = int(recording.start["start_ns"])
        seen = _clipped(profile.spans[ends[place] : ends[place + 1]], first.at_ns - start_ns, last.at_ns - start_ns)
        if sum(seen) < window_ns - _TICKS_NS:
            continue  # it was not recorded for all of the time
        compared += 1
        queued = [queued_ns(profile, recording, place, look.at_ns) for look in (first, last)]
        slept = moves.slept_in_run_delay_ns(recording, place, first.at_ns, last.at_ns) if moves.rows else 0
        true = [last.ran_ns - first.ran_ns, last.waited_ns - first.waited_ns - queued[0] + queued[1] - slept]
        worst = max(abs(ns - true_ns) for ns, true_ns in zip(seen, true))
        if worst > max(RELATIVE * window_ns, _TICKS_NS):
            name = f"{thread.process_name} ({thread.pid}) {thread.thread_name} ({thread.tid})"
            figures = (ns / 1e6 for pair in zip(seen, true) for ns in pair)
            lines.append(
                (worst, name + ": CPU {:.1f} ms (scheduler {:.1f}), run queue {:.1f} ({:.1f})".format(*figures))
            )
    return compared, [line for _, line in sorted(lines, reverse=True)]


def _clipped(spans: npt.NDArray[np.void], first_ns: int, last_ns: int) -> tuple[int, int, int]:
    """Nanoseconds on a CPU, on the run queue, and of all else."""
    begin_ns = spans["start_ns"].astype(np.int64)
    inside_ns = (begin_ns + spans["duration_ns"].astype(np.int64)).clip(first_ns, last_ns)
    inside_ns -= begin_ns.clip(first_ns, last_ns)
    on_cpu, queued = (int(inside_ns[spans["state"] == it].sum()) for it in (ThreadState.ON_CPU, ThreadState.RUNQUEUE))
    return on_cpu, queued, int(inside_ns.sum()) - on_cpu - queued


def main() -> None:
    """Records and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pid", action="append", default=[])
    parser.add_argument("--moves", action="store_true")
    parser.add_argument("-d", type=float, default=10)
    asked = parser.parse_args()
    targets = [it for pid in asked.pid for it in ("-p", pid)] or ["-a"]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "x.bpfprof"
        moves = stack.enter_context(moves_of_threads()) if asked.moves else Moves([])
        command = [str(Path(sys.executable).with_name("bpfprof")), "record", *targets, "-S", "-o", str(path)]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert recorder.stderr is not None
        while not recorder.stderr.readline().startswith("recording "):
            pass
        before = looks()
        time.sleep(asked.d)
        after = looks()
        recorder.send_signal(signal.SIGINT)
        recorder.communicate()
        with path.open("rb") as file:
            recording = read_recording(file)
        profile = build_profile(recording, ProfileOptions(with_spans=True))
    compared, lines = apart(recording, profile, before, after, moves)
    print(f"{compared} of {len(profile.threads)} threads compared, over {asked.d:.1f} s")
    print(f"{profile.quality.untold_count} switches not told by the kernel")
    print(f"{len(lines)} threads are apart by over 1%:", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
