"""`bpfprof completion`: a script that lets a shell complete commands, options and their values.

The scripts hold all there is to complete, so that the Tab key starts no Python.
"""

from __future__ import annotations

import click

from bpfprof.commands.described import described_commands, described_options
from bpfprof.commands.help import Command
from bpfprof.commands.outputs import show
from bpfprof.commands.shells import SHELLS

_EXAMPLES = (
    ("bash, for this user", "bpfprof completion bash >~/.local/share/bash-completion/completions/bpfprof"),
    ("zsh, where $fpath has this folder before compinit", "bpfprof completion zsh >~/.zsh/completions/_bpfprof"),
    ("fish", "bpfprof completion fish >~/.config/fish/completions/bpfprof.fish"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("shell", metavar="SHELL", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print a script for SHELL (bash, zsh or fish) that completes commands, options and their values.

    Processes are completed by their numbers. The Debian package has the scripts where shells look for them.
    """
    show(SHELLS[shell](described_commands(), described_options()))
