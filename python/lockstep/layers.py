"""Layers of Jamba, Mamba, Llama, Mistral, Qwen2 and Qwen3 as torch functions, forward and gradients in the engine's
bits, on CPU and CUDA.

Rows are packed: matrices are [rows, width], and a Batch says which rows are which sequence. A part of a layer
(attention, mixer, feed-forward) is one autograd function, not one for each op, because the engine keeps its gradients
in float32 from the part's output to its input and adds those of several products in one order; autograd would round
them to the type of each tensor and add them in its own.

A Numerics says how: the profile of dense products ("exact": one float32 fma chain; "mma16": steps of 16 of a tensor
core, bf16 only) and the type of activations. Gradients are computed in float32 and rounded once, to the type of the
parameter.

The arithmetic, to the bit, is NUMERICS.md and src/op/*.h of the Lockstep sources; the order of ops src/model/part_*.c.
None of this has a shape function for compilers: do not put torch.compile around it."""

import ctypes
import math
from dataclasses import dataclass
from typing import Optional

import torch

from . import _abi
from ._frequencies import frequencies
from ._run import DTYPES, _aligned, new_pool, pool, require, row_stride, run
from .ops import spans as make_spans

F32, BF16 = torch.float32, torch.bfloat16
LN2 = float.fromhex("0x1.62e430p-1")  # LS_LN2
PAGE = 64  # tokens of a page of keys and values; carries no bit
PROFILES = {"exact": _abi.EXACT, "mma16": _abi.MMA16}


@dataclass(frozen=True)
class Numerics:
    """How a model computes: profile "exact" or "mma16", activations torch.float32 or torch.bfloat16, eps of its
    norms."""
    profile: str = "exact"
    activations: torch.dtype = F32
    eps: float = 1e-6

    def __post_init__(self):
        if self.profile not in PROFILES:
            raise ValueError(f"profile: {self.profile!r}; 'exact' or 'mma16' is taken")
        if self.activations not in (F32, BF16):
            raise TypeError(f"activations: {self.activations}; torch.float32 or torch.bfloat16 is taken")
        if self.profile == "mma16" and self.activations != BF16:
            raise TypeError(f"profile mma16: activations are {self.activations}, the profile multiplies bf16 only")

    @property
    def code(self):
        return PROFILES[self.profile]


@dataclass(frozen=True)
class Rotation:
    """Rotation of heads by position: float32 frequencies, 2 * len(inv_freq) columns of a head; scale of cosines and
    sines."""
    inv_freq: tuple
    scale: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "inv_freq", tuple(float(f) for f in self.inv_freq))

    @classmethod
    def of(cls, config, head_dim=None):
        """That of a transformers config, or of a config.json as a dict; frequencies are the engine's, not torch's.
        LockstepError where the engine does not build it."""
        fields = config if isinstance(config, dict) else config.to_dict()
        if head_dim is None:
            head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
        return cls(*frequencies(fields, head_dim, fields["max_position_embeddings"]))


@dataclass
class HeadPart:
    """Neighbouring heads that are treated alike: bias [n_heads * head_dim] or None, norm [head_dim] or None."""
    n_heads: int
    bias: Optional[torch.Tensor] = None
    norm: Optional[torch.Tensor] = None
    rotates: bool = True


class Batch:
    """Sequences whose rows lie side by side: sequence s has lengths[s] > 0 rows, from the start of its own."""

    def __init__(self, lengths, device):
        self.lengths = [int(n) for n in lengths]
        if any(n < 1 for n in self.lengths):
            raise ValueError(f"lengths: {self.lengths}: a sequence has at least one row")
        self.device, self.n, self.rows = device, len(self.lengths), sum(self.lengths)
        self.longest = max(self.lengths, default=0)
        n_rows = torch.tensor(self.lengths, dtype=torch.int64)
        self.starts = torch.zeros(self.n + 1, dtype=torch.int64)
        torch.cumsum(n_rows, 0, out=self.starts[1:])
        slot = torch.arange(self.n)
        pages = (n_rows + PAGE - 1) // PAGE
        table = torch.cumsum(pages, 0) - pages
        self.n_pages = int(pages.sum())
        self.spans = make_spans(self.starts[:-1], n_rows, torch.zeros_like(n_rows), slot)
        self.spans[:, 4] = table
        self.spans, self.offsets = self.spans.to(device), self.starts.to(device)
        self.tables = torch.arange(self.n_pages, dtype=torch.int32, device=device)
        self._tables_of = {}

    def rope_table(self, rotation):
        """Cosines and sines of each row's position, [rows, 2 * half]; made once. None without a rotation."""
        if rotation is None:
            return None
        if rotation not in self._tables_of:
            half = len(rotation.inv_freq)
            inv_freq = torch.tensor(rotation.inv_freq, dtype=F32, device=self.device)
            table = torch.empty((self.rows, 2 * half), dtype=F32, device=self.device)
            _run("rope_table", table.device, inv_freq=inv_freq, half=half, scale=rotation.scale, table=table,
                 rows=self.rows, **self.span_members())
            self._tables_of[rotation] = table
        return self._tables_of[rotation]

    def span_members(self):
        return dict(spans=self.spans, n_spans=self.n, span_rows_max=self.longest)


# ---- ops on packed rows, without autograd; x may have rows apart ----


def _stride(x):
    stride = row_stride(x)
    if stride is None:
        raise ValueError(f"shape {tuple(x.shape)} with strides {x.stride()}; rows must be contiguous and evenly spaced")
    return stride


def _run(op, device, **members):
    # What lies in device memory was made here or checked by the embedding: nothing waits.
    run(op, device, "stream", **members)


def _packed(w):
    """A weight [n, k] in the back end's layout: the struct, and the memory that it points to."""
    w = w.detach().contiguous()
    backend = _abi.CUDA if w.device.type == "cuda" else _abi.CPU
    weight = _abi.gemm_plan(backend, DTYPES[w.dtype], *w.shape)
    memory = torch.empty(weight.panel_bytes + 255, dtype=torch.uint8, device=w.device)
    weight.panels = _aligned(memory.data_ptr(), 256)
    _run("gemm_repack", w.device, weight=ctypes.addressof(weight), w=w, dtype=w.dtype)
    return weight, memory


