"""Paper 4: relative flatness aware minimisation."""
