"""Rows, groups and trees, as they were asked for."""
