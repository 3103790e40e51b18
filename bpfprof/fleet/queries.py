"""The queries over a data set, each an expression of Ibis that every engine answers with the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bpfprof.fleet.engines import Engine
from bpfprof.fleet.layout import FUNCTIONS, RECORDINGS, STEPS, THREADS, WEIGHTS

Pair = tuple[str, str]  # label, host or date; a date may be FROM..TO, both included
FUNCTION = ("function", "library", "module")  # what is one function in all recordings
SIDE_TIMES = ("cpu", "cpu_total", "wait", "wait_total")
TIMES = ("cpu_ns", "ready_ns", "wait_ns", "cpu_total_ns", "ready_total_ns", "wait_total_ns")
# Waits that no other thread, process or host ends: with time on a CPU and on the run queue they are a group's own time.
OTHERS = ("lock", "file-lock", "net", "pipe", "poll", "child")
SECOND = 1e9
RANK = "rank"
WHY_COUNT = 3  # causes told of each group


def chosen(recordings: Any, pairs: Sequence[Pair]) -> Any:
    """Recordings with all of these."""
    for name, value in pairs:
        if name == "date":
            first, _, last = value.partition("..") if ".." in value else (value, "", value)
            recordings = recordings.filter(recordings.date >= first) if first else recordings
            recordings = recordings.filter(recordings.date <= last) if last else recordings
        else:
            recordings = recordings.filter(_of(recordings, name) == value)
    return recordings


def _of(recordings: Any, name: str) -> Any:
    """The date, the host, or a label, which is missing where there is none."""
    return {"date": recordings.date, "host": recordings.host_name}.get(name, recordings.labels[name])


def top_functions(engine: Engine, where: Sequence[Pair]) -> Any:
    """A row a function: TIMES, and in how many recordings it was seen; most time of its own first."""
    recordings = chosen(engine.table(RECORDINGS), where).select("recording")
    rows = engine.table(FUNCTIONS).join(recordings, "recording", how="semi")
    sums = {name: rows[name].sum() for name in TIMES}
    found = rows.group_by(FUNCTION).aggregate(**sums, recordings=rows.recording.nunique())
    return found.mutate(own_ns=found.cpu_ns + found.ready_ns + found.wait_ns)


def totals(engine: Engine, where: Sequence[Pair]) -> Any:
    """One row: how many recordings there are, their seconds, and the nanoseconds of their threads."""
    recordings = chosen(engine.table(RECORDINGS), where)
    sums = {name: recordings[name].sum() for name in ("duration_ns", "cpu_ns", "ready_ns", "wait_ns", "idle_ns")}
    return recordings.aggregate(recordings=recordings.count(), hosts=recordings.host_name.nunique(), **sums)


def sides(engine: Engine, before: Sequence[Pair], after: Sequence[Pair]) -> Any:
    """A row a recording: side 0 or 1, and its seconds of work; one that is of both is there twice."""
    import ibis

    recordings = engine.table(RECORDINGS)
    recordings = recordings.mutate(work_s=_work_s(recordings))
    both = [
        chosen(recordings, pairs).select("recording", "work_s", side=ibis.literal(side, "int64"))
        for side, pairs in enumerate((before, after))
    ]
    return ibis.union(*both)


def side_totals(recordings: Any) -> Any:
    """Of sides() a row each: recordings, their seconds of work, and the sum of the squares of these."""
    squares = recordings.work_s * recordings.work_s
    return recordings.group_by("side").aggregate(
        recordings=recordings.count(), work_s=recordings.work_s.sum(), work_s2=squares.sum()
    )


def side_functions(engine: Engine, recordings: Any, most: int) -> Any:
    """A row a (function, side of sides()), of the `most` functions with most time; functions: how many there are.

    For each of SIDE_TIMES, seconds in a recording, the sum x, that of its squares xx, and that of its products with the
    recording's seconds of work xw.
    """
    import ibis

    rows = engine.table(FUNCTIONS)
    times = {name: rows[f"{name}_ns"].sum() / SECOND for name in SIDE_TIMES}
    rows = rows.group_by(("recording", *FUNCTION)).aggregate(**times).join(recordings, "recording")
    sums = {}
    for name in SIDE_TIMES:
        column = rows[name]
        sums[f"{name}_x"] = column.sum()
        sums[f"{name}_xx"] = (column * column).sum()
        sums[f"{name}_xw"] = (column * rows.work_s).sum()
    rows = rows.group_by((*FUNCTION, "side")).aggregate(**sums)
    of_function = ibis.window(group_by=FUNCTION)
    rows = rows.mutate(all_s=(rows.cpu_total_x + rows.wait_total_x).sum().over(of_function).round(6))
    order = [rows.all_s.desc(), *(rows[name] for name in FUNCTION)]
    rows = rows.mutate(place=ibis.dense_rank().over(order_by=order))
    rows = rows.mutate(functions=rows.place.max().over(ibis.window()) + 1)
    return rows.filter(rows.place < most).order_by(["place", "side"])


def _work_s(recordings: Any) -> Any:
    """As `diff` has it: on a CPU and in waits that are not idle."""
    return (recordings.cpu_ns + recordings.wait_ns) / SECOND


def waits_over_time(engine: Engine, where: Sequence[Pair], every_s: int) -> Any:
    """A row a (time, reason): nanoseconds of waits that are not idle, and in how many recordings.

    began: the begin of the time, seconds since 1970, a multiple of every_s, itself of 60. reason: `ready` of the run
    queue.
    """
    rows = _work(engine, where)
    rows = rows.filter(rows.state.isin(("ready", "wait")))
    began = rows.minute.epoch_seconds()
    rows = rows.mutate(
        began=(began - began % every_s).cast("int64"), reason=(rows.state == "ready").ifelse("ready", rows.reason)
    )
    return rows.group_by(("began", "reason")).aggregate(ns=rows.ns.sum(), recordings=rows.recording.nunique())


def worked_over_time(engine: Engine, where: Sequence[Pair], every_s: int) -> Any:
    """A row a time: nanoseconds of work and waits in it, of how many recordings."""
    rows = _work(engine, where)
    began = rows.minute.epoch_seconds()
    rows = rows.mutate(began=(began - began % every_s).cast("int64"))
    return rows.group_by("began").aggregate(ns=rows.ns.sum(), recordings=rows.recording.nunique())


def _work(engine: Engine, where: Sequence[Pair]) -> Any:
    """Weights that are not idle."""
    recordings = chosen(engine.table(RECORDINGS), where).select("recording")
    rows = engine.table(WEIGHTS)
    return rows.filter(~rows.idle & (rows.state != "unknown")).join(recordings, "recording", how="semi")


def _parts(engine: Engine, where: Sequence[Pair], by: str) -> Any:
    """A row a (recording, group): of_rank where the group has of it only a rank, null: all of it; and its duration_ns.

    A recording without a label `rank` is in the groups of all ranks that its processes were started with.
    """
    import ibis

    recordings = chosen(engine.table(RECORDINGS), where)
    recordings = recordings.mutate(group=_of(recordings, by)).select("recording", "group", "duration_ns")
    labelled = recordings.filter(recordings.group.notnull()).mutate(of_rank=ibis.null("string"))
    if by != RANK:
        return labelled
    threads = engine.table(THREADS)
    ranks = threads.filter(threads.rank.notnull()).select("recording", of_rank=threads.rank).distinct()
    others = recordings.filter(recordings.group.isnull()).select("recording", "duration_ns").join(ranks, "recording")
    others = others.select("recording", "duration_ns", "of_rank", group=others.of_rank)
    return ibis.union(labelled.select(*others.columns), others)


def _in_groups(rows: Any, parts: Any) -> Any:
    """Rows of recordings in the groups of _parts() that they are in."""
    rows = rows.join(parts.select("recording", "group", "of_rank"), "recording")
    return rows.filter(rows.of_rank.isnull() | (rows.of_rank == rows.rank)) if RANK in rows.columns else rows


def slowest(engine: Engine, where: Sequence[Pair], by: str, sort: str, most: int) -> Any:
    """WHY_COUNT rows or fewer of each of the `most` slowest groups: what they did more of than the mean of the others.

    by: host, date or a label. sort: `own` or `work`, both for each second recorded. own: time on a CPU, on the run
    queue and in waits that nobody else ends; work: in all waits that are not idle, too. A row is a (reason, function).
    """
    parts = _parts(engine, where, by)
    groups = parts.group_by("group").aggregate(
        recordings=parts.recording.nunique(), seconds=parts.duration_ns.sum() / SECOND
    )
    groups = groups.filter(groups.seconds > 0)
    rows = engine.table(WEIGHTS)
    rows = rows.filter(~rows.idle & (rows.state != "unknown"))
    rows = rows.mutate(reason=(rows.state == "wait").ifelse(rows.reason, rows.state))
    keys = ("recording", *(() if by != RANK else (RANK,)), "reason", *FUNCTION)
    rows = _in_groups(rows.group_by(keys).aggregate(ns=rows.ns.sum()), parts)
    rows = rows.group_by(("group", "reason", *FUNCTION)).aggregate(ns=rows.ns.sum())
    rows = rows.join(groups, "group")
    rows = rows.mutate(is_own=~rows.reason.isin(OTHERS), rate=rows.ns / SECOND / rows.seconds)
    return _ranked(rows, sort, most)


def _ranked(rows: Any, sort: str, most: int) -> Any:
    import ibis

    scores = rows.group_by("group").aggregate(
        work=rows.rate.sum(), own=rows.is_own.ifelse(rows.rate, ibis.literal(0.0, "float64")).sum()
    )
    scores = scores.mutate(score=scores[sort].round(9))  # sums of the same in another order are not quite the same
    scores = scores.mutate(
        place=ibis.row_number().over(order_by=[scores.score.desc(), scores.group]), groups=scores.count().over()
    )
    alike = ibis.window(group_by=("reason", *FUNCTION))
    others = rows.rate.sum().over(alike) - rows.rate
    rows = rows.mutate(others=others).join(scores, "group")
    rows = rows.mutate(others=rows.others / ibis.greatest(rows.groups - 1, 1))
    rows = rows.mutate(more=(rows.rate - rows.others).round(9))
    if sort == "own":
        rows = rows.filter(rows.is_own)
    order = [rows.more.desc(), rows.reason, *(rows[name] for name in FUNCTION)]
    rows = rows.mutate(why=ibis.row_number().over(group_by="group", order_by=order))
    rows = rows.filter((rows.why < WHY_COUNT) & (rows.place < most))
    columns = ("place", "groups", "group", "recordings", "seconds", "own", "work", "why")
    return rows.select(*columns, "reason", *FUNCTION, "rate", "others", "more").order_by(["place", "why"])


def slowest_steps(engine: Engine, where: Sequence[Pair], by: str, most: int) -> Any:
    """WHY_COUNT rows or fewer of each of the `most` groups whose steps take longest: phases that take longer than in
    the mean of the others. Seconds of a step; by: as in slowest().
    """
    import ibis

    steps = _in_groups(engine.table(STEPS), _parts(engine, where, by))
    steps = steps.select("group", "recording", "duration_ns", "phases")
    groups = steps.group_by("group").aggregate(
        steps=steps.count(),
        with_steps=steps.recording.nunique(),
        step=(steps.duration_ns.mean() / SECOND).round(9),
    )
    groups = groups.mutate(
        place=ibis.row_number().over(order_by=[groups.step.desc(), groups.group]), groups=groups.count().over()
    )
    rows = steps.mutate(phase=steps.phases.keys().unnest())
    rows = rows.mutate(ns=rows.phases.get(rows.phase, ibis.literal(0, "int64")))
    rows = rows.group_by(("group", "phase")).aggregate(ns=rows.ns.sum()).join(groups, "group")
    rows = rows.mutate(mean=rows.ns / SECOND / rows.steps)
    others = rows.mean.sum().over(ibis.window(group_by="phase")) - rows.mean
    rows = rows.mutate(others=others / ibis.greatest(rows.groups - 1, 1))
    rows = rows.mutate(more=(rows.mean - rows.others).round(9))
    rows = rows.mutate(why=ibis.row_number().over(group_by="group", order_by=[rows.more.desc(), rows.phase]))
    rows = rows.filter((rows.why < WHY_COUNT) & (rows.place < most))
    columns = ("place", "groups", "group", "with_steps", "steps", "step", "why", "phase", "mean", "others", "more")
    return rows.select(*columns).order_by(["place", "why"])
