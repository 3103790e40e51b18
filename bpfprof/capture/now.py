"""A process -> what each of its threads does now, read from user space while it goes on.

Nothing is stopped: a thread that ran while it was looked at is looked at again, and if it never rests its stack may mix
moments, which its note says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.account.idle import IDLE_REASONS, is_idle_stack
from bpfprof.account.kernel_reasons import hint_of
from bpfprof.account.reasons import FUTEX_CALLS, wait_reasons
from bpfprof.capture.descriptors import DescriptorKinds
from bpfprof.capture.frame_reader import FrameReader
from bpfprof.capture.holders import Holders, gil_holder
from bpfprof.capture.process import Process
from bpfprof.capture.sleeping import EXACT, ThreadStack, python_states, stack_now, stacks_now, task_state
from bpfprof.capture.tasks_now import tasks_now
from bpfprof.capture.unwound_now import UnwoundNow
from bpfprof.code.maps import NativeCode
from bpfprof.cpython.detect import NotPython, find_interpreter
from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.futures import PlacedFrame
from bpfprof.cpython.objects import Objects
from bpfprof.cpython.thread_names import ThreadNames
from bpfprof.cpython.thread_state import ThreadStateRef, read_interpreters, read_thread_states
from bpfprof.cpython.value_text import ValueTexts
from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.known.services import LISTENING
from bpfprof.model.frames import Frame
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import ANSWER, OF_THREADS, ON_CPU, READY, WAITING, ProcessNow, ThreadNow, WaitsFor
from bpfprof.model.samples import WAIT_DTYPE
from bpfprof.model.states import reason_text
from bpfprof.proc import tasks
from bpfprof.proc.cgroups import freezers
from bpfprof.proc.last_run import seconds_since_run
from bpfprof.proc.memory import MemoryAtOnce
from bpfprof.proc.privilege import OTHER_USERS, how_to_get, missing, why_unreadable

_TRIES = 3
LOOKS_AT_GIL = 4  # more, where is_at_the_gil(): where CPUs are short it may be awake for a part of the time
_MOST_FRAMES = 20_000  # of a thread: some 0.1 s
_LOOK_FRAMES = 2_000  # beside a recording, whose end waits for it; ten times as long where each has code of its own
_DEAD = "ZX"
_RUNS = "R"
_TICKS_S = 0.02  # the time of a thread on a CPU is counted at each tick, at 100 Hz or more
_FAULT = int(abi.Status["BP_PYTHON_FRAME_FAULT"])
_HUBS = ("gevent/hub.py", "eventlet/hubs/hub.py")  # what runs while all greenlets of a thread wait
_MAIN_THREAD = "MainThread"  # what `threading` calls it


def is_at_the_gil(threads: Sequence[ThreadNow]) -> bool:
    """Whether who has the GIL waits for another thread of these that was not seen to wait. Who wants the GIL wakes each
    5 ms, so one more look may tell."""
    of_tid = {thread.tid: thread for thread in threads}
    for thread in threads:
        wanted = thread.waits_for if thread.holds_gil and thread.state == WAITING else None
        holder = wanted.held_by_tid if wanted is not None and wanted.kind == "lock" else None
        other = of_tid.get(holder) if holder is not None else None
        if other is not None and other is not thread and other.waits_for is None:
            return True
    return False


def process_now(pid: Pid, with_variables: bool = False) -> ProcessNow:
    """with_variables: also what the local variables of the frames of threads hold.

    Raises TargetError when there is no such process or it has ended, UnsupportedError when it may not be read."""
    status = tasks.thread_status(pid, Tid(pid))
    if status is None:
        raise TargetError(f"there is no process {pid}")
    if tasks.list_threads(pid) == [Tid(pid)] and status.run_state in _DEAD:
        hint = "its parent has not asked yet how it ended"
        raise TargetError(f"process {pid} is a zombie: it has ended and has no threads or memory", hint)
    if tasks.is_kernel_thread(pid):
        raise TargetError(f"process {pid} is a thread of the kernel: it runs no program")
    process = Process(0, pid, name=tasks.process_name(pid), command_line=tasks.process_command_line(pid))
    process.open_memory()
    unwound = UnwoundNow(process)
    try:
        _detect(process)
        found = process.interpreter
        reader = FrameReader(process)
        threads = threads_now(process, reader, with_variables, unwound)
        rows, missed = tasks_now(process, reader)
        hubs = [it.name for it in threads if any(frame.file.endswith(_HUBS) for frame in it.frames[-1:])]
        missed += [f"greenlets that wait are not read: a hub runs in {', '.join(hubs)}"] * bool(hubs)
    finally:
        unwound.close()
        process.close()
    if not threads:
        raise TargetError(f"process {pid} ended before anything was seen")
    title = " ".join(process.command_line) or process.name
    return ProcessNow(
        pid, title, ("cpython", found.version_text) if found else None, process.note, threads, rows, missed
    )


def threads_now(
    process: Process,
    reader: FrameReader | None = None,
    with_variables: bool = False,
    unwound: UnwoundNow | None = None,
) -> list[ThreadNow]:
    """Of a process whose memory is open and whose interpreter is known. unwound: of it; None: stacks of C are not."""
    return _Threads(process, reader or FrameReader(process), with_variables, unwound=unwound).now()


def waiting_now(process: Process, code: NativeCode | None = None) -> list[ThreadNow]:
    """The same beside a recording, of innermost frames, and not for how long: for that it has to run on every CPU."""
    return _Threads(process, FrameReader(process), False, False, _LOOK_FRAMES, code).now()


def _detect(process: Process) -> None:
    try:
        found = find_interpreter(process.pid, process.memory)
    except TargetError as error:
        if isinstance(error.__cause__, PermissionError):
            lacking = missing(OTHER_USERS)
            fix = how_to_get(lacking) if lacking else f"bpfprof record --pid {process.pid} has its times and waits"
            raise UnsupportedError(f"process {process.pid}: {why_unreadable()}", fix) from error
        process.note = str(error)
        return
    if isinstance(found, NotPython):
        process.note = process.note or found.reason
    else:
        process.interpreter = found


class _Threads:
    """One look at the threads of a process."""

    def __init__(
        self,
        process: Process,
        reader: FrameReader,
        with_variables: bool,
        with_times: bool = True,
        most_frames: int = _MOST_FRAMES,
        code: NativeCode | None = None,
        unwound: UnwoundNow | None = None,
    ) -> None:
        self._code, self._unwound = code, unwound
        self._with_times, self._most_frames = with_times, most_frames
        self._process, self._reader, self._with_variables = process, reader, with_variables
        self._states: list[ThreadStateRef] = []
        self._names: dict[int, str] = {}

    def now(self) -> list[ThreadNow]:
        """In the order of their ids; those that have ended are left out."""
        process = self._process
        stacks = [
            self._settled(stack)
            for stack in stacks_now(process, self._code, self._most_frames)
            if stack.status.run_state not in _DEAD
        ]
        self._read_states()
        holder = gil_holder(process, self._states)
        tid_of = {stack.status.namespace_tids[-1]: stack.tid for stack in stacks}
        state_of = {tid_of[each.native_thread_id]: each for each in self._states if each.native_thread_id in tid_of}
        gil_tid = next((tid for tid, state in state_of.items() if state.address == holder), None)
        frames_of = [self._reader.frames(stack.frames) for stack in stacks]
        sleeps_at = {stack.tid: stack.call for stack in stacks if stack.call and stack.call.number in FUTEX_CALLS}
        placed = self._placed(stacks, frames_of)
        unwound = self._unwound.of if self._unwound else _of_recording(stacks)
        holders = Holders(process, tid_of, self._states, gil_tid, placed, sleeps_at, self._reader, unwound)
        reasons = self._reasons(stacks)
        # At once, because what was read of the threads that wait is true only while they do.
        wanted = [
            self._proven(holders.of(stack.tid, stack.call, reason), stack)
            if stack.status.run_state != _RUNS and stack.call
            else None
            for stack, reason in zip(stacks, reasons)
        ]
        running = self._on_cpu(stack.tid for stack in stacks if stack.status.run_state == _RUNS)
        waiting = [each.tid for each in stacks if each.status.run_state != _RUNS]
        since = seconds_since_run(process.pid, waiting) if self._with_times else {}
        threads = []
        for stack, frames, reason, waits_for, variables in zip(
            stacks, frames_of, reasons, wanted, self._variables(stacks)
        ):
            waits = stack.status.run_state != _RUNS
            named = state_of.get(stack.tid)
            name = self._names.get(named.pthread_id, "") if named else ""
            if not name and named and int(stack.tid) == int(process.pid):
                name = _MAIN_THREAD
            threads.append(
                ThreadNow(
                    stack.tid,
                    name or tasks.thread_name(process.pid, stack.tid),
                    WAITING if waits else ON_CPU if stack.tid in running else READY,
                    reason if waits else "",
                    since.get(stack.tid) if waits else None,
                    # Who has the GIL is about to do something.
                    waits
                    and stack.tid != gil_tid
                    and reason in IDLE_REASONS
                    and not (waits_for and (waits_for.nobody or (waits_for.kind == ANSWER and not waits_for.has_end)))
                    and (_serves(waits_for) or is_idle_stack([(frame.file, frame.name) for frame in frames])),
                    stack.tid == gil_tid,
                    waits_for,
                    frames,
                    _note(stack),
                    variables,
                )
            )
        return threads

    def _read_states(self) -> None:
        """After what threads wait for, else the id of one that had ended by then could be a new one's."""
        found, memory = self._process.interpreter, self._process.memory
        if found is not None and memory is not None:
            layout, runtime = found.layout, found.runtime_address
            self._states = read_thread_states(memory, layout, runtime)
            self._names = ThreadNames(MemoryAtOnce(memory), layout).read(read_interpreters(memory, layout, runtime))

    def _proven(self, wanted: WaitsFor | None, stack: ThreadStack) -> WaitsFor | None:
        """Without the holder if the thread did not wait all the while until that was read."""
        if wanted is None or wanted.kind not in OF_THREADS or wanted.held_by_tid is None:
            return wanted
        after = tasks.thread_status(self._process.pid, stack.tid)
        if after and (after.run_state, after.switches) == (stack.status.run_state, stack.status.switches):
            return wanted
        return replace(wanted, held_by_tid=None, held_by_pid=None, held_in=None)

    def _variables(self, stacks: list[ThreadStack]) -> list[list[dict[str, str]]]:
        """For each frame of each thread."""
        found, memory = self._process.interpreter, self._process.memory
        if not self._with_variables or found is None or memory is None:
            return [[] for _ in stacks]
        objects = Objects(memory, found.layout)
        values, texts = FrameValues(objects), ValueTexts(objects)
        return [
            [
                {name: texts.of(value) for name, value in values.variables(stack.addresses[at], code).items()}
                for at in self._reader.places(stack.frames)
                for code in stack.frames[at][:1]
            ]
            for stack in stacks
        ]

    def _placed(self, stacks: list[ThreadStack], frames_of: list[list[Frame]]) -> dict[Tid, list[PlacedFrame]]:
        """For each thread where its frames are, innermost first."""
        return {
            stack.tid: [
                (stack.addresses[place], stack.frames[place][0], frame.name, frame.file)
                for place, frame in zip(self._reader.places(stack.frames), frames)
            ]
            for stack, frames in zip(stacks, frames_of)
        }

    def _settled(self, stack: ThreadStack) -> ThreadStack:
        """Of a thread that did not run while it was looked at, if there is such a moment. One that sleeps for less time
        than a look takes ran where the kernel names no call."""
        process = self._process
        for _ in range(_TRIES):
            after = tasks.thread_status(process.pid, stack.tid)
            if after is None or (after.run_state == stack.status.run_state and after.switches == stack.status.switches):
                return stack
            stack = stack_now(process, stack.tid, after, python_states(process), self._code, self._most_frames)
        return stack if stack.call else replace(stack, status=replace(stack.status, run_state=_RUNS))

    def _on_cpu(self, tids: Iterable[Tid]) -> set[Tid]:
        """Which of these runnable threads got CPU time within two ticks."""
        before = {tid: tasks.on_cpu_ns(self._process.pid, tid) for tid in tids}
        if before:
            time.sleep(_TICKS_S)
        return {tid for tid, spent_ns in before.items() if tasks.on_cpu_ns(self._process.pid, tid) > spent_ns}

    def _reasons(self, stacks: list[ThreadStack]) -> list[str]:
        rows, freezer = np.zeros(len(stacks), WAIT_DTYPE), freezers().of(self._process.pid)
        rows["syscall"] = -1
        for index, stack in enumerate(stacks):
            rows["task_state"][index] = task_state(self._process.pid, stack.tid, stack.status, freezer)
            if stack.call is not None:
                rows["syscall"][index], rows["args"][index] = stack.call.number, stack.call.args[:3]
        pids = np.full(len(rows), self._process.pid, np.uint32)
        kinds = DescriptorKinds()
        calls: npt.NDArray[np.int16] = rows["syscall"]
        rows["fd_kind"] = np.maximum(
            kinds.of_calls(pids, calls, rows["args"][:, 0]),
            kinds.of_polls(pids, rows, lambda _: self._process.memory),
        )
        gil = self._process.interpreter.gil if self._process.interpreter else None
        start, size = (gil.address, gil.size) if gil else (0, 0)
        bounds = np.full(len(rows), start, np.uint64), np.full(len(rows), start + size, np.uint64)
        return [reason_text(reason) for reason in wait_reasons(rows, *bounds, hints=self._hints(stacks)).tolist()]

    def _hints(self, stacks: list[ThreadStack]) -> npt.NDArray[np.uint16]:
        """What the kernel frames of each thread that sleeps tell of its wait."""
        pid = self._process.pid
        calls = [stack.call for stack in stacks]
        found = (
            hint_of(tasks.kernel_functions(pid, stack.tid), call is not None and call.number >= 0)
            for stack, call in zip(stacks, calls)
        )
        return np.fromiter(found, np.uint16, len(stacks))


def _of_recording(stacks: list[ThreadStack]) -> Callable[[Tid], Sequence[int]]:
    """Where the functions of C of a thread are, as Holders asks."""
    whole = [(stack.tid, stack.native) for stack in stacks if stack.native and not stack.native.native_status]
    found = {tid: [word & ~EXACT for word in native.words] for tid, native in whole}
    return lambda tid: found.get(tid, ())


def _serves(wanted: WaitsFor | None) -> bool:
    """Whether it waits for clients."""
    return wanted is not None and wanted.name.partition(": ")[2].startswith(LISTENING)


def _note(stack: ThreadStack) -> str:
    if stack.python_status != _FAULT:
        return ""
    deep = len(stack.frames) >= _MOST_FRAMES
    return f"the innermost {_MOST_FRAMES:,} frames" if deep else "its stack changed while it was read"
