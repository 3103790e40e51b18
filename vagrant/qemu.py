"""Boots rows of the matrix under qemu without KVM and runs `pytest -m kernel` in each.

`vagrant/run.sh --qemu [ROW...]` calls it. vagrant/reports/ROW/ gets its serial log, junit.xml and reports.
"""

from __future__ import annotations

import argparse
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import images
import yaml

HERE = Path(__file__).resolve().parent
_MEMORY_MIB = 2048
_LIMIT_SECONDS = 900
_REPORT_BYTES = 64 << 20


def boot(row: dict, packages: list[str], reports: Path, command: str) -> int:
    kernel, root, qemu = images.kernel(row), images.root(row, packages), images.emulator()
    checkout = images.checkout(command)
    with tempfile.TemporaryDirectory(dir=images.cache()) as scratch:
        report_disk = Path(scratch) / "reports"
        with open(report_disk, "wb") as file:
            file.truncate(_REPORT_BYTES)
        disks = [(root, "snapshot=on"), (checkout, "snapshot=on"), (report_disk, "cache=unsafe")]
        line = [*qemu, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(_MEMORY_MIB)]
        line += ["-kernel", str(kernel / "vmlinuz"), "-initrd", str(kernel / "initrd"), "-append"]
        line += ["console=ttyS0 loglevel=4 panic=-1 oops=panic tsc=reliable mitigations=off"]
        for path, options in disks:
            line += ["-drive", f"file={path},if=virtio,format=raw,{options}"]
        line += [
            "-display",
            "none",
            "-serial",
            "stdio",
            "-monitor",
            "none",
            "-no-reboot",
            "-nodefaults",
            "-net",
            "none",
        ]
        with open(reports / "serial.log", "wb") as log:
            subprocess.run(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_LIMIT_SECONDS)
        checkout.unlink()
        with tarfile.open(report_disk) as archive:
            archive.extractall(reports, filter="data")
    return int((reports / "status").read_text().split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--command", default="sh vagrant/guest.sh")
    parsed = parser.parse_args()
    names = parsed.rows
    matrix = yaml.safe_load((HERE / "matrix.yaml").read_text())
    for row in matrix["rows"]:
        if names and row["name"] not in names:
            continue
        reports = HERE / "reports" / row["name"]
        reports.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        status = boot(row, matrix["packages"], reports, parsed.command)
        print(f"{row['name']:<16} status {status} {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
