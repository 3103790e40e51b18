"""What the time of threads was for: the table that every view of the answer is made of."""