def _product(x, w, bias, out, profile, picked=None):
    """out = R(x w^T + bias); picked: two numbers in device memory, the rows that there are."""
    weight, memory = _packed(w)
    _run("gemm", x.device, x=x, x_dtype=x.dtype, x_stride=_stride(x), weight=ctypes.addressof(weight), bias=bias,
         out=out,
         out_dtype=out.dtype, out_stride=_stride(out), m=x.shape[0], profile=profile, range=picked, nan_open=True)
    del memory
    return out


def _product_input(dy, w, dx, profile, add=False, rows=None, picked=None):
    """dx (= or +=) dy w, at these rows of dx."""
    w = w.detach().contiguous()
    _run("gemm_backward_input", dy.device, dy=dy, dy_stride=_stride(dy), w=w, w_dtype=w.dtype, dx=dx,
         dx_stride=_stride(dx),
         dx_count=dx.shape[0], dx_rows=rows, add=add, m=dy.shape[0], n=w.shape[0], k=w.shape[1], profile=profile,
         range=picked)
    return dx


def _product_weight(dy, x, profile, offsets, dbias=None, dw=None, picked=None):
    """dy^T x [n, k]; the sum of dy over rows goes to dbias."""
    if dw is None:
        dw = torch.zeros((dy.shape[1], x.shape[1]), dtype=F32, device=dy.device)
    mma16 = profile == _abi.MMA16
    _run("gemm_backward_weight", dy.device, dy=dy, dy_stride=_stride(dy), x=x, x_dtype=x.dtype, x_stride=_stride(x),
         x_count=x.shape[0], dw=dw, dbias=dbias, m=dy.shape[0], n=dy.shape[1], k=x.shape[1], profile=profile,
         sequences=offsets if mma16 else None, n_sequences=offsets.shape[0] - 1 if mma16 else 0, range=picked,
         dw_is_zero=True)
    return dw


def _norm(x, w, eps, out):
    _run("rmsnorm", x.device, x=x, x_dtype=x.dtype, x_stride=_stride(x), w=w, eps=eps, y=out, y_dtype=out.dtype,
         y_stride=_stride(out), rows=x.shape[0], dim=x.shape[1])
    return out


def _norm_backward(x, w, eps, dy, dx):
    """dx through the norm; returns the gradient of w."""
    dw, scale = torch.zeros_like(w), torch.empty(x.shape[0], dtype=F32, device=x.device)
    _run("rmsnorm_backward", x.device, x=x, x_dtype=x.dtype, x_stride=_stride(x), w=w, eps=eps, dy=dy,
         dy_stride=_stride(dy), dx=dx, dx_stride=_stride(dx), dw=dw, scale=scale, rows=x.shape[0], dim=x.shape[1])
    return dw


def _rope_parts(parts, chains=None):
    """The struct's array, and the tensors that it points to."""
    out, held = (_abi.RopePart * _abi.ROPE_PARTS)(), []
    for i, part in enumerate(parts):
        bias, norm = _wide(part.bias), _wide(part.norm)
        pointers = [None if t is None else t.data_ptr() for t in (bias, norm, chains[i] if chains else None)]
        out[i] = _abi.RopePart(part.n_heads, pointers[0], pointers[1], part.rotates, pointers[2])
        held += [bias, norm]
    return out, held


def _rope_members(table, parts, head_dim, eps):
    return dict(table=table, half=0 if table is None else table.shape[1] // 2, eps=eps, head_dim=head_dim,
                n_parts=len(parts))


def _rope(x, y, table, parts, head_dim, eps):
    array, held = _rope_parts(parts)
    _run("rope", x.device, x=x, x_stride=_stride(x), y=y, y_dtype=y.dtype, y_stride=_stride(y), rows=x.shape[0],
         part=array, **_rope_members(table, parts, head_dim, eps))
    del held


def _rope_backward(x, dy, dx, table, parts, head_dim, eps):
    """dx, that of the biases as well; returns the gradient of each part's norm, None where it has none. x: None where
    no part has a norm."""
    chains = [None if p.norm is None else torch.zeros((p.n_heads, head_dim), dtype=F32, device=dy.device)
              for p in parts]
    scale = None if x is None else _empty(dy, dy.shape[0], sum(p.n_heads for p in parts))
    array, held = _rope_parts(parts, chains)
    _run("rope_backward", dy.device, x=x, x_stride=0 if x is None else _stride(x), dy=dy, dy_stride=_stride(dy), dx=dx,
         dx_dtype=dx.dtype, dx_stride=_stride(dx), rows=dy.shape[0], part=array, scale=scale,
         **_rope_members(table, parts, head_dim, eps))
    del held
    grads = []
    for part, chain in zip(parts, chains):
        grads.append(None if chain is None else _empty(dy, head_dim))
        if chain is not None:
            _run("rope_norm_fold", dy.device, chains=chain, n_heads=part.n_heads, head_dim=head_dim, out=grads[-1])
    return grads


def _wide(w):
    """A vector of parameters in float32, exactly; None stays None."""
    return None if w is None else w.detach().float().contiguous()


def _like(grad, parameter):
    """A gradient in the parameter's type and shape: one rounding."""
    return grad.view(parameter.shape).to(parameter.dtype)


def _empty(like, *shape, dtype=F32):
    return torch.empty(shape, dtype=dtype, device=like.device)


# ---- parts of layers: forward(numerics, batch, x, *parameters) -> (y, kept); backward -> (dx, gradients) ----


