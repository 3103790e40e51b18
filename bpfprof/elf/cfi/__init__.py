"""Call frame information: .eh_frame and .debug_frame to rows of rules, by address."""
