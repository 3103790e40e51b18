"""Call frame rows in the form that the kernel side searches, kept between runs, and executed here for tests."""
