"""Stacks of which something cannot be read: they are walked, and are no repeats."""

from __future__ import annotations

import pytest

from tests.ebpf_host.host import STATUS
from tests.ebpf_host.native_image import CODE, END, call_stack
from tests.ebpf_host.python_image import PythonImage, frames_of
from tests.ebpf_host.scheduler import SLEEPING
from tests.ebpf_host.sleeper import (
    FRAMES,
    NATIVE,
    REGISTERS,
    RESEND_NS,
    Sleeper,
    check_differs,
    check_repeats,
    frames_in_chunk,
)


@pytest.mark.parametrize("last", [CODE + 0x5000, 0x10])
def test_a_stack_that_is_not_whole_is_walked_again(sleeper: Sleeper, last: int) -> None:
    sleeper.native = (*NATIVE[:3], last)
    assert [bool(sleeper.wait() and sleeper.walk_calls) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("readable", [0, 1, 3, FRAMES - 1])
def test_python_frames_that_cannot_be_read(sleeper: Sleeper, readable: int) -> None:
    """What could be read before them is the stack, and says that more was there."""
    host, scheduler = sleeper.scheduler.host, sleeper.scheduler
    frames = frames_in_chunk(readable)
    image = PythonImage()
    if frames:
        image.link(frames, last=0xDEAD_0000)
    leaf = frames[0].address if frames else 0xDEAD_0000
    for _ in range(3):
        image.install(host, leaf, [call_stack(NATIVE)], sleeper.flags, index=sleeper.index, count=1)
        sleeper.task.at(REGISTERS)
        scheduler.later(RESEND_NS + 1)
        scheduler.switch(sleeper.task, scheduler.idle, SLEEPING)
        (stack,) = scheduler.stacks
        assert host.state.walk_calls > 0 and scheduler.entry(sleeper.task)["stack"] == stack.header["key"]
        assert frames_of(stack) == [frame.record for frame in frames] and stack.pcs == NATIVE
        assert stack.header["status"] == STATUS.BP_PYTHON_FRAME_FAULT
        scheduler.switch(scheduler.idle, sleeper.task)


def test_a_stack_that_ends_where_return_addresses_were(sleeper: Sleeper) -> None:
    key = check_repeats(sleeper)
    sleeper.native, sleeper.stack_bytes = (*NATIVE[:3], END), 0x30
    other = check_differs(sleeper, key)
    assert sleeper.wait() == other and sleeper.walk_calls == 0


def test_a_stack_that_can_be_read_no_more(sleeper: Sleeper) -> None:
    key = check_repeats(sleeper)
    sleeper.stack_bytes = 0x18
    other = check_differs(sleeper, key)
    assert sleeper.wait() == other and sleeper.walk_calls > 0, "it is not whole"
    sleeper.stack_bytes = None
    for _ in range(2):
        assert sleeper.wait() == key
    assert sleeper.walk_calls == 0
