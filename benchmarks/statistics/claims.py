"""The rule for verdicts: how often it is wrong, how often it decides, and whether the n it asks for is enough."""

from __future__ import annotations

import math

import numpy as np
from simulated import Rate, Table, loops, normal

from landscope.analysis import (
    Order,
    Summary,
    correlation,
    difference,
    judge,
    judge_all,
    log_ratio,
    models_needed,
    runs_needed,
)

__all__ = ["SIMULATIONS"]


def verdicts(repeat: int) -> Table:
    """Shares of verdicts on one claim."""
    table = Table(
        "Verdicts on a claim of a direction",
        "n runs a side with standard deviation 1, here and in the paper, whose difference is the one given; the "
        "margin is 0.5. Wrong are “replicates” where there is no effect and “excluded” where the effect is the "
        "paper's (each at most 0.05; 0.025 for the sign). Old rule: how often the paper's number lies outside our "
        "interval.",
        ["n", "true", "paper", "replicates", "excluded", "undecided", "old rule"],
    )
    for n in (3, 5, 10):
        for truth, claimed in ((0.0, 1.0), (1.0, 1.0), (0.0, 3.0), (3.0, 3.0)):
            shares, old = {"replicates": Rate(), "excluded": Rate(), "undecided": Rate()}, Rate()
            for rng in loops(repeat):
                ours, theirs = rng.normal(size=(2, 2, n))
                effect = difference((ours[0] + truth).tolist(), ours[1].tolist())
                paper = difference(*(Summary.of(side.tolist()) for side in (theirs[0] + claimed, theirs[1])))
                found = judge(effect, paper, margin=0.5).verdict
                for name, rate in shares.items():
                    rate.add(found == name)
                low, high = effect.interval()
                old.add(not low <= paper.value <= high)
            table.rows.append([n, truth, claimed, *shares.values(), old])
    return table


def family(repeat: int) -> Table:
    """Any wrong verdict among twenty claims."""
    table = Table(
        "Twenty headline claims with Holm's correction",
        "Twenty claims over 24 conditions each, of which some have no link and the others τ = 0.5, the paper's "
        "number. The chance of any wrong verdict in the family (nominal 0.05), each by itself and by Holm; and the "
        "share of true claims that replicate.",
        ["without a link", "any wrong, each by itself", "any wrong, Holm", "true ones that replicate, Holm"],
    )
    for none in (20, 10, 0):
        alone, holm, power = Rate(), Rate(), Rate()
        for rng in loops(repeat):
            effects = [correlation(*normal(rng, 24, 0.0 if i < none else 0.5)).effect for i in range(20)]
            claims = [lambda alpha, e=e: judge(e, Order(0.5, 24), alpha=alpha) for e in effects]
            wrong = ["replicates" if i < none else "excluded" for i in range(20)]
            alone.add(any(claim(0.05).verdict == bad for claim, bad in zip(claims, wrong, strict=True)))
            found = [each.verdict for each in judge_all(claims)]
            holm.add(any(each == bad for each, bad in zip(found, wrong, strict=True)))
            for each in found[none:]:
                power.add(each == "replicates")
        table.rows.append([f"{none} of 20", alone, holm, power])
    return table


def concordance(repeat: int) -> Table:
    """Coverage of D from the noncentral t."""
    table = Table(
        "The scale D",
        "The share of 95 % intervals of D = 2Φ(d/√2) − 1 (noncentral t) that hold the true one; equal spreads, and "
        "one side three times as wide.",
        ["n", "d", "equal spreads", "1 : 3"],
    )
    for n in (3, 5, 10):
        for d in (0.0, 1.0, 3.0):
            rates = Rate(), Rate()
            for rng in loops(repeat):
                for rate, wide in zip(rates, (1.0, 3.0), strict=True):
                    scale = math.sqrt((1 + wide**2) / 2)
                    first, second = rng.normal(size=(2, n))
                    found = difference((first + d * scale).tolist(), (wide * second).tolist()).concordance()
                    truth = math.erf(d / 2)
                    rate.add(found.low <= truth <= found.high)
            table.rows.append([n, d, *rates])
    return table


