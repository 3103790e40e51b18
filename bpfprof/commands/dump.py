"""`bpfprof dump`: what every thread of running processes does now, and what it waits for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from bpfprof.commands.help import Command
from bpfprof.commands.importing import import_numpy
from bpfprof.commands.outputs import tell
from bpfprof.commands.values import PID, Number
from bpfprof.errors import UsageError
from bpfprof.model.ids import Pid
from bpfprof.proc.caller import caller_ids
from bpfprof.proc.confinement import KERNEL_STACKS, OTHER_IDS, READING, keep_only
from bpfprof.proc.reader import reader

if TYPE_CHECKING:
    from bpfprof.model.now import ProcessNow

_NOT_CUT = 10_000  # columns: what is not for a terminal is searched, and compared
_EXAMPLES = (
    ("why a program hangs", "sudo bpfprof dump 1234"),
    ("the same every two seconds", "sudo bpfprof dump 1234 -w 2"),
    ("for another program", "sudo bpfprof dump 1234 --json"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("pids", metavar="PID...", type=PID, nargs=-1)
@click.option("-p", "--pid", "more_pids", metavar="PID", type=PID, multiple=True, help="The same as PID; repeatable.")
@click.option("-j", "--json", "as_json", is_flag=True, help="JSON for other programs.")
@click.option(
    *("-w", "--watch", "every_s"), metavar="SECONDS", type=Number("seconds", 0.1, 3600), help="Again and again."
)
@click.option("-a", "--all-frames", is_flag=True, help="Also frames of threading, socketserver and wsgiref.")
@click.option("--locals", "with_locals", is_flag=True, help="Also what local variables hold, secrets among them.")
@click.option("--full-filenames", is_flag=True, help="Whole paths instead of from where files are imported.")
def dump(
    pids: tuple[Pid, ...],
    more_pids: tuple[Pid, ...],
    as_json: bool,
    every_s: float | None,
    all_frames: bool,
    with_locals: bool,
    full_filenames: bool,
) -> None:
    """Show the Python stack of every thread of a process now, what it waits for, and who holds that.

    The process is neither stopped nor changed. A lock's holder is known for the GIL, locks of `threading` that a `with`
    statement holds, threading.RLock, locks of `multiprocessing` in forked processes, mutexes of C and locks of files.
    """
    wanted = list(dict.fromkeys((*pids, *more_pids)))
    if not wanted:
        raise UsageError("say which process", "bpfprof dump PID")
    reader().keeps = (*READING, *KERNEL_STACKS)
    import_numpy()
    from bpfprof.capture.now import process_now
    from bpfprof.commands.deadlocks import with_deadlocks

    keep_only((*reader().keeps, *(OTHER_IDS if caller_ids() else ())))
    while True:
        processes = with_deadlocks([process_now(pid, with_locals) for pid in wanted])
        _show(processes, as_json, all_frames, full_filenames)
        if every_s is None:
            return
        sys.stdout.flush()
        time.sleep(every_s)


def _show(processes: Sequence[ProcessNow], as_json: bool, all_frames: bool, full_filenames: bool) -> None:
    from bpfprof.commands.sources import sources_now
    from bpfprof.commands.terminal import for_terminal
    from bpfprof.render.dump_json import render_dump_json
    from bpfprof.render.dump_text import no_sources, render_dump_text
    from bpfprof.render.formats import RenderOptions
    from bpfprof.render.labels import printable

    for process in processes:
        for text in (process.note if as_json else "", *process.missed):  # text has the note in its heading
            if text:
                tell(f"bpfprof: process {process.pid}: {printable(text)}")
    if as_json:
        click.echo(render_dump_json(processes), nl=False)
        return
    columns = for_terminal(RenderOptions(), sys.stdout).columns if sys.stdout.isatty() else _NOT_CUT
    for process in processes:
        sources = partial(sources_now, process.pid) if sys.stdout.isatty() else no_sources
        for line in render_dump_text(process, all_frames, full_filenames, columns, sources).splitlines():
            click.secho(line, fg="red" if line.startswith("DEADLOCK: ") else None)
