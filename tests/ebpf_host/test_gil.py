"""Waits for a GIL and who has it: its id and its Python frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bpfprof.unwind.interpret import Registers
from tests.ebpf_host.host import CONFIG, CONSTANTS, PROCESS, STATUS, TID, Host, Segment, Stack
from tests.ebpf_host.native_image import CALL, END, STACK, call_stack, install_rules
from tests.ebpf_host.python_image import (
    CHUNK,
    FRAME_OBJECT,
    LAYOUTS,
    STATE,
    Frame,
    PythonImage,
    ThreadState,
    chain,
    frames_of,
)
from tests.ebpf_host.scheduler import EPOLL_WAIT, FUTEX, GIL, SLEEPING, Events, Scheduler, Task

HOLDS, WAITS = GIL["BP_HOLDS_GIL"], GIL["BP_WAITS_FOR_GIL"]
GIL_ADDRESS, OTHER_GIL, GIL_BYTES = 0x5555_7000_0000, 0x5555_7000_1000, 128
INTERPRETER, OTHER_INTERPRETER = 0x5555_8000_0000, 0x5555_8000_1000
HOLDER, HOLDER_ID = STATE + 0x1000, 77
PTHREAD = 0x5555_9000_0000
REGION_BYTES = 0x20000
HOLDER_CHUNK = CHUNK + 2 * REGION_BYTES
OFF_CPU = CONFIG["BP_CONFIG_OFF_CPU_STACKS"] | CONFIG["BP_CONFIG_NATIVE"]


@dataclass
class Threads:
    """Two threads of a process: the first waits, the other has the GIL."""

    scheduler: Scheduler
    task: Task
    index: int
    version: str = "3.11"
    python: int = 3
    holder_python: int = 5
    native: tuple[int, ...] = (CALL, END)
    last_holder: int = HOLDER
    locked: int = 1
    interpreter: int = INTERPRETER
    holder_leaf: int | None = None
    gil: int = GIL_ADDRESS  # of the process
    gil_current: int = 0
    holder_id: int = HOLDER_ID  # what the thread state has for it
    more: list[Segment] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)

    @property
    def holder_frames(self) -> list[Frame]:
        return chain(self.holder_python, HOLDER_CHUNK + 24, HOLDER_CHUNK + REGION_BYTES)

    def install(self) -> None:
        """Puts it where the programs look."""
        regions = {CHUNK: bytearray(REGION_BYTES), HOLDER_CHUNK: bytearray(REGION_BYTES)}
        image = PythonImage(self.version, regions=regions)
        image.link(frames := chain(self.python, CHUNK + 24, CHUNK + REGION_BYTES))
        image.link(self.holder_frames)
        leaf = self.holder_frames[0].address if self.holder_leaf is None else self.holder_leaf
        threads = [
            ThreadState(STATE, frames[0].address, TID, self.interpreter, self.task.thread_pointer),
            ThreadState(HOLDER, leaf, self.holder_id, self.interpreter, chunk=HOLDER_CHUNK),
        ]
        image.install_threads(
            self.scheduler.host,
            threads,
            [call_stack(self.native), *self.runtime(), *self.more],
            PROCESS["BP_PROCESS_UNWIND"],
            index=self.index,
            count=1,
            gil=self.gil,
            gil_bytes=GIL_BYTES,
            gil_current=self.gil_current,
        )
        self.task.at(Registers(self.native[0], STACK, 0))

    def runtime(self) -> list[Segment]:
        """Interpreters and GILs. The GIL of the other interpreter is held by nobody that is known."""
        memory: list[Segment] = []
        for interpreter, gil in ((INTERPRETER, GIL_ADDRESS), (OTHER_INTERPRETER, OTHER_GIL)):
            words = np.zeros(16, "<u8")
            words[LAYOUTS["3.13"]["interpreter_gil"] // 8] = gil
            memory.append((interpreter, words.tobytes()))
        is_other = self.interpreter == OTHER_INTERPRETER
        for gil, is_own in ((GIL_ADDRESS, not is_other), (OTHER_GIL, is_other)):
            words = np.zeros(GIL_BYTES // 8, "<u8")
            words[1:3] = (self.last_holder, self.locked) if is_own else (0x1234_5678, 1)
            memory.append((gil, words.tobytes()))
        return memory

    def wait(self, call: int = FUTEX, address: int = GIL_ADDRESS + 0x40) -> np.void:
        """The event of a wait in this call."""
        (event,) = self.wait_for(1000, call, address)
        found: np.void = event
        return found

    def wait_for(self, duration_ns: int, call: int = FUTEX, address: int = GIL_ADDRESS + 0x40) -> Events:
        """The events of a wait that takes so long."""
        self.task.call(call, address)
        self.install()
        self.scheduler.switch(self.task, self.scheduler.idle, SLEEPING)
        self.stacks = self.scheduler.stacks
        self.scheduler.later(duration_ns)
        return self.scheduler.switch(self.scheduler.idle, self.task)


@pytest.fixture
def threads(host: Host, scheduler: Scheduler) -> Threads:
    host.set_config(OFF_CPU)
    scheduler.later(CONSTANTS["BP_RESEND_NS"] + 1)
    return Threads(scheduler, scheduler.add(TID), install_rules(host))


def gil_fields(event: np.void) -> tuple[Any, ...]:
    return int(event["flags"]), int(event["holder"]), bool(event["holder_stack"])


@pytest.mark.parametrize("version", LAYOUTS)
def test_a_wait_for_the_gil(threads: Threads, version: str) -> None:
    threads.version = version
    event = threads.wait()
    assert gil_fields(event) == (WAITS, HOLDER_ID, True)
    own, holder = threads.stacks
    assert event["stack"] == own.header["key"] and event["holder_stack"] == holder.header["key"]
    assert frames_of(own) == [frame.record for frame in chain(3, CHUNK + 24, CHUNK + REGION_BYTES)]
    assert frames_of(holder) == [frame.record for frame in threads.holder_frames]
    assert own.pcs == threads.native
    assert (len(holder.native), len(holder.kernel)) == (0, 0)
    assert holder.header["status"] == STATUS.BP_OK and holder.native_status == STATUS.BP_STACK_NOT_TAKEN
    assert (holder.python["identity"] != 0).all()


@pytest.mark.parametrize("is_3_6", [False, True])
@pytest.mark.parametrize("holder", [HOLDER, 0])
def test_a_wait_for_the_gil_before_3_11(
    threads: Threads, monkeypatch: pytest.MonkeyPatch, is_3_6: bool, holder: int
) -> None:
    """The C library knows the thread's id; 3.6 has the holder in a variable of its own."""
    monkeypatch.setitem(LAYOUTS, "old", {**FRAME_OBJECT, "lasti_bytes": 1})
    threads.version, threads.holder_id = "old", PTHREAD
    threads.more = [(PTHREAD + CONSTANTS["BP_PTHREAD_TID"], HOLDER_ID.to_bytes(8, "little"))]
    threads.last_holder = holder
    if is_3_6:
        threads.gil_current, threads.last_holder = PTHREAD + 0x1000, 0x1234
        threads.more.append((threads.gil_current, holder.to_bytes(8, "little")))
    event = threads.wait()
    assert gil_fields(event) == ((WAITS, HOLDER_ID, True) if holder else (WAITS, 0, False))


