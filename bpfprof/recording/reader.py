"""Reading a recording back: everything it holds, in memory, and why it ends early if it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from bpfprof.errors import RecordingError
from bpfprof.model.samples import (
    NAME_DTYPE,
    NATIVE_DTYPE,
    NATIVE_INDEX_DTYPE,
    PYTHON_FRAME_DTYPE,
    SAMPLE_DTYPE,
    SHORT_DTYPE,
    STACK_DTYPE,
    TOTAL_DTYPE,
    WAIT_DTYPE,
)
from bpfprof.recording.fields import CODE_COLUMNS, TEXTS, WHOLE_LIMIT, checked
from bpfprof.recording.format import MAGIC, Chunk, decode


@dataclass(slots=True)
class RecordedProcess:
    """A process as it was last described (an exec describes it anew); `python` is the last one it ran."""

    pid: int = 0
    name: str = ""
    command_line: list[str] = field(default_factory=list)
    python: tuple[int, int] | None = None
    python_version: str = ""
    entry_marks_from: int = 0
    shim_is_python: bool = False
    gil: tuple[int, int] | None = None  # (address, bytes)
    is_kernel_thread: bool = False
    note: str = ""


@dataclass(slots=True)
class RecordedThread:
    """A thread; process is an index into Recording.processes."""

    process: int = 0
    tid: int = 0
    first_ns: int = 0
    name: str = ""


@dataclass(slots=True)
class RecordedWaker:
    """A thread that ended waits; thread is an index into Recording.threads + 1, 0 for one that is not a target."""

    thread: int = 0
    pid: int = 0
    tid: int = 0
    process_name: str = ""
    name: str = ""


@dataclass(slots=True)
class RecordedAccount:
    """Where the wall time of a thread went, as the recording's own summary gave it."""

    pid: int = 0
    tid: int = 0
    process_name: str = ""
    name: str = ""
    wall_ns: int = 0
    on_cpu_ns: int = 0
    runqueue_ns: int = 0
    off_cpu_ns: int = 0
    off_by_reason_ns: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedCode:
    """A code object; `reason` says why it could not be read ("" when it was)."""

    process: int
    filename: str
    qualname: str
    first_line: int
    reason: str
    linetable: bytes


@dataclass(slots=True)
class RecordedFile:
    """A file that code was mapped from; kind: elf, vdso, memory or kernel; `note` says why it has no unwind table."""

    kind: str = ""
    path: str = ""
    build_id: str = ""
    note: str = ""


@dataclass(slots=True)
class Recording:
    """All of a recording. Indices in the arrays count from 0, but stacks and wakers from 1 (0: none)."""

    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    processes: list[RecordedProcess] = field(default_factory=list)
    threads: list[RecordedThread] = field(default_factory=list)
    codes: list[RecordedCode] = field(default_factory=list)
    files: list[RecordedFile] = field(default_factory=list)
    wakers: list[RecordedWaker] = field(default_factory=list)
    accounting: list[RecordedAccount] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # of names
    stacks: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, STACK_DTYPE))
    python_frames: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PYTHON_FRAME_DTYPE))
    native_frames: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, NATIVE_INDEX_DTYPE))
    natives: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, NATIVE_DTYPE))
    names: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, NAME_DTYPE))
    samples: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, SAMPLE_DTYPE))
    waits: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, WAIT_DTYPE))
    totals: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, TOTAL_DTYPE))
    short_waits: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, SHORT_DTYPE))
    unfinished: str = ""


_ARRAYS = {
    ("stacks", "stacks"): ("stacks", STACK_DTYPE),
    ("stacks", "python"): ("python_frames", PYTHON_FRAME_DTYPE),
    ("stacks", "native"): ("native_frames", NATIVE_INDEX_DTYPE),
    ("natives", "rows"): ("natives", NATIVE_DTYPE),
    ("names", "rows"): ("names", NAME_DTYPE),
    ("samples", "rows"): ("samples", SAMPLE_DTYPE),
    ("waits", "rows"): ("waits", WAIT_DTYPE),
    ("totals", "rows"): ("totals", TOTAL_DTYPE),
    ("short_waits", "rows"): ("short_waits", SHORT_DTYPE),
}

# Chunk kind -> (attribute of Recording, type of a row)
_TABLES: dict[str, tuple[str, type[Any]]] = {
    "processes": ("processes", RecordedProcess),
    "threads": ("threads", RecordedThread),
    "files": ("files", RecordedFile),
    "wakers": ("wakers", RecordedWaker),
}
_OF_PYTHON = ("python", "python_version", "entry_marks_from", "shim_is_python")


