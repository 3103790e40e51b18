"""Large call frame sections that are sound and made to cost as much as possible; what decoding them costs."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.unit.elf.frame_builder import CODE, FrameBuilder, uleb

_ROOT = Path(__file__).resolve().parents[3]
_CODE_BYTES = 1 << 31
_EXPRESSION_COUNT = 30_000


def _expressions(number: int) -> bytes:
    first = number * _EXPRESSION_COUNT
    codes = (uleb(1 << 21 | (first + n) & 0x1FFFFF) for n in range(_EXPRESSION_COUNT))
    return b"".join(b"\x0f\x05\x77" + code for code in codes)


def _rules(number: int) -> bytes:
    return b"".join(b"\x41\x0e" + uleb(number * 30_000 + n) for n in range(30_000))


# (bytes of code of a function, its program by its number)
_PROGRAMS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "functions": (16, lambda _: b""),
    "short programs": (32, lambda _: b"\x41\x0e\x10\x41\x0e\x18" * 5),
    "rows": (0x20000, lambda _: b"\x41\x0e\x10\x41\x0e\x18" * 40_000),
    "equal rows": (0x40000, lambda _: b"\x41" * 200_000),
    "nothing": (16, lambda _: bytes(200_000)),
    "remember": (16, lambda _: b"\x0c\x07\x08\x86\x02\x90\x01" + b"\x0a\x0b" * 100_000),
    "nested remember": (0x10000, lambda _: b"\x0e\x10\x86\x02\x90\x01" + b"\x0a" * 100_000 + b"\x41\x0b" * 50_000),
    "expressions": (16, _expressions),
    "rules": (40_000, _rules),
    "registers": (16, lambda _: b"\x05\x06\x02\x06\x06\x08\x06\x11\x06\x02\x2f\x06\x02\x12\x07\x02" * 10_000),
}
KINDS = ("zeros", "CIEs", *_PROGRAMS)


@dataclass(frozen=True)
class Cost:
    """Of read_call_frames in a process of its own."""

    seconds: float
    peak_mib: float  # of all that the process has
    functions: int
    reasons: dict[str, int]


def write_hostile(kind: str, path: Path, size: int = 63 << 20) -> None:
    """An ELF file with an .eh_frame of about that size, which has no .eh_frame_hdr."""
    builder = FrameBuilder()
    cie = builder.cie(augmentation=b"zR", data=b"\x00", encoding=0)
    if kind in _PROGRAMS:
        builder.data += b"".join(_functions(cie, len(builder.data), size, *_PROGRAMS[kind]))
    else:
        unit = bytes(4) if kind == "zeros" else bytes(builder.data)
        builder.data += unit * (size // len(unit))
    content = bytearray(builder.elf(with_header=False))
    struct.pack_into("<Q", content, 64 + 40, _CODE_BYTES)  # p_memsz of the one segment
    path.write_bytes(content)


def _functions(cie: int, at: int, size: int, code_size: int, program: Callable[[int], bytes]) -> list[bytes]:
    """FDEs one behind the other."""
    found: list[bytes] = []
    while at < size:
        start = CODE + len(found) * code_size
        code = b"\0" + program(len(found))  # no augmentation data
        code += bytes(-len(code) % 4)
        found.append(struct.pack("<IIQQ", 20 + len(code), at + 4 - cie, start, code_size) + code)
        at += len(found[-1])
    return found


_CHILD = """
import json, sys, time
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage
with ElfImage.open(sys.argv[1]) as image:
    start = time.process_time()
    frames = read_call_frames(image)
    seconds = time.process_time() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(json.dumps([seconds, int(peak) / 1024, frames.function_count, frames.reasons]))
"""


def cost_of(path: Path) -> Cost:
    """Decodes the file once."""
    run = subprocess.run([sys.executable, "-c", _CHILD, str(path)], cwd=_ROOT, capture_output=True, check=True)
    return Cost(*json.loads(run.stdout))
