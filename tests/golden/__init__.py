"""Golden files: what the package does today, kept as text, so that moving code cannot change it unnoticed.

    python -m tests.golden compare                    # every part against its file; exit code 1 where one differs
    python -m tests.golden compare --only measures    # one part
    python -m tests.golden make --only measures       # keep what it gives now: after a change that is meant

`where` is the only module that imports the package: when code moves, only that table is changed. `PARTS` in `parts` lists what is
kept, each part in a file of its own under files/. Values hold names, never import paths, but for public names.
"""
