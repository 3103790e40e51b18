"""Profile with its spans -> a Parquet file (parquet.apache.org): time by thread, stack, state and what was waited for.

pyarrow writes it, which is imported only here; the text of a column is stored once, however many rows have it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.errors import UnsupportedError
from bpfprof.model.memory import give_back_freed
from bpfprof.model.profile import Profile
from bpfprof.model.states import ThreadState, reason_text
from bpfprof.query.code.functions import wait_owners
from bpfprof.query.work.shares import IDLE
from bpfprof.query.work.table import Work, work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import command_text
from bpfprof.render.labels import file_names, frame_labels, printable
from bpfprof.render.report_json import quality_json
from bpfprof.render.wait_names import WaitNames

STATES = {
    **{ThreadState.ON_CPU: "cpu", ThreadState.RUNQUEUE: "ready", ThreadState.OFF_CPU: "wait"},
    ThreadState.UNKNOWN: "unknown",
}


def check_pyarrow() -> str:
    """Its version, without loading it, which takes some 60 MB. Raises UnsupportedError when it is missing."""
    try:
        if importlib.util.find_spec("pyarrow"):
            return importlib.metadata.version("pyarrow")
    except (ImportError, ValueError) as error:
        raise _missing(error) from error
    raise _missing("there is no module of this name")


def _missing(why: object) -> UnsupportedError:
    hint = "pip install 'bpfprof[parquet]' for the Python that runs it, or -f csv"
    return UnsupportedError(f"Parquet files need pyarrow, which is not here: {why}", hint)


def texts_of(values: Sequence[str | None], places: npt.NDArray[Any]) -> Any:
    """A column of texts, each stored once: values[place] of each row; none of place -1, and where it is "" or None."""
    import pyarrow

    numbers: dict[str, int] = {}
    of_value = [numbers.setdefault(value, len(numbers)) if value else -1 for value in values]
    found = np.array([*of_value, -1], np.int32)[places]
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(found, pyarrow.int32(), mask=found < 0), pyarrow.array([*numbers], pyarrow.string())
    )


def thread_columns(profile: Profile, threads: npt.NDArray[Any]) -> dict[str, Any]:
    """pid, process, tid and thread of rows that are of these threads."""
    import pyarrow

    of_all = profile.threads
    return {
        "pid": pyarrow.array(np.array([int(each.pid) for each in of_all], np.int64)[threads]),
        "process": texts_of([printable(each.process_name) for each in of_all], threads),
        "tid": pyarrow.array(np.array([int(each.tid) for each in of_all], np.int64)[threads]),
        "thread": texts_of([printable(each.thread_name) for each in of_all], threads),
    }


def state_columns(states: npt.NDArray[Any], reasons: npt.NDArray[Any]) -> dict[str, Any]:
    """state and, of waits, reason."""
    known, places = np.unique(reasons, return_inverse=True)
    words = [printable(reason_text(reason)) if reason else None for reason in known.tolist()]
    return {
        "state": texts_of([STATES[state] for state in ThreadState], states.astype(np.int64)),
        "reason": texts_of(words, np.where(states == ThreadState.OFF_CPU, places, -1)),
    }


def render_parquet(profile: Profile, options: RenderOptions) -> bytes:
    """A row a (thread, stack, state, reason, lock, object): nanoseconds, which add up to the totals of the JSON, and
    what the recording is in the metadata.

    Raises UnsupportedError without pyarrow.
    """
    work = work_of(profile)
    give_back_freed()  # it needs as much as pyarrow, and before it
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise _missing(error) from error
    arrays = _columns(profile, work, options)
    arrays["frames"] = _frames(profile, work, options)
    table = pyarrow.table(arrays).replace_schema_metadata(
        {f"bpfprof.{key}": text for key, text in _facts(profile).items()}
    )
    written = io.BytesIO()
    pyarrow.parquet.write_table(table, written, compression="zstd", use_dictionary=True)
    return written.getvalue()


def _columns(profile: Profile, work: Work, options: RenderOptions) -> dict[str, Any]:
    """Columns by name, nothing where there is nothing to say.

    function, file, line: of the innermost Python frame, else native, else kernel one.
    """
    import pyarrow

    rows, names, files = work.rows, WaitNames(profile, work, options), file_names(profile, options)
    stacks = rows["stack"]
    owners = [profile.frames[owner] if owner >= 0 else None for owner in wait_owners(profile.frames, profile.stacks)]
    lines = np.array([owner.line if owner and not options.function_only else 0 for owner in owners] or [0])[stacks]
    return {
        **thread_columns(profile, rows["thread"]),
        **state_columns(rows["state"], rows["reason"]),
        "lock": pyarrow.array(rows["lock"], mask=rows["lock"] == 0),
        "object": texts_of([names.object(number) for number in range(len(profile.objects) + 1)], rows["object"]),
        "idle": pyarrow.array(rows["share"] == IDLE),
        "ns": pyarrow.array(rows["ns"]),
        "count": pyarrow.array(rows["count"]),
        "function": texts_of([printable(owner.name) if owner else None for owner in owners], stacks),
        "file": texts_of(
            [files.get(owner.file) or printable(owner.file) if owner else None for owner in owners], stacks
        ),
        "line": pyarrow.array(lines, pyarrow.int64(), mask=lines == 0),
    }


def _frames(profile: Profile, work: Work, options: RenderOptions) -> Any:
    """For each row its frames as the contract has them, root first; each text once."""
    import pyarrow

    numbers: dict[str, int] = {}
    of_frames = [numbers.setdefault(label, len(numbers)) for label in frame_labels(profile, options)]
    stacks = [[of_frames[frame] for frame in stack] for stack in profile.stacks]
    rows = work.rows["stack"].tolist()
    ends = np.cumsum([0, *(len(stacks[stack]) for stack in rows)])
    flat = np.fromiter((text for stack in rows for text in stacks[stack]), np.int32, int(ends[-1]))
    texts = pyarrow.DictionaryArray.from_arrays(flat, pyarrow.array(list(numbers), pyarrow.string()))
    return pyarrow.LargeListArray.from_arrays(pyarrow.array(ends, pyarrow.int64()), texts)


def _facts(profile: Profile) -> dict[str, str]:
    info = profile.info
    return {
        "version": printable(info.bpfprof_version),
        "command": command_text(profile),
        "host": printable(info.host_name),
        "kernel": printable(info.kernel_release),
        "started_unix_ns": str(info.started_unix_ns),
        "duration_ns": str(info.duration_ns),
        "rate_hz": str(info.rate_hz),
        "mode": info.mode,
        "filter": printable(profile.filter_text[2:]),
        "wall_ns": str(sum(thread.wall_ns for thread in profile.threads)),
        "quality": json.dumps(quality_json(profile)),
    }
