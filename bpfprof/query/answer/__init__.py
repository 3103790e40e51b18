"""What bounds the program: facts, the verdict and its sentences."""
