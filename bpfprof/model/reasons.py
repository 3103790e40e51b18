"""What threads wait for: one row for each word of the text contract, with all that is said of it anywhere.

Which word a wait has is told in `account/reasons.py` and `account/kernel_reasons.py`; its pattern, where it has one of
its own, is in `render/palette.py`.
"""

from __future__ import annotations

from bpfprof.dataclass import dataclass


@dataclass(frozen=True)
class Reason:
    """share: what its time is spent on, a word of SHARES (`query/work/shares.py`); look: its colour, a word of KINDS
    (`render/page_spans.py`); may_idle: whether a thread that waits so may wait for work; does: what one does that waits
    so, as a part of a sentence; wanted: the same of who wants what another has; advice: what to do where it hangs."""

    word: str
    share: str = "other"
    look: str = "other"
    may_idle: bool = False
    does: str = ""
    wanted: str = ""
    advice: str = ""


_ASK = "wait with a limit; ask at the other end why "

# A reason's number in spans is its place here, from 1 on.
REASONS = (
    Reason("gil", "gil", "gil", does="waits for the GIL", wanted="waiting for the GIL"),
    Reason(
        "lock",
        "lock",
        "lock",
        may_idle=True,
        does="waits for a lock",
        wanted="waiting for a lock",
        advice="dump PID shows the stack of every thread, also of who has it",
    ),
    Reason("sleep", "sleep", "sleep", may_idle=True, does="sleeps"),
    Reason(
        "disk",
        "disk",
        "io",
        does="waits for the disk",
        advice="the file system does not answer: look at its server or device",
    ),
    Reason("net", "net", "io", may_idle=True, does="waits for the network", advice=_ASK + "there is no answer"),
    Reason("pipe", "child", "io", may_idle=True, does="waits for a pipe", advice="read what it writes, or write less"),
    Reason("poll", "net", "sleep", may_idle=True, does="waits for what comes first", advice=_ASK + "nothing comes"),
    Reason(
        "child",
        "child",
        "lock",
        does="waits for a child",
        advice="dump of the child shows what that one does; wait for it with a limit",
    ),
    Reason("device", "device", "io", does="waits for a device"),
    Reason("pagefault", "disk", "io"),
    Reason("stopped", does="is stopped", advice="kill -CONT, or thaw its control group"),
    Reason("unknown"),
    Reason("kernel-lock", "lock", "lock", wanted="waiting for a lock of the kernel"),
    Reason(
        "file-lock",
        "lock",
        "lock",
        does="waits for a file's lock",
        wanted="waiting for a lock of a file",
        advice="end who has the file locked, or wait with a limit",
    ),
)
