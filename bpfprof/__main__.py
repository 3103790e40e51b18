"""`python -m bpfprof`."""

from bpfprof.cli import main

main()
