"""Frame -> the text other programs read (docs: the text contract); every format takes its names from here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile, Task, ThreadTime
from bpfprof.query.code.functions import function_name
from bpfprof.query.code.origins import import_path
from bpfprof.render.formats import RenderOptions

# Controls (C0, DEL, C1), line and paragraph separators, marks that reorder text on a terminal, lone surrogates (names
# read with surrogateescape; they cannot be encoded), and the two code points XML 1.0 forbids (section 2.2).
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_UNKNOWN = "[unknown]"
_MARKS = {
    FrameKind.WAIT: "[off-cpu: {}]",
    FrameKind.RUNQUEUE: "[runqueue]",
    FrameKind.TRUNCATED: "[truncated: {}]",
    FrameKind.NOT_SAMPLED: "[not sampled]",
    FrameKind.SHORT_WAITS: "[short waits]",
    FrameKind.WOKEN_BY: "[woken by {}]",
    FrameKind.AWAIT: "[await: {}]",
}

_MARK_WORDS = {
    FrameKind.RUNQUEUE: "ready, no CPU",
    FrameKind.TRUNCATED: "stack cut off: {}",
    FrameKind.NOT_SAMPLED: "not sampled",
    FrameKind.SHORT_WAITS: "waits too short for a stack",
    FrameKind.WOKEN_BY: "woken by {}",
    FrameKind.AWAIT: "await: {}",
}
MARKS = frozenset(_MARKS)  # kinds of frames that are no functions
WAITING = "waiting: "


def printable(text: str) -> str:
    """The text in one line, without anything that would act on a terminal or break an XML file."""
    return _UNSAFE.sub("?", text)


def no_function_label(profile: Profile, stack: int, thread: ThreadTime) -> str:
    """Why a stack has none: `(no function: stack not taken)`, `(a kernel thread)`."""
    if thread.is_kernel_thread:
        return "(a kernel thread)"
    first = profile.frames[profile.stacks[stack][0]] if profile.stacks[stack] else None
    if first is not None and first.kind == FrameKind.SHORT_WAITS:
        return _MARKS[first.kind]
    why = f": {printable(first.name)}" if first is not None and first.kind == FrameKind.TRUNCATED else ""
    return f"(no function{why})"


def process_label(thread: ThreadTime | Task) -> str:
    """`process COMM (PID)`."""
    number = thread.pid if isinstance(thread, Task) else thread.process_id
    return f"process {printable(thread.process_name) or '?'} ({number})"


def thread_label(thread: ThreadTime) -> str:
    """`thread NAME (TID)`."""
    return f"thread {printable(thread.thread_name) or '?'} ({thread.thread_id})"


def task_label(task: Task) -> str:
    """`task NAME`."""
    return f"task {printable(task.name) or '?'}"


def short_file_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> from where it is imported, or its name; more components of it where another of the paths ends so, too."""
    # Those that end alike stand side by side when they are sorted from their ends.
    ends = sorted(f"{path[::-1]}/" for path in set(paths))
    alike = [_components_alike(before, after) for before, after in zip(ends, ends[1:])]
    short = {}
    for end, before, after in zip(ends, [0, *alike], [*alike, 0]):
        path = end[-2::-1]
        depth = max(before + 1, after + 1, import_path(path).count("/") + 1)
        short[path] = path if path.startswith("<") else "/".join(path.rsplit("/", depth)[-depth:]) or path
    return short


def _components_alike(one: str, other: str) -> int:
    """How many of the last components two paths have in common; each is written from its end."""
    least, most = 0, min(len(one), len(other))
    while least < most:  # letters
        middle = (least + most + 1) // 2
        least, most = (middle, most) if one[:middle] == other[:middle] else (least, middle - 1)
    return one.count("/", 0, least)


def file_names(profile: Profile, options: RenderOptions) -> dict[str, str]:
    """File of each Python frame -> what is shown for it."""
    paths = {frame.file for frame in profile.frames if frame.kind == FrameKind.PYTHON}
    shown = {path: path for path in paths} if options.full_filenames else short_file_names(paths)
    return {path: printable(name) or _UNKNOWN for path, name in shown.items()}


def source_line(frame: Frame, sources: Mapping[str, tuple[str, str]]) -> str:
    """The text of the line of a Python frame; "": not known. sources: path -> (text, why there is none)."""
    if frame.kind != FrameKind.PYTHON or frame.line <= 0:
        return ""
    return printable("".join(sources.get(frame.file, ("", ""))[0].split("\n")[frame.line - 1 : frame.line]).strip())


def mark_text(frame: Frame) -> str:
    """A mark as pictures have it: `waiting: disk`, `ready, no CPU`."""
    if frame.kind == FrameKind.WAIT:
        return f"{WAITING}{'GIL' if frame.name == 'gil' else reason_label(frame.name)}"
    return _MARK_WORDS[frame.kind].format(printable(frame.name))


def picture_label(frame: Frame, files: Mapping[str, str], function_only: bool) -> str:
    """As frame_label(), marks in words."""
    return mark_text(frame) if frame.kind in MARKS else frame_label(frame, files, function_only)


def reason_label(reason: str) -> str:
    """A word of reason_text() as tables have it."""
    return "other" if reason in ("", "unknown") else printable(reason)


def _native_name(frame: Frame, function_only: bool) -> str:
    base = printable(frame.file.rsplit("/", 1)[-1]) or _UNKNOWN
    if not frame.name:
        return f"{base}+0x{frame.offset:x}"
    if frame.line and not function_only:
        base += f" {printable(frame.source.rsplit('/', 1)[-1])}:{frame.line}"
    return f"{printable(frame.name)} ({base})"


def frame_label(frame: Frame, files: Mapping[str, str], function_only: bool) -> str:
    """The contract's text for one frame; `files` is what `file_names` returned for its profile."""
    name = printable(frame.name)
    if frame.kind == FrameKind.PYTHON:
        line = "" if function_only or frame.line == 0 else f":{frame.line}"
        return f"{name or _UNKNOWN} ({files[frame.file]}{line})"
    if frame.kind == FrameKind.NATIVE:
        return _native_name(frame, function_only)
    if frame.kind == FrameKind.INLINED:
        return _native_name(frame, function_only) + "_[i]"
    if frame.kind == FrameKind.KERNEL:
        return f"{name or _UNKNOWN}_[k]"
    return _MARKS[frame.kind].format(name or "unknown")


def function_labels(profile: Profile, options: RenderOptions) -> list[str]:
    """As frame_labels(), one text a function: without lines, and code without names by its object."""
    files = file_names(profile, options)
    native = (FrameKind.NATIVE, FrameKind.INLINED)
    return [
        printable(function_name(frame)) if frame.kind in native and not frame.name else frame_label(frame, files, True)
        for frame in profile.frames
    ]


def frame_labels(profile: Profile, options: RenderOptions) -> list[str]:
    """One text a frame of `profile.frames`, in its order; frames to be merged have the same text."""
    files = file_names(profile, options)
    return [frame_label(frame, files, options.function_only) for frame in profile.frames]
