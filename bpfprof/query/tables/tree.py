"""A Profile and its work -> a tree of calls: processes, threads, functions, and what was waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.query.tables.merging import MANY, MergedThreads, merged_threads
from bpfprof.query.tables.tree_paths import FOLDED, Step, TreePaths
from bpfprof.query.work.shares import OTHER
from bpfprof.query.work.table import CPU_TIME, IDLE_TIME, WAIT_TIME, Work, kinds_of

_PART = 0.01  # of all time: what is less is left out
_MOST = 300  # nodes
Key = tuple[object, ...]


@dataclass
class Node:
    """ns, own_ns: CPU, ready and wait in nanoseconds, with all calls and without them.

    One of: thread, a place in MergedThreads.threads, whose process it stands for if is_process; wait: (share, number of
    the lock, reason), of which `objects` has the descriptors; else a function or what was folded to one node, whose
    frames `frames` has, empty of the latter. left_out_ns, left_out_count: calls without a node of their own.
    folded: the least and the most frames that it stands for beside its own; libraries: whose they are, by time.
    """

    thread: int = -1
    is_process: bool = False
    wait: tuple[int, int, int] | None = None
    ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    own_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    left_out_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    left_out_count: int = 0
    frames: Counter[int] = field(default_factory=Counter)
    objects: Counter[int] = field(default_factory=Counter)
    folded: tuple[int, int] = (0, 0)
    libraries: Counter[str] = field(default_factory=Counter)
    children: dict[Key, Node] = field(default_factory=dict)

    @property
    def total_ns(self) -> int:
        """All of it."""
        return sum(self.ns)

    def sorted_children(self) -> list[Node]:
        """Those with most time first."""
        return sorted(self.children.values(), key=lambda node: -node.total_ns)

    def follow(self, step: Step, ns: int) -> Node:
        """The child of a step, which has so much more time."""
        child = self.children.get((step.key,))
        if child is None:
            child = self.children[(step.key,)] = Node(folded=(step.folded, step.folded))
        if step.key != FOLDED:
            child.frames[step.frame] += ns
        child.folded = min(child.folded[0], step.folded), max(child.folded[1], step.folded)
        for library in step.libraries:
            child.libraries[library] += ns
        return child


@dataclass(frozen=True)
class Tree:
    """root: all time but idle_ns, that of waits for work by what they were waits of, places in `threads`."""

    root: Node
    threads: MergedThreads
    paths: TreePaths
    idle_ns: Counter[int]

    def nodes(self) -> Iterator[Node]:
        """All, each before its children."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()


def tree_of(
    profile: Profile, work: Work, merge: str = "", limit: int = 0, unfolded: bool = False, with_idle: bool = False
) -> Tree:
    """At most `limit` nodes, 0: those with a hundredth of the time or more. merge: one of MERGES, "": by how many.

    unfolded: each frame is a node. with_idle: waits for work stand among the others.
    """
    merge = merge or ("role" if len(profile.threads) > MANY else "none")
    threads = merged_threads(profile, work, merge, folds_short=True)
    tree = Tree(Node(), threads, TreePaths(profile, work.stack_frames, unfolded), Counter())
    bases = _bases(threads, merge)
    kinds = kinds_of(work.rows).tolist()
    groups = threads.group_of[work.rows["thread"]].tolist()
    columns = work.rows[["stack", "share", "lock", "reason", "object", "ns"]].tolist()
    alike: dict[tuple[int, int, int], Counter[tuple[tuple[int, int, int], int]]] = {}
    for group, kind, (stack, share, lock, reason, described, ns) in zip(groups, kinds, columns):
        if kind == IDLE_TIME and not with_idle:
            tree.idle_ns[group] += ns
            continue
        wait = share, lock, reason if share == OTHER else 0
        alike.setdefault((group, stack, min(kind, WAIT_TIME)), Counter())[wait, described] += ns
    for (group, stack, kind), waits in alike.items():
        path, total_ns = [tree.root], sum(waits.values())
        for key, base in bases[group]:
            path.append(path[-1].children.setdefault(key, base))
        for step in tree.paths.of(stack, kind == CPU_TIME):
            path.append(path[-1].follow(step, total_ns))
        for node in path:
            node.ns[kind] += total_ns
        if kind != WAIT_TIME:
            path[-1].own_ns[kind] += total_ns
            continue
        for (wait, described), ns in waits.items():
            node = path[-1].children.setdefault(("wait", *wait), Node(wait=wait))
            node.objects[described] += ns
            node.ns[kind] += ns
            node.own_ns[kind] += ns
    _cut(tree, limit)
    return tree


def _bases(threads: MergedThreads, merge: str) -> list[list[tuple[Key, Node]]]:
    """For each thread the nodes that its stacks begin with: its process, where there are several, and itself."""
    labels = [(thread.process_name, thread.process_id) for thread in threads.threads]
    processes = {label: Node(number, True) for number, label in reversed([*enumerate(labels)])}
    found: list[list[tuple[Key, Node]]] = []
    for number, label in enumerate(labels):
        is_whole = merge == "process" or number == threads.short
        base: list[tuple[Key, Node]] = [(("process", *label), processes[label])] if len(processes) > 1 else []
        found.append([*base, *[(("thread", number), Node(number))] * (not is_whole or not base)])
    return found


def _cut(tree: Tree, limit: int) -> None:
    """Leaves out the nodes with least time; a node has no less than what is below it."""
    nodes = sorted(tree.nodes(), key=lambda node: -node.total_ns)
    if not limit:
        nodes = [node for node in nodes if node.total_ns >= _PART * tree.root.total_ns]
    kept = {id(node) for node in nodes[: (limit or _MOST) + 1]} | {id(tree.root)}
    for node in [*tree.nodes()]:
        for key, child in [*node.children.items()]:
            if id(child) not in kept:
                node.left_out_ns = [one + other for one, other in zip(node.left_out_ns, child.ns)]
                node.left_out_count += 1
                del node.children[key]
