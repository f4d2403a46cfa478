"""Layers of the models that lockstep.patch takes as torch functions, forward and gradients in the engine's bits, on CPU
and CUDA.

Rows are packed: matrices are [rows, width], and a Batch says which rows are which sequence. A part of a layer
(attention, mixer, feed-forward) is one autograd function, not one for each op, because the engine keeps its gradients
in float32 from the part's output to its input and adds those of several products in one order; autograd would round
them to the type of each tensor and add them in its own.

A Numerics says how: the profile of dense products ("exact": one float32 fma chain; "mma16": steps of 16 of a tensor
core, bf16 only) and the type of activations. Gradients are computed in float32 and rounded once, to the type of the
parameter.

The arithmetic, to the bit, is NUMERICS.md and src/op/*.h of the Lockstep sources; the order of ops src/model/part_*.c.
None of this has a shape function for compilers: do not put torch.compile around it."""

import torch

from . import _abi
from ._attention import Heads, _Attention
from ._feed_forward import _activate, _activate_backward, _Relu2, _SigmoidGate
from ._packed import (BF16, F32, PROFILES, Batch, HeadPart, Numerics, Rotation, _empty, _like, _norm, _norm_backward,
                      _product, _product_input, _product_weight, _rope, _rope_backward, _run, _wide)
from ._recurrent import Ssd, _Delta, _GatedNorm, _Mixer, _Ssd
from ._run import require, row_stride, run


class _Part(torch.autograd.Function):
    """part(x) in float32; with a weight of a norm, part(rms(x)): a half of a layer, to be added to x."""

    @staticmethod
    def forward(ctx, part, numerics, options, batch, x, norm, *parameters):
        normed = x.detach() if norm is None else _norm(x.detach(), numerics.norm(norm), numerics.eps,
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
        dy = dy.float().contiguous()
        dx, grads = ctx.part.backward(ctx.numerics, ctx.options, ctx.batch, dy, read, kept, *parameters)
        dnorm = None
        if norm is not None:
            dh = _empty(x, *x.shape)
            dnorm = _like(_norm_backward(x, ctx.numerics.norm(norm), ctx.numerics.eps, dx, dh), norm)
            dx = dh
        return (None, None, None, None, dx.to(x.dtype), dnorm,
                *(None if g is None else _like(g, w) for w, g in zip(parameters, grads)))


class _Head(torch.autograd.Function):
    """Logits [n, vocab] float32 of these rows of rms(h).

    tied: a dict that the embedding of the same table holds as well, or None. The table's gradient is one ordered sum,
    the head's rows before the embedding's: the head leaves its share there, and the embedding, whose turn comes last,
    goes on from it."""

    @staticmethod
    def forward(ctx, numerics, batch, rows, offsets, tied, h, norm, w):
        x = _norm(h.detach(), numerics.norm(norm), numerics.eps, _empty(h, *h.shape, dtype=numerics.activations))[rows]
        ctx.numerics, ctx.tied = numerics, tied
        ctx.save_for_backward(rows, offsets, h, norm, w, x)
        return _product(x, w, None, _empty(h, x.shape[0], w.shape[0]), numerics.code)

    @staticmethod
    def backward(ctx, dlogits):
        rows, offsets, h, norm, w, x = ctx.saved_tensors
        dlogits, dx, dh = dlogits.contiguous(), torch.zeros(h.shape, dtype=F32, device=h.device), _empty(h, *h.shape)
        dw = _product_weight(dlogits, x, ctx.numerics.code, offsets)
        _product_input(dlogits, w, dx, ctx.numerics.code, rows=rows)
        dnorm = _norm_backward(h, ctx.numerics.norm(norm), ctx.numerics.eps, dx, dh)
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
        return _activate(gate.detach(), up.detach(), dtype)

    @staticmethod
    def backward(ctx, dy):
        return (*_activate_backward(*ctx.saved_tensors, dy.float().clone(memory_format=torch.contiguous_format)), None)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, batch, options, profile):
        ctx.batch, ctx.options, ctx.profile = batch, options, profile
        out = _empty(qkv, qkv.shape[0], options.heads * options.head_dim, dtype=qkv.dtype)
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
    return _CausalAttention.apply(qkv, batch, Heads(heads, kv_heads, head_dim, window or 0), PROFILES[profile])


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


