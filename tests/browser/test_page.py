"""The HTML page, opened and used in headless Chromium (page.mjs)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import Profile, RecordingInfo, ThreadTime
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag
from bpfprof.profile.weights import weights_of
from bpfprof.query.work.table import work_of
from bpfprof.render.diff_page import render_diff_page
from bpfprof.render.diff_table import DiffLook
from bpfprof.render.formats import RenderOptions
from bpfprof.render.page import render_page
from bpfprof.render.page_spans import page_spans
from bpfprof.render.page_tables import page_groups
from bpfprof.render.report_json import render_json
from tests.unit.query.work.test_requests import HANDLER, LIBRARY, SERVER, SERVES, service
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    RUNQUEUE,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    kernel,
    locks_profile,
    native,
    python,
    training_profile,
    wait,
    waiting_profile,
)
from tests.unit.render.test_diff_picture import PAIR, compared
from tests.unit.render.unpacked import values

BROWSER_TESTS = Path(__file__).parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What is asked for: milliseconds, frames a second; of a machine that does something else, too, less.
LOAD_MS, FRAMES, BUSY = 2_000, 30, 3
IDLE_LOAD = 1.5  # the test itself makes 1
LINES = "\n".join(f"line {number}" for number in range(1, 301))

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or shutil.which("node") is None, reason="no chromium, or no node"),
    pytest.mark.skipif(
        not all((BROWSER_TESTS / "node_modules" / name).is_dir() for name in ("playwright-core", "axe-core")),
        reason="tests/browser/node_modules is absent: npm install --no-audit --no-fund --prefix tests/browser",
    ),
]


def problems(kind: str, html: str, folder: Path, expected: object = None) -> list[str]:
    """What page.mjs found; [] if all is well. Its figures are printed."""
    file = folder / "profile.html"
    file.write_text(html, encoding="utf-8")
    command = ["node", str(BROWSER_TESTS / "page.mjs"), str(CHROMIUM), kind, str(file), json.dumps(expected or {})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().split("\n")
    print(*[line for line in lines if line.startswith("#")], sep="\n")
    found = [line for line in lines if not line.startswith("#")]
    assert (done.returncode == 0) == (found == ["ok"]), f"the checker itself failed: {done.stdout}{done.stderr}"
    return [] if found == ["ok"] else found


def totals(profile: Profile) -> dict[str, int]:
    """Nanoseconds as `report -f json` has them."""
    found = json.loads(render_json(profile, RenderOptions()))["totals"]
    return {name: round(found[f"{name}_s"] * 1e9) for name in ("wall", "cpu", "ready", "wait", "idle")}


def large_profile(stack_count: int = 100_000, thread_count: int = 200, seconds: int = 60) -> Profile:
    """So many different stacks of 20 frames and more, shared out over threads that run, are ready and wait."""
    rng = np.random.default_rng(5)
    frames = [python(f"function_{number}", f"/srv/app/module_{number % 60}.py", number) for number in range(3_000)]
    frames += [native(f"native_{number}") for number in range(500)] + [kernel("futex_wait"), wait("lock"), wait("net")]
    base = rng.integers(0, 400, (stack_count, 12)) % np.array([1, 2, 3, 4, 6, 8, 12, 20, 40, 80, 200, 400])
    tails = rng.integers(400, 3_500, (stack_count, 8))
    stacks = [(*row, *tail) for row, tail in zip(base.tolist(), tails.tolist())]
    each = 2_500
    spans = np.zeros(each * thread_count, SPAN_DTYPE)
    spans["thread"] = np.repeat(np.arange(thread_count), each)
    cuts = np.sort(rng.integers(1, seconds * 1000 * MS, (thread_count, each - 1)), axis=1)
    borders = np.hstack([np.zeros((thread_count, 1), np.int64), cuts, np.full((thread_count, 1), seconds * 1000 * MS)])
    spans["start_ns"], spans["duration_ns"] = borders[:, :-1].reshape(-1), np.diff(borders, axis=1).reshape(-1)
    spans["stands_for_ns"], spans["count"] = spans["duration_ns"], 1
    spans["stack"] = rng.integers(0, stack_count, len(spans))
    spans["state"] = np.tile([ON_CPU, RUNQUEUE, OFF_CPU, OFF_CPU, ON_CPU], len(spans) // 5)
    spans["reason"] = np.where(spans["state"] == OFF_CPU, rng.integers(1, 9, len(spans)), 0)
    spans["wait"] = np.where(spans["state"] == ON_CPU, 0, np.arange(1, len(spans) + 1))
    whole_ns = seconds * 1000 * MS
    threads = [
        ThreadTime(Pid(9), Tid(9 + it), "app", f"worker_{it}", 0, whole_ns, whole_ns, 0, 0, 1, 1)
        for it in range(thread_count)
    ]
    info = RecordingInfo(("python", "app.py"), duration_ns=whole_ns, rate_hz=99)
    weights = weights_of(spans, spans["stack"])
    return Profile(info, tuple(threads), tuple(frames), tuple(stacks), weights, training_profile().quality, spans)


def requests_profile() -> Profile:
    """An event loop that idles while its requests wait."""
    asks = (SERVER, HANDLER)
    return service(
        SERVES,
        *[(number, 100 * number, 100 * number + 301, "sleep", asks) for number in range(1, 11)],
        *[(number, 100 * number, 100 * number + 77, "socket", (*asks, LIBRARY)) for number in range(11, 14)],
    )


@pytest.mark.parametrize("profile", [training_profile, waiting_profile])
def test_page_is_used(profile, tmp_path: Path) -> None:
    options = RenderOptions(sources=lambda paths, _: {path: (LINES, "") for path in paths})
    assert problems("use", render_page(profile(), options), tmp_path, totals(profile())) == []


def test_the_holders_of_a_lock_stand_beside_its_waits(tmp_path: Path) -> None:
    assert problems("locks", render_page(locks_profile(), RenderOptions()), tmp_path) == []


def gil_profile() -> Profile:
    """Two threads that take the GIL from each other: for 10 ms, and for 30 ms at last."""
    made = ProfileBuilder(info=RecordingInfo(duration_ns=120 * MS))
    one, other = made.thread(1, "one"), made.thread(2, "other")
    spin, waits = [python("spin")], [python("spin"), wait("gil")]
    for turn in range(10):
        holder, waiter = (one, other) if turn % 2 == 0 else (other, one)
        ns = (30 if turn == 9 else 10) * MS
        made.spend(holder, ON_CPU, ns // 2, spin, flags=SpanFlag.HOLDS_GIL)
        made.spend(holder, RUNQUEUE, ns // 2, spin, flags=SpanFlag.HOLDS_GIL)
        made.wait(waiter, ns, waits, behind=[(1, holder, spin)])
    return made.build()


def test_who_held_the_gil_is_a_row_and_how_long_is_told(tmp_path: Path) -> None:
    assert problems("gil", render_page(gil_profile(), RenderOptions()), tmp_path) == []


def two_gils_profile() -> Profile:
    """Two processes that hold theirs at the same time."""
    made = ProfileBuilder(info=RecordingInfo(duration_ns=120 * MS))
    for number, name in enumerate(("first", "second"), 1):
        thread = made.thread(number, name, pid=100 + number)
        made.spend(thread, ON_CPU, (50 + 30 * number) * MS, [python("spin")], flags=SpanFlag.HOLDS_GIL)
    return made.build()


def test_each_process_has_a_row_of_its_gil(tmp_path: Path) -> None:
    assert problems("gils", render_page(two_gils_profile(), RenderOptions()), tmp_path) == []


def waits_beside_little_profile() -> Profile:
    """A function that waits for seconds, and calls for microseconds: of others, too."""
    made = ProfileBuilder()
    for number in (1, 2):
        thread, stack = made.thread(number), [python("run"), python("wait")]
        made.spend(thread, OFF_CPU, 900 * MS, [*stack, wait("lock")])
        made.spend(thread, ON_CPU, 99 * MS, stack)
        for name in ("sem_wait", "futex"):
            made.spend(thread, ON_CPU, MS // 100, [*stack, native(name)])
        made.spend(thread, OFF_CPU, MS // 100, [*stack, wait("net")])
    return made.build()


@pytest.mark.parametrize(
    "profile", [hostile_profile, deep_profile, empty_profile, requests_profile, waits_beside_little_profile]
)
def test_odd_page_opens_without_an_error(profile, tmp_path: Path) -> None:
    html = render_page(profile(), RenderOptions())
    assert "<img" not in html and html.count("</script>") == 2
    assert problems("opens", html, tmp_path, totals(profile())) == []


def test_each_of_many_threads_can_be_shown(tmp_path: Path) -> None:
    assert problems("threads", render_page(large_profile(200, 20, 5), RenderOptions()), tmp_path) == []


def test_page_of_two_recordings(tmp_path: Path) -> None:
    html = render_diff_page(*compared(*PAIR), DiffLook(), "a → b", ["quality: fine"])
    for kind in ("changes", "look-changes"):
        assert problems(kind, html, tmp_path) == []


def test_page_is_read_by_everybody_and_everywhere(tmp_path: Path) -> None:
    """Contrast, axe, a phone, paper."""
    assert problems("look", render_page(waiting_profile(), RenderOptions()), tmp_path) == []


def test_large_page_is_fast(tmp_path: Path) -> None:
    profile = large_profile()
    html = render_page(profile, RenderOptions())
    print(f"# load of the machine {os.getloadavg()[0]:.1f}, {len(html) / 1e6:.1f} MB")
    busy = BUSY if os.getloadavg()[0] > IDLE_LOAD else 1
    limits = {"load_ms": LOAD_MS * busy, "frames": FRAMES / busy}
    assert problems("speed", html, tmp_path, limits) == []


def test_checker_refuses_a_damaged_page(tmp_path: Path) -> None:
    html = render_page(training_profile(), RenderOptions())
    start = html.index('id="data">') + len('id="data">')
    assert any("damaged" in it for it in problems("opens", html[:start] + "AAAA" + html[start:], tmp_path))
    loading = html.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">')
    assert any("Content Security Policy" in it for it in problems("opens", loading, tmp_path))
    wrong = {**totals(training_profile()), "cpu": 1}
    assert any("cpu is" in it for it in problems("opens", html, tmp_path, wrong))


def test_merged_spans_lose_no_time() -> None:
    profile = large_profile(3, 20, 5)
    work = work_of(profile)
    groups = page_groups(profile, work, "")
    whole, merged = (page_spans(profile, work, groups.group_of, budget) for budget in (1 << 30, 40_000))
    assert merged.span_count <= 40_000 < whole.span_count and merged.bucket_ns > 0 == whole.bucket_ns
    for name in ("duration", "more"):
        sums = [values(spans.columns, name).sum() for spans in (whole, merged)]
        assert sums[0] == sums[1]
    assert int(whole.columns["count"].sum()) == int(merged.columns["count"].sum())


def test_what_is_not_asked_for_is_a_gap_without_a_stack() -> None:
    profile = training_profile()
    assert profile.spans is not None
    profile.spans["flags"][profile.spans["state"] == ON_CPU] |= np.uint8(SpanFlag.HIDDEN)
    work = work_of(profile)
    columns = page_spans(profile, work, page_groups(profile, work, "").group_of).columns
    hidden = columns["kind"] == 8
    assert hidden.sum() == (profile.spans["state"] == ON_CPU).sum()
    assert ((values(columns, "duration") + values(columns, "more"))[hidden] == 0).all()
