"""Threads whose stack the kernel side could not take when they began to sleep: looked at from user space while they do.

They slept before they were watched, or before their interpreter or an unwind table was known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bpfprof import abi
from bpfprof.capture.process import TrackedProcess
from bpfprof.cpython.thread_state import read_thread_states, walk_frames
from bpfprof.model.ids import Tid
from bpfprof.proc import tasks
from bpfprof.proc.tasks import BlockedSyscall

_KEPT = 3  # looks at a thread: a sleep's row is some tenths of a second behind
_NO_ARGUMENTS = (0, 0, 0)


class SleeperTable(Protocol):
    """Takes stacks that were walked from user space (see capture.session)."""

    def add_sleeper(
        self, process: TrackedProcess, frames: list[tuple[int, int, int]], status: int, call: BlockedSyscall
    ) -> int: ...

    def is_whole(self, stack: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class FirstSleep:
    """Where a thread slept at time_ns. `switches`: its context switches up to then."""

    time_ns: int
    stack: int
    syscall: int
    args: tuple[int, int, int]
    switches: int | None = None


@dataclass(slots=True)
class FirstSleeps:
    """What was seen of each thread, by its index in the recording, the last look first."""

    thread_index: Mapping[int, int]  # by tid
    stacks: SleeperTable | None = None  # given once recording has begun
    looks: dict[int, tuple[FirstSleep, ...]] = field(default_factory=dict)

    def look_at(self, process: TrackedProcess) -> None:
        """Takes the stacks of its threads that sleep, but for those that were seen whole in the same sleep."""
        states: dict[int, int] = {}
        if process.interpreter is not None and process.memory is not None:
            found = read_thread_states(process.memory, process.interpreter)
            states = {state.native_thread_id: state.address for state in found}
        for tid in tasks.list_threads(process.pid):
            if tid in self.thread_index:
                self._look_at_thread(process, tid, states)

    def at(self, thread: int, begin_ns: int, end_ns: int) -> FirstSleep | None:
        """What was seen of a thread in this time: a whole stack, if there is one."""
        looks = [look for look in self.looks.get(thread, ()) if begin_ns <= look.time_ns <= end_ns]
        return next((look for look in looks if self._is_whole(look)), looks[0] if looks else None)

    def _is_whole(self, look: FirstSleep) -> bool:
        return self.stacks is not None and look.stack != 0 and self.stacks.is_whole(look.stack)

    def _look_at_thread(self, process: TrackedProcess, tid: Tid, states: dict[int, int]) -> None:
        index = self.thread_index[tid]
        before = self.looks.get(index, ())
        switches = tasks.switch_count(process.pid, tid)
        if before and before[0].switches == switches and self._is_whole(before[0]):
            return
        call = tasks.blocked_syscall(process.pid, tid)
        if process.is_kernel_thread and tasks.thread_run_state(process.pid, tid) not in (None, "R"):
            self.looks[index] = (FirstSleep(time.monotonic_ns(), 0, -1, _NO_ARGUMENTS),)
            return
        if call is None or process.memory is None:
            return
        frames: list[tuple[int, int, int]] = []
        status = abi.Status["BP_NO_PYTHON"]
        inner_tid = (tasks.namespace_tids(process.pid, tid) or (tid,))[-1]
        if process.interpreter is not None and inner_tid in states:
            walk = walk_frames(process.memory, process.interpreter, states[inner_tid])
            frames = list(walk.frames)
            if frames:
                status = abi.Status["BP_OK" if walk.complete else "BP_PYTHON_FRAME_FAULT"]
        stack = self.stacks.add_sleeper(process, frames, status, call) if self.stacks is not None else 0
        now = time.monotonic_ns()
        if tasks.switch_count(process.pid, tid) == switches:
            args = (call.args[0], call.args[1], call.args[2]) if call.args else _NO_ARGUMENTS
            self.looks[index] = (FirstSleep(now, stack, call.number, args, switches), *before[: _KEPT - 1])
