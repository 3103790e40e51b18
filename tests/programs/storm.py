"""A host that has far too much to do: 40 processes of three threads that compute, each with a successor in 1 to 7 s.

This Python runs them, and those that are given do in turn. Prints "ready" when all 40 run; ends with its stdin.
"""

import subprocess
import sys
import time

from lifetime import finished

COUNT = 40
WORKER = """
import json, threading, time
def compute():
    end = time.monotonic() + %d
    while time.monotonic() < end:
        json.dumps([1] * 300)
threads = [threading.Thread(target=compute) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def main():
    pythons, workers, begun = [sys.executable, *sys.argv[1:]], [], 0
    while not (begun and finished(None, 0)):
        workers = [worker for worker in workers if worker.poll() is None]
        for _ in range(COUNT - len(workers)):
            command = [pythons[begun % len(pythons)], "-c", WORKER % (1 + begun % 7)]
            workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            begun += 1
            if begun == COUNT:
                print("ready", flush=True)
        time.sleep(0.02)
    for worker in workers:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    main()