class _Attention:
    """x to q, k, v; bias, norm of heads and rotation where there are some; causal attention; o. Options: heads,
    kv_heads, head_dim, window or 0, Rotation or None."""

    @staticmethod
    def scale(head_dim):
        root = ctypes.c_float(math.sqrt(head_dim)).value
        return ctypes.c_float(1.0 / root).value

    @staticmethod
    def heads(options, batch, qkv, out, profile):
        """Writes out; returns what a gradient needs of mma16, the logarithm of each query's sum, None in exact."""
        heads, kv_heads, head_dim, window = options
        log_sum = _empty(qkv, batch.rows, heads) if profile == _abi.MMA16 else None
        q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
        q, k, v = qkv.split((q_dim, kv_dim, kv_dim), dim=1)
        pages = torch.zeros((max(batch.n_pages, 1), 2 * kv_dim * PAGE), dtype=qkv.dtype, device=qkv.device)
        view = _abi.PoolView(pages.data_ptr(), pages.stride(0) * pages.element_size(), pages.shape[0])
        _run("attention", qkv.device, q=q, k=k, v=v, out=out, dtype=qkv.dtype, q_stride=qkv.stride(0),
             kv_stride=qkv.stride(0), out_stride=out.stride(0), n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim,
             scale=_Attention.scale(head_dim), page_tokens=PAGE, pages=view, spans=batch.spans, n_spans=batch.n,
             tables=batch.tables, n_tables=batch.n_pages, rows=batch.rows, window=window, profile=profile,
             log_sum=log_sum, log_sum_stride=heads)
        return log_sum

    @staticmethod
    def heads_backward(options, batch, qkv, dout, out, log_sum, profile):
        heads, kv_heads, head_dim, window = options
        q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
        dqkv = torch.empty(qkv.shape, dtype=F32, device=qkv.device)
        (q, k, v), (dq, dk, dv) = (t.split((q_dim, kv_dim, kv_dim), dim=1) for t in (qkv, dqkv))
        _run("attention_backward", qkv.device, q=q, k=k, v=v, dtype=qkv.dtype, q_stride=qkv.stride(0),
             kv_stride=qkv.stride(0), dout=dout, dout_stride=dout.stride(0), dq=dq, dk=dk, dv=dv,
             dq_stride=dqkv.stride(0), dkv_stride=dqkv.stride(0), rows=batch.rows, n_heads=heads, n_kv_heads=kv_heads,
             head_dim=head_dim, scale=_Attention.scale(head_dim), window=window, profile=profile, out=out,
             out_stride=out.stride(0), log_sum=log_sum, log_sum_stride=heads, **batch.span_members())
        return dqkv

    @staticmethod
    def parts(options, rotation, biases, norms):
        heads, kv_heads, *_ = options
        turns = rotation is not None
        return (HeadPart(heads, biases[0], norms[0], turns), HeadPart(kv_heads, biases[1], norms[1], turns),
                HeadPart(kv_heads, biases[2], None, False))

    @staticmethod
    def forward(numerics, options, batch, x, wq, wk, wv, wo, *more):
        """more, where there is some: biases of q, k, v and o, norms of q's and k's heads; each may be None."""
        *options, rotation = options
        biases, norms = (more[:4], more[4:]) if more else ((None,) * 4, (None,) * 2)
        q_dim, kv_dim, rows = wq.shape[0], wk.shape[0], x.shape[0]
        bare = rotation is None and all(w is None for w in (*biases[:3], *norms))
        qkv = _empty(x, rows, q_dim + 2 * kv_dim, dtype=numerics.activations)
        raw = qkv if bare else _empty(x, *qkv.shape)
        for w, out in zip((wq, wk, wv), raw.split((q_dim, kv_dim, kv_dim), dim=1)):
            _product(x, w, None, out, numerics.code)
        if not bare:
            _rope(raw, qkv, batch.rope_table(rotation), _Attention.parts(options, rotation, biases, norms), options[2],
                  numerics.eps)
        heads = _empty(x, rows, q_dim, dtype=numerics.activations)
        log_sum = _Attention.heads(options, batch, qkv, heads, numerics.code)
        y = _product(heads, wo, _wide(biases[3]), _empty(x, rows, wo.shape[0]), numerics.code)
        return y, (qkv, heads, log_sum) if all(w is None for w in norms) else (qkv, heads, log_sum, raw)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, wq, wk, wv, wo, *more):
        *options, rotation = options
        biases, norms = (more[:4], more[4:]) if more else ((None,) * 4, (None,) * 2)
        qkv, heads, log_sum, *raw = kept
        profile, offsets = numerics.code, batch.offsets
        dbiases = [None if w is None else torch.zeros(w.shape, dtype=F32, device=x.device) for w in biases]
        dout = _product_input(dy, wo, _empty(x, *heads.shape), profile)
        dwo = _product_weight(dy, heads, profile, offsets, dbiases[3])
        dqkv = _Attention.heads_backward(options, batch, qkv, dout, heads, log_sum, profile)
        dnorms = (None, None)
        if rotation is not None or raw:
            through = _empty(x, *dqkv.shape)
            dnorms = _rope_backward(raw[0] if raw else None, dqkv, through, batch.rope_table(rotation),
                                    _Attention.parts(options, rotation, biases, norms), options[2], numerics.eps)[:2]
            dqkv = through
        dx, grads = _empty(x, *x.shape), []
        for i, (w, d) in enumerate(zip((wq, wk, wv), dqkv.split((wq.shape[0], wk.shape[0], wv.shape[0]), dim=1))):
            grads.append(_product_weight(d, x, profile, offsets, dbiases[i]))
            _product_input(d, w, dx, profile, add=i > 0)
        return dx, (*grads, dwo, *((*dbiases, *dnorms) if more else ()))


