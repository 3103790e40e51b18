"""A recording of a run of tests and when each ran -> a table with the verdict of those that took longest, and files."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bpfprof import __version__
from bpfprof.commands.outputs import write_output
from bpfprof.commands.report import load_profile
from bpfprof.commands.sources import read_sources
from bpfprof.dataclass import dataclass
from bpfprof.errors import RegressionError
from bpfprof.model.profile import Profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.profile.window import part_of
from bpfprof.pytest_plugin.asked import Asked
from bpfprof.pytest_plugin.base import LEAST_NS, Comparison, Run, TestTime, compared, write_run
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.compare.stretches import Stretch, own_thread, stretch_times, threads_beside, threads_of
from bpfprof.query.work.table import work_of
from bpfprof.render.columns import cut_left, padded
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable
from bpfprof.render.quality import quality_line

_LEAST_VERDICT_NS = 50_000_000
_FIGURES = 8  # columns of each
_LEAST_COLUMNS = 60

Tests = Sequence[tuple[str, tuple[int, int, int, int, Sequence[int]], bool]]  # as Session has them


@dataclass(frozen=True)
class Outcome:
    """shown: tests that took longest. comparison: None without a base."""

    run: Run
    shown: tuple[TestTime, ...]
    quality: str
    comparison: Comparison | None
    percent: float | None
    written: Path | None

    @property
    def status(self) -> int:
        """Of the whole run, where its tests have passed."""
        fails = self.percent is not None and self.comparison is not None and self.comparison.slower
        return RegressionError.exit_code if fails else 0

    def lines(self, columns: int) -> list[str]:
        """For the terminal."""
        columns = max(columns, _LEAST_COLUMNS)
        names = columns - 4 * _FIGURES
        lines = [padded("test", names) + "".join(f"{word:>{_FIGURES}}" for word in ("wall s", "CPU", "ready", "wait"))]
        for test in self.shown:
            lines.append(padded(cut_left(printable(test.name), names - 1), names) + _figures(test))
            lines += textwrap.wrap(test.verdict, columns, initial_indent="  ", subsequent_indent="  ")
        rest = len(self.run.tests) - len(self.shown)
        if rest:
            lines.append(f"and {rest:,} more, which took less (--bpfprof-top {len(self.run.tests)} shows all)")
        lines += self._compared(columns) if self.comparison else []
        lines += textwrap.wrap(self.quality, columns)
        return [*lines, *([f"written: {self.written}"] if self.written else [])]

    def _compared(self, columns: int) -> list[str]:
        assert self.comparison is not None
        found, names = self.comparison, columns - 36
        head = f"slower than the base by more than {self.percent or 0:g}%, beyond twice the error: {len(found.slower)}"
        lines = [f"{head} of {found.compared:,} tests" if not found.slower else f"{head} (of {found.compared:,} tests)"]
        for name, what, change in found.slower:
            by = f"+{change.percent(change.difference):.0f}%" if change.before else "new"
            figures = f"{what:>6} {change.before:8.3f} -> {change.after:.3f} s {by:>7}"
            lines.append("  " + padded(cut_left(printable(name), names - 3), names - 2) + figures)
        left_out = (
            (found.short, f"took less than {LEAST_NS // 1_000_000} ms"),
            (found.new, "are not in the base"),
            (found.absent, "of the base did not pass here"),
        )
        said = [f"{count:,} {what}" for count, what in left_out if count]
        return [*lines, *([f"not compared: {'; '.join(said)}"] if said else [])]


def outcome_of(path: Path, ran: Tests, asked: Asked, rate_hz: int) -> Outcome:
    """Reads the recording, once, and writes what was asked for. Raises RecordingError, OutputError, UsageError."""
    profile = load_profile(path, ProfileOptions(with_spans=True))
    start_ns = profile.info.start_ns
    stretches = [
        Stretch(name, begin - start_ns, end - start_ns, pid, tid) for name, (begin, end, pid, tid, _), _ in ran
    ]
    times = stretch_times(profile, stretches, os.getpid())
    order = sorted(range(len(ran)), key=lambda place: -times[place].wall_ns)
    tests = [TestTime(name, time, passed) for (name, _, passed), time in zip(ran, times)]
    for place in order[: asked.top]:
        verdict = _verdict(profile, stretches[place], ran[place][1][-1])
        is_known = verdict is not None and (verdict.bound, verdict.share) != ("unknown", 0.0)
        sentence = verdict.sentence if verdict and is_known else "Too short to say."
        tests[place] = replace(tests[place], bound=verdict.bound if verdict else "unknown", verdict=sentence)
    run = Run(tuple(tests), 1e9 / rate_hz)
    if asked.output and not asked.recording:
        options = RenderOptions(sources=read_sources)
        content = asked.format.render(profile, options) if asked.format else write_run(run, __version__)
        write_output(asked.output, content, None)
    shown = tuple(tests[place] for place in order[: asked.top])
    comparison = compared(asked.base, run, asked.fail_over or 0.0) if asked.base else None
    return Outcome(run, shown, quality_line(profile), comparison, asked.fail_over, asked.output)


def _verdict(profile: Profile, stretch: Stretch, before: Sequence[int]) -> Verdict | None:
    if stretch.end_ns - stretch.begin_ns < _LEAST_VERDICT_NS:
        return None
    part = part_of(profile, (stretch.begin_ns, stretch.end_ns), threads_of(profile, stretch.pid, os.getpid()))
    part = part_of(part, (0, part.info.duration_ns), ~threads_beside(part, before))
    at_work = frozenset(np.flatnonzero(own_thread(part, stretch)).tolist())
    part = replace(part, info=replace(part.info, least_ns=_LEAST_VERDICT_NS, at_work=at_work))
    return verdict_of(part, work_of(part))


def _figures(test: TestTime) -> str:
    times = (test.time.wall_ns, test.time.cpu_ns, test.time.ready_ns, test.time.wait_ns)
    return "".join(f"{ns / 1e9:>{_FIGURES}.3f}" for ns in times)
