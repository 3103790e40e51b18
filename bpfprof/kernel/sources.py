"""The text and the compiler flags that go to BCC.

BCC only makes programs of functions in its main file, so the sources are joined into one text; `#line` keeps the
compiler's messages pointing at the real files. A map is named by its place in maps.bpf.h, and a number of the running
kernel by its place in NUMBERS: what stands there is put in before a program is loaded. So what is compiled is the same
for all kernels that can the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path

from bpfprof.abi import CONSTANTS, ebpf_directory

# BP_MAP(name, type, key type, value type, entries)
MAP_LINE = re.compile(r"^BP_MAP\((\w+), (\w+), (?:struct )?(\w+), (?:struct )?(\w+), (\w+)\)$", re.MULTILINE)
# A function that programs call: see ebpf/stack.bpf.h
_FUNCTION = re.compile(r"^(?:FUNCTION|REPEAT)\((\w+)[\w, /]*\)$", re.MULTILINE)
# The number of the first function; no helper of the kernel has one so high.
FIRST_FUNCTION = 0x7F000000
# struct bpf_insn: u8 code, u8 registers (source in the high half), s16 offset, s32 immediate. Linux bpf(2). One that
# loads 64 bits is two, whose immediates are its halves.
INSTRUCTION_BYTES, LOAD_IMMEDIATE_64, _REGISTERS = 8, 0x18, 11
_WHOLE, _HALVES = struct.Struct("<q"), struct.Struct("<4s4s")
# Numbers of the running kernel that programs have, see kernel_numbers().
NUMBERS = (
    "BP_RQ_TO_PREEMPT_COUNT",
    "BP_OFFSET_TASK_PID",
    "BP_OFFSET_TASK_TGID",
    "BP_OFFSET_TASK_MM",
    "BP_OFFSET_TASK_STACK",
    "BP_OFFSET_TASK_STATE",
    "BP_OFFSET_TASK_ON_RQ",
    "BP_OFFSET_TASK_DELAYED",
    "BP_OFFSET_TASK_EXEC",
    "BP_OFFSET_TASK_RUN_DELAY",
    "BP_OFFSET_TASK_FSBASE",
    "BP_OFFSET_TASK_FILES",
    "BP_OFFSET_TASK_CFS_RQ",
    "BP_OFFSET_CFS_RQ_RQ",
    "BP_OFFSET_FILES_TABLE",
    "BP_OFFSET_TABLE_COUNT",
    "BP_OFFSET_TABLE_FILES",
    "BP_OFFSET_FILE_INODE",
    "BP_OFFSET_FILE_DATA",
    "BP_OFFSET_INODE_MODE",
    "BP_OFFSET_INODE_NUMBER",
    "BP_OFFSET_SOCKET_SOCK",
    "BP_OFFSET_SOCKET_TYPE",
    "BP_OFFSET_SOCK_FAMILY",
    "BP_OFFSET_SOCK_STATE",
    "BP_OFFSET_SOCK_PORT",
    "BP_OFFSET_SOCK_ADDRESS",
    "BP_OFFSET_SOCK_PEER",
    "BP_OFFSET_SOCK_PEER6",
    "BP_OFFSET_SOCK_PEER_PORT",
)
_INCLUDE = re.compile(r'^#include "([\w./]+)"$', re.MULTILINE)


# Maps that each program type has its own of: MAP(walks) is perf_walks or sched_walks.
MAPS_BY_TYPE = ("walks", "cached_rules")


def maps_header(with_calls: bool = False) -> str:
    """The text of maps.bpf.h; with_calls: and of what has those for calls of libraries."""
    names = ("maps.bpf.h", "calls.bpf.h") if with_calls else ("maps.bpf.h",)
    return "".join((ebpf_directory() / name).read_text() for name in names)


def map_names(with_calls: bool = False) -> list[str]:
    """Names that programs know maps by; a map's number in the programs is its place here, from 1 on."""
    return [match[0] for match in MAP_LINE.findall(maps_header(with_calls))] + list(MAPS_BY_TYPE)


def function_names(text: str) -> list[str]:
    """Functions that programs call; a function's number in the programs is FIRST_FUNCTION and its place here."""
    return list(_FUNCTION.findall(text))


def join_includes(path: Path) -> str:
    """The file with each `#include "name"` replaced by that file of the same directory, each once."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        seen.add(name)
        parts: list[str] = [f'#line 1 "{name}"\n']
        for number, line in enumerate((path.parent / name).read_text().splitlines(keepends=True), 1):
            match = _INCLUDE.match(line.rstrip("\n"))
            if match is None:
                parts.append(line)
            elif match[1] in seen:
                parts.append("\n")  # keeps the lines after it where they are
            else:
                parts += [expand(match[1]), f'#line {number + 1} "{name}"\n']
        return "".join(parts)

    return expand(path.name)


def compiler_flags(
    functions: list[str], takes_pointer: bool, with_calls: bool = False, uses_links: bool = False
) -> list[str]:
    """-D flags: numbers of the maps and functions, and what the kernel can: see KernelFacts.

    with_calls: of libraries they are counted (ebpf/calls.bpf.c); else nothing of that is compiled.
    """
    defines = {"BP_HAS_TASK_POINTERS": int(takes_pointer)}
    defines |= {f"BP_FD_{name}": number for number, name in enumerate(map_names(with_calls), 1)}
    if with_calls:
        defines |= {"BP_WITH_CALLS": 1, "BP_HAS_UPROBE_LINKS": int(uses_links)}
    defines |= {f"BP_FUNCTION_{name}": number for number, name in enumerate(functions, FIRST_FUNCTION)}
    return [f"-D{name}={value}" for name, value in defines.items()]


def number_flags() -> list[str]:
    """-D flags: each of NUMBERS is an instruction that loads it, in which its place in NUMBERS stands."""
    kind = CONSTANTS["BP_PSEUDO_KERNEL"]
    return [f"-D{name}=bpf_pseudo_fd({kind},{place})" for place, name in enumerate(NUMBERS)]


def with_numbers(code: bytes, numbers: Sequence[int]) -> bytes:
    """Instructions of a program with these for the places of NUMBERS."""
    found = bytearray(code)
    for register in range(_REGISTERS):
        pattern, at = bytes((LOAD_IMMEDIATE_64, CONSTANTS["BP_PSEUDO_KERNEL"] << 4 | register)), -1
        while (at := found.find(pattern, at + 1)) >= 0:
            if at % INSTRUCTION_BYTES == 0:
                low, high = _HALVES.unpack(_WHOLE.pack(numbers[int.from_bytes(found[at + 4 : at + 8], "little")]))
                found[at + 1], found[at + 4 : at + 8], found[at + 12 : at + 16] = register, low, high
    return bytes(found)
