"""Profiles of a recording that goes on -> a server that collects them."""
