"""Stacks and code objects from the kernel side, each in the recording once."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi import dtypes, ebpf_directory
from bpfprof.capture import stacks
from bpfprof.capture.process import ProcessCodes, identity_hash
from bpfprof.capture.stacks import StackTable
from bpfprof.code.addresses import RawStack
from bpfprof.code.budget import Budget
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.kernel.sources import join_includes
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.model.statuses import Status
from bpfprof.proc.memory import CopiedMemory
from bpfprof.recording.contents import Recording
from bpfprof.recording.format import Chunk, encode
from tests.unit.capture.taken import new_chunks, new_rows

START_OFFSET = 176  # of the bytecode in a code object
PID = 100
NOT_TAKEN, NOT_READY = int(abi.Status["BP_STACK_NOT_TAKEN"]), int(abi.Status["BP_NATIVE_NOT_READY"])
Frame = tuple[int, int, int, int]  # code address, instruction address, mark, identity


class Target:
    """The code objects of a process, by address; `reads` are the addresses that were read."""

    def __init__(self, **functions: int) -> None:
        self.objects = {address: code_object(address, name) for name, address in functions.items()}
        self.in_copies: dict[int, CodeObject] = {}
        self.reads: list[int] = []

    def __call__(self, address: int, copy: CopiedMemory | None = None) -> CodeObject | Unresolved:
        if copy is not None:
            return self.in_copies.get(address, Unresolved("a name of the code object is not readable"))
        self.reads.append(address)
        return self.objects.get(address, Unresolved("the code object is not readable"))

    def frame(self, address: int, offset: int = 4, mark: int = 0, known: bool = True) -> Frame:
        """A frame in this code object, as the kernel side sends it; its identity only if `known`."""
        identity = identity_hash(self.objects[address].identity) if known else 0
        return address, address + START_OFFSET + offset, mark, identity


def code_object(address: int, name: str) -> CodeObject:
    named = zlib.crc32(name.encode())
    pointers = (address + 1000, named, named, address + 3000)
    start = RuntimeAddress(address + START_OFFSET)
    return CodeObject(RuntimeAddress(address), "/srv/a.py", name, name, 1, b"", start, pointers)


def record(
    key: int,
    *frames: Frame,
    tgid: int = PID,
    status: int = 0,
    native: Sequence[int] = (),
    kernel: Sequence[int] = (),
    native_status: int = NOT_TAKEN,
    generation: int = 0,
    time_ns: int = 0,
) -> memoryview:
    """A record of the stack ring; native and kernel frames as the words that are sent."""
    header = np.zeros(1, dtypes.STACK_DTYPE)
    header["key"], header["tgid"], header["status"], header["python_count"] = key, tgid, status, len(frames)
    header["native_count"], header["kernel_count"], header["native_status"] = len(native), len(kernel), native_status
    header["generation"], header["time_ns"] = generation, time_ns
    body = np.zeros(len(frames), dtypes.PYTHON_FRAME_DTYPE)
    for row, (code, instruction, mark, identity) in zip(body, frames):
        row["code"], row["instruction"], row["identity"] = code | mark << 56, instruction, identity
    return memoryview(header.tobytes() + body.tobytes() + np.array([*native, *kernel], np.uint64).tobytes())


def index(table: StackTable, key: int) -> int:
    return int(table.indices(np.array([key], np.uint64))[0])


@pytest.fixture
def table() -> StackTable:
    return StackTable()


def names(table: StackTable) -> list[str]:
    """Qualified names of the new code objects, reasons in brackets."""
    return [qualname or f"[{reason}]" for _, _, qualname, _, reason in new_rows(table, "codes")]


def test_a_stack_is_numbered_and_written_once(table: StackTable) -> None:
    target = Target(leaf=0x1000, root=0x2000)
    codes = {PID: ProcessCodes(3, target)}.get
    frames = target.frame(0x1000, 8, mark=1), target.frame(0x2000, -2)
    table.add_records([record(77, *frames), record(78, *frames[1:]), record(77, *frames)], codes)
    assert [index(table, key) for key in (77, 78, 79, 0)] == [1, 2, 0, 0]
    chunks = new_chunks(table)
    arrays = chunks["stacks"].arrays
    assert chunks["codes"].fields["rows"] == [[3, "/srv/a.py", "leaf", 1, ""], [3, "/srv/a.py", "root", 1, ""]]
    assert arrays["stacks"].tolist() == [(3, 2, 0, 0, 0, NOT_TAKEN, 0), (3, 1, 0, 0, 0, NOT_TAKEN, 0)]
    assert arrays["native"].tolist() == []
    assert arrays["python"].tolist() == [(1, 8, 1), (2, -2, 0), (2, -2, 0)], "leaf first, offsets from the bytecode"
    assert target.reads == [0x1000, 0x2000]
    assert new_chunks(table) == {}


def test_keys_that_do_not_come_again_are_forgotten(table: StackTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not one that a thread has waited with all the time, nor one that is sent again meanwhile."""
    monkeypatch.setattr(stacks, "_KEYS_LIMIT", 0)
    monkeypatch.setattr(stacks, "_KEPT_S", -1.0)
    target = Target(leaf=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    records = {key: record(key, target.frame(0x1000, offset=key)) for key in (1, 2, 3)}
    table.add_records(records.values(), codes)
    for _ in range(2):
        table.forget_old(lambda: np.array([0, 1], np.uint64))
        table.add_records([records[2]], codes)
    assert [index(table, key) for key in (1, 2, 3)] == [1, 2, 0]
    table.add_records([records[3]], codes)
    assert index(table, 3) == 3, "the same stack as before"
    monkeypatch.setattr(stacks, "_STACKS_LIMIT", 0)
    for key in (9, 10, 9):
        table.add_records([record(key, target.frame(0x1000, offset=key))], codes)
    assert index(table, 9) == 6 and len(new_chunks(table)["stacks"].arrays["stacks"]) == 6, "it is written again"


def test_stacks_that_do_not_come_again_are_forgotten(table: StackTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes again and again is written once, however long it goes on."""
    monkeypatch.setattr(stacks, "_FEW_STACKS", 0)
    monkeypatch.setattr(stacks, "_STACKS_KEPT_S", -1.0)
    target = Target(leaf=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    records = {key: record(key, target.frame(0x1000, offset=key)) for key in (1, 2)}
    table.add_records(records.values(), codes)
    for _ in range(3):
        table.forget_old(lambda: np.array([0], np.uint64))
        table.add_records([records[1]], codes)
    table.add_records(records.values(), codes)
    assert [index(table, key) for key in (1, 2)] == [1, 3]
    assert table._index_of_stack.new_count == 2


def test_it_tells_which_stacks_may_come_again(table: StackTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """When some were forgotten: those that are remembered, those that a thread waits with, and all that will be new."""
    for name, value in {"_FEW_STACKS": 0, "_STACKS_KEPT_S": -1.0, "_KEYS_LIMIT": 0, "_KEPT_S": -1.0}.items():
        monkeypatch.setattr(stacks, name, value)
    table._budget = Budget(at_once=1 << 20, per_s=0, of_all=1 << 20)
    target = Target(leaf=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    records = {key: record(key, target.frame(0x1000, offset=key)) for key in (1, 2, 3)}
    table.add_records(records.values(), codes)
    assert table.take_kept() is None
    for _ in range(2):
        table.forget_old(lambda: np.array([2], np.uint64))  # a thread waits with the second one
        table.add_records([records[1]], codes)
    table._budget.spend(9, 1 << 20)
    kept = table.take_kept()
    assert kept is not None and kept.tolist() == [1, 2, 4]
    assert table.take_kept() is None
    assert not table._budget.is_spent(8), "what was given up is nobody's any more"
    table.add_records([records[3]], codes)
    assert index(table, 3) == 4


def test_stacks_that_a_process_makes_up_have_a_limit(table: StackTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were met before are kept, and other processes have theirs."""
    table._budget = Budget(at_once=1000, per_s=0, of_all=1_000_000)
    target, other = Target(leaf=0x1000), Target(leaf=0x1000)
    codes = {PID: ProcessCodes(3, target), PID + 1: ProcessCodes(4, other)}.get
    records = [record(key, *[target.frame(0x1000, offset=key)] * 10) for key in range(1, 100)]
    table.add_records([*records, record(200, target.frame(0x1000), tgid=PID + 1), records[0]], codes)
    rows = new_chunks(table)["stacks"].arrays["stacks"]
    over = rows[rows["status"] == Status.OVER_BUDGET]
    assert 8 < len(rows) < 15 and len(over) == 1 and over["python_count"] == 0
    assert index(table, 1) == 1 and index(table, 99) == index(table, 98) and rows[index(table, 99) - 1] == over[0]
    assert rows[index(table, 200) - 1]["process"] == 4


def test_one_stack_sent_under_two_keys_is_one(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    table.add_records([record(77, target.frame(0x1000)), record(99, target.frame(0x1000, known=False))], codes)
    assert index(table, 77) == index(table, 99) == 1
    table.add_records([record(78, target.frame(0x1000), status=4)], codes)
    assert index(table, 78) == 2, "but not one that is cut off; the status is part of the key"


def test_a_code_object_sent_again_without_identity_is_not_read_again(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    for offset in (0, 2, 4):
        table.add_records([record(offset + 1, target.frame(0x1000, offset, known=offset == 0))], codes)
    assert target.reads == [0x1000] and table.unverified_count == table.changed_count == 0


def test_another_object_at_the_address_is_read_anew(table: StackTable) -> None:
    target = Target(before=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    table.add_records([record(1, target.frame(0x1000))], codes)
    target.objects[0x1000] = code_object(0x1000, "after")
    table.add_records([record(2, target.frame(0x1000))], codes)
    assert names(table) == ["before", "after"] and index(table, 1) != index(table, 2)
    assert table.changed_count == 0


def test_an_object_replaced_before_it_was_read_is_counted_and_not_misnamed(table: StackTable) -> None:
    target = Target(seen=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    frame = target.frame(0x1000)
    target.objects[0x1000] = code_object(0x1000, "other")
    table.add_records([record(1, frame), record(2, frame)], codes)
    table.take_copies([], codes)
    table.add_records([record(3, frame)], codes)
    assert names(table) == ["[code object replaced before it was read]"]
    assert (table.changed_count, table.unverified_count) == (2, 0), "once a turn; the next one may have more luck"
    table.add_records([record(4, target.frame(0x1000))], codes)
    assert names(table) == ["other"], "which is what runs now"


def test_a_process_has_so_many_code_objects_and_others_have_theirs(table: StackTable) -> None:
    """A line table may have 1 MiB, and a program may have any number of them."""
    functions = {f"f{number}": number * 0x1000 for number in range(1, 60)}
    costly, other = Target(**functions), Target(other=0x1000)
    for address, code in costly.objects.items():
        costly.objects[address] = replace(code, linetable=bytes(1 << 20))
    codes = {PID: ProcessCodes(0, costly), PID + 1: ProcessCodes(1, other)}.get
    records = [record(key, costly.frame(address)) for key, address in enumerate(costly.objects, 1)]
    table.add_records([*records, *records, record(99, other.frame(0x1000), tgid=PID + 1)], codes)
    recording, sizes = Recording(), []

    class Sink:
        def write(self, kind: str, fields: dict[str, Any] | None = None, arrays: dict[str, Any] | None = None) -> None:
            chunk = Chunk(kind, fields or {}, arrays or {})
            sizes.append(len(encode(chunk)))
            recording.take(chunk)

    table.write_new(Sink())
    reasons = [code.reason for code in recording.codes]
    assert [code.qualname for code in recording.codes][-1] == "other"
    assert 15 <= reasons.count("") - 1 <= 17 and sum(map(bool, reasons)) == 1, "one entry for all others"
    assert len(costly.reads) == reasons.count("") - 1, "they are not read any more"
    assert max(sizes) < 10 << 20


def copy_record(frame: Frame, tgid: int = PID) -> memoryview:
    """A record of the copies' ring; what is in it is `Target.in_copies`."""
    record = np.zeros(1, dtypes.CODE_COPY_DTYPE)
    record["code"], record["identity"], record["tgid"] = frame[0], frame[3], tgid
    return memoryview(record.tobytes()[: dtypes.CODE_COPY_DTYPE.fields["table"][1]])  # type: ignore[index]


@pytest.mark.parametrize("turns_later", [0, 1, 2])
def test_an_object_that_was_copied_is_named_when_it_is_gone(table: StackTable, turns_later: int) -> None:
    target = Target(gone=0x1000, other=0x2000)
    codes = {PID: ProcessCodes(0, target)}.get
    frame = target.frame(0x1000)
    target.in_copies = {0x1000: target.objects.pop(0x1000)}
    table.take_copies([copy_record(target.frame(0x2000)), copy_record(frame), copy_record(frame, tgid=999)], codes)
    for _ in range(turns_later):
        table.take_copies([], codes)
    table.add_records([record(1, frame)], codes)
    if turns_later < 2:
        assert names(table) == ["gone"] and target.reads == [] and table.changed_count == 0
    else:
        assert names(table) == ["[the code object is not readable]"], "copies are kept for the next turn only"


def test_a_copy_counts_for_its_identity_only(table: StackTable) -> None:
    target = Target(before=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    before = target.frame(0x1000)
    target.in_copies = {0x1000: target.objects[0x1000]}
    target.objects[0x1000] = code_object(0x1000, "after")
    table.take_copies([copy_record(before)], codes)
    table.add_records([record(1, target.frame(0x1000))], codes)
    assert names(table) == ["after"]


def test_what_was_not_copied_whole_is_read_in_the_target(table: StackTable) -> None:
    target = Target(long=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    table.take_copies([copy_record(target.frame(0x1000))], codes)
    table.add_records([record(1, target.frame(0x1000))], codes)
    assert names(table) == ["long"] and target.reads == [0x1000]


def test_functions_that_say_the_same_are_one(table: StackTable) -> None:
    target = Target(again=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    table.add_records([record(1, target.frame(0x1000))], codes)
    for address in (0x2000, 0x3000):
        target.objects[address] = code_object(address, "again")
        table.add_records([record(address, target.frame(address))], codes)
    assert names(table) == ["again"] and index(table, 1) == index(table, 0x2000) == index(table, 0x3000)


def test_an_object_whose_identity_nobody_saw_is_counted(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    table.add_records([record(1, target.frame(0x1000, known=False)), record(2, target.frame(0x1000))], codes)
    assert names(table) == ["leaf"] and target.reads == [0x1000], "what was read had the identity that came later"
    assert (table.unverified_count, table.changed_count) == (1, 0)


def test_an_unreadable_object_says_why(table: StackTable) -> None:
    target = Target()
    table.add_records([record(1, (0x5000, 0x5010, 0, 9))], {PID: ProcessCodes(0, target)}.get)
    gone = ProcessCodes(0, target)
    gone.forget()
    table.add_records([record(2, (0x6000, 0x6010, 0, 9))], {PID: gone}.get)
    assert names(table) == ["[the code object is not readable]", "[process gone before its code was read]"]


def test_what_is_read_in_vain_is_bounded_for_its_process_alone(
    table: StackTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack may claim a thousand code objects that are not there, and the next one others."""
    now_s, spent_s = [1000.0], [0.0]
    monkeypatch.setattr("bpfprof.capture.process.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("bpfprof.capture.stacks.time.thread_time", lambda: spent_s[0])

    class Slow(Target):
        def __call__(self, address: int, copy: CopiedMemory | None = None) -> CodeObject | Unresolved:
            spent_s[0] += 0.01
            return super().__call__(address, copy)

    hostile, honest = Slow(), Target(work=0x2000)
    codes = {PID: ProcessCodes(0, hostile), PID + 1: ProcessCodes(1, honest)}
    wild = [(0x10000 + 8 * number, 0x10000, 0, 0) for number in range(1000)]
    table.add_records([record(1, *wild)], codes.get, None)
    assert 20 <= len(hostile.reads) <= 30
    table.add_records([record(2, honest.frame(0x2000), tgid=PID + 1)], codes.get, None)
    assert honest.reads == [0x2000] and "work" in names(table)
    child = codes[PID].forked(2, Target())
    assert child.rests
    now_s[0] += 10
    assert not child.rests and not codes[PID].rests


def test_while_it_rests_frames_that_came_before_cost_nothing_and_later_they_are_read(
    table: StackTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("bpfprof.capture.process.time.monotonic", lambda: now_s[0])
    target = Target(work=0x1000)
    codes, asked = ProcessCodes(0, target), []
    inner = table._frame
    monkeypatch.setattr(table, "_frame", lambda *arguments: asked.append(arguments) or inner(*arguments))
    codes.paid_until_s = 1001.0
    for key in (1, 2, 3):
        table.add_records([record(key, target.frame(0x1000))], {PID: codes}.get)
    assert len(asked) == 1 and not target.reads
    now_s[0] = 1002.0
    table.take_copies([], {PID: codes}.get)
    table.add_records([record(4, target.frame(0x1000))], {PID: codes}.get)
    assert target.reads == [0x1000]
    assert names(table) == ["[too many code objects of its process were not there]", "work"]
    assert index(table, 1) == index(table, 3) != index(table, 4)


def test_what_is_no_code_object_is_read_once_a_turn(table: StackTable) -> None:
    """What some versions run between interpreters is none, and stands in each of their stacks."""
    target = Target(work=0x1000)
    codes = {PID: ProcessCodes(0, target)}.get
    for _ in range(3):
        table.take_copies([], codes)
        table.add_records([record(key, (0x5000, 0x5010, 0, 9), target.frame(0x1000)) for key in range(1, 50)], codes)
    assert target.reads.count(0x5000) == 3 and target.reads.count(0x1000) == 1


def test_nothing_is_read_when_the_recording_is_to_end_and_what_was_read_is_named(table: StackTable) -> None:
    target = Target(known=0x1000, new=0x2000)
    codes = {PID: ProcessCodes(0, target)}.get
    table.add_records([record(1, target.frame(0x1000))], codes)
    table.is_late = lambda: True
    table.add_records([record(2, target.frame(0x1000), target.frame(0x2000))], codes)
    assert target.reads == [0x1000]
    assert names(table) == ["known", "[not read before the recording was to end]"]


def test_a_forked_child_has_what_its_parent_had(table: StackTable) -> None:
    target, child_target = Target(leaf=0x1000), Target(leaf=0x1000, own=0x2000)
    parent = ProcessCodes(0, target)
    table.add_records([record(1, target.frame(0x1000))], {PID: parent}.get)
    child = parent.forked(1, child_target)
    codes = {PID: parent, 101: child}.get
    table.add_records([record(2, target.frame(0x1000, known=False), tgid=101)], codes)
    table.add_records([record(3, child_target.frame(0x2000), tgid=101)], codes)
    assert child_target.reads == [0x2000] and 0x2000 not in parent.known
    chunks = new_chunks(table)
    arrays = chunks["stacks"].arrays
    assert [row[0] for row in chunks["codes"].fields["rows"]] == [0, 1]
    assert arrays["stacks"]["process"].tolist() == [0, 1, 1], "a stack belongs to the process that ran it"
    assert arrays["python"]["code"].tolist() == [1, 1, 2]


def test_stacks_of_unknown_processes_are_left_out(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    table.add_records([record(1, target.frame(0x1000), tgid=999)], {PID: ProcessCodes(0, target)}.get)
    assert index(table, 1) == 0 and new_chunks(table) == {}


def test_a_stack_walked_from_user_space_is_the_same_stack(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    codes = ProcessCodes(0, target)
    table.add_records([record(5, target.frame(0x1000, 8, mark=2))], {PID: codes}.get)
    assert table.add_frames(codes, [(0x1000, 0x1000 + START_OFFSET + 8, 2)], 0) == index(table, 5)
    assert table.add_frames(codes, [], 3) == 2


class Numbers:
    """Numbers each word by its place in `words`, from 1 on; `asked` is what it was asked.

    From `changed_ns` on other code is at all addresses.
    """

    def __init__(self, changed_ns: int = 1 << 60) -> None:
        self.changed_ns = changed_ns
        self.words: list[int] = []
        self.asked: list[tuple[int, int, int]] = []

    def numbers(self, pid: int, stack: RawStack) -> list[int]:
        self.asked.append((pid, stack.native_count, stack.native_status))
        self.words += [word for word in stack.words if word not in self.words]
        return [1 + self.words.index(word) for word in stack.words]

    def is_outdated(self, pid: int, stack: RawStack) -> bool:
        return stack.time_ns >= self.changed_ns


def test_native_and_kernel_frames_are_part_of_a_stack(table: StackTable) -> None:
    target, natives = Target(leaf=0x1000), Numbers()
    codes = {PID: ProcessCodes(0, target)}.get
    frame = target.frame(0x1000)
    records = [
        record(1, frame, native=[70, 80], kernel=[90], native_status=0),
        record(2, frame, native=[70], kernel=[80, 90], native_status=NOT_READY),
        record(3, native=[80], native_status=0),
        record(4, frame),
        record(5, frame, native=[70, 80], kernel=[90], native_status=0),
    ]
    table.add_records(records, codes, natives)
    assert [index(table, key) for key in range(1, 6)] == [1, 2, 3, 4, 1], "frames and statuses tell stacks apart"
    assert natives.asked == [(PID, 2, 0), (PID, 1, NOT_READY), (PID, 1, 0), (PID, 0, NOT_TAKEN), (PID, 2, 0)]
    arrays = new_chunks(table)["stacks"].arrays
    rows = arrays["stacks"][["python_count", "native_count", "kernel_count", "native_status"]]
    assert rows.tolist() == [(1, 2, 1, 0), (1, 1, 2, NOT_READY), (0, 1, 0, 0), (1, 0, 0, NOT_TAKEN)]
    assert arrays["native"].tolist() == [(1,), (2,), (3,), (1,), (2,), (3,), (2,)], "each stack's behind the other's"


def test_a_stack_that_is_sent_again_after_a_change_does_not_rename_what_was_before(table: StackTable) -> None:
    """Another CPU sends it once more, before it is told that other code is at these addresses."""
    natives, codes = Numbers(changed_ns=100), {PID: ProcessCodes(0, Target())}.get
    table.add_records([record(5, native=[70], generation=3, time_ns=99)], codes, natives)
    before = index(table, 5)
    table.add_records([record(key, native=[70], generation=3, time_ns=100) for key in (5, 6)], codes, natives)
    assert (index(table, 5), index(table, 6)) == (before, 0) and len(natives.asked) == 1
    events = np.zeros(4, dtypes.EVENT_DTYPE)
    events["stack"], events["tgid"], events["time_ns"] = [5, 6, 6, 7], PID, [100, 100, 99, 100]
    table.drop_replaced(events, {(Pid(PID), 3): 100})
    assert events["stack"].tolist() == [0, 0, 6, 7], "those from before, and that it knows nothing of"
    assert events["status"].tolist() == [NOT_READY, NOT_READY, 0, 0]


def test_of_many_changes_the_first_that_comes_after_a_stack_counts(table: StackTable) -> None:
    """A program that executes itself has some thousand between two drains; those of others are not its own."""
    chance = np.random.default_rng(1)
    codes = {pid: ProcessCodes(0, Target()) for pid in (PID, PID + 1)}.get
    generations = chance.integers(0, 40, 200).tolist()
    records = [record(5 + key, native=[key], generation=it, time_ns=0) for key, it in enumerate(generations)]
    table.add_records(records, codes, Numbers())
    replaced = {(Pid(PID), each): int(chance.integers(0, 1000)) for each in range(1, 40, 2)} | {(Pid(PID + 1), 99): 0}
    events = np.zeros(len(generations), dtypes.EVENT_DTYPE)
    events["stack"], events["tgid"], events["time_ns"] = range(5, 205), PID, chance.integers(0, 1000, 200)
    wanted = [
        any(0 < own <= each and at >= ns for (pid, each), ns in replaced.items() if pid == PID)
        for own, at in zip(generations, events["time_ns"].tolist())
    ]
    table.drop_replaced(events, replaced)
    assert (events["stack"] == 0).tolist() == wanted and any(wanted) and not all(wanted)


def test_without_native_frames_only_python_frames_are_kept(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    frame = target.frame(0x1000)
    table.add_records(
        [record(1, frame, kernel=[90]), record(2, frame, kernel=[91])], {PID: ProcessCodes(0, target)}.get
    )
    arrays = new_chunks(table)["stacks"].arrays
    assert arrays["stacks"][["native_count", "kernel_count"]].tolist() == [(0, 0)] and len(arrays["native"]) == 0
    assert index(table, 1) == index(table, 2)


def test_wild_addresses_do_no_harm(table: StackTable) -> None:
    wild = [(0x00FF_FFFF_FFFF_FFFF, (1 << 64) - 1, 255, (1 << 64) - 1), (0, 0, 0, 0)]
    table.add_records([record(1, *wild)], {PID: ProcessCodes(0, Target())}.get)
    arrays = new_chunks(table)["stacks"].arrays
    assert arrays["python"]["mark"].tolist() == [255, 0] and len(arrays["python"]) == 2


def test_many_keys_at_once(table: StackTable) -> None:
    target = Target(leaf=0x1000)
    table.add_records([record(key, target.frame(0x1000, key)) for key in (2, 4, 6)], {PID: ProcessCodes(0, target)}.get)
    keys = np.array([6, 0, 2, 5, 6, (1 << 64) - 1], np.uint64)
    assert table.indices(keys).tolist() == [3, 0, 1, 0, 3, 0]
    assert len(table.indices(keys[:0])) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_the_identity_is_the_one_the_kernel_side_computes(tmp_path: Path, seed: int) -> None:
    """Compiles mix() and the arithmetic of code_identity() as they stand in the kernel side's sources."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    source = join_includes(ebpf_directory() / "profiler.bpf.c")
    mix = re.search(r"^static __always_inline __u64 mix\(.*?^}\n", source, re.MULTILINE | re.DOTALL)
    arithmetic = re.search(r"    for \(int i = 0; i <= BP_IDENTITY_WORDS; .*?return (.*?);", source, re.DOTALL)
    assert mix is not None and arithmetic is not None and "hash = 1, name_hash = 0" in source
    chance = np.random.default_rng(seed)
    rows = [tuple(row) for row in chance.integers(0, 1 << 64, (50, 12), np.uint64).tolist()]
    rows += [(0,) * 12, ((1 << 64) - 1,) * 12, tuple(range(12)), tuple(reversed(range(12)))]
    table = ",\n".join("{" + ",".join(f"{value}ULL" for value in row) + "}" for row in rows)
    (tmp_path / "identity.c").write_text(
        "#include <stdio.h>\n#define __always_inline inline\n"
        f"#define BP_IDENTITY_WORDS {abi.CONSTANTS['BP_IDENTITY_WORDS']}\n"
        f"typedef unsigned long long __u64;\n{mix[0]}\n"
        f"static __u64 identity(__u64 *words)\n{{\n    __u64 hash = 1;\n{arithmetic[0]}\n}}\n"
        f"static __u64 rows[][12] = {{{table}}};\nint main(void)\n{{\n"
        f"    for (int i = 0; i < {len(rows)}; i++)\n"
        '        printf("%llu\\n", identity(rows[i]));\n    return 0;\n}\n'
    )
    program = tmp_path / "identity"
    subprocess.run([compiler, "-o", program, tmp_path / "identity.c"], check=True)
    answer = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert [identity_hash(row) for row in rows] == [int(line) for line in answer.split()]


def test_processes_that_fork_themselves_without_end_do_not_stay(table: StackTable) -> None:
    """Each reads what it runs in those it was forked from lately; none keeps all before it."""
    target, nobody = Target(leaf=0x1000), Target()
    codes = ProcessCodes(0, target)
    table.add_records([record(0, target.frame(0x1000))], {PID: codes}.get)
    for process in range(1, 3000):
        codes, parent = codes.forked(process, nobody), codes
        parent.forget()
        assert not parent.known and not parent.elders
    assert isinstance(codes.read(0x5000), Unresolved)
    assert len(codes.elders) < 10 and len(nobody.reads) < 10
    assert 0x1000 in codes.known


def test_what_is_remembered_of_code_objects_does_not_grow(table: StackTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with the processes whose code could not be read, nor with what code objects say."""
    monkeypatch.setattr(stacks, "_CODES_LIMIT", 10)
    target = Target(leaf=0x1000)
    target.objects[0x1000] = replace(target.objects[0x1000], filename="/x" * 2000, linetable=bytes(1 << 10))
    for process in range(100):
        codes = {PID: ProcessCodes(process, target)}.get
        table.add_records([record(1, target.frame(0x1000)), record(2, (0x5000, 0x5010, 0, 9))], codes)
    assert len(names(table)) == 200
    assert len(table._index_of_code) <= 10 and all(len(each) == 16 for each in table._index_of_code)
