"""A moment of a recording that goes on -> one screen of a terminal, in its size."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bpfprof.dataclass import dataclass
from bpfprof.query.answer.moment import Closer, Key, LivePlace, Moment
from bpfprof.query.threads.at_end import NowGroup
from bpfprof.query.work.places import file_text
from bpfprof.query.work.shares import HANDED, IDLE, PYTHON, READY, SHARE_NAMES
from bpfprof.render.columns import middle_cut, padded, percent_text, shortened, width
from bpfprof.render.labels import printable, reason_label, source_line
from bpfprof.render.summary import (
    Paint,
    command_text,
    name_columns,
    painted,
    plain,
    role_lines,
    share_line,
)

SORTS = ("own", "total", "wait")
MODES = ("all", "CPU", "waits", "GIL")
_WIDE, _WIDER = 72, 96  # columns: from here on there is room for more of them
_BARS = "▁▂▃▄▅▆▇█"
_TREND_COLUMNS, _MOSTLY = 10, 8
_MOST_LINES = 10
_ROLES_FROM = 14  # lines: threads stand below the functions
_NOW_FROM = 12  # lines of the screen: what threads do now stands below
_MARKS = {PYTHON: "█", READY: "▓", HANDED: "░", IDLE: "░"}  # those that wait have another
_WAITS = "▒"
_KEYS = (
    ("[s]ort {sort}", "[m]ode {mode}", "[w]indow {window}", "[t]hreads", "[/]filter"),
    ("[p]ause", "[r]eset", "Enter lines", "[f]lame", "[o]save", "[d]ump", "[h]elp", "[q]uit"),
)
HELP = """\
s   sort by own time, total time (with what was called), or waits
m   what counts: all time, CPU, waits, or waits for the GIL
w   the last seconds, or functions and shares since the start (or reset)
t   threads instead of functions (Tab too)
/   show functions whose name or file has a word in it; Enter ends it, Esc clears it
p   pause: the screen stays, the recording goes on
r   forget everything before now
up, down, Enter   choose a function; its lines, its callers, and what it waits for
f   write a flame graph (SVG) of the last seconds
o   write a recording of the last seconds, for bpfprof report
d   the stack of every thread now, as bpfprof dump shows it
q   quit (Ctrl-C too); Ctrl-Z stops it, as elsewhere

own     time in a function itself or in what is not the program's own code below it,
        in parts of the time of the threads that count, as the verdict is; idle threads don't
