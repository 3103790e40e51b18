"""Chains of Python frames in all the places where frames are."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from bpfprof.unwind.interpret import Registers
from tests.ebpf_host.host import CONFIG, STATUS, Host, pt_regs
from tests.ebpf_host.python_image import (
    CFRAME,
    CHUNK,
    CHUNK_BYTES,
    FRAME_OBJECT,
    FRAME_OBJECT_BYTES,
    LAYOUTS,
    STATE,
    THREAD_POINTER,
    TOO_DEEP_FRAMES,
    TSS_OFFSET,
    Frame,
    PythonImage,
    ThreadState,
    chain,
    code_address,
    frames_of,
)

HEAP, OLDER = 0x7F55_0000_0000, CHUNK + 0xA000
TSTATE_BYTES = 320  # of a thread state, in one read: ebpf/python_frames.bpf.h


@pytest.fixture(autouse=True)
def quiet(host: Host) -> Iterator[None]:
    """Python frames only; registers that point nowhere near them."""
    host.set_config(CONFIG["BP_CONFIG_ON_CPU_STACKS"])
    host.set_registers(pt_regs(Registers(0x1000_0000, 0x2000_0000, 0x3000_0000)))
    host.state.kernel_frame_count = 0
    yield


def check(host: Host, image: PythonImage, frames: list[Frame], status: int = STATUS.BP_OK, last: int = 0) -> None:
    """The programs find these frames, and this status."""
    image.link(frames, last)
    image.install(host, frames[0].address)
    stack = host.stack()
    assert frames_of(stack) == [frame.record for frame in frames]
    assert stack.header["status"] == status
    assert stack.header["native_status"] == STATUS.BP_STACK_NOT_TAKEN


@pytest.mark.parametrize("version", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2, 41, 42, 43, 95, 96, 97, 160])
def test_frames_of_one_chunk(host: Host, version: str, count: int) -> None:
    check(host, PythonImage(version), chain(count, CHUNK + 24, CHUNK + CHUNK_BYTES))


@pytest.mark.parametrize("version", LAYOUTS)
def test_frames_cross_chunks(host: Host, version: str) -> None:
    older = chain(100, OLDER + 24, OLDER + CHUNK_BYTES)
    newer = chain(60, CHUNK + 24, CHUNK + CHUNK_BYTES)
    image = PythonImage(version, regions={CHUNK: bytearray(CHUNK_BYTES), OLDER: bytearray(CHUNK_BYTES)})
    check(host, image, newer + older)


def test_a_chunk_that_begins_behind_a_hole(host: Host) -> None:
    """The block that ends with the frame would begin in front of the older chunk, where nothing is mapped."""
    image = PythonImage(regions={CHUNK: bytearray(CHUNK_BYTES), OLDER: bytearray(CHUNK_BYTES)})
    check(host, image, chain(3, CHUNK + 24, CHUNK + CHUNK_BYTES) + chain(5, OLDER + 24, OLDER + CHUNK_BYTES))


@pytest.mark.parametrize("version", LAYOUTS)
def test_frames_above_each_other_in_the_heap(host: Host, version: str) -> None:
    """Coroutines that wait for each other: a frame is part of its generator, and those are neighbours in the heap."""
    image = PythonImage(version)
    image.regions[HEAP] = bytearray(0x4000)
    inner = [Frame(HEAP + 72 + 0x180 * n, n, 0x6000 + n, n % 3) for n in range(20)]
    check(host, image, inner + chain(5, CHUNK + 24, CHUNK + CHUNK_BYTES))
    check(host, image, chain(2, CHUNK + 24, CHUNK + CHUNK_BYTES) + inner)
    check(host, image, inner[::-1] + chain(5, CHUNK + 24, CHUNK + CHUNK_BYTES))


@pytest.mark.parametrize("version", LAYOUTS)
def test_frames_anywhere(host: Host, version: str) -> None:
    chance = random.Random(11)
    for _ in range(60):
        image = PythonImage(version)
        image.regions |= {HEAP: bytearray(0x8000), CFRAME + 0x100: bytearray(0x1000), OLDER: bytearray(CHUNK_BYTES)}
        for content in image.regions.values():  # what is no frame is rubbish
            content[:] = chance.randbytes(len(content))
        places = [start + 80 * n for start, size in image.regions.items() for n in range(len(size) // 80)]
        addresses = chance.sample(places, chance.randrange(1, 400))
        if chance.random() < 0.5:
            addresses.sort(reverse=True)
        frames = [Frame(at, n % 200, chance.getrandbits(48), chance.randrange(4)) for n, at in enumerate(addresses)]
        check(host, image, frames)


@pytest.mark.parametrize("at", [0, 1, 5, 96, 159])
@pytest.mark.parametrize("last", [HEAP, 8, (1 << 64) - 8, 1 << 63, 0xDEAD_BEEF_0000_0000])
def test_a_fault_in_the_middle(host: Host, at: int, last: int) -> None:
    frames = chain(160, CHUNK + 24, CHUNK + CHUNK_BYTES)[: at + 1]
    check(host, PythonImage(), frames, STATUS.BP_PYTHON_FRAME_FAULT, last)


def test_no_frame_can_be_read(host: Host) -> None:
    PythonImage().install(host, HEAP)
    event, stack = host.sample()
    assert stack is None and event["status"] == STATUS.BP_PYTHON_FRAME_FAULT and event["stack"] == 0


@pytest.mark.parametrize(
    ("missing", "status"), [(STATE, "BP_PYTHON_STATE_FAULT"), (CFRAME, "BP_PYTHON_STATE_FAULT"), (0, "BP_NO_PYTHON")]
)
def test_no_way_to_the_first_frame(host: Host, missing: int, status: str) -> None:
    image = PythonImage()
    image.link(frames := chain(3, CHUNK + 24, CHUNK + CHUNK_BYTES))
    image.install(host, frames[0].address if missing else 0)
    if missing:
        host.hide(missing)
    event, stack = host.sample()
    assert stack is None and event["status"] == STATUS[status]


CALLERS_CFRAME, OLD_CFRAME = CFRAME + 0x400, CFRAME + 0x800


@pytest.mark.parametrize(
    ("held", "current", "previous", "found"),
    [
        ("previous", HEAP, CALLERS_CFRAME, "callers"),  # nothing was stored, and what is there is of the same place
        ("previous", HEAP, OLD_CFRAME, ""),
        ("previous", HEAP, 8, ""),
        ("frame", HEAP, OLD_CFRAME, ""),
        ("frame", CHUNK + 0x2000, CALLERS_CFRAME, "callers"),  # both were stored
        ("", HEAP, CALLERS_CFRAME, ""),
    ],
)
def test_a_frame_that_is_about_to_be_entered(host: Host, held: str, current: int, previous: int, found: str) -> None:
    """Of its cframe the fields may be what the stack held: a frame of rubbish that is its own caller, an old cframe."""
    eval_start, new_frame = 0x1000_0000, CHUNK + 0x2000
    image = PythonImage(regions={CHUNK: bytearray(CHUNK_BYTES), HEAP: bytearray(0x1000)})
    frames = chain(35, CHUNK + 24, CHUNK + 0x1000 + 24)
    image.link(frames)
    image.put(HEAP + LAYOUTS["3.11"]["frame_previous"], HEAP)
    cframes = [
        (at, bytes(8) + of.to_bytes(8, "little"))
        for at, of in ((CALLERS_CFRAME, frames[0].address), (OLD_CFRAME, HEAP))
    ]
    thread = ThreadState(STATE, current, thread_pointer=THREAD_POINTER, previous_cframe=previous)
    value = {"previous": CALLERS_CFRAME, "frame": new_frame, "": 0x1234}[held]
    for register in (0, 2, 3, 12):
        host.set_registers(pt_regs(Registers(eval_start + 0x40, CFRAME - 0x80, 0x3000_0000, {register: value})))
        image.install_threads(host, [thread], cframes, eval_start=eval_start)
        event, stack = host.sample()
        if found:
            assert stack is not None and frames_of(stack) == [frame.record for frame in frames]
        else:
            assert stack is None and event["status"] == STATUS.BP_PYTHON_STATE_FAULT


@pytest.mark.parametrize(("count", "status"), [(1023, "BP_OK"), (1024, "BP_OK"), (1025, "BP_PYTHON_TOO_DEEP")])
def test_about_1024_frames(host: Host, count: int, status: str) -> None:
    size = 0x20000
    image = PythonImage(regions={CHUNK: bytearray(size)})
    frames = chain(count, CHUNK + 24, CHUNK + size)
    image.link(frames)
    image.install(host, frames[0].address)
    stack = host.stack()
    assert frames_of(stack) == [frame.record for frame in frames[:TOO_DEEP_FRAMES]]
    assert stack.header["status"] == STATUS[status]


@pytest.mark.parametrize("address", [CHUNK + 24, CHUNK + 0x1800, HEAP + 48])
@pytest.mark.parametrize("length", [1, 2, 17, 96, 97])
def test_a_chain_that_goes_round(host: Host, address: int, length: int) -> None:
    """It ends soon after it has come back."""
    image = PythonImage()
    image.regions[HEAP] = bytearray(0x4000)
    frames = [Frame(address + 80 * n, n, 0x5000 + n) for n in range(length)]
    image.link(frames, frames[0].address)
    image.install(host, address)
    stack = host.stack()
    assert stack.header["status"] == STATUS.BP_PYTHON_FRAME_FAULT
    found = frames_of(stack)
    assert length <= len(found) <= 3 * length
    assert found == [frames[n % length].record for n in range(len(found))]


@pytest.mark.parametrize("lasti_bytes", [1, 2])
@pytest.mark.parametrize("count", [1, 16, 17, 300, 1024, 1025])
def test_frames_that_are_objects(host: Host, monkeypatch: pytest.MonkeyPatch, lasti_bytes: int, count: int) -> None:
    """CPython 3.6 to 3.10: anywhere in the heap, each with an offset in its code, -1 before it starts."""
    monkeypatch.setitem(LAYOUTS, "old", {**FRAME_OBJECT, "lasti_bytes": lasti_bytes})
    chance = random.Random(count)
    image = PythonImage("old", regions={HEAP: bytearray(chance.randbytes(FRAME_OBJECT_BYTES * 2000))})
    places = chance.sample(range(2000), count)
    offsets = [chance.choice((-1, 0, 2, 300, 1 << 20)) for _ in places]
    frames = [
        Frame(HEAP + FRAME_OBJECT_BYTES * place, n % 200, offset & 0xFFFF_FFFF)
        for n, (place, offset) in enumerate(zip(places, offsets))
    ]
    image.link(frames)
    image.install(host, frames[0].address)
    stack = host.stack()
    expected = [
        (code_address(frame.code), code_address(frame.code) + lasti_bytes * offset)
        for frame, offset in zip(frames, offsets)
    ]
    assert frames_of(stack) == expected[:TOO_DEEP_FRAMES]
    assert stack.header["status"] == (STATUS.BP_OK if count <= TOO_DEEP_FRAMES else STATUS.BP_PYTHON_TOO_DEEP)
    host.hide(HEAP)
    event, _ = host.sample()
    assert event["status"] == STATUS.BP_PYTHON_FRAME_FAULT


def test_few_reads_for_many_frames(host: Host) -> None:
    """Frames of one chunk are read 4 KiB at a time."""
    image = PythonImage()
    image.link(frames := chain(160, CHUNK + 24, CHUNK + CHUNK_BYTES))
    image.install(host, frames[0].address)
    host.sample()  # afterwards all but the innermost code objects are known, and so is the stack
    host.state.user.reads = 0
    _, stack = host.sample(is_later=False)
    assert stack is None and host.state.user.reads < 4 + 5 + 2 * 4


def test_identities_tell_code_objects_apart(host: Host) -> None:
    image = PythonImage()
    image.link(frames := chain(8, CHUNK + 24, CHUNK + CHUNK_BYTES))
    image.install(host, frames[0].address)
    first = host.stack()
    identities = [int(identity) for identity in first.python["identity"]]
    assert all(identities) and len(set(identities)) == len(frames)
    _, again = host.sample(is_later=False)
    assert again is None  # the same stack a moment later is not sent
    image.codes[72 + 8] ^= 1  # of the innermost one
    image.install(host, frames[0].address)
    _, other = host.sample(is_later=False)
    assert other is not None and other.header["key"] != first.header["key"]
    assert (other.python["identity"][:4] != 0).all()  # always sent
    assert (other.python["identity"][4:] == 0).all()  # sent a moment ago
    assert np.flatnonzero(other.python["identity"][:4] != first.python["identity"][:4]).tolist() == [0]


@pytest.mark.parametrize("member", ["tstate_frame", "tstate_chunk"])
def test_a_thread_state_that_is_read_in_one_piece(host: Host, monkeypatch: pytest.MonkeyPatch, member: str) -> None:
    """What lies beyond the part of it that is read cannot be had."""
    for place, is_read in ((TSTATE_BYTES - 8, True), (TSTATE_BYTES, False), (TSTATE_BYTES + 8, False)):
        monkeypatch.setitem(LAYOUTS["3.13"], member, place)
        image = PythonImage("3.13")
        image.link(frames := chain(3, CHUNK + 24, CHUNK + CHUNK_BYTES))
        image.install(host, frames[0].address)
        event, stack = host.sample()
        assert bool(stack) == is_read
        assert event["status"] == (STATUS.BP_OK if is_read else STATUS.BP_PYTHON_STATE_FAULT)


@pytest.mark.parametrize("missing", [0, 1])
def test_how_much_of_a_thread_state_must_be_readable(host: Host, missing: int) -> None:
    image = PythonImage("3.13")
    image.link(frames := chain(3, CHUNK + 24, CHUNK + CHUNK_BYTES))
    image.install(host, frames[0].address)
    _, segments = host._user
    host.set_user_memory([(at, data[: TSTATE_BYTES - missing] if at == STATE else data) for at, data in segments])
    event, _ = host.sample()
    assert event["status"] == (STATUS.BP_PYTHON_STATE_FAULT if missing else STATUS.BP_OK)


@pytest.mark.parametrize(
    ("count", "block", "module", "loads", "status"),
    [
        (3, HEAP, 3, 2, "BP_OK"),
        (2, HEAP, 3, 2, "BP_NO_PYTHON"),
        (3, 0, 3, 2, "BP_NO_PYTHON"),
        (3, (1 << 64) - 1, 3, 2, "BP_NO_PYTHON"),
        (3, OLDER, 3, 2, "BP_PYTHON_STATE_FAULT"),
        (3, STATE, 0, 1, "BP_OK"),
    ],
    ids=["dynamic", "short vector", "no block", "unallocated block", "unreadable block", "second-level key"],
)
def test_ways_to_a_thread_state(host: Host, count: int, block: int, module: int, loads: int, status: str) -> None:
    image, vector = PythonImage(), HEAP + 0x10000
    frames = chain(3, CHUNK + 24, CHUNK + CHUNK_BYTES)
    image.link(frames)
    words = {THREAD_POINTER + TSS_OFFSET: vector, vector - 16: count, vector + 48: block, HEAP + 40: STATE}
    more = [(address, value.to_bytes(8, "little")) for address, value in words.items()]
    way = {"slot_loads": loads, "slot_second": 48, "slot_third": 40, "tls_module": module, "tls_count": -16}
    image.install_threads(host, [ThreadState(STATE, frames[0].address)], more, **way)
    event, stack = host.sample()
    assert (stack.header if stack else event)["status"] == getattr(STATUS, status)
    assert (frames_of(stack) if stack else []) == ([frame.record for frame in frames] if status == "BP_OK" else [])


@pytest.mark.parametrize("version", LAYOUTS)
@pytest.mark.parametrize("is_own", [True, False], ids=["its own", "of another thread"])
def test_an_interpreter_that_another_one_runs(host: Host, version: str, is_own: bool) -> None:
    """Its frames are the inner ones. The slot has the state that runs, and in 3.11 the outer one."""
    image = PythonImage(version, regions={CHUNK: bytearray(CHUNK_BYTES), OLDER: bytearray(CHUNK_BYTES)})
    inner, outer = chain(3, CHUNK + 24, CHUNK + CHUNK_BYTES), chain(40, OLDER + 24, OLDER + CHUNK_BYTES)
    image.link(inner)
    image.link(outer)
    host.set_registers(pt_regs(Registers(0x1000_0000, CFRAME - 0x100, 0)))
    main, other, newest = HEAP, HEAP + 64, HEAP + 128
    slots = (0, THREAD_POINTER) if version == "3.11" else (THREAD_POINTER, 0)
    first = ThreadState(STATE, inner[0].address, 0, other, slots[0], THREAD_POINTER)
    # What another thread runs is on another stack, and has another id.
    place, thread_id = (STATE + 0x800, THREAD_POINTER) if is_own else (STATE - 0x20_0000, 1)
    second = ThreadState(place, outer[0].address, 0, main, slots[1], thread_id, OLDER)
    words = {newest: other, other: main, other + 8: STATE, main: 0, main + 8: place}
    more = [(address, value.to_bytes(8, "little")) for address, value in words.items()]
    image.install_threads(host, [first, second], more, interpreters=newest, main_interpreter=main)
    expected = [*inner, *outer] if is_own else inner
    assert frames_of(host.stack()) == [frame.record for frame in expected]
