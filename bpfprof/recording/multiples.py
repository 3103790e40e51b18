"""What few bytes of a file would make much of: a recording in, the same with less of it out.

Stacks have their frames once in the file, but frames have one name for each inlined function, and each is shown by its
name. So a name or a row of a name can stand for a million. What bpfprof writes of programs is far below these limits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.errors import RecordingError
from bpfprof.recording.fields import TABLES

if TYPE_CHECKING:
    from bpfprof.recording.contents import Recording
    from bpfprof.recording.format import Chunk

_FRAMES, _FRAME_TIMES = 1 << 18, 4  # of all stacks with those inlined; and so many for each in the file
_INLINED = 64  # names of one address
_DEEPEST = 1 << 16  # frames of one stack, unless it has more that are not inlined
# Of the names of all frames; so many for each letter of texts, and for each byte of frames: a native one has four.
_LETTERS, _TEXT_TIMES, _TABLE_TIMES = 1 << 24, 4, 64
_NAME_LETTERS = 16 << 10  # the longest that is written (elf/symbols/table.py)
# What is written has a quarter.
_LABELS = {"name": 1024, "given_name": 1024, "process_name": 1024, "rank": 1024, "cgroup": 4096}
# Of the names of processes, shown with each of their threads, together; the least and the most letters of one of them.
_OF_PROCESS, _PROCESS_LETTERS, _LEAST_LETTERS, _MOST_LETTERS = ("name", "given_name", "rank"), 1 << 20, 32, 1024
_SHORT_LETTERS = 256  # names are never cut to less
# What a row of a table takes in memory when it was read, and what all of them may take: so many bytes, and so many
# times what was read. Of a row as bpfprof writes it an eighth or more is in the file.
_ROW_BYTES, _PROCESS_BYTES, _TABLES_BYTES, _TABLES_TIMES = 250, 500, 64 << 20, 8
# A report takes some 4,300 bytes for each thread, whatever it did, and 7,000 where names have letters beyond 16 bits.
# What bpfprof writes of a thread has more than 256: its row, its totals, and what it did.
_THREADS, _THREAD_BYTES = 30_000, 256


def check_row_count(recording: Recording, chunk: Chunk, file_bytes: int) -> None:
    """Raises RecordingError where rows of tables, with those of the chunk, are too many for what was read."""
    if chunk.kind not in TABLES:
        return
    count = len(chunk.fields["rows"]) + sum(len(getattr(recording, kind)) for kind in TABLES)
    processes = len(recording.processes) + (len(chunk.fields["rows"]) if chunk.kind == "processes" else 0)
    size = count * _ROW_BYTES + processes * (_PROCESS_BYTES - _ROW_BYTES)
    if size > _TABLES_BYTES + _TABLES_TIMES * file_bytes:
        raise RecordingError(f"the recording is damaged: its {chunk.kind} are too many for so few bytes")


def bound_threads(recording: Recording, file_bytes: int) -> str:
    """What was left out, in words."""
    most, count = _THREADS + file_bytes // _THREAD_BYTES, len(recording.threads)
    del recording.threads[most:]
    return f"{count - most:,} threads are too many for so few bytes" if count > most else ""


def bound_multiples(recording: Recording) -> list[str]:
    """What was left out, in words."""
    said = [_bound_inlined(recording), _bound_names(recording), _bound_labels(recording)]
    return [text for text in said if text]


def _uses(recording: Recording) -> npt.NDArray[np.int64]:
    """How many frames of stacks each address is, by its number."""
    return np.bincount(recording.native_frames["native"], minlength=len(recording.natives) + 1)


def _bound_inlined(recording: Recording) -> str:
    names, uses = recording.names, _uses(recording)
    most = _FRAMES + _FRAME_TIMES * len(recording.native_frames)
    of_native = np.bincount(names["native"], minlength=len(uses))
    stacks, numbers = recording.stacks, recording.native_frames["native"]
    ends = np.cumsum(stacks["native_count"] + stacks["kernel_count"].astype(np.int64))
    limit = _INLINED

    def is_too_much() -> bool:
        frames = np.append(0, np.cumsum(np.minimum(of_native, limit)[numbers]))
        deepest = np.diff(frames[ends], prepend=0).max(initial=0)
        return bool(frames[-1] > most or deepest > _DEEPEST)

    while limit > 1 and is_too_much():
        limit //= 2
    if int(of_native.max(initial=0)) <= limit:
        return ""
    order = np.argsort(names["native"], kind="stable")
    behind = np.cumsum(of_native)[names["native"][order]] - np.arange(len(names))  # outer ones, itself included
    kept = np.sort(order[behind <= limit])
    recording.names = names[kept]
    return f"{len(names) - len(kept):,} names of inlined functions are too many"


def _bound_names(recording: Recording) -> str:
    names, uses = recording.names, _uses(recording)
    lengths = np.array([len(text) for text in recording.texts] or [0], np.int64)
    codes = np.array([(len(code.filename), len(code.qualname)) for code in recording.codes] or [(0, 0)], np.int64)
    of_code = np.bincount(recording.python_frames["code"].clip(max=len(codes) + 1), minlength=len(codes) + 2)
    of_code = of_code[1 : len(codes) + 1] + 1
    of_name = uses[names["native"]] + 1
    tables = (*(getattr(recording, name) for name in ("stacks", "python_frames", "native_frames", "names")),)
    most = (
        _LETTERS + _TEXT_TIMES * int(lengths.sum() + codes.sum()) + _TABLE_TIMES * sum(each.nbytes for each in tables)
    )
    limit = _NAME_LETTERS

    def letters() -> float:
        own = np.minimum(lengths, limit)
        of_names = own[names["function"]] + own[names["file"]]
        return float(_product(of_name, of_names).sum() + _product(of_code, np.minimum(codes, limit).sum(axis=1)).sum())

    while limit > _SHORT_LETTERS and letters() > most:
        limit //= 2
    count = int((lengths > limit).sum()) + int((codes > limit).any(axis=1).sum())
    if not count:
        return ""
    recording.texts = [_cut(text, limit) for text in recording.texts]
    recording.codes = [
        replace(code, filename=_cut(code.filename, limit), qualname=_cut(code.qualname, limit))
        for code in recording.codes
    ]
    return f"{count:,} names are too long"


def _bound_labels(recording: Recording) -> str:
    """A process has its name once, and each of its threads shows it."""
    count = 0
    of_processes = _LABELS | dict.fromkeys(_OF_PROCESS, _process_letters(recording))
    others = ((rows, _LABELS) for rows in (recording.threads, recording.tasks, recording.wakers))
    for rows, limits in ((recording.processes, of_processes), *others):
        for row in rows:
            for name, limit in limits.items():
                text = getattr(row, name, "")
                if len(text) > limit:
                    setattr(row, name, _cut(text, limit))
                    count += 1
    return f"{count:,} names of threads and processes are too long" if count else ""


def _process_letters(recording: Recording) -> int:
    """How many letters a name of a process may have."""
    numbers = [thread.process for thread in recording.threads]
    thread_counts = np.bincount(np.array(numbers, np.int64), minlength=len(recording.processes))
    lengths = np.array([[len(getattr(row, name)) for name in _OF_PROCESS] for row in recording.processes] or [[0]])

    def letters(limit: int) -> float:
        return float(_product(np.minimum(lengths, limit).sum(axis=1), thread_counts).sum())

    limit = _MOST_LETTERS
    while limit > _LEAST_LETTERS and letters(limit) > _PROCESS_LETTERS:
        limit //= 2
    return limit


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _product(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(one.astype(np.float64) * other)
