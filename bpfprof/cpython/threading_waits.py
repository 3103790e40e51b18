"""What a frame of `threading` or `importlib` waits for, or has released: a frame in, the lock or the thread out.

It is in the frame's `self`: Condition.wait() has released the lock of its condition and waits in a lock of its own, or
in a semaphore (Lib/multiprocessing/synchronize.py), and Thread.join(), which before 3.13 waits in
Thread._wait_for_tstate_lock(), waits for the end of its thread (Lib/threading.py, 3.6 to 3.15). The lock of a module
that is imported says which thread does that: _ModuleLock (Lib/importlib/_bootstrap.py, 3.6 to 3.15).
"""

from __future__ import annotations

from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.objects import Changed, Objects
from bpfprof.cpython.value_text import whole_number
from bpfprof.dataclass import dataclass

_JOIN = ("join", "_wait_for_tstate_lock")
_CONDITION_WAIT = "wait"
_IMPORT = "acquire"


@dataclass(frozen=True)
class ThreadingWaits:
    """Of one process and one look."""

    objects: Objects
    values: FrameValues

    def released_lock(self, frame: int, code: int, function: str) -> int:
        """Address of the lock that this frame of threading.py has released until it is woken; 0: none."""
        return self._of_self(frame, code, "_lock") if function.rpartition(".")[2] == _CONDITION_WAIT else 0

    def joined(self, frame: int, code: int, function: str) -> int:
        """pthread id of the thread whose end this frame of threading.py waits for; 0: none."""
        return self._ident(frame, code, "_ident") if function.rpartition(".")[2] in _JOIN else 0

    def imports(self, frame: int, code: int, function: str) -> int:
        """pthread id of the thread that imports the module which this frame of importlib waits for; 0: none."""
        return self._ident(frame, code, "owner") if function.rpartition(".")[2] == _IMPORT else 0

    def notified(self, frame: int, code: int, function: str) -> tuple[int, int]:
        """(the condition that this frame waits for, the lock that its notify() releases); 0, 0: none. To take the lock
        of its condition again is another wait."""
        if function.rpartition(".")[2] != _CONDITION_WAIT:
            return 0, 0
        found = self.values.variables(frame, code)
        try:
            semaphore = 0 if "waiter" in found else self.objects.attribute(found.get("self", 0), "_wait_semaphore")
            waiter = self.objects.attribute(semaphore, "_semlock") if semaphore else found.get("waiter", 0)
        except Changed:
            return 0, 0
        return found.get("self", 0), waiter

    def _ident(self, frame: int, code: int, name: str) -> int:
        ident = self._of_self(frame, code, name)
        try:
            return whole_number(self.objects, ident) if ident else 0
        except Changed:
            return 0

    def _of_self(self, frame: int, code: int, name: str) -> int:
        instance = self.values.variables(frame, code).get("self", 0)
        try:
            return self.objects.attribute(instance, name) if instance else 0
        except Changed:
            return 0
