"""Attention as a part of a layer: forward(numerics, options, batch, x, *parameters) -> (y, kept), and backward(..., dy,
x, kept, *parameters) -> (dx, gradients). The order of ops is src/model/part_attention.c."""

import ctypes
import math
from typing import NamedTuple, Optional

import torch

from . import _abi
from ._packed import (F32, PAGE, HeadPart, Rotation, _empty, _product, _product_input, _product_weight, _rope,
                      _rope_backward, _run, _sigmoid_gate, _sigmoid_gate_backward, _wide)


class Heads(NamedTuple):
    """heads over kv_heads of head_dim columns; window: positions that a query sees, 0 for all; scale of scores, None
    for 1 / sqrt(head_dim); gated: q_proj gives each head and behind it the gate of its output."""
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    rotation: Optional[Rotation] = None
    scale: Optional[float] = None
    gated: bool = False

    def factor(self):
        if self.scale is not None:
            return self.scale
        root = ctypes.c_float(math.sqrt(self.head_dim)).value
        return ctypes.c_float(1.0 / root).value


class _Attention:
    """x to q, k, v; bias, norm of heads and rotation where there are some; causal attention; output gates where the
    heads have some; o. Options: Heads."""

    @staticmethod
    def heads(options, batch, qkv, out, profile):
        """Writes out; returns what a gradient needs of mma16, the logarithm of each query's sum, None in exact."""
        heads, kv_heads, head_dim = options[:3]
        log_sum = _empty(qkv, batch.rows, heads) if profile == _abi.MMA16 else None
        q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
        q, k, v = qkv.split((q_dim, kv_dim, kv_dim), dim=1)
        pages = torch.zeros((max(batch.n_pages, 1), 2 * kv_dim * PAGE), dtype=qkv.dtype, device=qkv.device)
        view = _abi.PoolView(pages.data_ptr(), pages.stride(0) * pages.element_size(), pages.shape[0])
        _run("attention", qkv.device, q=q, k=k, v=v, out=out, dtype=qkv.dtype, q_stride=qkv.stride(0),
             kv_stride=qkv.stride(0), out_stride=out.stride(0), n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim,
             scale=options.factor(), page_tokens=PAGE, pages=view, spans=batch.spans, n_spans=batch.n,
             tables=batch.tables, n_tables=batch.n_pages, rows=batch.rows, window=options.window, profile=profile,
             log_sum=log_sum, log_sum_stride=heads)
        return log_sum

    @staticmethod
    def heads_backward(options, batch, qkv, dout, out, log_sum, profile):
        heads, kv_heads, head_dim = options[:3]
        q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
        dqkv = torch.empty(qkv.shape, dtype=F32, device=qkv.device)
        (q, k, v), (dq, dk, dv) = (t.split((q_dim, kv_dim, kv_dim), dim=1) for t in (qkv, dqkv))
        _run("attention_backward", qkv.device, q=q, k=k, v=v, dtype=qkv.dtype, q_stride=qkv.stride(0),
             kv_stride=qkv.stride(0), dout=dout, dout_stride=dout.stride(0), dq=dq, dk=dk, dv=dv,
             dq_stride=dqkv.stride(0), dkv_stride=dqkv.stride(0), rows=batch.rows, n_heads=heads, n_kv_heads=kv_heads,
             head_dim=head_dim, scale=options.factor(), window=options.window, profile=profile, out=out,
             out_stride=out.stride(0), log_sum=log_sum, log_sum_stride=heads, **batch.span_members())
        return dqkv

    @staticmethod
    def parts(numerics, options, biases, norms):
        turns, (q_norm, k_norm) = options.rotation is not None, (numerics.norm(w) for w in norms)
        return (HeadPart(options.heads, biases[0], q_norm, turns), HeadPart(options.kv_heads, biases[1], k_norm, turns),
                HeadPart(options.kv_heads, biases[2], None, False))

    @staticmethod
    def by_head(options, q_gates):
        """What q_proj gives where each head has its gate behind it: heads and gates, [rows * heads, head_dim] each."""
        return q_gates.view(-1, 2 * options.head_dim).split(options.head_dim, dim=1)

    @staticmethod
    def forward(numerics, options, batch, x, wq, wk, wv, wo, *more):
        """more, where there is some: biases of q, k, v and o, norms of q's and k's heads; each may be None."""
        biases, norms = (more[:4], more[4:]) if more else ((None,) * 4, (None,) * 2)
        q_dim, kv_dim, rows = options.heads * options.head_dim, wk.shape[0], x.shape[0]
        bare = options.rotation is None and not options.gated and all(w is None for w in (*biases[:3], *norms))
        qkv = _empty(x, rows, q_dim + 2 * kv_dim, dtype=numerics.activations)
        raw = qkv if bare else _empty(x, *qkv.shape)
        q, k, v = raw.split((q_dim, kv_dim, kv_dim), dim=1)
        q_gates = _empty(x, rows, 2 * q_dim) if options.gated else None
        for w, out in zip((wq, wk, wv), (q if q_gates is None else q_gates, k, v)):
            _product(x, w, None, out, numerics.code)
        if options.gated:
            q.unflatten(1, (options.heads, -1)).copy_(q_gates.unflatten(1, (options.heads, 2, -1))[:, :, 0])
        if not bare:
            _rope(raw, qkv, batch.rope_table(options.rotation), _Attention.parts(numerics, options, biases, norms),
                  options.head_dim, numerics.eps)
        heads = _empty(x, rows, q_dim, dtype=numerics.activations)
        log_sum = _Attention.heads(options, batch, qkv, heads, numerics.code)
        gated = heads
        if options.gated:
            gated, of_heads = _empty(x, *heads.shape, dtype=heads.dtype), (-1, options.head_dim)
            _sigmoid_gate(heads.view(of_heads), _Attention.by_head(options, q_gates)[1], gated.view(of_heads))
        y = _product(gated, wo, _wide(biases[3]), _empty(x, rows, wo.shape[0]), numerics.code)
        return y, (qkv, heads, log_sum, None if all(w is None for w in norms) else raw,
                   *((q_gates, gated) if options.gated else ()))

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, wq, wk, wv, wo, *more):
        biases, norms = (more[:4], more[4:]) if more else ((None,) * 4, (None,) * 2)
        qkv, heads, log_sum, raw, *gates = kept
        profile, offsets, dim = numerics.code, batch.offsets, options.head_dim
        dbiases = [None if w is None else torch.zeros(w.shape, dtype=F32, device=x.device) for w in biases]
        dout = _product_input(dy, wo, _empty(x, *heads.shape), profile)
        dwo = _product_weight(dy, gates[1] if gates else heads, profile, offsets, dbiases[3])
        if gates:
            dq_gates, dheads = _empty(x, *gates[0].shape), _empty(x, *heads.shape)
            (_, gate), (_, dgate) = (_Attention.by_head(options, t) for t in (gates[0], dq_gates))
            _sigmoid_gate_backward(heads.view(-1, dim), gate, dout.view(-1, dim), dheads.view(-1, dim), dgate)
            dout = dheads
        dqkv = _Attention.heads_backward(options, batch, qkv, dout, heads, log_sum, profile)
        dnorms = (None, None)
        if options.rotation is not None or raw is not None:
            through = _empty(x, *dqkv.shape)
            dnorms = _rope_backward(raw, dqkv, through, batch.rope_table(options.rotation),
                                    _Attention.parts(numerics, options, biases, norms), dim, numerics.eps)[:2]
            dqkv = through
        dq, dk, dv = dqkv.split((heads.shape[1], wk.shape[0], wv.shape[0]), dim=1)
        if gates:
            dq_gates.unflatten(1, (options.heads, 2, -1))[:, :, 0] = dq.unflatten(1, (options.heads, -1))
            dq = dq_gates
        dx, grads = _empty(x, *x.shape), []
        for i, (w, d) in enumerate(zip((wq, wk, wv), (dq, dk, dv))):
            grads.append(_product_weight(d, x, profile, offsets, dbiases[i]))
            _product_input(d, w, dx, profile, add=i > 0)
        return dx, (*grads, dwo, *((*dbiases, *dnorms) if more else ()))
