"""What a report shows, one section per file."""
