"""Profile -> text or bytes, one pure function a format; see `formats.FORMATS` for the list."""
