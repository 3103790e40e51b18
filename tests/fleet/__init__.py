"""Data sets of made-up recordings, of which it is known what queries over them have to find."""
