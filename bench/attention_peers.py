"""torch's attention on this GPU, beside bench_gpu_attention: causal, bf16, groups of heads, cuDNN and the flash back end.

Prints TFLOP/s of the products that the formula has: two forward, five backward, half of the square."""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from peer_times import time_of

TOKENS = 16384


def main():
    heads, kv_heads = (int(x) for x in sys.argv[1:3]) if len(sys.argv) > 2 else (32, 8)
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
            for dim in (64, 128):
                for length in (512, 2048, 8192, 16384):
                    n = TOKENS // length
                    q, k, v = (torch.randn(n, h, length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                               for h in (heads, kv_heads, kv_heads))
                    with sdpa_kernel(backend):
                        def forward():
                            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                        out = forward()
                        grad = torch.randn_like(out)
                        there = time_of(forward)
                        back = time_of(lambda: out.backward(grad, retain_graph=True))
                    square = n * length * length * heads * dim
                    print(f"{name} {'deterministic ' if deterministic else ''}heads {heads}/{kv_heads} dim {dim}, "
                          f"{n} x {length}: forward {there:.1f} us {2 * square / there * 1e-6:.1f} TFLOP/s, backward "
                          f"{back:.1f} us {5 * square / back * 1e-6:.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
