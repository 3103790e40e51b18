"""Profile -> one flame graph, an SVG that needs nothing but a browser; without scripts it is still a picture.

The picture is drawn here at a fixed width. The script in assets/ reads the numbers in `frame-data` and draws the same
frames again for the width of the window, a zoom, a search or a filter.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files

import numpy as np

from bpfprof.model.profile import Profile
from bpfprof.query.merging import with_merged_threads
from bpfprof.render.call_tree import CallTree, build_call_tree
from bpfprof.render.columns import duration_text, percent_text
from bpfprof.render.formats import RenderOptions
from bpfprof.render.frame_look import LOOKS, PATTERNS, look_of
from bpfprof.render.header import command_text, counted, recording_facts
from bpfprof.render.labels import printable
from bpfprof.render.quality import quality_line

_WIDTH = 1200
_MARGIN = 12
_HEADER_CHARS = 170  # characters of a line above the graph
_ROW = 18  # height of a frame and the gap to the next, in px
_DETAILS = 26  # height of the line below, on the frame under the pointer
_CHAR = 6.65  # width of a character of a frame's label, in px (11 px monospace)
_MIN_PX = 0.1  # narrower frames are not drawn
_MAX_DRAWN = 16_000  # nor are more than so many: about 4 MB
_THIN_PX = 3.0  # narrower frames have no outline, it would hide them


@dataclass(frozen=True)
class _Drawing:
    """The nodes of a call tree that are drawn, in its order, parents renumbered. `lefts` is in nanoseconds."""

    tree: CallTree
    nodes: list[int]
    parents: list[int]
    lefts: list[int]
    hidden_count: int
    hidden_below_ns: int  # every frame that takes so long is drawn

    @property
    def level_count(self) -> int:
        return int(self.tree.depths[self.nodes[-1]]) + 1


def render_flamegraph(profile: Profile, options: RenderOptions) -> str:
    """A complete SVG document. Time is wall time of all threads: CPU and waits stand side by side."""
    profile = with_merged_threads(profile, options.merge)
    drawing = _draw(build_call_tree(profile, options))
    title = printable(options.title) or "Flame graph of CPU and waits"
    header, header_height = _header(profile, drawing, title)
    graph_height = drawing.level_count * _ROW
    height = header_height + graph_height + _DETAILS
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif"'
        f' font-size="12" data-margin="{_MARGIN}" data-row="{_ROW}" data-header="{header_height}"'
        f' data-details="{_DETAILS}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(quality_line(profile))}</desc>\n",
        f"<style><![CDATA[\n{_asset('flamegraph.css')}]]></style>\n<defs>{PATTERNS}</defs>\n",
        '<rect id="page" width="100%" height="100%" fill="#fff"/>\n',
        f'<svg id="frames" x="{_MARGIN}" y="{header_height}" width="{_WIDTH - 2 * _MARGIN}" height="{graph_height}">\n',
        *_levels(drawing),
        "</svg>\n",
        header,
        f'<g id="details" transform="translate(0,{height - _DETAILS})">'
        f'<rect class="bar" width="100%" height="{_DETAILS}"/>'
        f'<text x="{_MARGIN}" y="17" role="status" aria-live="polite"/></g>\n',
        f'<script id="frame-data" type="application/json">{_frame_data(drawing)}</script>\n',
        f"<script><![CDATA[\n{_asset('flamegraph.js')}]]></script>\n</svg>\n",
    ]
    return "".join(parts)


def _asset(name: str) -> str:
    return (files("bpfprof.render") / "assets" / name).read_text(encoding="utf-8")


def _draw(tree: CallTree) -> _Drawing:
    wall_ns = tree.wall_ns
    floor_ns = int(int(wall_ns[0]) * _MIN_PX / (_WIDTH - 2 * _MARGIN))
    if len(wall_ns) > _MAX_DRAWN:
        floor_ns = max(floor_ns, int(np.partition(wall_ns, -_MAX_DRAWN - 1)[-_MAX_DRAWN - 1]))
    shown = wall_ns > floor_ns
    shown[0] = True
    nodes = np.flatnonzero(shown)
    new_index = np.cumsum(shown) - 1
    parents = np.where(tree.parents[nodes] < 0, -1, new_index[tree.parents[nodes]]).tolist()
    lefts: list[int] = []
    next_left: list[int] = []
    for parent, node_ns in zip(parents, wall_ns[nodes].tolist()):
        left = 0 if parent < 0 else next_left[parent]
        lefts.append(left)
        next_left.append(left)
        if parent >= 0:
            next_left[parent] += node_ns
    return _Drawing(tree, nodes.tolist(), parents, lefts, len(wall_ns) - len(nodes), floor_ns + 1)


def _levels(drawing: _Drawing) -> Iterator[str]:
    """A group a level, root at the bottom."""
    tree = drawing.tree
    wall_ns = tree.wall_ns.tolist()
    all_ns = max(wall_ns[0], 1)
    looks = [look_of(label) for label in tree.texts]
    level = -1
    for node, left in zip(drawing.nodes, drawing.lefts):
        if tree.depths[node] != level:
            level = int(tree.depths[node])
            end = "</g>\n" if level else ""
            yield f'{end}<g transform="translate(0,{(drawing.level_count - level - 1) * _ROW})">'
        label = int(tree.labels[node])
        yield _frame(tree.texts[label].text, looks[label], 100 * left / all_ns, wall_ns[node], all_ns)
    yield "</g>\n"


def _frame(text: str, look: str, left_percent: float, ns: int, all_ns: int) -> str:
    width_px = (_WIDTH - 2 * _MARGIN) * ns / all_ns
    thin = " thin" if width_px < _THIN_PX else ""
    label = ""
    room = int((width_px - 8) / _CHAR)
    if room >= 3:
        shown = text if len(text) <= room else text[: room - 1] + "…"
        label = f'<text x="{left_percent:.4f}%" dx="4" y="12">{escape(shown)}</text>'
    return (
        f'\n<g class="{look}{thin}"><title>{escape(text)}\n{duration_text(ns)}, {percent_text(ns, all_ns)}</title>'
        f'<rect x="{left_percent:.4f}%" width="{100 * ns / all_ns:.4f}%" height="{_ROW - 1}"/>{label}</g>'
    )


def _frame_data(drawing: _Drawing) -> str:
    """Columns of integers, one element a drawn frame; times in microseconds. No text: nothing here needs escaping."""
    tree = drawing.tree
    columns = {
        "cpu": (tree.on_cpu_ns + 500) // 1000,
        "wait": (tree.waiting_ns + 500) // 1000,
        "samples": tree.samples,
        "intervals": tree.intervals,
    }
    chosen = {name: values[drawing.nodes].tolist() for name, values in columns.items()}
    return json.dumps({"parent": drawing.parents, **chosen}, separators=(",", ":"))


def _header(profile: Profile, drawing: _Drawing, title: str) -> tuple[str, int]:
    """The group above the frames, and its height. The script puts its controls on the row that is left free."""
    lines = [("title", title)]
    if command := command_text(profile):
        lines.append(("command", command if len(command) <= 160 else command[:159] + "…"))
    lines += [("facts", line) for line in textwrap.wrap(" · ".join(recording_facts(profile)), _HEADER_CHARS)]
    shown = f"only {printable(profile.filter_text[2:])}" if profile.filter_text else ""
    lines += [("facts", line) for line in textwrap.wrap(shown, _HEADER_CHARS)]
    lines += [("quality", line) for line in textwrap.wrap(quality_line(profile), _HEADER_CHARS)]
    note = _hidden_note(drawing)
    if note:
        lines.append(("note", note))
    texts, y = [], 10
    for kind, line in lines:
        y += 20 if kind == "title" else 17
        texts.append(f'<text class="{kind}" x="{_MARGIN}" y="{y}">{escape(line)}</text>\n')
    controls_y = y + 10
    legend, legend_rows = _legend(drawing, controls_y + 48)
    height = controls_y + 48 + legend_rows * 20
    group = [
        f'<g id="header"><rect class="bar" width="100%" height="{height - 4}"/>\n',
        *texts,
        f'<g id="controls" data-y="{controls_y}"/>\n',
        legend,
        "</g>\n",
    ]
    return "".join(group), height


def _hidden_note(drawing: _Drawing) -> str:
    if not drawing.tree.wall_ns[0]:
        return "No time was recorded: there is nothing to draw."
    if not drawing.hidden_count:
        return ""
    each = f"(each < {duration_text(drawing.hidden_below_ns)})"
    return f"{counted(drawing.hidden_count, 'small frame')} {each} merged into their callers"


def _legend(drawing: _Drawing, y: int) -> tuple[str, int]:
    """One swatch for each look that is drawn; and how many rows they take."""
    drawn = {look_of(drawing.tree.texts[int(label)]) for label in np.unique(drawing.tree.labels[drawing.nodes])}
    parts = ['<g id="legend">']
    x, row = _MARGIN, 0
    for looks, meaning in LOOKS:
        swatch = next((look for look in looks if look in drawn), None)
        if swatch is None:
            continue
        width = 36 + int(len(meaning) * 6.2)
        if x + width > _WIDTH - _MARGIN:
            x, row = _MARGIN, row + 1
        parts.append(
            f'<g class="{swatch}" transform="translate({x},{y + row * 20 - 12})"><rect width="16" height="12"/></g>'
            f'<text x="{x + 21}" y="{y + row * 20 - 2}">{meaning}</text>'
        )
        x += width
    return "".join(parts) + "</g>\n", row + 1
