"""A model whose forward was replaced on the instance gives the numbers of the same model untouched."""

from __future__ import annotations

import functools
import importlib.util
import threading
import types
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from landscope import GGN, Hessian, Probe, errors

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Wrapper:
    """What accelerate puts around a forward pass to cast its outputs; it refuses to be pickled, as that one does."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self.forward = forward
        functools.update_wrapper(self, forward)

    def __call__(self, *args: Tensor) -> Tensor:
        return self.forward(*args)

    def __getstate__(self) -> object:
        raise TypeError("cannot be pickled")


def by_lambda(m: nn.Module) -> None:
    old = m.forward
    m.forward = lambda *a, **k: old(*a, **k)


def by_global(m: nn.Module) -> None:
    global OLD
    OLD = m.forward
    m.forward = lambda *a, **k: OLD(*a, **k)


def by_partial(m: nn.Module) -> None:
    m.forward = functools.partial(m.forward)


def by_partial_of_a_closure(m: nn.Module) -> None:
    old = m.forward
    m.forward = functools.update_wrapper(functools.partial(lambda module, x: old(x), m), old)


def by_default(m: nn.Module) -> None:
    m.forward = lambda x, old=m.forward: old(x)


def by_keyword_default(m: nn.Module) -> None:
    def forward(x: Tensor, *, old: Callable[..., Tensor] = m.forward) -> Tensor:
        return old(x)

    m.forward = forward


def by_wraps(m: nn.Module) -> None:
    old = m.forward

    @functools.wraps(old)
    def forward(*args: Tensor) -> Tensor:
        return old(*args)

    m.forward = forward


def twice(m: nn.Module) -> None:
    by_lambda(m)
    by_wraps(m)


def by_method(m: nn.Module) -> None:
    old = type(m).forward
    m.forward = types.MethodType(lambda self, x: old(m, x), m)


def by_object(m: nn.Module) -> None:
    wrapper = Wrapper(m.forward)
    m.forward = lambda x: wrapper(x)


def by_hook_object(m: nn.Module) -> None:
    """As accelerate's `add_hook_to_module`."""
    m._old_forward = m.forward
    m._hf_hook = types.SimpleNamespace(pre=lambda module, x: x)
    m.forward = functools.update_wrapper(
        functools.partial(lambda module, x: module._old_forward(module._hf_hook.pre(module, x)), m), m._old_forward
    )


def by_recursion(m: nn.Module) -> None:
    old = m.forward

    def forward(x: Tensor, depth: int = 2) -> Tensor:
        return forward(x, depth - 1) if depth else old(x)

    m.forward = forward


def by_compiling(m: nn.Module) -> None:
    m.forward = torch.compile(m.forward, backend="eager")


def by_container(m: nn.Module) -> None:
    steps = {"all": [m.forward]}
    m.forward = lambda x: steps["all"][0](x)


def by_weak_reference(m: nn.Module) -> None:
    own = weakref.ref(m)
    m.forward = lambda x: type(own()).forward(own(), x)


def of_a_layer(m: nn.Sequential) -> None:
    by_lambda(m[0])


def of_a_layer_through_the_parent(m: nn.Sequential) -> None:
    m[0].forward = lambda x: nn.functional.linear(x, m[0].weight, m[0].bias)


STATE: dict[str, nn.Module] = {}


def by_global_dictionary(m: nn.Module) -> None:
    STATE["model"] = m
    m.forward = lambda x: nn.Sequential.forward(STATE["model"], x)


PATCHES = [
    by_lambda,
    by_global,
    by_partial,
    by_partial_of_a_closure,
    by_default,
    by_keyword_default,
    by_wraps,
    twice,
    by_method,
    by_object,
    by_hook_object,
    by_recursion,
    by_compiling,
    by_container,
    by_global_dictionary,
    by_weak_reference,
    of_a_layer,
    of_a_layer_through_the_parent,
]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.__name__)
def test_a_replaced_forward_is_measured_at_the_copys_weights(patch: Callable[[nn.Module], None]) -> None:
    plain = Probe(net(), (X, Y))
    model = net()
    patch(model)
    probe = Probe(model, (X, Y))
    v = torch.randn(plain.n_params, generator=torch.Generator().manual_seed(1))
    assert probe.value() == plain.value()
    assert torch.equal(probe.gradient(), plain.gradient())
    assert torch.equal(Hessian(probe) @ v, Hessian(plain) @ v)
    assert torch.equal(GGN(probe) @ v, GGN(plain) @ v)
    with torch.no_grad():
        model[0].weight.zero_()
    assert probe.value() == plain.value()


