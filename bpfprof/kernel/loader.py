"""Loads compiled programs: puts the maps' descriptors in and hands the instructions to the kernel."""

from __future__ import annotations

import struct

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.compiler import PROGRAMS
from bpfprof.kernel.sources import map_names

# struct bpf_insn: u8 code, u8 registers (source in the high half), s16 offset, s32 immediate. Linux bpf(2).
_INSTRUCTION_BYTES = 8
_LOAD_IMMEDIATE_64, _PSEUDO_MAP_FD = 0x18, 1


def load_programs(code: dict[str, bytes], map_fds: dict[str, int]) -> dict[str, int]:
    """Program descriptors by name. Raises UnsupportedError with the verifier's last words."""
    fd_of_number = {number: map_fds[name] for number, name in enumerate(map_names(), 1)}
    programs = {}
    for name, instructions in code.items():
        linked = _link(instructions, fd_of_number)
        try:
            programs[name] = bpf_syscall.program_load(PROGRAMS[name], linked, name)
        except OSError as error:
            log = bpf_syscall.verifier_log(PROGRAMS[name], linked, name).strip()
            failure = UnsupportedError(f"the kernel refuses the BPF program {name} ({error.strerror})")
            failure.add_note(log[-4000:])
            raise failure from error
    return programs


def _link(code: bytes, fd_of_number: dict[int, int]) -> bytes:
    linked = bytearray(code)
    for position in range(0, len(code), _INSTRUCTION_BYTES):
        opcode, registers = code[position], code[position + 1]
        if opcode == _LOAD_IMMEDIATE_64 and registers >> 4 == _PSEUDO_MAP_FD:
            (number,) = struct.unpack_from("<i", code, position + 4)
            struct.pack_into("<i", linked, position + 4, fd_of_number[number])
    return bytes(linked)
