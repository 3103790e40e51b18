"""What counts as one function."""

from __future__ import annotations

from bpfprof.query.code.functions import function_name, function_of_frames
from bpfprof.query.compare.slices import sliced
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, native, python

STRIPPED, ELSEWHERE = native("", "/a/libx.so", 0x1F), native("", "/a/libx.so", 0x2F)


def test_code_without_names_is_one_function_for_each_object() -> None:
    frames = [STRIPPED, native("f", "/a/libx.so"), ELSEWHERE, native("", "/b/libx.so", 0x1F)]
    assert function_of_frames(frames).tolist() == [0, 1, 0, 3]


def test_names() -> None:
    assert function_name(STRIPPED) == "libx.so (no names)" and function_name(native("", "", 5)) == "code (no names)"
    assert function_name(native("f")) == "f" and function_name(python("")) == ""


def test_so_it_is_for_comparisons() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, MS, [STRIPPED])
    made.spend(thread, ON_CPU, MS, [ELSEWHERE])
    assert sliced(made.build(), "function").keys == (("libx.so (no names)", "libx.so", 0),)
