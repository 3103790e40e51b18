"""What is known of other people's code: tables as data, and what reads them."""
