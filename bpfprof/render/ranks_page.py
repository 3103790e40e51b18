"""How the loops of ranks compare -> one HTML page: the answer, a bar for each rank, its steps as a line, what differs.

All of it is drawn here; the script only chooses light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from bpfprof.query.steps.rank_differences import Comparison, More
from bpfprof.query.steps.steps import Floats
from bpfprof.render.columns import duration_text
from bpfprof.render.header import counted
from bpfprof.render.labels import printable
from bpfprof.render.page import around
from bpfprof.render.ranks import basis, compare_sentence, file_name, longest_shares, place_text, rank_name
from bpfprof.render.scripts import asset

_BAR, _BAR_HEIGHT = 300, 12  # px
_WIDTH, _HEIGHT, _LEFT, _RIGHT = 1000, 220, 70, 110  # of the chart and its margins, px
_MOST_POINTS = 500  # of a line: of more steps the longest of several is one
_MOST_LINES = 64
_MOST_ROWS, _LEAST = 100, 0.001  # of its own time: rows of less are not shown


def render_ranks_page(found: Comparison, notes: Sequence[str], quality: Sequence[str]) -> str:
    """A complete HTML document."""
    title = f"{len(found.loops)} ranks: {_short(found)}"
    parts = [
        f"<body class='ranks'><header><h1>{escape(title)}</h1></header>\n<main>\n"
        f"<section aria-label='Verdict'><p class='sentence'>{escape(compare_sentence(found))}</p>"
        f"<p class='aside'>{escape(basis(found))}</p></section>",
        _ranks(found),
        _steps(found),
        _more(found, "What it does more of, by phase", found.phases),
        _more(found, "By phase, state and function", found.activities),
        _lines("Notes", notes),
        _lines("Quality of the recordings", quality),
        "</main>\n",
    ]
    return around(title, "\n".join(filter(None, parts)), asset("ranks/theme.js"), asset("ranks/ranks.css"))


def _ranks(found: Comparison) -> str:
    """Their own time and what they wait for others, as bars of one scale."""
    most_ns = max(each.mean_own_ns + each.mean_waits_ns for each in found.parts) or 1.0
    rows = []
    for place, (loop, parts, share) in enumerate(zip(found.loops, found.parts, longest_shares(found))):
        own, waits = parts.mean_own_ns, parts.mean_waits_ns
        who = f"{loop.thread.process_name} {loop.thread.pid}"
        cells = [f"{parts.count:,}", _text(own + waits), _text(own), _text(waits), share]
        kind = "slow" if found.is_slow and place == found.longest else "own"
        bar = (
            f"<svg width='{_BAR}' height='{_BAR_HEIGHT}' role='img' aria-label='{_text(own)} own, {_text(waits)} for "
            f"others'>{_rect(0, own / most_ns, kind)}{_rect(own / most_ns, waits / most_ns, 'waits')}</svg>"
        )
        figures = "".join(f"<td class='number'>{escape(cell)}</td>" for cell in cells)
        rows.append(
            f"<tr><th scope='row'>{escape(rank_name(loop))}</th>{figures}<td>{bar}</td>"
            f"<td>{escape(printable(who))}</td><td>{escape(file_name(loop))}</td></tr>"
        )
    what = "second" if found.by_second else "step"
    heads = ("", f"{what}s", what, "own", "for others", "longest in", None, "process", "recording")
    legend = "".join(
        f"<span class='chip'><svg width='18' height='11'>{_rect(0, 18 / _BAR, kind)}</svg>{text}</span> "
        for kind, text in (("own", "its own time"), ("slow", "of the slowest"), ("waits", "waits for others"))
        if kind != "slow" or found.is_slow
    )
    return _table(f"Means of a {what}", heads, rows, f"<p class='aside'>{legend}</p>")


def _rect(begin: float, width: float, kind: str) -> str:
    return f"<rect class='{kind}' x='{begin * _BAR:.1f}' width='{width * _BAR:.1f}' height='{_BAR_HEIGHT}'/>"


def _steps(found: Comparison) -> str:
    """A line for each rank, of the own time of its steps; the slowest stands out."""
    places = sorted(range(len(found.parts)), key=lambda place: -found.parts[place].mean_own_ns)[:_MOST_LINES]
    longest = max(found.parts[place].count for place in places)
    if longest < 2:
        return ""
    each = -(-longest // _MOST_POINTS)
    lines = {place: _longest_of(found.parts[place].own_ns, each) for place in places}
    most_ns = max(float(line.max()) for line in lines.values() if len(line)) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - 40
    last = max(len(line) for line in lines.values()) - 1 or 1
    drawn, labels = [], []
    for place in reversed(places):  # the slowest on top
        kind = "slow" if found.is_slow and place == found.longest else "own"
        points = " ".join(
            f"{_LEFT + width * number / last:.1f},{10 + height * (1 - ns / most_ns):.1f}"
            for number, ns in enumerate(lines[place].tolist())
        )
        name = escape(rank_name(found.loops[place]))
        drawn.append(f"<polyline class='{kind}' points='{points}'><title>{name}</title></polyline>")
    if found.is_slow and len(lines[found.longest]):
        y = 14 + height * (1 - float(lines[found.longest][-1]) / most_ns)
        labels.append(_label(_LEFT + width + 6, y, rank_name(found.loops[found.longest]), "slow"))
    for part in (0.0, 0.5, 1.0):
        y = 10 + height * (1 - part)
        labels.append(f"<path class='grid' d='M{_LEFT} {y:.1f}h{width}'/>")
        labels.append(_label(_LEFT - 6, y + 4, _text(part * most_ns), "end"))
    what = "second" if found.by_second else "step"
    labels.append(_label(_LEFT, _HEIGHT - 8, f"{what} 1", ""))
    labels.append(_label(_LEFT + width, _HEIGHT - 8, f"{what} {longest:,}", "end"))
    told = f"Own time of each {what}" if each == 1 else f"Own time, the longest of each {each:,} {what}s"
    left_out = len(found.parts) - len(places)
    note = f"<p class='aside'>not drawn: {counted(left_out, 'faster rank')}</p>" if left_out else ""
    chart = (
        f"<svg class='chart' viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{told} of {len(places)} ranks'>"
        f"{''.join(labels)}{''.join(drawn)}</svg>"
    )
    return f"<section aria-label='Steps'><h2>{told}</h2><div class='scroll'>{chart}</div>{note}</section>"


def _longest_of(values: Floats, each: int) -> Floats:
    return np.maximum.reduceat(values, np.arange(0, len(values), each)) if len(values) else values


def _label(x: float, y: float, text: str, kind: str) -> str:
    return f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}'>{escape(text)}</text>"


def _short(found: Comparison) -> str:
    if found.network is not None and found.network.place >= 0:
        return f"{rank_name(found.loops[found.network.place])} is behind a slow network"
    if found.network is not None:
        return "the network between them is slow"
    return f"{rank_name(found.loops[found.longest])} is slowest" if found.is_slow else "none is slower"


def _more(found: Comparison, head: str, rows: Sequence[More]) -> str:
    """Of the rank that takes longest; what it does less of comes last."""
    least_ns = _LEAST * found.parts[found.longest].mean_own_ns
    large = [each for each in rows if max(each.ns, each.others_ns) > least_ns]
    cells = []
    for each in sorted(large, key=lambda each: -each.more_ns)[:_MOST_ROWS]:
        sign = "-" if each.more_ns < 0 else "+"
        figures = (f"{sign}{_text(abs(each.more_ns))}", _text(each.ns), _text(each.others_ns))
        texts = [each.phase, each.state, place_text(each)] if each.state else [each.phase]
        numbers = "".join(f"<td class='number'>{escape(figure)}</td>" for figure in figures)
        cells.append(f"<tr>{numbers}{''.join(f'<td>{escape(printable(text))}</td>' for text in texts)}</tr>")
    names = ("phase", "state", "function") if any(each.state for each in rows) else ("phase",)
    left_out = len(rows) - len(cells)
    note = f"<p class='aside'>and {counted(left_out, 'smaller row')} (-f json has all)</p>" if left_out else ""
    return _table(head, ("more", rank_name(found.loops[found.longest]), "others", *names), cells, note) if cells else ""


def _table(head: str, heads: Iterable[str | None], rows: Sequence[str], below: str) -> str:
    """heads: None of a column of pictures."""
    words = {"process", "recording", "phase", "state", "function", ""}
    columns = "".join(
        f"<th scope='col'{'' if name is None or name in words else ' class=number'}>{escape(name or '')}</th>"
        for name in heads
    )
    return (
        f"<section aria-label='{head}'><h2>{head}</h2><div class='scroll'><table><thead><tr>{columns}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{below}</section>"
    )


def _lines(head: str, texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(printable(text))}</li>" for text in texts)
    return f"<section aria-label='{head}'><h2>{head}</h2><ul class='lines'>{items}</ul></section>" if texts else ""


def _text(ns: float) -> str:
    return duration_text(round(ns))
