"""Profile -> collapsed stacks: one line a stack, weights in microseconds of wall time."""

from __future__ import annotations

from collections import defaultdict

from bpfprof.model.profile import Profile
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import frame_labels, process_label, thread_label


def render_collapsed(profile: Profile, options: RenderOptions) -> str:
    """Lines in the order of the threads, sorted within a thread; "" for an empty profile.

    The lines of a thread add up to its nanoseconds, rounded once: what one line loses to rounding the next one gets.
    """
    labels = frame_labels(profile, options)
    texts = [";".join([labels[frame] for frame in stack]) for stack in profile.stacks]
    by_thread: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for thread, stack, total_ns in profile.weights[["thread", "stack", "total_ns"]].tolist():
        by_thread[thread][texts[stack]] += total_ns
    lines: defaultdict[str, int] = defaultdict(int)
    for thread in sorted(by_thread):
        who = profile.threads[thread]
        base = f"{process_label(who)};{thread_label(who)}"
        for stack_text, weight_us in _rounded(by_thread[thread]):
            lines[f"{base};{stack_text}" if stack_text else base] += weight_us
    return "".join([f"{text} {weight_us}\n" for text, weight_us in lines.items()])


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
