"""Two sides and what differs between them -> one signed flame graph: width is their mean, a colour says which way.

What is beyond noise has a strong colour and a pattern, what may be by chance a pale one; a triangle in the label says
the same. What is beyond noise is known of functions (differences.py): frames of code that they call in C, and of their
waits, are told as they are, and so are their callers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.code.functions import function_name
from bpfprof.query.compare.diff_tree import DiffPaths, Step
from bpfprof.query.compare.differences import Differences
from bpfprof.render.call_tree import Bools, CallTree, Ints, Label, Rows, tree_of_rows
from bpfprof.render.diff_table import DiffLook, basis, sentence
from bpfprof.render.frame_look import are_plumbing
from bpfprof.render.labels import picture_label, printable, short_file_names
from bpfprof.render.svg import Picture, render_svg

_SAME = 0.01  # of the longer one: a smaller difference is none


@dataclass(frozen=True)
class SignedTree:
    """The tree of both; its values are nanoseconds before and after. is_beyond_noise, looks: for each node."""

    tree: CallTree
    is_beyond_noise: Bools
    looks: list[str]


def render_signed_graph(
    paths: DiffPaths, found: Differences, look: DiffLook, title: str, quality: Sequence[str]
) -> str:
    """A complete SVG document."""
    signed = signed_tree(paths, found, look)
    frames = [label.frame for label in signed.tree.texts]
    return render_svg(
        Picture(
            tree=signed.tree,
            columns=("before", "after"),
            kind="changes",
            looks=[],
            plumbing=are_plumbing(frames),
            title=title,
            verdict=sentence(found, look),
            about=[basis(found), "the width of a frame is the mean of before and after", *quality],
            thread_depth=0,
            unit_ns=1,
            node_looks=signed.looks,
            found=signed.is_beyond_noise.tolist(),
        )
    )


def signed_tree(paths: DiffPaths, found: Differences, look: DiffLook) -> SignedTree:
    """Frames with one text are one."""
    texts = _texts(paths, look)
    numbers = {text: place for place, text in enumerate(dict.fromkeys(["all", *texts.values()]))}
    labels = [Label(text) for text in numbers]
    for step, text in texts.items():
        labels[numbers[text]] = Label(text, paths.frames[step])
    lengths = np.array([len(path) for path, _, _ in paths.rows], np.int64)
    flat = np.array([numbers[texts[step]] for path, _, _ in paths.rows for step in path], np.int64)
    values = tuple(np.rint([row[side] for row in paths.rows]).astype(np.int64) for side in (1, 2))
    rows = Rows((), flat, np.cumsum(lengths) - lengths, lengths, values)
    tree = tree_of_rows(tuple(labels), rows, 2)
    step_of = {numbers[text]: step for step, text in texts.items()}
    beyond = _beyond_noise(tree, [step_of.get(place) for place in range(len(labels))], found)
    return SignedTree(tree, beyond, _looks(tree, beyond))


def _texts(paths: DiffPaths, look: DiffLook) -> dict[Step, str]:
    files = {frame.file for frame in paths.frames.values() if frame.kind == FrameKind.PYTHON}
    shown = {file: file for file in files} if look.full_filenames else short_file_names(files)
    shown = {file: printable(name) or "[unknown]" for file, name in shown.items()}
    return {step: _text(frame, shown, look.by) for step, frame in paths.frames.items()}


def _text(frame: Frame, files: dict[str, str], by: str) -> str:
    if frame.kind in (FrameKind.NATIVE, FrameKind.INLINED) and not frame.name:
        return printable(function_name(frame))
    return picture_label(frame, files, by != "line")


def _beyond_noise(tree: CallTree, steps: Sequence[Step | None], found: Differences) -> Bools:
    """Whether each node's difference is one that was found, or has one in it that goes the same way."""
    signs: dict[Step, tuple[int, int]] = {}
    for row in found.rows:
        on_cpu, waits = (int(np.sign(change.difference)) if change.is_found else 0 for change in row.changes)
        signs[row.key] = on_cpu, waits
    frames = [label.frame for label in tree.texts]
    ways_of = [(0, 0)]
    difference = np.sign(tree.values[1] - tree.values[0])
    beyond = np.zeros(len(difference), np.bool_)
    for node in range(1, len(difference)):
        label = int(tree.labels[node])
        step, frame = steps[label], frames[label]
        inherits = frame is None or frame.kind != FrameKind.PYTHON
        ways = signs.get(step, (0, 0)) if step is not None else (0, 0)
        ways = ways_of[int(tree.parents[node])] if inherits and not any(ways) else ways
        ways_of.append(ways)
        beyond[node] = difference[node] != 0 and int(difference[node]) in ways
    return _with_callers(tree.parents, difference, beyond)


def _with_callers(parents: Ints, difference: Ints, beyond: Bools) -> Bools:
    for node in range(len(beyond) - 1, 0, -1):
        if beyond[node] and difference[parents[node]] == difference[node]:
            beyond[parents[node]] = True
    return beyond


def _looks(tree: CallTree, beyond: Bools) -> list[str]:
    before, after = (values.tolist() for values in tree.values)
    looks = []
    for one, other, is_beyond in zip(before, after, beyond.tolist()):
        if abs(other - one) <= _SAME * max(one, other):
            looks.append("same")
        else:
            looks.append(f"{'' if is_beyond else 'maybe-'}{'more' if other > one else 'less'}")
    return looks
