"""Training: optimizers and objectives that look for flat minima, the loop, and pools of models trained at once."""
