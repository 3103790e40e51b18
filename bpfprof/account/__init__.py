"""Recording to spans: what each nanosecond of each thread was. The recording is never changed."""
