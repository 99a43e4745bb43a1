"""Whatever the caller has switched on, and however many threads measure: the same bits, and everything put back."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from networks import BY_NAME
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

import landscope as ls
from landscope import GGN, Hessian, Probe, errors, measure
from landscope.core.memory import available_bytes
from landscope.core.shared_state import held
from landscope.measures.robustness import fgsm
from landscope.probe.conditions import measuring

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Constants(nn.Module):
    """Makes tensors in its forward pass, of the default type on the default device."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) * torch.tensor(0.7) + torch.full((5,), 0.1)))


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


AROUND: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "float64": lambda: default_type(torch.float64),
    "bfloat16": lambda: default_type(torch.bfloat16),
    "meta": lambda: default_device("meta"),
    "device": lambda: torch.device("meta"),
    "medium": lambda: matmul_precision("medium"),
    "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
}


def numbers(report: ls.Report) -> dict[str, tuple[str, ...]]:
    return {name: (repr(e.value), repr(e.stderr), str(e.status), e.reason) for name, e in report.items()}


@pytest.fixture(scope="module")
def outside() -> dict[str, tuple[str, ...]]:
    return numbers(ls.measure(Constants(), (X, Y), "all"))


@pytest.mark.parametrize("around", AROUND)
def test_every_measure_gives_the_same_bits_inside(around: str, outside: dict[str, tuple[str, ...]]) -> None:
    model = Constants()
    with AROUND[around]():
        inside = numbers(ls.measure(model, (X, Y), "all"))
    assert inside == outside


@pytest.mark.parametrize("around", AROUND)
def test_operators_give_the_same_bits_inside(around: str) -> None:
    v = torch.randn(43, generator=torch.Generator().manual_seed(1))
    model = Constants()
    probe = Probe(model, (X, Y))
    with AROUND[around]():
        found = Hessian(probe) @ v, GGN(Probe(model, (X, Y))) @ v, probe.gradient()
    assert torch.equal(found[0], Hessian(probe) @ v)
    assert torch.equal(found[1], GGN(probe) @ v)
    assert torch.equal(found[2], probe.gradient())


def functions() -> dict[str, Callable[[], object]]:
    """Public functions that are not measures, and what they return as plain values."""
    model, other = Constants(), Constants()
    with torch.no_grad():
        other.last.weight.mul_(1.5)
    probe, images = Probe(model, (X, Y)), X.sigmoid()
    square = torch.randn(40, 40, generator=torch.Generator().manual_seed(2))
    matrix = square @ square.T
    v0 = torch.ones(43)
    return {
        "eigsh": lambda: ls.eigsh(Hessian(probe), k=2, v0=v0).values.tolist(),
        "eigsh of a matrix": lambda: ls.eigsh(matrix, k=2).values.tolist(),
        "trace of a matrix": lambda: ls.trace(matrix, max_matvecs=20).value,
        "frobenius of a matrix": lambda: ls.frobenius(matrix, max_matvecs=20).value,
        "diagonal of a matrix": lambda: ls.diagonal(matrix, max_matvecs=20).values.tolist(),
        "spectrum": lambda: ls.spectrum(GGN(probe), steps=6).nodes.tolist(),
        "log_det": lambda: ls.log_det(GGN(probe), shift=1.0, steps=6).value,
        "movements": lambda: {
            name: None if moved is None else moved.after.value
            for name, moved in ls.invariance.movements(ls.MEASURES["hessian_trace"](), probe).items()
        },
        "fgsm": lambda: fgsm(model, images, Y, 0.1).inputs.tolist(),
        "by_layer": lambda: ls.by_layer(probe).to_frame().select_dtypes("number").round(12).fillna(-1).values.tolist(),
        "landscape": lambda: ls.landscape(probe, resolution=3).loss.tolist(),
        "between": lambda: ls.between(probe, other.state_dict()).loss.tolist(),
    }


@pytest.fixture(scope="module")
def returned() -> dict[str, object]:
    return {name: function() for name, function in functions().items()}


@pytest.mark.parametrize("around", AROUND)
def test_functions_give_the_same_bits_inside(around: str, returned: dict[str, object]) -> None:
    ours = functions()
    with AROUND[around]():
        inside = {name: function() for name, function in ours.items()}
    assert inside == returned


@pytest.mark.parametrize("loader", [False, True])
def test_weights_data_and_vectors_made_in_inference_mode(loader: bool, outside: dict[str, tuple[str, ...]]) -> None:
    with torch.inference_mode():
        model, x, y = Constants(), X.clone(), Y.clone()
        v = torch.ones(43)
    data = DataLoader(TensorDataset(x, y), batch_size=24) if loader else (x, y)
    assert numbers(ls.measure(model, data, "all")) == outside
    assert torch.equal(Hessian(Probe(model, data)) @ v, Hessian(Probe(Constants(), (X, Y))) @ torch.ones(43))


