"""Profile -> collapsed stacks: one line a stack, weights in microseconds of wall time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import frame_labels, process_label, task_label, thread_label


def render_collapsed(profile: Profile, options: RenderOptions) -> str:
    """Lines in the order of the threads, then of the tasks, sorted within each; "" for an empty profile.

    The lines of a thread add up to its nanoseconds, rounded once: what one line loses to rounding the next one gets.
    """
    labels = frame_labels(profile, options)
    texts = [";".join([labels[frame] for frame in stack]) for stack in profile.stacks]
    lines: defaultdict[str, int] = defaultdict(int)
    for number, weights_ns in _by_owner(profile.weights[["thread", "stack", "total_ns"]], texts):
        thread = profile.threads[number]
        _add(lines, f"{process_label(thread)};{thread_label(thread)}", weights_ns)
    waits = profile.task_spans[~profile.task_spans["is_running"]]
    for number, weights_ns in _by_owner(waits[["task", "stack", "stands_for_ns"]], texts):
        task = profile.tasks[number]
        _add(lines, f"{process_label(task)};{task_label(task)}", weights_ns)
    return "".join([f"{text} {weight_us}\n" for text, weight_us in lines.items()])


def _by_owner(rows: npt.NDArray[np.void], texts: list[str]) -> Iterator[tuple[int, dict[str, int]]]:
    """Of (owner, stack, nanoseconds) rows each owner, and the sum of each of its stacks."""
    by_owner: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for owner, stack, total_ns in rows.tolist():
        by_owner[owner][texts[stack]] += total_ns
    yield from sorted(by_owner.items())


def _add(lines: defaultdict[str, int], base: str, weights_ns: dict[str, int]) -> None:
    seen_ns = given_us = 0
    for text in sorted(weights_ns):
        seen_ns += weights_ns[text]
        weight_us = (seen_ns + 500) // 1000 - given_us
        given_us += weight_us
        if weight_us:
            lines[f"{base};{text}" if text else base] += weight_us
