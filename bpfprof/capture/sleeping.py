"""What threads do now, seen from user space: their stacks, system calls and states.

The kernel side takes the stack of a thread when it begins to sleep. It cannot if the thread slept before it was
watched, or before its interpreter or an unwind table was known: those are looked at here while they sleep.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.capture.call_arguments import Arguments, call_arguments
from bpfprof.capture.process import Process, State
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.threads import Threads
from bpfprof.code.addresses import NativeTable, RawStack
from bpfprof.code.maps import NativeCode
from bpfprof.cpython.layout import JIT_WITHOUT_FRAMES
from bpfprof.cpython.running_states import RunningStates
from bpfprof.cpython.thread_state import FRAME_LIMIT, RawFrame, walk_frames
from bpfprof.dataclass import dataclass
from bpfprof.elf.asm.stack_pointer_rule import stack_pointer_rule
from bpfprof.elf.cfi.rules import RULE, CfaKind, FramePointerKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.samples import NO_FILE
from bpfprof.model.statuses import Status
from bpfprof.proc import tasks
from bpfprof.proc.cgroups import FROZEN, freezers
from bpfprof.proc.memory import Memory, MemoryAtOnce, ProcessMemory
from bpfprof.proc.tasks import BlockedSyscall, ThreadStatus
from bpfprof.unwind.interpret import Registers, Rule, Stop, walk_by

_LOOKS_TOGETHER = 20  # threads: some 10 ms
_LONG_NS, _MOST_UNSAMPLED = 1_000_000_000, 50  # threads whose stack was not taken: from when on, how many at a time
_LOOKS_KEPT = 3  # of a thread: a sleep's row is some tenths of a second behind
_AT_ENTRY = 8  # bytes from rsp to the frame where a function begins
_NO_ARGUMENTS = (0, 0, 0)
# Bits of a task's state, include/linux/sched.h, by the letter of proc(5); I is TASK_IDLE.
_STATE_BITS = {"S": 1, "D": 2, "T": 4, "t": 8, "I": 0x402}
_STOPPED = _STATE_BITS["T"]
# Where the kernel stops threads of a group: kernel/signal.c, where the first is inlined mostly, and kernel/freezer.c.
# The freezer of v1 stops some where they sleep, and says D of them, as of none else that sleeps there (Linux 6.1 on).
_FREEZES = ("do_freezer_trap", "get_signal", "__refrigerator")
_FROZEN_IN = ("hrtimer_nanosleep", "do_nanosleep", "futex_do_wait", "futex_wait_queue", "do_sigtimedwait")
_WORD = struct.Struct("<Q")
_STACK_BYTES = 16 << 10  # most sleeping stacks are shorter
EXACT = 1 << abi.CONSTANTS["BP_EXACT_BIT"]
_STATUS_OF = {Stop.END_OF_STACK: "BP_OK", Stop.UNREADABLE: "BP_NATIVE_FAULT"}  # others have the same names
_BLOCKED = int(abi.ThreadState["BP_THREAD_BLOCKED"])
_NATIVE_NOT_READY = int(abi.Status["BP_NATIVE_NOT_READY"])


@dataclass(frozen=True)
class ThreadStack:
    """One thread now. Frames are leaf first; those of a thread that runs may belong to different moments."""

    tid: Tid
    status: ThreadStatus  # before the stack was read
    call: BlockedSyscall | None  # None: it runs, or the kernel does not tell
    frames: list[RawFrame]
    python_status: int  # enum bp_status
    native: RawStack | None  # None: it runs, or nothing is known of its code
    addresses: list[int] = field(default_factory=list)  # where the frames are


def stacks_now(process: Process, code: NativeCode | None, most_frames: int = FRAME_LIMIT) -> list[ThreadStack]:
    """The stacks of all threads of a process; without `code` Python frames only."""
    states = python_states(process)
    found = (
        (tid, status)
        for tid in tasks.list_threads(process.pid)
        if (status := tasks.thread_status(process.pid, tid)) is not None
    )
    return [stack_now(process, tid, status, states, code, most_frames) for tid, status in found]


def python_states(process: Process) -> RunningStates | None:
    """Its thread states; None when it runs no Python that is known."""
    if process.interpreter is None or process.memory is None:
        return None
    return RunningStates(process.memory, process.interpreter)


def stack_now(
    process: Process,
    tid: Tid,
    status: ThreadStatus,
    states: RunningStates | None,
    code: NativeCode | None,
    most_frames: int = FRAME_LIMIT,
) -> ThreadStack:
    """The stack of one thread; `states` are python_states(), and most_frames is how many of each are read."""
    call = tasks.blocked_syscall(process.pid, tid)
    frames: list[RawFrame] = []
    addresses: list[int] = []
    python_status = int(abi.Status["BP_NO_PYTHON"])
    native = None
    if process.memory is not None:
        is_whole = True
        if process.interpreter is not None and states is not None:
            for state in states.of_thread(status.namespace_tids[-1], call.stack_pointer if call else None):
                walk = walk_frames(MemoryAtOnce(process.memory), process.interpreter.layout, state, most_frames)
                frames += walk.frames
                addresses += walk.addresses
                is_whole &= walk.complete
            if frames:
                python_status = int(abi.Status["BP_OK" if is_whole else "BP_PYTHON_FRAME_FAULT"])
        if code is not None and call is not None:
            has_jit = process.interpreter is not None and process.interpreter.layout.version == JIT_WITHOUT_FRAMES
            native = _native_stack(code, process.pid, process.memory, call, time.monotonic_ns(), has_jit)
    return ThreadStack(tid, status, call, frames, python_status, native, addresses)


def _native_stack(
    code: NativeCode, pid: Pid, memory: ProcessMemory, call: BlockedSyscall, time_ns: int, has_jit: bool
) -> RawStack | None:
    """The native stack of a thread blocked in `call`; None when nothing is known of the process's code.

    The call tells where the thread is and its stack pointer, but no other register. rbp is known again from the first
    frame that saved it; where it is needed before, the frame is found by what the function's code does to rsp.
    """
    code_map = code.map_of.get(pid)
    if code_map is None:
        return None

    def rule_at(pc: int) -> Rule | Stop:
        known = code_map.rules.get(pc)
        if known is not None:
            return known  # threads of a process mostly sleep in the same functions
        number, address = code_map.locate(pc)
        if number == NO_FILE:
            return Stop.NO_MAPPING
        row = code.memory.rule_at(number, address)
        if row is None:
            return Stop.NOT_READY
        if not len(row):
            return Stop.NO_RULE
        rule: Rule = dict(zip(row.dtype.names or (), row[0].item()))
        code_map.rules[pc] = rule
        return rule

    def rule_by_sp(pc: int) -> Rule | None:
        if pc not in code_map.rules_by_sp:
            number, address = code_map.locate(pc)
            code_map.rules_by_sp[pc] = None
            if number != NO_FILE:
                code_map.rules_by_sp[pc] = _rule_by_sp(pc, address, *code.memory.rows_before(number, address), memory)
        return code_map.rules_by_sp[pc]

    registers = Registers(call.program_counter, call.stack_pointer, None)
    found = walk_by(
        registers,
        _stack_reader(MemoryAtOnce(memory), call.stack_pointer),
        rule_at,
        abi.CONSTANTS["BP_MAX_NATIVE_FRAMES"],
        lambda pc: has_jit and code_map.has_memory and code.is_made(code_map, pc),
        rule_by_sp,
    )
    words = [found.pcs[0] | EXACT, *found.pcs[1:]]
    status = int(abi.Status[_STATUS_OF.get(found.stop, f"BP_NATIVE_{found.stop.name}")])
    return RawStack(words, len(words), status, 0, code_map.generation, time_ns)


def _rule_by_sp(
    pc: int, address: int, starts: npt.NDArray[np.int64], rules: npt.NDArray[np.void], memory: ProcessMemory
) -> Rule | None:
    """starts, rules: as UnwindMemory.rows_before()."""
    is_entry = (rules["cfa_kind"] == CfaKind.RSP) & (rules["cfa_offset"] == _AT_ENTRY)
    entries = starts[is_entry & (rules["fp_kind"] == FramePointerKind.SAME)]
    if not len(entries):
        return None
    size = address - int(entries[0])
    code = memory.read_up_to(pc - size, size)
    fields = stack_pointer_rule(code, (entries - entries[0]).tolist()) if len(code) == size else None
    return dict(zip(RULE.names or (), fields)) if fields else None


def _stack_reader(memory: Memory, stack_pointer: int) -> Callable[[int], int | None]:
    """Reads words of a process; those of the stack above its pointer all at once."""
    stack = memory.read_up_to(stack_pointer, _STACK_BYTES)

    def read(address: int) -> int | None:
        offset = address - stack_pointer
        if 0 <= offset <= len(stack) - _WORD.size:
            return int(_WORD.unpack_from(stack, offset)[0])
        return memory.read_u64(address)

    return read


@dataclass(frozen=True)
class Sleep:
    """Where a thread slept at time_ns, args as the kernel side has them. `switches`: its context switches by then."""

    time_ns: int
    stack: int
    syscall: int
    args: Arguments
    switches: int | None = None
    task_state: int = 1  # as prev_state of sched_switch


class Sleeps:
    """What was seen of each thread, by its index in the recording, the last look first."""

    def __init__(self, threads: Threads, stacks: StackTable, natives: NativeTable | None) -> None:
        self.seen: dict[int, tuple[Sleep, ...]] = {}
        self._threads = threads
        self._stacks = stacks
        self._natives = natives

    def look_at(
        self,
        process: Process,
        meanwhile: Callable[[], object] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Takes the stacks of its threads that sleep, but for those that were seen whole in the same sleep.

        meanwhile: what is not to wait while many threads are looked at; called now and then. Until it is over.
        """
        if not is_over():
            self._look_at_threads(process, tasks.list_threads(process.pid), meanwhile, is_over)

    def _look_at_threads(
        self, process: Process, tids: Sequence[Tid], meanwhile: Callable[[], object], is_over: Callable[[], bool]
    ) -> None:
        states, freezer = python_states(process), freezers().of(process.pid)
        for number, tid in enumerate(tids, 1):
            if number % _LOOKS_TOGETHER == 0:
                meanwhile()
                if is_over():
                    return
            index = self._threads.index_of.get(tid)
            status = tasks.thread_status(process.pid, tid)
            if index is not None and status is not None:
                self._look_at_thread(process, tid, index, status, states, freezer)

    def look_at_unsampled(
        self,
        by_pid: Mapping[Pid, Process],
        time_ns: int,
        tids: npt.NDArray[np.uint32],
        records: npt.NDArray[np.void],
        is_over: Callable[[], bool],
        least_ns: int = _LONG_NS,
    ) -> None:
        """At threads that wait for least_ns already, and had no stack taken then because they had switched often.

        records: abi.THREAD_DTYPE of all threads at that time. What waits so long speaks for no other wait, nor another
        for it: it may be what the program hangs in.
        """
        waits = (records["status"] == Status.NOT_SAMPLED) & (records["state"] == _BLOCKED) & (records["wake_ns"] == 0)
        waits &= time_ns - records["since_ns"].astype(np.int64) >= least_ns
        waiting = np.flatnonzero(waits)[:_MOST_UNSAMPLED]
        tids_of: dict[Pid, list[Tid]] = {}
        for pid, tid in zip(records["tgid"][waiting].tolist(), tids[waiting].tolist()):
            tids_of.setdefault(Pid(pid), []).append(Tid(tid))
        for process in (by_pid[pid] for pid in tids_of if pid in by_pid):
            if is_over():
                return
            self._look_at_threads(process, tids_of[process.pid], lambda: None, is_over)

    def forget(self, threads: Iterable[int]) -> None:
        """These have ended, and all of their waits are written."""
        for thread in threads:
            self.seen.pop(thread, None)

    def at(self, thread: int, begin_ns: int, end_ns: int) -> Sleep | None:
        """What was seen of a thread in this time: a whole stack, if there is one."""
        looks = [look for look in self.seen.get(thread, ()) if begin_ns <= look.time_ns <= end_ns]
        return next((look for look in looks if self._is_whole(look)), looks[0] if looks else None)

    def _is_whole(self, look: Sleep) -> bool:
        return look.stack != 0 and look.stack not in self._stacks.unfinished

    def _look_at_thread(
        self,
        process: Process,
        tid: Tid,
        index: int,
        status: ThreadStatus,
        states: RunningStates | None,
        freezer: str,
    ) -> None:
        before = self.seen.get(index, ())
        if before and before[0].switches == status.switches and self._is_whole(before[0]):
            return
        if process.state is State.KERNEL_THREAD:
            if status.run_state != "R":
                state = task_state(process.pid, tid, status, freezer)
                self.seen[index] = (Sleep(time.monotonic_ns(), 0, -1, _NO_ARGUMENTS, task_state=state),)
            return
        found = stack_now(process, tid, status, states, self._natives.code if self._natives else None)
        if found.call is None or process.memory is None:
            return
        stack = self._number(process, found)
        now, after = time.monotonic_ns(), tasks.thread_status(process.pid, tid)
        if after is not None and after.switches == status.switches:
            layout = process.interpreter.layout if process.interpreter else None
            args = call_arguments(found.call, process.memory, layout, found.addresses[0] if found.addresses else 0)
            state = task_state(process.pid, tid, status, freezer)
            sleep = Sleep(now, stack, found.call.number, args, status.switches, state)
            self.seen[index] = (sleep, *before[: _LOOKS_KEPT - 1])

    def _number(self, process: Process, found: ThreadStack) -> int:
        """Index of a stack in the recording; 0 when it has no frames."""
        native, numbers = found.native, []
        is_finished = process.state not in (State.UNSEEN, State.STARTING)
        if native is not None and self._natives is not None:
            is_finished &= native.native_status != _NATIVE_NOT_READY and not self._natives.is_late(process.pid, native)
            if found.frames and native.native_status:
                native = None  # then Python frames alone are the better answer
            else:
                numbers = self._natives.numbers(process.pid, native)
        if not found.frames and not numbers:
            return 0
        stack = self._stacks.add_frames(process.codes, found.frames, found.python_status, native, numbers)
        if not is_finished:
            self._stacks.add_unfinished(stack, process.pid)
        return stack


def task_state(pid: Pid, tid: Tid, status: ThreadStatus, freezer: str) -> int:
    """As prev_state of sched_switch; a thread that sleeps in a frozen control group is stopped. freezer: as
    Freezers.of() has it; where others of the group are not stopped, it is if it is where the kernel stops threads."""
    is_stopped = bool(freezer) and status.run_state in "SD"
    if is_stopped and freezer != FROZEN:
        stops_in = _FREEZES + _FROZEN_IN * (status.run_state == "D")
        is_stopped = tasks.waits_in(pid, tid).partition(".")[0] in stops_in
    return _STOPPED if is_stopped else _STATE_BITS.get(status.run_state, 1)
