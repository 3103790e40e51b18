"""Links compiled programs and hands them to the kernel: the maps' descriptors and the functions they call are put in.

In come instructions of programs and functions, out come descriptors of loaded programs. A function is placed behind
each program that calls it. The verifier looks at it once, not at each call, if type information says that it is global:
commits 51c39bb1d5d1 ("bpf: Introduce function-by-function verification") (in v5.6) and e5069b9c23b3 ("bpf: Support
pointers in global func args") (in v5.12). That information is made here, for BCC leaves it out.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from bpfprof import abi
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.compiler import CALL_PROGRAMS, ON_EVENT, PERF_EVENT, PROGRAMS
from bpfprof.kernel.refusals import refusal
from bpfprof.kernel.sources import FIRST_FUNCTION, INSTRUCTION_BYTES, LOAD_IMMEDIATE_64, MAPS_BY_TYPE, map_names

if TYPE_CHECKING:
    from concurrent.futures import Future

_PSEUDO_MAP_FD = 1
_PSEUDO_EVENT = abi.CONSTANTS["BP_PSEUDO_EVENT"]
_CALL, _PSEUDO_CALL = 0x85, 1
# Documentation/bpf/btf.rst: struct btf_header, and kinds of types; kind << 24 of `info`.
_BTF_MAGIC, _BTF_VERSION, _HEADER_BYTES = 0xEB9F, 1, 24
_INT, _POINTER, _STRUCT, _FUNCTION, _FUNCTION_PROTOTYPE = (kind << 24 for kind in (1, 2, 4, 12, 13))
_GLOBAL, _SIGNED_32_BITS = 1, 1 << 24 | 32
_FUNCTION_TYPE = 5  # in what _type_information() returns


def load_programs(
    code: dict[str, bytes], map_fds: dict[str, int], takes_pointer: bool, event: int | None = None
) -> dict[str, int]:
    """Descriptors of PROGRAMS by name: of ON_EVENT alone, for the event with this number, or of all others.

    `code` has the functions that they call behind them. takes_pointer: whether the argument of these functions is a
    pointer, else a number.

    Raises UnsupportedError with the verifier's last words.
    """
    wanted = {name: kind for name, kind in PROGRAMS.items() if (name == ON_EVENT) == (event is not None)}
    return _load_all(wanted, code, map_fds, takes_pointer, event or 0)


def load_call_programs(
    code: dict[str, bytes], map_fds: dict[str, int], takes_pointer: bool, number: int | None
) -> dict[str, int]:
    """Descriptors of CALL_PROGRAMS by name, for the function with this number; None: for links of many, as compiled.

    The same is true of all else.
    """
    attach_type = bpf_syscall.UPROBE_LINK if number is None else 0
    return _load_all(CALL_PROGRAMS, code, map_fds, takes_pointer, number or 0, attach_type)


def _load_all(
    wanted: dict[str, int],
    code: dict[str, bytes],
    map_fds: dict[str, int],
    takes_pointer: bool,
    number: int,
    attach_type: int = 0,
) -> dict[str, int]:
    functions = [name for name in code if name not in PROGRAMS and name not in CALL_PROGRAMS]
    try:
        btf_fd = bpf_syscall.btf_load(_type_information(takes_pointer))
    except OSError as error:
        raise refusal("type information for BPF programs", error) from error
    try:
        loading = _load_side_by_side(
            {
                name: (kind, *_link(code, name, functions, _fd_of_number(map_fds, kind), number), btf_fd, attach_type)
                for name, kind in wanted.items()
            }
        )
    finally:
        os.close(btf_fd)
    failures = [failure for name in wanted if (failure := loading[name].exception())]
    if failures:
        for each in loading.values():
            if not each.exception():
                os.close(each.result())
        raise failures[0]
    return {name: loading[name].result() for name in wanted}


def _load_side_by_side(programs: dict[str, tuple[int, bytes, list[int], int, int]]) -> dict[str, Future[int]]:
    """What has become of each, by its name. programs: arguments of _load().

    The verifier takes some 0.05 s for each of those that walk stacks, and works on several at once: the longest first.
    """
    from concurrent.futures import ThreadPoolExecutor  # 5 ms, here beside other work

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "bpfprof-load") as pool:
        in_turn = sorted(programs, key=lambda name: len(programs[name][1]), reverse=True)
        return {name: pool.submit(_load, name, *programs[name]) for name in in_turn}


def _load(name: str, program_type: int, code: bytes, starts: list[int], btf_fd: int, attach_type: int) -> int:
    functions = b"".join(struct.pack("<II", start, _FUNCTION_TYPE) for start in starts)
    try:
        return bpf_syscall.program_load(program_type, code, name, btf_fd, functions, attach_type=attach_type)
    except OSError as error:
        log = bpf_syscall.verifier_log(program_type, code, name, btf_fd, functions, attach_type).strip()
        failure = refusal(f"the BPF program {name}", error, log)
        failure.details = log[-4000:]
        raise failure from error


def _type_information(takes_pointer: bool) -> bytes:
    """BTF of `int f(struct bp_walk *)`, or of `int f(int)`.

    Of the struct only the size is told, which is all that the verifier needs.
    """
    strings = b"\0int\0bp_walk\0walk\0f\0"
    name_int, name_struct, name_parameter, name_function = 1, 5, 13, 18
    types = (
        struct.pack("<IIII", name_int, _INT, 4, _SIGNED_32_BITS)  # 1
        + struct.pack("<III", name_struct, _STRUCT, abi.size("bp_walk"))  # 2
        + struct.pack("<III", 0, _POINTER, 2)  # 3
        + struct.pack("<IIIII", 0, _FUNCTION_PROTOTYPE | 1, 1, name_parameter, 3 if takes_pointer else 1)  # 4
        + struct.pack("<III", name_function, _FUNCTION | _GLOBAL, 4)  # 5
    )
    sizes = (0, len(types), len(types), len(strings))
    return struct.pack("<HBBIIIII", _BTF_MAGIC, _BTF_VERSION, 0, _HEADER_BYTES, *sizes) + types + strings


def _fd_of_number(map_fds: dict[str, int], program_type: int) -> dict[int, int]:
    own = "perf" if program_type == PERF_EVENT else "sched"
    all_names = map_names(with_calls="call_sums" in map_fds)
    names = [f"{own}_{name}" if name in MAPS_BY_TYPE else name for name in all_names]
    return {number: map_fds[name] for number, name in enumerate(names, 1)}


def _link(
    code: dict[str, bytes], program: str, functions: list[str], fd_of_number: dict[int, int], event: int
) -> tuple[bytes, list[int]]:
    """The instructions, and the numbers of those at which the program and its functions begin."""
    linked, starts = bytearray(code[program]), {program: 0}
    position = 0
    while position < len(linked):
        opcode, registers = linked[position], linked[position + 1]
        (immediate,) = struct.unpack_from("<i", linked, position + 4)
        if opcode == LOAD_IMMEDIATE_64 and registers >> 4 == _PSEUDO_MAP_FD:
            struct.pack_into("<i", linked, position + 4, fd_of_number[immediate])
        elif opcode == LOAD_IMMEDIATE_64 and registers >> 4 == _PSEUDO_EVENT:
            struct.pack_into("<Bhi", linked, position + 1, registers & 0x0F, 0, event)
        elif opcode == _CALL and immediate >= FIRST_FUNCTION:
            name = functions[immediate - FIRST_FUNCTION]
            if name not in starts:
                starts[name] = len(linked) // INSTRUCTION_BYTES
                linked += code[name]
            linked[position + 1] = _PSEUDO_CALL << 4
            following = position // INSTRUCTION_BYTES + 1
            struct.pack_into("<i", linked, position + 4, starts[name] - following)
        position += INSTRUCTION_BYTES
    return bytes(linked), list(starts.values())
