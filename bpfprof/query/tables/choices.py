"""Words that options have for rows, orders and merges. It imports nothing: options are read before anything large."""

OF_FRAMES = ("function", "line", "file", "library", "operator")
OF_THREADS = ("thread", "process", "container")
ROW_GROUPINGS = (*OF_FRAMES, *OF_THREADS, "reason", "lock", "waker", "task")
STEP, CALL = "step", "call"  # rows of their own: steps of a training loop, calls of libraries that were counted
SORTS = ("own", "total", "cpu", "ready", "wait", "count", "name")
# role: threads of one role in all processes of one name; process: all threads of all processes of one name.
MERGES = ("role", "process", "none")
