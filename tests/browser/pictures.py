"""Makes docs/page/ and docs/flame-graph.png: pictures of a training loop, recorded now, and of graphs that are hard to
draw. As root, with Chromium, node.

`python -m tests.browser.pictures`; then look at them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bpfprof.render.flamegraph import render_flamegraph
from bpfprof.render.formats import RenderOptions
from tests.browser.many import deep_service, many_threads
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
        subprocess.run([*command, view], cwd=ROOT, check=True)
    return sorted(set(folder.iterdir()) - before, key=lambda path: path.stat().st_mtime_ns)


def keep(path: Path, name: str) -> None:
    shutil.copyfile(path, PICTURES / f"{name}.png")
    print(f"{name}: {path.stat().st_size // 1024} KB")


def hard_graphs(folder: Path) -> None:
    """Graphs of a service of 50 frames, at first and zoomed, and of 65 threads; light, dark, on a phone."""
    zoom = "zoom=" + "/".join(["process%20python%20(100)", "thread%20worker_0%20(200)"]).replace("%", "%25")
    cases = {"deep": (deep_service(50, has_branches=True), ["", zoom]), "threads": (many_threads(65), [""])}
    for name, (profile, views) in cases.items():
        graph = folder / f"{name}.svg"
        graph.write_text(render_flamegraph(profile, RenderOptions(merge="none")), encoding="utf-8")
        for color, width in (("light", "1200"), ("dark", "1200"), ("light", "360")):
            pictures = folder / f"{name}-{color}-{width}"
            pictures.mkdir()
            for view, path in zip(("first", "zoomed"), shoot(graph, pictures, color, (width, "740"), *views)):
                keep(path, f"graph-{name}-{view}-{color}-{width}")


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
        hard_graphs(folder)
        (of_two,) = shoot(diff, pictures, "light", (SIZE[0], "701"), "tab=diff")
        keep(of_two, "diff")


if __name__ == "__main__":
    sys.exit(main())
