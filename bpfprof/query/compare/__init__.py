"""Two profiles, and how far a difference may be chance."""
