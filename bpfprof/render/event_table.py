"""Profile -> what was counted beside the clock: a column an event, and a ratio of two, in total and by function."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.query.tables.groups import by_weight
from bpfprof.render.columns import COLUMNS, percent_text, shortened
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable

_WIDEST = 16  # column of an event
# (dividend, divisor) -> what the ratio is called. Others are the first event that was asked for per the second.
_RATIOS = {
    ("instructions", "cycles"): "IPC",
    ("cache-misses", "cache-references"): "miss rate",
    ("branch-misses", "branches"): "miss rate",
    ("LLC-load-misses", "LLC-loads"): "miss rate",
    ("L1-dcache-load-misses", "L1-dcache-loads"): "miss rate",
    ("dTLB-load-misses", "dTLB-loads"): "miss rate",
}


def events_block(profile: Profile, owners: Sequence[str], options: RenderOptions) -> list[str]:
    """The total, then functions with most of the first event first. owners: each stack's function, "" for none."""
    if not profile.events:
        return []
    totals = [0] * len(profile.events)
    by_function: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(totals))
    for event, stack, total in profile.event_weights[["event", "stack", "total"]].tolist():
        totals[event] += total
        by_function[owners[stack]][event] += total
    ordered = sorted(
        by_function.items(), key=lambda item: ([-by_weight(count, not item[0]) for count in item[1]], item[0])
    )
    ratio = _Ratio.of(profile.events)
    names = [printable(name) for name in profile.events]
    widths = [min(max(10, len(name)), _WIDEST) for name in names]
    head = "  ".join([f"{shortened(name, width):>{width}}" for name, width in zip(names, widths)])
    lines = ["events by function (native code counts for the Python function that called it)"]
    lines += [ratio.legend] if ratio else []
    lines.append(f"{head} {'share':>7} {ratio.head + '  ' if ratio else ''} function")
    for function, counts in [("(all)", totals), *ordered[: options.most]]:
        columns = "  ".join([f"{count_text(count):>{width}}" for count, width in zip(counts, widths)])
        row = f"{columns} {percent_text(counts[0], totals[0], 1):>7} {ratio.text(counts) + '  ' if ratio else ''} "
        lines.append(row + shortened(function or "(no function)", max(COLUMNS - len(row), 10)))
    return lines


def count_text(count: int) -> str:
    """`1,234,567`, `12.35 M`, `3.457 G`: at most 9 characters."""
    if count < 10_000_000:
        return f"{count:,}"
    size, unit = next((count / size, unit) for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if count >= size)
    return f"{size:.4g} {unit}"


@dataclass(frozen=True)
class _Ratio:
    """Of two events; dividend and divisor are their places."""

    dividend: int
    divisor: int
    head: str
    legend: str

    @classmethod
    def of(cls, events: tuple[str, ...]) -> _Ratio | None:
        """None unless there are two."""
        if len(events) != 2:
            return None
        dividend, divisor = (1, 0) if (events[1], events[0]) in _RATIOS else (0, 1)
        name = _RATIOS.get((events[dividend], events[divisor]), "ratio")
        one = re.sub(r"(?<=ch|ss)es$|s$", "", events[divisor])
        return cls(dividend, divisor, f"{name:>10}", f"{name}: {printable(f'{events[dividend]} per {one}')}")

    def text(self, counts: Sequence[int]) -> str:
        """Of the counts of the events."""
        divisor = counts[self.divisor]
        return f"{counts[self.dividend] / divisor:.4g}".rjust(10) if divisor else "-".rjust(10)
