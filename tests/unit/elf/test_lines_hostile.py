"""Debug sections that are damaged, or made to cost time or memory: the other answers are there, at a bounded cost."""

from __future__ import annotations

import os
import random
import resource
import struct
import threading
import time
import zlib
from pathlib import Path

import pytest

from bpfprof.elf.image import ElfImage
from bpfprof.elf.lines import LineReader
from tests.unit.elf.frame_mutants import peak_mebibytes
from tests.unit.elf.test_lines import build, instructions, needs_gcc, words

pytestmark = pytest.mark.usefixtures("pyelftools")
CODE = 0x1000
CODE_SIZE = 0x10000
SHT_PROGBITS, SHT_STRTAB, SHF_COMPRESSED = 1, 3, 0x800
MIB = 1 << 20
SEED = 20241121

TAG_UNIT, TAG_FUNCTION, TAG_INLINED = 0x11, 0x2E, 0x1D
LOW_PC, HIGH_PC, NAME, STMT_LIST = 0x11, 0x12, 0x03, 0x10
ADDR, DATA4, STRP = 0x01, 0x06, 0x0E


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
NAMED = abbreviation(5, TAG_FUNCTION, False, (LOW_PC, ADDR), (HIGH_PC, DATA4), (NAME, STRP))
NAMED_ENTRY = b"\5" + struct.pack("<QII", CODE, CODE_SIZE, 0)

FILES = {
    "nested inlined functions": lambda: with_entries(
        FUNCTION + INLINED, FUNCTION_ENTRY + INLINED_ENTRY * (8 * MIB // 13)
    ),
    "long names": lambda: with_entries(NAMED, NAMED_ENTRY * MIB, debug_str=b"a" * (64 * MIB)),
    "each unit its abbreviations": lambda: elf(
        {
            ".debug_info": b"".join(struct.pack("<IHIBB", 8, 4, n, 8, 1) for n in range(20_000)),
            ".debug_abbrev": b"\1\1\1\1" * (4 * MIB),
        }
    ),
    "a header without fields": line_header_without_fields,
    "rows": lambda: with_lines(b"\0\x09\2" + struct.pack("<Q", CODE) + b"\x0e" * (16 * MIB)),
    "a bomb": lambda: elf(
        {".debug_info": unit(b"\0"), ".debug_abbrev": TOP + b"\0", ".debug_str": bytes(600 * MIB)},
        {".debug_str": 600 * MIB},
    ),
}


def cpu_s() -> float:
    """CPU time of all ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.second_tier
@pytest.mark.parametrize("name", FILES)
def test_cost_is_bounded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(FILES[name]())
    with ElfImage.open(str(path)) as image:
        reader = LineReader(image, cpu_limit_s=1)
        before_s, before_mebibytes = cpu_s(), peak_mebibytes()
        answers = reader.look_up(range(CODE, CODE + CODE_SIZE, 64))
    path.unlink()
    print(f"{name}: {cpu_s() - before_s:.2f} s, {sum(map(bool, answers))} answers, {reader.problems}")
    assert cpu_s() - before_s < 2
    assert peak_mebibytes() - before_mebibytes < 64
    assert any(answers) or reader.problems


def test_the_process_has_no_rights(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    path.write_bytes(line_header_without_fields())
    statuses = []
    with ElfImage.open(str(path)) as image:
        thread = threading.Thread(target=LineReader(image, cpu_limit_s=1).look_up, args=([CODE],))
        thread.start()
        while thread.is_alive():
            children = Path(f"/proc/self/task/{thread.native_id}/children")
            statuses += [read_status(int(pid)) for pid in (children.read_text() if children.exists() else "").split()]
            time.sleep(0.05)
    last = [status for status in statuses if status][-1]
    assert last["NoNewPrivs"] == "1"
    assert set(last["Uid"].split()) == {"65534" if os.geteuid() == 0 else str(os.geteuid())}
    assert last["CapEff"] == last["CapPrm"] == "0" * 16
    assert os.geteuid() != 0 or last["Groups"] == ""


def read_status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@needs_gcc
def test_nothing_is_imported_from_the_directory_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(tmp_path, "c")
    (tmp_path / "json.py").write_text("open('imported', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ElfImage.open(str(path)) as image:
        assert all(LineReader(image).look_up(instructions(path)[:5]))
    assert not (tmp_path / "imported").exists()


@needs_gcc
def test_a_damaged_unit_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "second.c").write_text("int second(int x) { return x * 7; }\n")
    path = build(tmp_path, "c", "-gdwarf-4", "second.c")
    addresses = instructions(path)
    with ElfImage.open(str(path)) as image:
        whole = LineReader(image).look_up(addresses)
        info = image.section(".debug_info")
        assert info is not None
        content = bytearray(path.read_bytes())
        unit_size = 4 + int.from_bytes(content[info.offset : info.offset + 4], "little")
    # The abbreviations of one of two units are elsewhere.
    content[info.offset + unit_size + 6 : info.offset + unit_size + 10] = b"\xff\xff\xff\x0f"
    (tmp_path / "damaged").write_bytes(content)
    with ElfImage.open(str(tmp_path / "damaged")) as image:
        reader = LineReader(image)
        damaged = reader.look_up(addresses)
    assert reader.problems
    lost = [address for address, before, after in zip(addresses, whole, damaged) if before != after]
    assert 0 < len(lost) < len(addresses)
    assert all(not answer for address, answer in zip(addresses, damaged) if address in lost)


DEBUG_SECTIONS = "info abbrev line str line_str ranges rnglists aranges"


def mutant(content: bytes, sections: list[tuple[int, int]], rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        offset, size = rng.choice(sections)
        # Headers are at the front, and what they say matters most.
        at = offset + rng.randrange(min(size, 64) if rng.random() < 0.3 else size)
        length = min(rng.choice((1, 2, 4, 8, 16)), offset + size - at)
        data[at : at + length] = rng.choice((b"\0", b"\x7f", b"\x80", b"\xff", rng.randbytes(1))) * length
    return bytes(data)


@pytest.mark.second_tier
@needs_gcc
@pytest.mark.parametrize("flags", [("-gdwarf-4",), ("-gdwarf-5",), ("-gdwarf-5", "-gz")], ids="-".join)
def test_mutants(flags: tuple[str, ...], tmp_path: Path) -> None:
    path = build(tmp_path, "c", *flags)
    addresses = instructions(path)[::5]
    with ElfImage.open(str(path)) as image:
        found = [image.section(f".debug_{name}") for name in DEBUG_SECTIONS.split()]
    sections = [(section.offset, section.size) for section in found if section and section.size]
    content, rng = path.read_bytes(), random.Random(SEED)
    answered = with_problems = 0
    for _ in range(20):
        path.write_bytes(mutant(content, sections, rng))
        with ElfImage.open(str(path)) as image:
            reader = LineReader(image, cpu_limit_s=1)
            answers = reader.look_up(addresses)
        assert len(answers) == len(addresses)
        for answer in answers:
            words(answer)
            assert all(0 <= line.line < 1 << 32 for line in answer)
        answered += any(answers)
        with_problems += bool(reader.problems)
    assert answered and with_problems
