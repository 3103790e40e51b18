"""Makes docs/page/ and docs/flame-graph.png: pictures of a training loop, recorded now. As root, with Chromium, node.

`python -m tests.browser.pictures`; then look at them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.recorded import PYTHON, bpfprof, program, running

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "page"
SIZE = ("1100", "700")
VIEWS = ("", "tab=waits", "tab=source", "tab=threads", "tab=gil", "tab=tree", "tab=quality")
SECONDS = 10


def shoot(page: Path, folder: Path, color: str, size: tuple[str, str], *views: str) -> list[Path]:
    """Pictures of these views, in their order."""
    before = set(folder.iterdir())
    chromium = shutil.which("chromium") or "google-chrome"
    command = ["node", "tests/browser/shoot.mjs", chromium, str(page), str(folder), color, *size]
    for view in views:
        subprocess.run([*command, view or "t="], cwd=ROOT, check=True)
    return sorted(set(folder.iterdir()) - before, key=lambda path: path.stat().st_mtime_ns)


def keep(path: Path, name: str) -> None:
    shutil.copyfile(path, PICTURES / f"{name}.png")
    print(f"{name}: {path.stat().st_size // 1024} KB")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with running(PYTHON, program("training_loop.py")) as target:
            for name in ("before", "after"):
                bpfprof("record", "--pid", target.pid, "-d", SECONDS, "-o", folder / f"{name}.bpfprof")
        recording, page, diff = folder / "before.bpfprof", folder / "page.html", folder / "diff.html"
        bpfprof("report", recording, "-o", page)
        bpfprof("report", recording, "-o", folder / "graph.svg")
        bpfprof("diff", recording, folder / "after.bpfprof", "-o", diff)
        print(f"page: {page.stat().st_size / 1e6:.2f} MB of {SECONDS} s")
        pictures = folder / "pictures"
        pictures.mkdir()
        for view, path in zip(VIEWS, shoot(page, pictures, "light", SIZE, *VIEWS)):
            keep(path, view.removeprefix("tab=") or "flame")
        (dark,) = shoot(page, pictures, "dark", SIZE, "")
        keep(dark, "dark")
        (phone,) = shoot(page, pictures, "light", ("360", "700"), "")
        keep(phone, "phone")
        (graph,) = shoot(folder / "graph.svg", pictures, "light", ("1200", "640"), "")
        keep(graph, "../flame-graph")
        (of_two,) = shoot(diff, pictures, "light", (SIZE[0], "701"), "tab=diff")
        keep(of_two, "diff")


if __name__ == "__main__":
    sys.exit(main())
