"""`%bpfprof` and `%%bpfprof`: record this kernel while a statement or cell runs, and show where its time went.

In: a line of options of `bpfprof record`, and code. Out: what the code gives, and a page below the cell. The code runs
when the recording has begun, and not at all if it cannot begin.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from IPython.core.error import UsageError as MagicError
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from bpfprof.commands.own_options import OwnOptions
from bpfprof.commands.recorder import Recorder
from bpfprof.dataclass import dataclass
from bpfprof.errors import BpfprofError
from bpfprof.notebook.cells import cell_names, cell_numbers
from bpfprof.notebook.result import Cell, Result, made_of
from bpfprof.query.compare.stretches import Stretch

_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")


def load(shell: InteractiveShell) -> None:
    """Registers the magics."""

    before = frozenset(map(int, os.listdir("/proc/self/task")))

    def bpfprof(line: str, cell: str | None = None) -> Any:
        """Record this kernel while a statement (%bpfprof) or a cell (%%bpfprof) runs; --help lists the options."""
        __tracebackhide__ = True
        return _recorded(shell, before, line, cell)

    shell.register_magic_function(bpfprof, "line_cell", "bpfprof")


@dataclass(frozen=True)
class _Code:
    """Statements, and an expression that gives what is returned; name: of the file that they say they are from."""

    name: str
    statements: CodeType
    expression: CodeType | None

    def run(self, names: dict[str, Any]) -> Any:
        """With what its last line is worth."""
        __tracebackhide__ = True
        exec(self.statements, names)
        return eval(self.expression, names) if self.expression else None


def _recorded(shell: InteractiveShell, before: frozenset[int], line: str, cell: str | None) -> Any:
    __tracebackhide__ = True
    words = list(_WORD.finditer(line))
    asked = _said(
        lambda: OwnOptions.of([_QUOTED.sub(lambda each: each[1] or each[2] or "", word[0]) for word in words])
    )
    if asked is None:
        return None
    rest = line[words[-asked.rest_count].start() :] if asked.rest_count else ""
    if cell is not None and rest:
        raise MagicError(f"{rest} is no option of %%bpfprof; what is recorded is the cell below")
    if cell is None and not rest:
        raise MagicError("say what to run: %bpfprof work(), or %%bpfprof in the first line of a cell")
    number, lines_before = _caller(shell)
    place = (number, 1) if cell else (number, lines_before)
    code = _compiled(shell, f"bpfprof {line}", cell or rest, *place)
    _said(asked.shown.format)
    with tempfile.TemporaryDirectory(prefix="bpfprof-cell-") as folder:
        recorder = _said(lambda: Recorder(Path(folder) / "cell.bpfprof", asked.words))
        begin_ns = time.monotonic_ns()
        try:
            return code.run(shell.user_ns)
        finally:
            ids = os.getpid(), threading.get_native_id()
            stretch = Stretch(f"In [{number}]", begin_ns, time.monotonic_ns(), *ids)
            _show(recorder, asked, Cell(stretch, cell_names(shell), __file__, "_Code.run", before))


def _said(do: Callable[[], Any]) -> Any:
    """What it returns; an error is a sentence, not a traceback."""
    __tracebackhide__ = True
    try:
        return do()
    except BpfprofError as error:
        raise MagicError(f"bpfprof: {error}" + (f"\n  {error.hint}" if error.hint else "")) from None


def _show(recorder: Recorder, asked: OwnOptions, cell: Cell) -> None:
    """Also of a cell that failed, whose error it must not hide."""
    try:
        recorder.stop()
        result: Result = made_of(recorder.path, asked, cell)
        display(result)
    except BpfprofError as error:
        print(f"bpfprof: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)


def _compiled(shell: InteractiveShell, raw: str, text: str, number: int, lines_before: int) -> _Code:
    """With the line numbers that it has in its cell. Raises SyntaxError, as it would without the magic."""
    __tracebackhide__ = True
    source = "\n" * lines_before + shell.transform_cell(text)
    name = shell.compile.cache(source, number, raw_code=f"{raw}\n{text}")
    try:
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        expression = shell.compile(ast.Expression(last.value), name, "eval") if last else None
        return _Code(name, shell.compile(tree, name, "exec"), expression)
    except SyntaxError as error:
        if error.msg.startswith(("'await'", "'async", "asynchronous")):
            raise MagicError("%%bpfprof does not run cells with await: put it into a function, or a thread") from None
        raise


def _caller(shell: InteractiveShell) -> tuple[int, int]:
    """The number of the cell that the magic is called in, and how many of its lines are before that."""
    numbers, frame = cell_numbers(shell), sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename not in numbers:
        frame = frame.f_back
    number = numbers.get(frame.f_code.co_filename)
    return (shell.execution_count, 0) if number is None else (number, max(frame.f_lineno - 1, 0))
