"""What the threads of a process do at one moment: the data of `bpfprof dump`, without the way it was found out."""

from __future__ import annotations

from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.model.ids import Pid, Tid

ON_CPU, READY, WAITING = "on-cpu", "ready", "waiting"
# Kinds of waits: for the GIL, for what an event loop has asked, and for what only a signal can bring. Of what a thread,
# which may be known, has to end: what it has, and what its process does.
GIL, ANSWER, SIGNAL = "gil", "answer", "signal"
HELD = ("lock", "thread", "file-lock", "future")
OF_PROCESSES = ("child", "pipe", "socket")
OF_THREADS = (*HELD, *OF_PROCESSES)


@dataclass(frozen=True)
class WaitsFor:
    """What a wait is for. The holder is None where it is not known: most locks do not store theirs.

    held_in: the frame that has it, where that is known. has_end: it waits for a time at most; of a poll that is told
    only where its kind is ANSWER. nobody: why it is known that nobody who is alive can end the wait, else "". reads:
    of a pipe, that it is read and not written to. could: the threads, with their processes, of which one has to end
    it, where they are known to be several.
    """

    kind: str
    name: str
    held_by_tid: Tid | None = None
    held_by_pid: Pid | None = None
    held_in: Frame | None = None
    has_end: bool = False
    nobody: str = ""
    reads: bool = False
    could: tuple[tuple[Pid, Tid], ...] = ()


@dataclass(frozen=True)
class ThreadNow:
    """`reason` is a word of reason_text(), "" of a thread that does not wait; for_s: how long it has waited, if known.

    Frames are innermost first. note: why they are not whole, else "". variables: for each frame, name -> short text of
    the value; empty where they were not asked for.
    """

    tid: Tid
    name: str
    state: str
    reason: str
    for_s: float | None
    is_idle: bool
    holds_gil: bool
    waits_for: WaitsFor | None
    frames: list[Frame]
    note: str = ""
    variables: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class TaskNow:
    """An asyncio task that is not done. reason: of AWAIT_REASONS; waited_for_by: one of the tasks that wait for it."""

    name: str
    reason: str
    waited_for_by: str | None
    frames: list[Frame]


@dataclass(frozen=True)
class ProcessNow:
    """interpreter: (name, version), None where none is read, and then `note` says why. missed: sentences on tasks.

    elsewhere: names of threads of its deadlocks that are in other processes.
    """

    pid: Pid
    title: str
    interpreter: tuple[str, str] | None
    note: str
    threads: list[ThreadNow]
    tasks: list[TaskNow] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    deadlocks: list[list[Tid]] = field(default_factory=list)
    elsewhere: dict[Tid, str] = field(default_factory=dict)
