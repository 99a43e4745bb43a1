"""`python -m landscope` is the command `landscope`."""

from landscope.cli import main

main()
