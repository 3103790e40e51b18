"""bpfprof: where the wall time of every thread of a Python program goes, seen from the kernel."""

__version__ = "0.1.0"


def load_ipython_extension(shell: object) -> None:
    """`%load_ext bpfprof`."""
    import importlib  # by name: everything imports this module, and nothing else imports a notebook

    importlib.import_module("bpfprof.notebook.magic").load(shell)
