import json
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.spans import SpanFlag
from bpfprof.render.call_tree import build_call_tree
from bpfprof.render.flamegraph import render_flamegraph
from bpfprof.render.formats import RenderOptions
from bpfprof.render.frame_look import LOOKS, style
from bpfprof.render.page import render_page
from bpfprof.render.palette import STROKES
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    locks_profile,
    python,
    training_profile,
    wait,
)
from tests.unit.render.unpacked import unpacked

SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = RenderOptions()


def frames_of(svg: str) -> list[tuple[str, str, float]]:
    """(class, first line of the title, width in percent) of each drawn frame."""
    root = ElementTree.fromstring(svg.encode("utf-8"))
    found = []
    for group in root.iterfind(f"{SVG}svg[@id='frames']/{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert rect is not None
        width = float(rect.get("width", "0%")[:-1])
        found.append((group.get("class", ""), (title.text or "").split("\n")[0], width))
    return found


def data_of(svg: str) -> dict[str, list[int]]:
    """Columns of numbers."""
    root = ElementTree.fromstring(svg.encode("utf-8"))
    data = json.loads(root.findtext(f"{SVG}script[@id='frame-data']") or "")
    return {
        name: values
        for name, values in data.items()
        if isinstance(values, list) and values and isinstance(values[0], int)
    }


def many_stacks(count: int):
    made = ProfileBuilder()
    threads = [made.thread(tid) for tid in range(8)]
    frames = [python(f"f{index}", f"/srv/m{index % 40}.py", index % 90 + 1) for index in range(3_000)]
    for index in range(count):
        depth = 20 + index % 20
        stack = [frames[(level * 7 + (index >> max(0, 12 - level // 2)) * 31) % 3_000] for level in range(depth)]
        leaf = [frames[index % 3_000], frames[index // 3_000]]
        made.spend(threads[index % 8], ON_CPU, 1 + index % 1_000, [*stack, *leaf])
    return made.build(spans=False)


def test_tree_adds_up() -> None:
    profile = training_profile()
    tree = build_call_tree(profile, OPTIONS)
    assert tree.wall_ns[0] == sum(thread.wall_ns for thread in profile.threads)
    assert tree.values[0][0] == sum(thread.on_cpu_ns for thread in profile.threads)
    inner = np.bincount(tree.parents[1:], weights=tree.wall_ns[1:], minlength=len(tree.wall_ns))
    assert (inner <= tree.wall_ns).all()
    assert (tree.parents[1:] < np.arange(1, len(tree.parents))).all()
    assert (np.diff(tree.depths) >= 0).all()
    assert [tree.texts[label].text for label in tree.labels[:5]] == [
        "all",
        "process python (100)",
        "thread MainThread (100)",
        "thread io worker (101)",
        "thread pool (102)",
    ]


def test_waits_stand_after_their_siblings_and_look_different() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, 1 * MS, [python("f"), python("g")])
    made.spend(thread, OFF_CPU, 9 * MS, [python("f"), wait("gil")])
    frames = frames_of(render_flamegraph(made.build(), OPTIONS))
    assert [text for _, text, _ in frames][-2:] == ["g (train.py)", "waiting: GIL"]
    assert frames[-1][0] == "wait-gil"
    assert frames[-1][2] == pytest.approx(90)


def test_data_matches_the_drawn_frames() -> None:
    svg = render_flamegraph(training_profile(), OPTIONS)
    data, frames = data_of(svg), frames_of(svg)
    assert {len(column) for column in data.values()} == {len(frames)}
    whole = data["cpu"][0] + data["wait"][0]
    for cpu, waiting, (_, _, width) in zip(data["cpu"], data["wait"], frames):
        assert not width or 100 * (cpu + waiting) / whole == pytest.approx(width, abs=0.01)


def test_header_tells_what_was_recorded_and_how_well() -> None:
    text = "".join(
        ElementTree.fromstring(render_flamegraph(training_profile(), RenderOptions(title="A <b>")).encode()).itertext()
    )
    for part in (
        "A <b>",
        "python train.py --epochs 3",
        "99 Hz cpu-clock",
        "node-7",
        "quality: 100.00% of 5.750 s",
        "wait: GIL",
    ):
        assert part in text


def test_hostile_names_are_only_text() -> None:
    svg = render_flamegraph(hostile_profile(), RenderOptions(title="</title>]]><script>"))
    root = ElementTree.fromstring(svg.encode("utf-8"))
    assert len(list(root.iter(f"{SVG}script"))) == 2
    assert len(list(root.iter(f"{SVG}style"))) == 1
    allowed = {"svg", "g", "rect", "text", "title", "desc", "style", "script", "defs", "pattern", "path", "circle"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= allowed
    assert not [name for element in root.iter() for name in element.attrib if name.lower().startswith("on")]


def test_assets_stay_inside_their_sections_and_build_no_markup() -> None:
    svg = render_flamegraph(empty_profile(), OPTIONS)
    assert svg.count("]]>") == svg.count("<![CDATA[") == 2
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", svg)
    assert not re.search(r"https?://(?!www\.w3\.org/)", svg)


def test_every_look_has_a_colour_in_light_and_dark() -> None:
    light, dark = style().split("@media screen and (prefers-color-scheme: dark)")
    for look, _ in LOOKS:
        assert re.search(rf"\.{look}{{", light) and re.search(rf"\.{look}(-back)?{{", dark)
    strokes = [path for path, _ in STROKES.values()]
    assert len(set(strokes)) == len(strokes) - 2  # those of changes are no reasons


def test_deep_stack_is_drawn_to_its_leaf() -> None:
    frames = frames_of(render_flamegraph(deep_profile(2_000), OPTIONS))
    assert len(frames) == 2_003
    assert frames[-1][1] == "down (train.py:2000)"


def test_narrow_frames_are_counted_not_drawn() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, 1_000_000 * MS, [python("wide")])
    for index in range(50):
        made.spend(thread, ON_CPU, MS, [python(f"narrow{index}")])
    svg = render_flamegraph(made.build(), OPTIONS)
    assert "50 small frames merged into their callers, 0.0001% of its thread or less each" in svg
    assert [text for _, text, _ in frames_of(svg)][-1] == "wide (train.py)"


@pytest.mark.second_tier
def test_many_stacks_are_fast_and_small() -> None:
    profile = many_stacks(100_000)
    assert len(profile.stacks) == 100_000
    started = time.process_time()
    svg = render_flamegraph(profile, OPTIONS)
    assert time.process_time() - started < 8  # about 2 s on a quiet machine
    assert len(svg) < 6_000_000
    assert "merged into their callers" in svg


def test_the_hottest_leaf_of_every_thread_is_in_the_file_though_there_are_many_frames() -> None:
    made = ProfileBuilder()
    for number in range(65):
        thread = made.thread(number + 1)
        for index in range(400):
            made.spend(thread, ON_CPU, MS, [python("f"), python(f"small_{index}_{number}")])
        made.spend(thread, ON_CPU, MS + number, [python("f"), python(f"hottest_{number}")])
        made.spend(thread, OFF_CPU, 5_000 * MS, [python("f"), wait("lock")])
    texts = [text for _, text, _ in frames_of(render_flamegraph(made.build(spans=False), OPTIONS))]
    assert len({text for text in texts if text.startswith("hottest_")}) == 65
    assert texts.count("waiting: lock") == 65 and len(texts) <= 16_000


def test_a_wait_for_a_lock_has_its_name_and_where_it_is_taken() -> None:
    profile = locks_profile()
    svg = render_flamegraph(profile, OPTIONS)
    frames = [(look, text) for look, text, _ in frames_of(svg) if text.startswith("waiting")]
    names = "waiting: lock #1, taken in audit (views.py:20)", "waiting: lock #2, taken in flush (views.py:21)"
    assert frames == [("wait-lock", name) for name in names]
    assert re.findall(r">(lock #.*?)</text>", svg) == ["lock #1 645.0 ms", "lock #2 445.0 ms"]
    head, _ = unpacked(render_page(profile, OPTIONS))
    marks = {
        name: head["kinds"][mark] for name, mark in zip(head["frames"]["name"], head["frames"]["mark"]) if mark >= 0
    }
    assert marks == dict.fromkeys(["waiting: lock", *names], "lock")


def test_a_wait_for_thousands_of_locks_stays_one_but_for_those_that_matter() -> None:
    """The wait is half of the time: it must not be slivers that are too thin to be drawn."""
    made = ProfileBuilder()
    thread, other = made.thread(1), made.thread(2)
    for number in range(1, 3001):
        made.spend(other, ON_CPU, MS, [python("work")])
        made.wait(thread, MS, [python("take"), wait("lock")], lock=0x1000 * number, waker=made.thread_waker(other))
    texts = [text for _, text, width in frames_of(render_flamegraph(made.build(), OPTIONS)) if width]
    assert "waiting: lock" in texts and len([text for text in texts if text.startswith("waiting: lock")]) <= 61


def test_stacks_of_wakers_keep_their_words() -> None:
    """They go on after the wait, and locks have no number there."""
    made = ProfileBuilder()
    thread, other = made.thread(1), made.thread(2)
    woken = [python("take"), wait("lock"), Frame(FrameKind.WOKEN_BY, "thread other (2)"), python("give")]
    made.spend(other, ON_CPU, 600 * MS, [python("work")])
    made.wait(thread, 600 * MS, woken, lock=0x1000, waker=made.thread_waker(other))
    head, _ = unpacked(render_page(made.build(), OPTIONS))
    assert {"waiting: lock", "give"} <= {*head["frames"]["name"]}
    assert not any(" #" in name for name in head["frames"]["name"])


def test_threads_of_a_role_are_one_and_idle_time_is_told_apart() -> None:
    made = ProfileBuilder()
    for number in range(12):
        thread = made.thread(number + 1, f"worker_{number}")
        made.spend(thread, ON_CPU, 600 * MS, [python("work")])
    idle = made.thread(99, "pool")
    made.wait(idle, 600 * MS, [python("get", "/usr/lib/python3.11/queue.py"), wait("lock")], flags=SpanFlag.IDLE)
    svg = render_flamegraph(made.build(), OPTIONS)
    texts = [text for _, text, width in frames_of(svg) if width]
    assert "thread worker_0..11 (12 threads)" in texts and not any("pool" in text for text in texts)
    data = data_of(svg)
    assert (data["cpu"][0], data["wait"][0], data["idle"][0]) == (7_200_000, 0, 600_000)
    assert "Too little to say" in svg
    each = render_flamegraph(made.build(), RenderOptions(merge="none"))
    assert sum(text.startswith("thread worker_") for _, text, _ in frames_of(each)) == 12
