"""Whole records: Python, native and kernel frames of one stack, what its header says, and when it is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from bpfprof.elf.cfi.rules import RULE, CfaKind
from bpfprof.unwind.interpret import Registers
from bpfprof.unwind.rows import FileRows
from tests.ebpf_host.host import (
    CONFIG,
    CONSTANTS,
    EXACT,
    KEY_FACTOR,
    PROCESS,
    STATUS,
    TID,
    Host,
    Segment,
    mapping_array,
    pt_regs,
)
from tests.ebpf_host.native_image import CALL, CODE, END, SAME, SIGNAL, STACK, call_stack, install_rules
from tests.ebpf_host.python_image import CHUNK, PythonImage, chain, frames_of

ALTERNATE = 0x7F00_9900_0000
KERNEL = tuple(0xFFFF_FFFF_8100_0000 + 0x10 * n for n in range(70))
MAX_KERNEL, MAX_NATIVE = CONSTANTS["BP_MAX_KERNEL_FRAMES"], CONSTANTS["BP_MAX_NATIVE_FRAMES"]
CODE_ADDRESS = np.uint64((1 << 56) - 1)  # struct bp_python_frame
MAX_PYTHON = CONSTANTS["BP_MAX_PYTHON_FRAMES"]
EVENT_ASK = 6
NO_WAKEUP, FORCE_WAKEUP = 1, 2  # include/uapi/linux/bpf.h


@dataclass
class Scene:
    """A stack of all three kinds of frames."""

    host: Host
    index: int
    python: int = 5
    native: tuple[int, ...] = (CALL, CALL + 1, CALL + 2, END)
    kernel: tuple[int, ...] = KERNEL[:3]
    image: PythonImage | None = None

    def play(self) -> Scene:
        """Puts it where the programs look."""
        image = self.image or PythonImage(regions={CHUNK: bytearray(0x20000)})
        frames = chain(self.python, CHUNK + 24, CHUNK + 0x20000)
        image.link(frames)
        self.install(image, frames[0].address, [call_stack(self.native)])
        return self

    def install(self, image: PythonImage, leaf: int, more: list[Segment]) -> None:
        host = self.host
        image.install(host, leaf, more, PROCESS["BP_PROCESS_UNWIND"], index=self.index, count=1)
        host.set_registers(pt_regs(Registers(self.native[0], STACK, 0)))
        host.state.kernel_frame_count = len(self.kernel)
        host.state.kernel_frames[: len(self.kernel)] = self.kernel

    def key(self, is_later: bool = True) -> int:
        self.play()
        event, _ = self.host.sample(is_later)
        return int(event["stack"])


@pytest.fixture
def scene(host: Host) -> Scene:
    index = install_rules(host)
    host.set_config(CONFIG["BP_CONFIG_NATIVE"] | CONFIG["BP_CONFIG_KERNEL"])
    host.state.events.is_full = host.state.stacks.is_full = 0
    host.state.cpu = 1
    return Scene(host, index)


@pytest.mark.parametrize("python", [1, 4, 5, 100, 101])
@pytest.mark.parametrize("native", [1, 16, 17, 127])
@pytest.mark.parametrize("kernel", [0, 64])
def test_counts_and_frames(host: Host, scene: Scene, python: int, native: int, kernel: int) -> None:
    scene.python, scene.kernel = python, KERNEL[:kernel]
    scene.native = (*(CALL + n % 9 for n in range(native - 1)), END)
    scene.play()
    stack = host.stack()
    header = stack.header
    assert (header["python_count"], header["native_count"], header["kernel_count"]) == (python, native, kernel)
    assert (header["status"], header["native_status"], header["native_flags"]) == (STATUS.BP_OK, STATUS.BP_OK, 0)
    assert frames_of(stack) == [frame.record for frame in chain(python, CHUNK + 24, CHUNK + 0x20000)]
    assert stack.native == (scene.native[0] | EXACT, *scene.native[1:])
    assert stack.kernel == scene.kernel
    assert header["time_ns"] == host.state.now_ns and header["key"] % 2 == 1


def test_the_largest_stack(host: Host, scene: Scene) -> None:
    """More of everything than there may be: it is cut."""
    scene.python, scene.native, scene.kernel = MAX_PYTHON + 9, (CALL,) * (MAX_NATIVE + 9), KERNEL
    scene.play()
    stack = host.stack()
    assert (len(stack.python), len(stack.native), len(stack.kernel)) == (MAX_PYTHON, MAX_NATIVE, MAX_KERNEL)
    assert stack.header["status"] == STATUS.BP_PYTHON_TOO_DEEP
    assert stack.native_status == STATUS.BP_NATIVE_TOO_DEEP
    assert stack.kernel == KERNEL[:MAX_KERNEL] and stack.exact == (True, *[False] * (MAX_NATIVE - 1))
    addresses = stack.python["code"] & CODE_ADDRESS
    assert {*addresses[stack.python["identity"] != 0]} == {*addresses}, "each code object has its identity once"


def test_keys_are_others_in_another_recording(host: Host, scene: Scene) -> None:
    """So no program can make up stacks that have the keys of another's."""
    flags, keys = CONFIG["BP_CONFIG_NATIVE"] | CONFIG["BP_CONFIG_KERNEL"], {scene.key()}
    for bit in (1, 31, 32, 63):
        host.set_config(flags, key_factor=KEY_FACTOR ^ (1 << bit))
        keys.add(scene.key())
    assert len(keys) == 5
    host.set_config(flags)
    assert scene.key() in keys


