"""How far a recording is from what a program knows of itself: oracle.py for 20 s at the default rate. Run as root."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from figures import PROGRAMS, python, running, show

from bpfprof.commands.report import load_profile
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.recording.reader import read_recording

SECONDS = 20
LEAST_SAMPLES = 200  # of a thread whose shares of CPU time are looked at
# Name of the figures -> what the oracle calls it. Off the CPU is waiting and the run queue: on a virtual machine
# schedstat, which the oracle takes the second from, lacks what the hypervisor takes and has some sleep.
KINDS = {"on_cpu": ("cpu_ns",), "off_cpu": ("wait_ns", "runqueue_ns")}


def recorded(path: Path) -> list[dict[str, Any]]:
    """Records the oracle; returns what it says of each of its threads."""
    with running(python(), str(PROGRAMS / "oracle.py")) as target:
        assert target.stdin is not None and target.stdout is not None
        command = [str(Path(sys.executable).with_name("bpfprof")), "record", "-p", str(target.pid), "-o", str(path)]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert recorder.stderr is not None
        recorder.stderr.readline()  # it records
        target.stdin.write("start\n")
        target.stdin.flush()
        time.sleep(SECONDS)
        target.stdin.write("stop\n")
        target.stdin.flush()
        truth: list[dict[str, Any]] = json.loads(target.stdout.readline())["threads"]
        recorder.terminate()
        recorder.communicate()
    return truth


def share(profile: Profile, thread: int, kind: str, function: str) -> float:
    """Percent of the thread's time of this kind that lies below the function."""
    rows = profile.weights[profile.weights["thread"] == thread]
    rows = rows[(rows["state"] == ThreadState.ON_CPU) == (kind == "on_cpu")]
    names = [{profile.frames[frame].name.rpartition(".")[2] for frame in stack} for stack in profile.stacks]
    below = np.array([function in of_stack for of_stack in names])[rows["stack"]]
    return 100 * float(rows["total_ns"][below].sum()) / max(1, int(rows["total_ns"].sum()))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "oracle.bpfprof"
        truth = recorded(path)
        with open(path, "rb") as file:
            start_ns = int(read_recording(file).start["start_ns"])
        times, shares = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
        for thread in truth:
            window = thread["start_ns"] - start_ns, thread["end_ns"] - start_ns
            profile = load_profile(path, ProfileOptions(filter=SpanFilter(window_ns=window)))
            index = next(number for number, row in enumerate(profile.threads) if row.tid == thread["tid"])
            seen = profile.threads[index]
            for kind, keys in KINDS.items():
                seen_ns = seen.on_cpu_ns if kind == "on_cpu" else seen.off_cpu_ns + seen.runqueue_ns
                all_ns = sum(thread[key] for key in keys)
                times[kind] = max(times[kind], 100 * abs(seen_ns - all_ns) / thread["wall_ns"])
                if kind == "on_cpu" and seen.sample_count < LEAST_SAMPLES:
                    continue
                for function, values in thread["functions"].items():
                    true = 100 * sum(values[key] for key in keys) / all_ns
                    shares[kind] = max(shares[kind], abs(share(profile, index, kind, function) - true))
        for kind in KINDS:
            show(f"truth_{kind}_time_of_a_thread", times[kind], "%")
            show(f"truth_{kind}_share_of_a_function", shares[kind], "points")
        quality = (whole := load_profile(path, ProfileOptions())).quality
        unaccounted = [abs(thread.accounted_ns - thread.wall_ns) for thread in whole.threads]
        show("truth_unaccounted_in_any_thread", max(unaccounted), "ns")
        stacks = quality.complete_count + sum(quality.truncated_counts.values())
        show("truth_complete_stacks", 100 * quality.complete_count / stacks, "%")


if __name__ == "__main__":
    main()
