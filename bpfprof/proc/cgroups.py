"""Control groups (cgroups(7)), v1 and v2: paths and ids of containers in, cgroups and the processes in them out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import lru_cache

from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.model.containers import Container, container_of
from bpfprof.model.ids import Pid
from bpfprof.proc.living import living
from bpfprof.proc.text import without_controls

_READ_LIMIT_BYTES = 16 << 20
_LIST_LIMIT_BYTES = 64 << 10
_CGROUP_LIMIT = 65536  # of one hierarchy
_MANY = 10  # names in an error
_UNIFIED = ""  # the hierarchy of v2
FROZEN, FREEZING = "FROZEN", "FREEZING"  # as freezer.state of v1 has it


@dataclass(frozen=True)
class Cgroup:
    """One cgroup. `hierarchy` is as in /proc/PID/cgroup: controllers, or "" for v2; `path` is the path there."""

    hierarchy: str
    path: str
    directory: str

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.directory)

    def holds(self, pid: Pid) -> bool:
        """Whether a process is in it or in one below."""
        path = _paths_of(pid).get(self.hierarchy)
        return path is not None and f"{path}/".startswith(self.path.rstrip("/") + "/")

    def processes(self) -> set[Pid]:
        """All in it and in those below."""
        pids: set[Pid] = set()
        for directory in _tree(self.directory):
            words = _read(os.path.join(directory, "cgroup.procs"), _READ_LIMIT_BYTES).split()
            pids.update(Pid(int(word)) for word in words if word.isdigit())
        return pids - {Pid(0)}  # of a pid namespace that is not below ours


def cgroup_of(pid: Pid) -> str:
    """The path that says most of a process: that of its container, else the first that is not the root, v2 first.

    "/" when it is in none but the root, "" when it is gone.
    """
    paths = _paths_of(pid)
    named = [paths[name] for name in (_UNIFIED, "name=systemd", *sorted(paths)) if name in paths]
    inner = [path for path in named if path != "/"]
    found = [path for path in inner if container_of(path)] or inner or named
    return without_controls(os.fsencode(found[0])) if found else ""


def hierarchy_of(controller: str) -> Cgroup | None:
    """The root of the hierarchy that limits memory or cpu: of v1 where that has it; None: neither is mounted."""
    roots = {top.hierarchy: top for top in _hierarchies()}
    of_v1 = (top for name, top in roots.items() if controller in name.split(","))
    return next(of_v1, roots.get(_UNIFIED))


def directories_above(top: Cgroup, pid: Pid) -> list[str]:
    """Those of a process's cgroup in a hierarchy and of those above it, its own first; [] when it is gone."""
    path = _paths_of(pid).get(top.hierarchy)
    if path is None or not f"{path}/".startswith(top.path.rstrip("/") + "/"):
        return []
    parts = [part for part in os.path.relpath(path, top.path).split("/") if part != "."]
    return [os.path.join(top.directory, *parts[:count]) for count in range(len(parts), -1, -1)]


class Freezers:
    """What stops whole control groups: cgroup.freeze of v2, the freezer of v1 (cgroup-v2.rst, freezer-subsystem.rst).

    The kernel calls their threads asleep, each in the call in which it was.
    """

    def __init__(self) -> None:
        self._tops = [it for it in _hierarchies() if it.hierarchy == _UNIFIED or "freezer" in it.hierarchy.split(",")]

    def of(self, pid: Pid) -> str:
        """Whether a process is in a group that is frozen, by itself or with one above it: FROZEN; FREEZING: some
        threads of the group are not, as those that nothing interrupts."""
        found = {self._state(directories_above(top, pid)) for top in self._tops}
        return next((state for state in (FROZEN, FREEZING) if state in found), "")

    @staticmethod
    def _state(directories: list[str]) -> str:
        """directories: of a process's group and of those above it."""
        for own in directories[:1]:
            if b"frozen 1" in _read(os.path.join(own, "cgroup.events"), _LIST_LIMIT_BYTES).splitlines():
                return FROZEN
            if state := _read(os.path.join(own, "freezer.state"), 16).strip().decode("ascii", "replace"):
                return state
        wants = (_read(os.path.join(each, "cgroup.freeze"), 16).strip() == b"1" for each in directories)
        return FREEZING if any(wants) else ""


@lru_cache(1)
def freezers() -> Freezers:
    """Those of this machine: on some, to read where they are takes long."""
    return Freezers()


