"""One module a command: what the user asked for, joined from the parts that do it."""
