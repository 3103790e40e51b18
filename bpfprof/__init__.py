"""bpfprof: where the wall time of every thread of a Python program goes, seen from the kernel."""

__version__ = "0.1.0"
