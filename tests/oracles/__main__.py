"""What bpfprof says of programs that know the truth, as a table; run as root.

answers       whether the verdict names what bounds a program
holders       of how much of the time that threads wait for a lock the right holder is named
stuck         whether what hangs is said alike and right by dump, report and offcpu, however it is recorded; WORDs may
              also be ways (late, early, launched, all) and `deadlocks`; `healthy`: whether what goes on is left alone
corners       of how much of the time of greenlets, sub-interpreters and generators the stack is whole and true
interpreters  what is right of every Python there is; of all of them, ten minutes, into docs/interpreters.md

A WORD chooses the programs (the rows of interpreters) that are called so, else those that have it in their names.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.oracles import answers, corners, holders, stuck
from tests.oracles.interpreters import table

ORACLES = {
    "answers": answers.run,
    "holders": holders.run,
    "stuck": stuck.run,
    "corners": corners.run,
    "interpreters": table.run,
}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.oracles", description=__doc__, formatter_class=raw)
    parser.add_argument("name", choices=ORACLES)
    parser.add_argument("words", metavar="WORD", nargs="*")
    parser.add_argument(
        "--of", metavar="INTERPRETER", nargs="+", help="for holders, stuck and corners: 3.12 sid-3.15 ..."
    )
    options = parser.parse_args()
    if options.of and options.name not in ("holders", "stuck", "corners"):
        parser.error("--of is for holders, stuck and corners")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk, which /tmp may not be
        ORACLES[options.name](options.words, Path(folder), *([options.of] if options.of else []))


if __name__ == "__main__":
    main()
