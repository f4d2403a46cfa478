"""The torch package: values and gradients against float64, operator checks, compilation, errors, and bits under every
lever that must not change them.

Usage: check_package.py [--backend cpu|cuda|all] [--share I/N] [CASE...]; the package is found through PYTHONPATH, its
library as the package says. Without torch all of it is skipped. Values are compared with float64 torch: |got - want| <= atol + rtol *
|want|, the tolerance named at each comparison."""

import argparse
import functools
import itertools
import os
import sys

from harness import Report, Skip, share

try:
    import torch
except ImportError:
    print("python skipped: torch is not installed\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

import lockstep
from lockstep import _abi, _run
from lockstep.ops import _token_major

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
OPS = torch.ops.lockstep


def random(device, *shape, seed=0, dtype=F32, scale=1.0):
    generator = torch.Generator().manual_seed(seed * 7919 + sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(device)


def integers(device, high, *shape, seed=0):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed + high)).to(device)


def close(name, got, want, rtol, atol):
    got, want = got.detach().to(F64), want.detach().to(F64)
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, {tuple(want.shape)} is wanted"
    excess = ((got - want).abs() - atol - rtol * want.abs()).nan_to_num(nan=float("inf"))
    excess[(got == want) | (got.isnan() & want.isnan())] = 0  # infinities and NaN in their places
    assert not (excess > 0).any(), f"{name}: {got.flatten()[excess.argmax()]} for {want.flatten()[excess.argmax()]}"


def bits(tensor):
    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).cpu()


def same_bits(name, got, want):
    got, want = bits(got), bits(want)
    assert got.shape == want.shape and torch.equal(got, want), f"{name}: {(got != want).sum()} of {got.numel()} differ"


def raises(kind, words, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert words in str(error), f"'{words}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__} about '{words}'")


def leaves(*tensors):
    """Copies that gather gradients; None stays None."""
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


# ---- float64 references ----


def reference_logprob(logits, targets, inv_t):
    logs = torch.log_softmax(logits * inv_t[..., None], -1)
    entropy = -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0)).sum(-1)
    return logs.gather(-1, targets[..., None])[..., 0], torch.logsumexp(logits * inv_t[..., None], -1), entropy


