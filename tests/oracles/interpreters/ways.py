"""How each interpreter is had: a name in, what to put before a program of Python out, or why there is none.

A maker gets an empty folder of its own and returns a `Way`, or raises NotHere.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests import free_threaded as free_threaded_builds
from tests import sid as sid_packages
from tests.integration.one_file import packed
from tests.integration.recorded import LOADER, PROGRAMS, interpreters, program

_BEFORE_3_8 = {"PYTHONPATH": str(PROGRAMS / "before_3_8")}
# What the programs import, which a program that runs them by name does not show.
_IMPORTED = ("argparse", "ctypes", "functools", "json", "platform", "pyexpat", "threading", "types")


class NotHere(Exception):
    """Why an interpreter cannot be had on this machine."""


@dataclass(frozen=True)
class Way:
    """`command` comes before a program and its arguments. `runs_in_child`: what it starts is the Python."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    runs_in_child: bool = False


Maker = Callable[[Path], Way]


def _of_version(version: str) -> str:
    """Path of pyenv's, or sid's."""
    found = interpreters(version)
    if version in found:
        return found[version]
    if f"sid-{version}" not in found:
        raise NotHere(f"no CPython {version} under ~/.pyenv/versions, or of Debian sid (`make test-tools` makes it)")
    return found[f"sid-{version}"]


def _environment(version: str) -> dict[str, str]:
    return dict(_BEFORE_3_8) if version in ("3.6", "3.7") else {}


def pyenv(version: str) -> Maker:
    """The interpreter itself."""
    return lambda folder: Way((_of_version(version),), _environment(version))


def path(name: str) -> Maker:
    """What a package installed."""

    def make(folder: Path) -> Way:
        if not Path(name).exists():
            raise NotHere(f"no {name}")
        return Way((name,))

    return make


def sid(version: str, **environment: str) -> Maker:
    """One of tests/sid.py."""

    def make(folder: Path) -> Way:
        versions = sid_packages.MORE_VERSIONS if version in sid_packages.MORE_VERSIONS else sid_packages.VERSIONS
        try:
            sid_packages.make(versions)
        except (RuntimeError, LookupError, OSError) as error:
            raise NotHere(f"Debian sid's packages could not be had: {str(error).splitlines()[0]}") from error
        return Way((sid_packages.pythons(versions)[version],), environment)

    return make


def free_threaded(**environment: str) -> Maker:
    """The one of tests/free_threaded.py."""

    def make(folder: Path) -> Way:
        for name in free_threaded_builds.pythons().values():
            return Way((name,), environment)
        raise NotHere("`make test-tools` has not built it")

    return make


def stripped(version: str) -> Maker:
    """With a copy of its library that has neither symbols nor debug sections."""

    def make(folder: Path) -> Way:
        python = Path(_of_version(version))
        libraries = list(python.resolve().parents[1].glob(f"lib/libpython{version}*.so.1.0"))
        if not libraries or shutil.which("strip") is None:
            raise NotHere("no shared library, or no strip")
        subprocess.run(["strip", "-o", folder / libraries[0].name, libraries[0]], check=True)
        return Way((str(python),), {**_environment(version), "LD_LIBRARY_PATH": str(folder)})

    return make


def embedded(version: str, how: str) -> Maker:
    """In a program of C; `how` is what embedded.py calls it."""

    def make(folder: Path) -> Way:
        command = (_of_version(version), program("embedded.py"), how, str(folder), program("runs_script.c"))
        return Way(command, _environment(version))

    return make


def by_loader(version: str) -> Maker:
    """Then /proc/PID/exe is the loader."""
    return lambda folder: Way((LOADER, str(Path(_of_version(version)).resolve())), _environment(version))


def sub_interpreter(version: str, gil: str) -> Maker:
    """All is run by an interpreter that is not the main one; `gil` is what in_subinterpreter.py calls it."""
    return lambda folder: Way((_of_version(version), program("in_subinterpreter.py"), gil))


def one_file() -> Maker:
    """A program that unpacks a Python and runs it in a child."""

    def make(folder: Path) -> Way:
        imports = [f"--hidden-import={name}" for name in _IMPORTED]
        made = packed(Path(program("run_script.py")), folder, *imports)
        return Way((str(made),), {"TMPDIR": str(folder)}, runs_in_child=True)

    return make
