"""A stack that a thread has again: known without a walk, and only if nothing of it changed that is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ebpf_host.host import CONFIG, PROCESS, STATUS, Host
from tests.ebpf_host.native_image import CALL, END, IN_RBX, STACK, install_rules
from tests.ebpf_host.python_image import CHUNK, CHUNK_BYTES, LAYOUTS, Frame, PythonImage, chain, frames_of
from tests.ebpf_host.scheduler import SLEEPING, UNINTERRUPTIBLE
from tests.ebpf_host.sleeper import (
    BLOCK_BYTES,
    C_STACK,
    FRAME_STEP,
    FRAMES,
    GOOD_FOR_NS,
    HEAP,
    NATIVE,
    OFF_CPU,
    REGISTERS,
    RETURNS,
    SLOTS,
    WALKED_WAIT_NS,
    Sleeper,
    check_differs,
    check_repeats,
    frames_in_chunk,
)


@pytest.mark.parametrize("count", [1, 16, FRAMES])
@pytest.mark.parametrize("version", LAYOUTS)
def test_a_stack_that_is_the_same_is_not_walked(sleeper: Sleeper, version: str, count: int) -> None:
    sleeper.version, sleeper.frames = version, frames_in_chunk(count)
    blocks = -(-count * FRAME_STEP // (BLOCK_BYTES - FRAME_STEP))
    key = sleeper.wait()
    (stack,) = sleeper.stacks
    assert stack.header["key"] == key and stack.pcs == NATIVE
    assert frames_of(stack) == [frame.record for frame in sleeper.frames]
    for _ in range(5):
        assert sleeper.wait() == key
        assert (sleeper.walk_calls, sleeper.stacks) == (0, [])
        identities = 2 * min(count, 4)  # a code object, and where it has no version its name
        assert sleeper.reads <= 4 + blocks + 2 + identities, "its state and innermost frame, Python frames, the stack"


@pytest.mark.parametrize("field_name", ["code", "instruction", "mark"])
@pytest.mark.parametrize("n", range(FRAMES))
def test_any_other_python_frame(sleeper: Sleeper, field_name: str, n: int) -> None:
    key = check_repeats(sleeper)
    sleeper.change(n, **{field_name: getattr(sleeper.frames[n], field_name) + 1})
    other = check_differs(sleeper, key)
    assert sleeper.wait() == other and sleeper.walk_calls == 0


@pytest.mark.parametrize("n", range(1, RETURNS + 1))
def test_any_other_return_address(sleeper: Sleeper, n: int) -> None:
    key = check_repeats(sleeper)
    sleeper.native = (*NATIVE[:n], NATIVE[n] + 0x40, *NATIVE[n + 1 :])
    check_differs(sleeper, key)
    sleeper.native = NATIVE
    assert sleeper.wait() == key and sleeper.walk_calls > 0, "only the last stack with these frames is remembered"


def test_another_instruction_pointer(sleeper: Sleeper) -> None:
    key = check_repeats(sleeper)
    sleeper.registers = replace(REGISTERS, ip=REGISTERS.ip + 8)
    check_differs(sleeper, key)


def test_another_stack_pointer(sleeper: Sleeper) -> None:
    """All return addresses are as far above it as they were: the stack is the same, which only a walk can tell."""
    key = check_repeats(sleeper)
    sleeper.registers = replace(REGISTERS, sp=REGISTERS.sp + 8)
    assert sleeper.wait() == key and sleeper.walk_calls > 0


@pytest.mark.parametrize("number", [n for n in range(16) if n not in (6, 7)])
def test_other_registers_do_not_matter(sleeper: Sleeper, number: int) -> None:
    key = check_repeats(sleeper)
    sleeper.registers = replace(REGISTERS, others={**REGISTERS.others, number: 0x7777})
    assert sleeper.wait() == key and sleeper.walk_calls == 0


def test_the_frame_pointer_does_not_matter(sleeper: Sleeper) -> None:
    key = check_repeats(sleeper)
    sleeper.registers = replace(REGISTERS, bp=REGISTERS.bp + 8)
    assert sleeper.wait() == key and sleeper.walk_calls == 0


def test_another_place_of_the_innermost_frame(sleeper: Sleeper) -> None:
    key = check_repeats(sleeper)
    sleeper.frames = [replace(frame, address=frame.address + 96) for frame in sleeper.frames]
    assert sleeper.wait() == key and sleeper.walk_calls > 0


@pytest.mark.parametrize("n", [0, 1, FRAMES // 2, FRAMES - 1])
def test_another_place_of_one_frame(sleeper: Sleeper, n: int) -> None:
    """The stack is the same, and so is its key; that it is cannot be told without a walk."""
    key = check_repeats(sleeper)
    sleeper.change(n, address=HEAP + 72)
    assert sleeper.wait() == key and sleeper.walk_calls > 0
    assert sleeper.wait() == key and sleeper.walk_calls == 0


@pytest.mark.parametrize("version", LAYOUTS)
def test_a_chain_that_is_too_deep_is_walked_each_time(sleeper: Sleeper, version: str) -> None:
    sleeper.version, sleeper.frames = version, frames_in_chunk(FRAMES)
    key = check_repeats(sleeper)
    sleeper.frames = frames_in_chunk(FRAMES + 1)
    deep = check_differs(sleeper, key)
    for _ in range(3):
        assert sleeper.wait() == deep and sleeper.walk_calls > 0
    sleeper.change(FRAMES, instruction=4711)
    check_differs(sleeper, deep)
    sleeper.frames = frames_in_chunk(FRAMES)
    assert sleeper.wait() == key and sleeper.walk_calls == 0, "what was too deep is not remembered in its place"


@pytest.mark.parametrize("count", [1, FRAMES - 1, FRAMES + 1])
def test_fewer_or_more_frames_outside(sleeper: Sleeper, count: int) -> None:
    """The innermost frames are what and where they were."""
    frames = frames_in_chunk(FRAMES + 1)
    sleeper.frames = frames[:FRAMES]
    key = check_repeats(sleeper)
    sleeper.frames = frames[:count]
    check_differs(sleeper, key)


def test_other_mappings(sleeper: Sleeper, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    key = check_repeats(sleeper)
    sleeper.index = install_rules(host, monkeypatch)
    check_differs(sleeper, key)


def test_fewer_return_addresses(sleeper: Sleeper) -> None:
    sleeper.native = (*NATIVE[:5], END)
    key = check_repeats(sleeper)
    sleeper.native = (*NATIVE[:4], END)
    key = check_differs(sleeper, key)
    sleeper.native = (NATIVE[0], END)
    key = check_differs(sleeper, key)
    assert sleeper.wait() == key and sleeper.walk_calls == 0


def test_a_stack_is_good_for_some_time_after_its_walk(sleeper: Sleeper) -> None:
    key = sleeper.wait()
    half = GOOD_FOR_NS // 2 - WALKED_WAIT_NS
    assert sleeper.wait(half) == key and sleeper.walk_calls == 0
    assert sleeper.wait(half) == key and sleeper.walk_calls == 0
    assert sleeper.wait(1) == key and sleeper.walk_calls > 0, "a repeat does not make it good for longer"
    assert sleeper.wait(GOOD_FOR_NS - WALKED_WAIT_NS + 1) == key and sleeper.walk_calls > 0


def test_another_code_object_at_the_same_address(sleeper: Sleeper) -> None:
    """Of the innermost frames it is seen at once."""
    key = check_repeats(sleeper)
    sleeper.code_seed += 1
    check_differs(sleeper, key)


@pytest.mark.parametrize("count", [RETURNS + 1, RETURNS + 2, 128, 129, 200])
def test_too_many_return_addresses(sleeper: Sleeper, count: int) -> None:
    """Such a stack is walked each time, and leaves what is known alone."""
    key = check_repeats(sleeper)
    before = sleeper.scheduler.entry(sleeper.task)["repeats"].tobytes()
    for last in (END, END, END + 0x40):
        sleeper.native = (*NATIVE[:RETURNS], *(CALL + 1 for _ in range(count - RETURNS)), last)
        assert len(sleeper.native) == count + 1
        other = sleeper.wait()
        assert sleeper.walk_calls > 0 and other not in (key, 0)
        assert sleeper.scheduler.entry(sleeper.task)["repeats"].tobytes() == before
    sleeper.native = NATIVE
    assert sleeper.wait() == key and sleeper.walk_calls == 0


def test_as_many_places_as_can_be_kept(sleeper: Sleeper) -> None:
    """One after the other, again and again: each is walked once."""
    keys = []
    for turn in range(4):
        for n in range(SLOTS):
            sleeper.registers = replace(REGISTERS, ip=CALL + n)
            key = sleeper.wait()
            assert (sleeper.walk_calls > 0) == (turn == 0)
            keys.append(key)
    assert keys == keys[:SLOTS] * 4 and len(set(keys)) == SLOTS


def test_one_place_more_than_can_be_kept(sleeper: Sleeper) -> None:
    """They push each other out; whether walked or not, each has its own key."""
    keys = []
    for _ in range(4):
        for n in range(SLOTS + 1):
            sleeper.registers = replace(REGISTERS, ip=CALL + n)
            keys.append(sleeper.wait())
    assert keys == keys[: SLOTS + 1] * 4 and len(set(keys)) == SLOTS + 1
    assert sleeper.wait() == keys[-1] and sleeper.walk_calls == 0


def test_the_oldest_place_is_pushed_out(sleeper: Sleeper) -> None:
    for n in range(SLOTS + 1):
        sleeper.registers = replace(REGISTERS, ip=CALL + n)
        sleeper.wait()
    for n in (*range(1, SLOTS + 1), 0):
        sleeper.registers = replace(REGISTERS, ip=CALL + n)
        sleeper.wait()
        assert (sleeper.walk_calls > 0) == (n == 0)


def test_a_stack_that_is_walked_again_takes_the_place_it_had(sleeper: Sleeper) -> None:
    """With other return addresses in it, or after some time: the other places are still known."""
    for n in range(SLOTS):
        sleeper.registers = replace(REGISTERS, ip=CALL + n)
        sleeper.wait()
    signatures = sleeper.scheduler.entry(sleeper.task)["repeats"]["signature"].tolist()
    assert len(set(signatures) - {0}) == SLOTS
    for n in (1, 2, 1, 3):
        sleeper.native = (*NATIVE[:n], NATIVE[n] + 0x40, *NATIVE[n + 1 :])
        sleeper.wait()
        assert sleeper.walk_calls > 0
    sleeper.native = NATIVE
    for n in range(SLOTS - 1):
        sleeper.registers = replace(REGISTERS, ip=CALL + n)
        sleeper.wait()
        assert sleeper.walk_calls == 0
    sleeper.wait(GOOD_FOR_NS)
    assert sleeper.walk_calls > 0
    assert sleeper.scheduler.entry(sleeper.task)["repeats"]["signature"].tolist() == signatures


def test_repeats_can_be_checked(sleeper: Sleeper, host: Host) -> None:
    names = "BP_COUNT_REPEATED", "BP_COUNT_REPEAT_WRONG"

    def counts() -> list[int]:
        return [host.counter(name) for name in names]

    before = counts()
    key = check_repeats(sleeper)
    assert counts() == before, "only when it is to be checked"
    host.set_config(OFF_CPU | CONFIG["BP_CONFIG_CHECK_REPEATS"])
    assert sleeper.wait() == key and sleeper.walk_calls > 0
    assert counts() == [before[0] + 1, before[1]]
    sleeper.code_seed += 1
    other = check_differs(sleeper, key)
    assert counts() == [before[0] + 1, before[1]], "it was not taken for another"
    assert sleeper.wait() == other and counts() == [before[0] + 2, before[1]]
    sleeper.change(0, instruction=4711)
    check_differs(sleeper, other)
    assert counts() == [before[0] + 2, before[1]]


def test_without_native_frames(sleeper: Sleeper, host: Host) -> None:
    host.set_config(CONFIG["BP_CONFIG_OFF_CPU_STACKS"])
    sleeper.flags = 0
    key = check_repeats(sleeper)
    sleeper.change(3, instruction=4711)
    check_differs(sleeper, key)


def test_native_frames_once_they_can_be_had(sleeper: Sleeper) -> None:
    """The process's mappings are not known yet: a stack without native frames is not the one to come."""
    sleeper.flags, sleeper.status = 0, STATUS.BP_OK
    sleeper.wait()
    sleeper.wait()
    assert sleeper.walk_calls > 0
    sleeper.flags = PROCESS["BP_PROCESS_UNWIND"]
    check_repeats(sleeper)


