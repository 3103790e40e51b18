"""Durations of waits in buckets of powers of two -> one line: `100.0 us ▁▂▅█▃ 52.00 ms`."""

from __future__ import annotations

from bpfprof.query.groups import WaitGroup

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = ".:-=+*#@"
_EMPTY = " "


def histogram_line(group: WaitGroup, columns: int, ascii_only: bool) -> str:
    """The shortest wait, a bar a bucket, the longest wait, in so many columns; the highest bar has most waits.

    A bucket with a single wait is seen. Neighbours share a bar where there are too many. "" where no length is known.
    """
    if not group.buckets:
        return ""
    low, high = _short_duration(group.min_ns), _short_duration(group.max_ns)
    room = max(columns - len(low) - len(high) - 2, 1)
    together = -(-len(group.buckets) // room)
    counts = [sum(group.buckets[first : first + together]) for first in range(0, len(group.buckets), together)]
    return f"{low} {bars(counts, ascii_only)} {high}"


def bars(counts: list[int], ascii_only: bool) -> str:
    """A character a count, in eighths of the largest; none of nothing."""
    levels = _ASCII_BARS if ascii_only else _BARS
    most = max(counts, default=0)
    return "".join(levels[-(-count * len(levels) // most) - 1] if count else _EMPTY for count in counts)


def _short_duration(ns: int) -> str:
    """Three digits without a space: `100us`, `5.2ms`, `52ms`, `1.7s`, `120s`."""
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if ns >= size * 0.9995:
            value = ns / size
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return f"{ns}ns"
