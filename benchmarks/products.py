"""How much a product costs, in gradients: each way to differentiate, compiled or not, and plain double backward, in one run.

    python benchmarks/products.py [--device cuda] [--model resnet18|transformer|all] [--batch 128] [--compile] [--methods]

Prints, for each network, the time per product with one vector over the time of one gradient on the same data, as the
median of interleaved rounds (so that a noisy machine disturbs all alike). `--methods` compares the ways to differentiate
twice with each other; `--compile` adds the compiled products and the seconds that compiling took. Against other tools:
`landscope bench --rows product`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from timing import seconds
from torch import Tensor, nn

from landscope import Hessian, Probe
from landscope.core.seeding import generator, normal
from landscope.models import build


class TextClassifier(nn.Module):
    """A small Transformer over tokens."""

    def __init__(self, vocabulary: int = 1000, width: int = 128, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class logits."""
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def network(name: str, batch: int) -> tuple[nn.Module, Tensor]:
    """A network and inputs for it."""
    rng = generator(0, "benchmark")
    torch.manual_seed(0)
    if name == "transformer":
        return TextClassifier(), torch.randint(0, 1000, (batch, 64), generator=rng)
    return build(name), torch.randn(batch, 3, 32, 32, generator=rng)


def double_backward(model: nn.Module, x: Tensor, y: Tensor, vectors: Tensor) -> None:
    """What research scripts do: two backward passes, one vector at a time."""
    params = list(model.parameters())
    for vector in vectors.T:
        grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), params, create_graph=True)
        flat = torch.cat([g.flatten() for g in grads])
        torch.autograd.grad(flat @ vector, params)


def candidates(
    model: nn.Module, x: Tensor, y: Tensor, probe: Probe, args: argparse.Namespace
) -> dict[str, tuple[int, Callable[[], object]]]:
    """Name → (vectors per call, call)."""
    device = probe.device

    def vectors(k: int) -> Tensor:
        return normal((probe.n_params, k), generator(k), torch.float32, device)

    v1, v4, v8 = vectors(1)[:, 0].contiguous(), vectors(4), vectors(8)
    plain = Hessian(probe, compile=False)
    out: dict[str, tuple[int, Callable[[], object]]] = {
        "gradient": (1, probe.gradient),
        "landscope, one vector": (1, lambda: plain @ v1),
        "landscope, block of 4": (4, lambda: plain @ v4),
        "landscope, block of 8": (8, lambda: plain @ v8),
    }
    if args.methods:
        for method in plain._methods[True]:
            for v in (v4, v8):
                forced = Hessian(probe, compile=False)
                forced._methods[True] = [method]
                out[f"  {method.name}, {v.shape[1]}"] = (v.shape[1], lambda op=forced, v=v: op @ v)  # type: ignore[misc]
    if args.compile:
        fast = Hessian(probe, compile=True)
        for name, v, k in (("one vector", v1, 1), ("block of 4", v4, 4)):
            print(f"    compiling for {name}: {seconds(lambda v=v: fast @ v, device):.0f} s")  # type: ignore[misc]
            out[f"landscope compiled, {name}"] = (k, lambda v=v: fast @ v)  # type: ignore[misc]
    out["double backward"] = (1, lambda: double_backward(model, x, y, v1[:, None]))
    return out


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="all", choices=["resnet18", "transformer", "all"])
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--methods", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    batch = args.batch or (1024 if device.type == "cuda" else 64)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, batch {batch}, median of {args.rounds} interleaved rounds")
    for name in ("resnet18", "transformer") if args.model == "all" else (args.model,):
        model, x = network(name, batch)
        model = model.to(device).eval()
        x, y = x.to(device), torch.arange(batch, device=device) % 10
        torch.backends.mha.set_fastpath_enabled(False)  # so that plain double backward can run at all
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False
        probe = Probe(model, (x, y))
        print(f"\n{name}: {probe.n_params:,} parameters")
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            calls = candidates(model, x, y, probe, args)
            times: dict[str, list[float]] = {key: [] for key in calls}
            for round_ in range(args.rounds + 1):
                for key, (_, call) in calls.items():
                    took = seconds(call, device)
                    if round_:
                        times[key].append(took)
        unit = statistics.median(times["gradient"])
        print(f"    gradient: {unit * 1e3:.1f} ms")
        for key, (count, _) in list(calls.items())[1:]:
            print(f"    {key:45s} {statistics.median(times[key]) / unit / count:6.2f} gradients per product")


if __name__ == "__main__":
    main()
