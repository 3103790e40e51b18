"""What a recording holds, in memory: it takes chunks one by one, from a file or as they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, cast

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model import samples as model
from bpfprof.model.rows import MOST_BYTES, FiledRows, GrowingRows, read_only
from bpfprof.recording.fields import CODE_COLUMNS, TABLES, TEXTS, checked
from bpfprof.recording.format import Chunk
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
OF_TIME = ("samples", "waits", "totals", "short_waits", "marks", "calls", "task_waits", "events", "lock_holders")
_ROWS = ("natives", "names", *OF_TIME)
# (kind, array) of a chunk -> attribute of Recording
_ARRAYS = {
    ("stacks", "stacks"): "stacks",
    ("stacks", "python"): "python_frames",
    ("stacks", "native"): "native_frames",
    **{(kind, "rows"): kind for kind in _ROWS},
}
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

    @property
    def is_large(self) -> bool:
        """Whether its waits are so many that they are in a file."""
        return self.waits.nbytes > MOST_BYTES

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

    def give_up_frames(self, gone: npt.NDArray[np.bool_]) -> None:
        """Of these stacks, which stay as stacks of no frames; arrays that were handed out stay."""
        stacks = self.stacks.copy()
        python, native = stacks["python_count"], stacks["native_count"] + stacks["kernel_count"].astype(np.int64)
        frames = {
            "python_frames": self.python_frames[: python.sum()][np.repeat(~gone, python)],
            "native_frames": self.native_frames[: native.sum()][np.repeat(~gone, native)],
        }
        for name in ("python_count", "native_count", "kernel_count"):
            stacks[name][gone] = 0
        for name, rows in {"stacks": stacks, **frames}.items():
            self.clear(name)
            self._append(name, rows)

    def _rows_of(self, name: str) -> GrowingRows:
        return self._rows.setdefault(name, GrowingRows(getattr(self, name).dtype))

    def _append(self, name: str, array: npt.NDArray[Any]) -> None:
        rows = self._rows_of(name)
        setattr(self, name, None)  # a view that nobody else has is given up, so that rows grow in place
        try:
            rows.append(array)
        finally:
            setattr(self, name, rows.view())

    def _take_texts(self, chunk: Chunk) -> None:
        """Places in the chunk's texts become places in all texts."""
        texts, own = TEXTS(chunk.fields["texts"]), GrowingRows(getattr(self, chunk.kind).dtype)
        self._rows_of(chunk.kind).check(chunk.arrays["rows"])
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
