"""`bpfprof fleet`: queries over a data set of recordings, here or on a Spark cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from bpfprof.commands.help import LOOK, OUTPUT, PART, Command, under
from bpfprof.commands.options import with_options
from bpfprof.commands.outputs import show, shows_utf8
from bpfprof.commands.values import PAIR, ROWS, WrongValue
from bpfprof.errors import UsageError
from bpfprof.fleet import answers, text
from bpfprof.fleet.answers import Asked
from bpfprof.fleet.engines import DUCKDB, Engine, Limits, is_engine, opened
from bpfprof.render.diff_table import DiffLook, render_diff_json, render_diff_table

_EXAMPLES = (
    ("what got slower with a version", "bpfprof fleet regressions DIR --before version=1.4 --after version=1.5"),
    ("which rank is slow, and why", "bpfprof fleet slowest DIR --by rank --where job=17"),
    ("waits of each hour", "bpfprof fleet waits DIR --every 1h --where date=2026-11-01..2026-11-07"),
    ("functions with most time, on a cluster", "bpfprof fleet top DIR --engine spark://master:7077"),
)
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}
_QUERIES: dict[str, tuple[Callable[[Engine, Asked], Any], Callable[[Any], list[str]]]] = {
    "top": (answers.top, text.top_lines),
    "slowest": (answers.slow, text.slow_lines),
    "waits": (answers.waits, text.waits_lines),
}
_REGRESSIONS = "regressions"
_NAMES = (*_QUERIES, _REGRESSIONS)
# For each query the options that mean something to it alone, and the sorts it has, its own first.
_TAKES = {
    "top": {"sort", "limit"},
    "slowest": {"by", "sort", "limit"},
    "waits": {"every_s"},
    _REGRESSIONS: {"before", "after", "limit"},
}
_ALL_ROWS = 100_000
_SORTS = {"top": ("own", "total", "cpu", "wait"), "slowest": ("own", "work", answers.STEP)}


def _every(_ctx: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,4})([mhd])", given or "")
    if given is not None and (found is None or not int(found[1])):
        raise WrongValue(f"wants minutes, hours or days like 10m, 6h or 1d, not {given}", parameter, None)
    return int(found[1]) * _UNITS_S[found[2]] if found else None


def _engine(_ctx: click.Context, parameter: click.Parameter, given: str) -> str:
    if not is_engine(given):
        raise WrongValue(f"wants duckdb or a master of Spark like spark://HOST:7077, not {given}", parameter, None)
    return given


def _memory(_ctx: click.Context, parameter: click.Parameter, given: str) -> str:
    if not re.fullmatch(r"\d{1,6}(?:\.\d+)?\s?[MGT]i?B", given):
        raise WrongValue(f"wants a size like 2GB, not {given}", parameter, None)
    return given


_OPTIONS = (
    under(
        OUTPUT,
        click.option(
            *("-f", "--format", "format_name"),
            type=click.Choice(["table", "json"]),
            default="table",
            help="A table, or JSON for programs.  [default: table]",
        ),
    ),
    under(
        OUTPUT,
        click.option(
            "--engine",
            metavar="ENGINE",
            default=DUCKDB,
            show_default=True,
            callback=_engine,
            help="duckdb, or a master of Spark: spark://HOST:PORT.",
        ),
    ),
    under(
        OUTPUT,
        click.option(
            "--memory",
            metavar="SIZE",
            default="2GB",
            show_default=True,
            callback=_memory,
            help="What DuckDB takes; the rest is in $TMPDIR meanwhile.",
        ),
    ),
)


def _pairs(name: str, help_text: str) -> Any:
    return under(PART, click.option(name, type=PAIR, multiple=True, metavar="NAME=VALUE", help=help_text))


_ASKED = (
    _pairs("--where", "Only recordings with this label, host or date (FROM..TO); may be repeated."),
    _pairs("--before", "Of regressions one side: a label, host or date; may be repeated."),
    _pairs("--after", "Of regressions the other side."),
    click.option("--by", metavar="NAME", help="Of slowest: host, date or a label.  [default: host]"),
    click.option("--every", "every_s", metavar="TIME", callback=_every, help="Of waits: 10m, 6h or 1d.  [default: 1d]"),
    click.option(
        "--sort",
        type=click.Choice(["own", "total", "cpu", "wait", "work", answers.STEP]),
        help="Order.  [default: own]",
    ),
    click.option("-n", "--limit", metavar="N", type=ROWS, help="Rows.  [default: 10, of JSON all]"),
)


@click.command(cls=Command, heading=LOOK, examples=_EXAMPLES)
@click.argument("query", type=click.Choice(_NAMES), metavar="QUERY")
@click.argument("folder", metavar="DIR")
@with_options(_OPTIONS)
@with_options(_ASKED)
def fleet(query: str, folder: str, format_name: str, engine: str, memory: str, **options: Any) -> None:
    """Ask a data set that `bpfprof export` has written: QUERY is top, regressions, slowest or waits.

    top: functions with most time. regressions: what takes longer --after than --before. slowest: hosts, or what --by
    names, with most time of their own for each second, and what they do more of than the others; --sort step: whose
    training steps take longest, and which phases of them. waits: by reason over time.
    """
    asked = _asked(query, options)
    if format_name == "json" and options["limit"] is None:
        asked = replace(asked, limit=_ALL_ROWS)
    with opened(folder, engine, Limits(memory)) as found:
        if query == _REGRESSIONS:
            content = _regressions(found, asked, format_name)
        else:
            ask, lines_of = _QUERIES[query]
            answer = {"query": query, **ask(found, asked)}
            content = json.dumps(answer, indent=1) if format_name == "json" else "\n".join(lines_of(answer))
    show(content.rstrip("\n") + "\n")


def _asked(query: str, options: dict[str, Any]) -> Asked:
    """Raises UsageError for options that mean nothing to the query."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in given:
        if name not in {"where"} | _TAKES[query]:
            raise UsageError(f"--{name.removesuffix('_s')} means nothing to {query}", "bpfprof fleet --help")
    sorts = _SORTS.get(query, ("own",))
    if given.get("sort", "own") not in sorts:
        raise UsageError(f"{query} cannot be sorted by {given['sort']}", f"--sort {', '.join(sorts)}")
    if query == _REGRESSIONS and not (given.get("before") and given.get("after")):
        raise UsageError("say what is compared", "--before version=1.4 --after version=1.5")
    return Asked(**given)


def _regressions(engine: Engine, asked: Asked, format_name: str) -> str:
    found = answers.regressions(engine, asked)
    look = DiffLook(limit=asked.limit, ascii_only=not shows_utf8())
    if format_name == "table":
        return render_diff_table(found, look, [])
    document = json.loads(render_diff_json(found, look, []))
    for row in document["rows"]:
        library, _, module = row.pop("file").partition("/")
        row |= {"library": library or None, "module": module or None}
    del document["quality"]
    return json.dumps({"query": _REGRESSIONS, **document}, indent=1)