class _Mixer:
    """Mamba-1: in_proj, convolution, x_proj, the norms of dt, B and C where there are some, dt_proj, scan, out_proj.
    options: the epsilon of norms that have no weights, as FalconMamba's; else None."""

    @staticmethod
    def conv(numerics, batch, uz, conv_w, conv_bias):
        """u behind the convolution, and what x_proj reads of it."""
        dim, width = conv_w.shape[0], conv_w.shape[-1]
        u = _empty(uz, uz.shape[0], dim)
        rounded = _empty(uz, uz.shape[0], dim, dtype=BF16) if numerics.code == _abi.MMA16 else None
        state = new_pool(batch.n, (width - 1, dim), numerics.activations, uz.device)
        _run("conv1d", uz.device, x=uz, x_dtype=F32, y_dtype=F32, state_dtype=numerics.activations,
             x_stride=uz.stride(0),
             w=_Mixer.taps(conv_w), bias=_wide(conv_bias), y=u, y_stride=dim, rounded=rounded, rounded_stride=dim,
             rows=batch.rows, dim=dim, d_conv=width, state=pool("state", state, (state.dtype,), state.shape[1:], uz),
             **batch.span_members())
        return u, u if rounded is None else rounded

    @staticmethod
    def taps(conv_w):
        return _wide(conv_w).view(conv_w.shape[0], -1).t().contiguous()

    @staticmethod
    def decay(a_log):
        a_log = a_log.detach().contiguous()
        out = torch.empty(a_log.shape, dtype=F32, device=a_log.device)
        _run("decay", a_log.device, x=a_log, dtype=a_log.dtype, n=a_log.numel(), out=out)
        return out

    @staticmethod
    def norms(numerics, options, weights, parts):
        """(weight, epsilon) of each norm; none where the model has none."""
        if options is not None:
            return [(torch.ones(part.shape[1], dtype=F32, device=part.device), options) for part in parts]
        return [] if weights[0] is None else [(_wide(w), numerics.eps) for w in weights]

    @staticmethod
    def scan_members(uz, u, dt, b, c, a2, dt_bias, d):
        return dict(in_dtype=F32, u=u, dt_raw=dt, b=b, cc=c, z=uz[:, u.shape[1]:], u_stride=u.stride(0),
                    dt_stride=dt.stride(0), b_stride=b.stride(0), c_stride=c.stride(0), z_stride=uz.stride(0), a2=a2,
                    dt_bias=_wide(dt_bias), d=_wide(d), rows=u.shape[0], dim=u.shape[1], n_states=a2.shape[1])

    @staticmethod
    def forward(numerics, options, batch, x, in_w, in_bias, conv_w, conv_bias, x_w, dt_norm, b_norm, c_norm, dt_w,
                dt_bias,
                a_log, d, out_w, out_bias):
        rank, states, rows, profile = dt_w.shape[1], a_log.shape[1], x.shape[0], numerics.code
        uz = _product(x, in_w, _wide(in_bias), _empty(x, rows, in_w.shape[0]), profile)
        u, u_in = _Mixer.conv(numerics, batch, uz, conv_w, conv_bias)
        raw = _product(u_in, x_w, None, _empty(x, rows, rank + 2 * states), profile)
        parts = raw.split((rank, states, states), dim=1)
        dt_in_type = BF16 if profile == _abi.MMA16 else F32
        norms = _Mixer.norms(numerics, options, (dt_norm, b_norm, c_norm), parts)
        if norms:
            dt_in, b, c = (_norm(part, *norm, _empty(x, *part.shape, dtype=dtype)) for part, norm, dtype in
                           zip(parts, norms, (dt_in_type, F32, F32)))
        else:
            dt_in, b, c = parts[0].to(dt_in_type), *parts[1:]
        dt = _product(dt_in, dt_w, None, _empty(x, rows, dt_w.shape[0]), profile)
        a2 = _Mixer.decay(a_log)
        scanned = _empty(x, *u.shape, dtype=numerics.activations)
        state = new_pool(batch.n, a2.shape, F32, x.device)
        _run("scan", x.device, **_Mixer.scan_members(uz, u, dt, b, c, a2, dt_bias, d), out_dtype=scanned.dtype,
             out=scanned,
             out_stride=scanned.stride(0), state=pool("state", state, (F32,), a2.shape, x), **batch.span_members())
        y = _product(scanned, out_w, _wide(out_bias), _empty(x, rows, out_w.shape[0]), profile)
        return y, (uz, u, u_in, raw, dt_in, b, c, dt, a2, scanned)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, in_w, in_bias, conv_w, conv_bias, x_w, dt_norm, b_norm, c_norm,
                 dt_w, dt_bias, a_log, d, out_w, out_bias):
        uz, u, u_in, raw, dt_in, b, c, dt, a2, scanned = kept
        rank, states, rows, dim = dt_w.shape[1], a_log.shape[1], x.shape[0], u.shape[1]
        profile, offsets = numerics.code, batch.offsets
        dout_bias, din_bias, dconv_bias, ddt_bias, dd = (
            None if w is None else torch.zeros(w.shape, dtype=F32, device=x.device)
            for w in (out_bias, in_bias, conv_bias, dt_bias, d))
        dscan = _product_input(dy, out_w, _empty(x, *scanned.shape), profile)
        dout_w = _product_weight(dy, scanned, profile, offsets, dout_bias)
        duz, du, ddt = _empty(x, rows, 2 * dim), _empty(x, rows, dim), _empty(x, rows, dim)
        db, dc, da2 = _empty(x, rows, states), _empty(x, rows, states), torch.zeros_like(a2)
        _run("scan_backward", x.device, **_Mixer.scan_members(uz, u, dt, b, c, a2, dt_bias, d), dout=dscan,
             dout_stride=dim,
             du=du, ddt=ddt, db=db, dcc=dc, dz=duz[:, dim:], dz_stride=duz.stride(0), da2=da2, ddt_bias=ddt_bias, dd=dd,
             continued=True, **batch.span_members())
        ddt_w = _product_weight(ddt, dt_in, profile, offsets)
        draw = _empty(x, rows, rank + 2 * states)
        dnorms, sizes = (None, None, None), (rank, states, states)
        norms = _Mixer.norms(numerics, options, (dt_norm, b_norm, c_norm), raw.split(sizes, 1))
        if norms:
            dnarrow = _product_input(ddt, dt_w, _empty(x, rows, rank), profile)
            dweights = [_norm_backward(part, *norm, grad, into) for part, norm, grad, into in
                        zip(raw.split(sizes, 1), norms, (dnarrow, db, dc), draw.split(sizes, 1))]
            dnorms = dnorms if dt_norm is None else dweights
        else:
            _product_input(ddt, dt_w, draw[:, :rank], profile)
            draw[:, rank:rank + states], draw[:, rank + states:] = db, dc
        dx_w = _product_weight(draw, u_in, profile, offsets)
        _product_input(draw, x_w, du, profile, add=True)
        dconv_w = torch.zeros((dim, conv_w.shape[-1]), dtype=F32, device=x.device)
        _run("conv1d_backward", x.device, x=uz, x_dtype=F32, state_dtype=numerics.activations, x_stride=uz.stride(0),
             w=_Mixer.taps(conv_w), bias=_wide(conv_bias), dy=du, dy_stride=dim, dx=duz, dx_stride=duz.stride(0),
             dw=dconv_w,
             dbias=dconv_bias, rows=rows, dim=dim, d_conv=conv_w.shape[-1], dw_by_channel=True, **batch.span_members())
        din_w = _product_weight(duz, x, profile, offsets, din_bias)
        dx = _product_input(duz, in_w, _empty(x, *x.shape), profile)
        return dx, (din_w, din_bias, dconv_w, dconv_bias, dx_w, *dnorms, ddt_w, ddt_bias, da2 * LN2 * a2, dd, dout_w,
                    dout_bias)