@pytest.mark.parametrize("call_bytes", [8, 16])
def test_a_leaf_that_has_put_nothing_on_the_stack(
    sleeper: Sleeper, host: Host, monkeypatch: pytest.MonkeyPatch, call_bytes: int
) -> None:
    """Like a function that only does a system call: its return address is where the stack pointer points."""
    sleeper.index, sleeper.call_bytes = install_rules(host, monkeypatch, call_bytes), call_bytes
    key = check_repeats(sleeper)
    for n in (1, 2, RETURNS):
        sleeper.native = (*NATIVE[:n], NATIVE[n] + 0x40, *NATIVE[n + 1 :])
        check_differs(sleeper, key)
        sleeper.native = NATIVE
        assert sleeper.wait() == key


def test_a_stack_that_was_lost_is_not_remembered(sleeper: Sleeper, host: Host) -> None:
    host.state.stacks.is_full = 1
    sleeper.wait()
    host.state.stacks.is_full = 0
    key = sleeper.wait()
    assert [int(stack.header["key"]) for stack in sleeper.stacks] == [key]


def test_waits_with_kernel_frames_are_walked(sleeper: Sleeper, host: Host) -> None:
    """Two waits in the same call can be in different places of the kernel."""
    sleeper.state = UNINTERRUPTIBLE
    keys = []
    for address in (0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_0010):
        host.state.kernel_frame_count, host.state.kernel_frames[0] = 1, address
        keys.append(sleeper.wait())
        assert sleeper.walk_calls > 0
    sleeper.state, host.state.kernel_frame_count = SLEEPING, 0
    keys.append(sleeper.wait())
    sleeper.task.in_user_mode()  # a page fault
    host.state.kernel_frame_count = 1
    keys.append(sleeper.wait())
    assert len(set(keys)) == 3 and keys[1] == keys[3], "that one was a stack of a page fault before"


