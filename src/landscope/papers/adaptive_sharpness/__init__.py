"""Paper 5: adaptive sharpness and generalisation."""
