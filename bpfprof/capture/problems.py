"""What went wrong beside a recording, in the words of its quality."""

from __future__ import annotations

from collections import Counter

from bpfprof.capture.watch import Watch
from bpfprof.proc.reader import reader


def problems_of(watch: Watch, cut_looks: int, unseen_waits: int, lost_marks: int) -> dict[str, int]:
    """What a recording may lack, beside what each stack says of itself: sentence -> how often."""
    code, events = watch.code, watch.mapping_events
    problems: Counter[str] = Counter()
    if code is not None:
        problems.update(f"file without unwind table: {file.note}" for file in code.files.files if file.note)
        problems.update(file.problem for file in code.files.files if file.problem)
        dumps = (file.dumps.problem for file in code.files.files if file.dumps.problem)
        problems.update(f"names of code made at run time: {problem}" for problem in dumps)
        problems["unwind tables evicted for others (--table-memory)"] += code.memory.evicted_count
        problems["files beyond the unwind tables"] += code.files.unmade_count
        problems["code mappings beyond 4,096 of a process"] += code.cut_count
        problems["lists of addresses not named in time"] += code.files.naming.open_count
    problems["processes whose memory did not answer, and was not read any more"] = len(reader().unanswering)
    problems["processes whose files did not answer, and were not read any more"] = len(reader().unanswering_files)
    if events is not None:
        problems["new code mappings not told by the kernel"] += events.lost_count
    for name, percent in watch.uncounted_percent.items():
        problems[f"percent of the time in which {name} were not counted: the CPU has too few counters"] = percent
    problems.update(watch.calls.problems if watch.calls else {})
    problems["looks at what threads do when the recording ends that were cut, for want of time"] = cut_looks
    problems["processes whose waits were not looked at in time: who has what they wait for"] = unseen_waits
    problems["marks of programs (bpfprof.marks) that were too many, or not whole"] = lost_marks
    return {text: count for text, count in problems.items() if count}
