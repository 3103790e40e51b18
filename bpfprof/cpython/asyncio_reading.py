"""What one asyncio task does: its address in; out comes where it waits, for what, and as what others wait for it.

A task has a coroutine. What that awaits is on top of its stack: another coroutine, a generator, a wrapper of an
asynchronous generator, and at the end a future. The task has this future, too (task_fut_waiter).
"""

from __future__ import annotations

from typing import NamedTuple

from bpfprof.cpython.asyncio_layouts import AsyncioLayout
from bpfprof.cpython.asyncio_types import Kind, TypeTable
from bpfprof.cpython.layout import NONE
from bpfprof.model.samples import TaskState
from bpfprof.proc.pages import Pages

_DEPTH_LIMIT = 512  # of coroutines that await each other
_STACK_LIMIT = 1 << 16  # words of a frame
_TAG_BITS = 3  # see thread_state.py
_NAME_WORDS = (16, 24, 40, 48, 56)  # length, hash and the first characters of a str; the digits of an int
# Offsets in all versions: what a wrapper wraps (cw_coroutine, ags_gen, agt_gen, wrapped); of a function its code and
# closure, of a method its self, args of functools.partial; size of a tuple; contents of a cell.
_TYPE, _WRAPPED, _CODE, _CLOSURE, _SELF, _ARGS, _SIZE, _CELL = 8, 16, 48, 72, 24, 24, 16, 16
_REFERENCES = 8  # of a closure or of arguments that are looked at
_INT = 0xFFFFFFFF


class TaskView(NamedTuple):
    """A task that is not done; an address of 0: none, or not known.

    name_words: others are another name, or another object of the same name. frames: (code, instruction) of its
    coroutines, the innermost first. callback: code object of the first function that is called when its wait is over.
    waits_for: a future or a task group; awaited_as: who waits for one of these waits for the task.
    """

    address: int
    state: TaskState
    coroutine: int
    name_at: int
    name_words: tuple[int, ...]
    waiter_type: int
    callback: int
    frames: list[tuple[int, int]]
    waits_for: tuple[int, ...]
    awaited_as: tuple[int, ...]


class TaskWords:
    """Reads tasks of one process."""

    def __init__(self, pages: Pages, layout: AsyncioLayout, types: TypeTable) -> None:
        self._word, self._layout, self._kind = pages.word, layout, types.kind
        frame = types.objects.layout
        self._code = layout.generator_frame + frame.frame_code
        self._instruction = layout.generator_frame + frame.frame_instruction
        self._stack = layout.generator_frame + layout.frame_stack
        self._locals = layout.generator_frame + layout.frame_locals
        self._state, self._state_shift = layout.generator_state & ~7, 8 * (layout.generator_state & 7)

    def view(self, address: int) -> TaskView | None:
        """None for what is no task, or is done. Raises UnreadableError, as when it is changing."""
        word, layout = self._word, self._layout
        if self._kind(word(address + _TYPE)) is not Kind.TASK or word(address + layout.future_state) & _INT:
            return None
        waiter, coroutine = word(address + layout.task_waiter), word(address + layout.task_coroutine)
        name_at = word(address + layout.task_name)
        frames, group, is_running = self._chain(coroutine)
        waiter_type = callback = 0
        state = TaskState.READY
        if waiter:
            waiter_type = word(waiter + _TYPE)
            state = TaskState.SUSPENDED
            if self._kind(waiter_type) in (Kind.FUTURE, Kind.TASK):
                callback = self._function(word(waiter + layout.future_callback))
                if word(waiter + layout.future_state) & _INT:
                    state = TaskState.READY
        return TaskView(
            address,
            TaskState.RUNNING if is_running else state,
            coroutine,
            name_at,
            tuple([word(name_at + offset) for offset in _NAME_WORDS]),
            waiter_type,
            callback,
            [] if is_running else frames[::-1],
            tuple([each for each in (waiter, group) if each]),
            (address, *self._references(word(address + layout.future_callback))),
        )

    def _chain(self, coroutine: int) -> tuple[list[tuple[int, int]], int, bool]:
        """(code, instruction) of coroutines, outermost first; the task group that the innermost is a method of; whether
        the outermost is being executed.
        """
        word, layout, frames = self._word, self._layout, []
        current, first_variable = coroutine, 0
        for _ in range(_DEPTH_LIMIT):
            kind = self._kind(word(current + _TYPE)) if current else Kind.OTHER
            if kind is Kind.WRAPPER:
                current = word(current + _WRAPPED)
                continue
            if kind is not Kind.GENERATOR:
                break
            state = word(current + self._state) >> self._state_shift & 0xFF
            state -= 256 if state > 127 else 0
            frames.append((word(current + self._code) & ~_TAG_BITS, word(current + self._instruction)))
            if state not in (layout.awaiting, layout.created) and len(frames) == 1:
                return [], 0, True
            first_variable = word(current + self._locals) & ~_TAG_BITS
            current = self._awaited(current, frames[-1][1]) if state == layout.awaiting else 0
        is_group = first_variable and self._kind(word(first_variable + _TYPE)) is Kind.TASK_GROUP
        return frames, first_variable if is_group else 0, False

    def _awaited(self, generator: int, instruction: int) -> int:
        """What is on top of the stack of a suspended generator; 0 when it awaits nothing."""
        word, layout = self._word, self._layout
        if layout.resume_tells:
            # _PyGen_yf(), Objects/genobject.c (v3.11.7, v3.12.1): the argument of the next instruction is 2 or more.
            at = instruction + 2
            if word(at & ~7) >> 8 * (at & 6) >> 8 & 0xFF < 2:
                return 0
        top = word(generator + self._stack)
        if layout.task_node == NONE:  # an index
            count = top & _INT
            if not 0 < count < _STACK_LIMIT:
                return 0
            top = generator + self._locals + 8 * count
        return word(top - 8 * layout.awaited_at) & ~_TAG_BITS

    def _function(self, callback: int) -> int:
        """The code object of a Python function, 0 for anything else."""
        is_function = callback and self._kind(self._word(callback + _TYPE)) is Kind.FUNCTION
        return self._word(callback + _CODE) if is_function else 0

    def _references(self, callback: int) -> list[int]:
        """What a callback refers to: for these somebody waits.

        That is what is in the closure (gather, wait, shield) or among the arguments of a partial (wait_for of 3.11), or
        the task group that it is a method of.
        """
        word = self._word
        kind = self._kind(word(callback + _TYPE)) if callback else Kind.OTHER
        if kind is Kind.METHOD:
            return [word(callback + _SELF)]
        if kind is Kind.PARTIAL:
            return self._items(word(callback + _ARGS))
        if kind is Kind.FUNCTION:
            return [word(cell + _CELL) for cell in self._items(word(callback + _CLOSURE))]
        return []

    def _items(self, array: int) -> list[int]:
        """The first items of a tuple."""
        count = min(self._word(array + _SIZE), _REFERENCES) if array else 0
        return [self._word(array + self._layout.tuple_items + 8 * place) for place in range(count)]
