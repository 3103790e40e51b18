"""When a recording is read: the frames of a stack in their true order."""
