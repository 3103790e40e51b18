"""A CPython that is one, and whose structures then point anywhere: hostile_interpreter.py LIBRARY KIND.

Two of its threads never come back from the library of hostile_frames.c: their frames are made up.

loop      a frame that was called by itself
circle    1,000 frames that were called by each other
long      10,000 frames, one below the other
codes     frames of 10,000 code objects whose names and line tables are said to be huge
kernel    frames and code objects in the kernel's half, in no half, at the end of the address space
holes     frames and code objects at the edge of memory that is not readable, or beyond the end of its file
changing  all of that, and 100 words of it become others every millisecond
threads   thread states in a circle, with fake ones among them
offsets   (3.13 and later) `_Py_DebugOffsets` with other offsets that may be true
"""

import ctypes
import mmap
import os
import random
import struct
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from bpfprof.cpython.layout import NONE
from bpfprof.cpython.layouts_dynamic import DEBUG_OFFSETS_BYTES, layout_from_debug_offsets
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS

FRAME, CODE, PAGE = 128, 256, 4096
BYTES = 10_000 * (FRAME + CODE)
KERNEL = [0xFFFFFFFF81000000, 0xFFFF888000000000, 0x0000800000000000, (1 << 64) - 8, 1 << 62, 1, 7]
SIZES = [0, 1, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1, (1 << 64) - 1]
RANDOM = random.Random(5)
PAGES = mmap.mmap(-1, BYTES + 2 * PAGE)
BLOCK = ctypes.addressof(ctypes.c_char.from_buffer(PAGES))
ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p


def find_layout():
    version = sys.version_info[:2]
    if version < (3, 13):
        return STATIC_LAYOUTS[version]
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    return layout_from_debug_offsets(ctypes.string_at(runtime, DEBUG_OFFSETS_BYTES), version, False)


LAYOUT = find_layout()


def word_at(address):
    return ctypes.c_uint64.from_address(address)


def put(address, value):
    struct.pack_into("<Q", PAGES, address - BLOCK, value & ((1 << 64) - 1))


def frame_at(number):
    return BLOCK + number * FRAME


def code_at(number):
    return BLOCK + 10_000 * FRAME + number * CODE


def make(count, previous, code):
    """Frames; previous, code: for each its caller and code object."""
    for number in range(count):
        put(frame_at(number) + LAYOUT.frame_previous, previous(number))
        put(frame_at(number) + LAYOUT.frame_code, code(number))
        put(frame_at(number) + LAYOUT.frame_instruction, code(number) + 200)


def make_codes(count):
    kind = word_at(id(make.__code__) + 8).value  # ob_type
    for number in range(count):
        values = [*SIZES, code_at(RANDOM.randrange(count)), id("text"), id(b"")]
        for at, value in enumerate(RANDOM.choices(values, k=CODE // 8)):
            put(code_at(number) + 8 * at, value)
        put(code_at(number), 1)
        put(code_at(number) + 8, kind)


def edges():
    """The last words before memory that is not there, and a page beyond the end of its file."""
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE)
        beyond = mmap.mmap(file.fileno(), PAGE)
        file.truncate(0)
    EDGES.append(beyond)
    unmapped = mmap.mmap(-1, 2 * PAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(unmapped))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(at + PAGE), PAGE, 0)
    EDGES.append(unmapped)
    return [at + PAGE - 8, at + PAGE - 64, at + PAGE, at, ctypes.addressof(ctypes.c_char.from_buffer(beyond))]


EDGES = []
real = make.__code__


def prepare(kind):
    """(where the innermost frame may be, how many words change at a time)"""
    if kind == "loop":
        make(1, lambda number: frame_at(0), lambda number: id(real))
    elif kind == "circle":
        make(1000, lambda number: frame_at((number + 1) % 1000), lambda number: id(real))
    elif kind == "long":
        make(10_000, lambda number: frame_at(number + 1), lambda number: id(real))
    elif kind == "codes":
        make_codes(10_000)
        make(10_000, lambda number: frame_at(number + 1), code_at)
        return [frame_at(number) for number in range(0, 10_000, 500)], 1
    elif kind in ("kernel", "holes"):
        wild = KERNEL if kind == "kernel" else edges()
        below = [[frame_at((number + 1) % 100), *wild] for number in range(100)]
        make(100, lambda number: RANDOM.choice(below[number]), lambda number: RANDOM.choice(wild))
        return [frame_at(number) for number in range(100)] + wild, 1
    elif kind == "changing":
        make_codes(1000)
        make(1000, lambda number: frame_at(RANDOM.randrange(1000)), lambda number: code_at(number))
        state = ctypes.pythonapi.PyThreadState_Get()
        own = [at(RANDOM.randrange(1000)) for at in (frame_at, code_at) for _ in range(100)]
        return [*own, *KERNEL, *SIZES, *edges(), state, id(real), id("text")], 100
    return [frame_at(0)], 0


def run(kind, library, choices, changes):
    state = ctypes.pythonapi.PyThreadState_Get()
    slot = state + LAYOUT.thread_frame
    if LAYOUT.cframe_frame != NONE:
        slot = word_at(slot).value + LAYOUT.cframe_frame
    if kind == "threads":
        fakes = [frame_at(number * 8) for number in range(100)]
        at = LAYOUT.thread_interpreter
        for fake, after in zip(fakes, [*fakes[1:], state]):
            ctypes.memmove(fake, state, 8 * FRAME)
            put(fake + LAYOUT.thread_next, after)
        assert word_at(fakes[0] + at).value == word_at(state + at).value
        word_at(state + LAYOUT.thread_next).value = fakes[0]
        slot, choices = BLOCK + BYTES, [0]
    started.release()
    words = (ctypes.c_uint64 * len(choices))(*choices)
    library.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint64, ctypes.c_void_p] + [ctypes.c_uint64] * 3
    changed = 16_000 if kind == "changing" else BYTES // 8  # words
    library.run(slot, BLOCK, changed, words, len(choices), changes, 88172645463325252)


def change_offsets():
    at = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    head = bytearray(ctypes.string_at(at, DEBUG_OFFSETS_BYTES))
    for _ in range(1000):
        changed = bytearray(head)
        for _ in range(3):
            struct.pack_into("<Q", changed, 24 + 8 * RANDOM.randrange((len(head) - 24) // 8), 8 * RANDOM.randrange(60))
        if layout_from_debug_offsets(bytes(changed), sys.version_info[:2], False) not in (None, LAYOUT):
            ctypes.memmove(at, bytes(changed), len(changed))
            return


if __name__ == "__main__":
    started = threading.Semaphore(0)
    kind = sys.argv[2]
    library, (choices, changes) = ctypes.CDLL(sys.argv[1]), prepare(kind)
    for _ in range(2):
        threading.Thread(target=run, args=(kind, library, choices, changes), daemon=True).start()
        started.acquire()
    if kind == "offsets":
        change_offsets()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
