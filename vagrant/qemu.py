"""Boots rows of the matrix under qemu and runs the tests marked `kernel` in each; KVM is not needed.

`vagrant/run.sh --qemu [ROW...]` calls it. vagrant/reports/ROW/ gets the serial log, junit.xml, facts.json and the exit
status. With --table, docs/kernels.md is written anew from the reports of all rows.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import images
import table
import yaml

HERE = Path(__file__).resolve().parent
_MEMORY_MIB = 2048
_LIMIT_SECONDS = 1800  # of one machine, which takes some 300, and thrice that where the host has half of the CPUs
_LAST_WORDS_SECONDS = 15
_REPORT_BYTES = 64 << 20
_TESTS = "sh vagrant/guest.sh"
# What bpfprof compiled there is kept for the next machine of the row: a compiler takes most of its time there.
_COMPILED = "compiled-"
_WITH_COMPILED = f"""kept=/var/cache/bpfprof
mkdir -p -m 700 $kept; cp -p .compiled/* $kept 2>/dev/null
{{}}
status=$?
for file in $kept/*; do [ -f "$file" ] && cp "$file" "$BPFPROF_REPORTS/{_COMPILED}${{{{file##*/}}}}"; done
exit $status"""
# 65: at a panic all tasks are printed and, since Linux 5.18, where all CPUs are.
_KERNEL_LINE = (
    "console=ttyS0 loglevel=4 panic=-1 oops=panic unknown_nmi_panic panic_print=65 tsc=reliable mitigations=off"
)
# Without AVX: numpy's sort with AVX2 ended with a segmentation fault on such a CPU of qemu 7.2.
_MACHINE = f"-M q35 -accel tcg,thread=multi -cpu max,avx=off,avx2=off -smp 2 -m {_MEMORY_MIB}".split()
_DEVICES = [
    "-display",
    "none",
    "-serial",
    "file:serial.log",
    "-monitor",
    "stdio",
    "-no-reboot",
    "-nodefaults",
    "-net",
    "none",
]


def boot(row: dict, packages: list[str], reports: Path, command: str) -> str:
    """What became of the row: "passed", or why it did not."""
    kernel, root, qemu = images.kernel(row), images.root(row, packages), images.emulator()
    with images.scratch() as scratch:
        checkout, report_disk = scratch / "checkout", scratch / "reports"
        images.checkout(checkout, _WITH_COMPILED.format(command), images.compiled(row))
        with open(report_disk, "wb") as file:
            file.truncate(_REPORT_BYTES)
        # It ends with this process, however that ends.
        line = ["setpriv", "--pdeathsig", "KILL", *qemu, *_MACHINE]
        line += ["-kernel", str(kernel / "vmlinuz"), "-initrd", str(kernel / "initrd")]
        line += ["-append", f"{_KERNEL_LINE} {row.get('kernel_line', '')}"]
        for disk, kind in ((root, "snapshot=on"), (checkout, "snapshot=on"), (report_disk, "cache=unsafe")):
            line += ["-drive", f"file={disk},if=virtio,format=raw,{kind}"]
        if not _ends([*line, *_DEVICES], reports):
            return f"not done after {_LIMIT_SECONDS} s: see serial.log"
        try:
            with tarfile.open(report_disk) as archive:
                for member in archive:
                    if member.isfile():  # what the machine wrote is data: a name, and bytes under it
                        content = archive.extractfile(member)
                        (reports / Path(member.name).name).write_bytes(content.read() if content else b"")
            status = (reports / "status").read_text()
        except (tarfile.TarError, FileNotFoundError):  # as after a panic
            return "no report: see serial.log"
        finally:
            images.keep_compiled(row, {path.name[len(_COMPILED) :]: path for path in reports.glob(f"{_COMPILED}*")})
    return "passed" if status == "exit status 0\n" else "FAILED"


def _ends(line: list[str], reports: Path) -> bool:
    """Runs the emulator with its serial log in the folder; whether it ended in time.

    A machine that does not gets an interrupt that no mask holds back, at which its kernel prints where each CPU is.
    """
    options = {"cwd": reports, "stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with open(reports / "emulator.log", "wb") as log, subprocess.Popen(line, stderr=log, **options) as emulator:
        try:
            emulator.wait(_LIMIT_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            with contextlib.suppress(subprocess.TimeoutExpired):
                emulator.communicate(b"nmi\n", timeout=_LAST_WORDS_SECONDS)
            return False
        finally:
            emulator.kill()


def main() -> None:
    """Exits with 1 when a row failed, with 2 when there is no such row."""
    parser = argparse.ArgumentParser(prog="vagrant/run.sh --qemu", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="by default all")
    parser.add_argument("--ci", action="store_true", help="only the rows with `ci`: the oldest and the newest kernel")
    parser.add_argument("--table", action="store_true", help="write docs/kernels.md")
    parser.add_argument("--command", default=_TESTS, help="to run in the machine in place of the tests")
    parser.add_argument("--prepare", action="store_true", help="only make what the rows boot")
    asked = parser.parse_args()
    matrix = yaml.safe_load((HERE / "matrix.yaml").read_text())
    rows = {row["name"]: row for row in matrix["rows"]}
    if unknown := set(asked.rows) - set(rows):
        parser.error(f"there is no row {', '.join(sorted(unknown))}, only: {' '.join(rows)}")
    chosen = [row for row in rows.values() if row["name"] in (asked.rows or rows) and (row["ci"] or not asked.ci)]
    if asked.prepare:
        for row in chosen:
            images.kernel(row), images.root(row, matrix["packages"]), images.emulator()
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, which ends the emulator too
    outcomes = []
    ahead = ThreadPoolExecutor(1)  # makes the next row's images while one runs
    for row, following in zip(chosen, [*chosen[1:], None]):
        if following:  # an error shows when it is that row's turn
            ahead.submit(images.root, following, matrix["packages"])
        reports = HERE / "reports" / row["name"]
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir(parents=True)
        started = time.monotonic()
        outcome = boot(row, matrix["packages"], reports, asked.command)
        outcomes.append(outcome)
        seconds = round(time.monotonic() - started)
        (reports / "seconds").write_text(str(seconds))
        print(f"{row['name']:<16} {outcomes[-1]} {table.tests(reports)} {seconds} s", flush=True)
        if outcomes[-1] != "passed":
            print((reports / "serial.log").read_bytes()[-6000:].decode(errors="replace"))
    if asked.table:
        table.write(HERE.parent / "docs" / "kernels.md", list(rows.values()), HERE / "reports")
    sys.exit(any(outcome != "passed" for outcome in outcomes))


if __name__ == "__main__":
    main()
