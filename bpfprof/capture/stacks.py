"""Stacks and code objects as they come from the kernel side, to the recording's own tables, each thing once.

A code object is read the first time its address is met, and again when the kernel side saw another identity there: in
the copy that came with the first stack that had it, or else in the target. What was read there counts only if its
identity is the one the kernel side saw with the sample.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import CODE_COPY_DTYPE
from bpfprof.abi.dtypes import PYTHON_FRAME_DTYPE as RAW_FRAME_DTYPE
from bpfprof.abi.dtypes import STACK_DTYPE as RAW_STACK_DTYPE
from bpfprof.capture.numbers import NATIVE_FLAGS, STATUS, look_up
from bpfprof.capture.process import ProcessCodes, identity_hash
from bpfprof.code.addresses import RawStack
from bpfprof.code.budget import Budget
from bpfprof.code.recent import Recent
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NATIVE_INDEX_DTYPE, PYTHON_FRAME_DTYPE, STACK_DTYPE
from bpfprof.proc.memory import CopiedMemory
from bpfprof.proc.own_process import give_back_memory
from bpfprof.recording.writer import Sink

_MARK_AT = 56  # the bit
_ADDRESS_MASK = (1 << _MARK_AT) - 1
_HEADER_BYTES = RAW_STACK_DTYPE.itemsize
_TIME_AT = RAW_STACK_DTYPE.fields["time_ns"][1]  # type: ignore[index]
_NO_OFFSET = -2
_NOT_TAKEN = int(abi.Status["BP_STACK_NOT_TAKEN"])
_NOT_READY = {int(abi.Status[f"BP_{name}_NOT_READY"]) for name in ("PYTHON", "NATIVE")}
_FRAME_BYTES = RAW_FRAME_DTYPE.itemsize
_HEADER = struct.Struct("<" + "".join(code for name, code in abi.field_codes("bp_stack") if name != "pad"))
_ROW = struct.Struct("<IHHHBBB")  # STACK_DTYPE
_RAW_FRAME = struct.Struct("<" + "".join(code for _, code in abi.field_codes("bp_python_frame")))
_FRAME = struct.Struct("<IiB")  # PYTHON_FRAME_DTYPE
_STATUS, _NATIVE_FLAGS = STATUS.tolist(), NATIVE_FLAGS.tolist()
_FRAMES_LIMIT = 20_000  # that are remembered of one process
# Of stacks that are remembered: so many at most that are new, and if they are more than a few those that came in the
# last minute. One that was forgotten is written again.
_STACKS_LIMIT, _FEW_STACKS, _STACKS_KEPT_S = 65_536, 4_096, 60
_DIGEST_BYTES = 16  # what stacks and code objects are remembered by: two have the same by no chance
# Of a process, at once and then a second, and of all in a recording: a program may never have the same stack twice.
_STACK_BYTES, _STACK_BYTES_PER_S, _STACK_BYTES_OF_ALL = 64 << 20, 2 << 20, 2 << 30
_OVER_BUDGET = int(abi.Status["BP_OVER_BUDGET"])
_UNFINISHED_LIMIT = 10_000  # that are remembered as such; the oldest are of processes that have ended, mostly
_KEYS_LIMIT, _KEPT_S = 20_000, 5 * abi.CONSTANTS["BP_RESEND_NS"] / 1e9
_FEW_CODES = 20  # new ones of a drain, as programs meet them for long after their start
_CODES_LIMIT = 4096  # that are remembered by what they say: functions that are made again and again, and reasons
_COPY_HEAD = struct.Struct("<QQ4QII")  # of struct bp_code_copy, up to `object`
_OBJECT_AT, _TEXTS_AT, _TABLE_AT = (CODE_COPY_DTYPE.fields[name][1] for name in ("object", "texts", "table"))  # type: ignore[index]
_TEXT_BYTES = abi.CONSTANTS["BP_COPIED_TEXT_BYTES"]
_OFFSET_LIMIT = 1 << 31
_CHANGED = Unresolved("code object replaced before it was read")
_IN_VAIN = Unresolved("too many code objects of its process were not there")
_LATE = Unresolved("not read before the recording was to end")
_TOO_MUCH = Unresolved("more code objects than are recorded of a process, or of all")
_CODE_BYTES, _CODE_BYTES_OF_ALL = 16 << 20, 256 << 20  # of names and line tables: some 24,000 functions of a process
_CHUNK_BYTES = 8 << 20  # of code objects; the reader takes more
_LETTER_BYTES = 6  # in JSON, at most


class NativeFrames(Protocol):
    """Numbers the native and kernel frames of a stack (see code.addresses)."""

    def numbers(self, pid: int, stack: RawStack) -> list[int]: ...

    def is_outdated(self, pid: int, stack: RawStack) -> bool: ...


@dataclass
class StackTable:
    """Numbers stacks and code objects; `write_new()` writes what the recording does not have yet."""

    _index_of_key: Recent[int] = field(default_factory=Recent)
    _generation_of_key: Recent[int] = field(default_factory=Recent)
    _index_of_stack: Recent[bytes] = field(default_factory=Recent)  # by digest
    _stacks_turned_s: float = field(default_factory=time.monotonic)
    _budget: Budget = field(default_factory=lambda: Budget(_STACK_BYTES, _STACK_BYTES_PER_S, _STACK_BYTES_OF_ALL))
    _stack_count: int = 0
    _has_forgotten: bool = False  # stacks, since take_kept()
    _turned_s: float = field(default_factory=time.monotonic)
    _code_count: int = 0
    _index_of_code: dict[bytes, int] = field(default_factory=dict)  # by digest
    _copies: dict[tuple[int, int, int], memoryview] = field(default_factory=dict)  # by process, address, identity
    _copies_before: dict[tuple[int, int, int], memoryview] = field(default_factory=dict)
    _turn: int = 0
    _was_read: bool = False  # a code object that was not copied, since the last write_new()
    _new_codes: list[tuple[int, CodeObject | Unresolved]] = field(default_factory=list)
    _new_stacks: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    unfinished: set[int] = field(default_factory=set)  # they lack what will be known soon
    _unfinished_pids: set[int] = field(default_factory=set)  # processes that had some lately
    is_late: Callable[[], bool] = lambda: False  # whether nothing is read any more, as the recording ends
    unverified_count: int = 0
    changed_count: int = 0
    _code_budget: Budget = field(default_factory=lambda: Budget(_CODE_BYTES, 0, _CODE_BYTES_OF_ALL))

    def take_copies(self, records: Iterable[memoryview], codes_of: Callable[[int], ProcessCodes | None]) -> None:
        """Begins a turn: takes copies of code objects for its stacks and, as they may come too early, for the next."""
        self._copies_before, self._copies = self._copies, {}
        self._turn += 1
        for record in records:
            code, identity, *_, pid, _ = _COPY_HEAD.unpack_from(record)
            codes = codes_of(pid)
            if codes is not None:
                self._copies[codes.process, code, identity] = record

    def add_records(
        self,
        records: Iterable[memoryview],
        codes_of: Callable[[int], ProcessCodes | None],
        natives: NativeFrames | None = None,
    ) -> None:
        """Takes stack records of the kernel side; codes_of is by pid. Without `natives` only Python frames are kept."""
        for record in records:
            header = _HEADER.unpack_from(record)
            key, time_ns, pid, generation, python, native, kernel, status, native_status, native_flags = header
            codes = codes_of(pid)
            if codes is None:
                continue
            end = _HEADER_BYTES + _FRAME_BYTES * python
            stack, numbers = RawStack([], 0, _NOT_TAKEN, 0), []
            if natives is not None:
                words = list(struct.unpack_from(f"<{native + kernel}Q", record, end))
                stack = RawStack(words, native, native_status, native_flags, generation, time_ns)
                if generation:
                    self._generation_of_key[key] = generation
                if natives.is_outdated(pid, stack):
                    continue  # its key stays what it was before the change
                numbers = natives.numbers(pid, stack)
            else:
                kernel = 0
            frames = self._frames(codes, bytes(record[_HEADER_BYTES:end]))
            row = (codes.process, python, stack.native_count, kernel, status, stack.native_status, stack.native_flags)
            index = self._intern(row, frames, numbers)
            self._index_of_key[key] = index
            if not _NOT_READY.isdisjoint((status, stack.native_status)):
                self.add_unfinished(index, pid)

    def add_frames(
        self,
        codes: ProcessCodes,
        frames: list[tuple[int, int, int]],
        status: int,
        native: RawStack | None = None,
        numbers: Sequence[int] = (),
        identities: Sequence[int] = (),
    ) -> int:
        """Index of a stack that was walked from user space.

        Its Python frames are (code address, instruction address, mark), its native frames numbered already; leaf first.
        identities: identity_hash() of the code objects, where it is known.
        """
        raw = np.zeros(len(frames), RAW_FRAME_DTYPE)
        raw["code"] = [code & _ADDRESS_MASK | mark << _MARK_AT for code, _, mark in frames]
        raw["instruction"] = [instruction for _, instruction, _ in frames]
        raw["identity"] = identities or 0
        native = native or RawStack([], 0, _NOT_TAKEN, 0)
        row = (codes.process, len(raw), native.native_count, 0, status, native.native_status, native.native_flags)
        return self._intern(row, self._frames(codes, raw.tobytes()), list(numbers))

    def add_unfinished(self, stack: int, pid: int) -> None:
        """A stack lacks what will be known soon: an interpreter, or an unwind table."""
        self.unfinished.add(stack)
        if len(self.unfinished) > _UNFINISHED_LIMIT:
            self.unfinished = set(sorted(self.unfinished)[_UNFINISHED_LIMIT // 2 :])
        self._unfinished_pids.add(pid)

    def take_unfinished_pids(self) -> set[int]:
        """Processes that had such stacks since the last call."""
        pids, self._unfinished_pids = self._unfinished_pids, set()
        return pids

    def indices(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """Stack indices of keys; 0 for key 0 and for stacks that never arrived."""
        return look_up(keys, self._index_of_key, 0).astype(np.uint32)

    def forget_old(self, used: Callable[[], npt.NDArray[np.uint64]]) -> None:
        """Gives up stacks that did not come for some time, and keys, but for those in use: threads wait with them.

        The kernel side sends a stack again that it has not sent for BP_RESEND_NS.
        """
        now_s = time.monotonic()
        if self._index_of_stack.new_count > _FEW_STACKS and now_s - self._stacks_turned_s > _STACKS_KEPT_S / 2:
            self._turn_stacks()
        if self._index_of_key.new_count > _KEYS_LIMIT and now_s - self._turned_s > _KEPT_S:
            keys = np.unique(used()).tolist()
            self._index_of_key.turn(keys)
            self._generation_of_key.turn(keys)
            self._turned_s, self._has_forgotten = now_s, True
        give_back_memory()

    def take_kept(self) -> npt.NDArray[np.uint32] | None:
        """Numbers of those that may come again, in order, and from the end of which on all may; None: as before."""
        if not self._has_forgotten:
            return None
        self._has_forgotten = False
        self._budget.renew()
        kept = {*self._index_of_stack.numbers(), *self._index_of_key.numbers(), self._stack_count + 1}
        return np.array(sorted(kept), np.uint32)

    def drop_replaced(self, events: npt.NDArray[np.void], replaced: Mapping[tuple[Pid, int], int]) -> None:
        """Takes their stacks from events that name one from before other code came to its addresses.

        The kernel side does not send a stack again that looks the same, until it is told of the new code. `replaced`:
        (process, generation of its mappings) to when they, and those before, were replaced.
        """
        of_pid: dict[Pid, list[tuple[int, int]]] = {}
        for (pid, generation), from_ns in replaced.items():
            of_pid.setdefault(pid, []).append((generation, from_ns))
        for pid, changes in of_pid.items():
            places = np.flatnonzero(events["tgid"] == pid)
            if not len(places):
                continue
            of_process, changed = events[places], np.array(sorted(changes), np.int64)
            # Of a generation and those after it, when the first was replaced.
            first_ns = np.minimum.accumulate(changed[::-1, 1])[::-1]
            generations = look_up(of_process["stack"], self._generation_of_key, 0)
            taken_ns = of_process["time_ns"] - of_process["blocked_ns"] - of_process["runqueue_ns"]
            change = np.searchsorted(changed[:, 0], generations)
            is_replaced = (generations > 0) & (change < len(changed))
            is_replaced &= taken_ns.astype(np.int64) >= first_ns[np.minimum(change, len(changed) - 1)]
            outdated = places[is_replaced]
            events["stack"][outdated] = 0
            events["status"][outdated] = abi.Status["BP_NATIVE_NOT_READY"]

    def _intern(self, row: tuple[int, ...], frames: bytes, natives: list[int]) -> int:
        """Index of a stack: a row of STACK_DTYPE, rows of PYTHON_FRAME_DTYPE, numbers of native frames."""
        *counts, status, native_status, flags = row
        numbers = _STATUS[status], _STATUS[native_status], _NATIVE_FLAGS[flags]
        content = (_ROW.pack(*counts, *numbers), frames, array("I", natives).tobytes())
        digest = blake2b(b"".join(content), digest_size=_DIGEST_BYTES).digest()
        index = self._index_of_stack.renewed(digest)
        if not index and (frames or natives) and self._budget.is_spent(row[0]):
            return self._intern((row[0], 0, 0, 0, _OVER_BUDGET, _OVER_BUDGET, 0), b"", [])
        if not index:
            index = self._stack_count = self._stack_count + 1
            self._index_of_stack[digest] = index
            self._new_stacks.append(content)
            self._budget.spend(row[0], sum(map(len, content)))
        if self._index_of_stack.new_count > _STACKS_LIMIT:
            self._turn_stacks()
        return index

    def _turn_stacks(self) -> None:
        self._index_of_stack.turn()
        self._stacks_turned_s, self._has_forgotten = time.monotonic(), True

    def _frames(self, codes: ProcessCodes, content: bytes) -> bytes:
        """Rows of PYTHON_FRAME_DTYPE from those that the kernel side sends. Most frames were met before."""
        if codes.unread and codes.unread_in != self._turn and not self._rests(codes):
            codes.unread.clear()
        known, unread = codes.frames.get, codes.unread.get
        raw = [content[at : at + _FRAME_BYTES] for at in range(0, len(content), _FRAME_BYTES)]
        return b"".join([known(frame) or unread(frame) or self._frame(codes, frame) for frame in raw])

    def _frame(self, codes: ProcessCodes, content: bytes) -> bytes:
        code, instruction, identity = _RAW_FRAME.unpack(content)
        index, start = self._code(codes, code & _ADDRESS_MASK, identity)
        offset = max(-_OFFSET_LIMIT, min(instruction - start, _OFFSET_LIMIT - 1)) if start else _NO_OFFSET
        row = _FRAME.pack(index, offset, code >> _MARK_AT)
        met = codes.frames if start else codes.unread
        if len(met) >= _FRAMES_LIMIT:
            met.clear()
        met[content] = row
        if not start:
            codes.unread_in = self._turn
        return row

    def _rests(self, codes: ProcessCodes) -> bool:
        """Whether none of its code objects is read now."""
        return codes.rests or self.is_late()

    def _code(self, codes: ProcessCodes, address: int, identity: int) -> tuple[int, int]:
        known = codes.known.get(address)
        if known is not None and identity in (0, known[0]):
            return known[1], known[2]
        if self._code_budget.is_spent(codes.process):
            return self._index_of(codes, _TOO_MUCH), 0
        if self._rests(codes):
            return self._index_of(codes, _IN_VAIN if codes.rests else _LATE), 0
        begin_s = time.thread_time()
        code, read_identity = self._read(codes, address, identity)
        if not isinstance(code, CodeObject):
            codes.read_in_vain(time.thread_time() - begin_s)
            return self._index_of(codes, code), 0
        index = self._index_of(codes, code)
        if known is not None:
            codes.frames.clear()  # those without an identity may be of the code object that was there before
        codes.known[address] = (read_identity, index, code.code_start)
        return index, code.code_start

    def _read(self, codes: ProcessCodes, address: int, identity: int) -> tuple[CodeObject | Unresolved, int]:
        """The code object, and its identity."""
        key = codes.process, address, identity
        copy = self._copies.get(key) or self._copies_before.get(key)
        code = codes.read(address, _memory_of(copy)) if copy else None
        if isinstance(code, CodeObject):
            return code, identity
        self._was_read = True
        code = codes.read(address)  # not copied, or not all of it
        if not isinstance(code, CodeObject):
            return code, 0
        read_identity = identity_hash(code.identity)
        if not identity:
            self.unverified_count += 1
        elif identity != read_identity:
            self.changed_count += 1
            return _CHANGED, 0
        return code, read_identity

    def _index_of(self, codes: ProcessCodes, code: CodeObject | Unresolved) -> int:
        """One entry for all code objects that say the same, and one a reason: the next turn tries to read it again."""
        named = repr(_columns(codes.process, code)).encode()
        digest = blake2b(named + _line_table(code), digest_size=_DIGEST_BYTES).digest()
        index = self._index_of_code.get(digest)
        if index is None:
            if len(self._index_of_code) >= _CODES_LIMIT:
                self._index_of_code.clear()
            index = self._index_of_code[digest] = self._code_count = self._code_count + 1
            self._new_codes.append((codes.process, code))
            if isinstance(code, CodeObject):
                self._code_budget.spend(codes.process, _size(code))
        return index

    @property
    def has_new_codes(self) -> bool:
        """Whether there are some that the recording does not have yet."""
        return bool(self._new_codes)

    def write_new(self, sink: Sink) -> bool:
        """What the recording does not have yet; true when so much is new that more will be, or it was not copied."""
        is_much, self._was_read = self._was_read or len(self._new_codes) > _FEW_CODES, False
        while self._new_codes:
            sizes = np.cumsum([_size(code) for _, code in self._new_codes])
            count = max(1, int(np.searchsorted(sizes, _CHUNK_BYTES)))
            codes, self._new_codes = self._new_codes[:count], self._new_codes[count:]
            rows = [list(_columns(process, code)) for process, code in codes]
            tables = [_line_table(code) for _, code in codes]
            ends = np.cumsum([len(table) for table in tables], dtype=np.uint64)
            blob = np.frombuffer(b"".join(tables), np.uint8)
            sink.write("codes", {"rows": rows}, {"linetable_ends": ends, "linetables": blob})
        if self._new_stacks:
            stacks, frames, natives = (b"".join(part) for part in zip(*self._new_stacks))
            arrays: dict[str, npt.NDArray[Any]] = {
                "stacks": np.frombuffer(stacks, STACK_DTYPE),
                "python": np.frombuffer(frames, PYTHON_FRAME_DTYPE),
                "native": np.frombuffer(natives, NATIVE_INDEX_DTYPE),
            }
            sink.write("stacks", arrays=arrays)
            self._new_stacks = []
        return is_much


def _size(code: CodeObject | Unresolved) -> int:
    """What it takes in the file, at most."""
    if isinstance(code, Unresolved):
        return _LETTER_BYTES * len(code.reason)
    return _LETTER_BYTES * (len(code.filename) + len(code.qualname)) + len(code.linetable)


def _line_table(code: CodeObject | Unresolved) -> bytes:
    return code.linetable if isinstance(code, CodeObject) else b""


def _columns(process: int, code: CodeObject | Unresolved) -> tuple[int, str, str, int, str]:
    """Process, filename, qualified name, first line, reason; the reason is "" for one that was read."""
    if isinstance(code, CodeObject):
        return process, code.filename, code.qualname, code.first_line, ""
    return process, "", "", 0, code.reason


def _memory_of(copy: memoryview) -> CopiedMemory:
    """What a bp_code_copy holds."""
    code, _, *addresses, table, _, table_bytes = _COPY_HEAD.unpack_from(copy)
    texts = [bytes(copy[at : at + _TEXT_BYTES]) for at in range(_TEXTS_AT, _TABLE_AT, _TEXT_BYTES)]
    parts = [*zip(addresses, texts), (table, bytes(copy[_TABLE_AT : _TABLE_AT + table_bytes]))]
    return CopiedMemory([(code, bytes(copy[_OBJECT_AT:_TEXTS_AT])), *((at, part) for at, part in parts if at)])


def record_time_ns(record: memoryview) -> int:
    """When the kernel side took this stack."""
    return int.from_bytes(record[_TIME_AT : _TIME_AT + 8], "little")
