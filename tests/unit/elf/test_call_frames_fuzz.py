"""Damaged call frame sections: an answer or ElfError, in time and in little memory."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bpfprof.elf.call_frame_rules import RULE_LIMIT
from tests.unit.elf.frame_builder import CODE, FrameBuilder, uleb
from tests.unit.elf.frame_mutants import check, decode_in_memory, mutants, try_many

SEED = 20241121


def test_a_few_thousand_mutants() -> None:
    cost = try_many(SEED, 2000)
    assert cost.seconds < 1
    assert 0 < cost.refused < 2000


def test_random_bytes_as_programs() -> None:
    rng = random.Random(SEED)
    for _ in range(50):
        builder = FrameBuilder()
        cie = builder.cie()
        for index in range(100):
            builder.fde(cie, CODE + index * 64, 64, rng.randbytes(rng.randrange(100)))
        frames = decode_in_memory(builder.elf())
        assert frames is not None and frames.function_count == 100
        check(frames)


def test_mutants_are_the_same_each_time() -> None:
    first, second = mutants(SEED), mutants(SEED)
    assert [next(first) for _ in range(20)] == [next(second) for _ in range(20)]


def _one_function(program: bytes) -> bytes:
    builder = FrameBuilder()
    builder.fde(builder.cie(), CODE, 0x10000, program)
    return builder.elf()


def _many_rules() -> bytes:
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(20):
        program = b"".join(b"\x41\x0e" + uleb(index * 5000 + step) for step in range(5000))
        builder.fde(cie, CODE + index * 0x8000, 0x8000, program)
    return builder.elf()


COSTLY = {
    "one long program": _one_function(b"\x41\x0e\x10\x41\x0e\x18" * 40_000),
    "too long a program": _one_function(b"\x41\x0e\x10" * 100_000),
    "only remember and restore": _one_function(b"\x0a\x0b" * 120_000),
    "deep remember": _one_function(b"\x0a" * 100_000 + b"\x0b" * 100_000),
    "one long number": _one_function(b"\x0e" + b"\x80" * 200_000),
    "many rules": _many_rules(),
    "all expressions differ": _one_function(b"".join(b"\x0f\x05\x77" + uleb(1 << 21 | n) for n in range(30_000))),
}


@pytest.mark.parametrize("content", COSTLY.values(), ids=COSTLY)
def test_costly_files_are_not_slow(content: bytes) -> None:
    start_s = time.process_time()
    frames = decode_in_memory(content)
    assert time.process_time() - start_s < 1
    assert frames is not None and len(frames.rules) <= RULE_LIMIT
    check(frames)


@pytest.mark.parametrize("kind", ["zeros", "functions", "cies", "rows"])
def test_large_hostile_sections_need_little_memory(kind: str, tmp_path: Path) -> None:
    """63 MiB of the shortest records, or 12 of the most rows, in a process of its own, for its peak of memory."""
    script = (
        "import sys\n"
        "from bpfprof.elf.image import ElfError, ElfImage\n"
        "from bpfprof.elf.call_frames import read_call_frames\n"
        "try:\n    read_call_frames(ElfImage.open(sys.argv[1]))\nexcept ElfError as error:\n    print(error)\n"
        "print(next(line for line in open('/proc/self/status') if line[:6] == 'VmHWM:').split()[1])\n"
    )
    path = tmp_path / "hostile"
    path.write_bytes(_hostile(kind, (12 if kind == "rows" else 63) << 20))
    root = Path(__file__).resolve().parents[3]
    out = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=root, capture_output=True, text=True, check=True
    )
    assert int(out.stdout.split()[-1]) < 256 << 10, out.stdout


def _hostile(kind: str, size: int) -> bytes:
    builder = FrameBuilder()
    cie = builder.cie(augmentation=b"zR", data=b"\x00", encoding=0)
    if kind == "zeros":
        unit = bytes(4)
    elif kind == "functions":
        unit = struct.pack("<IIQQ", 24, 0, CODE, 16) + bytes(4)
    elif kind == "cies":
        unit = bytes(builder.data)
    else:
        program = b"\0" + b"\x41\x0e\x10\x41\x0e\x18" * 20_000
        unit = struct.pack("<IIQQ", 20 + len(program) + 3, 0, CODE, 0x40000) + program + bytes(3)
    content = bytearray(builder.data)
    while len(content) < size:
        content += unit * max(1, min(4096, (size - len(content)) // len(unit)))
    if kind in ("functions", "rows"):  # each refers to the one CIE, and has its own part of the code
        for index, at in enumerate(range(len(builder.data), len(content) - len(unit) + 1, len(unit))):
            start = CODE + (index * 16 if kind == "functions" else index * 1000) % 0xC0000
            struct.pack_into("<IQ", content, at + 4, at + 4 - cie, start)
    builder.data = content
    return builder.elf(with_header=False)
