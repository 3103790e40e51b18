"""A busy host: 50 Python processes, of the interpreters named, and 20 of C, each busy for a part of the time.

Ten of the Python processes sleep all the time; --threads more threads are in the first one. Prints one line of JSON
when all are ready: {"python": {PID: INTERPRETER}, "native": [PID, ...]}. Runs until standard input closes; needs cc.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PYTHON_COUNT, ASLEEP_COUNT, NATIVE_COUNT = 50, 10, 20
ASLEEP = ["--busy-ms", "0", "--period-ms", "100000"]


def start(*command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def main():
    parser = argparse.ArgumentParser(description="A busy host.")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    options = parser.parse_args()
    part_time, python, native = str(HERE / "part_time.py"), {}, []
    with tempfile.TemporaryDirectory() as folder:
        binary = str(Path(folder) / "part_time")
        subprocess.run(["cc", "-O2", "-o", binary, str(HERE / "part_time.c")], check=True)
        for number in range(PYTHON_COUNT):
            interpreter = options.pythons[number % len(options.pythons)]
            arguments = ASLEEP if number >= PYTHON_COUNT - ASLEEP_COUNT else []
            arguments = arguments + (["--threads", str(options.threads)] if number == 0 else [])
            python[start(interpreter, part_time, *arguments)] = interpreter
        native = [start(binary) for _ in range(NATIVE_COUNT)]
        for process in [*python, *native]:
            process.stdout.readline()
    ids = {process.pid: interpreter for process, interpreter in python.items()}
    print(json.dumps({"python": ids, "native": [process.pid for process in native]}), flush=True)
    sys.stdin.read()
    for process in [*python, *native]:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
