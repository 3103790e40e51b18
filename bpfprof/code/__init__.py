"""While recording: whose code is mapped where, and the unwind tables and names of its files."""
