"""Frames of cells are called as the notebook calls them, and those above a cell are left out."""

from __future__ import annotations

import linecache

import pytest

from bpfprof.commands.own_options import OwnOptions
from bpfprof.errors import UsageError
from bpfprof.notebook.cells import sources_of, with_cell_names
from bpfprof.render.formats import FLAMEGRAPH
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, native, python

CELL, MAGIC = "/tmp/ipykernel_7/123.py", "/site-packages/bpfprof/notebook/magic.py"


def test_stacks_begin_with_the_cell() -> None:
    made = ProfileBuilder()
    thread, other = made.thread(100), made.thread(101)
    above = [
        native("main"),
        python("<module>", "/site-packages/ipykernel_launcher.py", 3),
        python("Code.run", MAGIC, 60),
    ]
    made.spend(thread, ON_CPU, 5 * MS, [*above, python("<module>", CELL, 2), python("burn", "/srv/a.py", 4)])
    made.spend(thread, ON_CPU, 5 * MS, above)
    made.spend(other, ON_CPU, 5 * MS, [native("clone3"), python("in_thread", CELL, 5)])
    profile = with_cell_names(made.build(), {CELL: "In [3]"}, MAGIC, "Code.run")
    shown = [[(frame.name, frame.file) for frame in map(profile.frames.__getitem__, it)] for it in profile.stacks]
    assert shown[0] == [("<module>", "In [3]"), ("burn", "/srv/a.py")]
    assert shown[1] == [("Code.run", MAGIC)]
    assert [name for name, _ in shown[2]] == ["clone3", "in_thread"] and shown[2][1][1] == "In [3]"


def test_the_source_of_a_cell_is_what_ran() -> None:
    linecache.cache[CELL] = (4, None, ["\n", "burn()\n"], CELL)
    found = sources_of({CELL: "In [3]"})(["In [3]", "/no/such/file.py"], 0)
    assert found["In [3]"] == ("\nburn()\n", "") and found["/no/such/file.py"][0] == ""
    del linecache.cache[CELL]


def test_options_are_those_of_record_and_a_statement_follows_them() -> None:
    asked = OwnOptions.of(["-r", "400", "-o", "x.svg", "--", "burn(1,", "-2)"])
    assert asked is not None
    assert asked.words == ("-r", "400", "-o", "x.svg") and asked.rest_count == 2
    assert asked.shown.format() is FLAMEGRAPH and asked.look.sources is not None
    assert OwnOptions.of(["burn(-1)", "-r"]).words == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("words", [["--pid", "1"], ["-a"], ["-r", "x"], ["--nonsense"], ["-e", "page-faults"]])
def test_options_that_mean_nothing_here_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        OwnOptions.of(words)
