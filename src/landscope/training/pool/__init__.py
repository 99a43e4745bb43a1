"""Many trainings as one program."""
