"""jitdump files: what they name, from when on, and what hostile ones do."""

from __future__ import annotations

import os
import random
import struct
import time
from pathlib import Path

import pytest

from bpfprof.names.jitdump import IS_JITDUMP, JitDump, JitDumps
from tests.unit.measured import least_cpu_s

HEADER = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 7, 0, 0)


def load(start: int, name: str, time_ns: int, size: int = 16, index: int = 0) -> bytes:
    body = struct.pack("<IIQQQQ", 7, 7, start, start, size, index) + name.encode() + b"\0" + bytes(size)
    return struct.pack("<IIQ", 0, 16 + len(body), time_ns) + body


def move(old: int, new: int, time_ns: int, size: int = 16, index: int = 0) -> bytes:
    return struct.pack("<IIQIIQQQQQ", 1, 64, time_ns, 7, 7, new, old, new, size, index)


def opened(path: Path, content: bytes) -> JitDumps:
    path.write_bytes(content)
    dumps = JitDumps()
    dumps.add(os.open(path, os.O_RDONLY))
    return dumps


def names(path: Path, content: bytes, *addresses: int) -> list[tuple[int, int, str]]:
    dumps = opened(path, content)
    found = dumps.new_names(list(enumerate(addresses)))
    dumps.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jit-7.dump"


def test_what_is_taken_for_one() -> None:
    assert IS_JITDUMP("/tmp/jit-12.dump") and IS_JITDUMP("/home/a/.debug/jit/x/jit-1.dump")
    assert not any(map(IS_JITDUMP, ("/tmp/jit-.dump", "/tmp/jit-1.dump.so", "/tmp/xjit-1.dump", "jit-1.dump")))


def test_functions_and_records_of_no_interest(path: Path) -> None:
    lines = struct.pack("<IIQQQ", 2, 32, 1, 0x1000, 0)
    content = HEADER + load(0x1000, "f", 10) + lines + load(0x2000, "_ZN3foo3barEv", 20) + load(0x3000, "a\x1b[m", 30)
    found = names(path, content, 0xFFF, 0x1000, 0x100F, 0x1010, 0x2001, 0x3000)
    assert found == [(1, 0, "f"), (2, 0, "f"), (4, 0, "foo::bar()"), (5, 0, "a\ufffd[m")]


def test_code_that_comes_to_the_place_of_other_code(path: Path) -> None:
    content = HEADER + load(0x1000, "old", 10, 64) + load(0x1020, "new", 20, 16) + load(0x1020, "new", 25, 16)
    assert names(path, content, 0x1001, 0x1021) == [(0, 0, "old"), (1, 0, "old"), (1, 20, "new")]


def test_a_process_that_has_ended_has_its_last_names_and_is_not_remembered(path: Path) -> None:
    dumps = opened(path, HEADER + load(0x1000, "f", 10))
    assert dumps.new_names([(1, 0x1000), (2, 0x2000)]) == [(1, 0, "f")]
    with path.open("ab") as file:
        file.write(load(0x2000, "g", 20))
    dumps.end()
    assert dumps.new_names([(3, 0x2004)]) == [(2, 0, "g"), (3, 0, "g")]
    assert dumps._asked == [] and dumps._last_name == {}
    dumps.close()


def test_code_that_is_moved(path: Path) -> None:
    content = (
        HEADER + load(0x1000, "f", 10, index=3) + load(0x2000, "g", 10, index=4) + move(0x1000, 0x2000, 20, index=3)
    )
    assert names(path, content + move(0, 0x3000, 30, index=9), 0x1000, 0x2000, 0x3000) == [
        (0, 0, "f"),
        (1, 0, "g"),
        (1, 20, "f"),
    ]


