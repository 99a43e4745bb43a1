"""Landscope against the tools that people would use instead: the same network, rows, accuracy and threads, in one run.

    landscope bench [--against NAME …] [--rows NAME …] [--size tiny|cpu|gpu]        (`make bench`)

| file | what it holds |
|---|---|
| `rows` | every line of the comparison: what each tool runs, how the error is computed. **Adding one is one entry here** |
| `ours`, `peers`, `by_hand` | how each tool is called; `by_hand` is what a script with torch alone would do |
| `truth` | what the answers are compared with: dense float64, or long runs of two tools that must agree |
| `networks` | the networks and their data, trained once |
| `environment` | the peers' packages, in an environment of their own |
| `worker`, `run` | one process for each tool, taking turns |
| `page` | `benchmarks/README.md`, and five lines of the repository's README |

This package is not part of what is installed: it makes an environment, installs other people's packages in it and rewrites two
pages of the repository, which a library must not do to its users. It needs the repository anyway, for the exact versions in
`constraints.txt`. So `landscope bench` is a thin command that looks for a checkout and says so where there is none.

It uses the public face of Landscope only.
"""
