"""Of how much of the time that threads wait for a lock the right holder is named: a table, kinds by interpreters.

python -m tests.holders [KIND...] [--of INTERPRETER...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.holders.scores import EXACT, OF_PROCESSES, Score, command, recorded, scores
from tests.integration.recorded import ALL_INTERPRETERS

VERSIONS = ("3.8", "3.10", "3.12", "3.13", "sid-3.14", "sid-3.15")
RECORD_S, TOGETHER = 3, 6


def main() -> None:
    words = " ".join(sys.argv[1:]).partition("--of")
    kinds = words[0].split() or [*EXACT]
    versions = [it for it in words[2].split() or VERSIONS if it in ALL_INTERPRETERS]
    found: dict[tuple[str, str], Score] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # on a disk, which /tmp may not be
        folder = Path(name)
        for version in versions:
            for begin in range(0, len(kinds), TOGETHER):
                commands = {
                    kind: command(ALL_INTERPRETERS[version], kind, folder) for kind in kinds[begin : begin + TOGETHER]
                }
                made = scores(*recorded(folder / "x.bpfprof", commands, RECORD_S))
                found.update({(kind, version): score for kind, score in made.items()})
    print(" " * 14 + "".join(f"{version:>12}" for version in versions) + "   right, of it (named at all)")
    for kind in kinds:
        cells = (found[kind, version] for version in versions)
        texts = (f"{100 * it.right:.1f} ({100 * (1 - it.unknown_s / max(it.waited_s, 1e-9)):.0f})" for it in cells)
        print(f"{kind:14}" + "".join(f"{text:>12}" for text in texts))
    for name, chosen in (("threads", set(kinds) - {*OF_PROCESSES}), ("processes", {*kinds} & {*OF_PROCESSES})):
        own = [score for (kind, _), score in found.items() if kind in chosen]
        waited_s = sum(it.waited_s for it in own)
        if own:
            print(f"{name}: {100 * sum(it.right_s for it in own) / waited_s:.1f}% of {waited_s:.0f} s")


if __name__ == "__main__":
    main()
