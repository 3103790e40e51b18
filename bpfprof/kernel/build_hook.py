"""Hatchling's hook: BPF programs that are compiled where bpfprof is built need no compiler where it runs.

Only where BCC is there. They are for kernels since 5.15, and since 6.6 where calls of libraries are counted; on others
bpfprof compiles its programs when it first needs them, as it does where what it was built from has changed since.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ReadyMadePrograms(BuildHookInterface):  # type: ignore[type-arg]
    """For a wheel, and for an editable installation."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        sys.path.insert(0, self.root)
        try:
            from bpfprof.errors import UnsupportedError
            from bpfprof.kernel.compiler import READY_MADE, Compilation
            from bpfprof.kernel.kernel_facts import KernelFacts

            made = [Compilation.of(KernelFacts(True, True, ()), with_calls) for with_calls in (False, True)]
            _write(READY_MADE, {each.file_name: each.content() for each in made})
        except (UnsupportedError, OSError) as error:
            self.app.display_warning(f"without ready-made BPF programs: {error}")
            return
        finally:
            sys.path.remove(self.root)
        build_data["artifacts"].append("/bpfprof/kernel/ready_made/*.json")


def _write(folder: Path, contents: dict[str, bytes]) -> None:
    """These files and no others; each is there as a whole or not at all."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        if not (folder / name).exists():
            (folder / f"{name}.part").write_bytes(content)
            (folder / f"{name}.part").replace(folder / name)
    for path in folder.iterdir():
        if path.name not in contents:
            path.unlink()
