"""Profile with its spans -> a tree of calls for a terminal: time, its share, CPU, ready and wait of each line."""

from __future__ import annotations

from dataclasses import replace

from bpfprof.dataclass import dataclass
from bpfprof.known.services import short_text
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import function_name
from bpfprof.query.tables.tree import Node, Tree, tree_of
from bpfprof.query.work.places import WITH_OBJECTS, file_text
from bpfprof.query.work.shares import IDLE, LOCK, OTHER, SHARE_NAMES
from bpfprof.query.work.table import work_of
from bpfprof.render.columns import cut_left, percent_text, seconds_text, short_seconds, shortened, width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted
from bpfprof.render.labels import frame_label, printable, reason_label
from bpfprof.render.summary import (
    MAX_COLUMNS,
    MIN_COLUMNS,
    Paint,
    painted,
    plain,
    quality_lines,
    title_line,
)

_WIDE = 72  # columns; with less there is no room for the time that was ready
_LIBRARIES = 3  # named of what is folded
_MIN_NAME, _MIN_WHERE = 12, 6  # columns of a function, and of its file and line, where both must be cut
_MARKS = {
    FrameKind.SHORT_WAITS: "waits too short for a stack",
    FrameKind.NOT_SAMPLED: "time without a sample",
}


@dataclass(frozen=True)
class _Line:
    """What a node is called. color, wait_color: names of colours.

    wait: what all the time is waited for that stands for a line of its own; note: told where there is room.
    """

    node: Node
    name: str
    where: str = ""
    color: str = ""
    wait: str = ""
    wait_color: str = ""
    note: str = ""


def render_tree(profile: Profile, options: RenderOptions) -> str:
    """For the terminal that the options describe: what was asked, the tree, what is not in it, the quality line."""
    columns = min(max(options.columns, MIN_COLUMNS), MAX_COLUMNS)
    work = work_of(profile)
    tree = tree_of(profile, work, options.merge, options.limit, options.details, options.with_idle)
    text = _TreeText(profile, tree, options, columns)
    head = [title_line(profile, columns)]
    if profile.filter_text:
        head.append(shortened(f"only {printable(profile.filter_text[2:])}", columns))
    blocks = [head, text.lines(), text.left_out(), quality_lines(profile, columns)]
    whole = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    if options.ascii_only:
        for sign, instead in ("·-", "…~", "├|", "│|", "└`"):
            whole = whole.replace(sign, instead)
    return whole


