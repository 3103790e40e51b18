"""Who reads what bpfprof prints, by the pipes that processes have open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from bpfprof.model.ids import Pid
from bpfprof.proc import tasks

_PIPE = "pipe:["
_COMMANDS_LIMIT = 16  # that one after the other read and print


def readers() -> set[Pid]:
    """Whose standard input is what bpfprof prints, or what such a reader prints: `bpfprof record | sed | less`."""
    own, found = tasks.own_processes(), set[Pid]()
    new = {name for pid in own for name in _pipes(pid)}
    if not new:
        return found
    by_input: dict[str, list[Pid]] = {}
    for pid in tasks.list_processes():
        for name in _pipes(pid, ("0",)) if pid not in own else ():
            by_input.setdefault(name, []).append(pid)
    for _ in range(_COMMANDS_LIMIT):
        next_ones = {pid for name in new for pid in by_input.get(name, ())} - found
        found |= next_ones
        new = {name for pid in next_ones for name in _pipes(pid, ("1", "2"))}
    return found


def _pipes(pid: Pid, numbers: Iterable[str] = ()) -> list[str]:
    """Those that a process has open, by these of its descriptors, or all."""
    folder, found = f"/proc/{pid}/fd", []
    with contextlib.suppress(OSError):  # it has ended, or does not tell
        for number in numbers or os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"{folder}/{number}"))
    return [name for name in found if name.startswith(_PIPE)]