def test_a_default_type_that_the_model_needs_is_left_alone() -> None:
    class Product(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ torch.eye(3)

    with default_type(torch.float64):
        assert Probe(Product(4, 3), (X.double(), Y)).dtype == torch.float64


def flags() -> tuple[object, ...]:
    return (
        torch.backends.mha.get_fastpath_enabled(),
        set(_cur_sdpa_kernel_backends()),
        torch.backends.mkldnn.enabled,
        torch.get_default_dtype(),
        torch.autocast.__enter__,
        torch.utils.checkpoint.CheckpointFunction,
        list(warnings.filters),
        torch.get_rng_state().tolist(),
    )


def test_threads_that_leave_in_the_order_they_came_put_everything_back() -> None:
    """Each would put back what the one before it had set."""
    before, turns = flags(), [threading.Event() for _ in range(8)]

    def work(number: int) -> None:
        turns[number].wait()
        with measuring(torch.device("cpu"), recurrent=True):
            torch.rand(3)
            turns[number + 1].set()
            turns[number + 4].wait()
        if number < 3:
            turns[number + 5].set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        thread.join(60)
    assert flags() == before


def test_while_one_thread_measures_the_conditions_hold_for_it() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with measuring(torch.device("cpu")):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    with measuring(torch.device("cpu")):
        leave.set()
        thread.join(60)
        assert not torch.backends.mha.get_fastpath_enabled()
        assert _cur_sdpa_kernel_backends() == [SDPBackend.MATH]
    assert torch.backends.mha.get_fastpath_enabled()


def test_other_threads_keep_their_autocast() -> None:
    found = []

    def train() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(torch.ones(2, 2) @ torch.ones(2, 2))

    with measuring(torch.device("cpu")):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join(60)
        train()
    assert [t.dtype for t in found] == [torch.bfloat16, torch.float32]


def test_four_threads_measure_one_model() -> None:
    net = BY_NAME["transformer_encoder"]
    model, data = net.model(), net.data()
    names = ["gradient_norm", "hessian_top_eigenvalue", "hessian_trace"]
    expected, before = numbers(ls.measure(model, data, names)), flags()
    barrier, found = threading.Barrier(4), []

    def work() -> None:
        barrier.wait(60)
        found.append(numbers(ls.measure(model, data, names)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [expected] * 4
    assert flags() == before


def test_a_scope_within_a_scope_puts_back_what_the_outer_one_set() -> None:
    state = [0]
    scope = lambda value: held(  # noqa: E731
        "nested", lambda: state[0], lambda found: state.__setitem__(0, found), lambda: state.__setitem__(0, value)
    )
    with scope(1):
        with scope(2):
            assert state == [2]
        assert state == [1]
    assert state == [0]


class Checkpointed(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())
        self.head, self.way = nn.Linear(5, 3), way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "sequential":
            return self.head(checkpoint_sequential(self.body, 2, x, use_reentrant=False))
        if self.way == "plain":
            return self.head(self.body(x))
        return self.head(checkpoint(self.body, x, use_reentrant=self.way == "reentrant"))


@pytest.mark.parametrize("way", ["reentrant", "not_reentrant", "sequential"])
def test_activation_checkpointing_is_called_straight(way: str) -> None:
    plain, model = Probe(Checkpointed("plain"), (X, Y)), Checkpointed(way)
    probe = Probe(model, (X, Y))
    v = torch.randn(probe.n_params, generator=torch.Generator().manual_seed(1))
    assert torch.equal(probe.gradient(), plain.gradient())
    assert torch.equal(Hessian(probe) @ v, Hessian(plain) @ v)
    assert torch.equal(GGN(probe) @ v, GGN(plain) @ v)
    x = X.clone().requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None


def test_parametrisations_are_computed_anew_on_every_pass() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))

    plain, v = Probe(net(), (X, Y)), torch.randn(35, generator=torch.Generator().manual_seed(1))
    model = net()
    with parametrize.cached():
        model(X)
        probe = Probe(model, (X, Y))
        assert not probe.notices
        assert torch.equal(probe.gradient(), plain.gradient())
        assert torch.equal(Hessian(probe) @ v, Hessian(plain) @ v)
        assert model[0].weight is model[0].weight  # for the user the cache is on


def test_half_precision_that_autocast_brings_past_its_context_is_refused() -> None:
    class Switches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Constants()

        def forward(self, x: Tensor) -> Tensor:
            torch.set_autocast_enabled("cpu", True)
            try:
                return self.inner(x).float()
            finally:
                torch.set_autocast_enabled("cpu", False)
                torch.clear_autocast_cache()

    with pytest.raises(errors.ModelError, match="computes in bfloat16.*set_autocast_enabled"):
        Probe(Switches(), (X, Y))


def test_memory_that_is_allowed_bounds_the_pieces() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 26 * 26, 3))
    data = torch.randn(64, 1, 28, 28), torch.arange(64) % 3
    free, bounded = Probe(net, data), Probe(net, data, max_bytes=2**21)
    with bounded.measuring():
        assert available_bytes(torch.device("cpu")) == 2**21
    assert available_bytes(torch.device("cpu")) > 2**21

    def sizes(probe: Probe) -> list[int]:
        return [batch.size for batch, _ in probe.each(lambda _: (), load=1.0)]

    assert sizes(free) == [64]
    assert max(sizes(bounded)) < 32
    name = "hessian_top_eigenvalue"
    found = [measure(net, data, [name], max_bytes=most)[name].value for most in (None, 2**21)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    with pytest.raises(errors.SpecError, match="max_bytes must be a positive number of bytes, got 0"):
        Probe(net, data, max_bytes=0)
