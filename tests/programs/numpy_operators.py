"""Operators of numpy, and of scipy if it is there, by turns, each with its own clock: CPU time of this thread.

Prints "ready PID"; when its standard input ends it writes a line of JSON: by operator, as `report --by operator` names
it, seconds from a line of standard input on to its end. Needs numpy.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import json
import select
import time

import numpy as np

draws = np.random.default_rng(0)
LARGE, SMALL = draws.standard_normal((300, 300)), draws.standard_normal((120, 120))
LONG = draws.standard_normal(400_000)
OPERATORS = {
    "numpy.matmul": lambda: LARGE @ LARGE,
    "numpy.sort": lambda: np.sort(LONG[:60_000]),
    "numpy.sin": lambda: np.sin(LONG),
    "numpy.add": lambda: LONG + LONG,
    "numpy.cumsum": lambda: LONG.cumsum(),
    "numpy.linalg.svd": lambda: np.linalg.svd(SMALL),
    "numpy.fft.fft": lambda: np.fft.fft(LONG[:65_536]),
    "numpy.random.standard_normal": lambda: draws.standard_normal(100_000),
}
try:
    from scipy import signal, special

    OPERATORS["scipy.medfilt"] = lambda: signal.medfilt(LONG[:20_000], 9)
    OPERATORS["scipy.special.gammaln"] = lambda: special.gammaln(LONG[:100_000])
except ImportError:
    pass


def main():
    spent, is_first = dict.fromkeys(OPERATORS, 0.0), True
    while True:
        for name, run in OPERATORS.items():
            begin = time.thread_time()
            run()
            spent[name] += time.thread_time() - begin
        if is_first:
            print("ready", os.getpid(), flush=True)
            is_first = False
        if select.select([0], [], [], 0)[0]:
            if not os.read(0, 100):
                break
            spent = dict.fromkeys(OPERATORS, 0.0)
    print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
