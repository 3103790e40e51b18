"""Names of ioctl requests, against the kernel's own headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.model.ioctls import REQUESTS, request_text


def test_numbers_are_those_of_the_headers(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    paths = {"asm": "asm/ioctls.h", "sound": "sound/asound.h"}
    lines = ["#include <stdio.h>", "#include <sys/ioctl.h>"]
    lines += [f"#include <{paths.get(header, 'linux/' + header)}>" for header in REQUESTS]
    lines.append("int main(void) {")
    for names in REQUESTS.values():
        lines += [f'printf("{name} %u\\n", (unsigned){name});' for name in names]
    (tmp_path / "drm").mkdir()
    # kfd_ioctl.h asks for it, which is in a package of its own.
    (tmp_path / "drm" / "drm.h").write_text("#include <linux/types.h>\n")
    source, program = tmp_path / "requests.c", tmp_path / "requests"
    source.write_text("\n".join([*lines, "}"]))
    subprocess.run([compiler, "-I", str(tmp_path), "-o", str(program), str(source)], check=True)
    told = dict(line.split() for line in subprocess.check_output([str(program)], text=True).splitlines())
    assert told == {name: str(number) for names in REQUESTS.values() for name, number in names.items()}


def test_one_that_is_not_known_has_its_number() -> None:
    assert [request_text(0x1261), request_text(0xC020462A)] == ["BLKFLSBUF", "ioctl 0xc020462a"]
