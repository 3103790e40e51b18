"""`%load_ext bpfprof`: the magics `%bpfprof` and `%%bpfprof` of IPython and Jupyter."""
