"""Start and stop processes."""
