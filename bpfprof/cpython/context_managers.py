"""Context managers of `contextlib` that hold others: an instance in, the methods that leave the others out.

A function with @contextmanager waits as a generator in the body of its own `with`. An ExitStack keeps bound methods in
a deque of tuples. Structures: PyGenObject (Include/genobject.h, from 3.9 on Include/cpython/), dequeobject and block
(Modules/_collectionsmodule.c), the same in v3.8.18 to v3.15.2 but for where a generator has its frame.
"""

from __future__ import annotations

import struct

from bpfprof.cpython.asyncio_layouts import ASYNCIO_LAYOUTS
from bpfprof.cpython.frame_values import TAGS, VALUES_LAYOUTS
from bpfprof.cpython.objects import VAR_SIZE, Objects
from bpfprof.cpython.with_bodies import WithBodies

_GENERATOR, _STACK = "_GeneratorContextManager", "ExitStack"
MANAGERS = (_GENERATOR, _STACK)
_FRAME_POINTER = 16  # gi_frame, before 3.11
_LEFT_BLOCK, _LEFT_INDEX = 24, 40  # of a deque
_BLOCK_LENGTH, _BLOCK_ITEMS = 64, 8  # of a block; where its items begin


def exit_methods_of(objects: Objects, bodies: WithBodies, instance: int) -> list[tuple[int, int]]:
    """(method, what it is called for or 0) of the locks and managers that are entered, and more. Raises Changed."""
    if objects.name(objects.type_of(instance)) == _GENERATOR:
        return _of_generator(objects, bodies, objects.attribute(instance, "gen"))
    return [(method, 0) for method in _of_deque(objects, objects.attribute(instance, "_exit_callbacks"))]


def _of_generator(objects: Objects, bodies: WithBodies, generator: int) -> list[tuple[int, int]]:
    layout = objects.layout
    known = ASYNCIO_LAYOUTS.get(layout.version)
    frame = generator + known.generator_frame if known else objects.word(generator + _FRAME_POINTER)
    return bodies.exits(frame, objects.word(frame + layout.frame_code) & ~TAGS)


def _of_deque(objects: Objects, deque: int) -> list[int]:
    """Second items of the tuples of its first block: what is to be called."""
    begin = objects.word(deque + _LEFT_INDEX) % _BLOCK_LENGTH
    count = min(objects.word(deque + VAR_SIZE), _BLOCK_LENGTH - begin)
    data = objects.read(objects.word(deque + _LEFT_BLOCK) + _BLOCK_ITEMS + 8 * begin, 8 * count) if count else b""
    second = VALUES_LAYOUTS[objects.layout.version].tuple_items + 8
    return [objects.word(pair + second) for (pair,) in struct.iter_unpack("<Q", data)]
