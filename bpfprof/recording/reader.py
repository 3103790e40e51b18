"""Reading a recording back: everything it holds, and why it ends early if it does."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from bpfprof import array_types as npt
from bpfprof.errors import RecordingError
from bpfprof.model.rows import blocks, read_only
from bpfprof.recording.contents import OF_TIME, Recording
from bpfprof.recording.fields import WHOLE_LIMIT
from bpfprof.recording.format import MAGIC, decode
from bpfprof.recording.multiples import bound_multiples, bound_threads, check_row_count
from bpfprof.recording.renamed import split_renamed

_MOMENTS = {"time_ns", "since_ns", "first_ns", "wake_ns", "begin_ns", "end_ns"}  # they are never added


def read_recording(file: BinaryIO) -> Recording:
    """All that can be read; `unfinished` says what is wrong with the rest.

    Raises RecordingError when it is not a recording or has not even a beginning.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise RecordingError("this is not a bpfprof recording of a version that is known here")
    recording = Recording()
    recording.keep_in_file("waits")
    file_bytes = 0
    try:
        while (chunk := decode(file)) is not None:
            file_bytes += chunk.size
            check_row_count(recording, chunk, file_bytes)
            recording.take(chunk)
        if not recording.end:
            recording.unfinished = "it has no end: bpfprof was stopped before it could write it"
    except RecordingError as error:
        recording.unfinished = str(error)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        recording.unfinished = f"the recording is damaged: {error}"
    if not recording.start:
        raise RecordingError(recording.unfinished or "the recording is empty")
    left_out = bound_threads(recording, file_bytes)
    recording.unfinished = recording.unfinished or left_out
    _check(recording)
    for left_out in (*bound_multiples(recording), *split_renamed(recording)):
        recording.unfinished = recording.unfinished or left_out
    return recording


def _check(recording: Recording) -> None:
    """Leaves out rows that refer to what the file does not have, so that nothing later can go out of bounds."""
    frames_before = np.cumsum(recording.stacks["python_count"], dtype=np.int64)
    whole = int(np.searchsorted(frames_before, len(recording.python_frames), side="right"))
    natives_before = np.cumsum(recording.stacks["native_count"] + recording.stacks["kernel_count"].astype(np.int64))
    whole = min(whole, int(np.searchsorted(natives_before, len(recording.native_frames), side="right")))
    recording.stacks = recording.stacks[:whole]
    limits = {
        "thread": len(recording.threads) - 1,
        "stack": whole,
        "waker": len(recording.wakers),
        "object": len(recording.objects),
        "waker_stack": whole,
        "holder": len(recording.threads),
        "holder_stack": whole,
        "task": len(recording.tasks) - 1,
        "awaited_by": len(recording.tasks),
        "event": len(recording.start.get("events", [])) - 1,
    }
    for name in OF_TIME:
        rows = getattr(recording, name)
        valid = _valid(rows, limits)
        if not valid.all():
            count = int((~valid).sum())
            recording.unfinished = recording.unfinished or f"{count} {name} are damaged or refer to what is missing"
            setattr(recording, name, read_only(rows[valid]))
    _check_length(recording)
    is_missing = recording.native_frames["native"] > len(recording.natives)
    if is_missing.any():
        frames = recording.native_frames.copy()
        frames["native"][is_missing] = 0
        recording.native_frames = read_only(frames)
    named = recording.names["native"]
    recording.names = read_only(recording.names[(named > 0) & (named <= len(recording.natives))])
    for what, owned in (
        ("thread", recording.threads),
        ("task", recording.tasks),
        ("code object", recording.codes),
    ):
        if any(row.process >= len(recording.processes) for row in owned):
            raise RecordingError(f"the recording is damaged: a {what} without a process")
    for waker in recording.wakers:
        if waker.thread > len(recording.threads):
            waker.thread = 0
    known = len(recording.threads)
    recording.last_waits = [wait for wait in recording.last_waits if wait.thread < known and wait.holder <= known]


def _valid(rows: npt.NDArray[np.void], limits: dict[str, int]) -> npt.NDArray[np.bool_]:
    """For each row whether all that it refers to is there, and its times and counts can be added up."""
    names = rows.dtype.names or ()
    most = {name: limit for name, limit in limits.items() if name in names}
    most |= {name: WHOLE_LIMIT - 1 for name in names if name.endswith("_ns") or name in ("count", "bytes")}
    sums, seen = dict.fromkeys(most.keys() - limits.keys() - _MOMENTS, 0.0), dict.fromkeys(most, 0)
    for block in blocks(rows):
        for name in sums:
            sums[name] += float(block[name].sum(dtype=np.float64))
        for name in most:
            seen[name] = max(seen[name], int(block[name].max()))
    most |= {name: WHOLE_LIMIT // len(rows) - 1 for name, whole in sums.items() if whole >= WHOLE_LIMIT}
    exceeded = [name for name in most if seen[name] > most[name]]
    if not exceeded:
        return np.ones(len(rows), np.bool_)
    found = [np.zeros(0, np.bool_)]
    for block in blocks(rows):
        found.append(np.all([block[name] <= most[name] for name in exceeded], axis=0))
    return np.concatenate(found)


def _check_length(recording: Recording) -> None:
    """The time of all threads can be added up as int64."""
    start_ns = recording.start.get("start_ns", 0)
    timed = (recording.samples, recording.waits, recording.totals)
    times = [int(block["time_ns"].max()) for rows in timed for block in blocks(rows)]
    end_ns = recording.end.get("end_ns") or max([start_ns, *times])
    if end_ns < start_ns:
        raise RecordingError("the recording is damaged: it ends before it begins")
    born_ns = [thread.first_ns for thread in recording.threads]
    if (max([end_ns, *born_ns]) - min([start_ns, *born_ns])) * max(1, len(born_ns)) >= WHOLE_LIMIT:
        raise RecordingError("the recording is damaged: it lasts longer than any can")
