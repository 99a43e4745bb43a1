"""Paper 1: explicit regularisation, sharpness and calibration."""
