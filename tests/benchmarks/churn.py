"""Threads and processes that are born and die: CPU time against the kernel's, memory, names. Run as root.

20 threads and 5 forked children each 100 ms for 60 s (churn.py), or for so many seconds as the first argument says. The
figure for memory is how much larger bpfprof is at the end than after a third of the time, when its tables are filled.
Then code objects that are made and dropped 1,000 times a second (code_churn.py): how many samples have one that was
gone before it was read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import PROGRAMS, python, running, show

from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording

SETTLED = 1 / 3
CODE_S = 10


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def recorder(pid: int, path: Path) -> subprocess.Popen[str]:
    """`bpfprof record` of a process, once it records."""
    command = [str(Path(sys.executable).with_name("bpfprof")), "record", "-p", str(pid), "-o", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("recording "):
        assert process.poll() is None, "it did not record"
    return process


def read(path: Path) -> Recording:
    with open(path, "rb") as file:
        return read_recording(file)


def churn(seconds: float, path: Path) -> None:
    """Figures of threads and processes."""
    with running(python(), str(PROGRAMS / "churn.py"), "--seconds", str(seconds)) as target:
        assert target.stdin is not None and target.stdout is not None
        bpfprof = recorder(target.pid, path)
        target.stdin.write("go\n")
        target.stdin.flush()
        time.sleep(SETTLED * seconds)
        before = resident_kib(bpfprof.pid)
        time.sleep((1 - SETTLED) * seconds)
        after = resident_kib(bpfprof.pid)
        truth = json.loads(target.stdout.readline())
        target.stdin.close()
        bpfprof.wait()
    recording = read(path)
    cpu_s = {int(row["thread"]): int(row["on_cpu_ns"]) / 1e9 for row in recording.totals}  # the last one counts
    show("churn_threads_and_processes", len(recording.threads), "count")
    show("churn_cpu_difference", 100 * (sum(cpu_s.values()) / truth["cpu_s"] - 1), "%")
    show("churn_memory_growth", 100 * (after / before - 1), "%")
    names = {int(tid): set(given) for tid, given in truth["threads"].items()}
    wrong = sum(
        bool(it.given_name) and it.given_name not in names.get(it.tid, {it.given_name}) for it in recording.threads
    )
    show("churn_wrong_thread_names", wrong, "count")


def code_churn(path: Path) -> None:
    """Figures of code objects."""
    command = [python(), str(PROGRAMS / "code_churn.py"), "--shortest", "0.5", "--longest", "1.5"]
    with running(*command) as target:
        bpfprof = recorder(target.pid, path)
        time.sleep(CODE_S)
        assert target.stdin is not None and target.stdout is not None
        target.stdin.close()
        target.stdout.read()
        bpfprof.wait()
    recording = read(path)
    gone = [number for number, code in enumerate(recording.codes, 1) if code.reason]
    stacks = recording.stacks
    ends = stacks["python_count"].cumsum()
    frames = recording.python_frames["code"]
    is_unread = [False] + [
        bool(set(frames[end - n : end].tolist()) & set(gone)) for n, end in zip(stacks["python_count"], ends)
    ]
    numbers = recording.samples["stack"]
    show("code_churn_samples_unread", 100 * sum(is_unread[n] for n in numbers.tolist()) / max(1, len(numbers)), "%")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as folder:
        churn(seconds, Path(folder) / "churn.bpfprof")
        code_churn(Path(folder) / "code.bpfprof")


if __name__ == "__main__":
    main()
