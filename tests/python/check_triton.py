"""The Triton reading of the log-probability contract: its PTX, and its bits against the CPU and CUDA back ends.

Usage: check_triton.py [--interpret] [--share I/N]. With a GPU its results are compared there. Without one, PTX is still
compiled and read, and the kernels run on small rows in triton's interpreter (--interpret does only that), where numpy
stands for the assembly. Nearly all of the time goes into compiling: N processes with a share of the cases each take a
fraction of it."""

import argparse
import collections
import itertools
import os
import re
import subprocess
import sys

from harness import Report, share

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--interpret", action="store_true")
PARSER.add_argument("--share", type=share, default=(1, 1), metavar="I/N")
OPTIONS = PARSER.parse_args()
if OPTIONS.interpret:
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import torch
    import triton
except ImportError as error:
    print(f"triton: skipped: {error}\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

import lockstep
from lockstep import _abi
from lockstep import triton_logprob as reading

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def rows_of_all_kinds(dtype, vocab):
    """Logits, targets, mask and temperatures of rows that take every path."""
    generator = torch.Generator().manual_seed(vocab)
    base = torch.randn((14, vocab), generator=generator)
    logits = base * 3
    logits[1] = base[1] * 40  # leaves with |z| > 64
    logits[2] = base[2] - 1000
    logits[3] = base[3] * 3 + 700
    logits[4, ::3] = -torch.inf
    logits[5] = -torch.inf
    logits[6, vocab // 2] = torch.nan
    logits[7, vocab - 1] = torch.inf
    logits[8] = base[8] * 1e-3
    logits[9] = torch.where(torch.arange(vocab) < vocab // 2, -torch.inf, base[9] * 20)
    logits[10] = base[10] * 64
    logits[11] = 0
    logits[12:] = torch.nan  # left out: not to be read
    targets = torch.randint(vocab, (14,), generator=generator)
    targets[12] = -100
    mask = torch.ones(14, dtype=torch.bool)
    mask[13] = False
    temperature = torch.rand(14, generator=generator) + 0.25
    temperature[0] = 1
    return logits.to(dtype), targets, mask, temperature


def differing(got, want):
    return sum((g.cpu().view(torch.int32) != w.cpu().view(torch.int32)).sum().item() for g, w in zip(got, want))


def compare(run, dtype, vocab, other):
    """Bits of run(), a call of the kernels, against lockstep.logprob on the device `other`."""
    logits, targets, mask, temperature = rows_of_all_kinds(dtype, vocab)
    counts = []
    for m, t in itertools.product((None, mask), (None, temperature)):
        x, y = (logits, targets) if m is not None else (logits[:13], targets[:13])
        m, t = (None if v is None else v[:len(x)] for v in (m, t))
        want = lockstep.logprob(*(None if v is None else v.to(other) for v in (x, y, m, t)))
        counts.append(differing(run(x, y, m, t), want))
    print(f"    {dtype} vocabulary {vocab} against {other}: differing bits in {counts} of {3 * 13} results")
    assert not any(counts), counts


# ---- PTX ----


def check_ptx(kernel, signature, constants):
    """Compiled for sm_90: each float32 operation carries .rn, none flushes, nothing is atomic or approximate."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    source = ASTSource(fn=kernel, signature={name: "constexpr" if name in constants else signature[name]
                                             for name in kernel.arg_names},
                       constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()})
    for fusion in (False, True):  # the bits do not rest on the option
        options = dict(num_warps=1, enable_fp_fusion=fusion)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        found = collections.Counter(re.findall(r"^\s+(?:@!?%\w+\s+)?([a-z][\w.]*)\s", ptx, re.M))
        arithmetic = [name for name in found
                      if re.match(r"(add|sub|mul|fma|mad|div|rcp|sqrt|ex2|lg2)\b.*f(16|32|64)", name)]
        print(f"    {kernel.__name__}: {', '.join(f'{name} {found[name]}' for name in sorted(arithmetic))}")
        assert "fma.rn.f32" in arithmetic
        wrong = [name for name in arithmetic if not name.endswith(".rn.f32")]
        wrong += [name for name in found if ".ftz" in name or ".approx" in name or re.match(r"(atom|red)\b", name)]
        assert not wrong, wrong


SIGNATURE = dict(row_stride="i64", vocab="i32", targets="*i64", ignore_index="i64", mask="*u8", temperature="*fp32",
                 leaves="*fp32", n_leaves="i32", logprob="*fp32", lse="*fp32", entropy="*fp32")


def ptx_cases(report):
    for logits in report.take(("*fp32", "*bf16", "*fp16")):
        flags = dict(HAS_MASK=True, HAS_TEMPERATURE=True)
        signature = dict(SIGNATURE, logits=logits)
        report.run(f"PTX of leaf_kernel {logits}", check_ptx, reading.leaf_kernel, signature, flags)
        report.run(f"PTX of row_kernel {logits}", check_ptx, reading.row_kernel, signature, dict(flags, LEVELS=6))


# ---- without a GPU: triton's interpreter ----


def numpy_fma(a, b, c):
    """float32 fma: the sum in float64 rounded to odd, so that the rounding to float32 is the only one."""
    import numpy
    product = a.astype(numpy.float64) * b.astype(numpy.float64)  # exact
    c = c.astype(numpy.float64)
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)  # exact
    bits = total.view(numpy.int64)
    even = numpy.isfinite(total) & (rest != 0) & (bits & 1 == 0)
    # Towards the rest: away from zero where signs agree, else the odd neighbour below.
    odd = numpy.where((rest > 0) == (total > 0), bits | 1, bits - 1)
    return numpy.where(even, odd, bits).view(numpy.float64).astype(numpy.float32)


def assembly_in_numpy():
    """Teaches triton's interpreter the assembly of the kernels."""
    import numpy
    from triton.runtime import interpreter
    operations = {"add.rn.f32": numpy.add, "sub.rn.f32": numpy.subtract, "mul.rn.f32": numpy.multiply,
                  "div.rn.f32": numpy.divide, "fma.rn.f32": numpy_fma, "neg.f32": numpy.negative,
                  "cvt.rmi.f32.f32": numpy.floor}
    Result = collections.namedtuple("Result", "get_result")

    def create_inline_asm(self, asm, constraints, values, types, pure, pack):
        with numpy.errstate(all="ignore"):
            data = operations[asm.split()[0]](*(value.data for value in values))
        return Result(lambda _: interpreter.TensorHandle(numpy.asarray(data, numpy.float32), values[0].dtype.scalar))

    interpreter.InterpreterBuilder.create_inline_asm = create_inline_asm


def interpreted_cases(report):
    assembly_in_numpy()
    for dtype, vocab in itertools.product((F32, BF16, F16), (1, 300, 2049, 10007)):
        report.run(f"interpreted {dtype} {vocab}", compare, reading.logprob, dtype, vocab, "cpu")


def interpreter_passes():
    done = subprocess.run([sys.executable, __file__, "--interpret"], capture_output=True, text=True)
    print(done.stdout, end="")
    assert done.returncode == 0, done.stderr


# ---- with one ----


def gpu_cases(report):
    others = ["cpu"]
    why = _abi.backend_unavailable(_abi.CUDA)
    if why is None:
        others.append("cuda")
    else:
        for reason in report.take([why]):
            report.skip("against the CUDA back end", reason)

    def run(*tensors):
        return reading.logprob(*(None if t is None else t.cuda() for t in tensors))

    vocabs = (1, 7, 255, 2047, 2048, 2049, 4096, 10007, 32000, 128256, 151936)
    for dtype, vocab in report.take(itertools.product((F32, BF16, F16), vocabs)):
        for other in others:
            report.run(f"GPU {dtype} {vocab} {other}", compare, run, dtype, vocab, other)


def main():
    report = Report(OPTIONS.share)
    if OPTIONS.interpret:
        interpreted_cases(report)
    else:
        ptx_cases(report)
        if torch.cuda.is_available():
            gpu_cases(report)
        else:
            for case in report.take([interpreter_passes]):
                report.skip("results on a GPU", "torch sees no CUDA device")
                report.run("results in the interpreter", case)
    report.finish()


if __name__ == "__main__":
    main()
