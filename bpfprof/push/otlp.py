"""Profile -> ExportProfilesServiceRequest (opentelemetry-proto, profiles/v1development).

For each of CPU, ready and wait there is a profile, because one has one type of sample. All share a dictionary, of whose
tables the first row says "none".
"""

from __future__ import annotations

import hashlib
from typing import Any

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.profiles.v1development import profiles_pb2 as schema

from bpfprof import __version__
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.states import reason_text
from bpfprof.push.names import app_name
from bpfprof.render.calls import KINDS, Function, functions_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable

_SAMPLE_TYPES = ("cpu", "ready", "wait")


def otlp_request(profile: Profile) -> bytes:
    """Nanoseconds; attributes as OpenTelemetry names them, where it does."""
    tables = _Tables(profile)
    request = service.ExportProfilesServiceRequest(dictionary=tables.dictionary)
    resource = request.resource_profiles.add()
    names = {"service.name": app_name(profile), "host.name": printable(profile.info.host_name)}
    resource.resource.attributes.extend([_key_value(key, value) for key, value in names.items()])
    scope = resource.scope_profiles.add()
    scope.scope.name, scope.scope.version = "bpfprof", __version__
    made = []
    for name in _SAMPLE_TYPES:
        one = scope.profiles.add(time_unix_nano=profile.info.started_unix_ns, duration_nano=profile.info.duration_ns)
        one.sample_type.type_strindex, one.sample_type.unit_strindex = tables.text(name), tables.text("nanoseconds")
        seed = f"{profile.info.host_name} {profile.info.start_ns} {profile.info.started_unix_ns} {name}"
        one.profile_id = hashlib.sha256(seed.encode()).digest()[:16]
        made.append(one)
    if profile.info.rate_hz:
        made[0].period_type.CopyFrom(made[0].sample_type)
        made[0].period = 1_000_000_000 // profile.info.rate_hz
    rows = picked(profile.weights, profile.weights["total_ns"] > 0)
    for thread, stack, reason, state, ns in rows[["thread", "stack", "reason", "state", "total_ns"]].tolist():
        sample = made[KINDS.index(state)].samples.add(stack_index=tables.stack(stack), values=[ns])
        sample.attribute_indices.extend(tables.attributes(thread, reason))
    tables.close()
    request.dictionary.CopyFrom(tables.dictionary)
    return bytes(request.SerializeToString())


class _Tables:
    """Each thing once; the first row of each table is empty."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.dictionary = schema.ProfilesDictionary()
        for table in ("mapping", "location", "function", "link", "attribute", "stack"):
            getattr(self.dictionary, f"{table}_table").add()
        self._texts: dict[str, int] = {"": 0}
        self._mappings: dict[str, int] = {"": 0}
        self._functions: dict[Function, int] = {}
        self._locations: dict[tuple[Function, int, int], int] = {}
        self._stacks: dict[int, int] = {}
        self._attributes: dict[tuple[str, str | int], int] = {}
        self._of_frames = functions_of(profile, RenderOptions())

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def close(self) -> None:
        """Puts the texts in, once they are all known."""
        self.dictionary.string_table.extend(self._texts)

    def stack(self, stack: int) -> int:
        """From the leaf on."""
        if stack not in self._stacks:
            frames = self._profile.stacks[stack]
            self.dictionary.stack_table.add(location_indices=[self._location(frame) for frame in reversed(frames)])
            self._stacks[stack] = len(self.dictionary.stack_table) - 1
        return self._stacks[stack]

    def attributes(self, thread: int, reason: int) -> list[int]:
        who = self._profile.threads[thread]
        pairs: dict[str, str | int] = {
            "process.pid": int(who.pid),
            "process.executable.name": printable(who.process_name),
            "thread.id": int(who.tid),
            "thread.name": printable(who.thread_name),
            "bpfprof.wait.reason": printable(reason_text(reason)) if reason else "",
        }
        return [self._attribute(key, value) for key, value in pairs.items() if value]

    def _attribute(self, key: str, value: str | int) -> int:
        if (key, value) not in self._attributes:
            row = self.dictionary.attribute_table.add(key_strindex=self.text(key))
            row.value.CopyFrom(_value(value))
            self._attributes[key, value] = len(self.dictionary.attribute_table) - 1
        return self._attributes[key, value]

    def _location(self, frame: int) -> int:
        (function, line), offset = self._of_frames[frame], self._profile.frames[frame].offset
        key = function, line, offset
        if key not in self._locations:
            row = self.dictionary.location_table.add(mapping_index=self._mapping(function.object), address=offset)
            row.lines.add(function_index=self._function(function), line=line)
            self._locations[key] = len(self.dictionary.location_table) - 1
        return self._locations[key]

    def _mapping(self, file: str) -> int:
        if file not in self._mappings:
            self.dictionary.mapping_table.add(filename_strindex=self.text(file))
            self._mappings[file] = len(self.dictionary.mapping_table) - 1
        return self._mappings[file]

    def _function(self, function: Function) -> int:
        if function not in self._functions:
            name = self.text(function.name)
            self.dictionary.function_table.add(
                name_strindex=name, system_name_strindex=name, filename_strindex=self.text(function.file)
            )
            self._functions[function] = len(self.dictionary.function_table) - 1
        return self._functions[function]


def _value(value: str | int) -> Any:
    return common.AnyValue(int_value=value) if isinstance(value, int) else common.AnyValue(string_value=value)


def _key_value(key: str, value: str | int) -> Any:
    return common.KeyValue(key=key, value=_value(value))
