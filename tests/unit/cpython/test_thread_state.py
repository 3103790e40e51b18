"""Chains of interpreters, threads and frames in a made-up memory: whole, looping, torn and endless."""

from __future__ import annotations

import os
import struct
import threading

import pytest

from bpfprof import abi
from bpfprof.cpython.detect import Interpreter, _version_text, find_interpreter
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.thread_state import read_thread_states, walk_frames
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import read_maps
from bpfprof.proc.memory import ProcessMemory

LAYOUT = STATIC_LAYOUTS[3, 12]


class FakeMemory(ProcessMemory):
    """Words by address; everything else in one of the `pages` is zero, the rest is unreadable."""

    def __init__(self, words: dict[int, int]) -> None:
        self.pid = Pid(0)
        self._fd = -1
        self.bytes = {a + i: b for a, word in words.items() for i, b in enumerate(struct.pack("<Q", word))}
        self.pages = {address >> 12 for address in self.bytes}

    def read_up_to(self, address: int, size: int) -> bytes:
        out = bytearray()
        for position in range(address, address + size):
            if position >> 12 not in self.pages:
                break
            out.append(self.bytes.get(position, 0))
        return bytes(out)


def _runtime(interpreters: dict[int, int], threads: dict[int, list[int]]) -> FakeMemory:
    """`interpreters`: address -> next; `threads`: interpreter -> thread states in order, a repeated one loops."""
    words = {0x1000 + LAYOUT.runtime_interpreters_head: next(iter(interpreters), 0)}
    for interpreter, following in interpreters.items():
        words[interpreter + LAYOUT.interpreter_next] = following
        chain = threads.get(interpreter, [])
        words[interpreter + LAYOUT.interpreter_threads_head] = chain[0] if chain else 0
        for thread, after in zip(chain, [*chain[1:], 0]):
            words.setdefault(thread + LAYOUT.thread_next, after)
            words[thread + LAYOUT.thread_interpreter] = interpreter
            words[thread + LAYOUT.thread_native_id] = thread >> 12
            words[thread + LAYOUT.thread_pthread_id] = thread + 1
    return FakeMemory(words)


def test_threads_of_several_interpreters() -> None:
    memory = _runtime({0x20000: 0x30000, 0x30000: 0}, {0x20000: [0x40000, 0x41000], 0x30000: [0x50000]})
    states = read_thread_states(memory, LAYOUT, 0x1000)
    assert [(s.address, s.native_thread_id, s.pthread_id) for s in states] == [
        (0x40000, 0x40, 0x40001),
        (0x41000, 0x41, 0x41001),
        (0x50000, 0x50, 0x50001),
    ]


def test_the_place_of_a_thread_id_in_the_c_library() -> None:
    """libthread_db, for which the descriptor is made: {bits, elements, offset}, nptl_db/db_info.c (v2.36)."""
    paths = {mapping.path for mapping in read_maps(Pid(os.getpid())) if "/libc.so" in mapping.path}
    with ElfImage.open(paths.pop()) as image:
        symbol = image.find_symbol("_thread_db_pthread_tid")
        if symbol is None:
            pytest.skip("not glibc 2.34 or newer")
        descriptor = image.read(symbol.address, 12)
    assert descriptor == struct.pack("<3I", 32, 1, abi.CONSTANTS["BP_PTHREAD_TID"])


def test_loops_and_unreadable_links_end() -> None:
    looping = _runtime({0x20000: 0x20000}, {0x20000: [0x40000, 0x41000, 0x40000]})
    assert len(read_thread_states(looping, LAYOUT, 0x1000)) == 2
    torn = _runtime({0x20000: 0x9990000}, {0x20000: [0x40000, 0x41000]})
    torn.pages.discard(0x41)
    assert [state.address for state in read_thread_states(torn, LAYOUT, 0x1000)] == [0x40000]
    assert read_thread_states(FakeMemory({}), LAYOUT, 0x1000) == []


def test_a_thread_state_of_another_interpreter_ends_the_list() -> None:
    memory = _runtime({0x20000: 0}, {0x20000: [0x40000, 0x41000]})
    reused = 0x41000 + LAYOUT.thread_interpreter
    memory.bytes.update({reused + i: 0xEE for i in range(8)})
    assert [state.address for state in read_thread_states(memory, LAYOUT, 0x1000)] == [0x40000]


def _frames(count: int, last_previous: int = 0) -> FakeMemory:
    """A thread state at 0x40000, a cframe at 0x41000, frames from 0x100000 on, 0x80 apart."""
    words = {0x40000 + LAYOUT.thread_frame: 0x41000, 0x41000 + LAYOUT.cframe_frame: 0x100000 if count else 0}
    for index in range(count):
        frame = 0x100000 + 0x80 * index
        words[frame + LAYOUT.frame_code] = 0x1000 + 8 * index + index % 2  # with a tag
        words[frame + LAYOUT.frame_instruction] = 0x2000 + index
        words[frame + LAYOUT.frame_previous] = frame + 0x80 if index + 1 < count else last_previous
        words[frame + 64] = (3 if index == count - 1 else 0) << 8 * (LAYOUT.mark_offset - 64)
    return FakeMemory(words)


def test_a_walk_to_the_root() -> None:
    walk = walk_frames(_frames(3), LAYOUT, 0x40000)
    assert walk.complete
    assert walk.frames == [(0x1000, 0x2000, 0), (0x1008, 0x2001, 0), (0x1010, 0x2002, 3)]


def test_walks_that_do_not_reach_the_root() -> None:
    assert walk_frames(_frames(0), LAYOUT, 0x40000).complete
    for memory, count in [(_frames(3, 0x100000), 3), (_frames(3, 0x100080), 3), (_frames(3, 0x9990000), 3)]:
        walk = walk_frames(memory, LAYOUT, 0x40000)
        assert not walk.complete and len(walk.frames) == count
    walk = walk_frames(_frames(30), LAYOUT, 0x40000, limit=10)
    assert not walk.complete and len(walk.frames) == 10
    assert walk_frames(_frames(10), LAYOUT, 0x40000, limit=10).complete
    gone = walk_frames(FakeMemory({}), LAYOUT, 0x40000)
    assert not gone.complete and gone.frames == []


def test_version_texts() -> None:
    texts = [_version_text(version) for version in (0x030C01F0, 0x030D00C2, 0x030B0AF0, 0x030E00A1, 0x030E00B3)]
    assert texts == ["3.12.1", "3.13.0rc2", "3.11.10", "3.14.0a1", "3.14.0b3"]


def test_this_process() -> None:
    interpreter = find_interpreter(Pid(os.getpid()))
    if isinstance(interpreter, Interpreter):
        with ProcessMemory(Pid(os.getpid())) as memory:
            states = read_thread_states(memory, interpreter.layout, interpreter.runtime_address)
        assert threading.get_native_id() in {state.native_thread_id for state in states}
        assert threading.get_ident() in {state.pthread_id for state in states}
