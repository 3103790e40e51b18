"""Answers over a data set -> tables for a terminal."""

from __future__ import annotations

from typing import Any

from bpfprof.fleet.answers import STEP
from bpfprof.render.columns import COLUMNS, duration_text, padded, percent_text, seconds_text, shortened
from bpfprof.render.header import counted
from bpfprof.render.labels import reason_label

Answer = dict[str, Any]
_REASON, _GROUP = 14, 20  # columns


def top_lines(answer: Answer) -> list[str]:
    """Functions, with their part of all work."""
    work = answer["cpu_s"] + answer["ready_s"] + answer["wait_s"]
    lines = [
        _head(answer),
        "",
        f"{'CPU own':>9} {'total s':>9} {'ready s':>9} {'wait own':>9} {'total s':>9} {'share':>6} {'in':>6}  function",
    ]
    for row in answer["rows"]:
        times = (row[name] for name in ("cpu_s", "cpu_total_s", "ready_s", "wait_s", "wait_total_s"))
        own = row["cpu_s"] + row["ready_s"] + row["wait_s"]
        figures = " ".join([f"{_text(time):>9}" for time in times])
        figures += f" {_percent(own, work):>6} {row['recordings']:>6,}"
        lines.append(shortened(f"{figures}  {_function(row)}", COLUMNS))
    return [*lines, "", "share: of work, by own time; in: so many recordings; waits for work left out"]


def waits_lines(answer: Answer) -> list[str]:
    """Times one after the other, each with its reasons."""
    lines = [
        _head(answer),
        "",
        f"{'from (UTC)':<16} {'reason':<{_REASON}} {'wait s':>11} {'of work':>8} {'in':>6} {'of':>6} recordings",
    ]
    before = ""
    for row in answer["rows"]:
        began = row["began"][:16].replace("T", " ")
        share = _percent(row["wait_s"], row["work_s"])
        reason = padded(shortened(reason_label(row["reason"]), _REASON), _REASON)
        figures = f"{_text(row['wait_s']):>11} {share:>8} {row['recordings']:>6,} {row['of_recordings']:>6,}"
        lines.append(f"{began if began != before else '':<16} {reason} {figures}")
        before = began
    return lines


def slow_lines(answer: Answer) -> list[str]:
    """Groups, each with what it does more of."""
    by, rows = answer["by"], answer["rows"]
    if answer["sort"] == STEP:
        return _step_lines(answer)
    lines = [
        _head(answer),
        "",
        f"{padded(by, _GROUP)} {'recordings':>10} {'recorded s':>10} {'own s/s':>9} {'work s/s':>9}",
    ]
    for row in rows:
        name = padded(shortened(row[by], _GROUP), _GROUP)
        figures = f"{row['recordings']:>10,} {_text(row['recorded_s']):>10} {row['own']:>9.4f} {row['work']:>9.4f}"
        lines.append(f"{name} {figures}")
        lines += _why(row)
    return [
        *lines,
        *_more(rows),
        "",
        "for each second; own: on a CPU, ready, in waits that nobody else ends; work: other waits, too",
    ]


def _step_lines(answer: Answer) -> list[str]:
    """Groups, each with the phases of a step that take longer, and what it does more of."""
    by, rows = answer["by"], answer["rows"]
    lines = [_head(answer), "", f"{padded(by, _GROUP)} {'recordings':>10} {'steps':>9} {'mean step':>10}"]
    for row in rows:
        name = padded(shortened(row[by], _GROUP), _GROUP)
        lines.append(f"{name} {row['recordings']:>10,} {row['steps']:>9,} {_duration(row['step_s']):>10}")
        for phase in row["phases"]:
            said = f"+{_duration(phase['more_s'])} {phase['phase']}, others {_duration(phase['others_s'])}"
            lines.append(shortened(f"    {said}", COLUMNS))
        lines += _why(row)
    return [*lines, *_more(rows), "", "phases: of a step; functions: own time for each second"]


def _why(row: Answer) -> list[str]:
    lines = []
    for why in row["why"]:
        said = f"{why['more']:+.4f} s/s {reason_label(why['reason'])} in {_function(why)}"
        lines.append(shortened(f"    {said}, others {why['others']:.4f}", COLUMNS))
    return lines


def _more(rows: list[Answer]) -> list[str]:
    more = (rows[0]["groups"] if rows else 0) - len(rows)
    return [f"and {more:,} more (--limit)"] * (more > 0)


def _head(answer: Answer) -> str:
    recordings, hosts = counted(answer["recordings"], "recording"), counted(answer["hosts"], "host")
    times = ", ".join([f"{_text(answer[f'{name}_s'])} s {name}" for name in ("cpu", "ready", "wait", "idle")])
    return f"{recordings} of {hosts}, {_text(answer['duration_s'])} s: {times}"


def _function(row: Answer) -> str:
    """`Trainer.step (train)`, `dumps (stdlib json)`."""
    where = (
        row["module"] if row["library"] in (None, "own code", row["module"]) else f"{row['library']} {row['module']}"
    )
    return f"{row['function'] or '(no function)'}" + (f" ({where})" if where else "")


def _text(seconds: float) -> str:
    return seconds_text(round(seconds * 1e9))


def _duration(seconds: float) -> str:
    return duration_text(round(seconds * 1e9))


def _percent(part: float, whole: float) -> str:
    return percent_text(round(part * 1e9), round(whole * 1e9), 1)
