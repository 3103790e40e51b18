"""Profile -> a call tree in arrays: all, processes, threads, then frames; built level by level, without recursion."""

from __future__ import annotations

from itertools import chain

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import file_names, picture_label, process_label, thread_label

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# In the order they follow other children.
_LEAF_MARKS = (FrameKind.NOT_SAMPLED, FrameKind.RUNQUEUE, FrameKind.WAIT, FrameKind.SHORT_WAITS)


@dataclass(frozen=True)
class Label:
    """What a node shows. `frame` is None for the base: all, a process, a thread."""

    text: str
    frame: Frame | None = None


@dataclass(frozen=True)
class CallTree:
    """One element a node, breadth first: node 0 is everything, a parent precedes its children.

    Siblings stand together, the one with most time first, marks (waits, run queue) last. `labels` indexes `texts`.
    `values`: columns of sums, of which the first `times` are nanoseconds that add up to all of a node's time.
    """

    texts: tuple[Label, ...]
    labels: Ints
    parents: Ints  # -1 for node 0
    depths: Ints
    values: tuple[Ints, ...]
    times: int

    @property
    def wall_ns(self) -> Ints:
        """All time of each node."""
        return np.asarray(sum(self.values[: self.times]))


@dataclass(frozen=True)
class Rows:
    """One element a row, each with its path from the base to its leaf."""

    prefixes: tuple[Ints, ...]  # label of each row at the levels below the frames
    frame_labels: Ints  # labels of the frames of all stacks, one stack after another
    starts: Ints  # where a row's stack begins in frame_labels
    depths: Ints  # prefixes and frames of each row
    values: tuple[Ints, ...]

    def labels_at(self, level: int, rows: Ints) -> Ints:
        """Of these rows, which are as deep."""
        if level < len(self.prefixes):
            return self.prefixes[level][rows]
        return self.frame_labels[self.starts[rows] + level - len(self.prefixes)]


class Labels:
    """Texts of nodes, each once; what has the same text is the same node."""

    def __init__(self, base: str = "all") -> None:
        self.texts = [Label(base)]
        self._ids = {base: 0}

    def number(self, text: str, frame: Frame | None = None) -> int:
        """Its place in `texts`."""
        if text not in self._ids:
            self._ids[text] = len(self.texts)
            self.texts.append(Label(text, frame))
        return self._ids[text]


def build_call_tree(profile: Profile, options: RenderOptions, idle_rows: Bools | None = None) -> CallTree:
    """Its values: time on a CPU, in waits and the run queue, idle; samples and intervals without idle ones.

    idle_rows: which of the profile's weights are of threads that have nothing to do.
    """
    labels, weights = Labels(), profile.weights
    idle = np.zeros(len(weights), np.bool_) if idle_rows is None else idle_rows
    idle, weights = idle[weights["total_ns"] > 0], weights[weights["total_ns"] > 0]
    threads = weights["thread"].astype(np.int64)
    prefixes = tuple(
        np.array([labels.number(text_of(thread)) for thread in profile.threads], dtype=np.int64)[threads]
        for text_of in (process_label, thread_label)
    )
    files = file_names(profile, options)
    texts = [picture_label(frame, files, options.function_only) for frame in profile.frames]
    label_of = np.array([*map(labels.number, texts, profile.frames)], dtype=np.int64)
    lengths = np.fromiter(map(len, profile.stacks), np.int64, len(profile.stacks))
    flat = np.fromiter(chain.from_iterable(profile.stacks), np.int64, int(lengths.sum()))
    stacks = weights["stack"].astype(np.int64)
    on_cpu = weights["state"] == ThreadState.ON_CPU
    waits = ~on_cpu & ~idle
    ns, counts = weights["total_ns"].astype(np.int64), weights["count"].astype(np.int64)
    values = (ns * on_cpu, ns * waits, ns * (idle & ~on_cpu), counts * on_cpu, counts * waits)
    starts = (np.cumsum(lengths) - lengths)[stacks]
    rows = Rows(prefixes, label_of[flat], starts, lengths[stacks] + len(prefixes), values)
    return tree_of_rows(tuple(labels.texts), rows, 3)


def tree_of_rows(texts: tuple[Label, ...], rows: Rows, times: int) -> CallTree:
    """Frames with the same text are one node under the same parent. times: how many of the values are times."""
    ranks = np.array([_rank(label) for label in texts], dtype=np.int64)
    active = np.arange(len(rows.depths))
    node_of = np.zeros(len(rows.depths), dtype=np.int64)
    columns = [
        (np.zeros(1, np.int64), np.full(1, -1, np.int64), np.zeros(1, np.int64), *_sums(rows, active, node_of, 1))
    ]
    node_count, level = 1, 0
    while True:
        active = active[rows.depths[active] > level]
        if len(active) == 0:
            break
        keys = node_of[active] * len(texts) + rows.labels_at(level, active)
        unique, which = np.unique(keys, return_inverse=True)
        parents, labels = np.divmod(unique, len(texts))
        sums = _sums(rows, active, which, len(unique))
        order = np.lexsort((labels, -np.asarray(sum(sums[:times])), -(sums[0] + sums[1]), ranks[labels], parents))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        node_of[active] = node_count + place[which]
        level += 1
        depth = np.full(len(order), level, dtype=np.int64)
        columns.append((labels[order], parents[order], depth, *(values[order] for values in sums)))
        node_count += len(order)
    labels, parents, depths, *values = (np.concatenate(column) for column in zip(*columns))
    return CallTree(texts, labels, parents, depths, tuple(values), times)


def _rank(label: Label) -> int:
    kind = label.frame.kind if label.frame else None
    return _LEAF_MARKS.index(kind) + 1 if kind in _LEAF_MARKS else 0


def _sums(rows: Rows, active: Ints, nodes: Ints, count: int) -> tuple[Ints, ...]:
    """Values of the active rows added up by node; float64 adds nanoseconds exactly up to 104 days of thread time."""
    return tuple(np.bincount(nodes, weights=values[active], minlength=count).astype(np.int64) for values in rows.values)
