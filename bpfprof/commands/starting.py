"""What takes longest at the start of a recording, begun before anything else: the kernel side on its way up.

Imports nothing that takes long. `record` is known by its name alone, so cli begins before click is imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from bpfprof.capture.stop import StopRequest
from bpfprof.errors import UnsupportedError
from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.proc.own_process import raise_priority
from bpfprof.proc.reader import reader


@dataclass(frozen=True)
class Started:
    """What is under way. `kernel` is None where it could not be begun: `KernelSide.start()` says why."""

    compilation: Compilation
    kernel: KernelSide | None
    stop: StopRequest

    def kernel_side(self, with_calls: bool = False) -> KernelSide:
        """What is under way; with_calls: another one, in its place. To be closed. Raises UnsupportedError."""
        if not with_calls:
            return self.kernel or KernelSide.start(self.compilation)
        if self.kernel is not None:
            self.kernel.close()
        self.compilation.cancel()
        return KernelSide.start(Compilation.start(with_calls=True))


@contextlib.contextmanager
def starting() -> Iterator[Started]:
    """From here on a signal ends the recording, however short, in good order. Raises UnsupportedError without BCC."""
    with StopRequest() as stop:
        raise_priority()
        reader().start()
        compilation = Compilation.start()
        kernel: KernelSide | None = None
        try:
            with contextlib.suppress(UnsupportedError):  # said later, if nothing is wrong with the options
                kernel = KernelSide.start(compilation)
            yield Started(compilation, kernel, stop)
        finally:
            if kernel is not None:
                kernel.close()
            compilation.cancel()
