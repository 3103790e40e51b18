"""The recording loop: targets in, a recording out."""
