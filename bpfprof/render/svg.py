"""A call tree and words about it -> one SVG that needs nothing but a browser; without scripts it is still a picture.

The picture is drawn here at a fixed width, root at the top. The scripts in assets/svg/ read the numbers in `frame-data`
and place the same frames again for the width of the window, a zoom, a search or a choice of time.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.render.call_tree import Bools, CallTree, Ints
from bpfprof.render.columns import duration_text, percent_text, shortened, width
from bpfprof.render.frame_look import LOOKS, PATTERNED, patterns, style
from bpfprof.render.header import counted
from bpfprof.render.labels import WAITING, mark_text
from bpfprof.render.scripts import asset, joined

_WIDTH = 1200
_MARGIN = 12
_HEADER = 64
_LINE_CHARS = 190  # of a line below the graph
_ROW = 18  # height of a frame and the gap to the next, in px
_CHAR = 6.65  # width of a character of a frame's label, in px (11 px monospace)
_MIN_PX = 0.1  # narrower frames are not in the picture before it is zoomed
_MIN_SHARE = 0.0001  # of its thread: smaller frames are not in the file
_MAX_DRAWN = 16_000  # nor are more than so many: about 4 MB
_THIN_PX = 3.0  # narrower frames have no outline, it would hide them
_PLUMBING_PART = 0.1  # code that starts and runs others is left out, unless so much of its time is its own
_READY = mark_text(Frame(FrameKind.RUNQUEUE))
_MODULES = ("page/dom", "svg/graph", "svg/main")


@dataclass(frozen=True)
class Picture:
    """What is drawn. columns: names of the tree's values, of which the first two are shown; unit_ns: what one is.

    looks, plumbing: for each of the tree's texts. thread_depth: of nodes whose frames are of no less interest than
    those of others. kind: of the choice of times that the script offers, "times" or "changes". looks_of_nodes: instead
    of `looks`, for each node.
    """

    tree: CallTree
    columns: tuple[str, ...]
    kind: str
    looks: Sequence[str]
    plumbing: Sequence[bool]
    title: str
    verdict: str
    about: Sequence[str]
    thread_depth: int = 2
    unit_ns: int = 1000
    node_looks: Sequence[str] | None = None
    found: Sequence[bool] | None = None

    def look(self, node: int) -> str:
        """The class of a node."""
        return self.node_looks[node] if self.node_looks is not None else self.looks[int(self.tree.labels[node])]


@dataclass(frozen=True)
class _Drawing:
    """The nodes that are in the file, in the tree's order; parents renumbered. shown_ns: in the first view."""

    nodes: list[int]
    parents: list[int]
    shown_ns: list[int]
    hidden: list[bool]
    levels: list[int]
    lefts: list[int]
    left_out: int
    left_out_share: float

    @property
    def level_count(self) -> int:
        return max(self.levels) + 1


def render_svg(picture: Picture) -> str:
    """A complete SVG document."""
    drawing = _draw(picture)
    about = [*picture.about, *[note for note in [_note(picture, drawing)] if note]]
    legend = _legend(picture, drawing)
    graph_height = drawing.level_count * _ROW
    footer, footer_height = _footer(about, legend, _HEADER + graph_height + 8)
    height = _HEADER + graph_height + 8 + footer_height
    words = {"title": picture.title, "verdict": picture.verdict, "about": about, "legend": legend}
    data = _data(picture, drawing) | words
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="12">\n'
        f"<title>{escape(picture.title)}</title>\n<desc>{escape(picture.verdict)}</desc>\n",
        f"<style><![CDATA[\n{style()}{asset('svg/svg.css')}]]></style>\n<defs>{patterns()}</defs>\n",
        '<rect id="page" width="100%" height="100%"/>\n',
        f'<svg id="frames" x="{_MARGIN}" y="{_HEADER}" width="{_WIDTH - 2 * _MARGIN}" height="{graph_height}">',
        *_frames(picture, drawing),
        "</svg>\n",
        _header(picture),
        footer,
        f'<script id="frame-data" type="application/json">{_as_json(data)}</script>\n',
        f"<script><![CDATA[\n(() => {{\n{joined(_MODULES)}}})();\n]]></script>\n</svg>\n",
    ]
    return "".join(parts)


