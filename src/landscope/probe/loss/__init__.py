"""The loss: what it is, how it is reduced, what its targets mean, and what a probe finds out about it."""
