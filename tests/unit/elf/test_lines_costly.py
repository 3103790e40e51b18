"""Debug sections made to cost time or memory: an answer in bounded time, in little memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CODE = 0x1000
CODE_SIZE = 0x10000
SHT_PROGBITS, SHT_STRTAB, SHF_COMPRESSED = 1, 3, 0x800
MIB = 1 << 20
LIMIT_S = 0.5

TAG_UNIT, TAG_FUNCTION, TAG_INLINED = 0x11, 0x2E, 0x1D
LOW_PC, HIGH_PC, NAME, RANGES, STMT_LIST, ORIGIN = 0x11, 0x12, 0x03, 0x55, 0x10, 0x31
ADDR, BLOCK, DATA4, UDATA, STRP, REF4, SEC_OFFSET, STRING = 0x01, 0x09, 0x06, 0x0F, 0x0E, 0x13, 0x17, 0x08


def elf(sections: dict[str, bytes], compressed: dict[str, int] | None = None) -> bytes:
    """A 64-bit ELF file; `compressed` has the sizes that compressed sections claim."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    headers, content, at = [bytes(64)], b"", 64
    for name, data in [*sections.items(), (".shstrtab", names)]:
        flags = 0
        if compressed and name in compressed:
            data = struct.pack("<IIQQ", 1, 0, compressed[name], 1) + zlib.compress(data, 1)  # Elf64_Chdr
            flags = SHF_COMPRESSED
        kind = SHT_STRTAB if name == ".shstrtab" else SHT_PROGBITS
        name_at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(struct.pack("<IIQQQQIIQQ", name_at, kind, flags, 0, at, len(data), 0, 0, 1, 0))
        content += data
        at += len(data)
    count = len(headers)
    ident = b"\x7fELF\2\1\1" + bytes(9)
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 0, at, 0, 64, 56, 0, 64, count, count - 1)
    return head + content + b"".join(headers)


