"""Bugs of torch that would change numbers: one file each, with the version that ends it.

Here, what costs time only: torch (2.13) wraps every dispatch mode so that the compiler leaves it alone, and imports
`torch._dynamo` for that at the first operation: one and a half seconds, wasted where nothing is compiled.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class LightDispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` for code that is never compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
