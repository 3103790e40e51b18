"""Native, Python and kernel frames of one stack in the order in which they called each other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.samples import NAME_EVAL, NAME_INLINED, NO_FILE
from bpfprof.model.statuses import Status
from bpfprof.stacks.merge import merge
from bpfprof.stacks.stitch import StackSource
from tests.unit.recording.hand_made import HandMade
from tests.unit.stacks.test_stitch import MARKS_3_11, MARKS_3_12

OK, NO_PYTHON, FAULT, NOT_TAKEN = Status.OK, Status.NO_PYTHON, Status.PYTHON_FRAME_FAULT, Status.STACK_NOT_TAKEN
NOT_READY, TOO_DEEP, DISAGREES = Status.NATIVE_NOT_READY, Status.NATIVE_TOO_DEEP, Status.STACK_DISAGREES


class Program:
    """A recording of one process whose native functions are made by name as they are used."""

    def __init__(self, marks: dict[str, Any]) -> None:
        self.made = HandMade()
        self.made.process(**marks)
        self.kernel, self.python, self.library = (
            self.made.file("[kernel]", "kernel"),
            self.made.file("/usr/bin/python3"),
            self.made.file("/usr/lib/libk.so"),
        )
        self.numbers: dict[tuple[str, int], int] = {}
        self.codes: dict[str, int] = {}

    def native(self, names: str) -> list[int]:
        """Frames by name, leaf first: EVAL is the evaluation function; those with Py or _ are CPython's."""
        found = []
        for name in names.split():
            is_python = name == "EVAL" or name.startswith(("Py", "_Py", "_start"))
            found.append(self._number(name, self.python if is_python else self.library))
        return found

    def in_kernel(self, names: str) -> list[int]:
        return [self._number(name, self.kernel) for name in names.split()]

    def _number(self, name: str, file: int) -> int:
        if (name, file) not in self.numbers:
            row = ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL) if name == "EVAL" else (name, "", 0, 0)
            number = self.made.native(file, row, address=0x1000 + 16 * len(self.numbers))
            self.numbers[name, file] = number
        return self.numbers[name, file]

    def frames(self, names: str, entry_mark: int) -> list[tuple[int, int, int]]:
        """Python frames by name, leaf first: those with ! behind them are entries."""
        found = []
        for name in names.split():
            plain = name.rstrip("!")
            if plain not in self.codes:
                self.codes[plain] = self.made.code(plain)
            found.append((self.codes[plain], 0, entry_mark if name.endswith("!") else 0))
        return found

    def shown(self, stack: int, show_interpreter: bool = False) -> str:
        return text(StackSource(self.made.recording(), show_interpreter).frames(stack, 0))


def text(frames: tuple[Frame, ...]) -> str:
    """Names root first; each kind with a sign of its own."""
    signs = {FrameKind.PYTHON: "{}()", FrameKind.INLINED: "{}[i]", FrameKind.KERNEL: "{}[k]"}
    signs |= {FrameKind.TRUNCATED: "<{}>"}
    return " ".join(signs.get(frame.kind, "{}").format(frame.name or hex(frame.offset)) for frame in frames)


@pytest.fixture
def older() -> Program:
    return Program(MARKS_3_11)


@pytest.fixture
def newer() -> Program:
    return Program(MARKS_3_12)


NATIVE = "read qsort_compare EVAL _PyObject_Call qsort PyObject_Vectorcall EVAL PyEval_EvalCode Py_BytesMain _start"


def test_python_frames_stand_where_they_ran(older: Program) -> None:
    """A C library that calls back into Python: each side between the other's frames, the kernel behind all."""
    stack = older.made.stack(
        *older.frames("compare key! sort <module>!", 1),
        native=older.native(NATIVE),
        kernel=older.in_kernel("vfs_read entry_SYSCALL_64"),
    )
    assert older.shown(stack) == (
        "_start <module>() sort() qsort key() compare() qsort_compare read entry_SYSCALL_64[k] vfs_read[k]"
    )