@pytest.mark.parametrize("frame_bytes", [8 * 255, 8 * 256, 8 * 257, 8 * 512, 0x11000])
def test_how_far_up_the_next_return_address_can_be(
    sleeper: Sleeper, host: Host, monkeypatch: pytest.MonkeyPatch, frame_bytes: int
) -> None:
    """A stack with a larger frame is walked each time."""
    sleeper.index, sleeper.call_bytes = install_rules(host, monkeypatch, frame_bytes), frame_bytes
    keys = []
    for pcs in ((CALL, CALL + 1, CALL + 2, END), (CALL, CALL + 1, CALL + 3, END)):
        sleeper.native = pcs
        keys.append(sleeper.wait())
        assert sleeper.walk_calls > 0
        assert sleeper.wait() == keys[-1] and (sleeper.walk_calls == 0) == (frame_bytes <= 8 * 255)
    assert 0 not in keys and keys[0] != keys[1]


@pytest.mark.parametrize("frame_bytes", [12, 20, 33])
def test_return_addresses_that_are_not_aligned(
    sleeper: Sleeper, host: Host, monkeypatch: pytest.MonkeyPatch, frame_bytes: int
) -> None:
    """Such a stack is walked each time."""
    index, keys = install_rules(host, monkeypatch, frame_bytes), []
    for pcs in ((CALL + 1, CALL + 2, END), (CALL + 1, CALL + 2, END), (CALL + 1, CALL + 3, END)):
        words = b"".join(bytes(frame_bytes - 8) + pc.to_bytes(8, "little") for pc in pcs)
        image = PythonImage()
        image.link(frames := chain(2, CHUNK + 24, CHUNK + CHUNK_BYTES))
        stack = STACK - 0x100, bytes(0x100) + words + bytes(0x400)
        image.install(host, frames[0].address, [stack], sleeper.flags, index=index, count=1)
        sleeper.task.at(REGISTERS)
        sleeper.scheduler.switch(sleeper.task, sleeper.scheduler.idle, SLEEPING)
        assert host.state.walk_calls > 0
        keys.append(int(sleeper.scheduler.entry(sleeper.task)["stack"]))
        sleeper.scheduler.switch(sleeper.scheduler.idle, sleeper.task)
    assert 0 not in keys and keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("callers", [(), (CALL + 1, END)])
