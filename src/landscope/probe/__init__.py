"""The frozen point that everything is measured at."""