def test_the_interpreter_is_shown_on_demand(older: Program) -> None:
    """Each call of the evaluation function stands before the Python functions it ran."""
    stack = older.made.stack(*older.frames("compare key! sort <module>!", 1), native=older.native(NATIVE))
    evaluation = "_PyEval_EvalFrameDefault"
    assert older.shown(stack, show_interpreter=True) == (
        f"_start Py_BytesMain PyEval_EvalCode {evaluation} <module>() sort() PyObject_Vectorcall qsort _PyObject_Call "
        f"{evaluation} key() compare() qsort_compare read"
    )


@pytest.mark.parametrize(
    "native, expected",
    [
        ("_Py_visit _PyGC_Collect _Py_RunGC _Py_HandlePending", "<GC> _Py_visit"),
        ("_PyGC_VisitStackRef _PyGC_Collect _PyObject_GC_New", "_PyObject_GC_New <GC>"),
        ("_PyGC_VisitStackRef _PyObject_GC_New", "_PyObject_GC_New _PyGC_VisitStackRef"),
        ("_PyGC_VisitStackRef array_traverse _PyGC_Collect", "<GC> array_traverse _PyGC_VisitStackRef"),
    ],
    ids=["in the order of calls", "functions of a collection", "which are nothing alone", "another library's"],
)
def test_one_frame_stands_for_a_collection_of_garbage(older: Program, native: str, expected: str) -> None:
    stack = older.made.stack(*older.frames("<module>!", 1), native=older.native(f"{native} EVAL _start"))
    assert older.shown(stack) == f"_start <module>() {expected}"
    assert "<GC>" not in older.shown(stack, show_interpreter=True)


def test_what_a_collection_runs_follows_it(older: Program) -> None:
    """A finalizer may allocate, and so begin a collection itself."""
    native = "_PyGC_Collect _PyObject_GC_New EVAL _PyObject_Call _PyGC_VisitStackRef _PyGC_Collect EVAL _start"
    stack = older.made.stack(*older.frames("__del__! <module>!", 1), native=older.native(native))
    assert older.shown(stack) == "_start <module>() <GC> __del__() _PyObject_GC_New <GC>"


def test_shims_of_3_12_end_a_run_and_are_not_shown(newer: Program) -> None:
    frames = newer.frames("compare key shim! sort <module> shim!", 3)
    stack = newer.made.stack(*frames, native=newer.native(NATIVE))
    assert newer.shown(stack) == "_start <module>() sort() qsort key() compare() qsort_compare read"


def test_inlined_functions_and_unknown_ones(older: Program) -> None:
    inlined = older.made.native(older.library, ("dot", "", 0, NAME_INLINED), ("run", "", 0, 0))
    unknown, nowhere = older.made.native(older.library, address=0x1F40), older.made.native(NO_FILE, address=0x7F00)
    native = [inlined, unknown, *older.native("EVAL"), nowhere]
    stack = older.made.stack(*older.frames("f!", 1), native=native)
    frames = StackSource(older.made.recording()).frames(stack, 0)
    assert text(frames) == "0x7f00 f() 0x1f40 run dot[i]"
    assert [frame.file for frame in frames if not frame.name] == ["[unknown]", "/usr/lib/libk.so"]


def test_a_thread_without_python_keeps_all_its_frames(older: Program) -> None:
    """Functions of the interpreter in a thread that runs none are what it does."""
    stack = older.made.stack(native=older.native("read _PyObject_Call start_thread"), status=NO_PYTHON)
    assert older.shown(stack) == "start_thread _PyObject_Call read"


@pytest.mark.parametrize(
    ("native", "mark"),
    [
        ("EVAL PyEval_EvalCode _start", ""),
        ("read EVAL PyEval_EvalCode _start", "<native and Python frames disagree> "),
        ("EVAL map_next EVAL PyEval_EvalCode _start", "<native and Python frames disagree> "),
    ],
)
def test_calls_without_any_python_frame_are_no_whole_stack(older: Program, native: str, mark: str) -> None:
    """But for one whose frame is not linked yet, or not any more."""
    shown = older.shown(older.made.stack(native=older.native(native), status=NO_PYTHON))
    assert shown.startswith(f"{mark}_start"), shown


