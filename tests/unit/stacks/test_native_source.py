"""Native and kernel frames of a recording as a person reads them."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.samples import NAME_EVAL, NAME_INLINED, NATIVE_EXACT, NO_FILE
from bpfprof.stacks.native_frames import NativeSource
from tests.unit.recording.hand_made import HandMade


@pytest.fixture
def made() -> HandMade:
    """Files: 0 the kernel, 1 the interpreter, 2 a library."""
    empty = HandMade()
    empty.process()
    empty.file("[kernel]", "kernel")
    empty.file("/usr/bin/python3.11")
    empty.file("/usr/lib/libm.so.6")
    return empty


def kernel_names(source: NativeSource, *numbers: int) -> list[str]:
    return [frame.name for frame in source.kernel_frames(np.array(numbers, np.uint32))]


def test_a_named_frame_does_not_tell_addresses_apart(made: HandMade) -> None:
    first = made.native(2, ("sin", "", 0, 0), address=0x1000)
    second = made.native(2, ("sin", "", 0, 0), address=0x1010)
    source = NativeSource(made.recording())
    assert source.frames(first) == source.frames(second) == (Frame(FrameKind.NATIVE, "sin", "/usr/lib/libm.so.6"),)


def test_lines_and_source_files_are_kept(made: HandMade) -> None:
    number = made.native(2, ("sin", "/src/sin.c", 12, 0))
    (frame,) = NativeSource(made.recording()).frames(number)
    assert (frame.name, frame.source, frame.line) == ("sin", "/src/sin.c", 12)


def test_inlined_functions_stand_leafward_of_what_they_are_in(made: HandMade) -> None:
    """The recording has them innermost first; frames are root first."""
    names = [
        ("square", "/src/a.h", 3, NAME_INLINED),
        ("norm", "/src/a.h", 9, NAME_INLINED),
        ("run", "/src/a.cc", 40, 0),
    ]
    frames = NativeSource(HandMade.recording(with_names(made, names))).frames(1)
    assert [(frame.name, frame.kind, frame.line) for frame in frames] == [
        ("run", FrameKind.NATIVE, 40),
        ("norm", FrameKind.INLINED, 9),
        ("square", FrameKind.INLINED, 3),
    ]


def with_names(made: HandMade, names: list[tuple[str, str, int, int]]) -> HandMade:
    made.native(2, *names)
    return made


def test_names_come_in_any_order_of_addresses(made: HandMade) -> None:
    """They are written from time to time; the rows of one address stay in their order."""
    numbers = [made.native(2, address=address) for address in (0x10, 0x20, 0x30)]
    for number in (3, 1):
        made.native(2, ("inner", "", 0, NAME_INLINED), (f"outer {number}", "", 0, 0))
        for name in made.names[-2:]:
            name["native"] = number
    source = NativeSource(made.recording())
    names = [[frame.name for frame in source.frames(number)] for number in numbers]
    assert names == [["outer 1", "inner"], [""], ["outer 3", "inner"]]


def test_what_has_no_name_shows_its_place(made: HandMade) -> None:
    in_file = made.native(2, address=0x1F40, flags=NATIVE_EXACT)
    with_line = made.native(2, ("", "/src/a.c", 5, 0), address=0x1F80)
    nowhere = made.native(NO_FILE, address=0x7F00_1234)
    unknown_file = made.native(77, address=0x99)
    in_kernel = made.native(0, address=0xFFFF_8100_0000)
    source = NativeSource(made.recording())
    places = [(frame.file, frame.offset) for number in (1, 2, 3, 4) for frame in source.frames(number)]
    library = "/usr/lib/libm.so.6"
    assert places == [(library, 0x1F40), (library, 0x1F80), ("[unknown]", 0x7F00_1234), ("[unknown]", 0x99)]
    assert [in_file, with_line, nowhere, unknown_file] == [1, 2, 3, 4]
    assert source.frames(in_kernel) == (Frame(FrameKind.KERNEL, ""),)


def test_a_frame_that_is_missing_says_so(made: HandMade) -> None:
    source = NativeSource(made.recording())
    assert source.frames(0) == (Frame(FrameKind.NATIVE, "[frame missing from the recording]"),)
    assert source.shown(0, False, True) == (source.frames(0), False) and not source.is_eval[0]


def test_functions_of_the_interpreter_are_hidden_in_its_own_file_only(made: HandMade) -> None:
    evaluation = made.native(1, ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL))
    glue, sort = made.native(1, ("_PyObject_Call", "", 0, 0)), made.native(1, ("list_sort", "", 0, 0))
    same_name, unnamed = made.native(2, ("_PyObject_Call", "", 0, 0)), made.native(1)
    source = NativeSource(made.recording())
    assert [source.shown(number, False, True) for number in (evaluation, glue)] == [((), False)] * 2
    for number in (sort, same_name, unnamed):
        assert source.shown(number, True, True) == (source.frames(number), False)
    assert source.shown(unnamed, False, False) == ((), False)
    assert source.is_eval.tolist() == [False, True, False, False, False, False]


def test_without_an_evaluation_function_no_file_is_the_interpreter_s(made: HandMade) -> None:
    number = made.native(1, ("_PyObject_Call", "", 0, 0))
    source = NativeSource(made.recording())
    assert source.shown(number, False, False) == (source.frames(number), False)


def test_kernel_frames_are_root_first_without_our_own(made: HandMade) -> None:
    """What runs between an event and the program that takes the stack is the measurement."""
    own = ["bpf_prog_123_sched_switch", "bpf_trace_run4", "__traceiter_sched_switch"]
    names = [*own, "__schedule", "schedule", "bpf_prog_1_other", "do_syscall_64"]
    numbers = [made.native(0, (name, "", 0, 0), address=index) for index, name in enumerate(names)]
    source = NativeSource(made.recording())
    assert kernel_names(source, *numbers) == ["do_syscall_64", "bpf_prog_1_other", "schedule", "__schedule"]
    assert kernel_names(source, *numbers[:3]) == kernel_names(source) == []
