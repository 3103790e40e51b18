"""Code objects of many kinds that come and go, each called once for about a millisecond and dropped.

The kinds are in KINDS, or one is chosen by its name; a function's name has its number in it: `replaced_000042`.
Prints `ready PID`; at the end a line of JSON: {"functions": {NAME: {"kind", "start_ns", "wall_ns", "lines"}, ...}}.
start_ns is CLOCK_MONOTONIC, `lines` are the first and the last line of the function's body. Ends when standard input
closes. Standard library only.
"""

import argparse
import collections
import json
import os
import sys
import time

try:
    from dataclasses import field, make_dataclass
except ImportError:  # before CPython 3.7
    make_dataclass = None

from lifetime import finished

CALL_NS = 1_000_000
functions = {}


def burn(until):
    while time.monotonic_ns() < until:
        pass


def template(until):
    while clock() < until:  # noqa: F821
        pass


def made(source, name):
    namespace = {"clock": time.monotonic_ns, "deeper": deeper}
    exec(compile(source, "<kinds>", "exec"), namespace)
    return namespace.pop(name)


def plain(number, name):
    line = number % 30 + 2
    return made("\n" * (line - 2) + f"def {name}(until):\n    while clock() < until: pass\n", name), (line, line)


def replaced(number, name):
    """The code of another function under another name, on another line."""
    first_line = 100 + number % 30
    code = template.__code__.replace(co_name=name, co_firstlineno=first_line)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    return type(template)(code, {"clock": time.monotonic_ns}), (first_line + 1, first_line + 2)


def big(number, name):
    """A function of 300 lines, which computes on the last one."""
    body = "".join(f"    v{line} = {line} + until\n" for line in range(300))
    return made(f"def {name}(until):\n{body}    while clock() < until: pass\n", name), (2, 302)


def deep(number, name):
    """The frames below it are those of code that stays."""
    return made(f"def {name}(until):\n    deeper(6, until)\n", name), (2, 2)


def deeper(depth, until):
    return deeper(depth - 1, until) if depth else burn(until)


def named_tuple(number, name):
    kind = collections.namedtuple(name, "x")
    kind.compute = made(f"def {name}(self):\n    while clock() < self.x: pass\n", name)
    return lambda until: kind(until).compute(), (2, 2)


def data_class(number, name):
    """Its __init__ is made by exec, and calls __post_init__."""
    check = made(f"def {name}(self):\n    while clock() < self.x: pass\n", name)
    return make_dataclass(name, [("x", int), ("y", int, field(default=0))], namespace={"__post_init__": check}), (2, 2)


KINDS = [plain, big, deep, named_tuple]
KINDS += [replaced] if sys.version_info >= (3, 8) else []
KINDS += [data_class] if make_dataclass else []
NAMES = ["{kind}_{number:06}", "größe_{kind}_{number:06}", "関数_{kind}_{number:06}", "x" * 300 + "_{kind}_{number:06}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", nargs="?", choices=[kind.__name__ for kind in KINDS])
    chosen = parser.parse_args().kind
    kinds = [kind for kind in KINDS if chosen in (None, kind.__name__)]
    print("ready", os.getpid(), flush=True)
    started, number = time.monotonic(), 0
    while not finished(None, started):
        kind = kinds[number % len(kinds)]
        name = NAMES[number // len(kinds) % len(NAMES)].format(kind=kind.__name__, number=number)
        function, lines = kind(number, name)
        start_ns = time.monotonic_ns()
        function(start_ns + CALL_NS)
        wall_ns = time.monotonic_ns() - start_ns
        functions[name] = {"kind": kind.__name__, "start_ns": start_ns, "wall_ns": wall_ns, "lines": lines}
        del function
        number += 1
    print(json.dumps({"functions": functions}), flush=True)


if __name__ == "__main__":
    main()
