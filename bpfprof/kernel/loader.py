"""Loads compiled programs: puts the maps' descriptors in and hands the instructions to the kernel."""

from __future__ import annotations

import struct

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.compiler import PERF_EVENT, PROGRAMS
from bpfprof.kernel.sources import MAPS_BY_TYPE, map_names

# struct bpf_insn: u8 code, u8 registers (source in the high half), s16 offset, s32 immediate. Linux bpf(2).
_INSTRUCTION_BYTES = 8
_LOAD_IMMEDIATE_64, _PSEUDO_MAP_FD = 0x18, 1


def load_programs(code: dict[str, bytes], map_fds: dict[str, int], wanted_type: int = 0) -> dict[str, int]:
    """Program descriptors by name, of PROGRAMS or those of one type.

    Raises UnsupportedError with the verifier's last words.
    """
    programs = {}
    for name, (function, program_type) in PROGRAMS.items():
        if wanted_type not in (0, program_type):
            continue
        linked = _link(code[function], _fd_of_number(map_fds, program_type))
        try:
            programs[name] = bpf_syscall.program_load(program_type, linked, name)
        except OSError as error:
            log = bpf_syscall.verifier_log(program_type, linked, name).strip()
            failure = UnsupportedError(f"the kernel refuses the BPF program {name} ({error.strerror})")
            failure.add_note(log[-4000:])
            raise failure from error
    return programs


def _fd_of_number(map_fds: dict[str, int], program_type: int) -> dict[int, int]:
    own = "perf" if program_type == PERF_EVENT else "sched"
    names = [f"{own}_{name}" if name in MAPS_BY_TYPE else name for name in map_names()]
    return {number: map_fds[name] for number, name in enumerate(names, 1)}


def _link(code: bytes, fd_of_number: dict[int, int]) -> bytes:
    linked = bytearray(code)
    for position in range(0, len(code), _INSTRUCTION_BYTES):
        opcode, registers = code[position], code[position + 1]
        if opcode == _LOAD_IMMEDIATE_64 and registers >> 4 == _PSEUDO_MAP_FD:
            (number,) = struct.unpack_from("<i", code, position + 4)
            struct.pack_into("<i", linked, position + 4, fd_of_number[number])
    return bytes(linked)