def find_cgroup(text: str) -> list[Cgroup]:
    """The cgroups of a path: absolute (/sys/fs/cgroup/x), or from the root of a hierarchy, in each that has it.

    Raises TargetError, with those that exist, when there is none.
    """
    hierarchies = list(_hierarchies())
    if not hierarchies:
        raise TargetError("no control groups are mounted", "mount -t cgroup2 none /sys/fs/cgroup")
    whole = os.path.normpath(text)
    found = [_inside(top, whole) for top in hierarchies if f"{whole}/".startswith(top.directory + "/")]
    found = found or [_inside(top, f"{top.directory}/{text}") for top in hierarchies]
    there = [cgroup for cgroup in found if _is_cgroup(cgroup.directory)]
    if not there:
        raise TargetError(f"there is no cgroup {text}", f"there are {_listed(_nearest(found))}")
    return there


def find_container(text: str) -> tuple[Container, list[Cgroup]]:
    """The container whose id (or name) is this or begins so, and its cgroups.

    Raises TargetError, with those that exist, when it is none, or more than one.
    """
    by_name: dict[str, tuple[Container, list[Cgroup]]] = {}
    for top in _hierarchies():
        for directory in _tree(top.directory):
            cgroup = _inside(top, directory)
            container = container_of(cgroup.path)
            if container is not None and container_of(os.path.dirname(cgroup.path)) != container:
                by_name.setdefault(container.name, (container, []))[1].append(cgroup)
    fits = [name for name in by_name if name.startswith(text)]
    if text in by_name or len(fits) == 1:
        return by_name[text if text in by_name else fits[0]]
    labels = sorted(by_name[name][0].label for name in fits or by_name)
    if fits:
        raise TargetError(f"{len(fits)} containers begin with {text}", f"they are {_listed(labels)}")
    hint = f"there are {_listed(labels)}" if labels else "no cgroup here has the name of a container"
    raise TargetError(f"there is no container {text}", hint)


def _hierarchies() -> Iterator[Cgroup]:
    """The root of each hierarchy that is mounted, by /proc/self/mountinfo (proc(5))."""
    known, seen = _paths_of(Pid(os.getpid())), set()
    for line in os.fsdecode(_read("/proc/self/mountinfo", _READ_LIMIT_BYTES)).splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        # Of v1 the controllers are among the options of the mount.
        options, is_unified = set(kind[2].split(",")), kind[0] == "cgroup2"
        controllers = (name for name in known if name != _UNIFIED and options.issuperset(name.split(",")))
        hierarchy = _UNIFIED if is_unified else next(controllers, None)
        if hierarchy is not None and hierarchy not in seen:
            seen.add(hierarchy)
            yield Cgroup(hierarchy, fields[3], fields[4].replace("\\040", " "))


def _inside(top: Cgroup, directory: str) -> Cgroup:
    """The cgroup of a directory below a hierarchy's root."""
    below = os.path.relpath(os.path.normpath(directory), top.directory)
    path = os.path.normpath(f"{top.path}/{below}")
    return Cgroup(top.hierarchy, "/" + path.lstrip("/"), os.path.normpath(directory))


def _is_cgroup(directory: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(os.path.join(directory, "cgroup.procs")).st_mode)
    except OSError:
        return False


def _tree(directory: str) -> Iterator[str]:
    """A cgroup's directory and those below, at most _CGROUP_LIMIT."""
    count, waiting = 0, [directory]
    while waiting and count < _CGROUP_LIMIT:
        count += 1
        directory = waiting.pop()
        yield directory
        try:
            with os.scandir(directory) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # removed meanwhile


def _nearest(missing: list[Cgroup]) -> list[str]:
    """The paths of cgroups beside the ones that are missing."""
    names = set()
    for cgroup in missing:
        directory, path = os.path.dirname(cgroup.directory), os.path.dirname(cgroup.path)
        while not _is_cgroup(directory) and path != "/":
            directory, path = os.path.dirname(directory), os.path.dirname(path)
        if _is_cgroup(directory):
            with os.scandir(directory) as entries:
                names |= {os.path.join(path, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)}
    return sorted(names)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return without_controls(os.fsencode(", ".join(names[:_MANY]) + more)) or "none but the root"


def _paths_of(pid: Pid) -> dict[str, str]:
    """Hierarchy -> path; empty when the process is gone."""
    lines = os.fsdecode(_read(f"/proc/{living(pid)}/cgroup", _LIST_LIMIT_BYTES)).split("\n")
    fields = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return {hierarchy: path.removesuffix(" (deleted)") for _, hierarchy, path in fields}


def _read(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""