def _swiglu_backward(gate, up, dgated):
    """dgate, in the memory of dgated, and dup."""
    dup = _empty(gate, *gate.shape)
    _run("swiglu_backward", gate.device, gate=gate, up=up, dy=dgated, dgate=dgated, dup=dup, rows=gate.shape[0],
         dim=gate.shape[1])
    return dgated, dup


def _swiglu(gate, up, dtype):
    out = _empty(gate, *gate.shape, dtype=dtype)
    _run("swiglu", gate.device, gate=gate, up=up, y=out, y_dtype=dtype, rows=gate.shape[0], dim=gate.shape[1])
    return out


class _FeedForward:
    """down(silu(gate x) * (up x))."""

    @staticmethod
    def forward(numerics, options, batch, x, gate_w, up_w, down_w):
        gate, up = (_product(x, w, None, _empty(x, x.shape[0], w.shape[0]), numerics.code) for w in (gate_w, up_w))
        gated = _swiglu(gate, up, numerics.activations)
        return _product(gated, down_w, None, _empty(x, x.shape[0], down_w.shape[0]), numerics.code), (gate, up, gated)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, gate_w, up_w, down_w):
        gate, up, gated = kept
        profile, offsets = numerics.code, batch.offsets
        ddown = _product_weight(dy, gated, profile, offsets)
        dgate, dup = _swiglu_backward(gate, up, _product_input(dy, down_w, _empty(x, *gate.shape), profile))
        dx = _product_input(dgate, gate_w, _empty(x, *x.shape), profile)
        _product_input(dup, up_w, dx, profile, add=True)
        return dx, (_product_weight(dgate, x, profile, offsets), _product_weight(dup, x, profile, offsets), ddown)


class _Experts:
    """A mixture of experts: the router's top choices of each row, in the order of their experts. Options: top_k, and
    whether the chosen experts alone share the weight (src/op/moe.h: reweigh).

    gate_up [experts, 2 * inner, hidden] holds gate above up, down [experts, hidden, inner]."""

    @staticmethod
    def route(x, router, top_k, reweighs):
        logits = _product(x, router, None, _empty(x, x.shape[0], router.shape[0]), _abi.EXACT)
        rows, n = logits.shape
        expert, weight = _empty(x, rows, top_k, dtype=torch.int32), _empty(x, rows, top_k)
        _run("moe_route", x.device, logits=logits, rows=rows, n_experts=n, top_k=top_k, expert=expert, weight=weight)
        if reweighs:
            _run("moe_reweigh", x.device, logits=logits, rows=rows, n_experts=n, top_k=top_k, expert=expert,
                 weight=weight)
        pick, row, place = (_empty(x, rows * top_k, dtype=torch.int64) for _ in range(3))
        offsets = _empty(x, n + 1, dtype=torch.int64)
        _run("moe_place", x.device, expert=expert, rows=rows, n_experts=n, top_k=top_k, pick=pick, row=row, place=place,
             offsets=offsets)
        return logits, expert, weight, pick, row, place, offsets

    @staticmethod
    def forward(numerics, options, batch, x, router, gate_up, down):
        inner, n = down.shape[2], down.shape[0]
        logits, expert, weight, pick, row, place, offsets = _Experts.route(x, router, *options)
        picked_x, picked_weight = x[row], weight.view(-1)[pick]
        gate, up = (_empty(x, row.shape[0], inner) for _ in range(2))
        for e in range(n):
            _product(picked_x, gate_up[e, :inner], None, gate, numerics.code, offsets[e:])
            _product(picked_x, gate_up[e, inner:], None, up, numerics.code, offsets[e:])
        gated = _swiglu(gate, up, numerics.activations)
        picked_y, y = _empty(x, row.shape[0], x.shape[1]), torch.zeros(x.shape, dtype=F32, device=x.device)
        for e in range(n):
            _product(gated, down[e], None, picked_y, numerics.code, offsets[e:])
        for e in range(n):
            _run("moe_combine", x.device, y=picked_y, rows=row, weight=picked_weight, acc=y, n=row.shape[0],
                 dim=x.shape[1],
                 range=offsets[e:])
        return y, (logits, expert, row, place, offsets, picked_x, picked_weight, gate, up, gated, picked_y)

    @staticmethod
    def groups(profile, batch, row, offsets):
        """For each expert: the places of its picks; two numbers in device memory that say which these are, or None;
        and where its picks of each sequence begin. Only mma16 asks for sequences, and the host waits for their places:
        other sequences must move no bit of a gradient that is summed in steps of 16 rows."""
        if profile != _abi.MMA16:
            return [(slice(None), offsets[e:], batch.offsets) for e in range(offsets.shape[0] - 1)]
        places = offsets.tolist()
        spans = [slice(first, end) for first, end in zip(places, places[1:])]
        return [(span, None, torch.searchsorted(row[span], batch.offsets)) for span in spans]

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, router, gate_up, down):
        (top_k, reweighs), inner, n, profile = options, down.shape[2], down.shape[0], numerics.code
        logits, expert, row, place, offsets, picked_x, picked_weight, gate, up, gated, picked_y = kept
        picks = row.shape[0]
        dpicked, dpicked_weight = _empty(x, *picked_y.shape), _empty(x, picks)
        _run("moe_combine_backward", x.device, y=picked_y, rows=row, weight=picked_weight, dacc=dy, dy=dpicked,
             dweight=dpicked_weight, n=picks, dim=x.shape[1], acc_rows=x.shape[0])
        dgate_up, ddown = (torch.zeros(w.shape, dtype=F32, device=x.device) for w in (gate_up, down))
        dgated, dx = _empty(x, picks, inner), torch.zeros(x.shape, dtype=F32, device=x.device)
        groups = _Experts.groups(profile, batch, row, offsets)
        for e, (at, picked, sequences) in enumerate(groups):
            _product_weight(dpicked[at], gated[at], profile, sequences, dw=ddown[e], picked=picked)
            _product_input(dpicked[at], down[e], dgated[at], profile, picked=picked)
        dgate, dup = _swiglu_backward(gate, up, dgated)
        for e, (at, picked, sequences) in enumerate(groups):
            for d, half in ((dgate, slice(0, inner)), (dup, slice(inner, 2 * inner))):
                _product_weight(d[at], picked_x[at], profile, sequences, dw=dgate_up[e, half], picked=picked)
                _product_input(d[at], gate_up[e, half], dx, profile, add=True, rows=row[at], picked=picked)
        dlogits, dweight = torch.empty_like(logits), dpicked_weight[place]
        _run("moe_reweigh_backward" if reweighs else "moe_route_backward", x.device, logits=logits, rows=x.shape[0], n_experts=n, top_k=top_k, expert=expert,
             d_weight=dweight, dlogits=dlogits)
        drouter = _product_weight(dlogits, x, _abi.EXACT, batch.offsets)
        _product_input(dlogits, router, dx, _abi.EXACT, add=True)
        return dx, (drouter, dgate_up, ddown)


