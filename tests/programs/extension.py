"""Threads that go through 12 levels of C (nested.c, a CPython extension compiled at start) and back into Python.

`call_back_thread` alternates between Python work and a nap at the bottom, `stay_in_c_thread` burns in C only, and a
thread of the extension, "native", never sees Python. Prints, when the extension has been called once, one line of JSON:
    {"ready": true, "pid": PID, "threads": {FUNCTION: TID, ...}, "native": TID}
Runs until standard input closes. Needs a C compiler and the headers of the interpreter; `--debug` builds with -g.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time


def load_extension(directory, is_debug):
    """Without frame pointers, as distributions built until 2024 did."""
    source, library = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nested.c"), directory + "/nested.so"
    flags = ["-O2", "-fomit-frame-pointer", "-fPIC", "-shared", "-pthread", *(["-g"] if is_debug else [])]
    include = "-I" + sysconfig.get_paths()["include"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, include, "-o", library, source], check=True)
    spec = importlib.util.spec_from_file_location("nested", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def at_the_bottom():
    end = time.monotonic() + 0.004
    while time.monotonic() < end:
        sum(range(200))
    rest_at_the_bottom()


def rest_at_the_bottom():
    time.sleep(0.004)


def call_back_thread(nested):
    while True:
        nested.call_back(at_the_bottom)


def stay_in_c_thread(nested):
    while True:
        nested.stay_in_c(0.004)
        nested.stay_in_c_without_gil(0.002)
        time.sleep(0.004)


def main():
    parser = argparse.ArgumentParser(description="Python above and below 12 levels of C.")
    parser.add_argument("--debug", action="store_true", help="build the extension with -g")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="extension-") as directory:
        nested = load_extension(directory, options.debug)
        threads = {}
        for function in (call_back_thread, stay_in_c_thread):
            thread = threading.Thread(target=function, args=(nested,), daemon=True)
            thread.start()
            threads[function.__name__] = thread.native_id
        before = set(os.listdir("/proc/self/task"))
        nested.start_thread_of_c()
        native = (set(os.listdir("/proc/self/task")) - before).pop()
        answer = {"ready": True, "pid": os.getpid(), "threads": threads, "native": int(native)}
        print(json.dumps(answer), flush=True)
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
