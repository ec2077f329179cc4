"""LLaMA-3-8B's RMSNorm + Linear, from a Python function to a fused Triton kernel.

Run by `make demo`.  Needs no GPU; with one it also measures.
"""

from __future__ import annotations

import time

import numpy as np
import torch

import mirage_dsl as mirage
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.tune.timing import time_both

M, K, N = 16, 4096, 6144
SMALL = {"m": 16, "k": 256, "n": 192}


@mirage.kernel
def rms_linear(x: mirage.f16["m", "k"], w: mirage.f16["k", "n"]):
    return mirage.rms_norm(x) @ w


def title(text: str) -> None:
    print(f"\n=== {text}\n")


def search() -> mirage.BoundKernel:
    bound = rms_linear.bind(mirage.spec((M, K)), mirage.spec((K, N)))
    title("The program, as it was traced")
    print(bound.program)
    result = bound.search(use_cache=False)
    verified = [c.certificate for c in result if c.certificate is not None]
    title("The search")
    print(f"{len(result)} μGraphs found and verified in {result.seconds:.2f} s")
    print(f"whole space searched: {'yes' if result.complete else 'no'}")
    print(f"a wrong one passes with probability {verified[0].error_bound:.0e} at most")
    print(result.ledger)
    title("The best μGraph")
    print(bound.mugraph)
    title("Its Triton source")
    print(bound.to_triton_code())
    title("Why it is fast")
    print(bound.explain())
    return bound


def compile_for_h100(bound: mirage.BoundKernel) -> None:
    title("Compiled for sm_90, without a GPU")
    for report in mirage.compile_only(bound.mugraph, target="sm_90"):
        print(
            f"{report.name}: {report.registers} registers a thread, "
            f"{report.shared_bytes} bytes of shared memory, {report.spills} bytes of "
            f"spills, {report.pipelined_loads} pipelined loads, {report.products}"
        )


def interpret(bound: mirage.BoundKernel) -> None:
    """Run the same μGraph at a reduced size, as Triton's interpreter sees it."""
    title("The emitted kernel in Triton's interpreter, beside NumPy")
    generator = np.random.default_rng(0)
    x = generator.standard_normal((SMALL["m"], SMALL["k"])).astype(np.float16)
    w = generator.standard_normal((SMALL["k"], SMALL["n"])).astype(np.float16)
    small = rms_linear.bind(x, w)
    small.use(bound.mugraph.with_extents(SMALL))
    with INTERPRET.scope(True):
        found = rms_linear(torch.from_numpy(x), torch.from_numpy(w)).double().numpy()
    exact = x.astype(np.float64)
    normed = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-6)
    expected = normed @ w.astype(np.float64)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    print(f"{x.shape} by {w.shape}: relative error {error:.1e} against float64")
    assert error < 2e-3


def measure(bound: mirage.BoundKernel) -> None:
    if not torch.cuda.is_available():
        title("No GPU here: nothing was timed")
        return
    title("On the GPU, at full size")
    x = torch.randn(M, K, device="cuda", dtype=torch.float16)
    w = torch.randn(K, N, device="cuda", dtype=torch.float16)
    expected = torch.nn.functional.rms_norm(x.double(), (K,), eps=1e-6) @ w.double()
    error = (bound(x, w).double() - expected).norm() / expected.norm()
    print(f"relative error {error.item():.1e} against float64")
    print("beside the program's operators, each one or more PyTorch kernels:")
    print(f"  {bound.benchmark()}")
    fused = time_both(lambda *a: [bound(*a)], by_pytorch, bound.mugraph)
    print("beside torch.nn.functional.rms_norm and a matrix product:")
    print(f"  {fused.mugraph}; PyTorch {fused.program}")


def by_pytorch(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    return [torch.nn.functional.rms_norm(x, (K,), eps=1e-6) @ w]


def main() -> None:
    started = time.perf_counter()
    bound = search()
    compile_for_h100(bound)
    interpret(bound)
    measure(bound)
    print(f"\nAll in {time.perf_counter() - started:.1f} s.")


if __name__ == "__main__":
    main()
