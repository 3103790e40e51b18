"""Which thread states a thread runs Python with: those of a process in, those of a thread out, innermost first.

A thread has one in each interpreter that it lets run. How they are found, and in what order, is said at
outer_thread_state() in ebpf/python_frames.bpf.h, which does the same.
"""

from __future__ import annotations

from collections import defaultdict

from bpfprof.cpython.detect import Interpreter
from bpfprof.cpython.layout import NONE
from bpfprof.cpython.thread_state import ThreadStateRef, read_interpreters, read_thread_states
from bpfprof.proc.memory import ProcessMemory

_USER_LIMIT = 1 << 47


class RunningStates:
    """The thread states of a process, as they are when this is made."""

    def __init__(self, memory: ProcessMemory, interpreter: Interpreter) -> None:
        self._memory = memory
        self._interpreter = interpreter
        layout, runtime = interpreter.layout, interpreter.runtime_address
        self._states = read_thread_states(memory, layout, runtime)
        self._is_alone = len(read_interpreters(memory, layout, runtime)) < 2
        self._of_thread: defaultdict[int, list[ThreadStateRef]] = defaultdict(list)
        for state in self._states:
            self._of_thread[state.native_thread_id].append(state)

    def of_thread(self, native_id: int, stack_pointer: int | None) -> list[int]:
        """Addresses. native_id: in its own pid namespace; stack_pointer: None where it is not known."""
        own = self._of_thread.get(native_id, [])
        layout = self._interpreter.layout
        if self._is_alone or layout.lasti_bytes:  # before 3.11: the main interpreter's alone
            return [state.address for state in own[-1:]]
        thread_pointer = own[-1].pthread_id if own else 0
        if layout.cframe_frame != NONE and stack_pointer is not None:
            end = thread_pointer if stack_pointer < thread_pointer else _USER_LIMIT
            own = [state for state in self._states if stack_pointer <= self._cframe(state) < end] or own[-1:]
        found = [int(state.address) for state in own]
        running = None if layout.slot_stays else self._interpreter.thread_slot.read(self._memory, thread_pointer)
        return sorted(found, key=lambda address: address != running)

    def _cframe(self, state: ThreadStateRef) -> int:
        return self._memory.read_pointer(state.address + self._interpreter.layout.thread_frame) or 0
