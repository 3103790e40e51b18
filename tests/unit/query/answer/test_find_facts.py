"""Figures that the rules of a verdict ask for, of profiles made by hand."""

from __future__ import annotations

from bpfprof.query.answer.find_facts import facts_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, RUNQUEUE, ProfileBuilder, native, python


def test_a_line_that_is_named_in_place_of_native_code_has_its_own_part() -> None:
    """What is most is in a thread of C: the line that is named is not all of it."""
    made = ProfileBuilder()
    loops, works = made.thread(1, "MainThread"), made.thread(2, "reducer")
    for name, ms in (("load", 300), ("step", 200)):
        made.spend(loops, RUNQUEUE, ms * MS, [python(name, line=4)])
    made.spend(works, RUNQUEUE, 600 * MS, [native("reduce")])
    for thread in (loops, works):
        made.spend(thread, ON_CPU, 50 * MS, [native("reduce") if thread == works else python("step")])
    profile = made.build()
    facts, place, _ = facts_of(profile, work_of(profile))
    assert facts.first == "ready" and profile.frames[place].name == "load"
    assert facts.where == "load (train.py:4)" and facts.where_part == 0.6
