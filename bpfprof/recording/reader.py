"""Reading a recording back: everything it holds, in memory, and why it ends early if it does.

A recording takes chunks one by one, from a file or as they are made; its arrays hold what has come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np

from bpfprof import array_types as npt
from bpfprof.errors import RecordingError
from bpfprof.model import samples as model
from bpfprof.recording.fields import CODE_COLUMNS, TABLES, TEXTS, WHOLE_LIMIT, checked
from bpfprof.recording.format import MAGIC, Chunk, decode
from bpfprof.recording.renamed import split_renamed
from bpfprof.recording.tables import (
    End,
    RecordedCode,
    RecordedFile,
    RecordedObject,
    RecordedProcess,
    RecordedTask,
    RecordedThread,
    RecordedWaker,
    Start,
)

# Of a process that runs no interpreter any more these stay: frames from before an exec are still read with them.
_OF_INTERPRETER = ("interpreter", "version", "build", "entry_marks_from", "shim_is_python")
_OF_TIME = ("samples", "waits", "totals", "short_waits", "marks", "task_waits", "events", "lock_holders")
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
_TEXT_COLUMNS = {"names": ("function", "file"), "marks": ("name",), "task_waits": ("waits_for", "callback")}


class _GrowingRows:
    """Rows that are appended to. Those that were handed out stay as they are."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._rows = np.zeros(0, dtype)
        self._count = 0

    def append(self, array: npt.NDArray[Any]) -> None:
        """Takes the fields that this version knows; those the array lacks are 0. Raises ValueError without the first.

        So rows in memory are not many times what they are in the file.
        """
        first = (self._rows.dtype.names or ("",))[0]
        if first not in (array.dtype.names or ()):
            raise ValueError(f"rows without the column {first}")
        end = self._count + len(array)
        if end > len(self._rows):
            self._grow(max(end, len(self._rows) * 5 // 4))
        with np.errstate(invalid="ignore"):  # a damaged column of numbers that are none
            for name in set(self._rows.dtype.names or ()) & set(array.dtype.names or ()):
                self._rows[name][self._count : end] = array[name]
        self._count = end

    def _grow(self, count: int) -> None:
        try:
            self._rows.resize(count)  # in place: a long recording is never in memory twice
        except ValueError:  # somebody has a view of them
            rows = np.zeros(count, self._rows.dtype)
            rows[: self._count] = self._rows[: self._count]
            self._rows = rows

    def view(self) -> npt.NDArray[np.void]:
        """All rows, to be read only."""
        return read_only(self._rows[: self._count])


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, which cannot be written any more."""
    array.setflags(write=False)
    return array


def _no_rows(dtype: np.dtype[np.void]) -> Callable[[], npt.NDArray[np.void]]:
    return lambda: read_only(np.zeros(0, dtype))


@dataclass
class Recording:
    """All of a recording. Indices in the arrays count from 0, but stacks, wakers and objects from 1 (0: none).

    `names`, `marks` and `task_waits` refer to `texts`, in which a text can be more than once.
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
    task_waits: npt.NDArray[np.void] = field(default_factory=_no_rows(model.TASK_WAIT_DTYPE))
    events: npt.NDArray[np.void] = field(default_factory=_no_rows(model.EVENT_DTYPE))
    lock_holders: npt.NDArray[np.void] = field(default_factory=_no_rows(model.LOCK_HOLDER_DTYPE))
    unfinished: str = ""
    _rows: dict[str, _GrowingRows] = field(default_factory=dict, repr=False, compare=False)

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

    def clear(self, name: str) -> None:
        """Gives up the rows of one kind; arrays of them that were handed out stay."""
        dtype = getattr(self, name).dtype
        self._rows.pop(name, None)
        setattr(self, name, read_only(np.zeros(0, dtype)))

    def _append(self, name: str, array: npt.NDArray[Any]) -> None:
        rows = self._rows.setdefault(name, _GrowingRows(getattr(self, name).dtype))
        setattr(self, name, None)  # a view that nobody else has is given up, so that rows grow in place
        try:
            rows.append(array)
        finally:
            setattr(self, name, rows.view())

    def _take_texts(self, chunk: Chunk) -> None:
        """Places in the chunk's texts become places in all texts."""
        texts, own = TEXTS(chunk.fields["texts"]), _GrowingRows(getattr(self, chunk.kind).dtype)
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
    split_renamed(recording)
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
        valid = np.ones(len(rows), np.bool_)
        for field_name in set(limits) & set(rows.dtype.names):
            valid &= rows[field_name].astype(np.int64) <= limits[field_name]
        for field_name in rows.dtype.names:
            if field_name.endswith("_ns") or field_name == "count":
                # They are added up, too.
                is_large = field_name not in _MOMENTS and rows[field_name].sum(dtype=np.float64) >= WHOLE_LIMIT
                valid &= rows[field_name] < (WHOLE_LIMIT // len(rows) if is_large else WHOLE_LIMIT)
        if not valid.all():
            count = int((~valid).sum())
            recording.unfinished = recording.unfinished or f"{count} {name} are damaged or refer to what is missing"
            setattr(recording, name, read_only(rows[valid]))
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
