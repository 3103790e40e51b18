"""Two sides and what differs between them -> one HTML page: the signed flame graph, a table, what was compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import FrameKind
from bpfprof.query.compare.diff_tree import DiffPaths
from bpfprof.query.compare.differences import Differences
from bpfprof.render.diff_picture import SignedTree, signed_tree
from bpfprof.render.diff_table import DiffLook, basis, cells, row_labels, sentence
from bpfprof.render.frame_look import are_plumbing
from bpfprof.render.labels import printable
from bpfprof.render.page import document
from bpfprof.render.palette import CHANGES, PALETTE
from bpfprof.render.scripts import joined

_MODULES = ("tree", "data", "look", "view", "dom", "table", "flame", "shell", "changes")
_MOST_ROWS = 2_000
_LOOKS = tuple(CHANGES)
_MARKS = (FrameKind.WAIT, FrameKind.RUNQUEUE, FrameKind.NOT_SAMPLED, FrameKind.SHORT_WAITS)


def render_diff_page(paths: DiffPaths, found: Differences, look: DiffLook, title: str, quality: Sequence[str]) -> str:
    """A complete HTML document, as render_page() makes one of a recording."""
    signed = signed_tree(paths, found, look)
    head: dict[str, object] = {
        "title": title,
        "sentence": printable(sentence(found, look)),
        "basis": printable(basis(found)),
        "unit": "seconds of a run" if found.is_per_run else "for each second of work",
        "quality": [printable(line) for line in quality],
        "palette": PALETTE,
        "looks": ["mark"],
        "change_looks": _LOOKS,
        "groups": [],
        "threads": [],
        "frames": _frames(signed),
        "rows": _rows(found, look),
    }
    return document(title, head, _columns(signed), joined([f"page/{name}" for name in _MODULES]))


def _columns(signed: SignedTree) -> dict[str, npt.NDArray[np.generic]]:
    tree = signed.tree
    none = np.zeros(0, np.uint32)
    return {
        **dict.fromkeys(("begin", "place", "holder", "count", "place_owner", "place_function", "place_node"), none),
        **dict.fromkeys(("kind", "flags"), np.zeros(0, np.uint8)),
        "node_parent": np.maximum(tree.parents, 0).astype(np.uint32),
        "node_frame": tree.labels.astype(np.uint32),
        "change": np.array([_LOOKS.index(look) for look in signed.looks], np.uint8),
        "before": tree.values[0].astype(np.float64),
        "after": tree.values[1].astype(np.float64),
    }


def _frames(signed: SignedTree) -> dict[str, list[Any]]:
    """Columns, one element a text of the tree but its first; names are whole texts, with their files apart."""
    labels = signed.tree.texts[1:]
    found: dict[str, list[Any]] = {name: [] for name in ("name", "file", "line", "look", "mark", "plumbing")}
    files = {"": 0}
    for label in labels:
        name, _, rest = label.text.rpartition(" (")
        is_split = bool(name) and rest.endswith(")")
        file = rest[:-1] if is_split else ""
        found["name"].append(name if is_split else label.text)
        found["file"].append(files.setdefault(file, len(files)))
        found["mark"].append(0 if label.frame is not None and label.frame.kind in _MARKS else -1)
    found["line"] = found["look"] = [0] * len(labels)
    found["plumbing"] = [int(is_it) for is_it in are_plumbing([label.frame for label in labels])]
    return found | {"files": list(files)}


def _rows(found: Differences, look: DiffLook) -> list[dict[str, Any]]:
    """As the table for a terminal has them."""
    labels = row_labels(found, look)
    return [
        {
            "name": labels[row.key],
            "state": state,
            "before": own.before,
            "after": own.after,
            "difference": own.difference,
            "error": own.error,
            "is_found": own.is_found,
        }
        for row, own, _, state in cells(found)[:_MOST_ROWS]
        if own.before or own.after
    ]
