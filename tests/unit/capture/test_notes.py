"""What is said of targets whose Python is not read."""

from __future__ import annotations

from types import SimpleNamespace

from bpfprof.capture.watch import Watch


def test_processes_with_one_reason_are_one_line() -> None:
    watch = object.__new__(Watch)
    watch.options = SimpleNamespace(watches_all=False)  # type: ignore[assignment]
    watch.targets = SimpleNamespace(members=SimpleNamespace(cgroups=()))  # type: ignore[assignment]
    notes = {1: "PyPy is not read", 2: "", 3: "PyPy is not read", 4: "no Python interpreter", 5: "PyPy is not read"}
    found = {pid: SimpleNamespace(pid=pid, name="pypy3", note=note) for pid, note in notes.items()}
    watch.processes = SimpleNamespace(by_pid=found)  # type: ignore[assignment]
    assert watch.notes() == [
        "process 1 (pypy3) and 2 more: PyPy is not read; their threads and waits are recorded without Python frames",
        "process 4 (pypy3): no Python interpreter; its threads and waits are recorded without Python frames",
    ]
