"""ELF files of a target: read with bounds, never mapped, never run. A malformed file is an ElfError."""
