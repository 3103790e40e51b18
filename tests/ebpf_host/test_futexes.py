"""Which lock a wait in futex() is for, where each that waits has a futex of its own; and ranges of files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from bpfprof.unwind.interpret import Registers
from tests.ebpf_host.host import CONFIG, CONSTANTS, PROCESS, TID, Host
from tests.ebpf_host.native_image import CALL, STACK, call_stack, install_rules
from tests.ebpf_host.python_image import CHUNK, FRAME_OBJECT, LAYOUTS, PythonImage, chain
from tests.ebpf_host.scheduler import EPOLL_WAIT, FUTEX, SLEEPING, Scheduler, Task

MUTEX, SELF = 0x7F66_0000_0010, 0x7F77_0000_0100
LOCKED, PARKED = 1, 2
IS_PARKED = 1 << CONSTANTS["BP_PARKED_BIT"]
SEMAPHORE = STACK + 0x100
FRAME_VALUES = 80
OPERATION, VALUE = 0x189, 7


@dataclass
class Waiter:
    scheduler: Scheduler
    task: Task
    index: int

    def wait(
        self,
        call: int = FUTEX,
        futex: int = SEMAPHORE,
        state: int = LOCKED | PARKED,
        is_sampled: bool = True,
        args: tuple[int, int] = (OPERATION, VALUE),
    ) -> list[int]:
        """Arguments that the event of a wait has."""
        regions = {CHUNK: bytearray(0x1000)}
        image = PythonImage("3.14", regions=regions)
        image.link(frames := chain(2, CHUNK + 24, CHUNK + 0x1000, 192))
        image.put(frames[0].address + FRAME_VALUES, SELF | 1)
        stack, memory = call_stack((CALL,))
        memory = bytearray(memory.ljust(0x200, b"\0"))
        memory[SEMAPHORE - 8 - stack : SEMAPHORE - stack] = MUTEX.to_bytes(8, "little")
        more = [(stack, bytes(memory)), (MUTEX, bytes([state] + [0] * 7))]
        image.install(self.scheduler.host, frames[0].address, more, PROCESS["BP_PROCESS_UNWIND"], index=self.index)
        self.task.call(call, futex, *args).at(Registers(CALL, STACK, 0))
        self.scheduler.switch(self.task, self.scheduler.idle, SLEEPING)
        assert bool(self.scheduler.stacks) == is_sampled
        self.scheduler.later(CONSTANTS["BP_LONG_WAIT_NS"] + 1)
        (event,) = self.scheduler.switch(self.scheduler.idle, self.task)
        found: list[int] = np.asarray(event["args"]).tolist()
        return found


@pytest.fixture
def waiter(host: Host, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Waiter:
    monkeypatch.setitem(LAYOUTS, "3.14", {**LAYOUTS["3.14"], "frame_values": FRAME_VALUES, "parks": 1})
    host.set_config(CONFIG["BP_CONFIG_OFF_CPU_STACKS"] | CONFIG["BP_CONFIG_NATIVE"])
    scheduler.later(CONSTANTS["BP_RESEND_NS"] + 1)
    return Waiter(scheduler, scheduler.add(TID), install_rules(host))


def test_the_parking_lot(waiter: Waiter) -> None:
    assert waiter.wait() == [MUTEX, OPERATION | IS_PARKED, SELF]


@pytest.mark.parametrize("state", [0, LOCKED, PARKED])
def test_another_semaphore_on_the_thread_s_own_stack(waiter: Waiter, state: int) -> None:
    """What is before it is an address, but not that of a mutex for which threads wait."""
    assert waiter.wait(state=state) == [SEMAPHORE, OPERATION, SELF]


def test_a_futex_that_is_not_on_the_thread_s_own_stack(waiter: Waiter) -> None:
    assert waiter.wait(futex=MUTEX + 8) == [MUTEX + 8, OPERATION, SELF]


def test_another_call(waiter: Waiter) -> None:
    assert waiter.wait(EPOLL_WAIT) == [SEMAPHORE, OPERATION, VALUE]


def test_frames_that_are_objects(waiter: Waiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYOUTS, "3.14", {**FRAME_OBJECT, "lasti_bytes": 1, "frame_values": FRAME_VALUES})
    assert waiter.wait() == [SEMAPHORE, OPERATION, SELF]


def test_a_wait_without_a_stack(waiter: Waiter, host: Host) -> None:
    host.set_config(CONFIG["BP_CONFIG_OFF_CPU_STACKS"], stack_interval_ns=1 << 60)
    while waiter.scheduler.entry(waiter.task)["one_in"] < 1 << 10:
        waiter.scheduler.wait(waiter.task.call(EPOLL_WAIT), 1)
    assert waiter.wait(is_sampled=False)[:2] == [MUTEX, OPERATION | IS_PARKED]


@pytest.mark.parametrize(("command", "is_read"), [(7, True), (38, True), (6, False)])
def test_the_range_of_a_file(waiter: Waiter, command: int, is_read: bool) -> None:
    """fcntl() gets the address of a struct flock."""
    begin = MUTEX if is_read else 0  # what is at SEMAPHORE - 8
    args = waiter.wait(72, 5, args=(command, SEMAPHORE - 16))
    assert args == [5, command, begin | 1 << CONSTANTS["BP_RANGE_BIT"] if is_read else SEMAPHORE - 16]
