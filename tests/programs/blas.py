"""Matrix products by OpenBLAS, in threads of Python and in OpenBLAS's own; as many as OPENBLAS_NUM_THREADS says.

Prints `ready PID` after the first product; runs until standard input closes. Needs numpy.
"""

import os
import sys
import threading
import time

import numpy as np


def multiply(first):
    total = 0.0
    while True:
        total += float((first @ first)[0, 0])
        np.linalg.solve(first, first[0])
        time.sleep(0.001)


def main():
    generator = np.random.default_rng(1)
    matrices = [generator.standard_normal((size, size)) for size in (300, 400)]
    matrices[0] @ matrices[0]
    for matrix in matrices:
        threading.Thread(target=multiply, args=(matrix,), daemon=True).start()
    print(f"ready {os.getpid()}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
