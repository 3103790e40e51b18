"""Python frames put where they ran among the native frames of one thread: two lists, leaf first, in; one order out.

Each call of CPython's C evaluation function runs one or more Python functions, its run; the entry mark ends a run. So
the nth native frame of that function, from the leaf, stands for the nth run, if both lists tell of the same calls.
Whether they do is known by counting. What can make the counts differ, by the sources of CPython:

* The innermost call has not linked its first frame yet, or has unlinked it already: an empty run. 3.11 and 3.12 link by
  `tstate->cframe` and `cframe.current_frame`, 3.13 to 3.15 by `tstate->current_frame`, all at the head of
  `_PyEval_EvalFrameDefault` before it calls anything, and unlink last (Python/ceval.c: `exit_unwind`, v3.11.7;
  Python/bytecodes.c: INTERPRETER_EXIT, v3.12.1 and v3.13.0). An outer call had linked its frame before it called what
  is on the stack leafward of it. So this is exact, but only where the leaf itself is in the evaluation function; else
  the call is one of another thread state, see below.
* A run without a Python function is a lone shim: 3.12 and later unlink a function's frame before they clear it
  (Python/bytecodes.c: RETURN_VALUE; Python/ceval.c: `_PyEvalFrameClearAndPop`), and what is cleared may have a
  finalizer. The shim still counts: exact.
* `throwflag` and generators make no difference: each call links its frame, and a generator that 3.12 and later resume
  without a call (FOR_ITER_GEN, SEND_GEN) lies in the run of the one that resumes it: exact.
* 3.6 to 3.10 run one Python function a call, so each frame is a run. They unlink it before they call
  _Py_CheckFunctionResult and return (Python/ceval.c: `exit_eval_frame`, v3.6.15 and v3.10.13), so the innermost call
  is an empty run there too: exact, where the function has its name.
* `throw()` on a generator that waits for another (`yield from`, `await`) links the outer generator's frame without a
  call of the evaluation function: `_gen_throw`, Objects/genobject.c (v3.9.18 to v3.13.0). In 3.12 and later that frame
  has no entry mark and joins the run of the caller: the counts agree, and the outer generator stands rootward of the
  native frames that lead to `throw()`. In 3.10 and 3.11 it keeps the mark of its last call, one run too many for
  each, and in 3.9 it has no caller: not exact, and seen whenever asyncio cancels a task that awaits a coroutine.
* Where a thread runs several interpreters, the Python list has the frames of each, the inner one's first: exact. Before
  3.11 it has those of the outermost alone: not exact. Of greenlets, whose stack lies on top of that of who started
  them, `greenlets.py` takes off what is not theirs.

What no count tells: 3.11 and 3.12 store `tstate->cframe` some instructions before `cframe.current_frame` (v3.11.7 and
v3.12.1 as gcc 12.2 compiles them), which holds what the stack held until then. A leaf interrupted there may come with
frames that are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from bpfprof.dataclass import dataclass

DISAGREEMENT = "native and Python frames disagree"


class Side(Enum):
    """Which of the two lists a frame is of."""

    NATIVE = "native"
    PYTHON = "python"


Item = tuple[Side, int]


@dataclass(frozen=True)
class Merged:
    """`order` is leaf first: a list and the index in it. `problem` is "" when the order is exact.

    No native frame is lost but those of the evaluation function that a run replaces; no Python frame is lost but shims.
    With a problem the order is: all Python frames as one block on the leaf side, then all native frames without those
    of the evaluation function. So a Python function is still found by its callers, and a native one by its own.
    """

    order: list[Item]
    problem: str = ""


def merge(
    native_is_eval: Sequence[bool],
    python_marks_entry: Sequence[bool],
    *,
    shim_is_python: bool,
    native_complete: bool = True,
    python_complete: bool = True,
    keep_eval: bool = False,
    returns: bool = False,
) -> Merged:
    """Both lists leaf first.

    `native_is_eval` is true for frames of `_PyEval_EvalFrameDefault`, not of tail-call handlers, which that one calls
    (`EvalRanges.stands_for_run`). A list that is not complete has lost its root side. Python frames beyond a cut in
    the native list stand alone rootward of it; calls beyond a cut in the Python list stay native frames. A cut list
    whose leaf is in the evaluation function is taken as linked: only the count could tell. With `keep_eval` a frame
    of the evaluation function stays, rootward of its run. `returns`: the innermost call may have unlinked its frame,
    though it is not the leaf.
    """
    evals = [index for index, is_eval in enumerate(native_is_eval) if is_eval]
    native = [(Side.NATIVE, index) for index in range(len(native_is_eval))]
    runs, has_open_end = _runs(python_marks_entry, shim_is_python)
    if not native:
        return Merged([item for run in runs for item in run])
    if not runs:
        return Merged(native)
    if python_complete and len(evals) == len(runs) + 1 and (native_is_eval[0] or returns):
        runs = [[], *runs]
    if not _agree(len(evals), len(runs), native_complete, python_complete) or (has_open_end and python_complete):
        rest = [item for item, is_eval in zip(native, native_is_eval) if keep_eval or not is_eval]
        return Merged([*(item for run in runs for item in run), *rest], DISAGREEMENT)
    order: list[Item] = []
    position = 0
    for place, run in zip(evals, runs):
        order += native[position:place] + run
        position = place if keep_eval else place + 1
    # Calls whose Python frames are not known stay, and Python frames whose calls are not known stand alone.
    order += native[position:] + [item for run in runs[len(evals) :] for item in run]
    return Merged(order)


def _agree(evals: int, runs: int, native_complete: bool, python_complete: bool) -> bool:
    """Whether these numbers of calls and runs can be of one stack, cut where a list is not complete."""
    return (evals >= runs or not native_complete) and (evals <= runs or not python_complete)


def _runs(marks: Sequence[bool], shim_is_python: bool) -> tuple[list[list[Item]], bool]:
    """The Python frames of each call, without shims, and whether the last run lacks its entry mark."""
    runs: list[list[Item]] = []
    run: list[Item] = []
    is_open = False
    for index, is_entry in enumerate(marks):
        if shim_is_python or not is_entry:
            run.append((Side.PYTHON, index))
        is_open = not is_entry
        if is_entry:
            runs.append(run)
            run = []
    if is_open:
        runs.append(run)
    return runs, is_open
