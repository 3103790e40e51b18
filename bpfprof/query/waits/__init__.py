"""Who waited for whom, and for what."""
