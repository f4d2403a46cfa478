"""GPU benchmark of the ops: log-probability, its gradient and the selective scan beside the limits and the peers of the
same run. Run through script/bench. One JSON object a line goes to the file named by --json; a table goes to stdout.

Times are medians of CUDA-event timings; few-row and decode calls are timed as replays of a captured graph of many
calls, decode also as kernels alone by the profiler. Bytes are what the op must move: logits once (and gradients once),
states once each way."""

import argparse
import ctypes
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import lockstep  # noqa: E402
from lockstep import _abi, _run, layers, triton_logprob  # noqa: E402

DEVICE = torch.device("cuda", torch.cuda.current_device())
RESULTS = []


def record(group, name, ms, n_bytes=None, **more):
    """Keeps one result and prints it as a row of the table."""
    entry = dict(group=group, name=name, ms=round(ms, 5), **more)
    if n_bytes is not None:
        entry["gb_per_s"] = round(n_bytes / ms / 1e6, 1)
    RESULTS.append(entry)
    rate = f"{entry['gb_per_s']:9.0f} GB/s" if n_bytes is not None else " " * 14
    extra = "  ".join(f"{key} {value}" for key, value in more.items())
    print(f"{group:34} {name:42} {ms:9.4f} ms {rate}  {extra}", flush=True)
    return entry


def time_calls(call, repeats=20, warm=3):
    """Median milliseconds of one call."""
    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)  # half a millisecond in which the host gets ahead, so that only the GPU is timed
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def time_graph(call, calls=20):
    """Median milliseconds of one of many calls in a captured graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
        return time_calls(graph.replay) / calls


def time_kernels(call, calls=20):
    """Milliseconds of one call's kernels alone, without the gaps between them."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return sum(event.device_time_total for event in profile.key_averages() if "kernel" in event.key) / calls / 1e3