def double_first(model: nn.Module) -> None:
    model[0].weight.mul_(2)


def test_an_edited_copy_of_a_patched_model_is_a_copy_as_well() -> None:
    model = net()
    by_lambda(model)
    probe, plain = Probe(model, (X, Y)), Probe(net(), (X, Y))
    assert probe.with_model(double_first).value() == plain.with_model(double_first).value() != plain.value()
    assert probe.value() == plain.value()


def test_a_model_that_keeps_its_last_outputs_can_be_copied_again() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.kept = net(), None

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.inner(x)
            return self.kept

    probe = Probe(Keeps(), (X, Y))
    probe.gradient()
    assert probe.with_model(lambda model: None).value() == probe.value()


def test_functions_kept_as_attributes() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
            self.steps = [lambda x: torch.tanh(self.first(x)), lambda x: self.last(x)]

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = step(x)
            return x

    assert torch.equal(Probe(Steps(), (X, Y)).gradient(), Probe(net(), (X, Y)).gradient())


class Listed(nn.Module):
    """Holds on to its parameters in a list besides."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.held = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.held[0].T


class Slots:
    """An object that is more than its attributes."""

    __slots__ = ("model",)


def through_slots() -> nn.Module:
    model, slots = net(), Slots()
    slots.model = model
    model.forward = lambda x: nn.Sequential.forward(slots.model, x)
    return model


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("make", "named"), [(Listed, "weight"), (through_slots, r"0\.weight")], ids=["list", "slots"])
def test_what_cannot_be_rebound_is_refused(make: Callable[[], nn.Module], named: str, frozen: bool) -> None:
    model = make().requires_grad_(not frozen)
    with pytest.raises(errors.ModelError, match=f"reads {named}.* past the module"):
        Probe(model, (X, Y), params=["*"])


def test_a_buffer_of_the_users_model_is_seen_too() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("scale", torch.full((3,), 2.0))
            STATE["scaled"] = self

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * STATE["scaled"].scale

    with pytest.raises(errors.ModelError, match="reads scale past"):
        Probe(Scaled(), (X, Y))


def test_a_penalty_on_the_users_weights_is_refused() -> None:
    model = net()

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, y, reduction="none") + model[0].weight.square().sum()

    with pytest.raises(errors.ModelError, match=r"loss function reads 0\.weight"):
        Probe(model, (X, Y), loss)


def test_a_criterion_that_is_part_of_the_model_may_keep_its_constants() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model, targets = WithLoss(), nn.functional.one_hot(Y, 3).float()
    assert Probe(model, (X, targets), model.loss).value() == pytest.approx(
        model.loss(model(X), targets).item(), rel=1e-6
    )


def test_data_that_lies_in_the_models_own_memory_is_data() -> None:
    model = nn.Linear(4, 4, bias=False)
    probe = Probe(model, (torch.eye(4), model.weight.detach()), "mse")
    assert probe.value() == pytest.approx((model.weight.T - model.weight).square().mean().item(), rel=1e-6)


class Mixed(nn.Module):
    """Switches autocast on by itself, in one of the ways there are."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way = net(), way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "decorated":
            return self.decorated(x)
        if self.way == "deprecated":
            with pytest.warns(FutureWarning), torch.cpu.amp.autocast(dtype=torch.bfloat16):
                return self.inner(x).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x).float()

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(self, x: Tensor) -> Tensor:
        return self.inner(x).float()


def as_accelerate(model: nn.Module) -> nn.Module:
    """The structure that `Accelerator(mixed_precision="bf16").prepare(model)` makes."""
    model._original_forward = model.forward
    model.forward = types.MethodType(torch.autocast("cpu", dtype=torch.bfloat16)(model.forward.__func__), model)
    wrapper = Wrapper(model.forward.__func__)

    def forward(*args: Tensor) -> Tensor:
        return wrapper(*args).float()

    forward.__wrapped__ = wrapper
    model.forward = types.MethodType(forward, model)
    return model


MIXED = {
    "accelerate": lambda: as_accelerate(net()),
    "within": lambda: Mixed("within"),
    "decorated": lambda: Mixed("decorated"),
    "deprecated": lambda: Mixed("deprecated"),
}


@pytest.mark.parametrize("way", MIXED)
def test_autocast_inside_a_forward_pass_stays_off(way: str) -> None:
    plain, probe = Probe(net(), (X, Y)), Probe(MIXED[way](), (X, Y))
    v = torch.randn(plain.n_params, generator=torch.Generator().manual_seed(1))
    assert torch.equal(probe.gradient(), plain.gradient())
    assert torch.equal(GGN(probe) @ v, GGN(plain) @ v)
    model = MIXED[way]()
    assert not torch.equal(model(X), net()(X))  # for the user it is on, before and after
    Probe(model, (X, Y))
    assert not torch.equal(model(X), net()(X))


