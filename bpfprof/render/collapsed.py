"""Profile -> collapsed stacks: one line a stack, weights in microseconds of wall time, or in events."""

from __future__ import annotations

from collections import defaultdict

from bpfprof.model.profile import Profile
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import frame_labels, process_label, thread_label


def render_collapsed(profile: Profile, options: RenderOptions) -> str:
    """Lines in the order of the threads, sorted within a thread; "" for an empty profile.

    The lines of a thread add up to its nanoseconds, rounded once: what one line loses to rounding the next one gets.
    With `options.event` weights are so many of it.
    """
    labels = frame_labels(profile, options)
    texts = [";".join([labels[frame] for frame in stack]) for stack in profile.stacks]
    by_thread: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    weights, column, is_time = profile.weights, "total_ns", not options.event
    if options.event:
        weights, column = profile.event_weights, "total"
        weights = weights[weights["event"] == profile.events.index(options.event)]
    for thread, stack, total in weights[["thread", "stack", column]].tolist():
        by_thread[thread][texts[stack]] += total
    lines: defaultdict[str, int] = defaultdict(int)
    for thread in sorted(by_thread):
        who = profile.threads[thread]
        base = f"{process_label(who)};{thread_label(who)}"
        for stack_text, weight in _rounded(by_thread[thread]) if is_time else sorted(by_thread[thread].items()):
            lines[f"{base};{stack_text}" if stack_text else base] += weight
    return "".join([f"{text} {weight}\n" for text, weight in lines.items()])


def _rounded(weights_ns: dict[str, int]) -> list[tuple[str, int]]:
    rounded = []
    seen_ns = given_us = 0
    for text in sorted(weights_ns):
        seen_ns += weights_ns[text]
        weight_us = (seen_ns + 500) // 1000 - given_us
        given_us += weight_us
        if weight_us:
            rounded.append((text, weight_us))
    return rounded
