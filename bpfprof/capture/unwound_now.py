"""A thread that sleeps now -> where its functions of C are, by unwind tables that are made for this one process."""

from __future__ import annotations

from bpfprof.capture.process import Process
from bpfprof.capture.sleeping import EXACT, stack_now
from bpfprof.code.maps import NativeCode
from bpfprof.kernel.tables import OwnTables
from bpfprof.model.ids import Tid
from bpfprof.proc import tasks

_PATIENCE_S = 1.0  # for tables, which take tenths of a second where they are not kept yet
_TABLE_BYTES = 64 << 20


class UnwoundNow:
    """Of a process whose memory is open. Nothing is made before a stack is asked for; `close()` ends it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tables: OwnTables | None = None
        self._code: NativeCode | None = None

    def of(self, tid: Tid) -> list[int]:
        """Addresses, innermost first; none where the thread runs, or its stack is not known to its end."""
        if self._code is None:
            self._tables = OwnTables.create()
            self._code = NativeCode.start(self._tables, _TABLE_BYTES)
            self._code.look_at(self._process.pid)
            self._code.files.wait(_PATIENCE_S)
            self._code.meet(self._process.pid)
            self._code.files.read_wanted()
        status = tasks.thread_status(self._process.pid, tid)
        native = stack_now(self._process, tid, status, None, self._code).native if status else None
        return [word & ~EXACT for word in native.words] if native and not native.native_status else []

    def close(self) -> None:
        """Ends its threads."""
        if self._code is not None:
            self._code.files.close()
        if self._tables is not None:
            self._tables.close()