def test_casts_to_half_precision_are_refused() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).bfloat16().float()

    with pytest.raises(errors.ModelError, match="computes in bfloat16.*Remove the casts"):
        Probe(Cast(), (X, Y))


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_model_that_accelerate_prepared(precision: str, hooked: bool) -> None:
    from accelerate import Accelerator
    from accelerate.hooks import ModelHook, add_hook_to_module
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    model, plain = net(), Probe(net(), (X, Y))
    if hooked:
        add_hook_to_module(model[0], ModelHook())
    probe = Probe(Accelerator(mixed_precision=precision, cpu=True).prepare(model), (X, Y))
    assert torch.equal(probe.gradient(), plain.gradient())


def remembers_in_a_dictionary(m: nn.Sequential) -> None:
    doubled: dict[str, Tensor] = {}

    def forward(x: Tensor) -> Tensor:
        if "w" not in doubled:
            doubled["w"] = m[0].weight.detach() * 1
        return nn.functional.linear(x, m[0].weight, m[0].bias) + 0 * doubled["w"].sum()

    m[0].forward = forward


def dispatches(m: nn.Sequential) -> None:
    old = m[0].forward
    m[0].forward = functools.singledispatch(lambda x: old(x))


@pytest.mark.parametrize("patch", [remembers_in_a_dictionary, dispatches])
def test_what_a_function_remembers_is_not_shared(patch: Callable[[nn.Sequential], None]) -> None:
    """The original would compute with the copy's tensors afterwards."""
    model, plain = net(), Probe(net(), (X, Y))
    patch(model)
    probe = Probe(model, (X, Y))
    assert torch.equal(probe.gradient(), plain.gradient())
    loss = nn.functional.cross_entropy(model(X), Y)
    (found,) = torch.autograd.grad(loss, model[0].weight)
    assert torch.allclose(found.flatten(), plain.gradient()[:20], atol=1e-6)
    with torch.no_grad():
        model[0].weight.zero_()
        assert torch.equal(model[0](X), model[0].bias.expand(20, 5))
    assert probe.value() == plain.value()


def test_a_memory_that_a_hook_and_the_loss_share_stays_shared() -> None:
    model, seen = net(), {}
    model[1].register_forward_hook(lambda module, args, out: seen.__setitem__("h", out))

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, y) + seen["h"].square().mean() + 0 * len(list(model.children()))

    probe = Probe(model, (X, Y), loss)
    assert probe.value() == pytest.approx(float(loss(model(X), Y)), rel=1e-6)


class OwnCopy(nn.Linear):
    """A layer that hands itself out as its copy."""

    def __deepcopy__(self, memo: object) -> OwnCopy:
        return self


class SharedTensors(nn.Linear):
    def __deepcopy__(self, memo: object) -> SharedTensors:
        twin = SharedTensors(4, 5)
        twin.weight, twin.bias = self.weight, self.bias
        return twin


@pytest.mark.parametrize("kind", [OwnCopy, SharedTensors])
def test_a_copy_with_the_originals_tensors_is_refused(kind: type[nn.Linear]) -> None:
    model = nn.Sequential(kind(4, 5), nn.Tanh(), nn.Linear(5, 3)).train()
    with pytest.raises(errors.ModelError, match=r"the copy of 0 .* still has the original's tensors"):
        Probe(model, (X, Y), dtype=torch.float64)
    assert all(module.training for module in model)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


def with_a_lock(m: nn.Module) -> None:
    m.lock = threading.Lock()


def with_a_trainer(m: nn.Module) -> None:
    m.trainer = types.SimpleNamespace(model=m, lock=threading.RLock(), log=open("/dev/null", "w"), torch=torch)  # noqa: SIM115


def with_its_last_outputs(m: nn.Module) -> None:
    m.history, m.last = [m(X).sum()], {"z": types.SimpleNamespace(z=m(X))}


@pytest.mark.parametrize("add", [with_a_lock, with_a_trainer, with_its_last_outputs])
def test_what_cannot_be_copied_is_shared(add: Callable[[nn.Module], None]) -> None:
    model = net()
    add(model)
    probe = Probe(model, (X, Y))
    assert torch.equal(probe.gradient(), Probe(net(), (X, Y)).gradient())
    if add is with_a_trainer:
        assert probe.module("").trainer.lock is model.trainer.lock
        assert probe.module("").trainer.model is probe.module("")
        model.trainer.log.close()
