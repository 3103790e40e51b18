"""Threads by what they have in common: roles, pools, containers, limits."""
