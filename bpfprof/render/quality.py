"""Profile -> the quality line that every report ends with: how much of the truth the recording holds."""

from __future__ import annotations

from bpfprof.model.profile import Profile, Quality, ThreadTime
from bpfprof.query.threads.losses import losses_of
from bpfprof.render.columns import COLUMNS, cut_left, duration_text, percent_text, width
from bpfprof.render.header import counted
from bpfprof.render.labels import printable, thread_label

_FEW = 0.01  # of wall time: so much that is not accounted for, or has no stack, is well
_LEAST_NS = 100_000_000  # of a thread, or so much of all wall time as above: what it lacks is told of it alone
_MOST = 0.95  # of stacks: where so many are complete, all is well, ...
_SOME = 0.05  # of as many: ... and no more lack a part, are estimated, or are of switches that the kernel did not tell
_LEAST_PATH = 20  # columns


def quality_line(profile: Profile) -> str:
    """One line without a newline; parts are separated by `; `."""
    return "quality: " + _text(profile, is_short=False)


def file_quality(profile: Profile, side: str, path: str, is_short: bool) -> str:
    """`before a.bpfprof: ` and its quality line. is_short: what is well in short, in one line of a table."""
    if not is_short:
        return f"{side}{path}: {quality_line(profile)}"
    text = ": " + _text(profile, is_short=True)
    room = COLUMNS - width(side + text)
    return side + (cut_left(path, room) if room >= _LEAST_PATH else path) + text


def _text(profile: Profile, is_short: bool) -> str:
    parts = [_accounted(profile, is_short), *_stacks(profile, is_short), _lost(profile), _own_cpu(profile, is_short)]
    if profile.quality.problem_counts:
        parts.insert(-1, f"native code: {_reasons(profile.quality.problem_counts)}")
    if profile.quality.missed_tasks:
        parts.insert(-1, f"asyncio tasks not seen: {_reasons(profile.quality.missed_tasks)}")
    if text := loss_text(profile):
        parts.insert(0, f"INCOMPLETE RECORDING: {text}")
    if profile.quality.unfinished:
        parts.insert(0, f"UNFINISHED RECORDING ({printable(profile.quality.unfinished)})")
    return "; ".join(parts)


def loss_text(profile: Profile) -> str:
    """Of which processes so much time was lost that the rest cannot be taken for all of it; "" if of none."""
    losses = losses_of(profile)
    if not losses:
        return ""
    worst = losses[0]
    share = percent_text(worst.lost_ns, worst.whole_ns, 0)
    more = counted(len(losses) - 1, "more process", "more processes")
    others = f", and over 5% of that of {more}" if losses[1:] else ""
    lost = {reason: count for reason, count in profile.quality.lost_counts.items() if count}
    reasons = f" ({_reasons(lost)})" if lost else ""
    return f"{share} of the time of {printable(worst.process_name)} ({worst.pid}) was lost{others}{reasons}"


def lost_count(profile: Profile) -> int:
    """Samples, intervals and stacks, as far as known."""
    return sum(profile.quality.lost_counts.values())


def _accounted(profile: Profile, is_short: bool) -> str:
    threads = [thread for thread in profile.threads if thread.wall_ns > 0 or thread.accounted_ns > 0]
    if not threads:
        return "no thread was seen"
    wall_ns = sum(thread.wall_ns for thread in threads)
    accounted_ns = sum(thread.accounted_ns for thread in threads)
    if is_short and _is_accounted(profile, threads):
        return f"{percent_text(accounted_ns, wall_ns)} of {duration_text(wall_ns)} accounted"
    text = f"{percent_text(accounted_ns, wall_ns)} of {duration_text(wall_ns)} wall time accounted for"
    worst = max(threads, key=lambda thread: abs(thread.accounted_ns - thread.wall_ns) / max(thread.wall_ns, 1))
    off_ns = worst.accounted_ns - worst.wall_ns
    untold = profile.quality.untold_count
    text += f", {counted(untold, 'switch', 'switches')} not told by the kernel" if untold else ""
    if off_ns == 0:
        return text if untold else f"{text}, exact in every thread"
    sign = "+" if off_ns > 0 else ""
    share = percent_text(abs(off_ns), worst.wall_ns)
    return f"{text}, worst {thread_label(worst)} {sign}{duration_text(off_ns)} ({share} of its wall time)"


