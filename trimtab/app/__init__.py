"""Ask and show."""
