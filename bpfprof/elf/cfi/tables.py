"""Call frame information of an ELF file: an `ElfImage` in, rows sorted by address with their rules out.

`.eh_frame` through the table of `.eh_frame_hdr`, else walked; then `.debug_frame` for what is left, and the code itself
where neither tells what it does. x86-64 only. What cannot be understood costs the function it belongs to, no more: that
function gets the rule UNSUPPORTED, or none if it had none, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.elf.asm.traced_rules import JIT_SECTION, traced_rules
from bpfprof.elf.cfi.implied_rules import builtin_rules, implied_rules
from bpfprof.elf.cfi.programs import END, FAILED, REASON_SHIFT, Programs
from bpfprof.elf.cfi.records import Functions, Lost, RecordReader, find_records
from bpfprof.elf.cfi.rules import Addresses, CallFrames, Reason, rows_in_order, rules_array
from bpfprof.elf.cfi.sections import FrameSection, Header, code_range, read_debug_frame, read_eh_frame
from bpfprof.elf.effort import USUAL, Effort
from bpfprof.elf.image import EM_X86_64, ElfError, ElfImage
from bpfprof.elf.leb128 import Ints

_ET_REL = 1
# What one file may cost, whatever it holds; libtensorflow_cc 2.21, the largest we know, has 4.0 million rows.
_ROW_LIMIT = 5_000_000
_WORK_LIMIT = 42_000_000  # steps of some 0.1 us
_RECORD_WORK = 10
_MERGE_LIMIT = 2_000_000  # rows of two sections together
_PROGRAM_LIMIT_BYTES = 256 << 10
_BATCH_BYTES = 256 << 10  # of programs that run together
_CHUNK_ROWS = 1 << 17  # made together

Places = NDArray[np.uint32]
ReadSection = Callable[[ElfImage], "tuple[FrameSection, Header | None]"]


def read_call_frames(image: ElfImage, effort: Effort = USUAL) -> CallFrames:
    """All rows of a file; none when it has no call frame information. effort: for code that says nothing.

    Raises ElfError when the file is not for x86-64, or its section lies outside the file, is too large (64 MiB) or
    cannot be decompressed. A file that would cost too much is decoded in part, and the rest is in `reasons`.
    """
    if image.machine != EM_X86_64 or image.type == _ET_REL:
        raise ElfError("not a program or a library for x86-64")
    frames, work = CallFrames(), 0
    for read in (read_eh_frame, read_debug_frame):
        if len(frames.rule) >= _MERGE_LIMIT:
            frames = frames.with_lost(Reason.TOO_MANY_ROWS) if image.section(".debug_frame") else frames
            break
        try:
            row_limit = _MERGE_LIMIT - len(frames.rule) if frames.function_count else _ROW_LIMIT
            found, work = _decoded(image, read, row_limit, work)
            frames = frames.over(found)  # of a Go program only the start-up code has .eh_frame
        except ElfError:
            if not frames.function_count:
                raise
    if not len(frames.address) and image.section(JIT_SECTION) is None:
        return frames
    frames = frames.over(implied_rules(image, frames, code_range(image)))
    traced = traced_rules(image, frames, effort)
    frames = traced.over(frames) if traced.function_count or len(traced.address) else frames
    return frames.over(builtin_rules(image))


def _decoded(image: ElfImage, read: ReadSection, row_limit: int, work: int) -> tuple[CallFrames, int]:
    """The rows of one section, and the steps that the file has cost with it."""
    section, header = read(image)
    if not section.data:
        return CallFrames(), work
    records, left_out = find_records(section, header)
    programs = Programs()
    programs.work = work
    return frames_of(section, records, left_out, code_range(image), row_limit, programs), programs.work


def frames_of(
    section: FrameSection, records: Ints, left_out: Lost, code: tuple[int, int], row_limit: int, programs: Programs
) -> CallFrames:
    """The rows of these records of a section; programs: without rows."""
    reader = RecordReader(section)
    functions, lost = reader.read(records, code)
    programs.work += _RECORD_WORK * len(records)
    number = _run(programs, reader, functions, section.data, row_limit)
    starts, ends = functions["start"].copy(), functions["end"].copy()
    del reader, functions  # which may be larger than all rows
    locations, codes, firsts = programs.rows()
    bad = np.flatnonzero(codes >> REASON_SHIFT)
    program, first = np.unique(np.searchsorted(firsts, bad, side="right") - 1, return_index=True)
    reason_of = np.zeros(len(firsts) - 1, np.int64)
    reason_of[program] = codes[bad[first]] >> REASON_SHIFT & 0xFF
    has_failed = np.maximum.reduceat(codes, firsts[:-1]) >= FAILED
    number = np.where(has_failed[number], reason_of[number], number)
    number[np.cumsum(np.diff(firsts)[number]) > row_limit] = Reason.TOO_MANY_ROWS
    reasons = left_out + lost
    for reason, count in enumerate(np.bincount(reason_of[number]).tolist()):
        reasons[Reason(reason)] += count if reason else 0
    place, rule = _rows((locations, codes, firsts), number, _ranges(starts, ends, code[0]))
    address = place.astype(np.uint64)
    address += np.uint64(code[0])
    del place
    order = np.argsort(starts, kind="stable")
    frames = CallFrames(
        address,
        rule,
        rules_array(programs.rules),
        starts[order],
        ends[order],
        len(starts) + sum((left_out + lost).values()),
        {reason.text: count for reason, count in reasons.items() if count},
    )
    return frames


def _run(programs: Programs, reader: RecordReader, functions: Functions, data: bytes, row_limit: int) -> Ints:
    """For each function the number of its program, which has run."""
    numbers = functions["failure"].astype(np.int64)
    sizes = functions["stop"] - functions["begin"]
    numbers[(sizes > _PROGRAM_LIMIT_BYTES) & (numbers == 0)] = Reason.TOO_LONG
    order = np.argsort(functions["cie"], kind="stable")
    order = order[numbers[order] == 0]
    known: dict[bytes, int] = {}
    before = -1
    for batch in _batches(functions["cie"][order], sizes[order], order):
        index = int(functions["cie"][batch[0]])
        if index != before:
            cie, before, known = reader.cies[index], index, {}
            machine = programs.machine(cie, data)
        if exhausted := Reason.BAD_CIE if machine.is_bad else _exhausted(programs, row_limit):
            numbers[batch] = exhausted
            continue
        bounds = zip(functions["begin"][batch].tolist(), functions["stop"][batch].tolist())
        contents = [data[begin:stop] for begin, stop in bounds]
        fresh = [content for content in dict.fromkeys(contents) if content not in known]
        known.update(zip(fresh, range(programs.program_count, programs.program_count + len(fresh))))
        if fresh:
            programs.run(machine, fresh)
        numbers[batch] = [known[content] for content in contents]
    return numbers


def _batches(cie: Ints, sizes: Ints, order: Ints) -> Iterator[Ints]:
    """Parts of `order` of one CIE with programs of some _BATCH_BYTES."""
    part = np.cumsum(sizes, dtype=np.int64) // _BATCH_BYTES
    edges = np.flatnonzero((np.diff(part) != 0) | (np.diff(cie) != 0)) + 1
    yield from (batch for batch in np.split(order, edges) if len(batch))


def _exhausted(programs: Programs, row_limit: int) -> Reason:
    """Why the file gets no further programs run; NONE when it does."""
    if programs.row_count >= row_limit:
        return Reason.TOO_MANY_ROWS
    if programs.is_full:
        return Reason.TOO_MANY_RULES
    return Reason.TOO_COSTLY if programs.work >= _WORK_LIMIT else Reason.NONE


def _rows(
    programs: tuple[Places, Places, Ints], number: Ints, ranges: tuple[Places, Places, NDArray[np.bool_]]
) -> tuple[Places, NDArray[np.uint16]]:
    """The rows of all functions by address, which is counted from the first executable segment, as `ranges` are."""
    start, limit, is_gap = ranges
    locations, codes, firsts = programs
    rules = codes.astype(np.uint16)  # without the Reason
    places, ids = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint16)]
    counts = np.diff(firsts)[number]
    edges = np.flatnonzero(np.diff(np.cumsum(counts) // _CHUNK_ROWS)) + 1
    for chunk in np.split(np.arange(len(number)), edges):
        first, count = firsts[number[chunk]], counts[chunk]
        index = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
        location = locations[index]
        is_end = location == END
        function_limit = np.repeat(limit[chunk], count)
        place = np.repeat(start[chunk].astype(np.int64), count) + location
        place[is_end] = function_limit[is_end]
        keep = place < function_limit
        keep[is_end] = is_gap[chunk]
        places.append(place[keep].astype(np.uint32))
        ids.append(rules[index[keep]])
    del counts, number, ranges, start, limit, is_gap
    return rows_in_order(_joined(places), _joined(ids))


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """All of them, which are given up."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _ranges(starts: Addresses, ends: Addresses, base: int) -> tuple[Places, Places, NDArray[np.bool_]]:
    """(start, limit, gap) as offsets from `base`: rows hold up to the limit, and a gap begins there or not.

    Where two functions overlap, the one that begins later has the addresses from its beginning on.
    """
    start, end = ((values - np.uint64(base)).astype(np.uint32) for values in (starts, ends))
    order = np.lexsort((end, start))
    following = np.full(len(start), 1 << 40)
    following[order[:-1]] = start[order[1:]]
    return start, np.minimum(end, following).astype(np.uint32), following > end
