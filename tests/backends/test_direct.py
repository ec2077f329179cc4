"""The generated call: what it checks, allocates and passes on, without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from mirage_dsl.backends.triton import direct
from mirage_dsl.backends.triton.direct import direct_call
from mirage_dsl.backends.triton.emit import plan
from mirage_dsl.ir.graph import Schedule
from mirage_dsl.testing import mugraphs


class Driver:
    """Stands for the driver: notes what is launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[dict[str, Any]] = []
        self.stream = 7
        self.device = None
        monkeypatch.setattr(direct, "_driver", lambda: self.launch)
        monkeypatch.setattr(direct, "compile_kernel", self.compiled)
        monkeypatch.setattr(direct, "_allocator", lambda: None)
        names = ("_cuda_getDevice", "_cuda_getCurrentRawStream")
        for name, value in zip(
            names, (lambda: self.device, lambda _: self.stream), strict=True
        ):
            monkeypatch.setattr(torch._C, name, value, raising=False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        self.observers: list[object] = []
        monkeypatch.setattr(direct, "_observers", lambda: self.observers)
        self.status = 0

    class Meta:
        num_warps = 8
        shared = 1024

    class Compiled:
        run = None
        function = 99

    def compiled(self, *_: object) -> Any:
        found = self.Compiled()
        found.metadata = self.Meta()
        return found

    def launch(self, reference: Any, function: Any, places: Any, extra: Any) -> int:
        config = reference._obj
        count = len(places) - direct.SCRATCH
        found = [ctypes.cast(p, ctypes.POINTER(ctypes.c_uint64))[0] for p in places]
        assert found[count:] == [0] * direct.SCRATCH
        assert extra is None
        self.launches.append(
            {
                "grid": tuple(config.grid),
                "threads": config.block[0],
                "shared": config.shared,
                "stream": config.stream,
                "early": config.count,
                "function": function.value,
                "pointers": found[:count],
            }
        )
        return self.status


def tensors(rows: int = 8) -> list[torch.Tensor]:
    shapes = ((rows, 64), (64, 96), (64, 96))
    return [torch.zeros(s, dtype=torch.float16) for s in shapes]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


GRAPH = mugraphs.gated_mlp(8, 64, 96, tile_n=32, tile_k=16)


def test_one_launch(driver: Driver) -> None:
    given = tensors()
    call = direct_call(plan(GRAPH), given)
    assert call is not None
    (out,) = call(*given)
    assert (out.shape, out.dtype) == ((8, 96), torch.float16)
    (launch,) = driver.launches
    assert launch == {
        "grid": (3, 1, 1),
        "threads": 256,
        "shared": 1024,
        "stream": 7,
        "early": 0,
        "function": 99,
        "pointers": [t.data_ptr() for t in (*given, out)],
    }
    driver.stream = 8
    others = tensors()
    call(*others)
    assert driver.launches[1]["stream"] == 8
    assert driver.launches[1]["pointers"][:3] == [t.data_ptr() for t in others]


def test_other_tensors_are_left_alone(driver: Driver) -> None:
    given = tensors()
    call = direct_call(plan(GRAPH), given)
    assert call is not None
    x, w1, w2 = given
    shifted = torch.zeros(8 * 64 + 1, dtype=torch.float16)[1:].view(8, 64)
    odd = [
        (tensors(16)[0], w1, w2),
        (x.float(), w1, w2),
        (x, w1.T.contiguous().T, w2),
        (shifted, w1, w2),
        (x.numpy(), w1, w2),
        (x.clone().requires_grad_(), w1, w2),
    ]
    assert [call(*tensors) for tensors in odd] == [None] * len(odd)
    with torch.no_grad():
        assert call(*odd[-1]) is not None
    driver.device = 1
    assert call(*given) is None
    driver.device = None
    driver.observers.append("a profiler")
    assert call(*given) is None
    assert len(driver.launches) == 1


def test_kernels_in_turn(driver: Driver) -> None:
    early = Schedule(pdl=True)
    graph = mugraphs.attention(2, 64, 256, tile_n=64, splits=2, schedule=early)
    q = torch.zeros(2, 64, 64, dtype=torch.float16)
    k = torch.zeros(2, 64, 256, dtype=torch.float16)
    v = torch.zeros(2, 256, 64, dtype=torch.float16)
    call = direct_call(plan(graph), (q, k, v))
    assert call is not None
    (out,) = call(q, k, v)
    first, second = driver.launches
    assert first["early"] == second["early"] == 1
    assert first["pointers"][3:] == second["pointers"][:-1]
    assert second["pointers"][-1] == out.data_ptr()


def test_a_launch_that_fails_says_so(driver: Driver) -> None:
    given = tensors()
    call = direct_call(plan(GRAPH), given)
    assert call is not None
    driver.status = 701
    with pytest.raises(direct.CompileError, match="CUDA error 701"):
        call(*given)


def test_what_has_no_short_way(driver: Driver) -> None:
    described = mugraphs.gated_mlp(
        8, 64, 96, tile_n=32, tile_k=16, schedule=Schedule(descriptors=True)
    )
    assert direct_call(plan(described), tensors()) is None
    x, w1, w2 = tensors()
    assert direct_call(plan(GRAPH), (x, w1.T.contiguous().T, w2)) is None
    assert not driver.launches
