"""`bpfprof manual`: manual pages, made of what --help has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from bpfprof import __version__
from bpfprof.commands.described import (
    DescribedCommand,
    DescribedOption,
    described_commands,
    described_options,
)
from bpfprof.commands.group import COMMANDS, EXAMPLES, EXIT_CODES, group
from bpfprof.commands.help import Command, Example
from bpfprof.commands.outputs import show, write_output
from bpfprof.errors import UsageError
from bpfprof.proc.caller import caller_ids

_EXAMPLES = (
    ("the page of a command, on the terminal", "bpfprof manual record"),
    ("all pages, where man finds them", "sudo bpfprof manual --folder /usr/local/share/man/man1"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument(
    "command",
    required=False,
    metavar="[COMMAND]",
    type=click.Choice([name for commands in COMMANDS.values() for name in commands]),
)
@click.option(
    "--folder", metavar="PATH", type=Path, help="Write bpfprof.1 and the pages of all commands into this folder."
)
def manual(command: str | None, folder: Path | None) -> None:
    """Show the manual page of bpfprof or of a COMMAND: on a terminal by man, elsewhere as its source for man -l."""
    pages = manual_pages()
    if folder is not None:
        if command is not None or not folder.is_dir():
            raise UsageError(
                "--folder wants a folder that is there, and gets all pages", "bpfprof manual --folder PATH"
            )
        for name, page in pages.items():
            write_output(folder / name, page, caller_ids())
        return
    page = pages[f"bpfprof-{command}.1" if command else "bpfprof.1"]
    if sys.stdout.isatty() and shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=page, encoding="utf-8", check=False)
    else:
        show(page)


def manual_pages() -> dict[str, str]:
    """File name -> page, in the man(7) macros of troff."""
    commands = described_commands()
    pages = {"bpfprof.1": _main_page(commands)}
    for command in commands:
        pages[f"bpfprof-{command.name}.1"] = _command_page(command, commands)
    return pages


def _main_page(commands: Sequence[DescribedCommand]) -> str:
    lines = [*_title("bpfprof"), ".SH NAME", r"bpfprof \- " + _escaped(_first_words(group.help or ""))]
    lines += [".SH SYNOPSIS", _bold("bpfprof [OPTIONS] COMMAND [ARGUMENTS]...")]
    lines += [".SH DESCRIPTION", *_paragraphs(group.help or "")]
    summaries = {command.name: command.summary for command in commands}
    for heading, names in COMMANDS.items():
        lines.append(f".SS {_escaped(heading)}")
        for name in names:
            lines += [".TP", rf"\fBbpfprof\-{name}\fR(1)", _escaped(summaries[name])]
    lines += [".SH OPTIONS", *_options(described_options()), *_examples(EXAMPLES), ".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES:
        lines += [".TP", rf"\fB{_escaped(code)}\fR", _escaped(meaning)]
    return "\n".join(lines) + "\n"


def _command_page(command: DescribedCommand, commands: Sequence[DescribedCommand]) -> str:
    name = f"bpfprof-{command.name}"
    lines = [*_title(name), ".SH NAME", rf"{_escaped(name)} \- {_escaped(_first_words(command.summary))}"]
    lines += [".SH SYNOPSIS", _bold(command.usage)]
    lines += [".SH DESCRIPTION", *_paragraphs(command.text), ".SH OPTIONS"]
    for heading, options in command.sections:
        lines += [f".SS {_escaped(heading)}"] * (len(command.sections) > 1)
        lines += _options(options)
    lines += [*_examples(command.examples), ".SH EXIT STATUS", r"\fBbpfprof\fR(1) lists the codes."]
    others = ["bpfprof", *(f"bpfprof-{other.name}" for other in commands if other is not command)]
    lines += [".SH SEE ALSO", ",\n".join(rf"\fB{_escaped(other)}\fR(1)" for other in others)]
    return "\n".join(lines) + "\n"


def _title(name: str) -> list[str]:
    return [
        r".\" made by: bpfprof manual",
        rf'.TH {_escaped(name.upper())} 1 "" "bpfprof {__version__}" "User Commands"',
    ]


def _options(options: Sequence[DescribedOption]) -> list[str]:
    lines = []
    for option in options:
        lines += [".TP", _bold(option.shown), _escaped(option.text)]
    return lines


def _examples(examples: Sequence[Example]) -> list[str]:
    lines = [".SH EXAMPLES"] * bool(examples)
    for what, line in examples:
        lines += [
            ".PP",
            _escaped(f"{what[:1].upper()}{what[1:]}:"),
            ".PP",
            ".RS 4",
            ".nf",
            _escaped(line),
            ".fi",
            ".RE",
        ]
    return lines


def _paragraphs(text: str) -> list[str]:
    lines = []
    for paragraph in text.split("\n\n"):
        lines += [".PP", _escaped(" ".join(paragraph.split()))]
    return lines


def _bold(text: str) -> str:
    return rf"\fB{_escaped(text)}\fR"


def _first_words(text: str) -> str:
    """The first sentence without its full stop, as a NAME section has it."""
    sentence = " ".join(text.split()).split(". ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def _escaped(text: str) -> str:
    """As troff takes it: a hyphen that can be copied, no escapes, and no line that looks like a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    return rf"\&{text}" if text.startswith(".") else text
