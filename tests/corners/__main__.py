"""How much of the time of known programs has a whole and true stack: a table, programs by interpreters.

python -m tests.corners [KIND...] [--of INTERPRETER...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.corners.scores import Score, commands_of, recorded
from tests.corners.truths import GREENLETS, INTERPRETERS
from tests.integration.recorded import ALL_INTERPRETERS

VERSIONS = ("3.9", "3.11", "3.12", "3.13", "debian-3.11", "sid-3.14", "sid-3.15")
RECORD_S, TOGETHER = 2, 6
KINDS = (*(f"greenlets:{kind}" for kind in GREENLETS), *(f"interpreters:{kind}" for kind in INTERPRETERS))


def main() -> None:
    words = " ".join(sys.argv[1:]).partition("--of")
    asked = words[0].split()
    kinds = [kind for kind in KINDS if not asked or any(word in kind for word in asked)]
    versions = [it for it in words[2].split() or VERSIONS if it in ALL_INTERPRETERS]
    found: dict[tuple[str, str], Score] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # on a disk, which /tmp may not be
        for version in versions:
            commands = commands_of(version, kinds)
            for begin in range(0, len(commands), TOGETHER):
                some = dict([*commands.items()][begin : begin + TOGETHER])
                scores = recorded(Path(name) / "x.bpfprof", some, RECORD_S)
                found.update({(kind, version): score for kind, score in scores.items()})
    print("whole and true of CPU / of waits in %, *: % without a mark and wrong")
    print(" " * 28 + "".join(f"{version:>18}" for version in versions))
    for kind in kinds:
        print(f"{kind:28}" + "".join(f"{found.get((kind, version), ''):>18}" for version in versions))
    for (kind, version), score in found.items():
        for text, us in score.wrong.most_common(2):
            print(f"wrong: {kind} {version} {us} us {text[:200]} ... {text[-600:]}")
        for text, us in score.marked.most_common(1):
            print(f"marked: {kind} {version} {us} us of {score.cpu_us + score.wait_us} {text[:200]} ... {text[-600:]}")


if __name__ == "__main__":
    main()