class _TreeText:
    def __init__(self, profile: Profile, tree: Tree, options: RenderOptions, columns: int) -> None:
        self._profile, self._tree, self._options, self._columns = profile, tree, options, columns
        self._paint: Paint = painted if options.has_color else plain
        self._has_ready = columns >= _WIDE
        self._room = columns - 28 - 7 * self._has_ready

    def lines(self) -> list[str]:
        """The heading, then a line a node."""
        ready = f"{'ready':>7}" * self._has_ready
        heading = f"{'time s':>7} {'%':>4} {'CPU':>6}{ready} {'wait':>6}  calls"
        if not self._tree.root.total_ns:
            return ["nothing was seen" + " but threads that wait for work" * bool(self._tree.idle_ns)]
        found = [self._paint("heading", heading)]
        # (node, what stands before it, before what is below it, the file that is known from the line above)
        waiting = [(self._line(self._tree.root), "", "", "")]
        while waiting:
            line, before, below, file = waiting.pop()
            children = self._children(line.node)
            room = self._room - width(before)
            if not _fits(line, room) and line.where.rpartition(":")[0] == file:
                line = replace(line, where=line.where[len(file) :])
            if len(children) == 1 and children[0].node.wait and line.node.frames:
                joined = replace(line, wait=children[0].name, wait_color=children[0].color)
                line, children = (joined, []) if _fits(joined, room) else (line, children)
            found.append(self._figures(line.node) + self._text(line, before))
            file = line.where.rpartition(":")[0] or file
            signs = ["├ "] * (len(children) - 1) + ["└ "] * bool(children)
            waiting += [
                (child, below + sign, below + ("│ " if sign == "├ " else "  "), file)
                for child, sign in reversed([*zip(children, signs)])
            ]
        return found

    def left_out(self) -> list[str]:
        """How much is in no line."""
        all_ns, lines = self._tree.root.total_ns, []
        nodes = [node for node in self._tree.nodes() if node.left_out_count and not self._is_told(node)]
        ns = sum(sum(node.left_out_ns) for node in nodes)
        if nodes:
            count = counted(sum(node.left_out_count for node in nodes), "smaller call")
            more = "more with --limit" if not self._options.limit else "more with a higher --limit"
            lines.append(f"{count} left out, {seconds_text(ns)} s ({percent_text(ns, all_ns, 1)}); {more}")
        idle = self._tree.idle_ns
        if idle and not self._options.hide_idle:
            names = [
                printable(self._tree.threads.threads[number].thread_name) or "?" for number, _ in idle.most_common()
            ]
            threads = ", ".join(dict.fromkeys(names))
            lines.append(
                f"beside it {seconds_text(sum(idle.values()))} s of waits for work (--idle shows them): {threads}"
            )
        return [shortened(line, self._columns) for line in lines]

    def _is_told(self, node: Node) -> bool:
        """Whether what is left out of it has a line."""
        return sum(node.left_out_ns) * 100 >= self._tree.root.total_ns

    def _children(self, node: Node) -> list[_Line]:
        """Most time first: calls and waits, what it did itself, and then what is too small for a line."""
        found = [self._line(child) for child in node.sorted_children()]
        own_ns = sum(node.own_ns)
        if found and not node.wait and own_ns * 100 >= self._tree.root.total_ns:
            itself = _Line(Node(ns=node.own_ns), "[itself]", color="aside")
            place = sum(line.node.total_ns >= own_ns for line in found)
            found.insert(place, itself)
        if self._is_told(node):
            rest = Node(ns=node.left_out_ns)
            found.append(_Line(rest, f"… {counted(node.left_out_count, 'smaller call')}", color="aside"))
        return found

    def _line(self, node: Node) -> _Line:
        if node.wait:
            return self._wait(node)
        if node.is_process:
            thread = self._tree.threads.threads[node.thread]
            return _Line(node, f"{printable(thread.process_name) or '?'} ({thread.process_id})", color="heading")
        if node.thread >= 0:
            thread = self._tree.threads.threads[node.thread]
            return _Line(node, f"{printable(thread.thread_name) or '?'} ({thread.thread_id})", color="heading")
        if node is self._tree.root:
            return _Line(node, counted(len(self._profile.threads), "thread"))
        if not node.frames:
            return _Line(node, f"… {self._folded(node)}", color="aside")
        return self._function(node)

    def _function(self, node: Node) -> _Line:
        number = node.frames.most_common(1)[0][0]
        frame = self._profile.frames[number]
        if frame.kind in _MARKS or frame.kind == FrameKind.TRUNCATED:
            return _Line(node, _MARKS.get(frame.kind) or frame_label(frame, {}, True), color="aside")
        shown = replace(frame, line=0) if self._options.function_only else frame
        where = printable(file_text(shown))
        if self._options.full_filenames:
            where = printable(f"{frame.file}:{shown.line}" if shown.line else frame.file)
        if not frame.name or frame.kind == FrameKind.KERNEL:
            where = "kernel" * (frame.kind == FrameKind.KERNEL)
        color = "heading" if self._tree.paths.is_own(number) else ""
        note = f"… {self._folded(node)}" if node.folded[1] else ""
        return _Line(node, printable(function_name(frame)) or "(no name)", where, color, note=note)

    def _folded(self, node: Node) -> str:
        """`9 frames of wsgiref, threading`."""
        least, most = node.folded
        count = counted(most, "frame")
        if least != most:
            count = f"{least}..{count}" if least else f"up to {count}"
        names = [printable(name) for name, _ in node.libraries.most_common()]
        more = ", …" if len(names) > _LIBRARIES else ""
        return f"{count} of {', '.join(names[:_LIBRARIES])}{more}"

    def _wait(self, node: Node) -> _Line:
        """`waiting: lock #1`."""
        assert node.wait is not None
        share, lock, reason = node.wait
        described, ns = node.objects.most_common(1)[0] if node.objects else (0, 0)
        text = SHARE_NAMES[share] if share < len(SHARE_NAMES) else ""
        if share == LOCK:
            text = f"lock #{lock}" if lock else "a lock"
        elif share == OTHER:
            text = reason_label(reason_text(reason))
        elif share == IDLE:
            text = "work"
        elif share in WITH_OBJECTS and described and ns * 2 >= node.total_ns:
            text += f", {printable(short_text(self._profile.objects[described - 1]))}"
        return _Line(node, f"waiting: {text}", color=SHARE_NAMES[share] if share < len(SHARE_NAMES) else "")

    def _figures(self, node: Node) -> str:
        cpu, ready, wait = node.ns
        text = f"{short_seconds(node.total_ns):>7} {percent_text(node.total_ns, self._tree.root.total_ns, 0):>4}"
        for name, ns in (("CPU", cpu), *[("ready", ready)] * self._has_ready, ("", wait)):
            figure = f"{short_seconds(ns):>6}"
            text += f" {self._paint(name, figure) if ns else figure}"
        return text + "  "

    def _text(self, line: _Line, before: str) -> str:
        # A deep call is not pushed out of the screen by what stands before it.
        before = cut_left(before, self._room // 2)
        room = self._room - width(before)
        parts = [(line.color, shortened(line.name, room))]
        if line.where:
            # Python's functions are found by their line, others by their name.
            most_of_name = room // 2 if ":" in line.where else room
            where = cut_left(line.where, max(room - 2 - max(_MIN_NAME, min(width(line.name), most_of_name)), 0))
            if width(where) >= min(_MIN_WHERE, width(line.where)):
                parts = [(line.color, cut_left(line.name, room - width(where) - 2)), ("", where)]
        parts += [(line.wait_color, line.wait)] * bool(line.wait)
        taken = sum(width(text) + 2 for _, text in parts)
        parts += [("aside", line.note)] * bool(line.note and taken + width(line.note) <= room)
        return before + "  ".join([self._paint(color, text) for color, text in parts])


def _fits(line: _Line, room: int) -> bool:
    return sum(width(part) + 2 for part in (line.name, line.where, line.wait) if part) - 2 <= room
