"""One training run, from a task to a folder."""
