"""Reading a recording back: everything it holds, in memory, and why it ends early if it does.

A recording takes chunks one by one, from a file or as they are made; its arrays hold what has come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, BinaryIO, cast

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.errors import RecordingError
from bpfprof.model import samples as model
from bpfprof.model.rows import FiledRows, GrowingRows, blocks, read_only
from bpfprof.recording.fields import CODE_COLUMNS, TABLES, TEXTS, WHOLE_LIMIT, checked
from bpfprof.recording.format import MAGIC, Chunk, decode
from bpfprof.recording.multiples import bound_multiples
from bpfprof.recording.renamed import split_renamed
from bpfprof.recording.tables import (
    End,
    RecordedCode,
    RecordedFile,
    RecordedLastWait,
    RecordedObject,
    RecordedProcess,
    RecordedTask,
    RecordedThread,
    RecordedWaker,
    Start,
)

# Of a process that runs no interpreter any more these stay: frames from before an exec are still read with them.
_OF_INTERPRETER = ("interpreter", "version", "build", "entry_marks_from", "shim_is_python")
_OF_TIME = ("samples", "waits", "totals", "short_waits", "marks", "calls", "task_waits", "events", "lock_holders")
_ROWS = ("natives", "names", *_OF_TIME)
# (kind, array) of a chunk -> attribute of Recording
_ARRAYS = {
    ("stacks", "stacks"): "stacks",
    ("stacks", "python"): "python_frames",
    ("stacks", "native"): "native_frames",
    **{(kind, "rows"): kind for kind in _ROWS},
}
_MOMENTS = {"time_ns", "since_ns", "first_ns", "wake_ns", "begin_ns", "end_ns"}  # they are never added
# Columns that are places in the texts of their chunk.
_TEXT_COLUMNS = {
    "names": ("function", "file"),
    "marks": ("name",),
    "calls": ("function",),
    "task_waits": ("waits_for", "callback"),
}


def _no_rows(dtype: np.dtype[np.void]) -> Callable[[], npt.NDArray[np.void]]:
    return lambda: read_only(np.zeros(0, dtype))


@dataclass
class Recording:
    """All of a recording. Indices in the arrays count from 0, but stacks, wakers and objects from 1 (0: none).

    `names`, `marks`, `calls` and `task_waits` refer to `texts`, in which a text can be more than once.
    """

    start: Start = field(default_factory=lambda: Start())
    end: End = field(default_factory=lambda: End())
    processes: list[RecordedProcess] = field(default_factory=list)
    threads: list[RecordedThread] = field(default_factory=list)
    tasks: list[RecordedTask] = field(default_factory=list)
    codes: list[RecordedCode] = field(default_factory=list)
    files: list[RecordedFile] = field(default_factory=list)
    wakers: list[RecordedWaker] = field(default_factory=list)
    objects: list[RecordedObject] = field(default_factory=list)
    last_waits: list[RecordedLastWait] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    stacks: npt.NDArray[np.void] = field(default_factory=_no_rows(model.STACK_DTYPE))
    python_frames: npt.NDArray[np.void] = field(default_factory=_no_rows(model.PYTHON_FRAME_DTYPE))
    native_frames: npt.NDArray[np.void] = field(default_factory=_no_rows(model.NATIVE_INDEX_DTYPE))
    natives: npt.NDArray[np.void] = field(default_factory=_no_rows(model.NATIVE_DTYPE))
    names: npt.NDArray[np.void] = field(default_factory=_no_rows(model.NAME_DTYPE))
    samples: npt.NDArray[np.void] = field(default_factory=_no_rows(model.SAMPLE_DTYPE))
    waits: npt.NDArray[np.void] = field(default_factory=_no_rows(model.WAIT_DTYPE))
    totals: npt.NDArray[np.void] = field(default_factory=_no_rows(model.TOTAL_DTYPE))
    short_waits: npt.NDArray[np.void] = field(default_factory=_no_rows(model.SHORT_DTYPE))
    marks: npt.NDArray[np.void] = field(default_factory=_no_rows(model.MARK_DTYPE))
    calls: npt.NDArray[np.void] = field(default_factory=_no_rows(model.CALL_DTYPE))
    task_waits: npt.NDArray[np.void] = field(default_factory=_no_rows(model.TASK_WAIT_DTYPE))
    events: npt.NDArray[np.void] = field(default_factory=_no_rows(model.EVENT_DTYPE))
    lock_holders: npt.NDArray[np.void] = field(default_factory=_no_rows(model.LOCK_HOLDER_DTYPE))
    unfinished: str = ""
    _rows: dict[str, GrowingRows] = field(default_factory=dict, repr=False, compare=False)

    def take(self, chunk: Chunk) -> None:
        """Adds one chunk. Raises ValueError, KeyError, TypeError or IndexError for one that is damaged."""
        if chunk.kind in _TEXT_COLUMNS:
            self._take_texts(chunk)
        else:
            for key, array in chunk.arrays.items():
                if (chunk.kind, key) in _ARRAYS:
                    self._append(_ARRAYS[chunk.kind, key], array)
        if chunk.kind == "start":
            self.start = cast(Start, checked("start", chunk.fields))
        elif chunk.kind == "end":
            self.end = cast(End, checked("end", chunk.fields))
        elif chunk.kind == "codes":
            self._take_codes(chunk)
        elif chunk.kind in TABLES:
            for row in chunk.fields["rows"]:
                _update(getattr(self, chunk.kind), TABLES[chunk.kind], checked(chunk.kind, row))

    def write(
        self, kind: str, fields: dict[str, Any] | None = None, arrays: dict[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """The same, as a Sink of a recording that is being made."""
        self.take(Chunk(kind, fields or {}, arrays or {}))

    def keep_in_file(self, name: str) -> None:
        """Rows of this kind, of which there are none yet, may be so many that they should not be in memory."""
        self._rows[name] = FiledRows(getattr(self, name).dtype)

    def clear(self, name: str) -> None:
        """Gives up the rows of one kind; arrays of them that were handed out stay."""
        dtype = getattr(self, name).dtype
        self._rows.pop(name, None)
        setattr(self, name, read_only(np.zeros(0, dtype)))

    def _append(self, name: str, array: npt.NDArray[Any]) -> None:
        rows = self._rows.setdefault(name, GrowingRows(getattr(self, name).dtype))
        setattr(self, name, None)  # a view that nobody else has is given up, so that rows grow in place
        try:
            rows.append(array)
        finally:
            setattr(self, name, rows.view())

    def _take_texts(self, chunk: Chunk) -> None:
        """Places in the chunk's texts become places in all texts."""
        texts, own = TEXTS(chunk.fields["texts"]), GrowingRows(getattr(self, chunk.kind).dtype)
        own.append(chunk.arrays["rows"])
        rows = own.view().copy()
        for column in _TEXT_COLUMNS[chunk.kind]:
            if len(rows) and int(rows[column].max()) >= len(texts):
                raise ValueError("a name refers to a text that is missing")
            rows[column] += len(self.texts)
        self.texts += texts
        self._append(chunk.kind, rows)

    def _take_codes(self, chunk: Chunk) -> None:
        blob, begin = chunk.arrays["linetables"].tobytes(), 0
        rows, ends = chunk.fields["rows"], chunk.arrays["linetable_ends"].tolist()
        if any(after < before for before, after in zip([0, *ends], [*ends, len(blob)])):
            raise ValueError("line tables that overlap")
        if len(rows) != len(ends) or any(len(row) != len(CODE_COLUMNS) for row in rows):
            raise ValueError("a column of code objects is too short or too long")
        for row, end in zip(rows, ends):
            columns = [check(value) for check, value in zip(CODE_COLUMNS.values(), row)]
            self.codes.append(RecordedCode(*columns, *[blob[begin:end]]))
            begin = end


