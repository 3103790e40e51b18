"""Options that choose what is shown of a recording, the same in every command that shows one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import click

from bpfprof.commands.help import PART
from bpfprof.commands.options import gathered, gil_option
from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.model.states import AWAIT_REASONS, ThreadState, reason_number
from bpfprof.profile.options import OFF_CPU, ON_CPU, OPEN_END_NS, SpanFilter, task_states

_MOMENT = r"(\d{0,9}(?:\.\d+)?)(m|s|ms|us)?"
_WINDOW = re.compile(rf"{_MOMENT}\.\.{_MOMENT}")
_UNIT_NS = {"m": 60_000_000_000, "s": 1_000_000_000, None: 1_000_000_000, "ms": 1_000_000, "us": 1000}


def parse_window(text: str) -> tuple[int, int]:
    """`2s..5s`, `500ms..`, `..1.5` (seconds) as nanoseconds since the recording began. Raises ValueError."""
    found = _WINDOW.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ValueError(f"{text!r} is no window of time; one is written 2s..5s, 500ms.. or ..90")
    begin, begin_unit, end, end_unit = found.groups()
    begin_ns = round(float(begin or 0) * _UNIT_NS[begin_unit])
    end_ns = round(float(end) * _UNIT_NS[end_unit]) if end else OPEN_END_NS
    if not begin_ns < end_ns <= OPEN_END_NS:
        raise ValueError(f"{text!r} ends before it begins")
    return begin_ns, end_ns


def parsed(parse: Any, missing: Any = None) -> Any:
    """Callback of an option: what `parse` makes of its text; `missing` without one."""

    def callback(_ctx: click.Context, _parameter: click.Parameter, text: Any) -> Any:
        try:
            return parse(text) if text else missing
        except (ValueError, re.error, StopIteration, KeyError) as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _parse_reasons(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        try:
            if word not in AWAIT_REASONS:
                reason_number(word)
        except (ValueError, KeyError, StopIteration):
            raise ValueError(
                f"{word!r} is no reason of a wait; they are gil, lock, net ... or 'syscall NAME'"
            ) from None
    return words


@dataclass(frozen=True)
class Wanted(SpanFilter):
    """What was asked to be shown."""

    on_cpu: bool = False
    off_cpu: bool = False
    idle: bool | None = None  # waits of threads with nothing to do: among the others, left out, or apart from them

    def filter(
        self, min_block_us: int = 0, only: ThreadState | None = None, takes: frozenset[str] = frozenset()
    ) -> SpanFilter:
        """The same for a profile; `only`: of spans in this state; `takes`: options that the format looks at itself.

        Raises UsageError for what excludes each other.
        """
        if self.on_cpu and self.off_cpu:
            raise UsageError("--cpu and --offcpu leave nothing", "give one of them, or none for both")
        states = frozenset((ThreadState.ON_CPU, ThreadState.RUNQUEUE, ThreadState.OFF_CPU))
        if self.on_cpu or self.off_cpu:
            states = ON_CPU if self.on_cpu else OFF_CPU
        if only is not None:
            states &= {only}
        if not states:
            raise UsageError("--cpu leaves no waits", "bpfprof report --cpu shows the time on a CPU")
        hides_idle = self.idle is False and "hide_idle" not in takes
        return replace(self, states=states, min_block_ns=1000 * min_block_us, hides_idle=hides_idle)


def _pattern(name: str, what: str) -> Any:
    return click.option(f"--{name}", metavar="REGEX", callback=parsed(re.compile), help=f"Only {what}.")


filter_options = gathered(
    "wanted",
    Wanted,
    (
        click.option(
            *("--time", "window_ns"),
            metavar="2s..5s",
            callback=parsed(parse_window),
            help="Only this part, from the start on.",
        ),
        _pattern("process", "processes with this in `NAME (PID)`"),
        _pattern("thread", "threads with this in `NAME (TID)`"),
        _pattern("function", "stacks with a function like this"),
        click.option("--cpu", "on_cpu", is_flag=True, help="Only time on a CPU."),
        click.option("--offcpu", "off_cpu", is_flag=True, help="Only time off the CPU: waits, and the run queue."),
        click.option(
            *("--reason", "reasons"),
            multiple=True,
            metavar="R",
            callback=parsed(_parse_reasons, ()),
            help="Only waits for this: gil, lock, sleep, net ..., of asyncio tasks socket ...; may be repeated.",
        ),
        gil_option,
        click.option(
            *("--state", "task_states"),
            metavar="S,D,...",
            callback=parsed(task_states, 0),
            help="Only waits in these states: letters as in ps, or names (uninterruptible...).",
        ),
        click.option(
            *("-i", "--idle/--hide-idle"),
            default=None,
            help="Waits of threads that have nothing to do: among the others, or left out.  [default: apart]",
        ),
    ),
    heading=PART,
)
