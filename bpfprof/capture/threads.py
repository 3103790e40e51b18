"""The threads of a recording: those that are there when it begins, and those born since."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from bpfprof import abi
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.recording.tables import RecordedThread, table_row

if TYPE_CHECKING:
    from bpfprof.recording.writer import Sink


_FORGOTTEN_S = 30.0  # after its end: until then a wait may come that it ended


class Threads:
    """`index_of` has the index in the recording of the thread that has a tid now, or had it lately."""

    def __init__(self, tables: Tables) -> None:
        self.index_of: dict[int, int] = {}
        self.count = 0  # of all, also those that have ended
        self.unwatched_count = 0  # those that did not fit into the kernel side's table
        self._tables = tables
        self._names: dict[int, str] = {}
        self._given_names: dict[int, str] = {}
        self._rows: list[dict[str, Any]] = []
        self._ended: deque[tuple[float, Tid, int]] = deque()  # when, its tid and index

    def watch_all(self, process: int, pid: Pid, is_born: bool) -> bool:
        """Has the kernel side watch those of a process that are there; whether there are any."""
        # A thread born by one that is not listed yet is added at fork, so two equal looks see all of them.
        seen: set[Tid] = set()
        while new := set(tasks.list_living_threads(pid)) - seen:
            for tid in sorted(new):
                self.watch(process, pid, tid, is_born)
            seen |= new
        return bool(seen)

    def watch(self, process: int, pid: Pid, tid: Tid, is_born: bool) -> None:
        """Has the kernel side watch a thread that is there already; `is_born`: it begins to be now."""
        now = time.monotonic_ns()
        exec_ns, run_delay_ns = tasks.scheduler_times(pid, tid) or (0, 0)
        record = abi.pack(
            "bp_thread",
            tgid=pid,
            state=abi.ThreadState["BP_THREAD_RUNNABLE" if is_born else "BP_THREAD_UNKNOWN"],
            status=abi.Status["BP_NOT_STARTED" if is_born else "BP_STACK_NOT_TAKEN"],
            syscall=-1,
            since_ns=now,
            first_ns=now,
            exec_ns=exec_ns,
            run_delay_ns=run_delay_ns,
        )
        try:
            if self._tables.add_thread(tid, record):
                self.add(process, pid, tid, now)
        except OSError:  # the table is full
            self.unwatched_count += 1

    def add(self, process: int, pid: Pid, tid: Tid, first_ns: int, name: str = "", is_gone: bool = False) -> None:
        """A thread that the kernel side watches since first_ns; `name` is its own unless it has another.

        is_gone: it has ended, which cannot tell any more.
        """
        self._forget(self.index_of.get(tid, -1))  # it had this tid before, and has ended
        index = self.index_of[tid] = self.count
        self.count += 1
        self._rows.append(table_row(index, RecordedThread(process, tid, first_ns)))
        self.rename(tid, ("" if is_gone else tasks.thread_name(pid, tid)) or name)

    def rename(self, tid: Tid, name: str) -> None:
        """It is called this, "" when that is not known."""
        index = self.index_of.get(tid)
        if name and index is not None and self._names.get(index) != name:
            self._names[index] = name
            self._rows.append({"index": index, "name": name})

    def give_name(self, tid: Tid, name: str) -> bool:
        """Its program calls it this; whether that is new."""
        index = self.index_of.get(tid)
        is_new = index is not None and self._given_names.get(index) != name
        if index is not None and is_new:
            self._given_names[index] = name
            self._rows.append({"index": index, "given_name": name})
        return is_new

    def ended(self, tid: Tid) -> None:
        """It is gone; after a while so is what is known of it."""
        now_s = time.monotonic()
        if tid in self.index_of:
            self._ended.append((now_s, tid, self.index_of[tid]))
        while self._ended and self._ended[0][0] < now_s - _FORGOTTEN_S:
            _, gone, index = self._ended.popleft()
            # Another thread of its process goes on as it after execve; or a new one has its tid.
            if self.index_of.get(gone) == index and not os.path.exists(f"/proc/{gone}"):
                self._forget(index)
                del self.index_of[gone]

    def _forget(self, index: int) -> None:
        for names in (self._names, self._given_names):
            names.pop(index, None)

    def write_new(self, sink: Sink) -> None:
        """What the recording does not have yet."""
        if self._rows:
            sink.write("threads", {"rows": self._rows})
            self._rows = []
