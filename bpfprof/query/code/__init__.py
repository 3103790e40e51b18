"""Whose code the frames and stacks of a profile are."""
