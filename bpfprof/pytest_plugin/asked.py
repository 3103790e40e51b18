"""The options of a run of tests, checked before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.render.formats import Format, format_for_suffix

if TYPE_CHECKING:
    import pytest

    from bpfprof.pytest_plugin.base import Run

_TOP = 10
_RECORDING_SUFFIX = ".bpfprof"


@dataclass(frozen=True)
class Asked:
    """format: of `output`, None: it is the recording or what each test took."""

    output: Path | None
    format: Format | None
    base: tuple[Run, ...]
    fail_over: float | None
    top: int

    @classmethod
    def of(cls, config: pytest.Config) -> Asked:
        """Raises UsageError, RecordingError for a base that cannot be read."""
        from bpfprof.pytest_plugin.base import read_run

        output, top, fail_over = (config.getoption(f"bpfprof_{name}") for name in ("output", "top", "fail_over"))
        paths = config.getoption("bpfprof_base") or []
        if fail_over is not None and not paths:
            raise UsageError("--bpfprof-fail-over compares with a base", "give one: --bpfprof-base FILE.json")
        if fail_over is not None and not fail_over >= 0:
            raise UsageError(f"--bpfprof-fail-over wants percent, 0 or more, not {fail_over:g}")
        if top is not None and top < 1:
            raise UsageError(f"--bpfprof-top wants a number of tests, not {top}")
        path = Path(output) if output else None
        chosen = _format_of(path) if path else None
        return cls(path, chosen, tuple(read_run(Path(each)) for each in paths), fail_over, top or _TOP)

    @property
    def recording(self) -> Path | None:
        """Where the recording is to be kept."""
        return self.output if self.output and self.output.suffix == _RECORDING_SUFFIX else None


def _format_of(path: Path) -> Format | None:
    if path.suffix in (_RECORDING_SUFFIX, ".json") and not path.name.endswith((".speedscope.json", ".trace.json")):
        return None
    found = format_for_suffix(path)
    if found is None:
        hint = ".json has what each test took, .bpfprof the recording, .html a page"
        raise UsageError(f"the suffix of {path} does not tell what to write", hint)
    return found
