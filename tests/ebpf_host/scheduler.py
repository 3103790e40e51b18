"""Tasks on CPUs: what the scheduler's programs are called with, and the kernel's memory as they find it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.unwind.interpret import Registers
from tests.ebpf_host.host import (
    CONFIG,
    CPUS,
    PREEMPT_COUNT,
    PT_REGS,
    TASK,
    TGID,
    THREAD_POINTER,
    TID,
    Host,
    Stack,
    member_offset,
    pt_regs,
)

KIND, STATE = abi.ENUMS["bp_event_kind"], abi.ENUMS["bp_thread_state"]
WAKER, GIL = abi.ENUMS["bp_waker_kind"], abi.ENUMS["bp_gil_flags"]
SLEEPING, UNINTERRUPTIBLE, DEAD = 1, 2, 0x80  # include/linux/sched.h
# arch/x86/entry/syscalls/syscall_64.tbl
READ, WRITE, NANOSLEEP, EXIT, KILL, FUTEX, EPOLL_WAIT, EXIT_GROUP = 0, 1, 35, 60, 62, 202, 232, 231
TKILL, CLOCK_NANOSLEEP, TGKILL, EXECVE = 200, 230, 234, 59
ORIG_AX, CS, DX, SI, DI = 15, 17, 12, 13, 14  # places in struct pt_regs
USER_CS = 0x33
MAIN = 1  # place of the first task, which is TID
MICROSECOND = 1000
_TASK, _STACK, _QUEUE, _TASK_BYTES = 0xFFFF_8880_1000_0000, 0xFFFF_C900_1000_3F58, 0xFFFF_8881_2000_0000, 0x1_0000
_NO_CALL = (1 << 64) - 1

Events = npt.NDArray[np.void]


@dataclass
class Task:
    """A thread of the machine, watched or not. `place` tells its memory from that of others."""

    place: int
    tid: int
    tgid: int
    image: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(64, np.uint64))
    registers: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(21, np.uint64))
    queue_image: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(64, np.uint64))
    # What each switch to it adds to the scheduler's run delay. If not told, more than it waited, which says nothing.
    queued_ns: int = 1 << 40

    def __post_init__(self) -> None:
        self.put("pid", self.tid)
        self.put("tgid", self.tgid)
        self.put("mm", self.place)  # anything: it has not given its memory back
        self.image[(member_offset("task_struct", "thread") + member_offset("thread_struct", "fsbase")) // 8] = (
            self.thread_pointer
        )
        self.on_rq = True
        self.in_user_mode()

    @property
    def address(self) -> int:
        """Of its task_struct."""
        return _TASK + self.place * _TASK_BYTES

    @property
    def stack(self) -> int:
        """Of its struct pt_regs."""
        return _STACK + self.place * _TASK_BYTES

    @property
    def thread_pointer(self) -> int:
        return THREAD_POINTER + (self.place - MAIN) * _TASK_BYTES

    def put(self, member: str, value: int) -> None:
        """Writes a member of its task_struct."""
        self.image[member_offset("task_struct", member) // 8] = value

    @property
    def queue(self) -> int:
        """Of the struct cfs_rq that it belongs to; struct rq is at the same address."""
        return _QUEUE + self.place * _TASK_BYTES

    def in_the_middle_of(self, preempt_count: int) -> Task:
        """Its CPU is serving interrupts, say; not known unless it is said here."""
        self.image[(member_offset("task_struct", "se") + member_offset("sched_entity", "cfs_rq")) // 8] = self.queue
        self.queue_image[member_offset("cfs_rq", "rq") // 8] = self.queue
        self.queue_image[PREEMPT_COUNT // 8] = preempt_count
        return self

    def hide_preempt_count(self, is_queue_readable: bool) -> None:
        """What its CPU is in the middle of lies in memory that cannot be read; its struct cfs_rq does not, or does."""
        nowhere = self.queue + _TASK_BYTES // 2
        if is_queue_readable:
            self.queue_image[member_offset("cfs_rq", "rq") // 8] = nowhere
        else:
            self.image[(member_offset("task_struct", "se") + member_offset("sched_entity", "cfs_rq")) // 8] = nowhere

    @property
    def exec_ns(self) -> int:
        """The scheduler's sum_exec_runtime."""
        return int(self.image[self._exec_place])

    @exec_ns.setter
    def exec_ns(self, value: int) -> None:
        self.image[self._exec_place] = value

    @property
    def _exec_place(self) -> int:
        return (member_offset("task_struct", "se") + member_offset("sched_entity", "sum_exec_runtime")) // 8

    @property
    def run_delay_ns(self) -> int:
        """The scheduler's run_delay."""
        return int(self.image[self._run_delay_place])

    @run_delay_ns.setter
    def run_delay_ns(self, value: int) -> None:
        self.image[self._run_delay_place] = value

    @property
    def _run_delay_place(self) -> int:
        return (member_offset("task_struct", "sched_info") + member_offset("sched_info", "run_delay")) // 8

    @property
    def on_rq(self) -> bool:
        return bool(self.image[member_offset("task_struct", "on_rq") // 8])

    @on_rq.setter
    def on_rq(self, value: bool) -> None:
        self.put("on_rq", int(value))

    @property
    def is_delayed(self) -> bool:
        """Whether it sleeps and stays on its run queue; of Linux 6.12 and later."""
        return bool(self.image[self._delayed_place])

    @is_delayed.setter
    def is_delayed(self, value: bool) -> None:
        self.image[self._delayed_place] = int(value)

    @property
    def _delayed_place(self) -> int:
        return (member_offset("task_struct", "se") + member_offset("sched_entity", "sched_delayed")) // 8

    def call(self, number: int, *args: int) -> Task:
        """It is in a system call."""
        self.registers[[ORIG_AX, CS]] = number, USER_CS
        self.registers[[DI, SI, DX]] = (*args, 0, 0, 0)[:3]
        return self

    def in_user_mode(self) -> Task:
        """It runs code of its own, or was interrupted there."""
        self.registers[[ORIG_AX, CS]] = _NO_CALL, USER_CS
        return self

    def as_kernel_thread(self) -> Task:
        """It has no user registers."""
        self.registers[:] = 0
        return self

    def at(self, registers: Registers) -> Task:
        """Its user registers, but for what tells the system call."""
        kept = [ORIG_AX, CS, DX, SI, DI]
        words = pt_regs(registers)
        words[kept] = self.registers[kept]
        self.registers[:] = words
        return self


class Scheduler:
    """Says what happens; `stacks` and the events that are returned are what the programs sent at that."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.stacks: list[Stack] = []
        self.tasks: list[Task] = []
        self.idle = self.add(0, 0, is_watched=False)
        host.state.events.is_full = host.state.stacks.is_full = 0
        host.state.kernel_frame_count = host.state.random = 0
        host.forget_threads()

    def close(self) -> None:
        """Leaves the maps as other tests find them."""
        self.host.forget_threads()
        self.host.set_config(CONFIG["BP_CONFIG_ON_CPU_STACKS"])
        state = self.host.state
        state.cpu, state.pid_tgid, state.task, state.registers = CPUS - 1, TGID << 32 | TID, TASK, PT_REGS

    @property
    def now(self) -> int:
        return int(self.host.state.now_ns)

    def add(self, tid: int, tgid: int = TGID, is_watched: bool = True, **fields: int) -> Task:
        """Another task. A watched one is on a CPU since now, unless `fields` of bp_thread say otherwise."""
        task = Task(len(self.tasks), tid, tgid)
        self.tasks.append(task)
        memory = [(task.address, task.image) for task in self.tasks]
        memory += [(task.stack, task.registers) for task in self.tasks]
        self.host.set_kernel_memory(memory + [(task.queue, task.queue_image) for task in self.tasks])
        if is_watched:
            on_cpu = {"state": STATE["BP_THREAD_ON_CPU"], "since_ns": self.now, "first_ns": self.now, "tgid": tgid}
            self.host.watch(tid, **(on_cpu | fields))
        return task

    def later(self, nanoseconds: int, *running: Task) -> None:
        """Time goes by, in which these tasks run."""
        self.host.state.now_ns += nanoseconds
        for task in running:
            task.exec_ns += nanoseconds

    def switch(self, left: Task, came: Task, state: int = 0, is_preempted: bool = False, cpu: int = 0) -> Events:
        """sched_switch."""
        came.run_delay_ns += came.queued_ns
        return self._run("sched_switch", left, cpu, is_preempted, left.address, came.address, state)

    def wake(self, woken: Task, by: Task | None = None, cpu: int = 0) -> Events:
        """sched_waking; in the idle task, unless `by` says otherwise."""
        return self._run("sched_waking", by or self.idle, cpu, woken.address)

    def fork(self, parent: Task, child: Task, cpu: int = 0) -> Events:
        return self._run("sched_process_fork", parent, cpu, parent.address, child.address)

    def exec(self, task: Task, old_tid: int, cpu: int = 0) -> Events:
        """A task that had this thread id has become another program."""
        return self._run("sched_process_exec", task, cpu, task.address, old_tid)

    def free(self, task: Task, cpu: int = 0) -> Events:
        return self._run("sched_process_free", self.idle, cpu, task.address)

    def tick(self, running: Task, cpu: int = 0) -> Events:
        """The clock of the CPU that it runs on."""
        self._set_current(running, cpu)
        self.stacks = self.host.run("on_cpu", "perf", None)
        return self.host.events

    def wait(self, task: Task, blocked_ns: int, runqueue_ns: int = 0, state: int = SLEEPING) -> Events:
        """It leaves the CPU, is woken by an interrupt of the idle CPU, and comes back; the events of coming back."""
        self.switch(task, self.idle, state)
        self.later(blocked_ns)
        self.wake(task)
        self.later(runqueue_ns)
        return self.switch(self.idle, task)

    def entry(self, task: Task) -> np.void:
        """Its bp_thread."""
        found = self.host.thread(task.tid)
        assert found is not None
        return found

    def _run(self, program: str, current: Task, cpu: int, *args: int) -> Events:
        self._set_current(current, cpu)
        context = (ctypes.c_uint64 * 4)(*args)
        self.stacks = self.host.run(program, "sched", context)
        return self.host.events

    def _set_current(self, task: Task, cpu: int) -> None:
        state = self.host.state
        state.cpu, state.pid_tgid = cpu, task.tgid << 32 | task.tid
        state.task, state.registers = task.address, task.stack
