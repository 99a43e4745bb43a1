"""The samples of a probe one by one: their keys, the order in which they are read, and what the first of them say about all."""
