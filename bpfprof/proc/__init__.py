"""What /proc says about a target: its mappings, its memory, its threads. Nothing of the target is run or stopped."""
