"""The recording of a cell -> what its notebook shows: a page where there is HTML, else a summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bpfprof.commands.outputs import write_output
from bpfprof.commands.own_options import OwnOptions
from bpfprof.commands.report import load_profile
from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.model.profile import Profile
from bpfprof.notebook.cells import sources_of, with_cell_names
from bpfprof.profile.options import OPEN_END_NS, ProfileOptions
from bpfprof.profile.window import part_of
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.compare.stretches import Stretch, own_thread, threads_beside
from bpfprof.query.work.table import work_of
from bpfprof.render.formats import PAGE, SUMMARY, Format, RenderOptions

_LEAST_VERDICT_NS = 200_000_000
# Jupyter servers drop messages of more than 3 seconds of their iopub_data_rate_limit, 1 MB a second.
_MOST_BYTES = 2_500_000
_STYLE = "width:100%;height:640px;border:1px solid #8888;background:Canvas"


@dataclass(frozen=True)
class Cell:
    """names: as cell_names() has them. file, function: what ran it. before: threads that the notebook had already."""

    stretch: Stretch
    names: Mapping[str, str]
    file: str
    function: str
    before: frozenset[int]


@dataclass(frozen=True)
class Result:
    """page: an HTML document, "" where that is not what was asked for."""

    text: str
    verdict: str
    page: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        if not self.page:
            return None
        title = f"<p><b>bpfprof</b> {escape(self.verdict)}</p>"
        size = len(self.page.encode("utf-8", "replace"))
        if size > _MOST_BYTES:
            how = f"The page has {size / 1e6:.1f} MB, too much for a notebook; -o FILE.html writes it into a file."
            return f"<div>{title}<p>{how}</p><pre>{escape(self.text)}</pre></div>"
        frame = (
            f'<iframe sandbox="allow-scripts" style="{_STYLE}" title="bpfprof" srcdoc="{escape(self.page)}"></iframe>'
        )
        return f"<div>{title}{frame}</div>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        html = self._repr_html_()
        return {"text/plain": self.text, **({"text/html": html} if html else {})}


def made_of(path: Path, asked: OwnOptions, cell: Cell) -> Result:
    """Writes the file that was asked for, too. Raises UsageError, RecordingError, OutputError."""
    chosen, look = asked.shown.format(), replace(asked.look, columns=100)
    if asked.shown.output and chosen is None:
        write_output(asked.shown.output, path.read_bytes(), None)
    profile = _profile(path, asked, cell)
    if look.sources is not None:
        look = replace(look, sources=sources_of(cell.names))
    verdict = f"{cell.stretch.name}: {verdict_of(profile, work_of(profile)).sentence}"
    text, page = str(SUMMARY.render(profile, look)), ""
    if asked.shown.output:
        if chosen is not None:
            write_output(asked.shown.output, chosen.render(profile, look), None)
        text += f"written: {asked.shown.output}\n"
    if chosen in (None, PAGE) or asked.shown.output:
        page = str(PAGE.render(profile, look))
    elif chosen is not SUMMARY:
        text = _as_text(chosen, profile, look)
    return Result(text, verdict, page)


def _as_text(chosen: Format | None, profile: Profile, look: RenderOptions) -> str:
    assert chosen is not None
    content = chosen.render(profile, look)
    if isinstance(content, bytes) and chosen.is_encoded:
        return content.decode()
    if isinstance(content, bytes):
        raise UsageError(f"{chosen.name} is no text", "give a file: -o FILE")
    return content


def _profile(path: Path, asked: OwnOptions, cell: Cell) -> Profile:
    """Of the time in which the cell ran; a window that was asked for counts from there."""
    whole = load_profile(
        path, ProfileOptions(True, asked.shown.show_interpreter, replace(asked.wanted.filter(), window_ns=None))
    )
    begin_ns, end_ns = (each - whole.info.start_ns for each in (cell.stretch.begin_ns, cell.stretch.end_ns))
    part = asked.wanted.window_ns or (0, OPEN_END_NS)
    window = min(begin_ns + part[0], end_ns - 1), min(begin_ns + part[1], end_ns)
    everything = np.ones(len(whole.threads), np.bool_)
    alive = part_of(whole, window, everything)
    beside = threads_beside(alive, cell.before)
    profile = part_of(alive, (0, window[1] - window[0]), ~beside)
    at_work = frozenset(np.flatnonzero(own_thread(profile, cell.stretch)).tolist())
    profile = replace(profile, info=replace(profile.info, least_ns=_LEAST_VERDICT_NS, at_work=at_work))
    count = int(beside.sum())
    text = f"{profile.filter_text}, the cell's threads: {count} of the notebook are left out"
    profile = replace(profile, filter_text=text if count else profile.filter_text)
    return with_cell_names(profile, cell.names, cell.file, cell.function)
