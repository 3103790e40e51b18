"""Plain types that every other package shares; no input or output happens here."""
