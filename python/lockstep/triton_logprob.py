"""The log-probability contract of src/op/logprob.h as Triton kernels: forward, lse and entropy, meant to give the bits
of the other back ends.

What the bits rest on. tests/python/check_triton.py checks it in PTX, in triton's interpreter, and on a GPU:

- Every rounding is one PTX instruction with an explicit .rn, written as inline assembly: add, sub, mul, fma, div. PTX
  lets ptxas fuse only instructions without a rounding modifier, and LLVM does not look into assembly, so neither can
  contract a product into a sum or reorder one. Plain `a * b + c` would become fma.rn: triton 3.6 lets LLVM fuse by
  default. The launches also say enable_fp_fusion=False (LLVM then fuses nothing and ptxas gets --fmad=false), which
  these kernels do not need but a plain operator added to them would.
- No .ftz: triton flushes subnormals in libdevice functions and in tl.floor, and neither is called. exp2 and log are the
  polynomials of src/num/expf.h. `/` in triton is div.full.f32, not the rounded quotient, and `-x` is 0 - x, which
  loses the sign of zero: assembly for both.
- Order: a leaf's 256 chains are the elements of one [256] block, and its 8 steps an unrolled loop. The fold is written
  as reshape, permute, split and add, because the order within tl.sum is the compiler's; tl.max is of exact values and
  of flags. Leaves meet in the aligned binary tree in a second kernel. No atomics.

Peers: torch.nn.functional.cross_entropy and fused cross-entropy kernels in Triton, whose tl.sum, tl.exp and online
renormalisation give bits that move with block size and compiler."""

import torch
import triton
import triton.language as tl

from ._run import require, rows

LEAF = tl.constexpr(2048)
CHAINS = tl.constexpr(256)
LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
LN2 = tl.constexpr(float.fromhex("0x1.62e430p-1"))
MINUS_LN2 = tl.constexpr(-float.fromhex("0x1.62e430p-1"))
LN2_LO = tl.constexpr(-float.fromhex("0x1.05c610p-29"))
MAGIC = tl.constexpr(12582912.0)
NEAR = tl.constexpr(64.0)
LIMIT = tl.constexpr(1048576.0)
K_NONE = tl.constexpr(-16777216.0)
# Highest power first.
EXP2_POLY = [tl.constexpr(float.fromhex(c)) for c in (
    "0x1.5bdf2cp-10", "0x1.3ceabep-7", "0x1.c6b6c6p-5", "0x1.ebf9bap-3", "0x1.62e42ap-1", "0x1p0")]
LOG_POLY = [tl.constexpr(float.fromhex(c)) for c in (
    "-0x1.07c894p-3", "0x1.1e678cp-3", "-0x1.f332f8p-4", "0x1.1ed662p-3", "-0x1.559c44p-3", "0x1.99d044p-3",
    "-0x1.fffefcp-3", "0x1.555506p-2", "-0x1p-1")]
EXP2_C5, EXP2_C4, EXP2_C3, EXP2_C2, EXP2_C1, EXP2_C0 = EXP2_POLY
LOG_P10, LOG_P9, LOG_P8, LOG_P7, LOG_P6, LOG_P5, LOG_P4, LOG_P3, LOG_P2 = LOG_POLY