@pytest.mark.parametrize(
    ("address", "is_in"),
    [(0, True), (GIL_BYTES - 1, True), (GIL_BYTES, False), (-1, False), (-GIL_ADDRESS, False)],
)
def test_which_futexes_are_in_the_gil(threads: Threads, address: int, is_in: bool) -> None:
    event = threads.wait(FUTEX, GIL_ADDRESS + address)
    assert gil_fields(event) == ((WAITS, HOLDER_ID, True) if is_in else (0, 0, False))
    assert len(threads.stacks) == 1 + is_in


def test_another_call_with_the_address_of_the_gil(threads: Threads) -> None:
    assert gil_fields(threads.wait(EPOLL_WAIT)) == (0, 0, False)


def test_waits_of_the_thread_that_has_the_gil(threads: Threads) -> None:
    threads.last_holder = STATE
    assert gil_fields(threads.wait(EPOLL_WAIT)) == (HOLDS, 0, False)
    assert gil_fields(threads.wait(FUTEX, 0x7000)) == (HOLDS, 0, False)
    threads.locked = 0
    assert gil_fields(threads.wait(EPOLL_WAIT)) == (0, 0, False), "it had it last"


def test_a_gil_that_nobody_has(threads: Threads) -> None:
    threads.locked = 0
    assert gil_fields(threads.wait()) == (WAITS, 0, False)


def test_the_thread_itself_is_no_holder_that_it_waits_for(threads: Threads) -> None:
    """It has just been given the GIL, and has not noticed yet."""
    threads.last_holder = STATE
    assert gil_fields(threads.wait()) == (WAITS, 0, False)


def test_what_was_found_goes_with_its_wait(threads: Threads) -> None:
    assert gil_fields(threads.wait()) == (WAITS, HOLDER_ID, True)
    assert gil_fields(threads.wait(EPOLL_WAIT)) == (0, 0, False)


def test_a_holder_without_frames(threads: Threads) -> None:
    threads.holder_leaf = 0
    assert gil_fields(threads.wait()) == (WAITS, HOLDER_ID, False)


