"""Profile with its spans -> a file for the Firefox Profiler (profiler.firefox.com), in its processed profile format.

Version 60 of the format, which each later reader brings up to its own (CHANGELOG-formats.md in
github.com/firefox-devtools/profiler, docs-developer).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import wait_owners
from bpfprof.query.work.table import work_of
from bpfprof.render.calls import Function, functions_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import command_text
from bpfprof.render.intervals import MIXED, STATES, Intervals, intervals_of
from bpfprof.render.labels import MARKS, frame_labels, mark_text, printable
from bpfprof.render.page_spans import KINDS, kind_of_reason
from bpfprof.render.quality import quality_line
from bpfprof.render.wait_names import WaitNames

_VERSION, _GECKO_VERSION = 60, 31
# Grey is what the reader takes for all that has no category; transparent what it takes for idle.
_CATEGORIES = (
    *(("Other", "grey"), ("Python", "yellow"), ("Native", "blue"), ("Kernel", "purple"), ("Ready, no CPU", "magenta")),
    *(("GIL", "red"), ("Lock", "green"), ("I/O", "lightblue"), ("Sleep", "brown"), ("Wait", "orange")),
    *(("Lost", "lightred"), ("Idle", "transparent")),
)
_CATEGORY = {name: number for number, (name, _) in enumerate(_CATEGORIES)}
_OF_FRAMES = {FrameKind.PYTHON: "Python", FrameKind.NATIVE: "Native", FrameKind.INLINED: "Native"}
_OF_KINDS = {"gil": "GIL", "lock": "Lock", "io": "I/O", "sleep": "Sleep", "other": "Wait"}
_FIELDS = {
    "reason": "Reason",
    "lock": "Lock",
    "object": "File or peer",
    "where": "In",
    "heldBy": "GIL held by",
    "wokenBy": "Ended by",
    "idle": "Idle",
}
_Place = tuple[Function, int, int]  # function, its line, category


def render_gecko(profile: Profile, options: RenderOptions) -> str:
    """Each interval is a sample that weighs as much as it speaks for; ready times and waits are markers, too."""
    made = _Made(profile, options)
    threads = [made.thread(index) for index in range(len(profile.threads)) if made.has_rows(index)]
    content = {"meta": made.meta(), "libs": made.libs(), "shared": made.shared(), "threads": threads}
    return json.dumps(content, ensure_ascii=False) + "\n"


class _Made:
    """Tables that threads share, each thing once."""

    def __init__(self, profile: Profile, options: RenderOptions) -> None:
        self._profile, work = profile, work_of(profile)
        self._of: Intervals = intervals_of(profile, work)
        self._names = WaitNames(profile, work, options)
        self._labels, self._owners = frame_labels(profile, options), wait_owners(profile.frames, profile.stacks)
        self._title = printable(options.title) or command_text(profile) or "bpfprof"
        self._texts: dict[str, int] = {}
        self._objects: dict[str, int] = {}
        self._sources: dict[str, int] = {}
        self._functions: dict[Function, int] = {}
        self._frames: dict[_Place, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}  # (node before or -1, frame)
        self._stacks: dict[tuple[int, int, int, int, bool], int | None] = {}
        self._shorts: dict[ThreadState, int | None] = {}
        places = zip(functions_of(profile, options), profile.frames)
        self._places = [(_named(function, frame), line, _category(frame)) for (function, line), frame in places]

    def has_rows(self, thread: int) -> bool:
        return self._of.begin[thread] < self._of.begin[thread + 1]

    def meta(self) -> dict[str, Any]:
        info, short_ns = self._profile.info, self._of.short_ns
        fields = [{"key": key, "label": label, "format": "unique-string"} for key, label in _FIELDS.items()]
        schema: dict[str, Any] = {"name": "Wait", "tooltipLabel": "{marker.name}", "tableLabel": "{marker.data.where}"}
        said = {"Quality": quality_line(self._profile).removeprefix("quality: ")}
        said["Shown"] = printable(self._profile.filter_text[2:])
        said["Merged"] = f"intervals under {short_ns / 1000:g} us beside each other" if short_ns else ""
        entries = [{"label": key, "format": "string", "value": text} for key, text in said.items() if text]
        return {
            "interval": 1000 / info.rate_hz if info.rate_hz else 1,
            "startTime": info.started_unix_ns / 1e6,
            "profilingStartTime": 0,
            "profilingEndTime": info.duration_ns / 1e6,
            "processType": 0,
            "product": self._title,
            "stackwalk": 1,
            "version": _GECKO_VERSION,
            "preprocessedProfileVersion": _VERSION,
            "importedFrom": f"bpfprof {printable(info.bpfprof_version)}".rstrip(),
            "oscpu": printable(f"Linux {info.kernel_release}".rstrip()),
            "device": printable(info.host_name),
            "symbolicated": True,
            "usesOnlyOneStackType": False,
            "sourceCodeIsNotOnSearchfox": True,
            "keepProfileThreadOrder": True,
            "categories": [{"name": name, "color": color, "subcategories": ["Other"]} for name, color in _CATEGORIES],
            "markerSchema": [
                {**schema, "chartLabel": "{marker.name}", "display": ["marker-chart", "marker-table"], "fields": fields}
            ],
            "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
            "extra": [{"label": "Recording", "entries": entries}],
        }

    def libs(self) -> list[dict[str, Any]]:
        found = []
        for path in self._objects:
            name = path.rsplit("/", 1)[-1]
            ids: dict[str, Any] = {"arch": "", "breakpadId": "", "codeId": None}
            found.append({**ids, "name": name, "path": path, "debugName": name, "debugPath": path})
        return found

    def shared(self) -> dict[str, Any]:
        """After all threads, which fill the tables."""
        frames, functions = list(self._frames), list(self._functions)
        nothing, nowhere = [None] * len(frames), [None] * len(functions)
        resource = {"length": len(self._objects), "lib": list(range(len(self._objects)))}
        names = [self._text(path.rsplit("/", 1)[-1]) for path in self._objects]
        resource |= {"name": names, "host": [None] * len(names), "type": [1] * len(names)}
        is_python = [bool(function.file) for function in functions]
        return {
            "stackTable": {
                "length": len(self._nodes),
                "frame": [frame for _, frame in self._nodes],
                "prefix": [None if before < 0 else before for before, _ in self._nodes],
            },
            "frameTable": {
                "length": len(frames),
                "address": [-1] * len(frames),
                "inlineDepth": [0] * len(frames),
                "category": [category for _, _, category in frames],
                "subcategory": [0] * len(frames),
                "func": [self._functions[function] for function, _, _ in frames],
                "nativeSymbol": nothing,
                "innerWindowID": nothing,
                "line": [line or None for _, line, _ in frames],
                "column": nothing,
            },
            "funcTable": {
                "length": len(functions),
                "name": [self._text(function.name) for function in functions],
                "isJS": is_python,  # so that the reader can leave out all that is not Python
                "relevantForJS": [False] * len(functions),
                "resource": [self._objects.get(function.object, -1) for function in functions],
                "source": [self._sources.get(function.file) for function in functions],
                "lineNumber": nowhere,
                "columnNumber": nowhere,
            },
            "resourceTable": resource,
            "nativeSymbols": {"length": 0, "libIndex": [], "address": [], "name": [], "functionSize": []},
            "sources": {
                "length": len(self._sources),
                "uuid": [None] * len(self._sources),
                "filename": [self._text(file) for file in self._sources],
            },
            "stringArray": list(self._texts),
        }

    def thread(self, index: int) -> dict[str, Any]:
        who = self._profile.threads[index]
        return {
            "processType": "default",
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": who.first_ns / 1e6,
            "unregisterTime": who.last_ns / 1e6,
            "pausedRanges": [],
            "name": printable(who.thread_name) or "?",
            "isMainThread": int(who.pid) == int(who.tid),
            "processName": printable(who.process_name) or "?",
            "pid": str(int(who.pid)),
            "tid": int(who.tid),
            "samples": self._samples(index),
            "markers": self._markers(index),
        }

    def _samples(self, index: int) -> dict[str, Any]:
        """In the order of time. The CPU time of a sample is what passed since the one before."""
        stacks: list[int | None] = []
        times, weights, cpu_ns = [], [], [0]
        end_ns = 0

        def add(stack: int | None, at_ns: int, weight_ns: int, ran_ns: int) -> None:
            stacks.append(stack)
            times.append(at_ns / 1e6)
            weights.append(weight_ns / 1e6)
            cpu_ns.append(ran_ns)

        for row in self._rows(index):
            if times and row["start_ns"] != end_ns:
                add(None, end_ns, 0, 0)  # what is not shown
            if row["state"] == MIXED:
                at_ns = int(row["start_ns"])
                for state, ns in zip(STATES, row["state_ns"].tolist()):
                    if ns:
                        add(self._short(state), at_ns, ns, ns * (state == ThreadState.ON_CPU))
                    at_ns += ns
            else:
                ran_ns = int(row["state_ns"][ThreadState.ON_CPU])
                add(self._stack(row), int(row["start_ns"]), int(row["weight_ns"]), ran_ns)
            end_ns = int(row["start_ns"] + row["duration_ns"])
        add(None, end_ns, 0, 0)
        columns = {"stack": stacks, "time": times, "weight": weights, "threadCPUDelta": cpu_ns[:-1]}
        return {"length": len(stacks), "weightType": "tracing-ms", **columns}

    def _markers(self, index: int) -> dict[str, Any]:
        rows = self._rows(index)
        rows = rows[(rows["state"] == ThreadState.OFF_CPU) | (rows["state"] == ThreadState.RUNQUEUE)]
        waits = rows["state"] == ThreadState.OFF_CPU
        names = [self._names.short(*each) for each in zip(rows["reason"].tolist(), rows["lock"].tolist())]
        return {
            "length": len(rows),
            "name": [self._text(name if is_wait else "ready, no CPU") for name, is_wait in zip(names, waits.tolist())],
            "startTime": (rows["start_ns"] / 1e6).tolist(),
            "endTime": ((rows["start_ns"] + rows["duration_ns"]) / 1e6).tolist(),
            "phase": [1] * len(rows),
            "category": [self._state_category(row) for row in rows],
            "data": [self._said(row) for row in rows],
        }

    def _said(self, row: Any) -> dict[str, Any]:
        reason, lock, owner = int(row["reason"]), int(row["lock"]), self._owners[int(row["stack"])]
        said = {"where": self._labels[owner] if owner >= 0 else ""}
        if row["state"] == ThreadState.OFF_CPU:
            said["reason"] = self._names.short(reason, 0).partition(": ")[2]
            said["lock"] = self._names.whole(reason, lock).partition(": lock ")[2]
            said["object"], said["wokenBy"] = (
                self._names.object(int(row["object"])),
                self._names.waker(int(row["waker"])),
            )
            said["heldBy"] = self._names.holder(int(row["holder"]))
            said["idle"] = "yes" * bool(row["is_idle"])
        return {"type": "Wait", **{key: self._text(text) for key, text in said.items() if text}}

    def _rows(self, index: int) -> Any:
        return self._of.rows[self._of.begin[index] : self._of.begin[index + 1]]

    def _state_category(self, row: Any) -> int:
        if row["state"] == ThreadState.RUNQUEUE:
            return _CATEGORY["Ready, no CPU"]
        if row["is_idle"]:
            return _CATEGORY["Idle"]
        return _CATEGORY[_OF_KINDS[KINDS[kind_of_reason(reason_text(int(row["reason"])))]]]

    def _stack(self, row: Any) -> int | None:
        stack, lock, is_idle = int(row["stack"]), int(row["lock"]), bool(row["is_idle"])
        key = int(row["state"]), stack, int(row["reason"]), lock, is_idle
        if key not in self._stacks:
            frames = [*self._profile.stacks[stack]] if row["state"] != ThreadState.UNKNOWN else []
            places = [self._places[frame] for frame in frames]
            if row["state"] == ThreadState.OFF_CPU and places:
                name, taken = self._names.whole(key[2], lock), self._names.taken_in(lock)
                file = self._names.file(taken) if taken else ""
                places[-1] = (Function(name, file), taken.line if taken else 0, self._state_category(row))
            elif row["state"] == ThreadState.UNKNOWN:
                places = [(Function("lost"), 0, _CATEGORY["Lost"])]
            self._stacks[key] = self._node(places)
        return self._stacks[key]

    def _short(self, state: ThreadState) -> int | None:
        if state in self._shorts:
            return self._shorts[state]
        names = ("on CPU", "ready, no CPU", "waiting", "lost")
        categories = ("Other", "Ready, no CPU", "Wait", "Lost")
        node = self._node([(Function(f"short intervals: {names[state]}"), 0, _CATEGORY[categories[state]])])
        self._shorts[state] = node
        return node

    def _node(self, places: list[_Place]) -> int | None:
        node = -1
        for place in places:
            self._function(place[0])
            frame = self._frames.setdefault(place, len(self._frames))
            node = self._nodes.setdefault((node, frame), len(self._nodes))
        return node if node >= 0 else None

    def _function(self, function: Function) -> None:
        self._functions.setdefault(function, len(self._functions))
        if function.file:
            self._sources.setdefault(function.file, len(self._sources))
        if function.object:
            self._objects.setdefault(function.object, len(self._objects))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _named(function: Function, frame: Frame) -> Function:
    """The reader puts the object before a name."""
    if frame.kind in MARKS:
        return Function(mark_text(frame))
    return replace(function, name=printable(frame.name)) if function.object and frame.name else function


def _category(frame: Frame) -> int:
    if frame.kind == FrameKind.RUNQUEUE:
        return _CATEGORY["Ready, no CPU"]
    return _CATEGORY["Other" if frame.kind in MARKS else _OF_FRAMES.get(frame.kind, "Kernel")]
