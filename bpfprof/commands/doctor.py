"""`bpfprof doctor`: what recording needs, and what is missing here."""

from __future__ import annotations

import click

from bpfprof.errors import UnsupportedError
from bpfprof.kernel.checks import CHECKS


@click.command()
def doctor() -> None:
    """Check privilege, kernel and dependencies, and say how to put right what is missing."""
    failed: list[UnsupportedError] = []
    for name, check in CHECKS:
        try:
            click.echo(f"ok       {name}: {check()}")
        except UnsupportedError as error:
            failed.append(error)
            click.echo(f"missing  {name}: {error}" + (f"\n         {error.hint}" if error.hint else ""))
    if failed:
        raise UnsupportedError(f"{len(failed)} of {len(CHECKS)} checks failed; bpfprof cannot record here")
