"""The recording file: chunks of numpy arrays, appended as they come. See docs/recording-format.md."""
