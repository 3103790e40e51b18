"""The formats there are, one table for choices, help, suffixes, docs and tests; and what may be asked of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile

GROUPINGS = ("stack", "reason", "thread", "container", "function", "waker", "lock")  # of waits


@dataclass(frozen=True)
class RenderOptions:
    """Choices that change how a profile is written, never what it holds."""

    function_only: bool = False  # no line numbers; frames that differ only in line become one
    full_filenames: bool = False  # whole paths instead of the shortest unambiguous tail
    title: str = ""  # heading of the flame graph and name of the speedscope file; "" chooses one
    event: str = ""  # what weights count, of the events of the recording; "": time
    by: str = "stack"  # what waits of one group have in common: GROUPINGS, or task
    limit: int = 0  # rows, groups or lines shown; 0: as many as the view finds fit
    sort: str = "own"  # rows of a table, by one of query.rows.SORTS
    merge: str = ""  # threads shown as one: one of query.merging.MERGES; "": as the view does by itself
    with_idle: bool = False  # waits of threads that have nothing to do are among the others
    waker_depth: int = 2  # how many wakers one after the other
    hide_idle: bool = False  # no groups of threads that have nothing to do
    ascii_only: bool = False  # nothing but ASCII of its own; names stay as they are
    details: bool = False  # the long tables instead of the summary
    columns: int = 100  # of the terminal
    rows: int = 24
    has_color: bool = False

    @property
    def most(self) -> int:
        """Rows of a table."""
        return self.limit or 10


@dataclass(frozen=True)
class Format:
    """One way to write a profile. `renderer` is MODULE:FUNCTION, imported when it is used."""

    name: str
    synonyms: tuple[str, ...]
    suffixes: tuple[str, ...]  # with the dot, lower case; none: never guessed from a file name
    description: str
    renderer: str
    needs_spans: bool = False  # the profile must be built with its spans
    takes: frozenset[str] = frozenset()  # fields of RenderOptions that mean something to it, beside names of frames

    def render(self, profile: Profile, options: RenderOptions) -> str | bytes:
        """The profile in this format; text is to be encoded as UTF-8."""
        module, _, function = self.renderer.partition(":")
        render: Callable[[Profile, RenderOptions], str | bytes] = getattr(importlib.import_module(module), function)
        return render(profile, options)


TABLE = Format(
    "table",
    ("details", "text"),
    (),
    "tables for the terminal: wall time by thread, top functions, top waits",
    "bpfprof.render.table:render_table",
    takes=frozenset({"by", "sort", "merge"}),
)
SUMMARY = Format(
    "summary",
    (),
    (),
    "one screen: what bounds the program, where, and which threads (what `bpfprof report` shows)",
    "bpfprof.render.summary:render_summary",
    needs_spans=True,
    takes=frozenset({"columns"}),
)
TREE = Format(
    "tree",
    (),
    (),
    "a tree of calls for the terminal: CPU, ready and wait of each, code that is not your own folded",
    "bpfprof.render.tree:render_tree",
    needs_spans=True,
    takes=frozenset({"columns", "merge", "limit", "hide_idle", "details"}),
)
JSON = Format(
    "json",
    (),
    (".json",),
    "the verdict, totals, rows (--by) and threads; for scripts",
    "bpfprof.render.report_json:render_json",
    needs_spans=True,
    takes=frozenset({"by", "sort", "merge"}),
)
CSV = Format(
    "csv",
    (),
    (".csv",),
    "rows of time (--by) for spreadsheets: those of the JSON",
    "bpfprof.render.report_csv:render_csv",
    needs_spans=True,
    takes=frozenset({"by", "sort", "merge"}),
)
WAITS = Format(
    "waits",
    ("offcpu", "off-cpu"),
    (),
    "a table of waits in groups: how long, how often, who ended them (what `bpfprof offcpu` shows)",
    "bpfprof.render.off_cpu:render_off_cpu",
    needs_spans=True,
    takes=frozenset({"by", "limit", "waker_depth", "hide_idle", "merge", "ascii_only", "details"}),
)
FORMATS = (
    Format(
        "collapsed",
        ("folded", "raw"),
        (".folded", ".collapsed", ".txt"),
        "one line a stack, microseconds of wall time; for scripts and other flame graph tools",
        "bpfprof.render.collapsed:render_collapsed",
        takes=frozenset({"event", "merge"}),
    ),
    Format(
        "flamegraph",
        ("svg", "flame"),
        (".svg",),
        "one SVG to open in a browser: CPU and waits, search, zoom; needs no network",
        "bpfprof.render.flamegraph:render_flamegraph",
        takes=frozenset({"title", "merge"}),
    ),
    Format(
        "speedscope",
        (),
        (".speedscope.json",),
        "a file for speedscope: every thread's intervals in the order of time",
        "bpfprof.render.speedscope:render_speedscope",
        needs_spans=True,
        takes=frozenset({"title"}),
    ),
    Format(
        "pprof",
        (),
        (".pb.gz",),
        "a file for pprof: CPU, ready and wait in nanoseconds, with labels thread, reason and lock",
        "bpfprof.render.pprof:render_pprof",
        needs_spans=True,
    ),
    Format(
        "callgrind",
        (),
        (".callgrind",),
        "a file for KCachegrind and callgrind_annotate: CPU, ready and wait in microseconds",
        "bpfprof.render.callgrind:render_callgrind",
    ),
    Format(
        "pstats",
        (),
        (".pstats",),
        "a file as cProfile's, for pstats.Stats and snakeviz: wall time, waits as functions of their own",
        "bpfprof.render.pstats:render_pstats",
    ),
    CSV,
    SUMMARY,
    TREE,
    TABLE,
    WAITS,
    JSON,
)


def find_format(name: str) -> Format | None:
    """The format with this name or synonym, in any case; None if there is none."""
    wanted = name.lower()
    return next((known for known in FORMATS if wanted == known.name or wanted in known.synonyms), None)


def format_for_suffix(path: str | PurePath) -> Format | None:
    """The format whose suffix the path ends in (the longest wins); None if no suffix fits."""
    name = PurePath(path).name.lower()
    fits = [(len(suffix), known) for known in FORMATS for suffix in known.suffixes if name.endswith(suffix)]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None
