import json

import pytest

from bpfprof.render.formats import RenderOptions
from bpfprof.render.speedscope import render_speedscope
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    ProfileBuilder,
    empty_profile,
    hostile_profile,
    native,
    python,
    training_profile,
    wait,
)


def test_threads_share_a_clock_and_their_weights_fill_it() -> None:
    profile = training_profile()
    content = json.loads(render_speedscope(profile, RenderOptions()))
    spans = {thread.tid: (thread.first_ns, thread.last_ns) for thread in profile.threads}
    whole, *threads = content["profiles"]
    assert len(threads) == len(profile.threads)
    assert whole["name"] == "all threads" and sum(whole["weights"]) == sum(it.wall_ns for it in profile.threads)
    for one in threads:
        tid = int(one["name"].rpartition("(")[2].rstrip(")"))
        assert (one["startValue"], one["endValue"]) == spans[tid]
        assert one["startValue"] + sum(one["weights"]) == one["endValue"]
        assert len(one["samples"]) == len(one["weights"])
        assert one["unit"] == "nanoseconds"


def test_samples_are_in_the_order_of_time_and_neighbours_merge() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for ns, stack in [(5, [python("a")]), (6, [python("a")]), (7, [python("b"), wait("gil")]), (8, [python("a")])]:
        made.spend(thread, ON_CPU, ns, stack)
    content = json.loads(render_speedscope(made.build(), RenderOptions()))
    names = [frame["name"] for frame in content["shared"]["frames"]]
    whole, one = content["profiles"]
    assert [[names[frame] for frame in sample] for sample in one["samples"]] == [["a"], ["b", "waiting: GIL"], ["a"]]
    assert one["weights"] == [11, 7, 8]
    root = "thread python (1)"
    stacks = [[names[frame] for frame in sample] for sample in whole["samples"]]
    assert (stacks, whole["weights"]) == ([[root, "a"], [root, "b", "waiting: GIL"]], [19, 7])


def test_waits_for_a_lock_have_its_name_and_where_it_is_taken() -> None:
    made = ProfileBuilder()
    one, other = made.thread(1), made.thread(2)
    by = {"waker": made.thread_waker(other), "waker_stack": [python("free")]}
    for lock, line in ((0x500, 21), (0x600, 30)):
        made.wait(
            one, line * MS, [python("audit", "/srv/app.py", line), native("futex"), wait("lock")], lock=lock, **by
        )
    made.spend(other, ON_CPU, 51 * MS, [python("free")])
    frames = json.loads(render_speedscope(made.build(), RenderOptions()))["shared"]["frames"]
    assert {"name": "waiting: lock #1, taken in audit (app.py:30)", "file": "app.py", "line": 30} in frames
    assert {"name": "waiting: lock #2, taken in audit (app.py:21)", "file": "app.py", "line": 21} in frames


def test_busy_main_threads_come_first() -> None:
    made = ProfileBuilder()
    busy = {11: 30, 10: 20, 20: 40, 30: 0, 31: 90}
    for tid, percent in busy.items():
        thread = made.thread(tid, pid=tid // 10 * 10)
        made.spend(thread, ON_CPU, percent * MS, [python("f")])
        made.spend(thread, OFF_CPU, (100 - percent) * MS, [python("f"), wait("sleep")])
    content = json.loads(render_speedscope(made.build(), RenderOptions()))
    order = [int(one["name"].rpartition("(")[2].rstrip(")")) for one in content["profiles"][1:]]
    assert order == [20, 10, 31, 11, 30]
    assert content["activeProfileIndex"] == 0


def test_frames_have_name_file_and_line() -> None:
    frames = json.loads(render_speedscope(training_profile(), RenderOptions()))["shared"]["frames"]
    assert {"name": "Trainer.step", "file": "model.py", "line": 17} in frames
    assert {"name": "libopenblas.so.0+0x1f40", "file": "/usr/lib/libopenblas.so.0"} in frames
    without = json.loads(render_speedscope(training_profile(), RenderOptions(function_only=True)))["shared"]["frames"]
    assert {"name": "Trainer.step", "file": "model.py"} in without


def test_empty_profile_and_title() -> None:
    content = json.loads(render_speedscope(empty_profile(), RenderOptions(title="nothing")))
    assert (content["profiles"], content["name"], content["exporter"]) == ([], "nothing", "bpfprof")


def test_hostile_names_stay_names() -> None:
    text = render_speedscope(hostile_profile(), RenderOptions())
    text.encode("utf-8")
    assert "alert(1)" in json.loads(text)["shared"]["frames"][0]["name"]


def test_a_profile_without_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="with its spans"):
        render_speedscope(ProfileBuilder().build(spans=False), RenderOptions())
