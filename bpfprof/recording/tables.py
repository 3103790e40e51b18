"""What the JSON of a recording holds: the fields of `start` and `end`, and the rows of its tables.

The annotations are the types that the reader asks for (see `fields`); docs/recording-format.md tells what they mean.
Nothing here takes long to import, as capture needs it before the kernel side is up.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any, Optional, TypedDict, Union

from bpfprof.dataclass import dataclass

_NAME_BYTES, _TITLE_LETTERS = 15, 80  # of a name the kernel keeps so many: TASK_COMM_LEN, <linux/sched.h>
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_MADE_UP = re.compile(r"MainThread|Thread-\d+( \(.*\))?")  # Lib/threading.py: _MainThread, _newname()


class Start(TypedDict, total=False):
    """How a recording was made."""

    bpfprof_version: str
    start_ns: int
    started_unix_ns: int
    host_name: str
    kernel_release: str
    rate_hz: int
    event: str
    events: list[str]
    mode: str
    native: bool
    min_block_us: int
    async_rate_hz: int
    counts_calls: bool
    target_pids: list[int]
    status_texts: dict[str, str]


class End(TypedDict, total=False):
    """What is known when a recording ends in good order."""

    end_ns: int
    own_cpu_ns: int
    lost: dict[str, int]
    codes_unverified: int
    codes_replaced: int
    codes_not_copied: int
    switches_untold: int
    problems: dict[str, int]
    tasks_missed: dict[str, int]
    usage: dict[str, list[int]]
    limit_hits: dict[str, int]
    accepted: list[int]
    listens: dict[str, bool]
    asks: list[int]
    own_pids: list[int]
    above_pids: list[int]
    reader_pids: list[int]
    cpu_limits: dict[str, int]
    cpu_throttled_by: dict[str, str]
    cpu_throttled: dict[str, list[int]]
    call_libraries: dict[str, int]
    round_trips: dict[str, dict[str, list[int]]]
    namespaces_apart: dict[str, bool]


@dataclass
class RecordedLastWait:
    """What a thread, by its index, waited for when the recording ended, read from outside: as WaitsFor of model.now.

    holder: index of the thread that has it, + 1; 0: none of the recording. held_by: who has it, in words.
    """

    thread: int = 0
    kind: str = ""
    name: str = ""
    holder: int = 0
    held_by: str = ""
    nobody: str = ""
    waited_ns: int = 0  # 0: not known
    has_end: bool = False  # it waits for a time at most


@dataclass
class RecordedProcess:
    """A process as it was last described (an exec describes it anew); the interpreter is the last one it ran."""

    pid: int = 0
    name: str = ""
    command_line: list[str] = field(default_factory=list)
    interpreter: str = ""  # "cpython"; "": none is known
    version: str = ""  # like 3.12.4
    build: str = ""  # free-threaded; "": an ordinary one
    entry_marks_from: int = 0
    shim_is_python: bool = False
    # Optional: the annotation is evaluated, by Python 3.9 too.
    gil: Optional[tuple[int, int]] = None  # noqa: UP045 (address, bytes)
    gil_switch: Optional[tuple[int, int]] = None  # noqa: UP045 (address, bytes)
    is_kernel_thread: bool = False
    namespace_pid: int = 0  # its pid in its own pid namespace, where that is not ours; 0: it is
    cgroup: str = ""
    rank: str = ""  # which of several alike it is, as its environment says: `RANK=1`
    given_name: str = ""  # what its program calls it, if multiprocessing or billiard made it
    parent_pid: int = 0  # of who made it, or whose child it was when it was seen first; 0: not known
    note: str = ""  # why it has no Python frames
    is_unread: bool = False  # it runs Python all the same

    @property
    def python(self) -> tuple[int, int] | None:
        """(major, minor) of the CPython it runs; None when it runs none that is known."""
        found = _VERSION.match(self.version) if self.interpreter == "cpython" else None
        return (int(found[1]), int(found[2])) if found else None

    @property
    def own_name(self) -> str:
        """What its program calls it: the title in place of its arguments, of which its name has the beginning
        (setproctitle), where multiprocessing did not give it one. "": nothing."""
        title = self.command_line[0] if self.command_line and not any(self.command_line[1:]) else ""
        is_cut = len(self.name.encode()) == _NAME_BYTES and title.startswith(self.name) and title != self.name
        return self.given_name or (title[:_TITLE_LETTERS] if is_cut else "")


@dataclass
class RecordedThread:
    """A thread; process is an index into the table of processes; last_ns 0: it was watched to the end, its own too."""

    process: int = 0
    tid: int = 0
    first_ns: int = 0
    name: str = ""
    given_name: str = ""
    last_ns: int = 0

    def shown_name(self, process: RecordedProcess) -> str:
        """What its program calls it, or else the kernel; a name that Python made up only where it has no other."""
        is_inherited = process.name.startswith(self.name) or self.name.startswith("python")
        if is_inherited or self.given_name.startswith(self.name) or not _MADE_UP.fullmatch(self.given_name):
            return self.given_name or self.name
        return self.name


@dataclass
class RecordedTask:
    """A task of asyncio; process is an index into the table of processes."""

    process: int = 0
    name: str = ""


@dataclass
class RecordedWaker:
    """A thread that ended waits; thread is an index into the table of threads + 1, 0 for one that is not a target."""

    thread: int = 0
    pid: int = 0
    tid: int = 0
    process_name: str = ""
    name: str = ""


@dataclass
class RecordedObject:
    """What a descriptor or a shared futex is of: a path, or who is at the other end of a socket."""

    name: str = ""


@dataclass
class RecordedFile:
    """A file that code was mapped from; kind: elf, vdso, memory or kernel; `note` says why it has no unwind table."""

    kind: str = ""
    path: str = ""
    build_id: str = ""
    note: str = ""


@dataclass(frozen=True)
class RecordedCode:
    """A code object; `reason` says why it could not be read ("" when it was)."""

    process: int
    filename: str
    qualname: str
    first_line: int
    reason: str
    linetable: bytes


Row = Union[
    RecordedProcess, RecordedThread, RecordedTask, RecordedWaker, RecordedObject, RecordedFile, RecordedLastWait
]


def table_row(index: int, row: Row) -> dict[str, Any]:
    """What is written of one row of a table."""
    return {"index": index, **vars(row)}
