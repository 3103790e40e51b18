"""Carrying out what a command that records is to do. Wrong use is said before anything large is imported or loaded."""

from __future__ import annotations

from dataclasses import replace

from bpfprof.commands.outputs import STANDARD_OUTPUT, check_no_terminal, check_not_spilled, descriptor, open_stream
from bpfprof.commands.plan import Plan
from bpfprof.commands.starting import starting
from bpfprof.errors import UsageError
from bpfprof.render.formats import SUMMARY, TABLE, WAITS, Format


def carry_out(plan: Plan) -> int:
    """Checks the output, then records: see make_recording(). Raises UsageError."""
    chosen, shown = plan.shown.format(), plan.shown
    shown.check_open()
    if chosen in (SUMMARY, TABLE, WAITS) and shown.output is None:
        chosen = None  # it is shown in any case
    if chosen is not None and shown.output is None:
        shown = replace(shown, output=STANDARD_OUTPUT)
    if descriptor(shown.output) == 1:
        _check_standard_output(bool(plan.command), chosen)
    stream = open_stream(shown.output)  # before a command is forked, which is not to have it
    options = replace(plan.options, native=plan.options.native or plan.options.native_lines)
    with starting(options.counts_calls) as under_way:
        # Imported now, which takes a while: the kernel side is on its way up.
        from bpfprof.commands.recording import make_recording

        return make_recording(replace(plan, options=options, shown=shown, chosen=chosen), under_way, stream)


def _check_standard_output(is_launched: bool, chosen: Format | None) -> None:
    if is_launched:
        raise UsageError("standard output belongs to the command that is launched", "give a file: --output FILE")
    if chosen is None:
        check_no_terminal("a recording is", STANDARD_OUTPUT)
    else:
        check_not_spilled(chosen.name, STANDARD_OUTPUT)
