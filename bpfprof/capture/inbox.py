"""What the kernel side sends: events, with the thread of each, and stacks.

Events come out of `drain()` all at once. Some cannot wait for that: processes that were born, run another program,
mapped code or are not known yet are told of as soon as `take()` sees them, while what they run is still there.
"""

from __future__ import annotations

import struct

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import EVENT_DTYPE, STACK_DTYPE
from bpfprof.capture.numbers import look_up
from bpfprof.capture.processes import Processes
from bpfprof.dataclass import dataclass
from bpfprof.kernel.events import RingBuffer
from bpfprof.kernel.mapping_events import MappingEvent, MappingEvents
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.rows import one_after_another

_PID = struct.Struct("<I")
_STACK_PID_AT = STACK_DTYPE.fields["tgid"][1]  # type: ignore[index]
_FORK, _EXEC, _ASK = _URGENT = [abi.EventKind[f"BP_EVENT_{name}"] for name in ("FORK", "EXEC", "ASK")]
_EXIT = abi.EventKind["BP_EVENT_EXIT"]
_FILLING = 0.25  # of a buffer
_IS_URGENT = np.isin(np.arange(256), _URGENT)  # by kind


@dataclass(frozen=True)
class Batch:
    """Events with the index of each one's thread (-1: not known), their stacks, copies of code objects."""

    events: npt.NDArray[np.void]
    threads: npt.NDArray[np.int64]
    stacks: list[memoryview]
    copies: list[memoryview]


class Inbox:
    """The reading end of the kernel side's buffers."""

    def __init__(self, tables: Tables, mapping_events: MappingEvents | None, processes: Processes) -> None:
        self._events = RingBuffer(tables.fds["events"], tables.entries["events"])
        self._stacks = RingBuffer(tables.fds["stacks"], tables.entries["stacks"])
        self._copies = RingBuffer(tables.fds["copies"], tables.entries["copies"])
        self._mapping_events = mapping_events
        self._processes = processes
        self._held: list[tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]] = []
        self._plain: list[npt.NDArray[np.void]] = []  # what came after that

    def take(self) -> bool:
        """Tells the processes of what cannot wait, and whether there was any; all that comes is kept for `drain()`."""
        events = self._events.drain_fixed(EVENT_DTYPE)
        is_urgent = bool(_IS_URGENT[events["kind"]].any())
        if is_urgent:
            ends = events[events["kind"] == _EXIT]
            self._processes.gone.told(ends["tgid"][ends["tgid"] == ends["tid"]].tolist())
            self._settle()
            self._held.append((events, self._follow_births(events)))
            for pid in sorted(set(events["tgid"][events["kind"] == _ASK].tolist())):
                self._processes.asked(Pid(pid))
        elif len(events):
            self._plain.append(events)
        return self._follow_mappings() or is_urgent

    def _settle(self) -> None:
        """The threads of what came since the last birth."""
        events, self._plain = one_after_another(EVENT_DTYPE, self._plain), []
        self._held.append((events, look_up(events["tid"], self._processes.threads.index_of, -1)))

    @property
    def is_filling(self) -> bool:
        """Whether a drain should not wait: `take()` takes events only."""
        return max(self._stacks.fullness, self._copies.fullness) > _FILLING

    @property
    def has_many(self) -> bool:
        """Whether any of the buffers is so full that nobody should wait."""
        return self._events.fullness > _FILLING or self.is_filling

    def drain(self) -> Batch:
        """All that came since the last call."""
        self.take()
        # After the events: a stack is sent before the event that refers to it, so each is here now. So are its copies.
        stacks = list(self._stacks.drain_records())
        copies = list(self._copies.drain_records())
        pids = {_PID.unpack_from(record, _STACK_PID_AT)[0] for record in stacks}
        if not pids <= self._processes.by_pid.keys():
            self.take()  # of a process that was born meanwhile: its birth was sent before its stack
        self._settle()
        held, self._held = self._held, []
        events = one_after_another(EVENT_DTYPE, (events for events, _ in held))
        return Batch(events, np.concatenate([np.zeros(0, np.int64), *(threads for _, threads in held)]), stacks, copies)

    def _follow_births(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """The index of each event's thread. A child runs what its parent ran then, so execs keep their place."""
        index_of, before = self._processes.threads.index_of, []
        for position in np.flatnonzero(np.isin(events["kind"], (_FORK, _EXEC))).tolist():
            event = events[position]
            if event["kind"] == _EXEC:
                self._processes.exec_seen(Pid(int(event["tgid"])), int(event["time_ns"]))
                continue
            tid = int(event["tid"])
            before.append((position, tid, index_of.get(tid, -1)))
            pid, parent = Pid(int(event["tgid"])), Pid(int(event["args"][0]))
            self._processes.born(pid, Tid(tid), parent, int(event["time_ns"]))
        threads = look_up(events["tid"], index_of, -1)
        for position, tid, index in reversed(before):
            # A tid that was given again: what came before is the old thread's.
            threads[:position][events["tid"][:position] == tid] = index
        return threads

    def _follow_mappings(self) -> bool:
        """Whether there were any."""
        if self._mapping_events is None:
            return False
        lost_before = self._mapping_events.lost_count
        found = self._mapping_events.drain(self._processes.by_pid)
        has_lost = self._mapping_events.lost_count > lost_before  # it may have been of any
        mapped: dict[Pid, list[MappingEvent]] = {pid: [] for pid in self._processes.by_pid if has_lost}
        for event in found:
            mapped.setdefault(event.pid, []).append(event)
        self._processes.remapped(mapped)
        return bool(mapped)
