"""Paper 2: a function-centric perspective on flat and sharp minima."""