class _Part(torch.autograd.Function):
    """part(x) in float32; with a weight of a norm, part(rms(x)): a half of a layer, to be added to x."""

    @staticmethod
    def forward(ctx, part, numerics, options, batch, x, norm, *parameters):
        normed = x.detach() if norm is None else _norm(x.detach(), _wide(norm), numerics.eps,
                                                       _empty(x, *x.shape, dtype=numerics.activations))
        y, kept = part.forward(numerics, options, batch, normed, *parameters)
        ctx.part, ctx.numerics, ctx.options, ctx.batch, ctx.n_kept = part, numerics, options, batch, len(kept)
        ctx.save_for_backward(x, norm, None if norm is None else normed, *kept, *parameters)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, norm, normed, *rest = ctx.saved_tensors
        kept, parameters = rest[:ctx.n_kept], rest[ctx.n_kept:]
        read = x if norm is None else normed
        dx, grads = ctx.part.backward(ctx.numerics, ctx.options, ctx.batch, dy.contiguous(), read, kept, *parameters)
        dnorm = None
        if norm is not None:
            dh = _empty(x, *x.shape)
            dnorm = _like(_norm_backward(x, _wide(norm), ctx.numerics.eps, dx, dh), norm)
            dx = dh
        return (None, None, None, None, dx.to(x.dtype), dnorm,
                *(None if w is None else _like(g, w) for w, g in zip(parameters, grads)))


class _Head(torch.autograd.Function):
    """Logits [n, vocab] float32 of these rows of rms(h).

    tied: a dict that the embedding of the same table holds as well, or None. The table's gradient is one ordered sum,
    the head's rows before the embedding's: the head leaves its share there, and the embedding, whose turn comes last,
    goes on from it."""

    @staticmethod
    def forward(ctx, numerics, batch, rows, offsets, tied, h, norm, w):
        x = _norm(h.detach(), _wide(norm), numerics.eps, _empty(h, *h.shape, dtype=numerics.activations))[rows]
        ctx.numerics, ctx.tied = numerics, tied
        ctx.save_for_backward(rows, offsets, h, norm, w, x)
        return _product(x, w, None, _empty(h, x.shape[0], w.shape[0]), numerics.code)

    @staticmethod
    def backward(ctx, dlogits):
        rows, offsets, h, norm, w, x = ctx.saved_tensors
        dlogits, dx, dh = dlogits.contiguous(), torch.zeros(h.shape, dtype=F32, device=h.device), _empty(h, *h.shape)
        dw = _product_weight(dlogits, x, ctx.numerics.code, offsets)
        _product_input(dlogits, w, dx, ctx.numerics.code, rows=rows)
        dnorm = _norm_backward(h, _wide(norm), ctx.numerics.eps, dx, dh)
        if ctx.tied is not None:
            ctx.tied["dw"] = dw
        return None, None, None, None, None, dh, _like(dnorm, norm), None if ctx.tied is not None else _like(dw, w)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens, table, pad, dtype, tied):
        # A token beyond 32 bits must not come back as a small one.
        tokens = tokens.clamp(-1, 2**31 - 1).to(torch.int32).contiguous()
        rows = table.detach().contiguous()
        out = _empty(table, *tokens.shape, table.shape[1], dtype=dtype)
        run("embed", table.device, "wait", table=rows, table_dtype=rows.dtype, vocab=rows.shape[0], dim=rows.shape[1],
            tokens=tokens, y=out, y_dtype=dtype, rows=tokens.numel())
        ctx.pad, ctx.tied, ctx.table = pad, tied, (table.shape, table.dtype)
        ctx.save_for_backward(tokens)
        return out

    @staticmethod
    def backward(ctx, dy):
        tokens, = ctx.saved_tensors
        (vocab, dim), dtype = ctx.table
        dtable = None if ctx.tied is None else ctx.tied.pop("dw", None)
        if dtable is None:
            dtable = torch.zeros((vocab, dim), dtype=F32, device=dy.device)
        dy = dy.float().contiguous()
        _run("embed_backward", dy.device, tokens=tokens, dy=dy, dy_stride=dim, dtable=dtable, vocab=vocab, dim=dim,
             rows=tokens.numel(), pad=-1 if ctx.pad is None else ctx.pad)
        return None, dtable.to(dtype), None, None, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps, dtype):
        ctx.eps = eps
        ctx.save_for_backward(x, w)
        return _norm(x.detach(), _wide(w), eps, _empty(x, *x.shape, dtype=dtype))

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = _empty(x, *x.shape)
        dw = _norm_backward(x, _wide(w), ctx.eps, dy.float().contiguous(), dx)
        return dx.to(x.dtype), _like(dw, w), None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bias, offsets, profile, dtype):
        ctx.profile, ctx.has_bias = profile, bias is not None
        ctx.save_for_backward(x, w, bias, offsets)
        return _product(x.detach(), w, _wide(bias), _empty(x, x.shape[0], w.shape[0], dtype=dtype), profile)

    @staticmethod
    def backward(ctx, dy):
        x, w, bias, offsets = ctx.saved_tensors
        dy = dy.float().contiguous()
        dbias = None if bias is None else torch.zeros(bias.shape, dtype=F32, device=x.device)
        dw = _product_weight(dy, x, ctx.profile, offsets, dbias)
        dx = _product_input(dy, w, _empty(x, *x.shape), ctx.profile)
        return dx.to(x.dtype), _like(dw, w), None if bias is None else _like(dbias, bias), None, None, None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, dtype):
        ctx.save_for_backward(gate, up)
        return _swiglu(gate.detach(), up.detach(), dtype)

    @staticmethod
    def backward(ctx, dy):
        return (*_swiglu_backward(*ctx.saved_tensors, dy.float().clone(memory_format=torch.contiguous_format)), None)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, batch, options, profile):
        ctx.batch, ctx.options, ctx.profile = batch, options, profile
        heads, _, head_dim, _ = options
        out = _empty(qkv, qkv.shape[0], heads * head_dim, dtype=qkv.dtype)
        log_sum = _Attention.heads(options, batch, qkv.detach(), out, profile)
        ctx.save_for_backward(qkv, out, log_sum)
        return out

    @staticmethod
    def backward(ctx, dout):
        qkv, out, log_sum = ctx.saved_tensors
        dqkv = _Attention.heads_backward(ctx.options, ctx.batch, qkv, dout.float().contiguous(), out, log_sum,
                                         ctx.profile)
        return dqkv.to(qkv.dtype), None, None, None


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, batch, rotation, shapes, head_dim, eps, dtype, *weights):
        parts = [HeadPart(n, bias, norm, rotates) for (n, rotates), bias, norm in
                 zip(shapes, weights[::2], weights[1::2])]
        ctx.batch, ctx.rotation, ctx.shapes, ctx.head_dim, ctx.eps = batch, rotation, shapes, head_dim, eps
        ctx.save_for_backward(x if any(p.norm is not None for p in parts) else None, *weights)
        out = _empty(x, *x.shape, dtype=dtype)
        _rope(x.detach(), out, batch.rope_table(rotation), parts, head_dim, eps)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, *weights = ctx.saved_tensors
        parts = [HeadPart(n, bias, norm, rotates) for (n, rotates), bias, norm in
                 zip(ctx.shapes, weights[::2], weights[1::2])]
        dy = dy.float().contiguous()
        dx, grads, at = _empty(dy, *dy.shape), [], 0
        dnorms = _rope_backward(x, dy, dx, ctx.batch.rope_table(ctx.rotation), parts, ctx.head_dim, ctx.eps)
        for part, dnorm in zip(parts, dnorms):
            width, dbias = part.n_heads * ctx.head_dim, None
            if part.bias is not None:
                # Rows are added as a product's bias adds them, one after the other.
                dbias = torch.zeros(width, dtype=F32, device=dy.device)
                _product_weight(dx[:, at:at + width], dx.new_zeros((dx.shape[0], 1)), _abi.EXACT, ctx.batch.offsets,
                                dbias)
                dbias = _like(dbias, part.bias)
            grads += [dbias, None if dnorm is None else _like(dnorm, part.norm)]
            at += width
        return (dx, None, None, None, None, None, None, *grads)