@triton.jit
def _read(source, out, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK * STEPS + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(STEPS):
        total += tl.load(source + at + i * BLOCK, mask=at + i * BLOCK < n, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def limits():
    big = torch.empty(1 << 30, dtype=torch.float32, device=DEVICE).normal_()
    other = torch.empty_like(big)
    n_bytes = big.numel() * 4
    copy = record("limits", "device copy, read + written", time_calls(lambda: other.copy_(big)), 2 * n_bytes)
    best = None
    for block, steps, warps in ((4096, 8, 8), (8192, 4, 8), (4096, 4, 4), (2048, 16, 4)):
        out = torch.empty(triton.cdiv(big.numel(), block * steps), device=DEVICE)
        ms = time_calls(lambda: _read[(out.numel(),)](big, out, big.numel(), BLOCK=block, STEPS=steps, num_warps=warps))
        best = ms if best is None else min(best, ms)
    read = record("limits", "read only", best, n_bytes)
    return copy["gb_per_s"], read["gb_per_s"]


def ours(logits, targets, entropy=False, out=None):
    """One forward call on preallocated outputs."""
    rows, vocab = logits.shape
    out = torch.empty((3, rows), device=DEVICE) if out is None else out
    return lambda: _run.run("logprob", DEVICE, "stream", logits=logits, dtype=logits.dtype, rows=rows, vocab=vocab,
                            row_stride=logits.stride(0), targets=targets, ignore_index=-100, logprob=out[0], lse=out[1],
                            entropy=out[2] if entropy else None)


def logprob_sizes(copy, read, quick):
    sizes = [(torch.bfloat16, 16384, 65536), (torch.bfloat16, 8192, 151936), (torch.bfloat16, 8192, 128256),
             (torch.float16, 16384, 65536), (torch.float32, 8192, 65536), (torch.float32, 4096, 151936),
             (torch.bfloat16, 8192, 50257)]
    for dtype, rows, vocab in sizes[:2] if quick else sizes:
        group = f"logprob {str(dtype)[6:]} {rows} x {vocab}"
        logits = torch.empty(rows, vocab, dtype=dtype, device=DEVICE).normal_(0, 3)
        targets = torch.randint(0, vocab, (rows,), device=DEVICE)
        n_bytes = logits.numel() * logits.element_size()
        out = torch.empty((3, rows), device=DEVICE)

        def row(name, ms):
            record(group, name, ms, n_bytes, of_read_limit=round(n_bytes / ms / 1e6 / read, 3))

        row("lockstep", time_calls(ours(logits, targets, out=out)))
        row("lockstep with entropy", time_calls(ours(logits, targets, True, out)))
        if dtype == torch.bfloat16:
            row("lockstep's contract in Triton", time_calls(lambda: triton_logprob.logprob(logits, targets)))
            row("torch log_softmax + gather",
                time_calls(lambda: torch.log_softmax(logits, -1).gather(-1, targets[:, None]), 5))
            row("torch cross_entropy", time_calls(lambda: F.cross_entropy(logits, targets, reduction="none"), 5))
            row("torch log_softmax float32 + gather",
                time_calls(lambda: torch.log_softmax(logits, -1, dtype=torch.float32).gather(-1, targets[:, None]), 5))
            fused = torch.compile(lambda x, t: x.gather(-1, t[:, None]).float()[:, 0] - torch.logsumexp(x.float(), -1))
            row("torch.compile gather - logsumexp", time_calls(lambda: fused(logits, targets), 5))
        d_logprob = torch.ones(rows, device=DEVICE)
        backward = lambda: _run.run(  # noqa: E731
            "logprob_backward", DEVICE, "stream", logits=logits, dtype=dtype, rows=rows, vocab=vocab,
            row_stride=vocab, targets=targets, ignore_index=-100, lse=out[1], d_logprob=d_logprob, d_logits=gradient,
            d_stride=vocab)
        gradient = torch.empty_like(logits)
        ms = time_calls(backward)
        record(group, "lockstep backward", ms, 2 * n_bytes, of_copy_limit=round(2 * n_bytes / ms / 1e6 / copy, 3))
        del logits, gradient


def head_and_logprob():
    """Log-probabilities of a head's logits, which lie in memory in between, beside the product alone."""
    rows, hidden, vocab = 8192, 2560, 65536
    x = torch.empty(rows, hidden, dtype=torch.bfloat16, device=DEVICE).normal_()
    w = torch.empty(vocab, hidden, dtype=torch.bfloat16, device=DEVICE).normal_(0, 0.02)
    weight, memory = layers._packed(w)
    logits, out = torch.empty(rows, vocab, device=DEVICE), torch.empty((3, rows), device=DEVICE)
    targets = torch.randint(0, vocab, (rows,), device=DEVICE)
    read = ours(logits, targets, out=out)

    def product():
        _run.run("gemm", DEVICE, "stream", x=x, x_dtype=x.dtype, x_stride=hidden, weight=ctypes.addressof(weight),
                 out=logits, out_dtype=logits.dtype, out_stride=vocab, m=rows, profile=_abi.MMA16, nan_open=True)

    def both():
        product()
        read()

    alone = time_calls(product)
    for name, ms in (("product alone", alone), ("product and log-probability", time_calls(both)),
                     ("torch.mm, bf16 logits", time_calls(lambda: x @ w.T))):
        record(f"head {rows} x {hidden} x {vocab}", name, ms, of_product=round(alone / ms, 3),
               tflop_per_s=round(2 * rows * hidden * vocab / ms / 1e9, 1))
    del memory


def few_rows():
    for rows in (1, 8, 64):
        logits = torch.empty(rows, 65536, dtype=torch.bfloat16, device=DEVICE).normal_(0, 3)
        targets = torch.randint(0, 65536, (rows,), device=DEVICE)
        group = f"logprob bfloat16 {rows} x 65536"
        record(group, "lockstep, in a graph", time_graph(ours(logits, targets)))
        record(group, "torch log_softmax + gather, in a graph",
               time_graph(lambda: torch.log_softmax(logits, -1).gather(-1, targets[:, None])))


def accuracy():
    logits = (torch.rand(512, 65536, device=DEVICE) * 80 - 40).float()
    targets = torch.randint(0, 65536, (512,), device=DEVICE)
    exact = torch.log_softmax(logits.double(), -1).gather(-1, targets[:, None])[:, 0]
    difference = (lockstep.selected_logprob(logits, targets).double() - exact).abs()
    error = (difference / exact.abs().clamp(min=1)).max().item()
    RESULTS.append(dict(group="accuracy", name="logprob, |logit| <= 40, of max(1, |x|)", error=error))
    print(f"largest error of the log-probability against float64, |logit| <= 40: {error:.2g} of max(1, |x|)")


def scan_inputs(batch, length, dim=5120, states=16, dtype=torch.bfloat16):
    rows = batch * length
    make = lambda *shape: torch.randn(*shape, device=DEVICE).to(dtype)  # noqa: E731
    return dict(u=make(rows, dim), dt=make(rows, dim) - 2, z=make(rows, dim), b=make(rows, states), c=make(rows, states),
                a=-torch.arange(1, states + 1, device=DEVICE).float().repeat(dim, 1),
                d=torch.ones(dim, device=DEVICE), dt_bias=torch.zeros(dim, device=DEVICE))


def scans():
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn as peer
    except ImportError:
        peer = None
        print("mamba_ssm is not installed: no figure for it")
    for batch, length in ((1, 2048), (8, 2048), (64, 512)):
        group = f"scan bf16 B={batch} L={length} D=5120 N=16"
        x = scan_inputs(batch, length)
        state = torch.zeros(batch, 5120, 16, device=DEVICE)
        spans = lockstep.spans([i * length for i in range(batch)], [length] * batch, [0] * batch, list(range(batch)),
                               device=DEVICE)
        a2 = x["a"] * lockstep.LOG2E
        steps = batch * length * 5120 * 16
        for name, dt, softplus in (("lockstep", x["dt"], True),
                                   ("lockstep, dt activated before", F.softplus(x["dt"].float()).bfloat16(), False)):
            ms = time_calls(lambda: lockstep.scan(x["u"], dt, a2, x["b"], x["c"], state, spans, x["d"], x["z"],
                                                  x["dt_bias"], softplus, length, check="stream"))
            record(group, name, ms, state_steps_per_ns=round(steps / ms / 1e6, 1))
        if peer is not None:
            major = {k: x[k].view(batch, length, -1).transpose(1, 2).contiguous() for k in ("u", "dt", "b", "c", "z")}
            ms = time_calls(lambda: peer(major["u"], major["dt"], x["a"], major["b"], major["c"], x["d"], major["z"],
                                         x["dt_bias"], True))
            record(group, "mamba_ssm", ms, state_steps_per_ns=round(steps / ms / 1e6, 1))
    for slots in (1, 16, 256):
        x = scan_inputs(slots, 1)
        state = torch.zeros(slots, 5120, 16, device=DEVICE)
        spans = lockstep.spans(list(range(slots)), [1] * slots, [5] * slots, list(range(slots)), device=DEVICE)
        a2 = x["a"] * lockstep.LOG2E
        call = lambda: lockstep.scan(x["u"], x["dt"], a2, x["b"], x["c"], state, spans, x["d"], x["z"],  # noqa: E731
                                     x["dt_bias"], True, 1, check="stream")
        n_bytes = 2 * state.numel() * 4
        record(f"scan decode, {slots} slots", "lockstep, in a graph", time_graph(call), n_bytes)
        record(f"scan decode, {slots} slots", "lockstep, kernel alone", time_kernels(call), n_bytes)


def time_many(call, calls=200, warm=20):
    """Milliseconds of one of many calls in a row: by events, and by the host's clock until all are done."""
    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start = time.perf_counter()
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / calls, (time.perf_counter() - start) / calls * 1e3


def scan_through_torch(batch=1, length=2048):
    """lockstep.selective_scan and its gradient beside their kernels, called on memory that is there."""
    names = ("u", "dt", "a", "b", "c", "d", "z", "dt_bias")
    x = scan_inputs(batch, length)
    dim, states = x["a"].shape
    x = {k: (x[k].view(batch, length, -1) if x[k].shape[0] == batch * length else x[k]) for k in names}
    weight = torch.randn_like(x["u"])
    state = torch.zeros(batch, dim, states, device=DEVICE)
    spans = lockstep.spans([i * length for i in range(batch)], [length] * batch, [0] * batch, list(range(batch)),
                           device=DEVICE)
    members = dict(in_dtype=x["u"].dtype, u=x["u"], dt_raw=x["dt"], b=x["b"], cc=x["c"], z=x["z"], u_stride=dim,
                   dt_stride=dim, b_stride=states, c_stride=states, z_stride=dim, a2=x["a"] * lockstep.LOG2E,
                   dt_bias=x["dt_bias"], d=x["d"], rows=batch * length, dim=dim, n_states=states, spans=spans,
                   n_spans=batch, span_rows_max=length)
    out = torch.empty_like(x["u"])
    to = {k: torch.empty_like(x[v]) for k, v in  # rows rounded to the type of u, as torch gets them
          (("du", "u"), ("ddt", "dt"), ("db", "b"), ("dcc", "c"), ("dz", "z"), ("da2", "a"), ("ddt_bias", "dt_bias"),
           ("dd", "d"))}

    def forward_kernels():
        _run.run("scan", DEVICE, "stream", **members, out=out, out_dtype=out.dtype, out_stride=dim,
                 state=_run.pool("state", state, (state.dtype,), (dim, states), state))

    def both_kernels():
        forward_kernels()
        _run.run("scan_backward", DEVICE, "stream", **members, **to, dout=weight, dout_stride=dim,
                 out_dtype=out.dtype, dout_bf16=True, du_bf16=True)

    leaves = {k: v.clone().requires_grad_() for k, v in x.items()}

    def forward(check):
        return lockstep.selective_scan(**x, check=check)

    def both(check):
        return torch.autograd.grad(lockstep.selective_scan(**leaves, check=check)[0], list(leaves.values()), weight)

    group = f"scan through torch B={batch} L={length}"
    for what, kernels, call in (("forward", forward_kernels, forward), ("forward and backward", both_kernels, both)):
        alone, host = time_many(kernels)
        record(group, f"{what}, kernels", alone, host_ms=round(host, 4))
        for check in ("stream", "wait"):
            events, host = time_many(functools.partial(call, check))
            record(group, f'{what}, torch, check="{check}"', events, host_ms=round(host, 4),
                   more_than_kernels_ms=round(events - alone, 4))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="file for one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="the two published shapes only")
    parser.add_argument("--scan-calls", action="store_true", help="the scan through torch only")
    options = parser.parse_args()
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                            text=True, check=False).stdout.strip().split("\n")[0]
    head = dict(date=time.strftime("%Y-%m-%d"), chip=torch.cuda.get_device_name(), driver=driver,
                torch=torch.__version__, triton=triton.__version__, cuda=torch.version.cuda)
    print("  ".join(f"{key} {value}" for key, value in head.items()))
    lockstep.check("cuda")
    if not options.scan_calls:
        with torch.no_grad():
            copy, read = limits()
            logprob_sizes(copy, read, options.quick)
            if not options.quick:
                head_and_logprob()
            few_rows()
            accuracy()
            scans()
    scan_through_torch()
    lockstep.check()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            for entry in [head, *RESULTS]:
                assert math.isfinite(entry.get("ms", 0.0))
                file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