@triton.jit
def _add(a, b):
    return tl.inline_asm_elementwise("add.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)


@triton.jit
def _sub(a, b):
    return tl.inline_asm_elementwise("sub.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)


@triton.jit
def _mul(a, b):
    return tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)


@triton.jit
def _div(a, b):
    return tl.inline_asm_elementwise("div.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)


@triton.jit
def _fma(a, b, c):
    return tl.inline_asm_elementwise("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, True, 1)


@triton.jit
def _neg(a):
    """The other sign, of zero too: triton's unary minus is 0 - a."""
    return tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [a], tl.float32, True, 1)


@triton.jit
def _floor(a):
    return tl.inline_asm_elementwise("cvt.rmi.f32.f32 $0, $1;", "=f,f", [a], tl.float32, True, 1)


@triton.jit
def _max(a, b):
    """The larger; b when either is NaN."""
    return tl.where(a > b, a, b)


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _from_bits(x):
    return x.to(tl.float32, bitcast=True)


@triton.jit
def _canonical(x):
    return tl.where(x == x, x, float("nan"))


@triton.jit
def _exp2_scaled(f, r):
    """2^f, |f| <= 1/2, times the power of two in the low bits of r."""
    p = _fma(EXP2_C5, f, EXP2_C4)
    p = _fma(p, f, EXP2_C3)
    p = _fma(p, f, EXP2_C2)
    p = _fma(p, f, EXP2_C1)
    p = _fma(p, f, EXP2_C0)
    return _from_bits(_bits(p) + (_bits(r) << 23))


@triton.jit
def _log(x):
    """ls_log for 1 <= x < 2; NaN stays NaN."""
    t = _bits(x) - 0x3F2AAAAB + (150 << 23)
    k = _sub(_from_bits(0x4B400000 + (t >> 23)), 12582912.0 + 150.0)
    f = _sub(_from_bits((t & 0x7FFFFF) + 0x3F2AAAAB), 1.0)
    total = _fma(k, LN2, f)
    low = _add(_fma(k, LN2, _neg(total)), f)
    p = _fma(LOG_P10, f, LOG_P9)
    p = _fma(p, f, LOG_P8)
    p = _fma(p, f, LOG_P7)
    p = _fma(p, f, LOG_P6)
    p = _fma(p, f, LOG_P5)
    p = _fma(p, f, LOG_P4)
    p = _fma(p, f, LOG_P3)
    p = _fma(p, f, LOG_P2)
    result = _add(total, _fma(_mul(f, f), p, _add(low, _fma(k, LN2_LO, 0.0))))
    return tl.where(x == x, result, x)


@triton.jit
def _halve(x, N: tl.constexpr, HALF: tl.constexpr):
    """[N * 2 * HALF] to [N * HALF]: within each of N runs, element j takes element j + HALF."""
    a, b = tl.permute(tl.reshape(x, (N, 2, HALF)), (0, 2, 1)).split()
    return tl.reshape(_add(a, b), (N * HALF,))


@triton.jit
def _fold(chains):
    """256 chains to [1], the tree of src/num/sum.h."""
    x = _halve(chains, 32, 4)
    x = _halve(x, 32, 2)
    x = _halve(x, 32, 1)
    x = _halve(x, 1, 16)
    x = _halve(x, 1, 8)
    x = _halve(x, 1, 4)
    x = _halve(x, 1, 2)
    return _halve(x, 1, 1)


@triton.jit
def _taken(targets, mask, row, ignore_index, HAS_MASK: tl.constexpr):
    taken = tl.load(targets + row) != ignore_index
    if HAS_MASK:
        taken = taken & (tl.load(mask + row) != 0)
    return taken


@triton.jit
def _inverse(temperature, row, HAS_TEMPERATURE: tl.constexpr):
    """1 / temperature; at temperature 1 it is 1, and z the logit itself."""
    if HAS_TEMPERATURE:
        return _div(1.0, tl.load(temperature + row))
    else:
        return tl.full((), 1.0, tl.float32)


@triton.jit
def leaf_kernel(logits, row_stride, vocab, targets, ignore_index, mask, temperature, leaves, n_leaves,
                HAS_MASK: tl.constexpr, HAS_TEMPERATURE: tl.constexpr):
    """A program sums one leaf of one row: leaves [rows][n_leaves][k, q, s, e]."""
    program = tl.program_id(0).to(tl.int64)
    row, leaf = program // n_leaves, program % n_leaves
    if _taken(targets, mask, row, ignore_index, HAS_MASK):
        first = leaf * LEAF
        inv_t = _inverse(temperature, row, HAS_TEMPERATURE)
        base = logits + row * row_stride + first
        n = vocab - first
        chain = tl.arange(0, CHAINS)

        m = tl.full((CHAINS,), float("-inf"), tl.float32)
        far = tl.full((CHAINS,), 0, tl.int32)
        bad = tl.full((CHAINS,), 0, tl.int32)
        for i in tl.static_range(8):
            inside = chain + i * CHAINS < n
            z = _mul(tl.load(base + i * CHAINS + chain, mask=inside, other=0.0).to(tl.float32), inv_t)
            m = tl.where(inside, _max(z, m), m)
            near = (z >= -NEAR) & (z <= NEAR)
            far = tl.where(inside & (near == 0), 1, far)
            bad = tl.where(inside & ((z <= LIMIT) == 0), 1, bad)
        top = tl.max(m, 0)
        any_far, any_bad = tl.max(far, 0), tl.max(bad, 0)

        q = _sub(_fma(top, LOG2E, MAGIC), MAGIC)
        k = tl.where(any_far != 0, q, 0.0)
        low = tl.where(any_far != 0, _floor(_sub(top, 80.0)), -NEAR)
        shift = _sub(MAGIC, k)
        power_shift = _add(shift, q)
        s = tl.full((CHAINS,), 0.0, tl.float32)
        e = tl.full((CHAINS,), 0.0, tl.float32)
        for i in tl.static_range(8):
            inside = chain + i * CHAINS < n
            z = _mul(tl.load(base + i * CHAINS + chain, mask=inside, other=0.0).to(tl.float32), inv_t)
            x = _max(z, low)
            r = _fma(x, LOG2E, shift)
            f = _fma(x, LOG2E, _neg(_sub(r, shift)))
            term = _exp2_scaled(f, r)
            s = tl.where(inside, _add(s, term), s)
            e = tl.where(inside, _fma(term, _add(_sub(r, power_shift), f), e), e)

        none = (any_bad != 0) | (top < -LIMIT)
        special = tl.where(any_bad != 0, float("nan"), 0.0)
        out = leaves + program * 4
        tl.store(out, tl.where(none, K_NONE, k))
        tl.store(out + 1, tl.where(none, K_NONE, q))
        tl.store(out + 2 + tl.arange(0, 1), tl.where(none, special, _fold(s)))
        tl.store(out + 3 + tl.arange(0, 1), tl.where(none, special, _fold(e)))


@triton.jit
def _pow2(d):
    return tl.where(d < -126.0, 0.0, _from_bits((d.to(tl.int32) + 127) << 23))


@triton.jit
def _pairs(x, N: tl.constexpr):
    return tl.reshape(x, (N, 2)).split()


@triton.jit
def _combine(k, q, s, e, n_leaves, LEVEL: tl.constexpr, N: tl.constexpr):
    """One level of the tree: 2N nodes of 2^LEVEL leaves each to N; an absent right node leaves the left as it is."""
    ka, kb = _pairs(k, N)
    qa, qb = _pairs(q, N)
    sa, sb = _pairs(s, N)
    ea, eb = _pairs(e, N)
    both = ((2 * tl.arange(0, N) + 1) << LEVEL) < n_leaves
    k, q = _max(ka, kb), _max(qa, qb)
    scale_a, scale_b = _pow2(_sub(ka, k)), _pow2(_sub(kb, k))
    s = _add(_mul(sa, scale_a), _mul(sb, scale_b))
    e = _add(_mul(_fma(_sub(qa, q), sa, ea), scale_a), _mul(_fma(_sub(qb, q), sb, eb), scale_b))
    return tl.where(both, k, ka), tl.where(both, q, qa), tl.where(both, s, sa), tl.where(both, e, ea)


@triton.jit
def row_kernel(logits, row_stride, targets, ignore_index, mask, temperature, leaves, n_leaves, logprob, lse, entropy,
               LEVELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TEMPERATURE: tl.constexpr):
    """A program combines one row's leaves, at most 2^LEVELS, and finishes the row."""
    row = tl.program_id(0).to(tl.int64)
    one = row + tl.arange(0, 1)
    if _taken(targets, mask, row, ignore_index, HAS_MASK):
        index = tl.arange(0, 2**LEVELS)
        leaf = leaves + (row * n_leaves + index) * 4
        there = index < n_leaves
        k = tl.load(leaf, mask=there, other=0.0)
        q = tl.load(leaf + 1, mask=there, other=0.0)
        s = tl.load(leaf + 2, mask=there, other=0.0)
        e = tl.load(leaf + 3, mask=there, other=0.0)
        for level in tl.static_range(LEVELS):
            k, q, s, e = _combine(k, q, s, e, n_leaves, level, 2**(LEVELS - level - 1))

        total = tl.where(s > 0.0, s, float("nan"))
        mantissa = _bits(total) & 0x7FFFFF
        log_s = _log(_from_bits(mantissa | tl.where(total > 0.0, 0x3F800000, 0x7F800000)))
        k = _add(k, ((_bits(total) >> 23) - 127).to(tl.float32))
        inv_t = _inverse(temperature, row, HAS_TEMPERATURE)
        z = _mul(tl.load(logits + row * row_stride + tl.load(targets + row)).to(tl.float32), inv_t)
        value = _fma(_fma(z, LOG2E, _neg(k)), LN2, _neg(log_s))
        spread = _fma(MINUS_LN2, _div(_fma(_sub(q, k), total, e), total), log_s)
        tl.store(logprob + one, _canonical(tl.where(value > 0.0, 0.0, value)))
        tl.store(lse + one, _canonical(_fma(k, LN2, _fma(k, LN2_LO, log_s))))
        tl.store(entropy + one, _canonical(tl.where(spread < 0.0, 0.0, spread)))
    else:
        zero = tl.zeros((1,), tl.float32)
        tl.store(logprob + one, zero)
        tl.store(lse + one, zero)
        tl.store(entropy + one, zero)


def logprob(logits, targets, mask=None, temperature=None, ignore_index=-100):
    """lockstep.logprob's forward for CUDA tensors, by Triton: logits [rows, vocab], targets [rows] int64, mask [rows],
    temperature [rows] float32. Returns (logprob, lse, entropy). Targets and temperatures are checked in torch, and the
    call waits for that. Has no gradient."""
    stride = rows("logits", logits, (torch.float32, torch.bfloat16, torch.float16))
    n, vocab = logits.shape
    require("targets", targets, (torch.int64,), (n,), logits)
    taken = targets != ignore_index
    if mask is not None:
        require("mask", mask, (torch.bool, torch.uint8), (n,), logits)
        mask = mask.contiguous().view(torch.uint8)
        taken = taken & (mask != 0)
    bad = taken & ((targets < 0) | (targets >= vocab))
    if temperature is not None:
        require("temperature", temperature, (torch.float32,), (n,), logits)
        temperature = temperature.contiguous()
        bad = bad | (taken & ~((temperature > 0) & temperature.isfinite()))
    if bad.any():
        raise ValueError(f"row {bad.nonzero()[0].item()}: the target is not in 0..{vocab - 1}, or the temperature is "
                         "not finite and positive")
    out = [torch.empty(n, dtype=torch.float32, device=logits.device) for _ in range(3)]
    if n == 0:
        return tuple(out)
    n_leaves = triton.cdiv(vocab, LEAF.value)
    leaves = torch.empty((n, n_leaves, 4), dtype=torch.float32, device=logits.device)
    targets = targets.contiguous()
    flags = dict(HAS_MASK=mask is not None, HAS_TEMPERATURE=temperature is not None, enable_fp_fusion=False,
                 num_warps=1)
    # A pointer that is not read must still be one.
    mask, temperature = (targets if x is None else x for x in (mask, temperature))
    with torch.cuda.device_of(logits):
        leaf_kernel[(n * n_leaves,)](logits, stride, vocab, targets, ignore_index, mask, temperature, leaves, n_leaves,
                                     **flags)
        row_kernel[(n,)](logits, stride, targets, ignore_index, mask, temperature, leaves, n_leaves, *out,
                         LEVELS=(n_leaves - 1).bit_length(), **flags)
    return tuple(out)