def test_only_what_was_interrupted_is_exact(host: Host, scene: Scene) -> None:
    """A handler on a stack of its own, called by the kernel, above a frame that was interrupted at its first byte."""
    handler = np.zeros(64, "<u8")
    handler[1] = SIGNAL  # the return address of the handler; rsp is then ALTERNATE + 16
    handler[2 + 160 // 8], handler[2 + 168 // 8] = STACK, CODE
    stack = np.zeros(8, "<u8")
    stack[1], stack[3] = CALL, END
    image = PythonImage()
    frames = chain(1, CHUNK + 24, CHUNK + 0x4000)
    image.link(frames)
    scene.install(image, frames[0].address, [(STACK, stack.tobytes()), (ALTERNATE, handler.tobytes())])
    host.set_registers(pt_regs(Registers(CALL, ALTERNATE, 0)))
    found = host.stack()
    assert found.pcs == (CALL, SIGNAL, CODE, CALL, END)
    assert found.exact == (True, False, True, False, False)
    assert found.native_status == STATUS.BP_OK


def test_any_other_frame_makes_another_key(scene: Scene) -> None:
    keys = {scene.key()}
    assert scene.key() in keys
    native, kernel = scene.native, scene.kernel
    for n in range(len(native)):
        scene.native = (*native[:n], native[n] + 4, *native[n + 1 :])
        keys.add(scene.key())
    scene.native = native
    for n in range(len(kernel)):
        scene.kernel = (*kernel[:n], kernel[n] + 4, *kernel[n + 1 :])
        keys.add(scene.key())
    scene.kernel = (*kernel, KERNEL[9])
    keys.add(scene.key())
    scene.kernel = kernel
    for n in range(1, 9):  # 5 is what it was
        scene.python = n
        keys.add(scene.key())
    scene.python = 5
    scene.native = (*native[:-1], CODE + 0x2000)  # in no mapping
    keys.add(scene.key())
    assert len(keys) == 1 + len(native) + len(kernel) + 1 + 7 + 1 and 0 not in keys


def test_any_other_python_frame_makes_another_key(host: Host, scene: Scene) -> None:
    frames = chain(40, CHUNK + 24, CHUNK + 0x4000)
    keys = set()
    for n in range(len(frames)):
        for place in (32, 56, 68):  # code, instruction, mark
            image = PythonImage()
            image.link(frames)
            at = frames[n].address + place - CHUNK
            image.regions[CHUNK][at] ^= 8
            scene.install(image, frames[0].address, [])
            keys.add(int(host.sample()[0]["stack"]))
    assert len(keys) == 3 * len(frames)


def test_a_stack_is_sent_once_in_a_while(host: Host, scene: Scene) -> None:
    scene.play()
    event, first = host.sample()
    assert first is not None
    again, nothing = host.sample(is_later=False)
    assert nothing is None and again["stack"] == event["stack"] and again["time_ns"] > event["time_ns"]
    later, sent = host.sample()
    assert sent is not None and later["stack"] == event["stack"]
    assert (sent.python["identity"] != 0).all()
    host.state.cpu = 0  # each CPU knows only what it sent itself
    _, other = host.sample(is_later=False)
    assert other is not None and other.header["key"] == event["stack"]


def test_what_is_lost_is_counted(host: Host, scene: Scene) -> None:
    scene.play()
    host.sample()
    lost = host.counter("BP_LOST_STACK_RING_FULL")
    host.state.stacks.is_full = 1
    event, stack = host.sample()
    assert stack is None and event["tid"] == TID and host.counter("BP_LOST_STACK_RING_FULL") == lost + 1
    host.state.stacks.is_full = 0
    event, stack = host.sample(is_later=False)
    assert stack is not None and stack.header["key"] == event["stack"]  # it was not taken for one that was sent
    lost = host.counter("BP_LOST_EVENT_RING_FULL")
    host.state.events.is_full = 1
    host.sample()
    assert host.counter("BP_LOST_EVENT_RING_FULL") == lost + 1


def test_a_process_leaves_room_for_others(host: Host, scene: Scene) -> None:
    """Of the second half of a ring it has what it leaves free, until the reader has come."""
    scene.play()
    size = CONSTANTS["BP_STACK_RING_BYTES"]
    ring = host.state.stacks

    def sent() -> bool:
        return host.sample()[1] is not None

    ring.waiting = size // 2 - 1
    assert all(sent() for _ in range(3)), "in the first half nothing is counted"
    _, stack = host.sample()
    assert stack is not None
    words = len(stack.native) + len(stack.kernel)
    bytes_each = stack.header.itemsize + stack.python.itemsize * len(stack.python) + 8 * words
    ring.waiting = size - 3 * bytes_each
    lost = host.counter("BP_LOST_STACK_RING_FULL")
    assert [sent() for _ in range(4)] == [True, True, True, False]
    assert host.counter("BP_LOST_STACK_RING_FULL") == lost + 1
    ring.since += bytes_each  # the reader was there
    assert sent()
    ring.waiting = ring.since = 0


@pytest.mark.parametrize("name", ["events", "stacks"])
def test_a_ring_that_fills_wakes_its_reader(host: Host, scene: Scene, name: str) -> None:
    """Not before, and not by each record after that: where the reader comes late it would be woken for nothing."""
    scene.play()
    quarter = CONSTANTS["BP_STACK_RING_BYTES"] // 4  # which the host says of all
    ring = getattr(host.state, name)
    told = []
    for ring.waiting in (0, quarter - 1, quarter, quarter + (1 << 16) - 1, quarter + (1 << 16), 3 * quarter):
        host.sample()
        told.append(ring.wakeup)
    ring.waiting = 0
    assert told == [NO_WAKEUP, NO_WAKEUP, FORCE_WAKEUP, FORCE_WAKEUP, NO_WAKEUP, NO_WAKEUP]


def test_an_unknown_mapping_is_asked_for_once(host: Host, scene: Scene) -> None:
    scene.native = (CALL, CODE + 0x5000)
    scene.play()
    host.sample()
    assert [int(event["kind"]) for event in host.events] == [EVENT_ASK, 1]
    host.sample()
    assert [int(event["kind"]) for event in host.events] == [1]


@pytest.mark.parametrize("number", range(16))
def test_every_register_of_the_leaf(host: Host, scene: Scene, number: int) -> None:
    """DW_CFA_def_cfa by any register but rsp, which is a rule of its own."""
    if number == 7:
        return
    memory = host.unwind_memory()
    rules = np.array(
        [(0,) * 7, (1, *(0,) * 6), (CfaKind.REGISTER, SAME, 0, number, 8, 0, -8), (CfaKind.END_OF_STACK, *(0,) * 6)],
        RULE,
    )
    rows = np.array([0, 2, 0x800 << 20 | 3], np.uint32)
    memory.set_file(1, FileRows(0, np.array([1, 3], np.uint32), rows), rules)
    index = memory.add_mappings(mapping_array([(CODE, CODE + 0x1000, CODE, 1)]))
    host.set_process(PROCESS["BP_PROCESS_UNWIND"], index, 1)
    others = {n: 0x1111 * n for n in range(16) if n not in (6, 7)} | {number: STACK + 0x40}
    host.set_registers(pt_regs(Registers(CALL, STACK, others.get(6, 0), others)))
    words = np.zeros(16, "<u8")
    words[8] = END
    host.set_user_memory([(STACK, words.tobytes())])
    stack = host.stack()
    assert stack.pcs == (CALL, END) and stack.native_status == STATUS.BP_OK
    words[8] = CALL  # and in its caller the register is not known
    host.set_user_memory([(STACK, words.tobytes())])
    stack = host.stack()
    assert stack.pcs == (CALL, CALL) and stack.native_status == STATUS.BP_NATIVE_UNSUPPORTED
