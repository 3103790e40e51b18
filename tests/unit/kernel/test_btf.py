"""Struct offsets from type information made in memory, and from the running kernel's."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpfprof.errors import UnsupportedError
from bpfprof.kernel.btf import BTF_PATH, KernelTypes

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FORWARD, FUNC_PROTO, DATASEC, TAG, ENUM64 = 1, 2, 3, 4, 5, 6, 7, 13, 15, 17, 19
Member = tuple[str, int, int]  # name, type id, offset in bits


class Blob:
    """Types in the order of their ids, from 1 on (Documentation/bpf/btf.rst)."""

    def __init__(self) -> None:
        self.strings = bytearray(b"\0")
        self.types = b""

    def name(self, text: str) -> int:
        if not text:
            return 0
        found = self.strings.find(b"\0" + text.encode() + b"\0")
        if found < 0:
            found = len(self.strings) - 1
            self.strings += text.encode() + b"\0"
        return found + 1

    def add(
        self, kind: int, name: str = "", count: int = 0, size: int = 0, extra: bytes = b"", flag: bool = False
    ) -> None:
        info = count | kind << 24 | flag << 31
        self.types += struct.pack("<III", self.name(name), info, size) + extra

    def members(self, kind: int, name: str, *members: Member, flag: bool = False) -> None:
        rows = b"".join(struct.pack("<III", self.name(name), type_id, bits) for name, type_id, bits in members)
        self.add(kind, name, len(members), 64, rows, flag)

    def write(self, path: Path) -> KernelTypes:
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings))
        path.write_bytes(header + self.types + self.strings)
        return KernelTypes(path)


@pytest.fixture
def types(tmp_path: Path) -> KernelTypes:
    """`outer` has named members, bit fields after a kind_flag, and anonymous members three deep."""
    blob = Blob()
    blob.add(INT, "int", size=4, extra=struct.pack("<I", 32))  # 1
    blob.add(PTR, size=1)  # 2
    blob.add(ARRAY, extra=struct.pack("<III", 1, 1, 4))  # 3
    blob.add(ENUM, "color", 1, 4, struct.pack("<Ii", blob.name("red"), 0))  # 4
    blob.add(FUNC_PROTO, count=1, size=1, extra=struct.pack("<II", 0, 1))  # 5
    blob.add(DATASEC, ".data", 1, 4, struct.pack("<III", 1, 0, 4))  # 6
    blob.add(TAG, "tag", size=1, extra=struct.pack("<i", -1))  # 7
    blob.add(ENUM64, "big", 1, 8, struct.pack("<III", blob.name("huge"), 0, 1))  # 8
    blob.add(FORWARD, "outer")  # 9: comes first, has no members
    blob.members(UNION, "", ("deep_a", 1, 0), ("deep_b", 1, 0))  # 10
    blob.members(STRUCT, "", ("inner_a", 1, 0), ("", 10, 96), ("inner_b", 2, 128))  # 11
    blob.members(STRUCT, "other", ("first", 1, 0), ("outer", 2, 64))  # 12: "outer" is a member's name here
    outer = (("first", 1, 0), ("bits", 1, 3 << 24 | 37), ("", 11, 64), ("last", 3, 320), ("named", 12, 512))
    blob.members(STRUCT, "outer", *outer, flag=True)  # 13
    blob.members(STRUCT, "plain", ("far", 1, 0x1000000 * 8))  # 14: no kind_flag, so no bit-field size in bits 24-31
    return blob.write(tmp_path / "btf")


@pytest.mark.parametrize(
    ("member", "offset"),
    [
        ("first", 0),
        ("bits", 4),
        ("inner_a", 8),
        ("deep_a", 20),
        ("deep_b", 20),
        ("inner_b", 24),
        ("last", 40),
        ("named", 64),
    ],
)
def test_offsets(types: KernelTypes, member: str, offset: int) -> None:
    assert types.offset("outer", member) == offset


def test_other_structs(types: KernelTypes) -> None:
    assert types.offset("plain", "far") == 0x1000000
    assert types.offset("other", "outer") == 8


def test_members_of_a_named_member_are_not_taken(types: KernelTypes) -> None:
    with pytest.raises(UnsupportedError, match="struct plain has no member first"):
        types.offset("plain", "first")


@pytest.mark.parametrize("name", ["missing", "oute", "uter", "int", "color", ""])
def test_what_is_not_a_struct_is_named(types: KernelTypes, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no struct {name}"):
        types.offset(name, "first")


@pytest.mark.parametrize("member", ["missing", "firs", "irst", "outer"])
def test_a_missing_member_is_named(types: KernelTypes, member: str) -> None:
    with pytest.raises(UnsupportedError, match=f"struct outer has no member {member}"):
        types.offset("outer", member)


def test_a_kernel_without_type_information(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="No such file") as caught:
        KernelTypes(tmp_path / "missing")
    assert "CONFIG_DEBUG_INFO_BTF" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"\x9f\xeb", b"not type information at all, but long enough"])
def test_a_file_that_is_not_type_information(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UnsupportedError, match="not BTF"):
        KernelTypes(tmp_path / "other")


@pytest.mark.skipif(not BTF_PATH.exists(), reason=f"no {BTF_PATH}")
def test_the_running_kernel() -> None:
    types = KernelTypes()
    pid, tgid = types.offset("task_struct", "pid"), types.offset("task_struct", "tgid")
    assert tgid == pid + 4, "lifecycle.bpf.c takes them for neighbours"
    assert pid % 4 == 0 and 0 < pid < 1 << 14
    assert types.offset("sched_entity", "sum_exec_runtime") % 8 == 0
    assert types.offset("task_struct", "thread") > 0 and types.offset("thread_struct", "fsbase") % 8 == 0
    assert types.offset("list_head", "next") == 0 and types.offset("list_head", "prev") == 8
    # An anonymous union in a struct (include/linux/mm_types.h).
    assert types.offset("page", "flags") == 0 and types.offset("page", "mapping") > 0


def test_names_and_parameters(tmp_path: Path) -> None:
    """A typedef of a pointer to a function, as tracepoints have; a struct of the same name is not it."""
    typedef = 8
    blob = Blob()
    blob.add(INT, "int", size=4, extra=struct.pack("<I", 32))  # 1
    blob.members(STRUCT, "btf_trace_event", ("first", 1, 0))  # 2
    blob.add(FUNC_PROTO, count=3, extra=struct.pack("<IIIIII", 0, 1, 0, 1, 0, 1))  # 3
    blob.add(PTR, size=3)  # 4
    blob.add(typedef, "btf_trace_event", size=4)  # 5
    types = blob.write(tmp_path / "vmlinux")
    assert types.parameters("btf_trace_event") == 3 and types.parameters("btf_trace_other") == 0
    assert types.has_name("first") and not types.has_name("second")
    assert types.percpu_distance("first", "int") == 0  # no section of per-CPU variables
