"""Linking: programs get the maps' descriptors and the functions that they call."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from bpfprof import abi
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.compiler import ON_EVENT, PERF_EVENT, PROGRAMS
from bpfprof.kernel.loader import load_programs
from bpfprof.kernel.sources import FIRST_FUNCTION, map_names

Loaded = dict[str, tuple[bytes, list[int]]]
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)
PSEUDO_CALL, PSEUDO_MAP_FD = 1 << 4, 1 << 4 | 3  # source register, destination register
HELPER = 7
BTF_FD = 99
ALWAYS = [name for name in PROGRAMS if name != ON_EVENT]


def call(number: int, registers: int = 0) -> bytes:
    return struct.pack("<BBhi", 0x85, registers, 0, number)


def load_map(number: int) -> bytes:
    return struct.pack("<BBhiQ", 0x18, PSEUDO_MAP_FD, 0, number, 0)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """What the kernel is given: program -> its instructions, and where it and its functions begin."""
    found: Loaded = {}

    def program_load(_type: int, code: bytes, name: str, _btf_fd: int, functions: bytes, attach_type: int) -> int:
        assert attach_type == 0
        found[name] = code, [start for start, _ in struct.iter_unpack("<II", functions)]
        return fd_of(name)

    monkeypatch.setattr(bpf_syscall, "btf_load", lambda _content: BTF_FD)
    monkeypatch.setattr(bpf_syscall, "program_load", program_load)
    monkeypatch.setattr("os.close", lambda _fd: None)
    return found


def test_functions_follow_the_programs_that_call_them(loaded: Loaded) -> None:
    """Each once, also those that are called by functions; helpers stay as they are."""
    inner, outer = FIRST_FUNCTION + 1, FIRST_FUNCTION + 2
    code = dict.fromkeys(PROGRAMS, EXIT)
    code["sched_switch"] = call(outer) + call(HELPER) + call(inner) + EXIT
    code |= {"unused": EXIT, "inner": call(HELPER) + EXIT, "outer": call(inner) + EXIT}
    assert load_programs(code, dict.fromkeys(map_names(), 0) | own_maps(), takes_pointer=True) == {
        name: fd_of(name) for name in ALWAYS
    }
    main = call(3, PSEUDO_CALL) + call(HELPER) + call(3, PSEUDO_CALL) + EXIT
    assert loaded["sched_switch"] == (main + call(1, PSEUDO_CALL) + EXIT + call(HELPER) + EXIT, [0, 4, 6])
    assert loaded["sched_waking"] == (EXIT, [0])


def test_maps_of_functions_are_those_of_the_program_s_type(loaded: Loaded) -> None:
    number = 1 + map_names().index("walks")
    code = dict.fromkeys(PROGRAMS, call(FIRST_FUNCTION) + EXIT) | {"function": load_map(number) + EXIT}
    fds = {name: n for n, name in enumerate(own_maps(), 1000)}
    load_programs(code, dict.fromkeys(map_names(), 0) | fds, takes_pointer=True)
    for name in ALWAYS:
        fd = fds["perf_walks" if PROGRAMS[name] == PERF_EVENT else "sched_walks"]
        assert loaded[name][0] == call(1, PSEUDO_CALL) + EXIT + load_map(fd) + EXIT


def test_the_program_of_an_event_has_its_number(loaded: Loaded) -> None:
    marked = struct.pack("<BBhiQ", 0x18, abi.CONSTANTS["BP_PSEUDO_EVENT"] << 4 | 3, 0, 0, 0)
    code = dict.fromkeys(PROGRAMS, EXIT) | {ON_EVENT: marked + EXIT}
    fds = dict.fromkeys(map_names(), 0) | own_maps()
    assert list(load_programs(code, fds, takes_pointer=True, event=2)) == [ON_EVENT] == list(loaded)
    assert loaded[ON_EVENT][0] == struct.pack("<BBhiQ", 0x18, 3, 0, 2, 0) + EXIT


def test_a_program_that_is_refused_is_named_and_the_others_are_closed(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, closed = bpf_syscall.program_load, list[int]()

    def refuse_two(kind: int, code: bytes, name: str, *others: Any, **named: Any) -> int:
        if name in ("sched_switch", "sched_waking"):
            raise OSError(errno.EINVAL, "refused")
        return load(kind, code, name, *others, **named)

    monkeypatch.setattr(bpf_syscall, "program_load", refuse_two)
    monkeypatch.setattr("os.close", closed.append)
    with pytest.raises(UnsupportedError, match="the BPF program sched_switch"):
        load_programs(dict.fromkeys(PROGRAMS, EXIT), dict.fromkeys(map_names(), 0) | own_maps(), takes_pointer=True)
    assert sorted(closed) == sorted([BTF_FD, *map(fd_of, loaded)]) and len(loaded) == len(ALWAYS) - 2


def fd_of(program: str) -> int:
    return 1 + list(PROGRAMS).index(program)


def own_maps() -> dict[str, int]:
    return dict.fromkeys(("perf_walks", "sched_walks", "perf_cached_rules", "sched_cached_rules"), 0)