def uleb(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def abbreviation(code: int, tag: int, has_children: bool, *attributes: tuple[int, int]) -> bytes:
    pairs = b"".join(uleb(name) + uleb(form) for name, form in attributes)
    return uleb(code) + uleb(tag) + bytes([has_children]) + pairs + b"\0\0"


TOP = abbreviation(1, TAG_UNIT, True, (LOW_PC, ADDR), (HIGH_PC, ADDR), (STMT_LIST, DATA4))
TOP_ENTRY = b"\1" + struct.pack("<QQI", CODE, CODE + CODE_SIZE, 0)


def unit(entries: bytes, top: bytes = TOP_ENTRY) -> bytes:
    return struct.pack("<IHIB", 7 + len(top) + len(entries), 4, 0, 8) + top + entries


def with_entries(abbreviations: bytes, entries: bytes, **sections: bytes) -> bytes:
    return elf(
        {
            ".debug_info": unit(entries),
            ".debug_abbrev": TOP + abbreviations + b"\0",
            **{"." + name: data for name, data in sections.items()},
        }
    )


def with_lines(program: bytes, header: bytes = b"\1\1\1\xfb\x0e\x0d\0\1\1\1\1\0\0\0\1\0\0\1\0a\0\0\0\0\0") -> bytes:
    """Version 4; the default header has one file."""
    body = struct.pack("<HI", 4, len(header)) + header + program
    return with_entries(b"", b"\0", debug_line=struct.pack("<I", len(body)) + body)


def line_header_without_fields() -> bytes:
    header = b"\1\1\1\xfb\x0e\x0d" + b"\0\1\1\1\1\0\0\0\1\0\0\1" + b"\0" + uleb(1 << 62)
    body = struct.pack("<HBBI", 5, 8, 0, len(header)) + header
    return with_entries(b"", b"\0", debug_line=struct.pack("<I", len(body)) + body)


FUNCTION = abbreviation(2, TAG_FUNCTION, True, (LOW_PC, ADDR), (HIGH_PC, DATA4))
FUNCTION_ENTRY = b"\2" + struct.pack("<QI", CODE, CODE_SIZE)
INLINED = abbreviation(3, TAG_INLINED, True, (LOW_PC, ADDR), (HIGH_PC, DATA4))
INLINED_ENTRY = b"\3" + struct.pack("<QI", CODE, CODE_SIZE)
EMPTY = abbreviation(4, 0x0B, True)
NAMED = abbreviation(5, TAG_FUNCTION, False, (LOW_PC, ADDR), (HIGH_PC, DATA4), (NAME, STRP))
NAMED_ENTRY = b"\5" + struct.pack("<QII", CODE, CODE_SIZE, 0)
RANGED = abbreviation(6, TAG_FUNCTION, False, (RANGES, SEC_OFFSET))
RANGED_ENTRY = b"\6" + struct.pack("<I", 0)
ITSELF = abbreviation(7, TAG_FUNCTION, False, (LOW_PC, ADDR), (HIGH_PC, DATA4), (ORIGIN, REF4))
ITSELF_ENTRY = b"\7" + struct.pack("<QII", CODE, CODE_SIZE, 11 + len(TOP_ENTRY))
BLOCKS = abbreviation(8, TAG_FUNCTION, False, (LOW_PC, ADDR), (0x40, BLOCK))
NUMBER = abbreviation(9, TAG_FUNCTION, False, (LOW_PC, ADDR), (0x3B, UDATA))
INDIRECT = abbreviation(10, TAG_FUNCTION, False, (LOW_PC, ADDR), (0x3B, 0x16))
TEXT = abbreviation(11, 0x34, False, (NAME, STRING))

FILES = {
    "nested functions": lambda: with_entries(FUNCTION, FUNCTION_ENTRY * (8 * MIB // 13)),
    "nested inlined functions": lambda: with_entries(
        FUNCTION + INLINED, FUNCTION_ENTRY + INLINED_ENTRY * (8 * MIB // 13)
    ),
    "deep blocks": lambda: with_entries(EMPTY, b"\4" * (8 * MIB)),
    "ends of entries": lambda: with_entries(EMPTY, b"\4\0" * (6 * MIB)),
    "long names": lambda: with_entries(NAMED, NAMED_ENTRY * (2 * MIB), debug_str=b"a" * (16 * MIB)),
    "long ranges": lambda: with_entries(
        RANGED, RANGED_ENTRY * (1 * MIB), debug_ranges=struct.pack("<QQ", 0, CODE_SIZE) * (2 * MIB)
    ),
    "some ranges each": lambda: with_entries(
        RANGED, RANGED_ENTRY * (1 * MIB), debug_ranges=struct.pack("<QQ", 0, CODE_SIZE) * 40_000 + bytes(16)
    ),
    "origin of itself": lambda: with_entries(ITSELF, ITSELF_ENTRY),
    "long block": lambda: with_entries(BLOCKS, b"\x08" + bytes(8) + uleb(8 * MIB) + bytes(8 * MIB)),
    "long number": lambda: with_entries(NUMBER, b"\x09" + bytes(8) + b"\x80" * (8 * MIB)),
    "indirect forms": lambda: with_entries(INDIRECT, (b"\x0a" + bytes(8) + b"\x16" * 4000 + b"\x0f\x01") * 4000),
    "texts": lambda: with_entries(TEXT, b"\x0b\0" * (6 * MIB)),
    "many units": lambda: elf({".debug_info": unit(b"", b"\4") * 300_000, ".debug_abbrev": EMPTY + b"\0"}),
    "empty units": lambda: elf({".debug_info": struct.pack("<IHIB", 7, 4, 0, 8) * MIB, ".debug_abbrev": b"\0"}),
    "many abbreviations": lambda: with_entries(
        b"".join(abbreviation(n, 0x34, False, *[(n % 90, UDATA)] * 20) for n in range(2, 40_000)), b"\0"
    ),
    "each unit its abbreviations": lambda: elf(
        {
            ".debug_info": b"".join(struct.pack("<IHIBB", 8, 4, n, 8, 1) for n in range(20_000)),
            ".debug_abbrev": b"\1\1\1\1" * (4 * MIB),
        }
    ),
    "many address ranges": lambda: elf(
        {
            ".debug_info": unit(b"\0"),
            ".debug_abbrev": TOP + b"\0",
            ".debug_aranges": struct.pack("<IHIBB", 4 * MIB - 5, 2, 0, 8, 0)
            + bytes(4)
            + struct.pack("<QQ", CODE, CODE_SIZE) * (MIB // 4 - 2)
            + bytes(16),
        }
    ),
    "a header without fields": line_header_without_fields,
    "rows": lambda: with_lines(b"\0\x09\2" + struct.pack("<Q", CODE) + b"\x0e" * (6 * MIB)),
    "rows back and forth": lambda: with_lines((b"\0\x09\2" + struct.pack("<Q", CODE) + b"\x7f\x0e") * MIB),
    "files": lambda: with_lines(b"\0\6\3a\0\0\0\0" * MIB),
    "operands": lambda: with_lines(b"\5\x80\x80\x80\x80\x01" * (2 * MIB)),
    "one long operand": lambda: with_lines(b"\5" + b"\x80" * (6 * MIB)),
    "sections that claim too much": lambda: elf(
        {".debug_info": unit(b"\0"), ".debug_abbrev": TOP + b"\0"}, {".debug_info": 1 << 40}
    ),
    "a bomb": lambda: elf(
        {".debug_info": unit(b"\0"), ".debug_abbrev": TOP + b"\0", ".debug_str": bytes(120 * MIB)},
        {".debug_str": 120 * MIB},
    ),
}

SCRIPT = """
import json, sys, time
from pathlib import Path
from bpfprof.elf.image import ElfImage
from bpfprof.elf.lines import LineReader
from tests.unit.elf.test_lines_costly import FILES, LIMIT_S
results, path = {}, Path(sys.argv[1])
for name, make in FILES.items():
    path.write_bytes(make())
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of memory
    with ElfImage.open(str(path)) as image:
        reader = LineReader(image, limit_s=LIMIT_S)
        start = time.process_time()
        answers = reader.look_up(range(0x1000, 0x11000, 64))
        seconds = time.process_time() - start
    peak = next(line for line in open("/proc/self/status") if line[:6] == "VmHWM:").split()[1]
    results[name] = [seconds, int(peak), sum(map(bool, answers)), reader.problems]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of each of FILES: CPU seconds, peak of memory in KiB, number of answers, problems."""
    path = tmp_path_factory.mktemp("costly") / "file"
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path.unlink()
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", FILES)
def test_cost_is_bounded(name: str, results: Any) -> None:
    seconds, peak_kb, answered, problems = results[name]
    print(f"{name}: {seconds:.2f} s, {peak_kb >> 10} MiB, {answered} answers, {problems}")
    assert seconds < LIMIT_S + 1
    assert peak_kb < 384 << 10
    assert answered or problems or "bomb" in name or "back and forth" in name
    assert len(problems) <= 20 and all(len(problem) < 200 for problem in problems)
