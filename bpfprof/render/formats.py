"""The formats there are, one table for choices, help, suffixes, docs and tests; and what may be asked of them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from bpfprof.dataclass import dataclass

if TYPE_CHECKING:
    from bpfprof.known.patterns import Pattern, PhasePattern
    from bpfprof.model.profile import Profile

GROUPINGS = ("stack", "reason", "thread", "container", "function", "waker", "lock")  # of waits


# (paths, those that matter most first; when the recording began) -> of some of them their text, or why there is none.
ReadSources = Callable[[Sequence[str], int], "dict[str, tuple[str, str]]"]


@dataclass(frozen=True)
class RenderOptions:
    """Choices that change how a profile is written, never what it holds."""

    function_only: bool = False  # no line numbers; frames that differ only in line become one
    full_filenames: bool = False  # whole paths instead of from where it is imported
    title: str = ""  # heading of the flame graph and name of the speedscope file; "" chooses one
    event: str = ""  # what weights count, of the events of the recording; "": time
    by: str = "stack"  # what waits of one group have in common: GROUPINGS, or task
    limit: int = 0  # rows, groups or lines shown; 0: as many as the view finds fit
    sort: str = "own"  # rows of a table, by one of query.choices.SORTS
    operators: Sequence[Pattern] = ()  # beside those that are known
    step: re.Pattern[str] | None = None  # steps are calls of a function with this in its name; None: they are found
    phases: Sequence[PhasePattern] = ()  # of steps, beside those that are known
    batch: int = 0  # samples of a step; 0: not known
    merge: str = ""  # threads shown as one: one of query.choices.MERGES; "": as the view does by itself
    with_idle: bool = False  # waits of threads that have nothing to do are among the others
    sources: ReadSources | None = None  # for the page and --by line; None: no lines of the program's files
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
    adds_up: bool = False  # sums of those that nothing but their time tells apart do
    has_whole_waits: bool = False  # see ProfileOptions
    with_pieces: bool = False  # beside sums of spans it needs each one's times
    piece_parts: int = 0  # see ProfileOptions
    with_concurrency: bool = False  # it says how many threads ran at a time
    checked_by: str = ""  # MODULE:FUNCTION that raises UnsupportedError where what it needs is missing
    is_encoded: bool = False  # as UTF-8 by its renderer, for it can be long
    in_folder: str = ""  # of one that is a folder the file in it; with a suffix of its own it is that file alone
    takes: frozenset[str] = frozenset()  # fields of RenderOptions that mean something to it, beside names of frames

    def render(self, profile: Profile, options: RenderOptions) -> str | bytes:
        """The profile in this format; text is to be encoded as UTF-8, if it is not."""
        render: Callable[[Profile, RenderOptions], str | bytes] = _imported(self.renderer)
        return render(profile, options)

    def check(self) -> None:
        """Raises UnsupportedError where a package that it needs is missing."""
        if self.checked_by:
            _imported(self.checked_by)()


def _imported(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


TABLE = Format(
    "table",
    ("details", "text"),
    (),
    "tables for the terminal: wall time by thread, top functions, top waits",
    "bpfprof.render.table:render_table",
    needs_spans=True,
    adds_up=True,
    with_concurrency=True,
    takes=frozenset({"by", "sort", "merge", "columns"}),
)
SUMMARY = Format(
    "summary",
    (),
    (),
    "one screen: what bounds the program, where, and which threads (what `bpfprof report` shows)",
    "bpfprof.render.summary:render_summary",
    needs_spans=True,
    adds_up=True,
    takes=frozenset({"columns"}),
)
TREE = Format(
    "tree",
    (),
    (),
    "a tree of calls for the terminal: CPU, ready and wait of each, code that is not your own folded",
    "bpfprof.render.tree:render_tree",
    needs_spans=True,
    adds_up=True,
    takes=frozenset({"columns", "merge", "limit", "hide_idle", "details"}),
)
JSON = Format(
    "json",
    (),
    (".json",),
    "the verdict, totals, rows (--by) and threads; for scripts",
    "bpfprof.render.report_json:render_json",
    needs_spans=True,
    adds_up=True,
    with_concurrency=True,
    takes=frozenset({"by", "sort", "merge"}),
)
CSV = Format(
    "csv",
    (),
    (".csv",),
    "rows of time (--by) for spreadsheets: those of the JSON",
    "bpfprof.render.report_csv:render_csv",
    needs_spans=True,
    adds_up=True,
    takes=frozenset({"by", "sort", "merge"}),
)
WAITS = Format(
    "waits",
    ("offcpu", "off-cpu"),
    (),
    "a table of waits in groups: how long, how often, who ended them (what `bpfprof offcpu` shows)",
    "bpfprof.render.off_cpu:render_off_cpu",
    needs_spans=True,
    adds_up=True,
    has_whole_waits=True,
    takes=frozenset({"by", "limit", "waker_depth", "hide_idle", "merge", "ascii_only", "details"}),
)
FLAMEGRAPH = Format(
    "flamegraph",
    ("svg", "flame"),
    (".svg",),
    "one SVG to open in a browser: CPU and waits, search, zoom; needs no network",
    "bpfprof.render.flamegraph:render_flamegraph",
    needs_spans=True,
    adds_up=True,
    takes=frozenset({"title", "merge"}),
)
PAGE = Format(
    "html",
    ("page",),
    (".html", ".htm"),
    "one page to open in a browser: verdict, timeline, flame graph, waits, source; needs no network",
    "bpfprof.render.page:render_page",
    needs_spans=True,
    adds_up=True,
    has_whole_waits=True,
    with_pieces=True,
    piece_parts=8192,  # more than a screen has pixels
    with_concurrency=True,
    takes=frozenset({"title", "merge"}),
)
FORMATS = (
    Format(
        "collapsed",
        ("folded", "raw"),
        (".folded", ".collapsed", ".txt"),
        "one line a stack, microseconds of wall time; for scripts and other flame graph tools",
        "bpfprof.render.collapsed:render_collapsed",
        is_encoded=True,
        takes=frozenset({"event", "merge"}),
    ),
    FLAMEGRAPH,
    Format(
        "speedscope",
        (),
        (".speedscope.json",),
        "a file for speedscope: every thread's intervals in the order of time",
        "bpfprof.render.speedscope:render_speedscope",
        needs_spans=True,
        adds_up=True,
        with_pieces=True,
        takes=frozenset({"title"}),
    ),
    Format(
        "chrome",
        ("perfetto",),
        (".trace.json",),
        "a trace for Perfetto: states and calls of each thread, arrows from who woke whom, CPUs",
        "bpfprof.render.chrome:render_chrome",
        needs_spans=True,
        adds_up=True,
        with_pieces=True,
        is_encoded=True,
    ),
    Format(
        "gecko",
        ("firefox",),
        (".gecko.json",),
        "a file for the Firefox Profiler: samples that weigh what they took, waits as markers",
        "bpfprof.render.gecko:render_gecko",
        needs_spans=True,
        adds_up=True,
        with_pieces=True,
        takes=frozenset({"title"}),
    ),
    Format(
        "pprof",
        (),
        (".pb.gz",),
        "a file for pprof: CPU, ready and wait in nanoseconds, with labels thread, reason and lock",
        "bpfprof.render.pprof:render_pprof",
        needs_spans=True,
        adds_up=True,
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
    Format(
        "parquet",
        (),
        (".parquet",),
        "rows of time by thread, stack, state and reason for DuckDB, pandas and polars; needs pyarrow",
        "bpfprof.render.parquet:render_parquet",
        in_folder="rows.parquet",
        needs_spans=True,
        adds_up=True,
        checked_by="bpfprof.render.parquet:check_pyarrow",
    ),
    Format(
        "markdown",
        ("md", "github"),
        (".md",),
        "verdict and tables for a pull request or a build's page: >> $GITHUB_STEP_SUMMARY",
        "bpfprof.render.markdown:render_markdown",
        needs_spans=True,
        adds_up=True,
        takes=frozenset({"title", "limit"}),
    ),
    SUMMARY,
    TREE,
    TABLE,
    WAITS,
    JSON,
    PAGE,
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