def read_recording(file: BinaryIO) -> Recording:
    """All that can be read; `unfinished` says what is wrong with the rest.

    Raises RecordingError when it is not a recording or has not even a beginning.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise RecordingError("this is not a bpfprof recording of a version that is known here")
    recording = Recording()
    parts = {name: _GrowingRows(dtype) for name, dtype in _ARRAYS.values()}
    try:
        while (chunk := decode(file)) is not None:
            _take(recording, chunk, parts)
        if not recording.end:
            recording.unfinished = "it has no end: bpfprof was stopped before it could write it"
    except RecordingError as error:
        recording.unfinished = str(error)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        recording.unfinished = f"the recording is damaged: {error}"
    if not recording.start:
        raise RecordingError(recording.unfinished or "the recording is empty")
    for name, rows in parts.items():
        setattr(recording, name, rows.take())
    _check(recording)
    return recording


class _GrowingRows:
    """Rows that are appended to in place: a long recording is never in memory twice."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._rows = np.zeros(0, dtype)
        self._count = 0

    def append(self, array: npt.NDArray[Any]) -> None:
        """Takes the fields that this version knows; those the array lacks are 0."""
        end = self._count + len(array)
        if end > len(self._rows):
            self._rows.resize(max(end, len(self._rows) * 9 // 8), refcheck=False)
        with np.errstate(invalid="ignore"):  # a damaged column of numbers that are none
            for name in set(self._rows.dtype.names or ()) & set(array.dtype.names or ()):
                self._rows[name][self._count : end] = array[name]
        self._count = end

    def take(self) -> npt.NDArray[np.void]:
        """All rows; nothing may be appended afterwards."""
        return self._rows[: self._count]


def _take(recording: Recording, chunk: Chunk, parts: dict[str, _GrowingRows]) -> None:
    if chunk.kind == "names":
        _take_names(recording, chunk, parts["names"])
        return
    for key, array in chunk.arrays.items():
        known = _ARRAYS.get((chunk.kind, key))
        if known is not None:
            parts[known[0]].append(array)
    if chunk.kind == "start":
        recording.start = checked("start", chunk.fields)
    elif chunk.kind == "end":
        recording.end = checked("end", chunk.fields)
    elif chunk.kind == "accounting":
        recording.accounting = [RecordedAccount(**_known(RecordedAccount, row)) for row in chunk.fields["rows"]]
    elif chunk.kind == "codes":
        _take_codes(recording, chunk)
    elif chunk.kind in _TABLES:
        name, row_type = _TABLES[chunk.kind]
        for row in chunk.fields["rows"]:
            _update(getattr(recording, name), row_type, _with_last_python(checked(chunk.kind, row)))


def _known(row_type: type[Any], values: Any) -> dict[str, Any]:
    return {name: value for name, value in checked("accounting", values).items() if name in row_type.__slots__}


def _take_names(recording: Recording, chunk: Chunk, names: _GrowingRows) -> None:
    """Places in the chunk's texts become places in all texts."""
    own, texts = _GrowingRows(NAME_DTYPE), TEXTS(chunk.fields["texts"])
    own.append(chunk.arrays["rows"])
    rows = own.take()
    for column in ("function", "file"):
        if len(rows) and int(rows[column].max()) >= len(texts):
            raise ValueError("a name refers to a text that is missing")
        rows[column] += len(recording.texts)
    recording.texts += texts
    names.append(rows)


def _take_codes(recording: Recording, chunk: Chunk) -> None:
    blob, begin = chunk.arrays["linetables"].tobytes(), 0
    for row, end in zip(chunk.fields["rows"], chunk.arrays["linetable_ends"].tolist(), strict=True):
        process, filename, qualname, first_line, reason = (
            check(value) for check, value in zip(CODE_COLUMNS.values(), row, strict=True)
        )
        recording.codes.append(RecordedCode(process, filename, qualname, first_line, reason, blob[begin:end]))
        begin = end


def _with_last_python(values: dict[str, Any]) -> dict[str, Any]:
    """A process that runs no Python any more (after an exec) keeps what is needed to read the frames from before."""
    if values.get("python") is not None:
        return values
    return {name: value for name, value in values.items() if name not in _OF_PYTHON}


def _update(rows: list[Any], row_type: type[Any], values: dict[str, Any]) -> None:
    index = values["index"]
    if index > len(rows):
        raise ValueError(f"row {index} comes before row {len(rows)}")
    if index == len(rows):
        rows.append(row_type())
    for name, value in values.items():
        if name in row_type.__slots__:
            setattr(rows[index], name, value)


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
        "waker_stack": whole,
        "holder": len(recording.threads),
        "holder_stack": whole,
    }
    for name in ("samples", "waits", "totals", "short_waits"):
        rows = getattr(recording, name)
        valid = np.ones(len(rows), np.bool_)
        for field_name in set(limits) & set(rows.dtype.names):
            valid &= rows[field_name].astype(np.int64) <= limits[field_name]
        for field_name in rows.dtype.names:
            if field_name.endswith("_ns"):
                valid &= rows[field_name] < WHOLE_LIMIT
        if not valid.all():
            count = int((~valid).sum())
            recording.unfinished = recording.unfinished or f"{count} {name} are damaged or refer to what is missing"
            setattr(recording, name, rows[valid])
    natives = recording.native_frames["native"]
    natives[natives > len(recording.natives)] = 0
    named = recording.names["native"]
    recording.names = recording.names[(named > 0) & (named <= len(recording.natives))]
    for what, owned in (("thread", recording.threads), ("code object", recording.codes)):
        if any(row.process >= len(recording.processes) for row in owned):
            raise RecordingError(f"the recording is damaged: a {what} without a process")
    for waker in recording.wakers:
        if waker.thread > len(recording.threads):
            waker.thread = 0
