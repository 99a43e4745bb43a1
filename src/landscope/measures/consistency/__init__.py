"""Consistency: how far models of a pool agree. Logits or features of M models in, a matrix and a mean out.

>>> import torch
>>> from landscope.measures.consistency import disagreement
>>> pool = disagreement(torch.randn(4, 100, 3, generator=torch.Generator().manual_seed(0)))
>>> pool.matrix.shape, 0.5 < pool.mean < 0.8, pool.stderr > 0
((4, 4), True, True)
"""

from landscope.measures.consistency.barrier import Barrier, loss_barrier
from landscope.measures.consistency.pairs import Consistency, disagreement, jensen_shannon, linear_cka, logit_cosine

__all__ = ["Barrier", "Consistency", "disagreement", "jensen_shannon", "linear_cka", "logit_cosine", "loss_barrier"]
