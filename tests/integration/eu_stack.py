"""What eu-stack (elfutils) says of a process; it stops the process while it looks."""

from __future__ import annotations

import re
import subprocess

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
