"""Paper 1, as coded: a temperature whose fit ends before it arrives.

L-BFGS with learning rate 0.01 and 50 iterations from T = 1.5. Every iteration moves by a hundredth of the step that would be
right, so that T stays near its start: for logits whose optimum is at 1, 2, 3 and 10 it ends at 1.2, 1.6, 1.8 and 1.9.
`fit_temperature` goes to the optimum.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from landscope.core.estimate import Estimate, Status

__all__ = ["unconverged_temperature"]

START, RATE, ITERATIONS = 1.5, 0.01, 50


def unconverged_temperature(logits: Tensor, labels: Tensor) -> Estimate:
    """T as the code fits it to validation samples.

    >>> z = 6 * torch.randn(5000, 10, generator=torch.Generator().manual_seed(0))
    >>> y = torch.multinomial((z / 3).softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    >>> round(unconverged_temperature(z, y).value, 1)
    1.8
    """
    z, y = logits.detach().float(), labels
    with torch.enable_grad():
        temperature = torch.full((1,), START, device=z.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([temperature], lr=RATE, max_iter=ITERATIONS)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(z / temperature, y)
            loss.backward()
            return loss

        optimizer.step(closure)
    if not bool(torch.isfinite(temperature).all()):
        return Estimate.failed("as coded, the fit ends in NaN: some logits are −inf (classes that are masked out)")
    return Estimate(
        float(temperature.detach()),
        status=Status.BUDGET_SPENT,
        reason=f"as coded: {ITERATIONS} iterations at rate {RATE} from {START}",
        details={"samples": len(y), "as_published": True},
    )
