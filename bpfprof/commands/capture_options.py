"""What every command that records lets its user choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.help import CAPTURE, TARGET, under
from bpfprof.commands.options import Command, gathered
from bpfprof.commands.values import MICROSECONDS, PID, RATE, Number, Whole
from bpfprof.errors import UsageError
from bpfprof.kernel.map_sizes import shared
from bpfprof.proc.memory_limits import memory_there_is

_DEFAULT = CaptureOptions()
_Option = Callable[[Any], Any]


def with_pid(options: CaptureOptions, command: tuple[str, ...]) -> tuple[CaptureOptions, tuple[str, ...]]:
    """`record 5220`: a number alone is a process, not a command."""
    if len(command) != 1 or not (command[0].isascii() and command[0].isdecimal()):
        return options, command
    return replace(options, pids=(*options.pids, PID.convert(command[0], None, None))), ()


def check_targets(options: CaptureOptions, command: tuple[str, ...], example: str, takes_command: bool = True) -> None:
    """Raises UsageError unless exactly one way to say what to record was used."""
    ways = {
        "--pid": " and ".join(f"process {pid}" for pid in options.pids),
        "--cgroup": " and ".join(options.cgroups),
        "--container": " and ".join(options.containers),
        "a command": " ".join(command[:1]),
    }
    used = {way: what for way, what in ways.items() if what}
    if options.watches_all and used:
        raise UsageError(f"--all already includes {' and '.join(used.values())}", "leave one of them out")
    if options.kills and not command:
        raise UsageError("--kill is for a command that is launched", "leave it out")
    of_cgroups = used.keys() <= {"--cgroup", "--container"}
    if len(used) > 1 and not of_cgroups:
        raise UsageError(f"{' and '.join(used)} are two ways to say what to record", "leave one of them out")
    if not used and not options.watches_all:
        ways_there_are = ["--pid PID", "--all", "--cgroup PATH", "--container ID", *["-- COMMAND"] * takes_command]
        listed = ", ".join(ways_there_are[:-1])
        raise UsageError(f"say what to record: {listed} or {ways_there_are[-1]}", example)


_TARGETS = (
    click.option(
        *("-p", "--pid", "pids"),
        type=PID,
        multiple=True,
        help="A running process; may be repeated.",
    ),
    click.option("-a", "--all", "watches_all", is_flag=True, help="Every process of the machine."),
    click.option(
        *("--cgroup", "cgroups"),
        metavar="PATH",
        multiple=True,
        help="Every process in a control group and those below it; may be repeated.",
    ),
    click.option(
        *("--container", "containers"),
        metavar="ID",
        multiple=True,
        help="Every process of a container, by the beginning of its id; may be repeated.",
    ),
    click.option(
        "-s/-S",
        "--subprocesses/--no-subprocesses",
        "--tree",
        "follow_children",
        default=True,
        help="Their children, too.  [default: on]",
    ),
)
_END = (
    click.option(
        *("-d", "--duration", "duration_s"),
        metavar="SECONDS",
        type=Number("seconds"),
        help="How long.  [default: until Ctrl-C, or until all of them have ended]",
    ),
    click.option(
        "--kill",
        "kills",
        is_flag=True,
        help="End what goes on of COMMAND when its recording is over: SIGTERM, and SIGKILL 5 seconds later.",
    ),
    click.option("--until-eof", is_flag=True, hidden=True),  # for commands/recorder.py
)
_WAITS = (
    click.option("--wakers/--no-wakers", default=True, help="Who ended each wait, and where.  [default: on]"),
    click.option(
        *("--min-block", "min_block_us"),
        metavar="US",
        default=_DEFAULT.min_block_us,
        show_default=True,
        type=MICROSECONDS,
        help="Waits shorter than so many microseconds have no stack; 0: all have.",
    ),
    click.option(
        "--max-switches",
        metavar="N",
        type=Whole(0, 1_000_000_000),
        default=_DEFAULT.max_switches,
        show_default=True,
        help="Waits a second and thread that have a stack, about; beyond that a random sample. 0: all.",
    ),
    click.option(
        *("--async-rate", "async_rate_hz"),
        metavar="HZ",
        type=Whole(0, 1000, "looks a second,"),
        default=_DEFAULT.async_rate_hz,
        show_default=True,
        help="How often asyncio tasks are looked at, to tell where they wait; 0: never.",
    ),
)
_ACCEPTED = (  # what users of other profilers type: nothing is ever stopped, and waits are always in
    click.option("--nonblocking", is_flag=True, expose_value=False, hidden=True),
)


def _stacks(*short_name: str) -> tuple[_Option, ...]:
    """short_name: of --native, where it is free."""
    return (
        click.option(*short_name, "--native/--no-native", default=True, help="C and C++ frames.  [default: on]"),
        click.option("--native-lines", is_flag=True, help="Lines and inlined functions of native frames, from DWARF."),
        click.option("--kernel", is_flag=True, help="Kernel frames with every stack (1 to 2 us each)."),
        click.option(
            "--table-memory",
            "table_memory_mb",
            metavar="MB",
            type=Whole(4, 1024, "megabytes,"),
            default=lambda: shared(_DEFAULT.table_memory_mb, memory_there_is()),
            show_default=f"{_DEFAULT.table_memory_mb}, less with little memory",
            help="For unwind tables and symbols; what was not used for longest goes first.",
        ),
    )


def _gathered(targets: Sequence[_Option], stacks: Sequence[_Option]) -> Callable[[Command], Command]:
    captured = (*stacks, *_WAITS, *_ACCEPTED)
    options = [*(under(TARGET, option) for option in targets), *(under(CAPTURE, option) for option in captured)]
    return gathered("asked", CaptureOptions, options)


record_options = _gathered((*_TARGETS, *_END), _stacks("-n"))
capture_options = _gathered((*_TARGETS, *_END), _stacks())
live_options = _gathered(_TARGETS, _stacks())  # without an end


def rate_option(default_hz: int = _DEFAULT.rate_hz) -> _Option:
    """How often what runs is looked at."""
    option = click.option(
        *("-r", "--rate", "rate_hz"),
        metavar="HZ",
        type=RATE,
        default=default_hz,
        show_default=True,
        help="Samples a second.",
    )
    return under(CAPTURE, option)