def test_it_is_read_as_it_grows(path: Path) -> None:
    """Also in the middle of a record; what was asked before is named when the name comes."""
    whole = HEADER + load(0x1000, "f", 10) + load(0x1000, "g", 20)
    dumps = opened(path, b"")
    found = dumps.new_names([(1, 0x1000)])
    for size in range(1, len(whole) + 1):
        path.write_bytes(whole[:size])
        found += dumps.new_names([])
    assert found == [(1, 0, "f"), (1, 20, "g")]
    assert dumps.new_names([(2, 0x1000)]) == [(2, 0, "f"), (2, 20, "g")]
    dumps.close()


def test_a_name_from_elsewhere_is_the_first_one(path: Path) -> None:
    dumps = opened(path, HEADER)
    dumps.has_named(1, "listed")
    dumps.new_names([(1, 0x1000)])
    path.write_bytes(HEADER + load(0x1000, "f", 10))
    assert dumps.new_names([]) == [(1, 10, "f")]
    dumps.close()


def test_times_of_another_clock_say_nothing(path: Path) -> None:
    header = bytearray(HEADER)
    header[32] = 1  # JITDUMP_FLAGS_ARCH_TIMESTAMP
    assert names(path, bytes(header) + load(0x1000, "old", 10) + load(0x1000, "new", 20), 0x1000) == [(0, 0, "new")]


def test_the_same_file_twice_and_many_files(tmp_path: Path, path: Path) -> None:
    dumps = opened(path, HEADER)
    dumps.add(os.open(path, os.O_RDONLY))
    assert len(dumps.dumps) == 1
    for number in range(10):
        other = tmp_path / f"jit-{number}.dump"
        other.write_bytes(HEADER)
        dumps.add(os.open(other, os.O_RDONLY))
    assert len(dumps.dumps) == 4
    dumps.close()


@pytest.mark.parametrize("content", [bytes(40), HEADER[::-1], HEADER[:4] + b"\2" + HEADER[5:], HEADER + bytes(16)])
def test_what_is_not_understood_is_said(path: Path, content: bytes) -> None:
    dumps = opened(path, content)
    assert dumps.new_names([(1, 0x1000)]) == [] and "jitdump" in dumps.problem
    dumps.close()


def test_damaged_files(path: Path) -> None:
    rng = random.Random(3)
    whole = HEADER + b"".join(load(0x1000 + 64 * i, f"f{i}", i, index=i) for i in range(40))
    for _ in range(500):
        content = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        for _ in range(rng.randrange(1, 8)):
            if content:
                content[rng.randrange(len(content))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        names(path, bytes(content), 0, 0x1000, 0x1041, 2**64 - 1)


@pytest.mark.second_tier
@pytest.mark.parametrize("step", [16, 300 << 10])
def test_the_longest_files_cost_little(path: Path, step: int) -> None:
    """Records of nothing, and holes."""
    record, count = struct.pack("<IIQ", 9, step, 0), min(600_000, (6 << 30) // step)
    with open(path, "wb") as file:
        file.write(HEADER)
        if step == 16:
            file.write(record * count)
        else:
            for number in range(count):
                file.seek(40 + number * step)
                file.write(record)
            file.truncate(40 + count * step)
    dump, before = JitDump(os.open(path, os.O_RDONLY)), time.process_time()
    dump.read()
    cost_s = time.process_time() - before
    os.close(dump.fd)
    print(f"{cost_s:.2f} s")
    assert cost_s < 5 and dump.problem


@pytest.mark.second_tier
def test_code_that_lies_over_everything(path: Path) -> None:
    """An address is looked for among all that reach it."""
    content = HEADER + load(0, "all", 1, 0) + b"".join(load(0x1000, f"f{i}", i, 0) for i in range(5))
    rows = [
        struct.pack("<IIQ", 0, 16 + 42, i) + struct.pack("<IIQQQQ", 7, 7, i, i, 1 << 40, i) + b"f\0"
        for i in range(20_000)
    ]
    content += b"".join(rows)
    assert {name for _, _, name in names(path, content, *range(1 << 20, (1 << 20) + 20))} == {"f"}
    assert least_cpu_s(lambda: names(path, content, *range(1 << 20, (1 << 20) + 20)), 3) < 3
