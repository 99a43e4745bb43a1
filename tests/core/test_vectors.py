"""Vectors that lie in parts: each process draws what it holds of the one vector that a single process draws."""

from __future__ import annotations

import pytest
import torch

from landscope.core import parameters
from landscope.core.parameters import ParameterSpace, Vectors
from landscope.core.seeding import generator, normal, rademacher

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [5, 16, 63, 64, 65, 79, 80, 130, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_of_random_vectors_are_those_of_the_whole(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "AT_ONCE", 64)
    held = ((0, 2), (2, 2), (size // 2, size))
    part = Vectors(size, held)
    whole = normal((size,), generator(1), dtype)
    assert torch.equal(part.normal(generator(1), dtype, CPU), torch.cat([whole[a:b] for a, b in held]))
    signs = rademacher((3, size), generator(2), dtype)
    assert torch.equal(part.signs(3, generator(2), dtype, CPU), torch.cat([signs[:, a:b] for a, b in held], 1))
    assert torch.equal(Vectors(size).signs(3, generator(2), dtype, CPU), signs)


def test_stretches_join_at_the_length_in_use() -> None:
    size = 2 * parameters.AT_ONCE + 7
    held = ((parameters.AT_ONCE - 3, parameters.AT_ONCE + 3), (size - 20, size))
    whole = normal((size,), generator(1), torch.float32)
    found = Vectors(size, held).normal(generator(1), torch.float32, CPU)
    assert torch.equal(found, torch.cat([whole[a:b] for a, b in held]))


def test_parameters_on_several_devices() -> None:
    meta = torch.device("meta")
    space = ParameterSpace(("a", "b"), (torch.Size([2]), torch.Size([3])), (CPU, meta))
    parts = space.unflatten(torch.arange(5.0))
    assert {name: part.device for name, part in parts.items()} == {"a": CPU, "b": meta}
    assert parts["a"].tolist() == [0.0, 1.0]
    assert ParameterSpace(("a", "b"), space.shapes, (CPU, CPU)).flatten(
        {"a": torch.ones(2), "b": torch.zeros(3)}
    ).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
