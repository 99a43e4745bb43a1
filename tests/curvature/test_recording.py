"""Products that are recorded on a GPU are those of the model; what cannot be recorded runs as it is."""

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope.curvature.recording import Recorder
from landscope.probe.batches import Batch

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Deciding(nn.Module):
    """Waits for the device to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        return 2 * h if float(h.abs().max()) > 10 else h


def test_without_a_gpu_every_call_is_the_function_itself():
    calls = []

    def piece(rows, batch):
        calls.append(batch.size)
        return rows * batch.size

    recorder, batch = Recorder(torch.device("cpu")), Batch(torch.ones(4, 2), 4, True)
    for _ in range(4):
        assert float(recorder("times", piece, torch.ones(1, 1), batch, 1.0)) == 4.0
    assert calls == [4, 4, 4, 4]


@gpu
@pytest.mark.parametrize("kind", [ls.Hessian, ls.GGN])
@pytest.mark.parametrize("vectors", [1, 4])
def test_recorded_products_are_those_of_the_model(kind, vectors):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    x, y = torch.randn(60, 1, 8, 8), torch.arange(60) % 3
    with torch.no_grad():
        net(x)  # statistics other than those of the beginning
    cpu, gpu = (kind(ls.Probe(net.to(device).eval(), (x.to(device), y.to(device)))) for device in ("cpu", "cuda"))
    for seed in range(5):
        v = torch.randn(cpu.shape[0], vectors, generator=torch.Generator().manual_seed(seed))
        found = (gpu @ v.cuda()).cpu()
        assert float((found - cpu @ v).norm() / found.norm()) < 1e-5
    assert any(recording is not None for recording in gpu._recorder._recordings.values())


@gpu
def test_a_model_that_waits_for_the_device_runs_as_it_is():
    net = Deciding().cuda()
    hessian = ls.Hessian(ls.Probe(net, (torch.randn(50, 6).cuda(), (torch.arange(50) % 3).cuda())))
    v = torch.randn(hessian.shape[0], device="cuda")
    first = hessian @ v
    for _ in range(4):
        assert torch.equal(hessian @ v, first)
    assert set(hessian._recorder._recordings.values()) == {None}
    assert torch.randn(2, device="cuda").isfinite().all()  # the generator draws as before
