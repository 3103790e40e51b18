"""Profile with its spans -> a file for pprof and what reads its format (github.com/google/pprof, proto/profile.proto).

Its few messages are written here: the field numbers are those of that schema, and root's Python needs no more packages.
"""

from __future__ import annotations

import gzip
from collections import defaultdict

from bpfprof.model.profile import Profile
from bpfprof.model.states import reason_text
from bpfprof.query.work.table import work_of
from bpfprof.render.calls import KINDS, Function, functions_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable

_SAMPLE_TYPES = ("cpu", "ready", "wait")
# Thread, stack, reason, lock.
_Key = tuple[int, int, int, int]


def render_pprof(profile: Profile, options: RenderOptions) -> bytes:
    """Nanoseconds of CPU, ready and wait; labels thread, tid, process, pid, reason and lock (as `--by lock` has it)."""
    made = _Made(profile, options)
    rows = work_of(profile).rows[["thread", "stack", "reason", "lock", "state", "ns"]].tolist()
    values: defaultdict[_Key, list[int]] = defaultdict(lambda: [0, 0, 0])
    for thread, stack, reason, lock, state, ns in rows:
        values[thread, stack, reason, lock][KINDS.index(state)] += ns
    parts = [_message(1, made.value_type(name)) for name in _SAMPLE_TYPES]
    parts += [_message(2, made.sample(key, units)) for key, units in values.items()]
    parts += made.tables()
    parts += [_number(9, profile.info.started_unix_ns), _number(10, profile.info.duration_ns)]
    rate_hz = profile.info.rate_hz
    parts += [_message(11, made.value_type("cpu")), _number(12, 1_000_000_000 // rate_hz)] if rate_hz else []
    parts += [_number(14, made.text("cpu"))]
    parts += [_message(6, text.encode()) for text in made.texts]
    return gzip.compress(b"".join(parts), 6, mtime=0)


class _Made:
    """The tables that samples refer to, each thing once; ids begin with 1."""

    def __init__(self, profile: Profile, options: RenderOptions) -> None:
        self._profile = profile
        self.texts: dict[str, int] = {"": 0}
        self._mappings: dict[str, int] = {}
        self._functions: dict[Function, int] = {}
        self._locations: dict[tuple[Function, int, int], int] = {}
        self._stacks: dict[int, bytes] = {}
        self._labels: dict[tuple[int, int, int], bytes] = {}
        places = zip(functions_of(profile, options), profile.frames)
        self._location_of = [self._location(it, line, frame.offset) for (it, line), frame in places]

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def value_type(self, name: str) -> bytes:
        return _number(1, self.text(name)) + _number(2, self.text("nanoseconds"))

    def sample(self, key: _Key, units: list[int]) -> bytes:
        thread, stack, reason, lock = key
        if stack not in self._stacks:
            self._stacks[stack] = self._packed(stack)
        of_labels = thread, reason, lock
        if of_labels not in self._labels:
            self._labels[of_labels] = self._labelled(*of_labels)
        return self._stacks[stack] + _message(2, b"".join(map(_varint, units))) + self._labels[of_labels]

    def _packed(self, stack: int) -> bytes:
        """Locations from the leaf on."""
        locations = [self._location_of[frame] for frame in reversed(self._profile.stacks[stack])]
        return _message(1, b"".join(map(_varint, locations)))

    def _labelled(self, thread: int, reason: int, lock: int) -> bytes:
        who = self._profile.threads[thread]
        labels = [
            self._label("thread", printable(who.thread_name)),
            self._label("tid", int(who.tid)),
            self._label("process", printable(who.process_name)),
            self._label("pid", int(who.pid)),
            self._label("reason", printable(reason_text(reason))),
            self._label("lock", f"#{lock}" if lock else ""),
        ]
        return b"".join([_message(3, label) for label in labels if label])

    def tables(self) -> list[bytes]:
        """Messages of mappings, locations and functions."""
        parts = [
            _message(3, _number(1, id) + _number(5, self.text(file)) + _number(7, 1))
            for file, id in self._mappings.items()
        ]
        for (function, line, offset), id in self._locations.items():
            content = _number(1, id) + _number(2, self._mappings.get(function.object, 0)) + _number(3, offset)
            parts.append(_message(4, content + _message(4, _number(1, self._functions[function]) + _number(2, line))))
        for function, id in self._functions.items():
            name = self.text(function.name)
            parts.append(
                _message(5, _number(1, id) + _number(2, name) + _number(3, name) + _number(4, self.text(function.file)))
            )
        return parts

    def _location(self, function: Function, line: int, offset: int) -> int:
        if function.object:
            self._mappings.setdefault(function.object, len(self._mappings) + 1)
        self._functions.setdefault(function, len(self._functions) + 1)
        return self._locations.setdefault((function, line, offset), len(self._locations) + 1)

    def _label(self, key: str, value: str | int) -> bytes:
        """b"" where there is nothing to say."""
        if not value:
            return b""
        place = _number(2, self.text(value)) if isinstance(value, str) else _number(3, value)
        return _number(1, self.text(key)) + place


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _message(field: int, content: bytes) -> bytes:
    """Also a text, or a packed list."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content
