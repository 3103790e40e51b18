"""A Profile -> the tables of one recording in a data set, as docs/fleet.md has them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.fleet.layout import FRAMES, FUNCTIONS, RECORDINGS, SPANS, STACKS, STEPS, THREADS, WEIGHTS, unix_ns
from bpfprof.fleet.rows import MINUTE_NS, DataSpans, data_spans, weight_rows
from bpfprof.model.frames import FrameKind, mark
from bpfprof.model.profile import Profile
from bpfprof.model.spans import How, SpanFlag
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.code.functions import function_name, wait_owners
from bpfprof.query.code.origins import Origin, origins
from bpfprof.query.steps.steps import find_steps
from bpfprof.query.tables.rows import rows_by
from bpfprof.query.work.table import Work, work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import command_text
from bpfprof.render.labels import frame_labels, printable
from bpfprof.render.parquet import state_columns, texts_of, thread_columns
from bpfprof.render.report_json import quality_json
from bpfprof.render.wait_names import WaitNames

SPANS_AT_ONCE = 1 << 18
_LARGEST = (1 << 63) - 1
_OPTIONS = RenderOptions(full_filenames=True)


class Tables:
    """Of a profile that was built with its spans."""

    def __init__(self, profile: Profile, labels: Mapping[str, str]) -> None:
        self._profile, self._labels = profile, labels
        self._work = work_of(profile)
        self._spans = data_spans(profile, self._work)
        self._origins = origins(profile.frames)

    def table(self, name: str) -> Iterator[Any]:
        """Its parts, of which there is one at least: tables of pyarrow."""
        if name == SPANS:
            yield from self._span_tables()
            return
        import pyarrow

        columns = {
            RECORDINGS: lambda: recording_columns(self._profile, self._work, self._labels),
            THREADS: lambda: _thread_rows(self._profile),
            FRAMES: self._frame_rows,
            STACKS: self._stack_rows,
            FUNCTIONS: self._function_rows,
            STEPS: lambda: _step_rows(self._profile),
            WEIGHTS: self._weight_rows,
        }[name]()
        yield pyarrow.table(columns)

    def _frame_rows(self) -> dict[str, Any]:
        import pyarrow

        frames = self._profile.frames
        places = np.arange(len(frames))
        return {
            "frame_id": pyarrow.array(places.astype(np.int32)),
            "kind": texts_of([frame.kind.name.lower() for frame in frames], places),
            **_function_columns(frames, self._origins, places),
            "line": _numbers([frame.line for frame in frames]),
            "text": texts_of(frame_labels(self._profile, _OPTIONS), places),
        }

    def _stack_rows(self) -> dict[str, Any]:
        import pyarrow

        stacks = self._profile.stacks
        ends = np.cumsum([0, *map(len, stacks)])
        flat = np.fromiter((frame for stack in stacks for frame in stack), np.int32, int(ends[-1]))
        return {
            "stack_id": pyarrow.array(np.arange(len(stacks), dtype=np.int32)),
            "frames": pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), pyarrow.array(flat)),
        }

    def _function_rows(self) -> dict[str, Any]:
        import pyarrow

        rows = [row for row in rows_by(self._profile, self._work, "function") if row.frame]
        frames = [row.frame for row in rows if row.frame]
        own, total = (
            np.array([getattr(row, name) for row in rows], np.int64).reshape(-1, 3) for name in ("own_ns", "total_ns")
        )
        times = {
            f"{state}{suffix}_ns": pyarrow.array(part[:, place])
            for suffix, part in (("", own), ("_total", total))
            for place, state in enumerate(("cpu", "ready", "wait"))
        }
        count = pyarrow.array(np.array([row.count for row in rows], np.int64))
        kinds = texts_of([frame.kind.name.lower() for frame in frames], np.arange(len(frames)))
        columns = _function_columns(frames, origins(frames), np.arange(len(frames)))
        return {"kind": kinds, **columns, **times, "count": count}

    def _weight_rows(self) -> dict[str, Any]:
        import pyarrow

        profile, rows = self._profile, weight_rows(self._profile, self._spans)
        owners = np.array(wait_owners(profile.frames, profile.stacks), np.int64)[rows["stack"]]
        return {
            "minute": pyarrow.array(rows["minute"] * (MINUTE_NS // 1000), pyarrow.timestamp("us", tz="UTC")),
            **_ids(rows),
            **_thread_columns(profile, rows["thread"]),
            **state_columns(rows["state"], rows["reason"]),
            "idle": pyarrow.array(rows["idle"] > 0),
            **_function_columns(profile.frames, self._origins, owners),
            "ns": pyarrow.array(rows["ns"]),
            "count": pyarrow.array(rows["count"]),
        }

    def _span_tables(self) -> Iterator[Any]:
        spans, names = self._spans, WaitNames(self._profile, self._work, _OPTIONS)
        wakers = ["", *(names.waker(number) for number in range(1, len(self._profile.wakers) + 1))]
        objects = [names.object(number) for number in range(len(self._profile.objects) + 1)]
        for begin in range(0, max(1, len(spans.rows)), SPANS_AT_ONCE):
            part = slice(begin, begin + SPANS_AT_ONCE)
            some = DataSpans(spans.rows[part], spans.locks[part], spans.idle[part])
            yield _span_table(self._profile, some, wakers, objects)


def recording_columns(profile: Profile, work: Work, labels: Mapping[str, str]) -> dict[str, Any]:
    """The one row that a recording has in `recordings`."""
    import pyarrow

    info, verdict, quality = profile.info, verdict_of(profile, work), quality_json(profile)
    cpu, ready, wait, idle = map(sum, zip(*work.thread_kinds(len(profile.threads)), (0, 0, 0, 0)))
    began_us = unix_ns(info) // 1000
    values: dict[str, tuple[Any, Any]] = {
        "began": (
            datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(microseconds=began_us),
            pyarrow.timestamp("us", tz="UTC"),
        ),
        "duration_ns": (info.duration_ns, pyarrow.int64()),
        "host_name": (printable(info.host_name), pyarrow.string()),
        "command": (command_text(profile), pyarrow.string()),
        "labels": (
            [(printable(key), printable(value)) for key, value in labels.items()],
            pyarrow.map_(pyarrow.string(), pyarrow.string()),
        ),
        "kernel": (printable(info.kernel_release), pyarrow.string()),
        "bpfprof_version": (printable(info.bpfprof_version), pyarrow.string()),
        "mode": (printable(info.mode), pyarrow.string()),
        "rate_hz": (info.rate_hz, pyarrow.int64()),
        "wall_ns": (sum(thread.wall_ns for thread in profile.threads), pyarrow.int64()),
        **{
            f"{name}_ns": (ns, pyarrow.int64())
            for name, ns in (("cpu", cpu), ("ready", ready), ("wait", wait), ("idle", idle))
        },
        "bound": (verdict.bound, pyarrow.string()),
        "verdict": (printable(verdict.sentence), pyarrow.string()),
        "accounted": (quality["accounted"], pyarrow.float64()),
        "stacks_complete": (quality["stacks_complete"], pyarrow.float64()),
        "lost": (quality["lost"], pyarrow.int64()),
        "unfinished": (quality["unfinished"], pyarrow.string()),
    }
    return {
        name: pyarrow.array([_bounded(value) if kind == pyarrow.int64() else value], kind)
        for name, (value, kind) in values.items()
    }


def _thread_rows(profile: Profile) -> dict[str, Any]:
    import pyarrow

    threads, places = profile.threads, np.arange(len(profile.threads))
    times = ("first_ns", "last_ns", "on_cpu_ns", "runqueue_ns", "off_cpu_ns", "overlap_ns")
    return {
        "thread_id": pyarrow.array(places.astype(np.int32)),
        **_thread_columns(profile, places),
        "cgroup": texts_of([printable(each.cgroup) for each in threads], places),
        **{name: _numbers([getattr(each, name) for each in threads]) for name in times},
    }


def _step_rows(profile: Profile) -> dict[str, Any]:
    """Those of each thread, and of each kind of marks, one after the other."""
    import pyarrow

    found = [steps for steps in find_steps(profile) if len(steps)]
    which = np.repeat(np.arange(len(found)), [len(steps) for steps in found])
    threads = np.array([steps.thread for steps in found], np.int64)[which]
    frames = [steps.where or mark(FrameKind.TRUNCATED) for steps in found]
    numbers = np.array([number for steps in found for number in range(len(steps))], np.int64)
    times = {
        name: np.concatenate([np.zeros(0, np.int64), *(getattr(steps, name).astype(np.int64) for steps in found)])
        for name in ("begin_ns", "durations_ns")
    }
    phases = [
        [(name, round(ns)) for name, ns in zip(steps.phases, of_step) if ns > 0]
        for steps in found
        for of_step in steps.phase_ns.tolist()
    ]
    return {
        "thread_id": pyarrow.array(threads.astype(np.int32)),
        **_thread_columns(profile, threads),
        "how": texts_of([steps.how for steps in found], which),
        "mark": texts_of([printable(steps.name) for steps in found], which),
        **_function_columns(frames, origins(frames), which),
        "step": pyarrow.array(numbers),
        "start_ns": pyarrow.array(times["begin_ns"]),
        "duration_ns": pyarrow.array(times["durations_ns"]),
        "phases": pyarrow.array(phases, pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    }


def _thread_columns(profile: Profile, threads: npt.NDArray[Any]) -> dict[str, Any]:
    """Their ids and names, and the rank of their process, none of one without."""
    ranks = [printable(each.rank.partition("=")[2]) or None for each in profile.threads]
    return {**thread_columns(profile, threads), "rank": texts_of(ranks, threads)}


def _function_columns(frames: Any, of_frames: list[Origin], places: npt.NDArray[Any]) -> dict[str, Any]:
    """function, library, module and file, by places in frames; none of -1."""
    names = [printable(function_name(frame)) for frame in frames]
    return {
        "function": texts_of(names, places),
        "library": texts_of([printable(origin.library) for origin in of_frames], places),
        "module": texts_of([printable(origin.module) for origin in of_frames], places),
        "file": texts_of([printable(frame.file) for frame in frames], places),
    }


def _ids(rows: npt.NDArray[np.void]) -> dict[str, Any]:
    import pyarrow

    return {f"{name}_id": pyarrow.array(rows[name].astype(np.int32)) for name in ("thread", "stack")}


def _span_table(profile: Profile, spans: DataSpans, wakers: list[str], objects: list[str]) -> Any:
    import pyarrow

    rows = spans.rows

    def some(name: str, less: int = 1) -> Any:
        """Of a column that is 0 where there is nothing, and else so much more."""
        values = rows[name].astype(np.int32)
        return pyarrow.array(values - less, mask=values == 0)

    of_wakers = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int32)[rows["waker"].astype(np.int64)]
    how = [each.name.lower() for each in How]
    return pyarrow.table(
        {
            "start_ns": pyarrow.array(rows["start_ns"]),
            "duration_ns": pyarrow.array(rows["duration_ns"]),
            "ns": pyarrow.array(rows["stands_for_ns"]),
            "count": pyarrow.array(rows["count"].astype(np.int64)),
            **_ids(rows),
            **state_columns(rows["state"], rows["reason"]),
            "idle": pyarrow.array(spans.idle),
            "how": texts_of(how, rows["how"].astype(np.int64)),
            "cpu": some("cpu"),
            "holds_gil": pyarrow.array(rows["flags"] & SpanFlag.HOLDS_GIL > 0),
            "lock": pyarrow.array(spans.locks, mask=spans.locks == 0),
            "object": texts_of(objects, rows["object"].astype(np.int64)),
            "waker": texts_of(wakers, rows["waker"].astype(np.int64)),
            "waker_thread_id": pyarrow.array(of_wakers, mask=of_wakers < 0),
            "waker_stack_id": some("waker_stack"),
            "holder_thread_id": some("holder"),
            "holder_stack_id": some("holder_stack"),
        }
    )


def _numbers(values: list[int]) -> Any:
    import pyarrow

    return pyarrow.array(np.array([*map(_bounded, values)], np.int64))


def _bounded(value: int) -> int:
    """A recording that is damaged may have numbers that no column holds."""
    return max(-_LARGEST, min(value, _LARGEST))
