"""What takes longest at the start of a recording, begun once its options are read: the kernel side on its way up.

Imports nothing that takes long but numpy, when the kernel is at work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bpfprof.capture.stop import StopRequest
from bpfprof.commands.importing import import_numpy
from bpfprof.dataclass import dataclass
from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.proc.own_process import raise_priority
from bpfprof.proc.reader import reader

BEGUN = "recording "  # the line of standard error that begins so says that nothing is missed from now on


@dataclass(frozen=True)
class Started:
    """What is under way."""

    kernel: KernelSide
    stop: StopRequest


@contextlib.contextmanager
def starting(with_calls: bool = False) -> Iterator[Started]:
    """From here on a signal ends the recording, however short, in good order. Raises UnsupportedError without BCC.

    with_calls: with what counts calls of functions.
    """
    with StopRequest() as stop:
        raise_priority()
        reader().start()
        compilation = Compilation.start(with_calls)
        kernel = KernelSide.start(compilation)
        try:
            import_numpy()
            yield Started(kernel, stop)
        finally:
            kernel.close()
            compilation.cancel()
