"""Kinds of values that options and arguments take, each with its sentence for what is none."""

from __future__ import annotations

import math
from typing import Any

import click

from bpfprof.model.ids import Pid

_LONGEST_PAIR = 1_000  # letters
_END_OF_PIDS = 1 << 31  # an int of the kernel; which there are is not for the command line to know


class WrongValue(click.BadParameter):
    """Its text goes on where the name of the option ends; `hint` is what helps."""

    def __init__(self, message: str, parameter: click.Parameter | None, ctx: click.Context | None, hint: str = ""):
        super().__init__(message, ctx, parameter)
        self.hint = hint


# Before click 8.5 ParamType is not generic, so its arguments cannot be given.
class _Pid(click.ParamType):  # type: ignore[type-arg]
    name = "pid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pid:
        """The process of this number; whether there is one is not asked."""
        text = str(value)
        if not (text.isascii() and text.isdecimal()):
            raise WrongValue(f"wants the number of a process, not {text}", param, ctx, f"pgrep -af {text} lists them")
        if not 0 < int(text) < _END_OF_PIDS:
            raise WrongValue(f"wants the number of a process, not {text}", param, ctx)
        return Pid(int(text))


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number of these bounds, both included."""

    name = "n"

    def __init__(self, least: int, most: int, what: str = "a whole number") -> None:
        self._least, self._most, self._what = least, most, what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        try:
            number = int(value)
        except ValueError:
            number = self._least - 1
        if not self._least <= number <= self._most:
            bounds = f"from {self._least:,} to {self._most:,}"
            raise WrongValue(f"wants {self._what} {bounds}, not {value}", param, ctx)
        return number


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number, not only a whole one. Without `least` it is more than 0; `most` is included."""

    name = "x"

    def __init__(self, what: str, least: float | None = None, most: float = math.inf) -> None:
        self._what, self._least, self._most = what, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, which is finite."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        least = self._least
        if number < math.inf and (number > 0 if least is None else number >= least) and number <= self._most:
            return number
        bounds = "more than 0" if least is None else f"{least:g} or more"
        if least is not None and self._most < math.inf:
            bounds = f"{least:g} to {self._most:,.0f}"
        raise WrongValue(f"wants {self._what}, {bounds}, not {value}", param, ctx)


class _Pair(click.ParamType):  # type: ignore[type-arg]
    name = "pair"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """(name, value)"""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals or len(value) > _LONGEST_PAIR:
            raise WrongValue(f"wants NAME=VALUE, not {value}", param, ctx)
        return name, text


PID = _Pid()
PAIR = _Pair()
RATE = Whole(1, 20_000, "samples a second,")
MICROSECONDS = Whole(0, 3_600_000_000, "microseconds,")
ROWS = Whole(1, 10_000)
