"""How many products rule out that an eigenvalue stayed hidden: the mathematics behind the eigensolver's claims."""

from __future__ import annotations

import math

HIDDEN = 0.5
"""The top eigenvalue is claimed once products enough were made to have met one larger than it by this part."""
NEAR_ZERO = 0.2
"""An extreme eigenvalue near zero counts as this part of the spread of the spectrum: half of nothing would never be met."""


def products_to_claim(size: int, share: float, top: float, low: float) -> float:
    """Products after which an eigenvalue larger than `top` by half would have shown itself.

    1 + ln(2√P/η) / arccosh(1 + 2γ θ/(θ − low)) with γ = ½ and a random part η of the start vector: by then the Chebyshev
    polynomial of that degree has raised its component above the others.

    >>> [math.ceil(products_to_claim(size, 0.1, 1.0, 0.0)) for size in (10**3, 10**7)]
    [6, 10]
    """
    spread = max(top - low, abs(top), 1e-300)
    size_of_top = max(abs(top), NEAR_ZERO * spread)
    return 1 + math.log(2 * math.sqrt(size) / share) / math.acosh(1 + 2 * HIDDEN * size_of_top / spread)


# How many Lanczos steps from a random start rule out that an eigenvalue stayed hidden.
#
# A Krylov space from one start holds one copy of each eigenvalue, so a converged top-k may lack the further copies of a
# repeated one. The eigensolver therefore searches the orthogonal complement of what it has from a fresh random vector w.
# If the largest Ritz value there is `high` after n steps, could the complement still hold an eigenvalue ≥ `level` > high?
#
# Let c be the component of w along its eigenvector. For any b in (high, level) take the Chebyshev polynomial p of degree
# n − 1 on [low, b]: |p| ≤ 1 there, p ≥ 1 and growing above. The Rayleigh quotient of p(A)w, which the largest Ritz value
# dominates, is at least b − (b − low)/(1 + W) with W = c² p(level)². It exceeds `high`, a contradiction, as soon as
#
#     c² T_{n−1}(1 + 2 (level − b)/(b − low))²  >  (b − low)/(b − high).
#
# c² is the squared cosine between a uniformly random direction and a fixed one: c² < δ² π/(2 P) has probability below
# about δ (compare Kuczyński & Woźniakowski 1992, whose bound assumes no gap). With restarts n counts all steps since w,
# which the theory covers only approximately.


CANDIDATES = tuple(f / 20 for f in range(1, 20))


def rules_out_hidden(steps: int, size: int, low: float, high: float, level: float, miss: float = 0.01) -> bool:
    """Whether `steps` steps in dimension `size` exclude an eigenvalue ≥ `level`, wrong with probability < `miss`.

    >>> rules_out_hidden(8, 1000, low=0.0, high=1.0, level=2.0), rules_out_hidden(3, 1000, 0.0, 1.0, 2.0)
    (True, False)
    """
    if level <= high:
        return False
    low = min(low, high) - 0.05 * (level - low)  # the smallest Ritz value lies above the smallest eigenvalue
    log_weight = math.log(miss**2 * math.pi / (2 * size))
    for fraction in CANDIDATES:
        b = high + fraction * (level - high)
        angle = (steps - 1) * math.acosh(1 + 2 * (level - b) / (b - low))
        log_chebyshev = angle - math.log(2)  # cosh(x) ≥ exp(x)/2
        if log_weight + 2 * log_chebyshev > math.log((b - low) / (b - high)):
            return True
    return False
