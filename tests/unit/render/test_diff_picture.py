"""The signed flame graph of two recordings."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.model.profile import Profile
from bpfprof.query.compare.diff_tree import DiffPaths, SideTree, both_sides
from bpfprof.query.compare.differences import Differences, differences
from bpfprof.query.compare.slices import sliced
from bpfprof.render.diff_picture import render_signed_graph, signed_tree
from bpfprof.render.diff_table import DiffLook
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, hostile_profile, native, python, wait

LOOK = DiffLook()


def service(parse_ms: int, nap_ms: int, folder: str = "/srv/app", extra: str = "") -> Profile:
    """A loop whose functions take so long, each turn a little more or less."""
    made = ProfileBuilder()
    thread = made.thread(100, "MainThread")
    main = [python("main", f"{folder}/main.py", 5)]
    for turn in range(200):
        off = turn % 5 * MS // 10
        made.spend(thread, ON_CPU, parse_ms * MS + off, [*main, python("parse", f"{folder}/a.py", 7), native("scan")])
        made.spend(thread, ON_CPU, 10 * MS - off, [*main, python("same", f"{folder}/a.py", 30)])
        made.spend(thread, OFF_CPU, nap_ms * MS + off, [*main, python("nap", f"{folder}/a.py", 40), wait("sleep")])
        if extra:
            made.spend(thread, ON_CPU, 3 * MS, [*main, python(extra, f"{folder}/a.py", 50)])
    return made.build()


def compared(before: Profile, after: Profile) -> tuple[DiffPaths, Differences]:
    sides = SideTree(), SideTree()
    for side, profile in zip(sides, (before, after)):
        side.add(profile, "function")
    found = differences([sliced(before, "function")], [sliced(after, "function")])
    return both_sides(*sides, found.is_per_run), found


PAIR = service(10, 10), service(30, 4, "/opt/copy", "fresh")


def looks(before: Profile, after: Profile) -> dict[str, str]:
    paths, found = compared(before, after)
    signed = signed_tree(paths, found, LOOK)
    return {signed.tree.texts[label].text: look for label, look in zip(signed.tree.labels.tolist(), signed.looks)}


def test_what_takes_more_and_less_is_told_apart_from_noise() -> None:
    found = looks(*PAIR)
    assert found["parse (a.py)"] == found["scan (libc.so.6)"] == found["fresh (a.py)"] == "more"
    assert found["same (a.py)"] == "less"
    assert found["nap (a.py)"] == found["waiting: sleep"] == "maybe-less"
    assert found["all"] == found["main (main.py)"] == "same"
    assert looks(PAIR[0], service(10, 10))["parse (a.py)"] == "same"
    noisy = looks(PAIR[0], service(11, 10))
    assert noisy["parse (a.py)"] == "maybe-more" and noisy["nap (a.py)"] == "maybe-less"


def test_times_are_those_of_the_table() -> None:
    paths, found = compared(*PAIR)
    tree = signed_tree(paths, found, LOOK).tree
    by_text = {tree.texts[label].text: node for node, label in enumerate(tree.labels.tolist())}
    rows = {row.key[0]: row for row in found.rows}
    for name in ("parse", "same", "nap", "fresh"):
        node, total = by_text[f"{name} (a.py)"], rows[name].both_total
        assert tree.values[0][node] / 1e9 == pytest.approx(total.before, abs=1e-6)
        assert tree.values[1][node] / 1e9 == pytest.approx(total.after, abs=1e-6)
    inner = np.bincount(tree.parents[1:], weights=tree.wall_ns[1:], minlength=len(tree.wall_ns))
    assert (inner <= tree.wall_ns + 5).all() and tree.values[0][0] == pytest.approx(1e9, abs=9)


def test_picture_has_signs_and_words() -> None:
    svg = render_signed_graph(*compared(*PAIR), LOOK, "a → b", ["quality: fine"])
    for part in ("▲ parse (a.py)", "▼ nap (a.py)", "fresh (a.py) is new", "quality: fine", "more time than before"):
        assert part in svg
    evil = render_signed_graph(*compared(hostile_profile(), hostile_profile()), LOOK, "</title>", [])
    assert "<img" not in evil and evil.count("</script>") == 2
