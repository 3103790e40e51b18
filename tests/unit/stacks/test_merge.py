"""Stacks as each CPython version makes them, taken apart into the two lists and merged again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from bpfprof.stacks.merge import DISAGREEMENT, Merged, Side, merge

N, P = Side.NATIVE, Side.PYTHON


@dataclass
class Stack:
    """Leaf first. `truth` has every frame but shims; frames of the evaluation function are native ones in it."""

    native_is_eval: list[bool] = field(default_factory=list)
    marks: list[bool] = field(default_factory=list)
    truth: list[tuple[Side, int]] = field(default_factory=list)

    def native(self, count: int) -> None:
        for _ in range(count):
            self.truth.append((N, len(self.native_is_eval)))
            self.native_is_eval.append(False)

    def call(self, functions: int, version: str) -> None:
        """One call of the evaluation function that runs so many Python functions."""
        if version == "3.12":  # the entry-marked frame is a shim rootward of them
            for _ in range(functions):
                self.python(False)
            self.marks.append(True)
        else:
            for index in range(functions):
                self.python(index == functions - 1)
        self.unlinked_call()

    def unlinked_call(self) -> None:
        self.truth.append((N, len(self.native_is_eval)))
        self.native_is_eval.append(True)

    def python(self, is_entry: bool) -> None:
        self.truth.append((P, len(self.marks)))
        self.marks.append(is_entry)

    def without_calls(self, replaced: int | None = None) -> list[tuple[Side, int]]:
        """`truth` without the first so many frames of the evaluation function (all by default)."""
        evals = [(N, index) for index, is_eval in enumerate(self.native_is_eval) if is_eval]
        gone = set(evals[:replaced])
        return [item for item in self.truth if item not in gone]


VERSIONS = ("3.10", "3.11", "3.12")


def random_stack(rng: random.Random, version: str) -> Stack:
    stack = Stack()
    unlinked = rng.random() < 0.2
    if unlinked:
        stack.unlinked_call()
    for index in range(rng.randint(1, 8)):
        stack.native(rng.randint(0 if version == "3.12" else int(index > 0), 4))
        # A lone shim: its function is being cleared.
        stack.call(1 if version == "3.10" else rng.randint(int(version == "3.11"), 4), version)
    stack.native(rng.randint(0, 5))
    return stack


def check_merge(stack: Stack, version: str, **options: bool) -> Merged:
    return merge(stack.native_is_eval, stack.marks, shim_is_python=version != "3.12", **options)


@pytest.mark.parametrize("version", VERSIONS)
def test_whole_stacks(version: str) -> None:
    rng = random.Random(f"whole {version}")
    for _ in range(3000):
        stack = random_stack(rng, version)
        assert check_merge(stack, version) == Merged(stack.without_calls())
        assert check_merge(stack, version, keep_eval=True) == Merged(stack.truth)


@pytest.mark.parametrize("version", VERSIONS)
def test_native_list_cut(version: str) -> None:
    """What is leafward of the cut is exact; Python frames beyond follow."""
    rng = random.Random(f"native cut {version}")
    for _ in range(3000):
        stack = random_stack(rng, version)
        if stack.native_is_eval[0] and stack.truth[0] == (N, 0):  # unlinked: only the count tells, see the next test
            continue
        keep = rng.randint(1, len(stack.native_is_eval))
        merged = merge(
            stack.native_is_eval[:keep], stack.marks, shim_is_python=version != "3.12", native_complete=False
        )
        assert not merged.problem
        assert merged.order == [item for item in stack.without_calls() if item[0] is P or item[1] < keep]


@pytest.mark.parametrize("version", VERSIONS)
def test_python_list_cut(version: str) -> None:
    rng = random.Random(f"Python cut {version}")
    for _ in range(3000):
        stack = random_stack(rng, version)
        if not stack.marks or (stack.native_is_eval[0] and stack.truth[0] == (N, 0)):
            continue
        keep = rng.randint(1, len(stack.marks))
        marks = stack.marks[:keep]
        merged = merge(stack.native_is_eval, marks, shim_is_python=version != "3.12", python_complete=False)
        runs = sum(marks) + (not marks[-1])
        assert merged == Merged([item for item in stack.without_calls(runs) if item[0] is N or item[1] < keep])


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_or_said_twice(version: str) -> None:
    """Whatever the lists are, hostile ones included."""
    rng = random.Random(f"any {version}")
    problems = 0
    for _ in range(5000):
        native = [rng.random() < 0.4 for _ in range(rng.randint(0, 8))]
        marks = [rng.random() < 0.5 for _ in range(rng.randint(0, 8))]
        complete = {"native_complete": rng.random() < 0.5, "python_complete": rng.random() < 0.5}
        merged = merge(native, marks, shim_is_python=version != "3.12", keep_eval=True, **complete)
        assert [index for side, index in merged.order if side is N] == list(range(len(native)))
        shown = [index for index, mark in enumerate(marks) if version != "3.12" or not mark]
        assert [index for side, index in merged.order if side is P] == shown
        assert merged.problem in ("", DISAGREEMENT)
        problems += bool(merged.problem)
    assert 500 < problems < 4500


def test_one_of_the_lists_is_empty() -> None:
    assert merge([], [], shim_is_python=True) == Merged([])
    # A thread that never ran Python, or whose Python frames cannot be read.
    assert merge([False, True, True, False], [], shim_is_python=False) == Merged([(N, 0), (N, 1), (N, 2), (N, 3)])
    # Without native unwinding.
    assert merge([], [False, True, False, False, True], shim_is_python=False) == Merged([(P, 0), (P, 2), (P, 3)])
    assert merge([], [False, False], shim_is_python=True) == Merged([(P, 0), (P, 1)])


def test_a_call_that_has_no_frame_must_be_the_leaf() -> None:
    """One call more than runs, below a C function: the call is one of another interpreter, nothing to align by."""
    assert merge([True, False, True], [True], shim_is_python=True) == Merged([(N, 1), (P, 0)])
    assert merge([False, True, False, True], [True], shim_is_python=True).problem == DISAGREEMENT
    # The same where the native list is cut: there cannot be fewer calls than are seen.
    assert merge([True, False, True], [True], shim_is_python=True, native_complete=False) == Merged([(N, 1), (P, 0)])


def test_disagreement_keeps_python_frames_in_one_block() -> None:
    merged = merge([False, True, False, True, False, True, False], [False, True], shim_is_python=False)
    assert merged == Merged([(P, 0), (N, 0), (N, 2), (N, 4), (N, 6)], DISAGREEMENT)
    # Fewer calls than runs in whole lists.
    assert merge([False], [True], shim_is_python=True) == Merged([(P, 0), (N, 0)], DISAGREEMENT)
    # The outermost frame of a whole list always has the mark.
    assert merge([False, True], [False], shim_is_python=True).problem == DISAGREEMENT


def test_throw_into_nested_generators() -> None:
    """`outer().throw(ValueError)` where outer waits for mid, and mid for inner, as read from real processes."""
    native = ["read", "gen_send_ex", "_gen_throw", "_gen_throw", "_gen_throw", "method_vectorcall_FASTCALL", "main"]
    is_eval = [False, True, False, False, False, False, False, True, False]
    assert len(is_eval) == len(native) + 2
    # 3.12.1 and 3.13.0: inner, shim, mid, outer, <module>, shim
    merged = merge(is_eval, [False, True, False, False, False, True], shim_is_python=False)
    between = [(N, index) for index in range(2, 7)]
    assert merged == Merged([(N, 0), (P, 0), *between, (P, 2), (P, 3), (P, 4), (N, 8)])
    # 3.11.7: inner, mid, outer and <module> have the mark
    assert merge(is_eval, [True, True, True, True], shim_is_python=True).problem == DISAGREEMENT


def test_c_library_that_calls_back() -> None:
    """`qsort` through ctypes with a comparison in Python, 3.13.0."""
    native = [
        "read",
        "eval",
        "closure_fcn",
        "qsort_r",
        "ffi_call",
        "PyCFuncPtr_call",
        "eval",
        "PyEval_EvalCode",
        "main",
    ]
    python = ["<lambda>", "", "qsort", "<module>", ""]
    merged = merge([name == "eval" for name in native], [not name for name in python], shim_is_python=False)
    names = [native[index] if side is N else python[index] for side, index in merged.order]
    assert (
        " ".join(names)
        == "read <lambda> closure_fcn qsort_r ffi_call PyCFuncPtr_call qsort <module> PyEval_EvalCode main"
    )
