"""Where one version of CPython keeps what tells of asyncio tasks: offsets in bytes, x86-64, default builds.

Of tasks and futures: FutureObj and TaskObj, Modules/_asynciomodule.c (v3.11.7, v3.12.1, v3.13.0, v3.14.0, v3.15.0a1);
the tests ask each interpreter for them. From 3.14 on the list of tasks is described by `_AsyncioDebug`, in the same
file. Of generators and frames: Include/cpython/genobject.h and Include/internal/pycore_frame.h (from 3.14 on
pycore_interpframe_structs.h); the tests compile these.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from bpfprof.cpython.layout import NONE
from bpfprof.dataclass import dataclass
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import open_mapped_file, read_maps

SECTION = ".AsyncioDebug"
_OFFSET_LIMIT = 1 << 20  # PyInterpreterState of 3.14.0 has 265,000 bytes


@dataclass(frozen=True)
class AsyncioLayout:
    """Prefixes: future_ FutureObj, task_ TaskObj, generator_ `PyGenObject`, frame_ `_PyInterpreterFrame`,
    tuple_ `PyTupleObject`.

    Coroutines and asynchronous generators begin as generators do.
    """

    future_state: int  # an int; 0: it is not done
    task_waiter: int  # task_fut_waiter: the future that it waits for, 0: it runs, or will soon
    task_coroutine: int
    task_name: int  # a str, or from 3.12 on an int N for `Task-N`
    generator_state: int  # gi_frame_state, one byte
    generator_frame: int  # gi_iframe
    frame_stack: int  # stacktop, an index in frame_locals, or from 3.14 on stackpointer, an address
    frame_locals: int  # localsplus
    awaited_at: int  # what is awaited is this many words below the top of the stack
    # Values of gi_frame_state. Where resume_tells, `awaiting` is any suspension, and the argument of RESUME tells why.
    created: int
    awaiting: int
    executing: int
    resume_tells: bool
    future_callback: int = 24  # fut_callback0
    tuple_items: int = 24  # ob_item
    # From 3.14 on, described by _AsyncioDebug: tasks are linked from their threads, and from the interpreter when the
    # thread is gone. NONE: asyncio.tasks has them in sets.
    task_node: int = NONE
    interpreter_tasks: int = NONE
    thread_tasks: int = NONE


_CPYTHON_3_11 = AsyncioLayout(
    future_state=88,
    task_waiter=128,
    task_coroutine=136,
    task_name=144,
    generator_state=75,
    generator_frame=80,
    frame_stack=64,
    frame_locals=72,
    awaited_at=1,
    created=-2,  # enum _framestate, pycore_frame.h
    awaiting=-1,
    executing=0,
    resume_tells=True,
)
_CPYTHON_3_12 = replace(_CPYTHON_3_11, generator_state=67, generator_frame=72)
_CPYTHON_3_13 = replace(
    _CPYTHON_3_12,
    future_state=96,
    task_waiter=112,
    task_coroutine=120,
    task_name=128,
    created=-3,
    resume_tells=False,  # -1 is FRAME_SUSPENDED_YIELD_FROM
)
_CPYTHON_3_14 = replace(
    _CPYTHON_3_13,
    future_state=104,
    task_waiter=120,
    task_coroutine=128,
    task_name=136,
    frame_locals=80,
    tuple_items=32,  # after ob_hash
)
_CPYTHON_3_15 = replace(_CPYTHON_3_14, created=0, awaiting=2, executing=4, awaited_at=2)

ASYNCIO_LAYOUTS = {
    (3, 11): _CPYTHON_3_11,
    (3, 12): _CPYTHON_3_12,
    (3, 13): _CPYTHON_3_13,
    (3, 14): _CPYTHON_3_14,
    (3, 15): _CPYTHON_3_15,
}

# struct _Py_AsyncioModuleDebugOffsets, all fields 8 bytes.
_TASK_FIELDS = "size task_name task_awaited_by task_is_task task_awaited_by_is_set task_coro task_node"
_FIELDS = (
    *(f"task.{name}" for name in _TASK_FIELDS.split()),
    *("interpreter.size", "interpreter.tasks_head"),
    *("thread.size", "thread.running_loop", "thread.running_task", "thread.tasks_head"),
)


def find_asyncio_layout(pid: Pid, version: tuple[int, int]) -> AsyncioLayout | None:
    """None for a version without one, where `_asyncio` is not mapped yet, or where its description is another one."""
    known = ASYNCIO_LAYOUTS.get(version)
    if known is None or version < (3, 14):
        return known
    data = _debug_section(pid)
    return None if data is None else described(known, data)


def described(known: AsyncioLayout, data: bytes) -> AsyncioLayout | None:
    """The layout with what `_AsyncioDebug` says; None where that does not agree with what is known."""
    if len(data) < 8 * len(_FIELDS):
        return None
    at = dict(zip(_FIELDS, struct.unpack_from(f"<{len(_FIELDS)}Q", data)))
    agrees = (at["task.task_coro"], at["task.task_name"]) == (known.task_coroutine, known.task_name)
    if not agrees or max(at.values()) > _OFFSET_LIMIT or at["task.task_node"] > at["task.size"]:
        return None
    return replace(
        known,
        task_node=at["task.task_node"],
        interpreter_tasks=at["interpreter.tasks_head"],
        thread_tasks=at["thread.tasks_head"],
    )


def _debug_section(pid: Pid) -> bytes | None:
    """From the extension module, or from what the interpreter itself is in."""
    try:
        mappings = read_maps(pid)
    except TargetError:
        return None
    paths = {mapping.path: mapping for mapping in mappings if mapping.is_file and mapping.is_executable}
    likely = sorted(path for path in paths if "python" in path or "asyncio" in path)
    for path in sorted(likely, key=lambda path: "_asyncio" not in path):
        try:
            with ElfImage(open_mapped_file(pid, paths[path])) as image:
                section = image.section(SECTION)
                if section is not None:
                    return image.read(section.address, 8 * len(_FIELDS))
        except (OSError, ElfError):
            continue
    return None