CPU     on a CPU; ready: wanted one and had none; wait: asleep for something
total   with the program's own functions that it called
trend   how own went from view to view, beside its own greatest
now     what each thread did a moment ago: █ on a CPU, ▓ ready, ▒ waits, ░ idle or for other threads
"""


@dataclass(frozen=True)
class TopLook:
    """What the user chose, and the size of the terminal. only: what a name or file must have in it."""

    columns: int = 100
    rows: int = 30
    has_color: bool = False
    ascii_only: bool = False
    sort: str = SORTS[0]
    mode: str = MODES[0]
    since_start: bool = False
    threads: bool = False
    only: str = ""
    is_paused: bool = False
    has_keys: bool = True
    chosen: Key | None = None  # a function of the table


@dataclass(frozen=True)
class TopState:
    """What is shown beside the moment. places: those of the moment, or since the start; shares: of the same time.

    shares: by SHARES, then idle and waits for others; of the moment its whole, since the start of all threads.
    trends: for each place's key its last parts. note: a sentence in place of the keys.
    """

    places: list[LivePlace]
    shares: Sequence[int]
    trends: dict[Key, list[float]]
    elapsed_s: int
    own_cpu: float  # of one CPU
    cpu_count: int
    lost_count: int = 0
    note: str = ""
    next_s: int = 0  # until there is more to show

    def shown(self, look: TopLook) -> Sequence[int]:
        """Those that are parts of one time; since the start there is no one time but that of work."""
        return self.shares[:IDLE] if look.since_start else self.shares


def top_lines(moment: Moment, state: TopState, look: TopLook) -> list[str]:
    """At most look.rows lines of at most look.columns."""
    return with_clock(lines_without_clock(moment, state, look), moment, state, look)


def with_clock(lines: list[str], moment: Moment, state: TopState, look: TopLook) -> list[str]:
    """Around those of lines_without_clock() what another second changes: the title, and below all the keys."""
    columns = max(look.columns, 20)
    foot = _foot(state, look, columns) if look.has_keys else []
    lines = [_title(moment, state, columns), *lines, *foot]
    return [_as_ascii(line) for line in lines] if look.ascii_only else lines


def lines_without_clock(moment: Moment, state: TopState, look: TopLook) -> list[str]:
    """Those between title and keys, of which no second makes others."""
    paint = painted if look.has_color else plain
    columns = max(look.columns, 20)
    last = f"last {moment.duration_ns / 1e9:.0f} s"
    window = "since start" if look.since_start else last
    shares = share_line(state.shown(look), {}, columns - len(window) - 2, paint)
    rows = look.rows - 1 - (len(_foot(state, look, columns)) if look.has_keys else 0)
    head = [f"{window}  {shares}" if shares else shortened(f"{window}  no thread worked", columns)]
    head += _verdict(moment, f"{last}: " * look.since_start, columns, look.rows, paint)
    foot = [*_now(moment.now, columns, paint)] if look.rows >= _NOW_FROM else []
    room = rows - len(head) - len(foot) - 2
    roles = role_lines(moment.roles, max(room - 1, 1) if look.threads else room // 3, columns, paint)
    if look.threads:
        lines = [*head, "", *roles]
    else:
        has_roles = room >= _ROLES_FROM
        table = _table(state, look, room - (len(roles) + 1) * has_roles, paint)
        lines = [*head, "", *table, *["", *roles] * has_roles]
    lines += [""] * (rows - len(lines) - len(foot) if look.has_keys else 1)
    return [*lines[: rows - len(foot)], *foot]


_ASCII = str.maketrans({"█": "#", "▓": "=", "▒": ":", "░": ".", "·": "-", "…": "~"})


def _as_ascii(line: str) -> str:
    return line.translate(_ASCII)


def _title(moment: Moment, state: TopState, columns: int) -> str:
    """`bpfprof top  python djapp.py (5220)   00:14   0.53 of 2 CPUs   9 threads`."""
    minutes, seconds = divmod(state.elapsed_s, 60)
    pids = {thread.pid for thread in moment.profile.threads}
    after = f" ({moment.profile.threads[0].pid})" if len(pids) == 1 else ""
    used = moment.cpu_ns / max(moment.duration_ns, 1)
    after += f"   {minutes:02}:{seconds:02}   {used:.2f} of {state.cpu_count} CPUs"
    after += f"   {moment.thread_count} thread{'s' * (moment.thread_count != 1)}" if columns >= _WIDE else ""
    name = command_text(moment.profile) or "all processes"
    begin = "bpfprof top  " if columns >= _WIDE else ""
    return shortened(begin + shortened(name, max(columns - width(begin + after), 8)) + after, columns)


def _verdict(moment: Moment, before: str, columns: int, rows: int, paint: Paint) -> list[str]:
    most = 1 if rows < 16 else 2
    lines = textwrap.wrap(before + printable(moment.verdict.sentence), columns)
    lines = [*lines[: most - 1], shortened(" ".join(lines[most - 1 :]), columns)] if len(lines) > most else lines
    return [paint("heading", line) for line in lines]


def _now(groups: list[NowGroup], columns: int, paint: Paint) -> list[str]:
    """`now  loader-0..1 (2) █ CPU   MainThread ▒ lock`: as many as there is room for."""
    line, used = "now", 3
    for group in groups:
        count = f" ({group.thread_count})" if group.thread_count > 1 else ""
        word = SHARE_NAMES[group.share] or "idle"
        text = f"{shortened(printable(group.name) or '?', 24)}{count} "
        mark = f"{_MARKS.get(group.share, _WAITS)} {word}"
        used += width(text + mark) + 2
        if used > columns - 3 * (group is not groups[-1]):
            return [line + "  …"]
        line += f"  {text}{paint(word, mark)}"
    return [line] if groups else []


def _foot(state: TopState, look: TopLook, columns: int) -> list[str]:
    values = {"sort": look.sort, "mode": look.mode, "window": "all" if look.since_start else "last"}
    own = f"own CPU {100 * state.own_cpu:.1f}%" + (f", {state.lost_count} lost" if state.lost_count else "")
    waits = f"next in {state.next_s} s  " if state.next_s > 1 else ""
    own = ("PAUSED  " if look.is_paused else waits) + own
    if state.note:
        return [shortened(state.note, columns)]
    lines = [" ".join(words).format(**values) for words in _KEYS]
    if look.rows < 16 or columns < 60:
        lines = [" ".join(["s m w t / p r f o d", "[h]elp [q]uit"])]
    lines[-1] = padded(shortened(lines[-1], columns - len(own) - 2), columns - len(own) - 1) + " " + own
    return [shortened(line, columns) for line in lines]


def _table(state: TopState, look: TopLook, room: int, paint: Paint) -> list[str]:
    columns, is_wide, is_wider = look.columns, look.columns >= _WIDE, look.columns >= _WIDER
    places = shown_places(state.places, look)
    figures = ["own%", "CPU%", *["ready%"] * is_wide, "wait%", *["total%"] * is_wide]
    shown = _in_sight(places, look.chosen, room - 1)
    names = [(printable(each.frame.name) or "(no name)", printable(file_text(each.frame))) for each in shown]
    left = columns - 7 * len(figures) - 2 - (_TREND_COLUMNS + 1) * is_wider
    name, where = name_columns([("function", "where"), *names], max(left - _MOSTLY - 2, 16))
    mostly = max(left - name - where - 2, 6)
    heading = "".join(f"{figure:>7}" for figure in figures) + f"  {'function':<{name}} {'where':<{where}} mostly"
    heading = padded(heading, columns - _TREND_COLUMNS) + "trend" if is_wider and not look.ascii_only else heading
    lines = [paint("heading", shortened(heading, columns))]
    whole = max(sum(state.shown(look)), 1)
    for place, (of_it, at) in zip(shown, names):
        own = {"all": place.own_ns, "CPU": place.cpu_ns, "waits": place.wait_ns, "GIL": place.gil_ns}[look.mode]
        values = [own, place.cpu_ns, *[place.ready_ns] * is_wide, place.wait_ns, *[place.total_ns] * is_wide]
        line = "".join(f"{100 * ns / whole:7.1f}" for ns in values) + "  "
        line += padded(shortened(of_it, name), name) + " " + padded(middle_cut(at, where), where) + " "
        line += shortened(_mostly(place), mostly)
        if is_wider and not look.ascii_only:
            line = padded(line, columns - _TREND_COLUMNS) + _trend(state.trends.get(place.key, []))
        is_chosen = look.chosen == place.key
        line = shortened(">" + line[1:] if is_chosen else line, columns).rstrip()
        lines.append(paint("heading" if is_chosen else "", line))
    if len(lines) == 1:
        lines.append("  nothing yet" if not look.only else f"  no function has {printable(look.only)} in its name")
    return lines


def _in_sight(places: list[LivePlace], chosen: Key | None, most: int) -> list[LivePlace]:
    """So many of them that the chosen one is among them."""
    place = next((place for place, it in enumerate(places) if it.key == chosen), 0)
    begin = max(place - most + 1, 0) if most > 0 else 0
    return places[begin : begin + max(most, 0)]


def shown_places(places: Sequence[LivePlace], look: TopLook) -> list[LivePlace]:
    """The rows of the table, in their order."""
    shown = [place for place in places if _is_shown(place, look.only) and _worth(place, look.mode) > 0]
    return sorted(shown, key=lambda place: (-_sorted_by(place, look), place.key))


def closer_lines(
    place: LivePlace, found: Closer, whole_ns: int, columns: int, sources: Mapping[str, tuple[str, str]]
) -> list[str]:
    """What there is of one function, with the text of its lines. sources: path -> (text, why there is none)."""
    whole = max(whole_ns, 1)
    lines = [f"{printable(place.frame.name)}   {printable(place.frame.file)}", "", "   own%   CPU%  wait%   line"]
    for line, cpu_ns, ready_ns, wait_ns in found.lines[:_MOST_LINES]:
        parts = (cpu_ns + ready_ns + wait_ns, cpu_ns, wait_ns)
        text = source_line(replace(place.frame, line=line), sources)
        row = "".join(f"{100 * ns / whole:7.1f}" for ns in parts) + f" {line:>6}  {text}"
        lines.append(shortened(row.rstrip(), columns))
    if found.reasons:
        waited = [f"{reason_label(reason)} {percent_text(ns, whole, 0)}" for reason, ns in found.reasons]
        lines += ["", "waits for " + ", ".join(waited)]
    lines += ["", "called by"] if found.callers else []
    for frame, ns in found.callers[:_MOST_LINES]:
        lines.append(f"{100 * ns / whole:7.1f}  {printable(frame.name)}  {printable(file_text(frame))}")
    return lines


def _is_shown(place: LivePlace, only: str) -> bool:
    return only.lower() in place.frame.name.lower() or only.lower() in place.frame.file.lower()


def _worth(place: LivePlace, mode: str) -> int:
    return {"all": place.total_ns, "CPU": place.cpu_ns, "waits": place.wait_ns, "GIL": place.gil_ns}[mode]


def _sorted_by(place: LivePlace, look: TopLook) -> int:
    if look.mode in ("CPU", "GIL"):
        return _worth(place, look.mode)
    if look.sort == "total":
        return place.total_ns
    return place.wait_ns if look.sort == "wait" or look.mode == "waits" else place.own_ns


def _mostly(place: LivePlace) -> str:
    words: list[str] = []
    for share, ns in place.shares.most_common(2):
        word = SHARE_NAMES[share]
        if ns * 4 >= place.own_ns and word not in words:
            words.append(word)
    return ", ".join(words)


def _trend(parts: list[float]) -> str:
    most = max([*parts, 0.05])
    return "".join(_BARS[min(int(part / most * len(_BARS)), len(_BARS) - 1)] for part in parts).rjust(_TREND_COLUMNS)
