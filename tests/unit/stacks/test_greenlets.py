"""Where a greenlet's native stack ends. Leaf first: E evaluates Python, G is greenlet's library, B of it where
a greenlet begins and that is known by name, . anything else."""

from __future__ import annotations

import pytest

from bpfprof.model.statuses import Status
from bpfprof.stacks.greenlets import is_greenlet_library, own_count
from bpfprof.stacks.stitch import StackSource
from tests.unit.recording.hand_made import NAME_EVAL, HandMade


@pytest.mark.parametrize(
    ("native", "runs", "may_be_unlinked", "expected"),
    [
        pytest.param(".E.GGGG.E.", 1, False, 4, id="beyond its beginning is what started it"),
        pytest.param("E.GGGG.E.", 1, True, 3, id="the leaf in the evaluation function has its frame"),
        pytest.param("E.E.GGGG.E.", 1, True, 5, id="or not yet"),
        pytest.param(".E.E.GGG", 2, False, 6, id="cut just beyond"),
        pytest.param("..GGG.E.", 0, False, 3, id="a greenlet of C only"),
        pytest.param(".GGBGG.E.", 0, False, 4, id="one that has ended"),
        pytest.param("B.GG.E.", 0, False, 1, id="one that just begins"),
        pytest.param("GGG.E...", 1, False, None, id="the main greenlet as it switches"),
        pytest.param(".E.GGG.E...", 2, False, None, id="a trace function, called by a switch of the main greenlet"),
        pytest.param(".E.GGG.E.GGGG.E", 2, False, 10, id="and of another one"),
        pytest.param(".E.E...", 2, False, None, id="no greenlet"),
        pytest.param(".E.E.GG", 1, False, None, id="other calls than runs"),
    ],
)
def test_own_count(native: str, runs: int, may_be_unlinked: bool, expected: int | None) -> None:
    is_eval, is_greenlet, begins = ([frame in frames for frame in native] for frames in ("E", "GB", "B"))
    assert own_count(is_eval, is_greenlet, begins, runs, may_be_unlinked) == expected


def test_the_library_is_known_by_its_name() -> None:
    for path in (
        "/x/greenlet/_greenlet.cpython-312-x86_64-linux-gnu.so",
        "/x/greenlet.cpython-38-x86_64-linux-gnu.so",
        "/x/_greenlet.abi3.so",
        "greenlet.so",
    ):
        assert is_greenlet_library(path)
    for path in (
        "/x/_gevent_cgreenlet.cpython-312-x86_64-linux-gnu.so",
        "/greenlet.so/x",
        "/x/greenlet.py",
        "[memory]",
    ):
        assert not is_greenlet_library(path)


def test_its_stack_is_whole_without_what_lay_beyond() -> None:
    made = HandMade()
    made.process()
    python, library = made.file("/libpython3.11.so"), made.file("/greenlet/_greenlet.so")
    evaluation = made.native(python, ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL))
    begin, switch = (made.native(library, (name, "", 0, 0)) for name in ("inner_bootstrap", "g_switch"))
    lost = made.native(python, ("anything", "", 0, 0))
    native = [evaluation, begin, switch, lost, evaluation]
    status = int(Status.NATIVE_NO_MAPPING)
    stack = made.stack((made.code("body"), 0, 1), native=native, kernel=[lost], native_status=status)
    source = StackSource(made.recording())
    assert source.statuses[stack] == Status.OK
    assert [frame.name for frame in source.frames(stack, status)] == ["inner_bootstrap", "body", "anything"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["slp_switch", "g_switchstack"], Status.STACK_DISAGREES),
        (["memcpy", "slp_restore_state_trampoline", "slp_switch"], Status.STACK_DISAGREES),
        (["malloc", "slp_save_state_trampoline", "slp_switch"], Status.OK),
        (["g_switchstack"], Status.OK),
    ],
)
def test_a_moment_between_two_greenlets_is_marked(names: list[str], expected: Status) -> None:
    """Both have one call: the stack is the next one's, and the Python frames are still those of the one before."""
    made = HandMade()
    made.process()
    python, library = made.file("/libpython3.11.so"), made.file("/greenlet/_greenlet.so")
    evaluation = made.native(python, ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL))
    native = [*(made.native(library, (name, "", 0, 0)) for name in names), evaluation]
    stack = made.stack((made.code("body"), 0, 1), native=native)
    assert StackSource(made.recording()).statuses[stack] == expected


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ("SwEc", ["c", "outer", "inner", "slp_switch", "slp_save_state_trampoline"]),
        ("SwEcBcEc", ["inner_bootstrap", "c", "outer", "inner", "slp_switch", "slp_save_state_trampoline"]),
        ("SwEcEc", None),
        ("SwEcEcBcEc", None),
        ("SwEcgcEc", None),  # its beginning has no name
        ("cwEc", None),
    ],
)
def test_python_frames_without_entries_are_of_the_one_call(native: str, expected: list[str] | None) -> None:
    """As they are while the stack is copied, of CPython 3.12 and later. S, w, g: of greenlet; c: of C."""
    made = HandMade()
    made.process(version="3.12.1", shim_is_python=False, entry_marks_from=2)
    python, library = made.file("/libpython3.12.so"), made.file("/greenlet/_greenlet.so")
    known = {
        "E": made.native(python, ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL)),
        "c": made.native(made.file("/c.so"), ("c", "", 0, 0)),
        **{
            letter: made.native(library, (name, "", 0, 0))
            for letter, name in zip("SwBg", ("slp_save_state_trampoline", "slp_switch", "inner_bootstrap", "g_switch"))
        },
    }
    frames = [(made.code(name), 0, 0) for name in ("inner", "outer")]
    stack = made.stack(*frames, native=[known[letter] for letter in native])
    source = StackSource(made.recording())
    assert source.statuses[stack] == (Status.OK if expected else Status.STACK_DISAGREES)
    if expected:
        assert [frame.name for frame in source.frames(stack, Status.OK)] == expected
