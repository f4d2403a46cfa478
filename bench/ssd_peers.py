"""mamba_ssm's chunked scan (Triton) on this GPU, beside bench_gpu_ssd: prompts and their gradient.

Prints microseconds a call. mamba_ssm's Triton files are pure Python: PYTHONPATH names the folder that holds them."""

import math
import sys

import torch
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
from peer_times import time_of

STATES = 128


def prompts(n, length, heads, dim, groups, chunk):
    def normal(*shape):
        return (torch.randn(*shape, device="cuda") * 0.3).bfloat16()
    x, b, c = normal(n, length, heads, dim), normal(n, length, groups, STATES), normal(n, length, groups, STATES)
    dt = torch.exp(torch.rand(n, length, heads, device="cuda") * math.log(100) + math.log(1e-3))
    a, d = -(torch.rand(heads, device="cuda") * 15 + 1), torch.rand(heads, device="cuda") + 0.5
    inputs = [t.requires_grad_() for t in (x, dt, a, b, c, d)]

    def forward():
        return mamba_chunk_scan_combined(*inputs[:5], chunk, D=inputs[5])
    with torch.no_grad():
        there = time_of(forward)
    grad = torch.randn(n, length, heads, dim, device="cuda", dtype=torch.bfloat16)

    def both():
        for t in inputs:
            t.grad = None
        forward().backward(grad)
    print(f"mamba_ssm {heads} x {dim} heads, {groups} groups, chunks of {chunk}, {n} x {length}: forward {there:.1f} us, "
          f"forward and gradient {time_of(both):.1f} us", flush=True)


def main():
    heads, dim, groups = (int(x) for x in sys.argv[1:4]) if len(sys.argv) > 3 else (128, 64, 8)
    for n, length in ((1, 2048), (8, 2048), (64, 512)):
        for chunk in (128, 256):
            prompts(n, length, heads, dim, groups, chunk)


if __name__ == "__main__":
    main()