@pytest.mark.parametrize(
    ("native", "is_whole"), [("read EVAL PyEval_EvalCode _start", False), ("read start_thread", True)]
)
def test_calls_of_python_are_missing_though_the_process_was_never_known_to_be_one(
    older: Program, native: str, is_whole: bool
) -> None:
    """What looks for its interpreter may come too late."""
    older.made.processes[0].update(interpreter="", version="")
    stack = older.made.stack(native=older.native(native), status=Status.PYTHON_NOT_READY)
    source = StackSource(older.made.recording())
    assert (source.statuses[stack] == Status.OK) == is_whole
    assert source.statuses[stack] in (Status.OK, Status.PYTHON_NOT_READY)


def test_a_thread_in_the_kernel_only(older: Program) -> None:
    stack = older.made.stack(kernel=older.in_kernel("schedule kthread"), status=NO_PYTHON, native_status=NOT_TAKEN)
    assert older.shown(stack) == "kthread[k] schedule[k]"


def test_without_native_frames_python_frames_are_a_whole_stack(older: Program) -> None:
    stack = older.made.stack(*older.frames("leaf! root!", 1))
    assert older.shown(stack) == "root() leaf()"


def test_lists_that_disagree_are_marked_and_complete(older: Program) -> None:
    """Two calls of the evaluation function below a C function, one run: the order would be a guess."""
    stack = older.made.stack(*older.frames("f!", 1), native=older.native("read EVAL qsort EVAL start"))
    assert older.shown(stack) == "<native and Python frames disagree> start qsort read f()"
    source = StackSource(older.made.recording())
    assert source.statuses.tolist() == [NOT_TAKEN, DISAGREES]


@pytest.mark.parametrize("version", ["3.6.15", "3.10.13", "3.11.2"])
@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ("_Py_CheckFunctionResult EVAL call EVAL start", "start f() call"),
        ("PyErr_Occurred _Py_CheckFunctionResult@plt EVAL call EVAL start", "start f() call PyErr_Occurred"),
        ("PyErr_Occurred EVAL call EVAL start", ""),
        ("EVAL read _Py_CheckFunctionResult EVAL call EVAL start", ""),
    ],
)
def test_a_call_that_returns_has_no_frame_any_more(version: str, native: str, expected: str) -> None:
    """Before 3.11 it checks its result after that; and there each call is one Python function."""
    is_old = not version.startswith("3.11")
    program = Program({**MARKS_3_11, "version": version, "entry_marks_from": int(not is_old)})
    stack = program.made.stack(*program.frames("f!", 1), native=program.native(native))
    is_whole = StackSource(program.made.recording()).statuses.tolist() == [NOT_TAKEN, OK]
    assert is_whole == (is_old and bool(expected))
    if is_whole:
        assert program.shown(stack) == expected


@pytest.mark.parametrize(
    ("status", "native_status", "mark"),
    [
        (OK, NOT_READY, "<unwind table not ready yet> "),
        (FAULT, OK, "<Python frame unreadable> "),
        (FAULT, TOO_DEEP, "<deeper than 3072 native frames> "),
        (FAULT, NOT_TAKEN, "<Python frame unreadable> "),
        (OK, OK, ""),
    ],
)
def test_what_is_cut_off_is_marked(older: Program, status: int, native_status: int, mark: str) -> None:
    native = [] if native_status == NOT_TAKEN else older.native("read EVAL start")
    stack = older.made.stack(*older.frames("f!", 1), native=native, status=status, native_status=native_status)
    shown = older.shown(stack)
    assert shown.startswith(mark) and shown.removeprefix(mark).split()[-1] in ("f()", "read")
    assert ("<" in shown) == bool(mark)


def test_python_frames_beyond_a_cut_follow(older: Program) -> None:
    """The native side is cut below the second call: the callers in Python are known all the same."""
    stack = older.made.stack(
        *older.frames("f! g <module>!", 1), native=older.native("read EVAL qsort"), native_status=TOO_DEEP
    )
    assert older.shown(stack) == "<deeper than 3072 native frames> <module>() g() qsort f() read"