def _is_accounted(profile: Profile, threads: list[ThreadTime]) -> bool:
    """Whether hardly anything lacks, or is too much, of all threads together and of any that lived for some time."""
    quality, wall_ns = profile.quality, sum(thread.wall_ns for thread in threads)
    off_ns = [abs(thread.accounted_ns - thread.wall_ns) for thread in threads]
    least_ns = min(_LEAST_NS, _FEW * wall_ns)
    is_each = all(ns <= _FEW * it.wall_ns for it, ns in zip(threads, off_ns) if max(it.wall_ns, ns) >= least_ns)
    return is_each and sum(off_ns) <= _FEW * wall_ns and quality.untold_count <= _SOME * _whole_count(quality)


def _whole_count(quality: Quality) -> int:
    return quality.complete_count + sum(quality.truncated_counts.values())


def _are_whole(profile: Profile) -> bool:
    """Whether most stacks are complete, with native frames, by rules and their own, and waits without any are short."""
    quality, count = profile.quality, _whole_count(profile.quality)
    lacking = (quality.python_only_count, quality.without_rules_count, quality.unsampled_count)
    few_ns = _FEW * sum(thread.wall_ns for thread in profile.threads)
    is_most = quality.complete_count >= _MOST * count > 0
    return is_most and quality.short_ns <= few_ns and max(lacking) <= _SOME * count


def _stacks(profile: Profile, is_short: bool) -> list[str]:
    quality = profile.quality
    truncated = sum(quality.truncated_counts.values())
    whole = quality.complete_count + truncated
    if is_short and _are_whole(profile):
        return [f"stacks {percent_text(quality.complete_count, whole)}"]
    if whole == 0:
        return ["no stacks", *_without_stack(profile)]
    text = f"stacks {percent_text(quality.complete_count, whole)} complete ({quality.complete_count:,} of {whole:,}"
    text += f", {quality.python_only_count:,} Python-only" if quality.python_only_count else ""
    text += f", {quality.without_rules_count:,} through code without unwind rules" * bool(quality.without_rules_count)
    text += "), "
    text += f"{truncated:,} truncated ({_reasons(quality.truncated_counts)})" if truncated else "none truncated"
    return [text, *_without_stack(profile)]


def _without_stack(profile: Profile) -> list[str]:
    quality = profile.quality
    parts = []
    if quality.short_count:
        share = percent_text(quality.short_ns, sum(thread.wall_ns for thread in profile.threads), 1)
        share = f" ({share} of wall time)" * (not profile.filter_text)  # else the two are not of the same time
        under = f" under {profile.info.min_block_us / 1000:g} ms" if profile.info.min_block_us else ""
        parts.append(f"{counted(quality.short_count, 'wait')}{under}: time counted, no stack{share}")
    if quality.unsampled_count:
        parts.append(f"stacks of {counted(quality.unsampled_count, 'wait')} estimated from others of their thread")
    return parts


def _lost(profile: Profile) -> str:
    lost = {reason: count for reason, count in profile.quality.lost_counts.items() if count}
    if lost:
        return f"{counted(sum(lost.values()), 'sample')} lost ({_reasons(lost)})"
    return "what was lost is not known" if profile.quality.unfinished else "none lost"


def _own_cpu(profile: Profile, is_short: bool) -> str:
    quality = profile.quality
    if is_short and quality.recording_ns > 0:
        return f"own CPU {percent_text(quality.own_cpu_ns, quality.recording_ns, 0)}"
    if quality.recording_ns <= 0:
        return f"bpfprof itself used {duration_text(quality.own_cpu_ns)} of CPU"
    return f"bpfprof itself used {percent_text(quality.own_cpu_ns, quality.recording_ns)} of one core"


def _reasons(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{printable(reason)} {count:,}" for reason, count in ordered if count)