def relu2(x, out_dtype=None):
    """max(x, 0)^2 of x [rows, dim] float32; out_dtype float32 (None) or bfloat16. Contract: src/op/elementwise.h."""
    x = _check("x", x, (F32,)).contiguous()
    return _Part.apply(_Relu2, Numerics(activations=out_dtype or F32), None, None, x, None)


def sigmoid_gate(x, gate, out_dtype=None):
    """x * sigmoid(gate): attention behind its output gates, a shared expert behind its gate of one column.

    x     [rows, dim] float32 or bfloat16
    gate  [rows, gates] float32; gates divides dim, and dim / gates neighbouring columns have one gate
    out_dtype  float32 or bfloat16; None for the type of x

    Contract: src/op/sigmoid_gate.h."""
    x, gate = _check("x", x), _check("gate", gate, (F32,), rows=x.shape[0])
    if gate.shape[1] < 1 or x.shape[1] % gate.shape[1]:
        raise ValueError(f"gate: {gate.shape[1]} columns for {x.shape[1]} of x, which it divides")
    return _Part.apply(_SigmoidGate, Numerics(activations=out_dtype or x.dtype), None, None, x, None, gate)


def gated_rmsnorm(x, z, weight, groups=1, eps=1e-6, out_dtype=None):
    """RMS normalisation of x * silu(z) over groups of neighbouring columns: x, z [rows, dim] float32, weight [dim];
    groups divides dim; out_dtype float32 (None) or bfloat16. Contract: src/op/gated_norm.h. Peer: MambaRMSNormGated of
    transformers."""
    x = _check("x", x, (F32,), weight.shape[0])
    z = _check("z", z, (F32,), x.shape[1], x.shape[0])
    if groups < 1 or x.shape[1] % groups:
        raise ValueError(f"groups: {groups} for {x.shape[1]} columns, which it divides")
    return _Part.apply(_GatedNorm, Numerics(activations=out_dtype or F32, eps=eps), groups, None, x, None, z, weight)


def mamba2_scan(x, dt, b, c, a_log, dt_bias, d, batch, groups=1, dt_limit=(0.0, float("inf"))):
    """The scan of Mamba-2 of packed sequences, each from the state 0.

    x     [rows, heads * head_dim] float32
    dt    [rows, heads] float32, before dt_bias and softplus, which dt_limit clamps
    b, c  [rows, groups * states] float32: a group of neighbouring heads shares them
    a_log, dt_bias, d  [heads] float32 or bfloat16

    Returns x's shape in float32. Gradients of all tensors. Contract: src/op/ssd.h. Peer: torch_forward of
    transformers' Mamba2Mixer between its convolution and its norm."""
    heads, low, high = a_log.numel(), *map(float, dt_limit)
    if heads < 1 or x.dim() != 2 or x.shape[1] % heads:
        raise ValueError(f"x: shape {tuple(x.shape)} for {heads} heads")
    if groups < 1 or heads % groups or b.dim() != 2 or b.shape[1] % groups:
        raise ValueError(f"groups: {groups}, of {heads} heads and b of shape {tuple(b.shape)}")
    rows, x = batch.rows, _check("x", x, (F32,), rows=batch.rows)
    dt, b = _check("dt", dt, (F32,), heads, rows), _check("b", b, (F32,), rows=rows)
    c = _check("c", c, (F32,), b.shape[1], rows)
    _vectors(heads, x, a_log=a_log, dt_bias=dt_bias, d=d)
    return _Part.apply(_Ssd, Numerics(), Ssd(groups, low, high), batch, x, None, dt, b, c, a_log, dt_bias, d)