def _as_json(data: dict[str, object]) -> str:
    """Without a letter that XML would take for its own."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _draw(picture: Picture) -> _Drawing:
    tree = picture.tree
    chosen, share = _chosen(picture)
    nodes = np.flatnonzero(chosen)
    new_index = np.cumsum(chosen) - 1
    parents = np.where(tree.parents[nodes] < 0, -1, new_index[tree.parents[nodes]]).tolist()
    shown = tree.values[0] + tree.values[1]
    if not shown[0]:
        shown = tree.wall_ns
    shown_ns = shown[nodes].tolist()
    plumbing = [picture.plumbing[int(tree.labels[node])] for node in nodes.tolist()]
    own_ns = list(shown_ns)
    for parent, ns in zip(parents, shown_ns):
        if parent >= 0:
            own_ns[parent] -= ns
    hidden = [is_it and own < _PLUMBING_PART * ns for is_it, own, ns in zip(plumbing, own_ns, shown_ns)]
    levels: list[int] = []
    lefts: list[int] = []
    next_left: list[int] = []
    for parent, ns in zip(parents, shown_ns):
        left = 0 if parent < 0 else next_left[parent]
        lefts.append(left)
        levels.append(0 if parent < 0 else levels[parent] + (not hidden[parent]))
        next_left.append(left)
        if parent >= 0:
            next_left[parent] += ns
    return _Drawing(nodes.tolist(), parents, shown_ns, hidden, levels, lefts, len(chosen) - len(nodes), share)


def _chosen(picture: Picture) -> tuple[Bools, float]:
    """(which nodes are in the file, the largest part of its thread that another has).

    Those with a part of their thread that is worth it; for each thread at least the way to its hottest leaf, on a CPU
    and in waits.
    """
    tree = picture.tree
    wall_ns = tree.wall_ns
    base = np.arange(len(wall_ns))
    levels = np.searchsorted(tree.depths, np.arange(int(tree.depths[-1]) + 2))
    for first, end in zip(levels[picture.thread_depth + 1 : -1], levels[picture.thread_depth + 2 :]):
        base[first:end] = base[tree.parents[first:end]]
    share = wall_ns / np.maximum(wall_ns[base], 1)
    kept = _hottest(picture, base)
    chosen = (share > _MIN_SHARE) | kept
    chosen[0] = True
    if chosen.sum() > _MAX_DRAWN:
        # A thread with little time has less detail, but not in proportion.
        worth = wall_ns / np.sqrt(np.maximum(wall_ns[base], 1))
        rest = np.sort(worth[chosen & ~kept])
        chosen &= kept | (worth > rest[-(_MAX_DRAWN - int(kept.sum()))])
    return chosen, float(share[~chosen].max(initial=0))


def _hottest(picture: Picture, base: Ints) -> Bools:
    """The nodes on the ways to the hottest leaves of the threads; of very many threads those with most time."""
    tree = picture.tree
    kept = np.zeros(len(base), np.bool_)
    kept[0] = True
    leaves = []
    for values in tree.values[:2]:
        inner = np.bincount(tree.parents[1:], weights=values[1:], minlength=len(values))
        own = values - inner.astype(np.int64)
        order = np.lexsort((own, base))
        last = order[np.append(base[order][1:] != base[order][:-1], True)]
        leaves.append(last[own[last] > 0])
    found = np.concatenate(leaves)
    for leaf in found[np.argsort(-tree.wall_ns[base[found]], kind="stable")].tolist():
        if 2 * np.count_nonzero(kept) > _MAX_DRAWN:
            break
        while not kept[leaf]:
            kept[leaf] = True
            leaf = int(tree.parents[leaf])
    return kept


def _frames(picture: Picture, drawing: _Drawing) -> Iterator[str]:
    """A group a frame; of what has no place in the first view without one."""
    tree = picture.tree
    all_ns = max(drawing.shown_ns[0], 1)
    all_px = _WIDTH - 2 * _MARGIN
    for place, node in enumerate(drawing.nodes):
        ns, left, level = drawing.shown_ns[place], drawing.lefts[place], drawing.levels[place]
        text = tree.texts[int(tree.labels[node])].text
        told = f"{text}\n{_told_times(picture, node, ns)}, {percent_text(ns, all_ns)}"
        title = f"<title>{escape(told)}</title>"
        px = all_px * ns / all_ns
        look = picture.look(node)
        if drawing.hidden[place] or px < _MIN_PX:
            yield f'\n<g class="{look} gone">{title}<rect/></g>'
            continue
        x, y = f"{100 * left / all_ns:.4f}%", level * _ROW
        label = ""
        room = int((px - 8) / _CHAR)
        if room >= 3:
            drawn = _sign(look) + _drawn_text(text, ns)
            shown = shortened(drawn, room)
            label = _ground(look, x, y, width(shown)) + f'<text x="{x}" dx="4" y="{y + 13}">{escape(shown)}</text>'
        thin = " thin" if px < _THIN_PX else ""
        rect = f'<rect x="{x}" y="{y}" width="{100 * ns / all_ns:.4f}%" height="{_ROW - 1}"/>'
        yield f'\n<g class="{look}{thin}">{title}{rect}{label}</g>'


def _ground(look: str, x: str, y: int, columns: int) -> str:
    """What a label on a pattern stands on, so that marks are no part of its letters."""
    size = f'x="{x}" y="{y + 1}" width="{columns * _CHAR + 2:.1f}" height="{_ROW - 3}"'
    return f'<rect class="ground {look}-back" {size}/>' if look in PATTERNED else ""


def _told_times(picture: Picture, node: int, ns: int) -> str:
    if picture.kind == "times":
        return duration_text(ns)
    before, after = (duration_text(int(values[node])) for values in picture.tree.values)
    return f"before {before}, after {after}"


def _sign(look: str) -> str:
    return "▲ " if look.endswith("more") else "▼ " if look.endswith("less") else ""


def _drawn_text(text: str, ns: int) -> str:
    """Of a wait what for and how long, as the script writes it."""
    if text != _READY and not text.startswith(WAITING):
        return text
    return f"{text.removeprefix(WAITING).partition(',')[0]} {duration_text(ns)}"


def _data(picture: Picture, drawing: _Drawing) -> dict[str, object]:
    """Columns of integers, one element a drawn frame."""
    tree = picture.tree
    columns = dict(zip(picture.columns, tree.values))
    unit = picture.unit_ns
    found: dict[str, object] = {"kind": picture.kind, "unit": unit, "parent": drawing.parents}
    for place, (name, values) in enumerate(columns.items()):
        chosen = values[drawing.nodes]
        found[name] = ((chosen + unit // 2) // unit if place < tree.times else chosen).tolist()
    found["plumbing"] = [int(picture.plumbing[int(tree.labels[node])]) for node in drawing.nodes]
    if picture.found is not None:
        found["found"] = [int(picture.found[node]) for node in drawing.nodes]
    return found


def _header(picture: Picture) -> str:
    texts = ((picture.title, "title", 150, 25), (picture.verdict, "verdict", 175, 48))
    shown = [
        f'<text class="{name}" x="{_MARGIN}" y="{y}">{escape(textwrap.shorten(text, room, placeholder="…"))}</text>\n'
        for text, name, room, y in texts
    ]
    return f'<g id="header"><rect class="bar" width="100%" height="{_HEADER - 4}"/>\n{"".join(shown)}</g>\n'


def _footer(about: Sequence[str], legend: Sequence[tuple[str, str]], top: int) -> tuple[str, int]:
    """The group below the frames, and its height: the legend, then what is known of the recording."""
    parts = [f'<g id="footer" transform="translate(0,{top})"><g id="legend">']
    x, y = _MARGIN, 4
    for look, meaning in legend:
        width = 36 + int(len(meaning) * 6.2)
        if x + width > _WIDTH - _MARGIN:
            x, y = _MARGIN, y + 20
        parts.append(
            f'<g class="{look}" transform="translate({x},{y})"><rect width="16" height="12"/></g>'
            f'<text x="{x + 21}" y="{y + 10}">{escape(meaning)}</text>'
        )
        x += width
    parts.append('</g>\n<g id="about">')
    y += 20
    for fact in about:
        for line in textwrap.wrap(fact, _LINE_CHARS):
            y += 17
            parts.append(f'<text x="{_MARGIN}" y="{y}">{escape(line)}</text>\n')
    return "".join([*parts, "</g></g>\n"]), y + 14


def _note(picture: Picture, drawing: _Drawing) -> str:
    if not picture.tree.wall_ns[0]:
        return "No time was recorded: there is nothing to draw."
    if not drawing.left_out:
        return ""
    of = "its thread" if picture.thread_depth else "all"
    each = f"{100 * drawing.left_out_share:.2g}% of {of} or less each"
    return f"{counted(drawing.left_out, 'small frame')} merged into their callers, {each}"


def _legend(picture: Picture, drawing: _Drawing) -> list[tuple[str, str]]:
    """(look, what it means) of each that is in the picture."""
    used = {picture.look(node) for node in drawing.nodes}
    return [(look, meaning) for look, meaning in LOOKS if look in used]
