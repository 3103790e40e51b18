"""Where CPython keeps things: which interpreter a process runs, its thread states, frames, code objects and lines.

Nothing here stops or changes a target. What is read may change while it is read; every pointer is checked or bounded.
"""
