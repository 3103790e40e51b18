"""Folders whose tests are in the gate, but for what is marked `second_tier`; elsewhere it is what is marked `gate`."""

GATE_FOLDERS = ("unit", "ebpf_host", "golden", "oracles", "command")
