#!/usr/bin/env python3
"""llama.cpp's server out of the package xllamacpp, on a port that the system chooses; its address is the first line.

Usage: serve.py MODEL.gguf [--slots N] [--length N] [--threads N] [--cache-type f16|bf16|f32|q8_0|q4_0]
       [--flash-attention on|off|auto] [--checkpoints N] [--reuse N]
       [--rope-base X] [--rope-scale X] [--yarn FROM] [--rows N] [--port N]

Ends when its standard input does.
"""

import argparse
import os
import sys

out = os.fdopen(os.dup(1), "w")  # what the library prints goes to standard error
os.dup2(2, 1)
import xllamacpp


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("gguf")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--length", type=int, default=1200, help="tokens of a slot")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cache-type", default="f16", choices=["f16", "bf16", "f32", "q8_0", "q4_0"],
                        help="of attention keys and values")
    parser.add_argument("--flash-attention", default="auto", choices=["on", "off", "auto"])
    parser.add_argument("--checkpoints", type=int, help="of a slot's state; the server's own number when absent")
    parser.add_argument("--reuse", type=int, default=0, help="least tokens of a cached piece that is moved elsewhere")
    parser.add_argument("--rope-base", type=float, help="another one than the model's")
    parser.add_argument("--rope-scale", type=float, help="of positions, another one than the model's")
    parser.add_argument("--yarn", type=int, help="positions are stretched to four times this length")
    parser.add_argument("--rows", type=int, help="most tokens of a forward; the server's own number when absent")
    parser.add_argument("--port", type=int, default=0)
    o = parser.parse_args()
    p = xllamacpp.CommonParams()
    p.model.path = o.gguf
    p.n_parallel, p.n_ctx, p.port = o.slots, o.slots * o.length, o.port
    p.n_threads_http = o.slots + 4
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = o.threads
    p.cache_type_k = p.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + o.cache_type.upper())
    flash = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[o.flash_attention]
    p.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_" + flash)
    p.n_cache_reuse = o.reuse
    if o.rope_base is not None:
        p.rope_freq_base = o.rope_base
    if o.rope_scale is not None:
        p.rope_freq_scale = o.rope_scale
    if o.yarn is not None:
        p.rope_scaling_type = xllamacpp.llama_rope_scaling_type.LLAMA_ROPE_SCALING_TYPE_YARN
        p.rope_freq_scale, p.yarn_orig_ctx = 0.25, o.yarn
    if o.rows is not None:
        p.n_batch = p.n_ubatch = o.rows
    if o.checkpoints is not None:
        p.n_ctx_checkpoints = o.checkpoints
    p.endpoint_props = True
    server = xllamacpp.Server(p)
    print("listening on " + server.listening_address, file=out, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
