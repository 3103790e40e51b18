"""From what was recorded to frames with names and lines."""