def reference_scan(u, dt, a, b, c, d=None, z=None, dt_bias=None, softplus=True):
    """One step after the other, [batch, length, dim]; the formula of Mamba's selective_scan_ref."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = torch.nn.functional.softplus(dt) if softplus else dt
    h, out = u.new_zeros(u.shape[0], *a.shape), []
    for t in range(u.shape[1]):
        h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
        out.append((h * c[:, t, None]).sum(-1))
    y = torch.stack(out, 1)
    y = y if d is None else y + d * u
    return (y if z is None else y * torch.nn.functional.silu(z)), h


def reference_conv1d(x, w, bias=None):
    y = torch.nn.functional.conv1d(x.transpose(1, 2), w.t()[:, None], bias, padding=w.shape[0] - 1, groups=x.shape[-1])
    return torch.nn.functional.silu(y[..., :x.shape[1]].transpose(1, 2))


def scan_inputs(device, batch=2, length=19, dim=37, states=5, dtype=F32, seed=0):
    make = functools.partial(random, device, seed=seed)
    row = functools.partial(make, batch, length, dtype=dtype)
    return dict(u=row(dim), dt=row(dim), a=-make(dim, states).exp(), b=row(states), c=row(states), d=make(dim),
                z=row(dim), dt_bias=make(dim))


SCAN_OPTIONS = ((), ("d",), ("z",), ("dt_bias",), ("d", "z", "dt_bias"))  # which of the optional inputs are given


# ---- log-probability ----


def logprob_values(device):
    for dtype, vocab, t in itertools.product((F32, BF16, F16), (1, 5, 2048, 2049, 6001), (None, 0.7, "rows")):
        logits = random(device, 3, 4, vocab, dtype=dtype, scale=4)
        targets = integers(device, vocab, 3, 4)
        temperature = random(device, 3, 4).exp() if t == "rows" else t
        t32 = torch.as_tensor(1.0 if t is None else temperature, dtype=F32, device=device).expand(3, 4)
        got = lockstep.logprob(logits, targets, temperature=temperature)
        want = reference_logprob(logits.to(F64), targets, 1 / t32.to(F64))
        for name, g, w in zip(("logprob", "lse", "entropy"), got, want):
            assert g.dtype == F32
            close(f"{name} {dtype} {vocab} {t}", g, w, rtol=1e-6, atol=4e-6)


def logprob_left_out(device):
    vocab = 3000
    logits = random(device, 6, vocab)
    logits[0] = -torch.inf
    logits[1, 7] = torch.nan
    logits[2, 9] = -torch.inf
    logits[5] = torch.nan
    targets = torch.tensor([1, 2, 9, -100, 3, 4], device=device)
    mask = torch.tensor([1, 1, 1, 1, 0, 0], device=device)
    for m in (mask.bool(), mask.to(torch.uint8)):
        value, lse, entropy = lockstep.logprob(logits, targets, m)
        assert value[:2].isnan().all() and lse[:2].isnan().all() and value[2] == -torch.inf
        for x in (value, lse, entropy):
            assert (bits(x)[3:] == 0).all()
    assert lockstep.logprob(logits[:3], targets[:3], ignore_index=9)[0][2] == 0
    got = lockstep.selected_logprob(logits[2:5], targets[2:5])
    want = -torch.nn.functional.cross_entropy(logits[2:5].double(), targets[2:5], reduction="none")
    close("selected_logprob", got, want, rtol=1e-6, atol=4e-6)


def logprob_gradients(device):
    vocab = 2100
    targets = integers(device, vocab, 2, 3)
    targets[0, 1] = -100
    taken = targets != -100
    for dtype, t in itertools.product((F32, BF16, F16), (None, 1.7)):
        data = random(device, 2, 3, vocab, dtype=dtype, scale=3)
        inv_t = torch.full((2, 3), 1 / (t or 1.0), dtype=F64, device=device)
        for chosen in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
            logits, logits64 = leaves(data, data.to(F64))
            weights = [random(device, 2, 3, seed=5 + i) for i in chosen]
            got = lockstep.logprob(logits, targets, temperature=t)
            want = reference_logprob(logits64, targets.clamp(min=0), inv_t)
            sum((got[i] * w).sum() for i, w in zip(chosen, weights)).backward()
            sum((want[i] * w * taken).sum() for i, w in zip(chosen, weights)).backward()
            # float32 arithmetic, and one rounding to the type of the logits
            close(f"d_logits {dtype} {t} {chosen}", logits.grad, logits64.grad, rtol=torch.finfo(dtype).eps + 4e-6,
                  atol=4e-6 if dtype == F32 else 1e-5)
            assert logits.grad.dtype == dtype and (logits.grad[0, 1] == 0).all()


def sequence_sums(device):
    n, length = 5, 700
    value = random(device, n, length) - 2
    mask = random(device, n, length, seed=3) > -1
    kept = [value[i][mask[i]] for i in range(n)]
    offsets = torch.tensor([0] + [len(k) for k in kept], device=device).cumsum(0)
    packed = lockstep.sequence_sum(torch.cat(kept), offsets=offsets)
    close("sum", packed, torch.stack([k.double().sum() for k in kept]), rtol=1e-6, atol=1e-5)
    left = torch.zeros(n, length + 9, device=device)
    left_mask = torch.zeros(n, length + 9, dtype=torch.bool, device=device)
    for i, k in enumerate(kept):
        left[i, length + 9 - len(k):], left_mask[i, length + 9 - len(k):] = k, True
    same_bits("padded", lockstep.sequence_sum(value, mask), packed)
    same_bits("padded on the left", lockstep.sequence_sum(left, left_mask), packed)
    same_bits("strided", lockstep.sequence_sum(value.t().contiguous().t(), mask), packed)
    weight = random(device, n)
    padded, rows = leaves(value, value.flatten())
    cut = torch.tensor([3, 10, 10, 900, 901, n * length - 2], device=device)
    (lockstep.sequence_sum(padded, mask) * weight).sum().backward()
    (lockstep.sequence_sum(rows, mask.flatten(), cut) * weight).sum().backward()
    assert torch.equal(padded.grad, weight[:, None] * mask)
    want = torch.zeros(n * length, device=device)
    for i in range(n):
        want[cut[i]:cut[i + 1]] = weight[i]
    assert torch.equal(rows.grad, want * mask.flatten())


# ---- scan and convolution ----


def scan_values(device):
    for dtype, given, softplus in itertools.product((F32, BF16), SCAN_OPTIONS, (True, False)):
        x = scan_inputs(device, dtype=dtype)
        x = {k: v for k, v in x.items() if k in ("u", "dt", "a", "b", "c") + given}
        if not softplus:
            x["dt"] = x["dt"].abs() * 0.5
            x.pop("dt_bias", None)
        out, last = lockstep.selective_scan(**x, softplus=softplus, out_dtype=F32)
        want, want_last = reference_scan(**{k: v.to(F64) for k, v in x.items()}, softplus=softplus)
        close(f"out {dtype} {given} {softplus}", out, want, rtol=1e-5, atol=1e-5)
        close(f"state {dtype} {given} {softplus}", last, want_last, rtol=1e-5, atol=1e-5)
        rounded = lockstep.selective_scan(**x, softplus=softplus)[0]
        same_bits("rounding", rounded, out.to(dtype))


def scan_gradients(device):
    for dtype, given, softplus, packed in itertools.product((F32, BF16), SCAN_OPTIONS, (True, False), (True, False)):
        x = scan_inputs(device, dtype=dtype, seed=1)
        names = [k for k in x if k in ("u", "dt", "a", "b", "c") + given]
        if not softplus:
            x["dt"] = x["dt"].abs() * 0.5
            names = [k for k in names if k != "dt_bias"]
        mine = dict(zip(names, leaves(*(x[k] for k in names))))
        theirs = dict(zip(names, leaves(*(x[k].to(F64) for k in names))))
        weight = random(device, *x["u"].shape, seed=9)
        want = reference_scan(**theirs, softplus=softplus)[0]
        if packed:
            n, length = x["u"].shape[:2]
            flat = {k: v.flatten(0, 1) if v.dim() == 3 else v for k, v in mine.items()}
            offsets = torch.arange(n + 1, device=device) * length
            got = lockstep.selective_scan(**flat, softplus=softplus, offsets=offsets, out_dtype=F32)[0].view(want.shape)
        else:
            got = lockstep.selective_scan(**mine, softplus=softplus, out_dtype=F32)[0]
        (got * weight).sum().backward()
        (want * weight).sum().backward()
        for k in names:
            assert mine[k].grad.dtype == x[k].dtype
            scale = theirs[k].grad.abs().max().item()  # sums of terms of this size
            close(f"d{k} {dtype} {given} {softplus}", mine[k].grad, theirs[k].grad,
                  rtol=torch.finfo(x[k].dtype).eps + 1e-5, atol=1e-5 * scale)


def conv1d_values_and_gradients(device):
    for dtype, width, with_bias in itertools.product((F32, BF16), (1, 2, 4, 16), (True, False)):
        x = random(device, 2, 90, 70, dtype=dtype)
        w, bias = random(device, width, 70) / width, random(device, 70) if with_bias else None
        mine, theirs = leaves(x, w, bias), leaves(*(None if v is None else v.to(F64) for v in (x, w, bias)))
        got, last = lockstep.causal_conv1d(*mine, out_dtype=F32)
        want = reference_conv1d(*theirs)
        close(f"y {dtype} {width}", got, want, rtol=1e-5, atol=1e-5)
        assert torch.equal(last, x[:, 90 - (width - 1):]), "last_state"
        weight = random(device, *x.shape, seed=9)
        (got * weight).sum().backward()
        (want * weight).sum().backward()
        for name, m, t in zip(("dx", "dw", "dbias"), mine, theirs):
            if m is not None:
                close(f"{name} {dtype} {width}", m.grad, t.grad, rtol=torch.finfo(m.dtype).eps + 1e-5,
                      atol=1e-5 * t.grad.abs().max().item())


# ---- mamba_ssm's call ----


def drop_in(device):
    x = scan_inputs(device, batch=2, length=11, dim=6, states=4)
    order = ("u", "dt", "a", "b", "c", "d", "z", "dt_bias")
    channel_major = [v.transpose(1, 2) if v.dim() == 3 else v for v in (x[k] for k in order)]
    for t in channel_major:
        if t.dim() == 3:
            assert _token_major(t).data_ptr() == t.data_ptr(), "a contiguous transpose was copied"
    want, want_last = reference_scan(**{k: v.to(F64) for k, v in x.items()})
    for layout, groups in itertools.product((lambda t: t, torch.Tensor.contiguous), (False, True)):
        mine = [v.detach().requires_grad_() for v in map(layout, channel_major)]
        u, dt, a, b, c, d, z, dt_bias = mine
        if groups:
            b, c = b[:, None], c[:, None]
        out, last = lockstep.selective_scan_fn(u, dt, a, b, c, d, z, dt_bias, True, True)
        close("out", out, want.transpose(1, 2), rtol=1e-5, atol=1e-5)
        close("last state", last, want_last, rtol=1e-5, atol=1e-5)
        theirs = [v.detach().to(F64).requires_grad_() for v in channel_major]
        tu, tdt, ta, tb, tc, td, tz, tbias = (v.transpose(1, 2) if v.dim() == 3 else v for v in theirs)
        weight = random(device, *out.shape, seed=9)
        (out * weight).sum().backward()
        (reference_scan(tu, tdt, ta, tb, tc, td, tz, tbias)[0].transpose(1, 2) * weight).sum().backward()
        for name, m, t in zip(order, mine, theirs):
            close(f"d{name}", m.grad, t.grad, rtol=1e-5, atol=1e-5 * t.grad.abs().max().item())
    u, dt, a, b, c, d, z, dt_bias = channel_major
    assert torch.is_tensor(lockstep.selective_scan_fn(u, dt, a, b, c))
    raises(TypeError, "complex A", lockstep.selective_scan_fn, u, dt, a.to(torch.complex64), b, c)
    raises(ValueError, "constant B", lockstep.selective_scan_fn, u, dt, a, a, c)
    raises(ValueError, "C: shape (2, 3, 4, 11); (2, 1, 4, 11)", lockstep.selective_scan_fn, u, dt, a, b,
           c[:, None].expand(-1, 3, -1, -1))
    raises(ValueError, "4 groups do not divide 6", lockstep.selective_scan_fn, u, dt, a,
           b[:, None].expand(-1, 4, -1, -1), c)
    raises(ValueError, "delta: shape (2, 5, 11); (2, 6, 11)", lockstep.selective_scan_fn, u, dt[:, :5], a, b, c)
    raises(TypeError, "B: torch.bfloat16", lockstep.selective_scan_fn, u, dt, a, b.bfloat16(), c)
    raises(TypeError, "u: torch.float16", lockstep.selective_scan_fn, *(v.half() for v in (u, dt)), a, b, c)


def drop_in_groups(device):
    """Each channel against float64 with the B and C of its group."""
    for dtype, groups in itertools.product((F32, BF16), (2, 3, 6)):
        x = scan_inputs(device, batch=2, length=11, dim=6, states=4, dtype=dtype)
        u, dt, a, d, z, dt_bias = (v.transpose(1, 2) if v.dim() == 3 else v
                                   for v in (x[k] for k in ("u", "dt", "a", "d", "z", "dt_bias")))
        b, c = (random(device, 2, groups, 4, 11, dtype=dtype, seed=s) for s in (11, 12))
        mine = [v.detach().requires_grad_() for v in (u, dt, a, b, c, d, z, dt_bias)]
        out, last = lockstep.selective_scan_fn(*mine, True, True)
        theirs = [v.detach().to(F64).requires_grad_() for v in (u, dt, a, b, c, d, z, dt_bias)]
        tu, tdt, ta, tb, tc, td, tz, tbias = theirs
        alone = []
        for i in range(6):  # one channel at a time
            g, own = i * groups // 6, slice(i, i + 1)
            rows = [v.transpose(1, 2) for v in (tu[:, own], tdt[:, own], tb[:, g], tc[:, g], tz[:, own])]
            alone.append(reference_scan(rows[0], rows[1], ta[own], rows[2], rows[3], td[own], rows[4], tbias[own]))
        want, want_last = torch.cat([y[0] for y in alone], 2), torch.cat([y[1] for y in alone], 1)
        tolerance = 1e-5 + (torch.finfo(BF16).eps if dtype == BF16 else 0)
        close("out", out, want.transpose(1, 2), rtol=tolerance, atol=tolerance)
        close("last state", last, want_last, rtol=1e-5, atol=1e-5)
        weight = random(device, *out.shape, seed=9)
        (out * weight).sum().backward()
        (want.transpose(1, 2) * weight).sum().backward()
        for name, m, t in zip(("u", "dt", "a", "b", "c", "d", "z", "dt_bias"), mine, theirs):
            close(f"d{name} {groups}", m.grad, t.grad, rtol=tolerance + torch.finfo(m.dtype).eps,
                  atol=(1e-5 if dtype == F32 else 1e-2) * t.grad.abs().max().item())


# ---- what torch asks of an operator ----


def sample_calls(device):
    """Each custom op with inputs, optional ones given and left out."""
    logits, targets = random(device, 3, 50), integers(device, 50, 3)
    ones = torch.ones(3, device=device)
    x = scan_inputs(device, batch=2, length=4, dim=4, states=4)
    u, dt, a, b, c, d, z, dt_bias = x.values()
    pair = [t.flatten(0, 1) for t in (u, dt, b, c, z)]
    offsets = torch.tensor([0, 3, 8], device=device)
    w = random(device, 3, 4)
    spans = lockstep.spans([0, 3], [3, 5], [0, 2], [1, 0], device)
    tail = (0, True, F32, "wait")
    calls = [
        (OPS.logprob, (logits, targets, None, None, -100, "wait")),
        (OPS.logprob, (logits.bfloat16(), targets, ones.bool(), ones * 2, -100, "wait")),
        (OPS.logprob_backward, (logits, targets, None, ones, ones, ones, ones, None, None, -100, "wait")),
        (OPS.sequence_sum, (logits, None, None, "wait")),
        (OPS.sequence_sum, (u[0, :, 0], torch.ones(4, device=device).bool(), torch.tensor([0, 3, 4], device=device),
                            "wait")),
        (OPS.selective_scan, (u, dt, a, b, c, None, None, None, None, *tail)),
        (OPS.selective_scan, (pair[0], pair[1], a, pair[2], pair[3], d, pair[4], dt_bias, offsets, *tail)),
        (OPS.selective_scan_backward, (u, dt, a, b, c, None, None, None, None, u, 0, True, "wait")),
        (OPS.selective_scan_backward, (u, dt, a, b, c, d, z, dt_bias, None, u, 0, True, "wait")),
        (OPS.scan, (pair[0], pair[1], a, pair[2], pair[3], d, None, None, torch.zeros(2, 4, 4, device=device), spans,
                    *tail)),
        (OPS.causal_conv1d, (u, w, None, None, 0, F32, "wait")),
        (OPS.causal_conv1d, (pair[0], w, d, offsets, 0, F32, "wait")),
        (OPS.causal_conv1d_backward, (u, w, d, None, u, 0, "wait")),
        (OPS.conv1d, (pair[0], w, d, torch.zeros(2, 2, 4, device=device), spans, 0, F32, "wait")),
    ]
    return [(op, tuple(v.clone() if torch.is_tensor(v) else v for v in args)) for op, args in calls]


def operator_checks(device):
    differentiable = (OPS.logprob, OPS.sequence_sum, OPS.selective_scan, OPS.causal_conv1d)
    for op, args in sample_calls(device):
        torch.library.opcheck(op, args)
        if op in differentiable:
            args = [v.requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v for v in args]
            if op is OPS.logprob and args[3] is not None:
                args[3] = args[3].detach()  # no gradient flows into the temperature
            torch.library.opcheck(op, tuple(args))


def modes_see_ops(device):
    """A mode that looks at every op sees the forward and the backward one, called outside of a compiler too."""
    x = scan_inputs(device, batch=2, length=4, dim=4, states=4)
    names = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    (u,) = leaves(x["u"])
    with Seen():
        lockstep.selective_scan(**{**x, "u": u})[0].sum().backward()
    for name in ("lockstep.selective_scan.default", "lockstep.selective_scan_backward.default"):
        assert name in names, names


def compiles(device, backend):
    def loss(logits, targets, u, dt, a, b, c, w):
        value, lse, entropy = lockstep.logprob(logits, targets, temperature=0.9)
        out, _ = lockstep.selective_scan(lockstep.causal_conv1d(u, w)[0], dt, a, b, c)
        return (lockstep.sequence_sum(value) + 0.1 * (lse * entropy).sum(-1)).sum() + (out * out).mean()

    x = scan_inputs(device, batch=2, length=4, dim=4, states=4)
    data = [random(device, 2, 4, 300), x["u"], x["dt"], x["a"], x["b"], x["c"], random(device, 3, 4)]
    targets = integers(device, 300, 2, 4)
    eager, compiled = leaves(*data), leaves(*data)
    torch._dynamo.reset()
    want = loss(eager[0], targets, *eager[1:])
    got = torch.compile(loss, fullgraph=True, backend=backend)(compiled[0], targets, *compiled[1:])
    want.backward()
    got.backward()
    close("loss", got, want, rtol=1e-6, atol=0)
    for e, c in zip(eager, compiled):
        close("gradient", c.grad, e.grad, rtol=1e-4, atol=1e-6)


# ---- bits ----


def batches_keep_bits(device):
    n, vocab = 64, 5003
    logits, targets = random(device, n, vocab, dtype=BF16, scale=3), integers(device, vocab, n)
    one = scan_inputs(device, batch=n, length=9, seed=4)
    parameters = {k: one.pop(k) for k in ("a", "d", "dt_bias")}
    w, bias = random(device, 4, 37), random(device, 37)

    def results(part):
        x = {k: v[part] for k, v in one.items()}
        u, = leaves(x["u"])
        (rows,) = leaves(logits[part])
        value, lse, entropy = lockstep.logprob(rows, targets[part], temperature=0.8)
        (value - 0.2 * lse + 0.3 * entropy).sum().backward()
        out, last = lockstep.selective_scan(**{**x, "u": u}, **parameters)
        y, window = lockstep.causal_conv1d(u, w, bias)
        (out + y).sum().backward()
        return value, lse, entropy, rows.grad, out, last, y, window, u.grad

    alone = [torch.cat(each) for each in zip(*(results(slice(i, i + 1)) for i in range(n)))]
    for size in (2, 3, 7, 64):
        together = [torch.cat(each) for each in zip(*(results(slice(i, i + size)) for i in range(0, n, size)))]
        for i, (got, want) in enumerate(zip(together, alone)):
            same_bits(f"output {i} in batches of {size}", got, want)


def strides_keep_bits(device):
    logits, targets = random(device, 6, 2100), integers(device, 2100, 6)
    wide = torch.full((6, 2200), torch.nan, device=device)
    wide[:, 50:2150] = logits
    for got, want in zip(lockstep.logprob(wide[:, 50:2150], targets), lockstep.logprob(logits, targets)):
        same_bits("a slice of wider rows", got, want)
    x = scan_inputs(device, dim=8)
    want = lockstep.selective_scan(**x)[0]
    both = torch.cat((x["u"], x["z"]), -1)
    x["u"], x["z"] = both.chunk(2, -1)
    same_bits("halves of one projection", lockstep.selective_scan(**x)[0], want)


def state_pools(device):
    """Prefill, chunks and decode of three sequences through pools give the bits of whole sequences."""
    dim, states, width, slots = 12, 4, 4, 9
    lengths, slot = (23, 1, 8), (7, 0, 3)
    total = sum(lengths)
    start = [sum(lengths[:i]) for i in range(4)]
    x = {k: v.view(-1, v.shape[-1]) if v.dim() == 3 else v
         for k, v in scan_inputs(device, batch=1, length=total, dim=dim, states=states).items()}
    w, bias = random(device, width, dim), random(device, dim)
    a = x.pop("a")
    per_row = [k for k in x if x[k].shape[0] == total and k not in ("d", "dt_bias")]
    offsets = torch.tensor(start, device=device)
    want_y, want_window = lockstep.causal_conv1d(x["u"], w, bias, offsets, max(lengths))
    want, want_last = lockstep.selective_scan(**{**x, "u": want_y}, a=a, offsets=offsets)
    a2 = a * lockstep.LOG2E

    def run(chunk):
        # One wide pool entry for each slot, as an engine lays it out: window, then state; NaN where nothing is written.
        entries = torch.full((slots, 8 + (width - 1) * dim + dim * states), torch.nan, device=device)
        window = entries[:, 8:8 + (width - 1) * dim].view(slots, width - 1, dim)
        state = entries[:, 8 + (width - 1) * dim:].view(slots, dim, states)
        out = torch.empty(total, dim, device=device)
        for step in range(0, max(lengths), chunk):
            todo = [(start[i] + step, min(chunk, lengths[i] - step), step, slot[i]) for i in range(3)
                    if step < lengths[i]]
            index = torch.cat([torch.arange(r, r + n, device=device) for r, n, _, _ in todo] +
                              [torch.zeros(2, dtype=torch.int64, device=device)])  # two rows of padding
            used = len(index) - 2
            row = [0]
            for t in todo:
                row.append(row[-1] + t[1])
            spans = lockstep.spans(row[:-1] + [used], [t[1] for t in todo] + [2], [t[2] for t in todo] + [5],
                                   [t[3] for t in todo] + [-1], device)
            most = max(2, chunk) if chunk > 1 else 0
            y = lockstep.conv1d(x["u"][index], w, window, spans, bias, max_rows=most)
            rest = {k: v[index] if k in per_row else v for k, v in x.items() if k != "u"}
            got = lockstep.scan(y, a2=a2, state=state, spans=spans, max_rows=most, **rest)
            assert (got[used:] == 0).all() and (y[used:] == 0).all(), "padding was written"
            out[index[:used]] = got[:used]
        untouched = [i for i in range(slots) if i not in slot]
        assert entries[untouched].isnan().all() and entries[:, :8].isnan().all(), "written outside its slot"
        return out, window[list(slot)], state[list(slot)]

    for chunk in (1, 2, 5, 23):
        for name, got, expected in zip(("out", "window", "state"), run(chunk), (want, want_window, want_last)):
            same_bits(f"{name} in chunks of {chunk}", got, expected)
    # Decode: one row a span, and the call that says so.
    pool = want_last.clone()
    one = {k: v[:3] if k in per_row else v for k, v in x.items()}
    spans = lockstep.spans([0, 1, 2], [1] * 3, list(lengths), [2, 0, 1], device)
    expected = lockstep.scan(a2=a2, state=pool, spans=spans, **one)
    again = want_last.clone()
    same_bits("decode kernel", lockstep.scan(a2=a2, state=again, spans=spans, max_rows=1, **one), expected)
    same_bits("decode kernel's state", again, pool)


def cpu_and_cuda_agree(device):
    if device == "cpu":
        raise Skip("needs two back ends")
    for op, args in sample_calls("cpu"):
        here = [v.clone().to(device) if torch.is_tensor(v) else v for v in args]
        want, got = op(*args), op(*here)
        pairs = [(got, want)] if torch.is_tensor(got) else list(zip(got, want))
        pairs += [(h, c) for h, c in zip(here, args) if torch.is_tensor(h) and h.is_floating_point()]
        for i, (g, w) in enumerate(pairs):
            same_bits(f"{op} {i}", g, w)


# ---- errors ----


def errors(device):
    logits, targets = random(device, 3, 50), integers(device, 50, 3)
    logprob = lockstep.logprob
    raises(TypeError, "logits: torch.float64", logprob, logits.double(), targets)
    raises(TypeError, "targets: torch.int32", logprob, logits, targets.int())
    raises(ValueError, "targets: shape (2,)", logprob, logits, targets[:2])
    raises(ValueError, "mask: shape (3, 1)", logprob, logits, targets, torch.ones(3, 1, device=device).bool())
    raises(TypeError, "mask: torch.float32", logprob, logits, targets, torch.ones(3, device=device))
    if device != "cpu":
        raises(ValueError, "targets: on cpu", logprob, logits, targets.cpu())
    raises(ValueError, "logits: shape (3, 50) with strides (1, 3)", logprob, logits.t().contiguous().t(), targets)
    raises(ValueError, "logits: shape (3, 50) with strides (0, 1)", logprob, logits[:1].expand(3, -1), targets)
    raises(ValueError, "evenly spaced", logprob, random(device, 3, 4, 50)[:, :-1], targets[:, None].expand(3, 3))
    raises(ValueError, "a vocabulary of 0", logprob, logits[:, :0], targets)
    raises(ValueError, "temperature: requires a gradient", logprob, logits, targets, None,
           torch.ones(3, device=device, requires_grad=True))
    raises(ValueError, "check: 'never'", logprob, logits, targets, check="never")
    for bad in (50, -1, 2**62):
        targets[1] = bad
        raises(lockstep.LockstepError, f"row 1: target {bad} is not in 0..49", logprob, logits, targets)
    targets[1] = 0
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        t = torch.tensor([1, 1, bad], device=device)
        raises(lockstep.LockstepError, "row 2: temperature", logprob, logits, targets, None, t)
    raises(ValueError, "logprob: shape (3,)", lockstep.sequence_sum, logits[:, 0])
    raises(lockstep.LockstepError, "sequence 1", lockstep.sequence_sum, logits[0], None,
           torch.tensor([0, 9, 3, 50], device=device))
    x = scan_inputs(device, dim=4, states=4)
    scan = lockstep.selective_scan
    raises(TypeError, "dt: torch.bfloat16", scan, **{**x, "dt": x["dt"].bfloat16()})
    raises(ValueError, "b: shape (2, 19, 3)", scan, **{**x, "b": x["b"][..., :3]})
    raises(TypeError, "a: torch.float64", scan, **{**x, "a": x["a"].double()})
    raises(ValueError, "a: shape (4, 300)", scan, **{**x, "a": x["a"].repeat(1, 75)})
    raises(ValueError, "d: shape (3,)", scan, **{**x, "d": x["d"][:3]})
    raises(lockstep.LockstepError, "span 0", scan, **{**x, "u": x["u"]}, offsets=torch.tensor([0, 99], device=device))
    flat = {k: v.flatten(0, 1) if v.dim() == 3 else v for k, v in x.items()}
    flat["a2"] = flat.pop("a")
    spans = lockstep.spans([0], [38], [0], [2], device)
    raises(lockstep.LockstepError, "slot 2 is not in a pool of 2", lockstep.scan, **flat, spans=spans,
           state=torch.zeros(2, 4, 4, device=device))
    raises(lockstep.LockstepError, "slot 2147483647", lockstep.scan, **flat,
           spans=lockstep.spans([0], [38], [0], [2**32], device), state=torch.zeros(2, 4, 4, device=device))
    raises(ValueError, "16-byte aligned", lockstep.scan, **flat, spans=spans,
           state=torch.zeros(3, 17, device=device)[:, 1:].view(3, 4, 4))
    raises(ValueError, "spans: shape (1, 4)", lockstep.scan, **flat, spans=spans[:, :4],
           state=torch.zeros(3, 4, 4, device=device))
    raises(ValueError, "w: shape (17, 4)", lockstep.causal_conv1d, x["u"], random(device, 17, 4))


def empty_inputs(device):
    value, lse, entropy = lockstep.logprob(torch.zeros(0, 5, device=device), torch.zeros(0, dtype=torch.int64,
                                                                                         device=device))
    assert value.shape == lse.shape == entropy.shape == (0,)
    x = scan_inputs(device, length=0, dim=3, states=3)
    x["d"].requires_grad_()
    out, last = lockstep.selective_scan(**x)
    out.sum().backward()
    assert out.shape == (2, 0, 3) and (last == 0).all() and (x["d"].grad == 0).all()
    # Rows outside of the offsets and sequences without rows.
    flat = {k: v.detach().flatten(0, 1) if v.dim() == 3 else v.detach()
            for k, v in scan_inputs(device, dim=3, states=3).items()}
    flat["u"].requires_grad_()
    out, last = lockstep.selective_scan(**flat, offsets=torch.tensor([2, 9, 9, 30], device=device))
    out.sum().backward()
    for rows in (out, flat["u"].grad):
        assert (rows[:2] == 0).all() and (rows[30:] == 0).all() and (rows[2:30] != 0).any(-1).all()
    assert (last[1] == 0).all() and (last[0] != 0).any()
    assert lockstep.sequence_sum(torch.zeros(3, 0, device=device)).tolist() == [0, 0, 0]


def a_call_made_later(device):
    """check="stream" on a GPU: nothing raises until lockstep.check(), also from a captured graph."""
    logits, targets = random(device, 3, 50), integers(device, 50, 3)
    bad = torch.full_like(targets, 50)
    if device == "cpu":
        raises(lockstep.LockstepError, "target 50", lockstep.logprob, logits, bad, check="stream")
        return lockstep.check()
    want = lockstep.logprob(logits, targets)[0]
    same_bits("unwaited", lockstep.logprob(logits, targets, check="stream")[0], want)
    lockstep.logprob(logits, bad, check="stream")
    raises(lockstep.LockstepError, "target 50", lockstep.check)
    lockstep.check(device)  # the fault is told once
    graph, static = torch.cuda.CUDAGraph(), targets.clone()
    with torch.cuda.graph(graph):
        raises(lockstep.LockstepError, 'check="stream"', lockstep.logprob, logits, static)
        captured = lockstep.logprob(logits, static, check="stream")[0]
    graph.replay()
    lockstep.check(device)
    same_bits("captured", captured, want)
    static.copy_(bad)
    graph.replay()
    raises(lockstep.LockstepError, "target 50", lockstep.check, device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        other = lockstep.logprob(logits, targets)[0]
    stream.synchronize()
    same_bits("another stream", other, want)
    if torch.cuda.device_count() > 1:
        there = lockstep.logprob(logits.to("cuda:1"), targets.to("cuda:1"))[0]
        same_bits("another device", there, want)


def forked_child(device):
    if device != "cpu":
        raise Skip("CUDA does not go through a fork")
    logits, targets = random(device, 70, 3000), integers(device, 3000, 70)
    want = lockstep.logprob(logits, targets)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(lockstep.logprob(logits, targets)[0], want) else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child's call failed"


CASES = (logprob_values, logprob_left_out, logprob_gradients, sequence_sums, scan_values, scan_gradients,
         conv1d_values_and_gradients, drop_in, drop_in_groups, operator_checks, modes_see_ops, batches_keep_bits,
         strides_keep_bits, state_pools, cpu_and_cuda_agree, errors, empty_inputs, a_call_made_later, forked_child)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("cpu", "cuda", "all"), default="all")
    parser.add_argument("--share", type=share, default=(1, 1), metavar="I/N")
    parser.add_argument("cases", nargs="*", help="names of cases; none for all")
    options = parser.parse_args()
    report = Report(options.share)
    for backend, number in (("cpu", _abi.CPU), ("cuda", _abi.CUDA)):
        if options.backend not in (backend, "all"):
            continue
        why = _abi.backend_unavailable(number)
        if why is None and backend == "cuda" and not torch.cuda.is_available():
            why = "torch sees no CUDA device"
        if why is not None:
            report.skip(backend, why)
            continue
        cases = [(case.__name__, case, backend) for case in CASES]
        cases += [("compiles", compiles, backend, compiler) for compiler in ("aot_eager", "inductor")]
        for name, *call in report.take(case for case in cases if not options.cases or case[0] in options.cases):
            report.run(" ".join((backend, name, *call[2:])), *call)
    report.finish()


if __name__ == "__main__":
    main()
