"""Profile with its spans -> what a person sees first: the answer, then the evidence, on one screen of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from bpfprof.model.profile import Profile
from bpfprof.query.cpu_throttles import stops_often
from bpfprof.query.objects import short_text
from bpfprof.query.places import Place, file_text, places_of
from bpfprof.query.roles import Role, roles_of
from bpfprof.query.shares import GPU, HANDED, IDLE, LOCK, NATIVE, PYTHON
from bpfprof.query.verdict import Verdict, verdict_of
from bpfprof.query.work import Work, work_of
from bpfprof.render.columns import (
    cut_left,
    duration_text,
    padded,
    percent_text,
    seconds_text,
    short_seconds,
    shortened,
    width,
)
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted, unread_sentences
from bpfprof.render.labels import printable
from bpfprof.render.library_calls import library_calls_block
from bpfprof.render.lock_orders import deadlock_lines
from bpfprof.render.quality import loss_text, lost_count

Paint = Callable[[str, str], str]  # (name in _COLORS, text) -> the text in that colour

MIN_COLUMNS, MAX_COLUMNS = 60, 140
_MIN_ROWS = 16
# SGR parameters (ECMA-48, 8.3.117) of the 16 colours that every terminal has and its user chose.
_COLORS = {
    "CPU": "33",
    "ready": "35",
    "lock": "36",
    "GIL": "31",
    "disk": "32",
    "network": "32",
    "GPU": "34",
    "spinning": "34",
    "heading": "1",
    "aside": "2",
}
SHARE_NAMES = (
    *(
        "CPU",
        "CPU",
        "ready",
        "GIL",
        "lock",
        "disk",
        "network",
        "device",
        "GPU",
        "spinning",
        "sleep",
        "process",
        "other",
    ),
    *("", "other threads"),
)
_WIDE = 72  # columns; with less there is no room for the time that places were ready
_MAX_UNREAD = 4  # lines
_SMALL, _MAX_BARS = 0.02, 4  # smaller shares, and more of them, are one line
# Places that are more worth than bars; lines beside them: of tables' headings, and of two roles.
_PLACES, _TABLE_LINES = 3, 6


def render_summary(profile: Profile, options: RenderOptions) -> str:
    """For the terminal that the options describe; calls of libraries, if they were counted, come below."""
    lines = summary_lines(profile, options.columns, options.rows, options.has_color)
    calls = library_calls_block(profile, options)
    lines += ["", *calls] if calls else []
    text = "\n".join(lines) + "\n"
    return text.replace("█", "#").replace("·", "-").replace("…", "~") if options.ascii_only else text


def summary_lines(profile: Profile, columns: int, rows: int, color: bool = False) -> list[str]:
    """At most `rows` lines, or 16 where there is less room, of at most `columns`, within 60 and 140."""
    columns = min(max(columns, MIN_COLUMNS), MAX_COLUMNS)
    paint = painted if color else plain
    work = work_of(profile)
    head = [shortened(title_line(profile, columns), columns)]
    if text := loss_text(profile):
        head += [f"{paint('GIL', line)}" for line in textwrap.wrap(f"INCOMPLETE: {text}", columns)[:_MAX_UNREAD]]
    head += [shortened(line, columns) for line in deadlock_lines(profile)]
    if profile.filter_text:
        head.append(shortened(f"only {printable(profile.filter_text[2:])}", columns))
    unread = [line for sentence in unread_sentences(profile) for line in textwrap.wrap(sentence, columns)]
    head += unread if len(unread) <= _MAX_UNREAD else [*unread[: _MAX_UNREAD - 1], "and more: --details"]
    end = quality_lines(profile, columns)
    verdict = _verdict_lines(verdict_of(profile, work), columns, paint)
    working_ns = int(work.share_ns()[:IDLE].sum())
    places = [place for place in places_of(profile, work) if place.own_ns * 1000 >= working_ns]
    for most in range(_MAX_BARS, 1, -1):
        blocks = [verdict, _bars(profile, work, most, columns, paint)]
        room = max(rows, _MIN_ROWS) - 1 - len(head) - len(end) - sum(len(block) + 1 for block in blocks if block)
        if room >= _TABLE_LINES + min(len(places), _PLACES):
            break
    blocks += _tables(profile, roles_of(profile, work), places, columns, room, paint)
    lines = head
    while len(blocks) > 1 and len(head) + len(end) + 1 + sum(len(block) + 1 for block in blocks) > max(rows, _MIN_ROWS):
        blocks.pop()
    for block in (*blocks, end):
        lines = [*lines, "", *block] if block else lines
    return lines


def plain(_name: str, text: str) -> str:
    return text


def painted(name: str, text: str) -> str:
    return f"\x1b[{_COLORS[name]}m{text}\x1b[0m" if name in _COLORS and text else text


def title_line(profile: Profile, columns: int) -> str:
    """`python djapp.py (5220)   5.0 s · 9 threads`."""
    pids = {thread.pid for thread in profile.threads}
    where = f" ({profile.threads[0].pid})" if len(pids) == 1 else ""
    facts = [duration_text(profile.info.duration_ns)]
    facts += [counted(len(pids), "process", "processes")] if len(pids) > 1 else []
    facts.append(counted(len(profile.threads), "thread"))
    after = where + "   " + " · ".join(facts)
    return shortened(command_text(profile) or "all processes", columns - width(after)) + after


def command_text(profile: Profile) -> str:
    """The command line, without the folders of the interpreter and its script."""
    words = [word.rsplit("/", 1)[-1] for word in profile.info.command_line[:2]]
    return printable(" ".join((*words, *profile.info.command_line[2:])))


def _verdict_lines(verdict: Verdict, columns: int, paint: Paint) -> list[str]:
    lines = textwrap.wrap(printable(verdict.sentence), columns - 4)
    lines = [*lines[:3], shortened(" ".join(lines[3:]), columns - 4)] if len(lines) > 4 else lines
    found = [f"  {paint('heading', line)}" for line in lines]
    return found + ([shortened(f"  Try: {printable(verdict.advice)}.", columns)] if verdict.advice else [])


def _bars(profile: Profile, work: Work, most: int, columns: int, paint: Paint) -> list[str]:
    """A bar a share of the working time, the largest first, and what was left out."""
    by_share = work.share_ns().tolist()
    working_ns = sum(by_share[:IDLE])
    if not working_ns:
        return []
    spent: dict[str, int] = {}
    for share, ns in enumerate(by_share[:IDLE]):
        spent[SHARE_NAMES[share]] = spent.get(SHARE_NAMES[share], 0) + ns
    shown = {name: ns for name, ns in spent.items() if ns >= _SMALL * working_ns and name != "other"}
    ordered = sorted(shown.items(), key=lambda item: -item[1])[:most]
    rest_ns = working_ns - sum(ns for _, ns in ordered)
    if rest_ns * 200 >= working_ns:
        ordered.append(("other", rest_ns))
    remarks = {
        "CPU": f"{percent_text(by_share[NATIVE], by_share[PYTHON] + by_share[NATIVE], 0)} native"
        * (by_share[NATIVE] * 50 >= by_share[PYTHON]),
        "ready": "stopped by a CPU limit" if stops_often(profile, work) else "no CPU was free",
        "lock": counted(len(work.locks), "lock"),
        "GPU": _on_cpu(work, GPU, by_share[GPU]),
        "spinning": "CPU time that waits for others",
    }
    lines = []
    room = max(10, columns - 58)
    for name, ns in ordered:
        bar = "█" * max(1, round(room * ns / working_ns))
        line = f"  {name:<9}{paint(name, bar)}{' ' * (room - len(bar))} "
        line += f"{percent_text(ns, working_ns, 0):>5} {seconds_text(ns):>8} s"
        lines.append(f"{line}  {remarks.get(name, '')}".rstrip())
    left_out = [(by_share[IDLE], "idle"), (by_share[HANDED], "behind others")]
    aside = [f"{seconds_text(ns)} s {what}" for ns, what in left_out if ns * 1000 >= working_ns]
    return (
        [*lines, shortened(f"  of {seconds_text(working_ns)} s of working threads; beside {', '.join(aside)}", columns)]
        if aside
        else lines
    )


def _on_cpu(work: Work, share: int, whole_ns: int) -> str:
    """`97% of it on a CPU`: exact CPU time of threads in which they only waited."""
    ns = work.cpu_ns_of(share)
    return f"{percent_text(ns, whole_ns, 0)} of it on a CPU" if ns * 50 >= whole_ns else ""


def _tables(
    profile: Profile, roles: Sequence[Role], places: Sequence[Place], columns: int, room: int, paint: Paint
) -> list[list[str]]:
    """Places and threads, which share the room."""
    # An empty line and a heading for each.
    lines = max(room - 4, 2)
    of_roles = min(len(roles), max(lines - len(places), lines // 2, 2))
    of_places = min(len(places), max(lines - of_roles, 1))
    return [
        _places(profile, places, of_places, columns, paint),
        role_lines(roles, of_roles, columns, paint),
    ]


def _places(profile: Profile, places: Sequence[Place], most: int, columns: int, paint: Paint) -> list[str]:
    if not places:
        return []
    has_ready = columns >= _WIDE
    figures = 7 * (3 + has_ready)
    name = max(14, (columns - 34) * 2 // 5)
    where = max(12, (columns - 34) * 3 // 10)
    mostly = columns - figures - 2 - name - where
    title = "where" if len(places) <= most else f"where ({most} of {len(places):,})"
    heading = (
        f"{title:<{name}} {'':<{where}} {'CPU s':>6}{' ready' * has_ready:>{7 * has_ready}} {'wait':>6} {'total':>6}"
    )
    lines = [paint("heading", f"{heading} mostly")]
    for place in places[:most]:
        frame = profile.frames[place.frame]
        text = padded(cut_left(printable(frame.name) or "(no name)", name), name) + " "
        text += padded(cut_left(printable(file_text(frame)), where), where)
        for ns in (place.cpu_ns, *[place.ready_ns] * has_ready, place.wait_ns, place.total_ns):
            text += f" {short_seconds(ns):>6}"
        lines.append(f"{text} {shortened(', '.join(place_words(profile, place)), mostly)}".rstrip())
    return lines


def place_words(profile: Profile, place: Place) -> list[str]:
    """`lock #1`, `PostgreSQL`: what it spent most of its own time on."""
    words: list[str] = []
    for (share, lock), ns in place.mostly:
        word = f"lock #{lock}" if share == LOCK and lock else SHARE_NAMES[share]
        if share in place.objects and share != LOCK:
            word = printable(short_text(profile.objects[place.objects[share]]))
        if ns * 5 >= place.own_ns and word not in words:
            words.append(word)
    return words


def role_lines(roles: Sequence[Role], most: int, columns: int, paint: Paint) -> list[str]:
    if not roles:
        return []
    name = max(16, (columns - 34) * 2 // 5)
    heading = f"{'threads':<{name}} {'wall s':>7} {'CPU':>5} {'ready':>5} {'wait':>5} {'idle':>5} mostly"
    lines = [paint("heading", shortened(heading, columns))]
    shown = roles if len(roles) <= most else roles[: max(most - 1, 1)]
    has_several = len({role.process_name for role in roles}) > 1
    for role in shown:
        who = f"{role.process_name}: {role.name}" if has_several else role.name
        count = f" ({len(role.threads)})" if len(role.threads) > 1 else ""
        text = padded(shortened(printable(who) or "?", name - len(count)) + count, name)
        text += f" {short_seconds(role.wall_ns):>7}"
        for ns in (role.cpu_ns, role.ready_ns, role.wait_ns, role.idle_ns):
            text += f" {whole_percent(ns, role.wall_ns):>5}"
        lines.append(shortened(f"{text} {mostly_of(role)}", columns).rstrip())
    rest = roles[len(shown) :]
    if rest:
        threads = counted(sum(len(role.threads) for role in rest), "more thread")
        lines.append(shortened(f"and {threads}, {seconds_text(sum(role.cpu_ns for role in rest))} s of CPU", columns))
    return lines


def mostly_of(role: Role) -> str:
    busy_ns = sum(role.shares.values())
    if role.idle_ns >= busy_ns:
        return "idle"
    large = [(share, ns) for share, ns in role.shares.most_common(2) if ns * 10 >= busy_ns]
    words = {SHARE_NAMES[share]: ns for share, ns in reversed(large)}
    return ", ".join(f"{word} {whole_percent(ns, busy_ns)}" for word, ns in reversed([*words.items()]))


def quality_lines(profile: Profile, columns: int) -> list[str]:
    """How much of the truth the recording holds."""
    quality = profile.quality
    wall_ns = sum(thread.wall_ns for thread in profile.threads)
    accounted_ns = sum(thread.accounted_ns for thread in profile.threads)
    stacks = quality.complete_count + sum(quality.truncated_counts.values())
    parts = [f"{percent_text(accounted_ns, wall_ns)} of {duration_text(wall_ns)} wall time accounted for"]
    lost = lost_count(profile)
    parts.append(f"{lost:,} lost" if lost else "what was lost is not known" if quality.unfinished else "none lost")
    parts.append(f"{percent_text(quality.complete_count, stacks)} of stacks complete" if stacks else "no stacks")
    if quality.recording_ns:
        parts.append(f"own CPU {percent_text(quality.own_cpu_ns, quality.recording_ns, 0)}")
    if quality.unfinished:
        parts.insert(0, f"UNFINISHED RECORDING ({printable(quality.unfinished)})")
    return textwrap.wrap("quality: " + "; ".join(parts), columns)[:3]


def whole_percent(part: int, whole: int) -> str:
    return percent_text(part, whole, 0) if part else "-"
