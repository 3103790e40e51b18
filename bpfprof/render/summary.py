"""Profile with its spans -> what a person sees first: the answer, then the evidence, on one screen of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from bpfprof.known.services import short_text
from bpfprof.model.profile import Profile
from bpfprof.model.states import ThreadState
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.answer.whole import Whole
from bpfprof.query.tables.merging import short_processes
from bpfprof.query.threads.cpu_throttles import stops_often
from bpfprof.query.threads.roles import Role, roles_of
from bpfprof.query.work.places import Place, file_text, places_of
from bpfprof.query.work.shares import GPU, LOCK, NATIVE, PYTHON, READY, SHARE_NAMES, SHARE_OF_WORD
from bpfprof.query.work.table import work_of
from bpfprof.render.columns import (
    duration_text,
    middle_cut,
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
_MIN_ROWS = 10
_COLORS = {**{share.name: share.color for share in SHARE_OF_WORD.values() if share.color}, "heading": "1", "aside": "2"}
_MAX_UNREAD = 4  # lines
_SMALL = 0.02  # of the whole: smaller shares are one
_MIN_BAR = 3  # columns
_PLACES, _ROLES = 5, 4  # lines: so many go before empty lines
_NAMED_ROLES, _ROLE_COLUMNS = 2, 24  # of those that count
_MIN_MOSTLY = 12  # columns


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
    verdict = verdict_of(profile, work)
    whole = verdict.whole
    head.append("")
    head += _verdict_lines(verdict, columns, paint)
    shares = share_line(whole.share_ns(), _remarks(profile, whole), columns - 2, paint)
    evidence = [f"  {shares}", f"  {whole_text(whole, columns - 2)}"] if shares else []
    end = quality_lines(profile, columns)
    places = [each for each in places_of(profile, work, whole.working, verdict.place) if each.own_ns * 1000 >= whole.ns]
    count = {thread for role in whole.roles for thread in role.threads}
    roles = sorted(roles_of(profile, work), key=lambda role: not {*role.threads} & count)
    room = max(rows, _MIN_ROWS) - len(head) - len(end)
    return _arranged(profile, [head, evidence], places, roles, end, room, columns, paint)


def _arranged(
    profile: Profile,
    above: list[list[str]],
    places: Sequence[Place],
    roles: Sequence[Role],
    end: list[str],
    room: int,
    columns: int,
    paint: Paint,
) -> list[str]:
    """The screen, with as many places and roles as it has room for beside `above` and `end`, and empty lines if it has.

    room: lines without the first of `above` and `end`.
    """
    head, evidence = above
    if room < len(evidence) + 2:
        return [*head, *end]
    room -= len(evidence)
    roles = roles if room >= 4 or not places else []
    tables = bool(places) + bool(roles)
    wanted = min(len(places), _PLACES) + min(len(roles), _ROLES) + tables
    gaps = min(max(room - wanted, 0), tables + 1 + bool(evidence))
    lines = max(room - gaps - tables, 0)
    of_roles = min(len(roles), max(_ROLES, lines // 2, lines - len(places)))
    of_roles = min(len(roles), max(min(of_roles, lines - min(len(places), _PLACES)), 1))
    of_places = min(len(places), max(lines - of_roles, 0))
    blocks = [evidence, place_lines(profile, places, of_places, columns, paint)]
    blocks += [role_lines(roles, of_roles, columns, paint), end]
    found = head
    # The one before the quality line goes last, that between sentence and shares first.
    for number, block in enumerate(block for block in blocks if block):
        is_gap = len(blocks) - number <= gaps
        found = [*found, *[""] * is_gap, *block]
    return found


def plain(_name: str, text: str) -> str:
    return text


def painted(name: str, text: str) -> str:
    return f"\x1b[{_COLORS[name]}m{text}\x1b[0m" if name in _COLORS and text else text


def title_line(profile: Profile, columns: int) -> str:
    """`python djapp.py (5220)   5.0 s · 9 threads`; `1 process and 39 short ones`, whose threads do not count."""
    short = short_processes(profile.threads)
    threads = [thread for thread in profile.threads if thread.pid not in short]
    pids = {thread.pid for thread in threads}
    where = f" ({threads[0].pid})" if len(pids) == 1 else ""
    facts = [duration_text(profile.info.duration_ns)]
    processes = counted(len(pids), "process", "processes") + f" and {len(short):,} short ones" * bool(short)
    facts += [processes] if len(pids) > 1 or short else []
    facts.append(counted(len(threads), "thread"))
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


def share_line(share_ns: Sequence[int], remarks: dict[str, str], columns: int, paint: Paint) -> str:
    """`CPU ██████ 55% (89% native)  ready ███ 30%  idle 10%`: parts of all of them, the largest first; "" of nothing.

    share_ns: for each of SHARES, then idle, then waits for others. Small ones are one; what is no work has no bar.
    Remarks, by the name of a share, stand where there is room.
    """
    whole_ns = sum(share_ns)
    spent: dict[str, int] = {}
    for name, ns in zip(SHARE_NAMES, share_ns):
        large = name if ns >= _SMALL * whole_ns or name == "CPU" else "other"
        spent[large] = spent.get(large, 0) + ns
    if not whole_ns:
        return ""
    texts = _share_texts(spent, whole_ns)
    while sum(width(f"{name} {text}") + 2 for name, text in texts.items()) - 2 > columns and len(texts) > 2:
        least = min((name for name in texts if name != "other"), key=spent.__getitem__)
        spent["other"] = spent.get("other", 0) + spent.pop(least)
        texts = _share_texts(spent, whole_ns)
    used = sum(width(f"{name} {text}") + 2 for name, text in texts.items())
    barred = [name for name in texts if name not in ("idle", "other")]
    for name in barred:
        remark = f" ({remarks.get(name, '')})"
        if remarks.get(name) and used + width(remark) + (_MIN_BAR + 1) * len(barred) <= columns:
            texts[name] += remark
            used += width(remark)
    room = columns - used + 2 - len(barred)
    if room < len(barred) * _MIN_BAR:
        return shortened("  ".join(f"{name} {text}" for name, text in texts.items()), columns)
    bars = {name: "█" * max(int(room * spent[name] / whole_ns), 1) for name in barred}
    return "  ".join(
        f"{name} {paint(name, bars[name])} {text}" if name in bars else f"{name} {text}" for name, text in texts.items()
    )


def _share_texts(spent: dict[str, int], whole_ns: int) -> dict[str, str]:
    """For each that is not next to nothing its part, the largest first; what is no work, and what is small, last."""
    names = sorted(spent, key=lambda name: (name in ("idle", "other"), -spent[name]))
    return {name: percent_text(spent[name], whole_ns, 0) for name in names if spent[name] * 200 >= whole_ns}


def _remarks(profile: Profile, whole: Whole) -> dict[str, str]:
    spent = whole.share_ns()
    cpu_ns = spent[PYTHON] + spent[NATIVE]
    locks = {int(each) for each in whole.rows["lock"][whole.rows["share"] == LOCK].tolist()} - {0}
    return {
        "CPU": f"{percent_text(spent[NATIVE], cpu_ns, 0)} native" * (spent[NATIVE] * 50 >= spent[PYTHON]),
        "ready": "stopped by a CPU limit" if stops_often(profile, whole.work) else "no CPU was free",
        "lock": counted(len(locks), "lock") * bool(locks),
        "GPU": _on_cpu(whole, GPU, spent[GPU]),
    }


def _on_cpu(whole: Whole, share: int, share_ns: int) -> str:
    """`97% on a CPU`: exact CPU time of threads in which they only waited."""
    is_it = (whole.rows["share"] == share) & (whole.rows["state"] == ThreadState.ON_CPU)
    ns = int(whole.rows["ns"][is_it].sum())
    return f"{percent_text(ns, share_ns, 0)} on a CPU" if ns * 50 >= share_ns and ns else ""


def whole_text(whole: Whole, columns: int = MAX_COLUMNS) -> str:
    """`of 40.1 s of waitress-0..7 (8); left out: MainThread (waits for others), 15 idle`, as much as has room."""
    names: dict[str, int] = {}
    for role in whole.roles:
        name = shortened(printable(role.name) or "?", _ROLE_COLUMNS)
        names[name] = names.get(name, 0) + len(role.threads)
    texts = [f"{name} ({count})" if count > 1 else name for name, count in names.items()]
    rest = sum([*names.values()][_NAMED_ROLES:])
    who = ", ".join(texts[:_NAMED_ROLES]) + f" and {rest} more" * bool(rest)
    text = shortened(f"of {seconds_text(whole.ns)} s of {who or 'all threads'}", columns)
    small, idle = _thread_count(whole.small), _thread_count(whole.idle)
    left_out = [f"{seconds_text(whole.handed_ns)} s for one another"] if whole.handed_ns * 100 > whole.ns else []
    left_out += [text for is_awaited in (False, True) for text in _waiting(whole, is_awaited)]
    left_out += [f"{small} with little work"] if small else []
    left_out += [f"{idle} idle"] if idle else []
    before = "; left out: "
    for part in left_out:
        if width(text + before + part) <= columns:
            text, before = text + before + part, ", "
    return text


def _waiting(whole: Whole, are_awaited: bool) -> list[str]:
    """`MainThread (waits for others)`, `4 that others wait for`"""
    roles = [role for role in whole.waiting if role.is_awaited == are_awaited]
    count = _thread_count(roles)
    if len(roles) == 1:
        said = f"others wait for {'it' if count == 1 else 'them'}" if are_awaited else "waits for others"
        return [f"{''.join(_role_name(roles[0], False))} ({said})"]
    return [f"{count} that {'others wait for' if are_awaited else 'wait for others'}"] if roles else []


def _thread_count(roles: Sequence[Role]) -> int:
    return sum(len(role.threads) for role in roles)


def place_lines(profile: Profile, places: Sequence[Place], most: int, columns: int, paint: Paint) -> list[str]:
    """A heading and at most so many of them; names are cut only where the terminal is too narrow for them."""
    shown = places[:most]
    if not shown:
        return []
    names = [_place_names(profile, place) for place in shown]
    # A time that none of them has takes no room, and names go before totals.
    has_ready = any(place.ready_ns * 20 >= place.own_ns for place in shown)
    words = [", ".join(place_words(profile, place)) for place in shown]
    title = "where" if len(places) <= most else f"where ({most} of {len(places):,})"
    least = min(max(map(width, [*words, "mostly"])), _MIN_MOSTLY)
    room = columns - 7 * (3 + has_ready) - 2 - least
    has_total = sum(name_columns([(title, ""), *names], columns)) <= room
    room += 7 * (not has_total)
    name, where = name_columns([(title, ""), *names], room)
    mostly = least + room - name - where
    heading = f"{title:<{name}} {'':<{where}} {'CPU s':>6}"
    heading += "".join(f"{each:>7}" for each in [*["ready"] * has_ready, "wait", *["total"] * has_total])
    lines = [paint("heading", f"{heading} mostly")]
    for place, (of_it, at), word in zip(shown, names, words):
        text = padded(shortened(of_it, name), name) + " " + padded(middle_cut(at, where), where)
        for ns in (place.cpu_ns, *[place.ready_ns] * has_ready, place.wait_ns, *[place.total_ns] * has_total):
            text += f" {short_seconds(ns):>6}"
        lines.append(f"{text} {shortened(word, mostly)}".rstrip())
    return lines


def name_columns(names: Sequence[tuple[str, str]], room: int) -> tuple[int, int]:
    """Columns of functions and of files; where there is no room for all of them, files have 40% of it at least."""
    name, where = (max(map(width, column)) for column in zip(*names))
    if name + where > room:
        where = min(where, max(room - name, room * 2 // 5))
        name = room - where
    return name, where


def _place_names(profile: Profile, place: Place) -> tuple[str, str]:
    """(function, file and line); of a function without a name what is known of it."""
    frame = profile.frames[place.frame]
    where = printable(file_text(frame))
    return (printable(frame.name), where) if frame.name else (where or "?", "(no names)")


def place_words(profile: Profile, place: Place) -> list[str]:
    """`lock #1`, `PostgreSQL`: what it spent most of its own time on; `locks` of many of them."""
    of_share: dict[int, int] = {}
    for (share, _), ns in place.mostly:
        of_share[share] = of_share.get(share, 0) + ns
    words: dict[str, None] = {}
    for (share, lock), ns in place.mostly:
        word = f"lock #{lock}" if share == LOCK and lock else SHARE_NAMES[share]
        if share in place.objects and share != LOCK:
            word = printable(short_text(profile.objects[place.objects[share]]))
        if ns * 5 >= place.own_ns:
            words[word] = None
        elif share == LOCK and of_share[share] * 5 >= place.own_ns:
            words["locks"] = None
    return [*words]


def role_lines(roles: Sequence[Role], most: int, columns: int, paint: Paint) -> list[str]:
    """A heading and at most so many lines; the last may be of all that had no room."""
    if not roles or most < 1:
        return []
    shown = roles if len(roles) <= most else roles[: max(most - 1, 1)]
    has_several = len({role.process_name for role in roles}) > 1
    names = [_role_name(role, has_several) for role in shown]
    words = [mostly_of(role) for role in shown]
    room = columns - 33 - min(max(map(width, [*words, "mostly"])), 24)
    name = min(max(map(width, ["threads", *(name + count for name, count in names)])), max(room, 12))
    heading = f"{'threads':<{name}} {'wall s':>7} {'CPU':>5} {'ready':>5} {'wait':>5} {'idle':>5} mostly"
    lines = [paint("heading", shortened(heading, columns))]
    for role, (who, count), word in zip(shown, names, words):
        text = padded(shortened(who, name - len(count)) + count, name) + f" {short_seconds(role.wall_ns):>7}"
        for ns in (role.cpu_ns, role.ready_ns, role.wait_ns, role.idle_ns):
            text += f" {whole_percent(ns, role.wall_ns):>5}"
        lines.append(shortened(f"{text} {word}", columns).rstrip())
    if (rest := roles[len(shown) :]) and len(shown) < most:
        threads = counted(_thread_count(rest), "more thread")
        lines.append(shortened(f"and {threads}, {seconds_text(sum(role.cpu_ns for role in rest))} s of CPU", columns))
    return lines


def _role_name(role: Role, has_several: bool) -> tuple[str, str]:
    """(with the process where there are several, ` (8)` for so many threads)"""
    name = printable(f"{role.process_name}: {role.name}" if has_several else role.name) or "?"
    return name, f" ({len(role.threads)})" if len(role.threads) > 1 else ""


def mostly_of(role: Role) -> str:
    """`lock 68%, CPU 8%`: parts of all of its time."""
    busy_ns = sum(role.shares.values())
    if role.idle_ns >= busy_ns:
        return "idle"
    spent: dict[str, int] = {}
    shares = {PYTHON: role.cpu_ns, READY: role.ready_ns} if role.is_awaited else role.shares
    for share, ns in shares.items():
        spent[SHARE_NAMES[share]] = spent.get(SHARE_NAMES[share], 0) + ns
    large = sorted(spent.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{word} {whole_percent(ns, role.wall_ns)}" for word, ns in large if ns * 10 >= busy_ns)


def quality_lines(profile: Profile, columns: int) -> list[str]:
    """How much of the truth the recording holds."""
    quality = profile.quality
    wall_ns = sum(thread.wall_ns for thread in profile.threads)
    accounted_ns = sum(thread.accounted_ns for thread in profile.threads)
    stacks = quality.complete_count + sum(quality.truncated_counts.values())
    accounted = f"{percent_text(accounted_ns, wall_ns)} of {duration_text(wall_ns)}"
    lost, whole = lost_count(profile), percent_text(quality.complete_count, stacks)
    first = [f"UNFINISHED RECORDING ({printable(quality.unfinished)})"] if quality.unfinished else []
    losses = f"{lost:,} lost" if lost else "what was lost is not known" if quality.unfinished else "none lost"
    last = []
    if quality.recording_ns:
        last = [f"own CPU {percent_text(quality.own_cpu_ns, quality.recording_ns, 0)}"]
    for of_time, of_stacks in (
        (" wall time accounted for", "{} of stacks complete"),
        (" accounted", "{} of stacks complete"),
        (" accounted", "stacks {}"),
    ):
        parts = [*first, accounted + of_time, losses, of_stacks.format(whole) if stacks else "no stacks", *last]
        text = "quality: " + "; ".join(parts)
        if width(text) <= columns:
            break
    return textwrap.wrap(text, columns)[:3]


def whole_percent(part: int, whole: int) -> str:
    return percent_text(part, whole, 0) if part else "-"
