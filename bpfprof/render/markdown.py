"""Profile with its spans -> Markdown (CommonMark with GitHub's tables), for a pull request or the page of a build."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bpfprof.model.profile import Profile
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.answer.whole import Whole
from bpfprof.query.threads.roles import roles_of
from bpfprof.query.work.places import file_text, places_of
from bpfprof.query.work.shares import SHARE_NAMES
from bpfprof.query.work.table import Work, work_of
from bpfprof.render.columns import percent_text, seconds_text
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import recording_facts, unread_sentences
from bpfprof.render.labels import printable
from bpfprof.render.lock_orders import deadlock_lines
from bpfprof.render.quality import quality_line
from bpfprof.render.summary import command_text, mostly_of, place_words, whole_text

# What begins anything in Markdown, HTML or what GitHub makes of texts: links, mentions, emoji, formulas.
_ACTS = re.compile(r"[!#$&*<>@\[\\\]^_`{|}~]|:(?=\S)|(?<=\bwww)\.")
_BREAKS_CODE = re.compile(r"[`|\\]")


def render_markdown(profile: Profile, options: RenderOptions) -> str:
    """Verdict, shares, places, threads, quality. Names are code, so nothing in them acts."""
    work = work_of(profile)
    title = printable(options.title) or command_text(profile) or "all processes"
    verdict = verdict_of(profile, work)
    blocks = [f"## bpfprof: {_code(title)}", _text(", ".join(recording_facts(profile)))]
    blocks += [_text(f"only {profile.filter_text[2:]}")] if profile.filter_text else []
    blocks += [f"**{_text(line)}**" for line in (*deadlock_lines(profile), verdict.sentence)]
    blocks += [_text(f"Try: {verdict.advice}.")] if verdict.advice else []
    blocks += [_text(sentence) for sentence in unread_sentences(profile)]
    blocks += [
        _shares(verdict.whole),
        _places(profile, work, verdict, options.most),
        _threads(profile, work, options.most),
    ]
    blocks.append(f"<sub>{_text(quality_line(profile))}</sub>")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _shares(whole: Whole) -> str:
    spent: dict[str, int] = {}
    for name, ns in zip(SHARE_NAMES, whole.share_ns()):
        spent[name] = spent.get(name, 0) + ns
    ordered = sorted(((name, ns) for name, ns in spent.items() if ns), key=lambda item: (item[0] == "idle", -item[1]))
    rows = [(_text(name), percent_text(ns, whole.ns, 0), seconds_text(ns)) for name, ns in ordered]
    return _table(("time of threads", "-share", "-s"), rows) + f"\n\n{_text(whole_text(whole))}" * bool(rows)


def _places(profile: Profile, work: Work, verdict: Verdict, most: int) -> str:
    rows = []
    for place in places_of(profile, work, verdict.whole.working, verdict.place)[:most]:
        frame = profile.frames[place.frame]
        times = [seconds_text(ns) for ns in (place.cpu_ns, place.ready_ns, place.wait_ns, place.total_ns)]
        mostly = _text(", ".join(place_words(profile, place)))
        rows.append((_code(printable(frame.name) or "(no name)"), _code(printable(file_text(frame))), *times, mostly))
    return _table(("where", "", "-CPU s", "-ready s", "-wait s", "-total s", "mostly"), rows)


def _threads(profile: Profile, work: Work, most: int) -> str:
    roles = roles_of(profile, work)
    has_several = len({role.process_name for role in roles}) > 1
    rows = []
    for role in roles[:most]:
        who = f"{role.process_name}: {role.name}" if has_several else role.name
        count = f" ({len(role.threads)})" * (len(role.threads) > 1)
        parts = (role.cpu_ns, role.ready_ns, role.wait_ns, role.idle_ns)
        shares = [percent_text(ns, role.wall_ns, 0) if ns else "" for ns in parts]
        rows.append((_code(printable(who) or "?") + count, seconds_text(role.wall_ns), *shares, _text(mostly_of(role))))
    table = _table(("threads", "-wall s", "-CPU", "-ready", "-wait", "-idle", "mostly"), rows)
    rest = sum(len(role.threads) for role in roles[most:])
    return table + f"\n\nand {rest:,} more" * bool(rest)


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading that begins with - is of a column of numbers. "" without rows."""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    if not lines:
        return ""
    head = "| " + " | ".join(name.removeprefix("-") for name in heading) + " |"
    rule = "|" + "|".join("---:" if name.startswith("-") else "---" for name in heading) + "|"
    return "\n".join([head, rule, *lines])


def _text(text: str) -> str:
    """In which nothing acts (CommonMark 0.31.2, sections 2.4 and 2.5); a cell ends at any other | or one after \\."""
    return _ACTS.sub(lambda found: f"&#{ord(found[0])};" if found[0] in "|\\" else f"\\{found[0]}", printable(text))


def _code(text: str) -> str:
    """As code, in a cell too; what cannot stand between backticks there is HTML."""
    return f"<code>{_text(text)}</code>" if _BREAKS_CODE.search(text) else f"`{text}`"
