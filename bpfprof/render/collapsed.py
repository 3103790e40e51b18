"""Profile -> collapsed stacks: one line a stack, weights in microseconds of wall time, or in events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.query.merging import with_merged_threads
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import frame_labels, process_label, task_label, thread_label


def render_collapsed(profile: Profile, options: RenderOptions) -> str:
    """Lines in the order of the threads, then of the tasks, sorted within each; "" for an empty profile.

    The lines of a thread add up to its nanoseconds, rounded once: what one line loses to rounding the next one gets.
    With `options.event` weights are so many of it.
    """
    profile = with_merged_threads(profile, options.merge)
    labels = [_name(label) for label in frame_labels(profile, options)]
    texts = [";".join([labels[frame] for frame in stack]) for stack in profile.stacks]
    lines: defaultdict[str, int] = defaultdict(int)
    unit = 1 if options.event else 1000
    for number, weights in _by_owner(_weights_of_threads(profile, options.event), texts):
        thread = profile.threads[number]
        _add(lines, f"{_name(process_label(thread))};{_name(thread_label(thread))}", weights, unit)
    waits = profile.task_spans[~profile.task_spans["is_running"]]
    for number, weights in _by_owner(waits[["task", "stack", "stands_for_ns"]], texts) if not options.event else ():
        task = profile.tasks[number]
        _add(lines, f"{_name(process_label(task))};{_name(task_label(task))}", weights, unit)
    return "".join([f"{text} {weight}\n" for text, weight in lines.items()])


def _name(label: str) -> str:
    """The label without the `;` that joins names in this format alone."""
    return label.replace(";", ":")


def _weights_of_threads(profile: Profile, event: str) -> npt.NDArray[np.void]:
    """(thread, stack, nanoseconds or events)"""
    if not event:
        return profile.weights[["thread", "stack", "total_ns"]]
    rows: npt.NDArray[np.void] = profile.event_weights[profile.event_weights["event"] == profile.events.index(event)]
    return rows[["thread", "stack", "total"]]


def _by_owner(rows: npt.NDArray[np.void], texts: list[str]) -> Iterator[tuple[int, dict[str, int]]]:
    """Of (owner, stack, weight) rows each owner, and the sum of each of its stacks."""
    by_owner: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for owner, stack, weight in rows.tolist():
        by_owner[owner][texts[stack]] += weight
    yield from sorted(by_owner.items())


def _add(lines: defaultdict[str, int], base: str, weights: dict[str, int], unit: int) -> None:
    seen = given = 0
    for text in sorted(weights):
        seen += weights[text]
        weight = (seen + unit // 2) // unit - given
        given += weight
        if weight:
            lines[f"{base};{text}" if text else base] += weight
