"""Bugs of torch that would change numbers: one file each, with the version that ends it."""
