"""`bpfprof top`: where the time of running processes goes now, on a screen that goes on."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.capture_options import check_targets, live_options, rate_option
from bpfprof.commands.help import LOOK, Command
from bpfprof.commands.outputs import tell
from bpfprof.commands.row_options import waiting_option
from bpfprof.commands.screen import Screen
from bpfprof.commands.starting import starting
from bpfprof.commands.terminal import acts_on_codes
from bpfprof.commands.values import PID, Number, Whole
from bpfprof.model.ids import Pid
from bpfprof.proc.caller import caller_ids
from bpfprof.proc.confinement import ANY_FOLDER, KERNEL_STACKS, OTHER_IDS, READING, RECORDING
from bpfprof.proc.reader import reader

if TYPE_CHECKING:
    from bpfprof.capture.stop import StopRequest
    from bpfprof.capture.watch import Watch


# Samples a second of each CPU, and waits of each thread that have stacks: of ten seconds enough to tell where most of
# the time was. How much there was of it is exact, whatever they are.
_RATE_HZ, _MAX_SWITCHES = 49, 10

_EXAMPLES = (
    ("the last 10 seconds of a program, again and again", "sudo bpfprof top 1234"),
    ("the busiest functions of the whole machine", "sudo bpfprof top --all"),
    ("five tables, one every two seconds, into a file", "sudo bpfprof top 1234 --batch -n 5 -d 2 >top.txt"),
)


@click.command(cls=Command, heading=LOOK, examples=_EXAMPLES)
@rate_option(_RATE_HZ)
@live_options
@click.option(
    *("-d", "--delay", "every_s"),
    metavar="SECONDS",
    type=Number("seconds", 0.2, 3600),
    help="Between two tables.  [default: 1; of --batch 2]",
)
@click.option("-b", "--batch", is_flag=True, help="Tables as text, one after the other, instead of a screen.")
@click.option("-n", "--count", metavar="N", type=Whole(1, 1_000_000), help="So many tables, then end.")
@waiting_option
@click.option("-i", "--idle", is_flag=True, expose_value=False, hidden=True)  # waits are always in
@click.argument("more_pids", metavar="[PID]...", type=PID, nargs=-1)
def top(
    asked: CaptureOptions, every_s: float | None, batch: bool, count: int | None, more_pids: tuple[Pid, ...]
) -> None:
    """Show where the time of running processes goes now: the last 10 seconds, or all since the start.

    Its keys are at the bottom of the screen; h explains them. In a pipe, or on a terminal that only shows text, it
    prints a table every 2 seconds.
    """
    asked = replace(
        asked, pids=(*asked.pids, *more_pids), async_rate_hz=0, max_switches=_MAX_SWITCHES, takes_marks=False
    )
    check_targets(asked, (), "bpfprof top --pid 1234", takes_command=False)
    on_screen = not batch and sys.stdin.isatty() and sys.stdout.isatty() and acts_on_codes()
    reader().keeps = (*READING, *KERNEL_STACKS)
    with starting() as started:
        # Imported now, which takes a while: the kernel side is on its way up.
        from bpfprof.capture.targets import Targets
        from bpfprof.capture.watch import Watch
        from bpfprof.kernel.checks import check_host

        check_host()
        kernel = started.kernel
        try:
            targets = Targets.open(asked.pids, asked.cgroups, asked.containers)
            watch = Watch.of(asked, kernel, targets)
            try:
                watch.start(None, lambda _: not started.stop.requested)
                watch.keep_only([*RECORDING, *KERNEL_STACKS, *(OTHER_IDS if caller_ids() else ANY_FOLDER)])
                _run(watch, on_screen, every_s, count, started.stop)
            finally:
                watch.close()
        finally:
            kernel.close()


def _run(watch: Watch, on_screen: bool, every_s: float | None, count: int | None, stop: StopRequest) -> None:
    from bpfprof.capture.session import Session
    from bpfprof.commands.live_view import BATCH_EVERY_S, EVERY_S, LiveOptions, LiveView
    from bpfprof.recording.part import GrowingRecording

    pids = watch.options.pids
    options = LiveOptions(
        f"bpfprof-top-{pids[0] if pids else 'all'}",
        on_screen,
        every_s or (EVERY_S if on_screen else BATCH_EVERY_S),
        bool(every_s),
        count,
    )
    view, growing = LiveView(options, stop), GrowingRecording()
    session = Session(watch, growing, part_s=options.every_s)
    for note in watch.notes():
        tell(f"bpfprof: {note}")
    with Screen(view.key, view.draw, view.tick_s) if on_screen else nullcontext() as screen:
        view.begin(screen, session, growing)
        session.begin(stop)
        session.run(view.tick, stop)
    if not stop.requested:
        click.echo("bpfprof: what was watched has ended", err=True)
