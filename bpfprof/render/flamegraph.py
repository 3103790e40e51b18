"""Profile -> one flame graph, an SVG: the time of all threads, CPU and waits side by side (svg.py).

With the profile's spans it begins with what bounds the program, has one place for many threads of a role, and can leave
out the time of threads that had nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.tables.merging import MANY, merged_threads, with_merged_threads
from bpfprof.query.work.table import Work, work_of, worked_weights
from bpfprof.render.call_tree import Bools, build_call_tree
from bpfprof.render.formats import RenderOptions
from bpfprof.render.frame_look import are_plumbing, looks_of
from bpfprof.render.header import command_text, recording_facts, unread_sentences
from bpfprof.render.labels import printable
from bpfprof.render.lock_orders import deadlock_lines
from bpfprof.render.named_locks import with_named_locks
from bpfprof.render.quality import quality_line
from bpfprof.render.summary import command_text as short_command
from bpfprof.render.svg import Picture, render_svg

_COLUMNS = ("cpu", "wait", "idle", "samples", "intervals")


def render_flamegraph(profile: Profile, options: RenderOptions) -> str:
    """A complete SVG document. Time is wall time of all threads."""
    # Stacks that go on with those of other threads say nothing of what this one did.
    is_continued = any(frame.kind == FrameKind.WOKEN_BY for frame in profile.frames)
    work = work_of(profile) if profile.spans is not None and not is_continued else None
    sentence = " ".join([*deadlock_lines(profile), verdict_of(profile, work).sentence]) if work else ""
    drawn, idle_rows = _threads(profile, work, options)
    tree = build_call_tree(drawn, options, idle_rows)
    frames = [label.frame for label in tree.texts]
    title = printable(options.title) or printable(short_command(profile)) or "Flame graph of CPU and waits"
    return render_svg(
        Picture(tree, _COLUMNS, "times", looks_of(frames), are_plumbing(frames), title, sentence, _about(profile))
    )


def _threads(profile: Profile, work: Work | None, options: RenderOptions) -> tuple[Profile, Bools | None]:
    """(the profile of the threads that are drawn, which of its weights are idle)."""
    if work is None:
        return with_merged_threads(profile, options.merge), None
    drawn = with_named_locks(profile, work, options)
    weights, idle_rows = worked_weights(drawn, work)
    threads = merged_threads(profile, work, options.merge or ("role" if len(profile.threads) > MANY else "none"))
    weights["thread"] = threads.group_of[weights["thread"]] if len(weights) else 0
    return replace(drawn, threads=threads.threads, weights=weights, spans=None), idle_rows


def _about(profile: Profile) -> list[str]:
    """What was recorded, when, where and how well."""
    filters = [f"only {printable(profile.filter_text[2:])}"] if profile.filter_text else []
    command = command_text(profile)
    facts = " · ".join(recording_facts(profile))
    return [*[command][: bool(command)], facts, *filters, *unread_sentences(profile), quality_line(profile)]