# ---- what people call ----


def _check(name, x, dtypes=(F32, BF16), width=None, rows=None):
    if x.dim() != 2 or (width is not None and x.shape[1] != width) or (rows is not None and x.shape[0] != rows):
        raise ValueError(f"{name}: shape {tuple(x.shape)}; ({rows or 'rows'}, {width or 'width'}) is wanted")
    require(name, x, dtypes)
    return x if row_stride(x) is not None and x.stride(-1) == 1 else x.contiguous()


def linear(x, weight, bias=None, batch=None, profile="exact", out_dtype=None):
    """R(x weight^T + bias) of packed rows.

    x        [rows, k] float32 or bfloat16
    weight   [n, k] float32 or bfloat16;  bias [n] or None
    batch    lockstep.Batch of the rows; mma16 sums the weight's gradient by sequence. None: one sequence
    profile  "exact" or "mma16", which takes bfloat16 only
    out_dtype  float32 or bfloat16; None for the type of x

    Bits: a row depends on that row, weight and bias alone. Contract: src/op/gemm.h, src/op/gemm_backward.h."""
    x = _check("x", x, width=weight.shape[1])
    require("weight", weight, (F32, BF16), (weight.shape[0], weight.shape[1]), x)
    if profile == "mma16" and (x.dtype != BF16 or weight.dtype != BF16):
        raise TypeError(f"profile mma16: x is {x.dtype}, weight {weight.dtype}; it multiplies bfloat16 only")
    offsets = batch.offsets if batch is not None else torch.tensor([0, x.shape[0]], device=x.device)
    return _Linear.apply(x, weight, bias, offsets, PROFILES[profile], out_dtype or x.dtype)


def rmsnorm(x, weight, eps=1e-6, out_dtype=None):
    """RMS normalisation of rows: x [rows, dim], weight [dim]; out_dtype None for the type of x. Contract:
    src/op/rmsnorm.h. Peer: torch.nn.functional.rms_norm."""
    return _Norm.apply(_check("x", x, width=weight.shape[0]), weight, eps, out_dtype or x.dtype)


def causal_attention(qkv, batch, heads, kv_heads, head_dim, window=None, profile="exact"):
    """Causal attention of packed sequences, grouped-query heads, scale 1 / sqrt(head_dim).

    qkv     [rows, (heads + 2 * kv_heads) * head_dim] float32 or bfloat16: queries, keys, values side by side
    window  positions that a row sees, the last of which is its own; None: all
    profile  "exact" or "mma16", which takes bfloat16 and heads of at most 256 dimensions

    Returns [rows, heads * head_dim]. A row depends on its own sequence up to itself. Contract: src/op/attention.h.
    Peer: scaled_dot_product_attention(is_causal=True, enable_gqa=True)."""
    if heads < 1 or kv_heads < 1 or heads % kv_heads or not 1 <= head_dim <= _abi.HEAD_DIM_MAX:
        raise ValueError(f"{heads} heads over {kv_heads} of {head_dim} dimensions")
    if window is not None and window < 1:
        raise ValueError(f"window: {window}; 1 at least, or None")
    qkv = _check("qkv", qkv, width=(heads + 2 * kv_heads) * head_dim, rows=batch.rows)
    if profile == "mma16" and qkv.dtype != BF16:
        raise TypeError(f"profile mma16: qkv is {qkv.dtype}; it multiplies bfloat16 only")
    return _CausalAttention.apply(qkv, batch, (heads, kv_heads, head_dim, window or 0), PROFILES[profile])


