"""What happens inside one run of a study."""
