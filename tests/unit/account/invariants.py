"""What holds for the spans of every recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.added_up import AddingSource, Wanted
from bpfprof.account.spans import SpanSource
from bpfprof.account.window import Window
from bpfprof.errors import RecordingError
from bpfprof.model.spans import How, ThreadState, times_of
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource

Spans = npt.NDArray[np.void]
_CUT_THREADS = 20  # of each recording, chosen at random: how many are looked at in windows, too


def spans_of(source: SpanSource, thread: int, window: Window | None = None) -> Spans:
    """All spans of a thread in the order of time."""
    groups = [group for group in source.groups if thread in group.threads]
    spans = np.concatenate([block for group in groups for block in source.of_group(group, window)])
    spans = spans[spans["thread"] == thread]
    return spans[np.argsort(spans["start_ns"], kind="stable")]


def recordings_below(folder: Path) -> list[Path]:
    """Of a folder and all in it, the largest first; some are none."""
    files = [path for path in folder.rglob("*.bpfprof") if path.is_file()]  # there may be FIFOs
    return sorted(files, key=lambda path: path.stat().st_size, reverse=True)


def covers(path: Path) -> bool:
    """`assert_covers` of a file; False when it is no recording."""
    try:
        with open(path, "rb") as file:
            recording = read_recording(file)
    except (RecordingError, OSError):
        return False
    try:
        assert_covers(recording, is_damaged=any(recording.end.get("lost", {}).values()))
    except Exception as error:
        raise AssertionError(f"{path}: {error}") from error
    return True


def assert_covers(recording: Recording, is_damaged: bool = False) -> None:
    """The spans of each thread cover its wall time, those of a window the window; each state speaks for its own time.
    Those that are made as sums are the same.

    A recording that has its end and is not damaged has no time that is not known, and none twice.
    """
    source = SpanSource(recording, StackSource(recording).statuses)
    threads, chance = source.threads, np.random.default_rng(1)
    moments = chance.integers(0, threads.end_ns - threads.start_ns + 2, 6).tolist()
    windows: list[Window] = [(min(pair), max(pair)) for pair in zip(moments[::2], moments[1::2])]
    for window in (None, *windows):
        assert_adds_up(recording, window)
    count, overlaps_ns = len(recording.threads), source.overlaps_ns().tolist()
    cut = set(chance.choice(count, min(count, _CUT_THREADS), replace=False).tolist())
    for thread in range(count):
        first_ns, last_ns = (int(times[thread] - threads.start_ns) for times in (threads.first_ns, threads.last_ns))
        spans = spans_of(source, thread)
        _assert_contiguous(spans, first_ns, last_ns)
        for begin, end in windows if thread in cut else ():
            _assert_contiguous(spans_of(source, thread, (begin, end)), max(begin, first_ns), min(end, last_ns))
        if not is_damaged and not recording.unfinished:
            assert overlaps_ns[thread] == 0, f"thread {thread}: more than its wall time"
            assert (spans["state"] != ThreadState.UNKNOWN).all(), f"thread {thread}: time that is not known"


def _assert_contiguous(spans: Spans, begin_ns: int, end_ns: int) -> None:
    """From begin_ns to end_ns, unless that is nothing."""
    ends = spans["start_ns"] + spans["duration_ns"]
    borders = np.concatenate([spans["start_ns"], ends[-1:]]).tolist() or [begin_ns, end_ns]
    assert (spans["duration_ns"] > 0).all()
    assert (borders[0], borders[-1]) == (begin_ns, end_ns) if end_ns > begin_ns else not len(spans)
    assert (spans["start_ns"][1:] == ends[:-1]).all()
    for state in ThreadState:
        own = spans[spans["state"] == state]
        assert own["stands_for_ns"].sum() == own["duration_ns"].sum(), state.name


def assert_adds_up(recording: Recording, window: Window | None = None) -> None:
    """Spans that are made as sums are the sums of single ones, to a nanosecond for each piece that is rounded."""
    source = AddingSource(recording, StackSource(recording).statuses)
    wanted = Wanted(window=window)
    for group in source.groups:
        single, made = np.concatenate(list(source.of_group(group, window))), source.added_up(group, wanted)
        _assert_same(single, made.spans, ("thread", "state"), 0)
        _assert_same(single, made.spans, ("thread", "state", "reason", "stack", "status", "lock", "waker"), len(single))
        measured = [spans[spans["how"] == How.SEEN] for spans in (single, made.spans)]
        _assert_same(*measured, ("thread", "state", "reason", "stack"), 0, "count")
        assert made.times is not None
        times = times_of(single[np.lexsort((single["start_ns"], single["thread"]))])
        assert (made.times[["start_ns", "duration_ns"]] == times[["start_ns", "duration_ns"]]).all()
        of_spans = np.bincount(made.times["span"], made.times["duration_ns"], len(made.spans))
        waits = (made.spans["state"] == ThreadState.OFF_CPU) & (made.spans["how"] != How.SUMMED)
        assert (np.where(waits, made.spans["duration_ns"], 0) == of_spans).all()
        longest_ns = np.zeros(len(made.spans), np.int64)
        np.maximum.at(longest_ns, made.times["span"], made.times["duration_ns"])
        assert (made.longest_ns[waits] >= longest_ns[waits]).all()


def _assert_same(single: Spans, sums: Spans, names: tuple[str, ...], tolerance: int, of: str = "stands_for_ns") -> None:
    found: list[dict[tuple[int, ...], int]] = []
    for spans in (single, sums):
        totals: dict[tuple[int, ...], int] = {}
        for *key, amount in spans[[*names, of]].tolist():
            totals[tuple(key)] = totals.get(tuple(key), 0) + amount
        found.append(totals)
    for key in found[0].keys() | found[1].keys():
        assert abs(found[0].get(key, 0) - found[1].get(key, 0)) <= tolerance, key