def rope(x, batch, parts, head_dim, rotation=None, eps=1e-6, out_dtype=None):
    """What lies between a product and attention: bias, norm of each head, rotation by position, one rounding.

    x         [rows, heads of all parts * head_dim] float32: what the products gave, before any bias
    batch     lockstep.Batch of the rows: a row's position is its place in its sequence
    parts     1 to 3 of lockstep.HeadPart(n_heads, bias, norm, rotates), side by side as q | k | v. bias
              [n_heads * head_dim] and norm [head_dim] are float32 or bfloat16, or None
    rotation  lockstep.Rotation where a part rotates; Rotation.of(config) has the engine's frequencies
    eps       of the norms
    out_dtype  float32 (None) or bfloat16

    Returns x's shape. Gradients of x, biases and norms. TypeError and ValueError name the argument. Contract:
    src/op/rope.h. Peer: apply_rotary_pos_emb of transformers, after q_norm and k_norm."""
    if not 1 <= len(parts) <= _abi.ROPE_PARTS:
        raise ValueError(f"parts: {len(parts)}; 1 to {_abi.ROPE_PARTS} are taken")
    if not 1 <= head_dim <= _abi.HEAD_DIM_MAX or any(p.n_heads < 1 for p in parts):
        raise ValueError(f"parts: heads {[p.n_heads for p in parts]} of {head_dim} dimensions; heads are at least 1, "
                         f"dimensions 1 to {_abi.HEAD_DIM_MAX}")
    if any(p.rotates for p in parts) and not (rotation and 1 <= len(rotation.inv_freq) <= head_dim // 2):
        raise ValueError(f"rotation: {rotation and len(rotation.inv_freq)} frequencies; a part rotates, and 1 to "
                         f"{head_dim // 2} are taken")
    if out_dtype not in (None, F32, BF16):
        raise TypeError(f"out_dtype: {out_dtype}; torch.float32 or torch.bfloat16 is taken")
    x = _check("x", x, (F32,), sum(p.n_heads for p in parts) * head_dim, batch.rows)
    for i, p in enumerate(parts):
        for name, w, width in (("bias", p.bias, p.n_heads * head_dim), ("norm", p.norm, head_dim)):
            if w is not None:
                require(f"parts[{i}].{name}", w, (F32, BF16), (width,), x)
    shapes = tuple((p.n_heads, p.rotates) for p in parts)
    return _Rope.apply(x, batch, rotation, shapes, head_dim, eps, out_dtype or F32,
                       *(w for p in parts for w in (p.bias, p.norm)))


def swiglu(gate, up, out_dtype=None):
    """silu(gate) * up, [rows, dim] float32 each; out_dtype float32 (None) or bfloat16. Contract:
    src/op/elementwise.h."""
    gate = _check("gate", gate, (F32,)).contiguous()
    return _Swiglu.apply(gate, _check("up", up, (F32,), gate.shape[1], gate.shape[0]).contiguous(), out_dtype or F32)


def embed(tokens, table, padding_idx=None, out_dtype=F32):
    """Rows of a table [vocab, dim] at integer tokens [rows]; the padding token's row gets no gradient. A token outside
    the vocabulary raises LockstepError. Peer: torch.nn.functional.embedding."""
    return _Embedding.apply(tokens, table, padding_idx, out_dtype, None)


def half(part, numerics, options, batch, h, norm, *parameters):
    """part(rms(h)) in float32, h [rows, hidden] float32: what is added to the residual stream."""
    h = _check("h", h, (F32,), rows=batch.rows)
    return _Part.apply(part, numerics, options, batch, h, norm, *parameters)


def mixer(x, batch, in_weight, conv_weight, x_weight, dt_weight, dt_bias, a_log, d, out_weight, in_bias=None,
          conv_bias=None,
          out_bias=None, dt_norm=None, b_norm=None, c_norm=None, numerics=Numerics(), inner_eps=None):
    """The Mamba-1 mixer of packed sequences, with Jamba's norms of dt, B and C where they are given (all or none), or
    with FalconMamba's, which have no weights, where their epsilon inner_eps is.

    x  [rows, hidden] of numerics.activations; weights as a checkpoint stores them: in [2 * dim, hidden], conv
       [dim, 1, width], x [rank + 2 * states, dim], dt [dim, rank], a_log [dim, states], d [dim], out [hidden, dim]

    Returns [rows, hidden] float32. The order of arithmetic is src/model/part_mamba.c."""
    if len({w is None for w in (dt_norm, b_norm, c_norm)}) != 1:
        raise ValueError("dt_norm, b_norm, c_norm: all or none")
    if inner_eps is not None and dt_norm is not None:
        raise ValueError("inner_eps: of norms without weights, and dt_norm is one")
    x = _check("x", x, (numerics.activations,), in_weight.shape[1], batch.rows)
    return _Part.apply(_Mixer, numerics, inner_eps, batch, x, None, in_weight, in_bias, conv_weight, conv_bias, x_weight,
                       dt_norm,
                       b_norm, c_norm, dt_weight, dt_bias, a_log, d, out_weight, out_bias)


def head(h, norm, weight, batch, rows, numerics=Numerics()):
    """Logits [n, vocab] float32 of rms(h), h [rows, hidden] float32, at these rows: int64, strictly ascending.
    Contract:
    src/op/rmsnorm.h, src/op/gemm.h."""
    return tied_head(h, norm, weight, batch, rows, numerics, None)


def tied_embedding(tokens, table, padding_idx, tied):
    """embed and head of one table: see _Head."""
    return _Embedding.apply(tokens, table, padding_idx, F32, tied)


def tied_head(h, norm, weight, batch, rows, numerics, tied):
    ends = torch.searchsorted(rows, batch.offsets)  # rows before each sequence's end
    offsets = torch.cat((ends[:1], ends[1:][ends[1:] > ends[:-1]]))
    return _Head.apply(numerics, batch, rows, offsets, tied, _check("h", h, (F32,), rows=batch.rows), norm, weight)
