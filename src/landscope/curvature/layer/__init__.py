"""One layer of a network: where it runs, how it uses its weight, and second derivatives behind it."""
