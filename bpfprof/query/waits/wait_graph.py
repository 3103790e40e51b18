"""Who waits for whom: threads with the one that each waits for in, cycles and chains out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from bpfprof.model.ids import Tid
from bpfprof.model.now import GIL, OF_THREADS, ThreadNow

Node = TypeVar("Node", bound=int)


def endless_waits(threads: Iterable[ThreadNow]) -> dict[Tid, Tid]:
    """Who has what each thread waits for that waits for no time. The GIL's holder goes on, unless it waits itself for
    who wants the GIL."""
    waits = ((thread.tid, thread.waits_for) for thread in threads)
    return {
        tid: wanted.held_by_tid
        for tid, wanted in waits
        if wanted and wanted.kind in (GIL, *OF_THREADS) and wanted.held_by_tid is not None and not wanted.has_end
    }


def cycles(waits_for: Mapping[Node, Node]) -> list[list[Node]]:
    """Each cycle once, from its smallest member on in the order of waiting. A thread that waits for itself is one."""
    found: list[list[Node]] = []
    done: set[Node] = set()
    for start in sorted(waits_for):
        path: list[Node] = []
        node = start
        while node in waits_for and node not in done:
            done.add(node)
            path.append(node)
            node = waits_for[node]
        if node in path:
            cycle = path[path.index(node) :]
            first = cycle.index(min(cycle))
            found.append(cycle[first:] + cycle[:first])
    return sorted(found)


def chains(waits_for: Mapping[Node, Node]) -> list[list[Node]]:
    """From each thread that no one waits for to one that waits for no thread; without those that end in a cycle."""
    found: list[list[Node]] = []
    for start in sorted(set(waits_for) - set(waits_for.values())):
        path = [start]
        while path[-1] in waits_for and waits_for[path[-1]] not in path:
            path.append(waits_for[path[-1]])
        if path[-1] not in waits_for:
            found.append(path)
    return found