def test_a_holder_that_is_gone(threads: Threads) -> None:
    threads.last_holder = 0xDEAD_0000
    event = threads.wait()
    assert gil_fields(event) == (WAITS, 0, False) and event["stack"] != 0


def test_a_holder_whose_frames_cannot_be_read(threads: Threads) -> None:
    threads.holder_leaf = 0xDEAD_0000
    event = threads.wait()
    assert gil_fields(event) == (WAITS, HOLDER_ID, False) and event["stack"] != 0
    assert event["status"] == STATUS.BP_OK, "of its own stack"


def test_a_process_whose_gil_is_not_known(threads: Threads) -> None:
    threads.gil = 0
    assert gil_fields(threads.wait(FUTEX, 0x40)) == (0, 0, False)


def test_sampled_threads_say_whether_they_have_it(threads: Threads, host: Host) -> None:
    for last_holder, locked, flags in ((STATE, 1, HOLDS), (STATE, 0, 0), (HOLDER, 1, 0)):
        threads.last_holder, threads.locked = last_holder, locked
        threads.task.in_user_mode()
        threads.install()
        host.state.task, host.state.registers = threads.task.address, threads.task.stack
        event, _ = host.sample()
        assert event["flags"] == flags and event["holder"] == 0


# --- an interpreter with a GIL of its own


@pytest.mark.parametrize("version", ["3.13", "3.14"])
def test_the_gil_of_the_threads_own_interpreter(threads: Threads, version: str) -> None:
    threads.version, threads.interpreter = version, OTHER_INTERPRETER
    event = threads.wait(FUTEX, OTHER_GIL + 0x40)
    assert gil_fields(event) == (WAITS, HOLDER_ID, True)
    assert threads.scheduler.entry(threads.task)["gil"] == OTHER_GIL
    assert gil_fields(threads.wait(FUTEX, OTHER_GIL + 0x40)) == (WAITS, HOLDER_ID, True)
    threads.last_holder = STATE
    assert gil_fields(threads.wait(EPOLL_WAIT)) == (HOLDS, 0, False)


def test_a_thread_that_goes_back_to_the_main_interpreter(threads: Threads) -> None:
    threads.version, threads.interpreter = "3.13", OTHER_INTERPRETER
    threads.wait(FUTEX, OTHER_GIL + 0x40)
    threads.interpreter = INTERPRETER
    assert gil_fields(threads.wait()) == (WAITS, HOLDER_ID, True)
    assert threads.scheduler.entry(threads.task)["gil"] == 0


def test_on_its_way_back_the_slot_still_has_the_state_of_before(threads: Threads) -> None:
    """take_gil() comes before bind_gilstate_tstate(): _PyThreadState_Attach, Python/pystate.c (v3.13.0)."""
    threads.version, threads.interpreter = "3.13", OTHER_INTERPRETER
    assert gil_fields(threads.wait()) == (WAITS, 0, False)  # behind a thread that is not known


def test_the_gil_of_another_interpreter_is_none_of_its_own(threads: Threads) -> None:
    threads.version = "3.13"
    assert gil_fields(threads.wait(FUTEX, OTHER_GIL + 0x40)) == (0, 0, False)


def test_where_the_runtime_holds_the_gil(threads: Threads) -> None:
    """Before CPython 3.12 nothing is read of the interpreter."""
    threads.version, threads.interpreter = "3.11", 0xDEAD_0000
    assert gil_fields(threads.wait()) == (WAITS, HOLDER_ID, True)
    assert threads.scheduler.entry(threads.task)["gil"] == 0


def test_an_interpreter_that_cannot_be_read(threads: Threads) -> None:
    threads.version, threads.interpreter = "3.13", 0xDEAD_0000
    assert gil_fields(threads.wait(FUTEX, OTHER_GIL + 0x40)) == (0, 0, False)
    assert gil_fields(threads.wait()) == (WAITS, HOLDER_ID, True), "the process's is taken for its own"


@pytest.mark.parametrize("holder_python", [1, 96, 1024, 1033])
@pytest.mark.parametrize(("python", "native"), [(1, 2), (33, 25), (1024, 3072), (1033, 3081)])
def test_both_stacks_however_deep(threads: Threads, python: int, native: int, holder_python: int) -> None:
    threads.python, threads.native, threads.holder_python = python, (*[CALL] * (native - 1), END), holder_python
    event = threads.wait()
    own, holder = threads.stacks
    assert event["stack"] == own.header["key"] and gil_fields(event) == (WAITS, HOLDER_ID, True)
    assert (len(own.python), len(own.native)) == (min(python, 1024), min(native, 3072))
    assert len(holder.python) == min(holder_python, 1024)
