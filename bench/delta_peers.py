"""flash-linear-attention's gated delta rule (Triton) on this GPU, beside bench_gpu_delta: prompts, their gradient, and
single tokens.

Prints microseconds a call. fla-core is pure Python: PYTHONPATH names the folder that holds `fla`."""

import sys

import fla.ops.common.chunk_o
import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from peer_times import time_of

DIM = 128

# fla refuses its gradient on Hopper with Triton 3.4 to 3.7.0, where its values are wrong. Only its time is of use here.
fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1 = True


def inputs_of(n, length, heads, key_heads):
    def normal(*shape):
        return torch.randn(*shape, device="cuda").bfloat16()
    q, k = normal(n, length, key_heads, DIM), normal(n, length, key_heads, DIM)
    g = torch.rand(n, length, heads, device="cuda") * -0.2 - 1e-3
    beta = (torch.rand(n, length, heads, device="cuda") * 0.9 + 0.05).bfloat16()
    return q, k, normal(n, length, heads, DIM), g, beta


def prompts(n, length, heads, key_heads):
    inputs = [t.requires_grad_() for t in inputs_of(n, length, heads, key_heads)]

    def forward():
        return chunk_gated_delta_rule(*inputs, use_qk_l2norm_in_kernel=True, output_final_state=True)[0]
    with torch.no_grad():
        there = time_of(forward)
    grad = torch.randn(n, length, heads, DIM, device="cuda", dtype=torch.bfloat16)

    def both():
        for t in inputs:
            t.grad = None
        forward().backward(grad)
    print(f"fla {heads} over {key_heads} heads, {n} x {length}: forward {there:.1f} us, forward and gradient "
          f"{time_of(both):.1f} us", flush=True)


def tokens(n, heads, key_heads):
    inputs = inputs_of(n, 1, heads, key_heads)
    state = torch.randn(n, heads, DIM, DIM, device="cuda") * 0.1

    def step():
        return fused_recurrent_gated_delta_rule(*inputs, initial_state=state, output_final_state=True,
                                                use_qk_l2norm_in_kernel=True)
    with torch.no_grad():
        print(f"fla {heads} over {key_heads} heads, {n} tokens: {time_of(step):.1f} us", flush=True)


def main():
    heads, key_heads = (int(x) for x in sys.argv[1:3]) if len(sys.argv) > 2 else (32, 16)
    for n, length in ((1, 2048), (8, 2048), (64, 512)):
        prompts(n, length, heads, key_heads)
    for n in (64, 256):
        tokens(n, heads, key_heads)


if __name__ == "__main__":
    main()
