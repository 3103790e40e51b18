"""Damaged input to everything that reads strangers' bytes. `make fuzz` runs each for ten minutes."""
