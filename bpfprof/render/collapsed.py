"""Profile -> collapsed stacks: one line a stack, weights in microseconds of wall time, or in events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.query.tables.merging import with_merged_threads
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import frame_labels, process_label, task_label, thread_label


def render_collapsed(profile: Profile, options: RenderOptions) -> bytes:
    """Lines in the order of the threads, then of the tasks, sorted within each; b"" for an empty profile.

    The lines of a thread add up to its nanoseconds, rounded once: what one line loses to rounding the next one gets.
    With `options.event` weights are so many of it.
    """
    profile = with_merged_threads(profile, options.merge)
    labels = [_name(label) for label in frame_labels(profile, options)]
    texts = [";".join([labels[frame] for frame in stack]) for stack in profile.stacks]
    unit = 1 if options.event else 1000
    owned: dict[str, list[npt.NDArray[np.void]]] = {}
    for number, rows in _by_owner(_weights_of_threads(profile, options.event)):
        thread = profile.threads[number]
        owned.setdefault(f"{_name(process_label(thread))};{_name(thread_label(thread))}", []).append(rows)
    waits = profile.task_spans[~profile.task_spans["is_running"]]
    for number, rows in _by_owner(waits[["task", "stack", "stands_for_ns"]]) if not options.event else ():
        task = profile.tasks[number]
        owned.setdefault(f"{_name(process_label(task))};{_name(task_label(task))}", []).append(rows)
    found = bytearray()  # the lines of 10 minutes can be 100 MB
    for base, parts in owned.items():
        lines: defaultdict[str, int] = defaultdict(int)
        for rows in parts:
            _add(lines, rows, texts, unit)
        for text, weight in lines.items():
            found += f"{base}{text and ';'}{text} {weight}\n".encode("utf-8", "replace")
    return bytes(found)


def _name(label: str) -> str:
    """The label without the `;` that joins names in this format alone."""
    return label.replace(";", ":")


def _weights_of_threads(profile: Profile, event: str) -> npt.NDArray[np.void]:
    """(thread, stack, nanoseconds or events)"""
    if not event:
        return profile.weights[["thread", "stack", "total_ns"]]
    rows: npt.NDArray[np.void] = profile.event_weights[profile.event_weights["event"] == profile.events.index(event)]
    return rows[["thread", "stack", "total"]]


def _by_owner(rows: npt.NDArray[np.void]) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
    """Of (owner, stack, weight) rows each owner and its rows."""
    owner, stack, weight = rows.dtype.names or ()
    rows = rows[np.argsort(rows[owner], kind="stable")]
    for part in np.split(rows, np.flatnonzero(np.diff(rows[owner])) + 1) if len(rows) else ():
        yield int(part[owner][0]), part[[stack, weight]]


def _add(lines: defaultdict[str, int], rows: npt.NDArray[np.void], texts: list[str], unit: int) -> None:
    weights: defaultdict[str, int] = defaultdict(int)
    for stack, weight in rows.tolist():
        weights[texts[stack]] += weight
    seen = given = 0
    for text in sorted(weights):
        seen += weights[text]
        weight = (seen + unit // 2) // unit - given
        given += weight
        if weight:
            lines[text] += weight