def delta_rule(q, k, v, a, b, a_log, dt_bias, batch, key_heads):
    """The gated delta rule of packed sequences, each from the state 0; q and k are normalised by their l2 norms in it.

    q, k  [rows, key_heads * key_dim] float32
    v     [rows, heads * value_dim] float32; heads / key_heads neighbouring value heads share a key head
    a, b  [rows, heads] float32: what softplus takes with dt_bias, and what the sigmoid of beta takes
    a_log, dt_bias  [heads] float32 or bfloat16

    Returns v's shape in float32. Gradients of all tensors. Contract: src/op/delta.h. Peer:
    torch_recurrent_gated_delta_rule of transformers with use_qk_l2norm_in_kernel."""
    heads = a_log.numel()
    if key_heads < 1 or heads < 1 or heads % key_heads or q.dim() != 2 or q.shape[1] % key_heads:
        raise ValueError(f"key_heads: {key_heads}, of {heads} heads and q of shape {tuple(q.shape)}")
    if v.dim() != 2 or v.shape[1] % heads:
        raise ValueError(f"v: shape {tuple(v.shape)} for {heads} heads")
    rows, q = batch.rows, _check("q", q, (F32,), rows=batch.rows)
    k, v = _check("k", k, (F32,), q.shape[1], rows), _check("v", v, (F32,), rows=rows)
    a, b = (_check(name, t, (F32,), heads, rows) for name, t in (("a", a), ("b", b)))
    _vectors(heads, q, a_log=a_log, dt_bias=dt_bias)
    return _Part.apply(_Delta, Numerics(), key_heads, batch, q, None, k, v, a, b, a_log, dt_bias)


def _vectors(n, like, **named):
    for name, w in named.items():
        require(name, w, (F32, BF16), (n,), like)


def embed(tokens, table, padding_idx=None, out_dtype=F32):
    """Rows of a table [vocab, dim] at integer tokens [rows]; the padding token's row gets no gradient. A token outside
    the vocabulary raises LockstepError. Peer: torch.nn.functional.embedding."""
    return _Embedding.apply(tokens, table, padding_idx, out_dtype, None)


def half(part, numerics, options, batch, h, norm, *parameters):
    """part(rms(h)) in float32, h [rows, hidden] float32: what is added to the residual stream."""
    h = _check("h", h, (F32,), rows=batch.rows)
    return _Part.apply(part, numerics, options, batch, h, norm, *parameters)


def mixer(x, batch, in_weight, conv_weight, x_weight, dt_weight, dt_bias, a_log, d, out_weight, in_bias=None,
          conv_bias=None, out_bias=None, dt_norm=None, b_norm=None, c_norm=None, numerics=Numerics(), inner_eps=None):
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
    return _Part.apply(_Mixer, numerics, inner_eps, batch, x, None, in_weight, in_bias, conv_weight, conv_bias,
                       x_weight, dt_norm, b_norm, c_norm, dt_weight, dt_bias, a_log, d, out_weight, out_bias)


def head(h, norm, weight, batch, rows, numerics=Numerics()):
    """Logits [n, vocab] float32 of rms(h), h [rows, hidden] float32, at these rows: int64, strictly ascending.
    Contract: src/op/rmsnorm.h, src/op/gemm.h."""
    return tied_head(h, norm, weight, batch, rows, numerics, None)


def tied_embedding(tokens, table, padding_idx, tied):
    """embed and head of one table: see _Head."""
    return _Embedding.apply(tokens, table, padding_idx, F32, tied)


def tied_head(h, norm, weight, batch, rows, numerics, tied):
    ends = torch.searchsorted(rows, batch.offsets)  # rows before each sequence's end
    offsets = torch.cat((ends[:1], ends[1:][ends[1:] > ends[:-1]]))
    return _Head.apply(numerics, batch, rows, offsets, tied, _check("h", h, (F32,), rows=batch.rows), norm, weight)