def shares(repeat: int) -> Table:
    """“More than half” where it is one half."""
    table = Table(
        "More than half",
        "A share of exactly one half in paired runs whose logarithms scatter by 0.3. How often “more than half” is "
        "said (nominal 0.025, one side of a two-sided test): by the old rule, all runs above, or the mean above by "
        "its standard error; and by the test.",
        ["n", "all runs above", "mean more than one standard error above", "t test of log ratios"],
    )
    for n in (3, 5, 10):
        rates = Rate(), Rate(), Rate()
        for rng in loops(repeat):
            before = np.exp(0.5 * rng.normal(size=n))
            after = 0.5 * before * np.exp(0.3 * rng.normal(size=n))
            ratio = after / before
            rates[0].add(bool((ratio > 0.5).all()))
            rates[1].add(bool(ratio.mean() - ratio.std(ddof=1) / math.sqrt(n) > 0.5))
            effect = log_ratio(after.tolist(), before.tolist(), pairs=True).shifted(-math.log(0.5))
            rates[2].add(judge(effect).verdict == "replicates")
        table.rows.append([n, *rates])
    return table


def needed(repeat: int) -> Table:
    """N from the observed effect, and from a planned one."""
    table = Table(
        "The n that would decide",
        "50 models, a true τ of 0.2 (89 models show it with a chance of 0.8) and no decision. The n from the "
        "observed τ, and from the planned one; then the power that n has.",
        ["rule", "median n", "5 to 95 %", "off by more than a factor 2"],
    )
    truth = models_needed(0.2) or 0
    seen, off = [], Rate()
    for rng in loops(4 * repeat):
        found = correlation(*normal(rng, 50, 0.2))
        if found.p_value > 0.05 and found.value:
            n = models_needed(found.value) or 10**9
            seen.append(n)
            off.add(not truth / 2 <= n <= 2 * truth)
    low, middle, high = np.quantile(seen, [0.05, 0.5, 0.95]).astype(int)
    table.rows.append(["observed τ (before)", middle, f"{low} to {high}", off])
    table.rows.append(["planned τ = 0.2 (now)", truth, f"{truth} to {truth}", Rate(0, off.n)])
    return table


def power(repeat: int) -> Table:
    """Power at the n that is asked for."""
    table = Table(
        "Power at the n that is asked for",
        "How often the planned effect is shown with the n given for a chance of 0.8.",
        ["effect", "n", "shown"],
    )
    for tau in (0.2, 0.3, 0.5):
        n = models_needed(tau) or 0
        rate = Rate()
        for rng in loops(repeat):
            rate.add(correlation(*normal(rng, n, tau)).p_value <= 0.05)
        table.rows.append([f"τ = {tau}", n, rate])
    for d in (0.5, 1.0, 3.0):
        n = runs_needed(d, math.sqrt(2)) or 0
        rate = Rate()
        for rng in loops(repeat):
            first, second = rng.normal(size=(2, n))
            rate.add(difference((first + d).tolist(), second.tolist()).p_value() <= 0.05)
        table.rows.append([f"d = {d}, two groups", f"{n} each", rate])
    return table


def equivalence(repeat: int) -> Table:
    """“Weak at most” where τ is 0.3."""
    table = Table(
        "Weak at most",
        "How often “weak at most” (smaller than ±0.3) is said where τ = 0.3 (nominal 0.05), and where it is 0. Before: "
        "not significant, a value below 0.3, and enough models to show 0.3 with a chance of 0.8.",
        ["n", "τ = 0.3: before", "τ = 0.3: now", "τ = 0: before", "τ = 0: now"],
    )
    for n in (20, 43, 108):
        rates = [Rate() for _ in range(4)]
        for rng in loops(repeat):
            for place, tau in ((0, 0.3), (2, 0.0)):
                found = correlation(*normal(rng, n, tau))
                rates[place].add(n >= 41 and found.p_value > 0.05 and abs(found.value) < 0.3)
                rates[place + 1].add(found.p_value > 0.05 and found.effect.equivalence_p(0.3) <= 0.05)
        table.rows.append([n, *rates])
    return table


SIMULATIONS = {
    "verdicts": verdicts,
    "family": family,
    "concordance": concordance,
    "more-than-half": shares,
    "needed": needed,
    "power": power,
    "weak-at-most": equivalence,
}
