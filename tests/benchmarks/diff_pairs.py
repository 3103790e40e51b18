"""How often `bpfprof diff` is right about a program (one_slower.py) whose function f has 30% of the time. Run as root.

It is recorded again and again, as it is and with an f that takes 10% longer, with turns of its three functions that are
short (4 ms) or long (100 ms), at 99 and 999 Hz. Any two recordings of the same program are a pair that should show no
difference; any two of different ones a pair in which f should have got slower. Groups are three recordings against
three others, drawn again and again. Recordings take turns, so that the machine's own changes fall on both.

With --folder the recordings are kept there, and those that are there already are used.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import PROGRAMS, python, running, show

from bpfprof.commands.report import load_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.compare.differences import Differences, differences
from bpfprof.query.compare.slices import Slices, sliced

SECONDS, SLOWER_PERCENT, GROUP, DRAWS = 10, 10, 3, 200
BPFPROF = str(Path(sys.executable).with_name("bpfprof"))


@dataclass(frozen=True)
class Case:
    """rounds: thousands, of a turn."""

    name: str
    rounds: int
    rate_hz: int

    def path(self, folder: Path, percent: int, number: int) -> Path:
        return folder / f"{self.name}_{percent}_{number}.bpfprof"


CASES = (Case("long_99", 2500, 99), Case("short_99", 100, 99), Case("short_999", 100, 999))


def record(case: Case, percent: int, path: Path) -> None:
    """Writes the recording, unless it is there."""
    if path.exists():
        return
    with running(python(), str(PROGRAMS / "one_slower.py"), str(case.rounds), str(percent)) as target:
        command = [BPFPROF, "record", "-p", str(target.pid), "-d", str(SECONDS), "-r", str(case.rate_hz)]
        subprocess.run([*command, "-o", str(path)], check=True, capture_output=True)


def slices(paths: Iterable[Path]) -> list[Slices]:
    return [sliced(load_profile(path, ProfileOptions(with_spans=True)), "function") for path in paths if path.exists()]


def is_different(found: Differences) -> bool:
    """It names anything."""
    return any(change.is_found for _, change in found.tested)


def is_right(found: Differences) -> bool:
    """It names f, and as slower."""
    return any(row.key[0] == "f" and change.is_found and change.difference > 0 for row, change in found.tested)


def percent(answers: Sequence[bool]) -> float:
    return 100 * sum(answers) / max(1, len(answers))


def judge(case: Case, folder: Path, count: int) -> None:
    before, after = (
        slices(case.path(folder, slower, number) for number in range(count)) for slower in (0, SLOWER_PERCENT)
    )
    alike = [differences([one], [other]) for side in (before, after) for one, other in itertools.combinations(side, 2)]
    different = [differences([one], [other]) for one, other in itertools.product(before, after)]
    show(
        f"diff_{case.name}_pairs_of_one_program_without_difference",
        percent([not is_different(it) for it in alike]),
        "%",
    )
    show(f"diff_{case.name}_pairs_that_find_the_slower_function", percent([is_right(it) for it in different]), "%")
    needed = [change.percent(change.needed) for it in different for row, change in it.tested if row.key[0] == "f"]
    show(f"diff_{case.name}_least_change_that_is_found", sorted(needed or [0.0])[len(needed) // 2], "%")
    draw = random.Random(1)
    alike, different = [], []
    for number in range(DRAWS):
        chosen = draw.sample((before, after)[number % 2], 2 * GROUP)
        alike.append(differences(chosen[:GROUP], chosen[GROUP:]))
        different.append(differences(draw.sample(before, GROUP), draw.sample(after, GROUP)))
    show(
        f"diff_{case.name}_groups_of_one_program_without_difference",
        percent([not is_different(it) for it in alike]),
        "%",
    )
    show(f"diff_{case.name}_groups_that_find_the_slower_function", percent([is_right(it) for it in different]), "%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--count", type=int, default=9, help="recordings of each program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for number, case, slower in itertools.product(range(options.count), CASES, (0, SLOWER_PERCENT)):
            record(case, slower, case.path(folder, slower, number))
        for case in CASES:
            judge(case, folder, options.count)


if __name__ == "__main__":
    main()
