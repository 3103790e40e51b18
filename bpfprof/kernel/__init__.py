"""The kernel side as user space sees it: probe, compile, load, attach, maps and ring buffers."""
