"""Copies of code objects: what they hold, and when they are sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from bpfprof.abi.dtypes import CODE_COPY_DTYPE
from bpfprof.unwind.interpret import Registers
from tests.ebpf_host.host import CONFIG, CONSTANTS, STATUS, TGID, Host, Segment, Stack, pt_regs
from tests.ebpf_host.python_image import (
    CHUNK,
    CHUNK_BYTES,
    CODE_BYTES,
    CODE_OBJECTS,
    IDENTITY,
    LAYOUTS,
    Frame,
    PythonImage,
    chain,
    code_address,
)

TEXTS, TABLES = 0x7F66_0000_0000, 0x7F67_0000_0000
TEXT_BYTES, TABLE_BYTES = CONSTANTS["BP_COPIED_TEXT_BYTES"], CONSTANTS["BP_COPIED_TABLE_BYTES"]
WORDS = CONSTANTS["BP_IDENTITY_WORDS"]
STEP = 0x8000  # from one code object's texts to the next one's
PER_STACK = CONSTANTS["BP_COPIES_PER_STACK"]
RESEND_NS = CONSTANTS["BP_RESEND_NS"]


@pytest.fixture(autouse=True)
def quiet(host: Host) -> Iterator[None]:
    host.set_config(CONFIG["BP_CONFIG_ON_CPU_STACKS"])
    host.set_registers(pt_regs(Registers(0x1000_0000, 0x2000_0000, 0x3000_0000)))
    host.state.kernel_frame_count = 0
    host.state.now_ns += CONSTANTS["BP_REPLACED_NS"]
    yield


class Codes:
    """Code objects 0 to 199 with three texts and a line table each, all others than those of the test before."""

    generation = 0

    def __init__(self, table_bytes: int = 100) -> None:
        Codes.generation += 1
        self.table_bytes = table_bytes
        self.image = PythonImage("3.13")
        for number in range(200):
            words = np.zeros(WORDS, np.uint64)
            words[0] = Codes.generation
            words[-4:] = [*self.texts(number), TABLES + STEP * number]
            self.put(number, words.tobytes())

    def put(self, number: int, words: bytes) -> None:
        """Writes the identity of a code object."""
        at = CODE_BYTES * number + IDENTITY
        self.image.codes[at : at + len(words)] = words

    @staticmethod
    def texts(number: int) -> list[int]:
        """Where its texts are."""
        return [TEXTS + STEP * number + TEXT_BYTES * place for place in range(3)]

    def memory(self, numbers: list[int], text_bytes: int = 3 * TEXT_BYTES) -> list[Segment]:
        """Texts and tables of these."""
        table = bytes(16) + self.table_bytes.to_bytes(8, "little") + bytes(8) + b"t" * min(self.table_bytes, 0x7000)
        texts = [(TEXTS + STEP * number, bytes([65 + number % 26]) * text_bytes) for number in numbers]
        return texts + [(TABLES + STEP * number, table) for number in numbers]

    def run(self, host: Host, frames: list[Frame], more: list[Segment], later_ns: int = RESEND_NS) -> Stack | None:
        """The stack of a sample, if it was sent."""
        self.image.link(frames)
        self.image.install(host, frames[0].address, more)
        return self.again(host, later_ns)

    def again(self, host: Host, later_ns: int = RESEND_NS) -> Stack | None:
        """The same later: of the process only its code objects may have changed."""
        host.set_user_memory([(CODE_OBJECTS, bytes(self.image.codes)), *host._user[1][1:]])
        host.state.now_ns += later_ns
        return host.sample(is_later=False)[1]


def copies(host: Host) -> list[np.void]:
    """Copies that the last program sent; their tables cut to what was sent."""
    found = []
    for record in host.copies():
        copy = np.frombuffer(record.ljust(CODE_COPY_DTYPE.itemsize, b"\0"), CODE_COPY_DTYPE)[0]
        assert len(record) == CODE_COPY_DTYPE.itemsize - TABLE_BYTES + copy["table_bytes"]
        found.append(copy)
    return found


def frames_of(count: int, low: int = CHUNK + 24) -> list[Frame]:
    return chain(count, low, CHUNK + CHUNK_BYTES)


def test_each_new_code_object_is_copied_once(host: Host) -> None:
    codes = Codes()
    stack = codes.run(host, frames_of(8), codes.memory(list(range(8))))
    assert stack is not None
    found = copies(host)
    assert [int(copy["code"]) for copy in found] == [code_address(number) for number in range(8)]
    assert [int(copy["identity"]) for copy in found] == stack.python["identity"].tolist()
    for number, copy in enumerate(found):
        at = CODE_BYTES * number
        end = IDENTITY + 8 * WORDS
        assert bytes(copy["object"][:end]) == bytes(codes.image.codes[at : at + end])
        assert copy["addresses"].tolist() == [*codes.texts(number), TABLES + STEP * number]
        assert set(bytes(copy["texts"])) == {65 + number}
        assert copy["tgid"] == TGID and copy["table_bytes"] == 32 + 100
        assert bytes(copy["table"][32 : copy["table_bytes"]]) == b"t" * 100
    assert codes.again(host) is not None and copies(host) == [], "the stack is sent again, its code objects are not"
    host.state.cpu = 0
    assert codes.again(host) is not None and copies(host) == [], "all CPUs know what one has sent"


def test_code_that_takes_the_place_of_other_code_is_copied(host: Host) -> None:
    """From then on all frames are looked at: under the same key they would be those of the code before."""
    codes = Codes()
    codes.run(host, frames_of(8), codes.memory(list(range(8))))
    codes.again(host, CONSTANTS["BP_REPLACED_NS"])
    assert codes.again(host, 1000) is None
    codes.put(6, b"other")
    assert codes.again(host, 1000) is None, "not seen: only the innermost ones are looked at each time"
    codes.put(0, b"other")
    assert codes.again(host, 1000) is not None
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(0)]
    stack = codes.again(host, 1000)
    assert stack is not None and (stack.python["identity"] != 0).all(), "all are part of its key"
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(6)]
    assert codes.again(host, 1000) is None
    codes.put(7, b"other")
    assert codes.again(host, 1000) is not None
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(7)]


def test_a_text_in_front_of_a_hole(host: Host) -> None:
    """What is not mapped behind it is not copied; a text that cannot be read at all has no address."""
    codes = Codes()
    page = TEXTS + 4096
    words = [page - 600, page - 100, TEXTS - 100]
    codes.put(0, np.array([7] * (WORDS - 4) + [*words, TABLES], np.uint64).tobytes())
    codes.run(host, frames_of(1), [*codes.memory([]), (TEXTS, b"x" * 4096), codes.memory([0])[1]])
    (copy,) = copies(host)
    assert copy["addresses"].tolist() == [*words[:2], 0, TABLES]
    texts = [bytes(copy["texts"][TEXT_BYTES * n : TEXT_BYTES * (n + 1)]).rstrip(b"\0") for n in range(2)]
    assert texts == [b"x" * TEXT_BYTES, b"x" * 100]


@pytest.mark.parametrize(
    ("table_bytes", "is_copied"),
    [(0, True), (TABLE_BYTES - 32, True), (TABLE_BYTES - 31, False), (1 << 63, False), ((1 << 64) - 1, False)],
)
def test_tables_of_all_sizes(host: Host, table_bytes: int, is_copied: bool) -> None:
    codes = Codes(table_bytes)
    codes.run(host, frames_of(1), codes.memory([0]))
    (copy,) = copies(host)
    assert int(copy["table_bytes"]) == (32 + table_bytes if is_copied else 0)
    assert int(copy["addresses"][3]) == (TABLES if is_copied else 0)


def test_frames_without_code_are_left_out(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYOUTS["3.13"], "shim_mark", 1)
    codes = Codes()
    stack = codes.run(host, frames_of(8), codes.memory(list(range(8))))
    assert stack is not None and np.flatnonzero(stack.python["identity"] == 0).tolist() == [6], "which has the mark 1"
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(n) for n in range(8) if n != 6]


def test_a_process_has_so_many_copies_a_second(host: Host) -> None:
    saved = CONSTANTS["BP_COPIES_SAVED_NS"] // CONSTANTS["BP_COPY_INTERVAL_NS"]
    lost = host.counter("BP_CODE_NOT_COPIED")
    count, turns = 0, saved // PER_STACK + 5
    for turn in range(turns):
        codes = Codes()
        if turn == 0:
            codes.run(host, frames_of(PER_STACK), codes.memory(list(range(PER_STACK))))
        else:
            codes.again(host, 1000)
        count += len(copies(host))
    assert saved <= count <= saved + 2
    assert host.counter("BP_CODE_NOT_COPIED") - lost == PER_STACK * turns - count
    codes.again(host)
    assert len(copies(host)) == PER_STACK, "what was not copied is when its stack is sent again"


def test_a_stack_has_so_many_copies(host: Host) -> None:
    codes, lost = Codes(), host.counter("BP_CODE_NOT_COPIED")
    codes.run(host, frames_of(PER_STACK + 8), codes.memory(list(range(PER_STACK + 8))))
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(n) for n in range(PER_STACK)], "the innermost"
    assert host.counter("BP_CODE_NOT_COPIED") - lost == 8
    codes.again(host)
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(PER_STACK + n) for n in range(8)]


def test_a_full_ring_is_counted(host: Host) -> None:
    codes = Codes()
    lost = host.counter("BP_CODE_NOT_COPIED")
    host.state.copies.is_full = 1
    assert codes.run(host, frames_of(8), codes.memory(list(range(8)))) is not None
    assert host.counter("BP_CODE_NOT_COPIED") - lost == 8
    host.state.copies.is_full = 0
    codes.again(host)
    assert len(copies(host)) == 8 and host.counter("BP_CODE_NOT_COPIED") - lost == 8


def test_code_that_cannot_be_read_is_not_copied(host: Host) -> None:
    codes = Codes()
    codes.image.codes = codes.image.codes[: CODE_BYTES * 2]
    stack = codes.run(host, frames_of(8), codes.memory(list(range(8))))
    assert stack is not None and stack.header["status"] == STATUS.BP_OK
    assert [int(copy["code"]) for copy in copies(host)] == [code_address(0), code_address(1)]
