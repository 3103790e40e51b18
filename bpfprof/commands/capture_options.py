"""What every command that records lets its user choose."""

from __future__ import annotations

import math
from dataclasses import replace

import click

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.options import gathered
from bpfprof.errors import UsageError
from bpfprof.model.ids import Pid

_DEFAULT = CaptureOptions()


def _positive(_ctx: click.Context, _parameter: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise click.BadParameter(f"{seconds} is not a number of seconds above 0.")
    return seconds


def with_pid(options: CaptureOptions, command: tuple[str, ...]) -> tuple[CaptureOptions, tuple[str, ...]]:
    """`record 5220`: a number alone is a process, not a command."""
    if len(command) != 1 or not (command[0].isascii() and command[0].isdecimal()):
        return options, command
    return replace(options, pids=(*options.pids, Pid(int(command[0])))), ()


def check_targets(options: CaptureOptions, command: tuple[str, ...], example: str) -> None:
    """Raises UsageError unless exactly one way to say what to record was used."""
    of_cgroups = bool(options.cgroups or options.containers)
    if [bool(options.pids), bool(command), options.watches_all, of_cgroups].count(True) != 1:
        raise UsageError("say what to record: --pid PID, --all, --cgroup PATH, --container ID, or -- COMMAND", example)


capture_options = gathered(
    "asked",
    CaptureOptions,
    (
        click.option(
            *("-p", "--pid", "pids"),
            type=click.IntRange(1),
            multiple=True,
            help="Process to watch; may be repeated.",
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
            *("-d", "--duration", "duration_s"),
            metavar="SECONDS",
            type=float,
            callback=_positive,
            help="Above 0; default: until Ctrl-C or its end.",
        ),
        click.option(
            "-s/-S",
            "--subprocesses/--no-subprocesses",
            "follow_children",
            default=True,
            help="Follow children.  [default: on]",
        ),
        click.option("--native/--no-native", default=True, help="C and C++ frames.  [default: on]"),
        click.option(
            "--table-memory",
            "table_memory_mb",
            metavar="MB",
            type=click.IntRange(4, 1024),
            default=_DEFAULT.table_memory_mb,
            show_default=True,
            help="For unwind tables and symbols; what was not used for longest goes first.",
        ),
        click.option("--native-lines", is_flag=True, help="Lines and inlined functions of native frames, from DWARF."),
        click.option("--kernel", is_flag=True, help="Kernel frames with every stack (1 to 2 us each)."),
        click.option(
            *("--min-block", "min_block_us"),
            metavar="US",
            default=_DEFAULT.min_block_us,
            show_default=True,
            type=click.IntRange(0, 3_600_000_000),
            help="Waits shorter than so many microseconds have no stack; 0: all have.",
        ),
        click.option("--wakers/--no-wakers", default=True, help="Who ended each wait, and where.  [default: on]"),
        click.option(
            "--max-switches",
            metavar="N",
            type=click.IntRange(0, 1_000_000_000),
            default=_DEFAULT.max_switches,
            show_default=True,
            help="Waits a second and thread that have a stack, about; beyond that a random sample. 0: all.",
        ),
        click.option(
            *("--async-rate", "async_rate_hz"),
            metavar="HZ",
            type=click.IntRange(0, 1000),
            default=_DEFAULT.async_rate_hz,
            show_default=True,
            help="How often asyncio tasks are looked at, to tell where they wait; 0: never.",
        ),
        click.option(
            "--nonblocking", is_flag=True, expose_value=False, help="Accepted for habit: nothing is ever stopped."
        ),
        click.option("-i", "--idle", is_flag=True, expose_value=False, help="Accepted for habit: waits are always in."),
    ),
)
