"""From a file to checked dataclasses."""
