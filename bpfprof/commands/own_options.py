"""Options of `record` as words -> what they ask for, where a program records itself (`%bpfprof` of a notebook)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click

from bpfprof.commands.filters import Wanted
from bpfprof.commands.options import Shown
from bpfprof.commands.record import record
from bpfprof.commands.usage_errors import as_usage_error
from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.render.formats import RenderOptions

Kind = TypeVar("Kind")
_NOT_HERE = {
    **{"pids": "--pid", "watches_all": "--all", "cgroups": "--cgroup", "containers": "--container"},
    **{"kills": "--kill", "until_eof": "--until-eof", "opens": "--open", "events": "--event"},
    "push_url": "--push",
}


@dataclass(frozen=True)
class OwnOptions:
    """words: options for `record`. rest_count: so many words that follow are no options."""

    words: tuple[str, ...]
    shown: Shown
    look: RenderOptions
    wanted: Wanted
    rest_count: int

    @classmethod
    def of(cls, words: Sequence[str]) -> OwnOptions | None:
        """None: help was asked for, and is shown. Raises UsageError."""
        try:
            context = record.make_context("%bpfprof", list(words), allow_interspersed_args=False)
        except click.exceptions.Exit:
            return None
        except click.ClickException as error:
            raise as_usage_error(error) from error
        values = context.params
        for name, option in _NOT_HERE.items():
            if values.get(name):
                raise UsageError(f"{option} means nothing here: it is this process that is recorded", "leave it out")
        rest = len(values["command"])
        own = tuple(word for word in words[: len(words) - rest] if word != "--")
        shown, look, wanted = _gathered(Shown, values), _gathered(RenderOptions, values), _gathered(Wanted, values)
        return cls(own, shown, look, wanted, rest)


def _gathered(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """As commands.options.gathered() does it for a command."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})