def test_each_stack_takes_its_own_frames(older: Program, newer: Program) -> None:
    """Stacks of every shape, one behind the other in the same arrays."""
    shapes = [
        (older.frames("f! <module>!", 1), "read EVAL EVAL start", "vfs_read", "start <module>() f() read vfs_read[k]"),
        ([], "", "", ""),
        (older.frames("g!", 1), "", "vfs_read", "g() vfs_read[k]"),
        ([], "poll start", "schedule vfs_read", "start poll vfs_read[k] schedule[k]"),
        (older.frames("h!", 1), "EVAL", "", "h()"),
    ]
    stacks = [
        older.made.stack(*frames, native=older.native(native), kernel=older.in_kernel(kernel), native_status=OK)
        for frames, native, kernel, _ in shapes
    ]
    source = StackSource(older.made.recording())
    assert [text(source.frames(stack, 0)) for stack in stacks] == [expected for *_, expected in shapes]


def test_the_status_of_every_stack_is_what_merging_finds() -> None:
    """The statuses are counted for all stacks at once, without merging them; the mark of a stack must be its own."""
    rng = random.Random("statuses")
    made = HandMade()
    processes = [
        made.process(100, **MARKS_3_11),
        made.process(101, **MARKS_3_12),
        made.process(102, python=None, entry_marks_from=0),
    ]
    made.file("/usr/bin/python3")
    plain, evaluation = made.native(0, ("read", "", 0, 0)), made.native(0, ("EVAL", "", 0, NAME_EVAL))
    expected = [NOT_TAKEN]
    for _ in range(2000):
        process = rng.choice(processes)
        values = made.processes[process]
        is_eval = [rng.random() < 0.4 for _ in range(rng.randint(0, 7))]
        marks = [rng.randint(0, 4) for _ in range(rng.randint(0, 7))]
        if rng.random() < 0.6 and marks:  # as they mostly are
            marks[-1] = 4
        kernel = [plain] * rng.randint(0, 2)
        status = rng.choice([OK, OK, OK, FAULT]) if marks else rng.choice([OK, NO_PYTHON, FAULT])
        native_status = rng.choice([OK, OK, OK, NOT_READY, TOO_DEEP]) if is_eval else NOT_TAKEN
        made.stack(
            *((0, 0, mark) for mark in marks),
            process=process,
            status=status,
            native=[evaluation if flag else plain for flag in is_eval],
            kernel=kernel,
            native_status=native_status,
        )
        merged = merge(
            is_eval,
            [mark >= values["entry_marks_from"] for mark in marks],
            shim_is_python=values["shim_is_python"] or not values["interpreter"],
            native_complete=native_status == OK,
            python_complete=status == OK,
        )
        whole = native_status if native_status not in (OK, NOT_TAKEN) else status
        if whole == NO_PYTHON and (is_eval or kernel):
            whole = OK
        has_called = sum(is_eval) > int(bool(is_eval) and is_eval[0])
        is_apart = merged.problem or (status == NO_PYTHON and has_called)
        expected.append(DISAGREES if whole == OK and is_apart else whole)
    statuses = StackSource(made.recording()).statuses.tolist()
    assert statuses == expected
    assert all(statuses.count(status) > 100 for status in (OK, DISAGREES, FAULT, NOT_READY, TOO_DEEP))
    assert NO_PYTHON in statuses


@pytest.mark.parametrize(
    ("native", "shown"),
    [
        ("list_append JIT EVAL qsort EVAL", "main() qsort key() list_append"),
        ("JIT EVAL qsort EVAL", "main() qsort key()"),
        ("list_append JIT qsort EVAL EVAL", "main() key() qsort 0x7f00 list_append"),
    ],
)
def test_code_that_the_evaluation_function_calls_is_that_of_the_jit(native: str, shown: str) -> None:
    made = Program({**MARKS_3_12, "version": "3.14.2"})
    memory = made.made.file("[memory]", "memory")
    jit = made.made.native(memory, address=0x7F00)
    numbers = [jit if name == "JIT" else made.native(name)[0] for name in native.split()]
    stack = made.made.stack(*made.frames("key shim! main shim!", 3), native=numbers)
    assert made.shown(stack) == shown
