"""What a report reads from records."""
