"""What eu-stack (elfutils) says of a process, which it stops while it looks; and when a process is at rest for that."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

_FRAME = re.compile(r"#\d+ +0x([0-9a-f]+)")


def eu_stacks(pid: int) -> dict[int, tuple[int, ...]]:
    """Program counters of each thread by its tid, leaf first."""
    text = subprocess.run(["eu-stack", "-n", "0", "-p", str(pid)], capture_output=True, text=True).stdout
    stacks: dict[int, list[int]] = {}
    frames: list[int] = []
    for line in text.splitlines():
        if line.startswith("TID"):
            frames = stacks.setdefault(int(line.split()[1].rstrip(":")), [])
        elif match := _FRAME.match(line):
            frames.append(int(match[1], 16))
    return {tid: tuple(found) for tid, found in stacks.items()}


def wait_until_asleep(pid: int) -> None:
    """Until all threads sleep in a system call and stay there: one that wants the GIL wakes each 5 ms.

    One that was woken is still in its system call, and has not been switched, until its CPU comes to it. That takes
    longer than a look where the host has taken the CPU; but its state is not that of a sleeper.
    """
    deadline, before, now = time.monotonic() + 300, [""], ["running"]
    # Asleep (S, D), or a main thread that has ended (Z) before others.
    while before != now or any(text.startswith("running") or not re.search("State:\t[SDZ]", text) for text in now):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two looks at /proc: a thread cannot say that it sleeps
        before, now = now, _whereabouts(pid)


def _whereabouts(pid: int) -> list[str]:
    """For each thread its system call, its state, and how often it was switched."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        lines = (task / "status").read_text().splitlines()
        told = [line for line in lines if line.startswith("State:") or "ctxt_switches" in line]
        found.append(" ".join([(task / "syscall").read_text(), *told]))
    return found
