"""What a profile is called on a server."""

from __future__ import annotations

from bpfprof.model.profile import Profile


def app_name(profile: Profile) -> str:
    """`train.py` of `python train.py`; of several programs, or of none that is known, `bpfprof`."""
    words = [word.rpartition("/")[2] for word in profile.info.command_line[:2]]
    name = words[1] if len(words) > 1 and words[0].startswith("python") and not words[1].startswith("-") else ""
    return label(name or (words[0] if words else "")) or "bpfprof"


def label(text: str) -> str:
    """With what servers take in a name, `_` for all else; 100 letters at most."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in text)[
        :100
    ]