def read_recording(file: BinaryIO) -> Recording:
    """All that can be read; `unfinished` says what is wrong with the rest.

    Raises RecordingError when it is not a recording or has not even a beginning.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise RecordingError("this is not a bpfprof recording of a version that is known here")
    recording = Recording()
    recording.keep_in_file("waits")
    try:
        while (chunk := decode(file)) is not None:
            recording.take(chunk)
        if not recording.end:
            recording.unfinished = "it has no end: bpfprof was stopped before it could write it"
    except RecordingError as error:
        recording.unfinished = str(error)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        recording.unfinished = f"the recording is damaged: {error}"
    if not recording.start:
        raise RecordingError(recording.unfinished or "the recording is empty")
    _check(recording)
    for left_out in (*bound_multiples(recording), *split_renamed(recording)):
        recording.unfinished = recording.unfinished or left_out
    return recording


def _update(rows: list[Any], row_type: type[Any], values: dict[str, Any]) -> None:
    index = values.pop("index")
    if index > len(rows):
        raise ValueError(f"row {index} comes before row {len(rows)}")
    if index == len(rows):
        rows.append(row_type())
    is_known = bool(values.get("interpreter"))
    for name in values.keys() & set(row_type.__dataclass_fields__):
        if is_known or name not in _OF_INTERPRETER:
            setattr(rows[index], name, values[name])


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
    for name in _OF_TIME:
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
