"""What a report shows and says: rows by family, a reading in words, a figure, and networks to set the values against.

- `rows`: which estimates are shown, in which order, with how many digits; what says the same is shown once
- `words`: the reading: is this a minimum, which learning rates are stable, what must not be compared, what to doubt
- `references`: networks of our own studies, and where a value lies among those of the same kind
- `drawing`: a panel for every family
"""
