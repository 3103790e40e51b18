"""Profile -> what was recorded, when, where and how: the words every report begins with."""

from __future__ import annotations

import datetime

from bpfprof.model.profile import Profile
from bpfprof.render.columns import duration_text, shortened, wrapped
from bpfprof.render.labels import printable

_NAMED_PROCESSES = 5


def command_text(profile: Profile) -> str:
    """The recorded command line, "" if there is none."""
    return printable(" ".join(profile.info.command_line))


def recording_facts(profile: Profile) -> list[str]:
    """Short facts, to be joined by commas or dots; the duration first."""
    info = profile.info
    processes = len({thread.pid for thread in profile.threads})
    threads = counted(len(profile.threads), "thread")
    facts = [duration_text(info.duration_ns), f"{threads} in {counted(processes, 'process', 'processes')}"]
    if info.mode != "offcpu":
        facts.append(f"{info.rate_hz} Hz {printable(info.event)}")
    if info.mode != "both":
        facts.append(f"mode {printable(info.mode)}")
    if info.host_name:
        kernel = f" (Linux {printable(info.kernel_release)})" if info.kernel_release else ""
        facts.append(printable(info.host_name) + kernel)
    if info.started_unix_ns:
        started = datetime.datetime.fromtimestamp(info.started_unix_ns // 1_000_000_000, datetime.timezone.utc)
        facts.append(f"{started:%Y-%m-%d %H:%M:%S} UTC")
    return facts


def recording_block(profile: Profile) -> list[str]:
    """The command line, if there is one, the facts, and the Python that is not read, as lines for a terminal."""
    command = shortened(command_text(profile))
    lines = wrapped(", ".join(recording_facts(profile)), "")
    for sentence in unread_sentences(profile):
        lines += wrapped(sentence, "  ")
    return [command, *lines] if command else lines


def unread_sentences(profile: Profile) -> list[str]:
    """For each kind of Python that is not read who runs it, and what that means."""
    sentences = []
    for why, processes in profile.info.unread.items():
        more = f" and {len(processes) - _NAMED_PROCESSES:,} more" if len(processes) > _NAMED_PROCESSES else ""
        named = printable(", ".join(processes[:_NAMED_PROCESSES])) + more
        who, their = ("process", "its") if len(processes) == 1 else ("processes", "their")
        sentences.append(f"{who} {named}: {printable(why)}; {their} stacks have no Python frames")
    return sentences


def counted(count: int, one: str, many: str = "") -> str:
    """`1 thread`, `12 threads`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
