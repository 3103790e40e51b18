"""What a recording says of each thread against the scheduler: python -m tests.benchmarks.scheduler_accounts, as root.

/proc/PID/task/TID/schedstat of every thread is read before and after a recording, so its figures are of a longer time:
none of a thread's may be less than the recording's. Out come threads of which the recording has more, by over 1% of
their wall time, the worst first. What a hypervisor took while a thread had a CPU is run queue in a recording, and not
in schedstat; some sleep is in schedstat's run delay on Linux 6.12 and later.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.reader import read_recording

RELATIVE = 0.01
_TICKS_NS = 10_000_000  # the kernel brings its figures up to date at a tick


def scheduler_times() -> dict[int, tuple[int, int]]:
    """tid -> (nanoseconds on a CPU, on the run queue) of every thread of the machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/schedstat"):
        try:
            ran, waited, _ = path.read_text().split()
        except (OSError, ValueError):
            continue  # it has ended
        found[int(path.parent.name)] = (int(ran), int(waited))
    return found


def denied(profile: Profile, before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> list[str]:
    """A line for each thread of which a recording has more CPU or run queue than the scheduler, the worst first."""
    lines = []
    for thread in profile.threads:
        if thread.tid not in before or thread.tid not in after:
            continue
        true = [now - then for now, then in zip(after[thread.tid], before[thread.tid])]
        apart = [thread.on_cpu_ns - true[0], thread.runqueue_ns - true[1]]
        if max(apart) > max(RELATIVE * thread.wall_ns, _TICKS_NS):
            lines.append((max(apart), _line(thread, true)))
    return [line for _, line in sorted(lines, reverse=True)]


def _line(thread: ThreadTime, true: list[int]) -> str:
    return (
        f"{thread.process_name} ({thread.pid}) {thread.thread_name} ({thread.tid}): wall {thread.wall_ns / 1e6:.1f}, "
        f"CPU {thread.on_cpu_ns / 1e6:.1f} (scheduler {true[0] / 1e6:.1f}), "
        f"run queue {thread.runqueue_ns / 1e6:.1f} ({true[1] / 1e6:.1f}), {thread.wait_count} waits"
    )


def main() -> None:
    """Records and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pid", action="append", default=[])
    parser.add_argument("-d", default="10")
    asked = parser.parse_args()
    targets = [it for pid in asked.pid for it in ("-p", pid)] or ["-a"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.bpfprof"
        before, began_s = scheduler_times(), time.monotonic()
        command = [
            str(Path(sys.executable).with_name("bpfprof")),
            "record",
            *targets,
            "-S",
            "-d",
            asked.d,
            "-o",
            str(path),
        ]
        subprocess.run(command, check=True, capture_output=True)
        after, window_s = scheduler_times(), time.monotonic() - began_s
        with path.open("rb") as file:
            profile = build_profile(read_recording(file), ProfileOptions())
    lines = denied(profile, before, after)
    print(f"{len(profile.threads)} threads, {window_s:.1f} s between the looks at schedstat")
    print(f"{profile.quality.untold_count} switches not told by the kernel")
    print(f"{len(lines)} threads have more than the scheduler says:", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
