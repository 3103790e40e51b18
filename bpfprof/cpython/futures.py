"""Which thread runs what a future of concurrent.futures stands for: frames of all threads in, a thread out.

Who waits is in Future.result() or exception(), whose `self` is the future; the thread of a pool that runs it is in
_WorkItem.run(), whose `self` has it. One that has not begun is in the queue of its pool, which _worker() has
(Lib/concurrent/futures/_base.py and thread.py, 3.7 to 3.15). Only a pool that cannot start one more thread says who
could run it.

Structures: simplequeueobject (Modules/_queuemodule.c, 3.7 to 3.12, and from 3.13 on with a RingBuf), PyListObject,
PyWeakReference (Include/cpython/weakrefobject.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.objects import VAR_SIZE, Changed, Objects
from bpfprof.cpython.value_text import whole_number
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Tid

PlacedFrame = tuple[int, int, str, str]  # where a frame and its code are, its function and file
_WAITS, _ASKS, _RUNS, _WORKS = ("wait",), ("result", "exception"), ("run",), ("_worker",)
_THREADING, _BASE, _POOL = "threading.py", "concurrent/futures/_base.py", "concurrent/futures/thread.py"
_QUEUE = "_queue.SimpleQueue"
_LIST_ITEMS, _REFERENT = 24, 16  # ob_item, wr_object; of objects whose header has 16 bytes, as all below
_LIST_AT = 32  # lst, lst_pos
_RING_FROM, _RING_AT, _RING = (3, 13), 24, struct.Struct("<QQQQQ")  # put_idx, get_idx, items, items_cap, num_items
_ITEMS_LIMIT = 10_000
_HEAD_BYTES = 16  # of the header of an object in all builds whose queues are read


@dataclass
class Futures:
    """Of one process at one moment. stacks: for each thread, innermost first; endless: those that wait for no time."""

    objects: Objects
    values: FrameValues
    stacks: Mapping[Tid, Sequence[PlacedFrame]]
    endless: frozenset[Tid]
    _queues: dict[int, tuple[list[Tid], list[int], bool]] | None = field(default=None)

    def awaited(self, thread: Tid) -> int:
        """The future that a thread waits for; 0: none."""
        frames = self.stacks.get(thread, ())
        if len(frames) < 2 or not _is_in(frames[0], _THREADING, _WAITS) or not _is_in(frames[1], _BASE, _ASKS):
            return 0
        return self._self_of(frames[1])

    def runs(self, future: int) -> tuple[Tid | None, str]:
        """(the thread that runs it or is the only one that will, why nobody does, "": not known)"""
        for thread, frames in self.stacks.items():
            for frame in frames:
                if _is_in(frame, _POOL, _RUNS) and self._attribute(self._self_of(frame), "future") == future:
                    return thread, ""
        for workers, futures, is_full in self._pools().values():
            if future in futures and is_full:
                waits = all(each in self.endless and self.awaited(each) in futures for each in workers)
                text = "no thread of its pool can begin it: each waits for one that has not begun" if waits else ""
                return (workers[0] if len(workers) == 1 else None), text
        return None, ""

    def _pools(self) -> dict[int, tuple[list[Tid], list[int], bool]]:
        """By queue of a pool: its threads, the futures that have not begun, whether there can be no more threads."""
        if self._queues is None:
            self._queues = {}
            references: dict[int, int] = {}
            for thread, frames in self.stacks.items():
                for frame in frames:
                    if _is_in(frame, _POOL, _WORKS):
                        variables = self.values.variables(*frame[:2])
                        queue = variables.get("work_queue", 0)
                        references[queue] = variables.get("executor_reference", 0)
                        self._queues.setdefault(queue, ([], [], False))[0].append(thread)
            for queue, (workers, _, _) in self._queues.items():
                try:
                    futures = [self._attribute(item, "future") for item in self._items(queue)]
                    self._queues[queue] = workers, futures, len(workers) >= self._most(references[queue])
                except Changed:
                    continue
        return self._queues

    def _most(self, reference: int) -> int:
        """How many threads its pool may have; of a pool that is gone as many as there are."""
        executor = self.objects.member(reference, _REFERENT) if reference else 0
        if not executor or self.objects.name(self.objects.type_of(executor)) == "NoneType":
            return 0
        return whole_number(self.objects, self.objects.attribute(executor, "_max_workers"))

    def _items(self, queue: int) -> Iterator[int]:
        objects = self.objects
        if not queue or objects.name(objects.type_of(queue)) != _QUEUE or objects.layout.code_type != _HEAD_BYTES // 2:
            return
        if objects.layout.version >= _RING_FROM:
            _, first, items, room, count = _RING.unpack(objects.read(queue + _RING_AT, _RING.size))
            if not 0 < room <= _ITEMS_LIMIT or count > room or first >= room:
                raise Changed
            words = struct.unpack(f"<{room}Q", objects.read(items, 8 * room))
            yield from (words[(first + place) % room] for place in range(count))
            return
        listed, first = objects.word(queue + _LIST_AT), objects.word(queue + _LIST_AT + 8)
        size, items = objects.member(listed, VAR_SIZE), objects.member(listed, _LIST_ITEMS)
        if not first <= size <= _ITEMS_LIMIT:
            raise Changed
        if size:
            yield from struct.unpack(f"<{size}Q", objects.read(items, 8 * size))[first:]

    def _self_of(self, frame: PlacedFrame) -> int:
        return self.values.variables(*frame[:2]).get("self", 0)

    def _attribute(self, instance: int, name: str) -> int:
        try:
            return self.objects.attribute(instance, name) if instance else 0
        except Changed:
            return 0


def _is_in(frame: PlacedFrame, file: str, functions: Sequence[str]) -> bool:
    return frame[3].endswith(file) and frame[2].rpartition(".")[2] in functions