def test_a_return_address_in_a_register(sleeper: Sleeper, callers: tuple[int, ...]) -> None:
    """Registers are not looked at: such a stack is walked each time."""
    first, *others = callers or (END,)
    sleeper.native, keys = (IN_RBX, first, *others), []
    for moved in (0, 0, 1):
        sleeper.registers = replace(REGISTERS, ip=IN_RBX, others={3: first + moved})
        keys.append(sleeper.wait())
        assert sleeper.walk_calls > 0
    assert 0 not in keys and keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("n", [1, 2])
def test_a_generator_that_is_resumed_from_another_place(sleeper: Sleeper, n: int) -> None:
    """Its frame is in the heap; the native stack is the same wherever in a function it is asked for the next item."""
    sleeper.frames = [Frame(HEAP + 72, 1, 0x6000), *chain(4, CHUNK + 24, CHUNK + CHUNK_BYTES)]
    key = check_repeats(sleeper)
    sleeper.change(n, instruction=4711)
    check_differs(sleeper, key)


@pytest.mark.parametrize("version", ["3.13", "3.14"])
def test_a_function_that_c_code_calls_from_another_place(sleeper: Sleeper, version: str) -> None:
    """From CPython 3.12 on there is a frame on the C stack where C code calls Python code, like Module.__call__."""
    sleeper.version = version
    low, high = chain(4, CHUNK + 24, CHUNK + 0x800), chain(4, CHUNK + 0x800, CHUNK + 0x1000)
    sleeper.frames = [*high, Frame(C_STACK, 7, 0x6000, 3), *low]
    key = check_repeats(sleeper)
    sleeper.change(len(high) + 1, instruction=4711)
    check_differs(sleeper, key)
