"""From a recording to a Profile: every thread's wall time shared out over its stacks."""
