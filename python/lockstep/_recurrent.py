"""Mixers with a state as parts of a layer, in the form of _attention.py: Mamba-1, Mamba-2 and the gated delta rule, and
the ops that these are made of. The order of ops is src/model/part_mamba.c, part_mamba2.c and part_delta.c."""

from typing import NamedTuple

import torch

from . import _abi
from ._feed_forward import _activate, _activate_backward
from ._packed import BF16, F32, _empty, _norm, _norm_backward, _product, _product_input, _product_weight, _run, _wide
from ._run import new_pool, pool

LN2 = float.fromhex("0x1.62e430p-1")  # LS_LN2


def _zeros_like(*vectors):
    """A float32 gradient to begin with for each, None for None."""
    return [None if w is None else torch.zeros(w.shape, dtype=F32, device=w.device) for w in vectors]


def _from_log(op, a_log):
    """decay: a2 of the scan of Mamba-1; rates: -exp(A_log)."""
    a_log = a_log.detach().contiguous()
    out = torch.empty(a_log.shape, dtype=F32, device=a_log.device)
    _run(op, a_log.device, x=a_log, dtype=a_log.dtype, n=a_log.numel(), out=out)
    return out


def _taps(conv_w):
    return _wide(conv_w).view(conv_w.shape[0], -1).t().contiguous()


def _convolve(numerics, batch, x, conv_w, conv_bias, rounded=None):
    """The first columns of x behind the convolution, float32, and in rounded once more in bfloat16."""
    dim, width = conv_w.shape[0], conv_w.shape[-1]
    y, state = _empty(x, x.shape[0], dim), new_pool(batch.n, (width - 1, dim), numerics.activations, x.device)
    _run("conv1d", x.device, x=x, x_dtype=F32, y_dtype=F32, state_dtype=numerics.activations, x_stride=x.stride(0),
         w=_taps(conv_w), bias=_wide(conv_bias), y=y, y_stride=dim, rounded=rounded, rounded_stride=dim,
         rows=batch.rows, dim=dim, d_conv=width, state=pool("state", state, (state.dtype,), state.shape[1:], x),
         **batch.span_members())
    return y


def _convolve_backward(numerics, batch, x, conv_w, conv_bias, dy, dx):
    """dx, in its first columns; returns the gradients of weight and bias."""
    dim, width = conv_w.shape[0], conv_w.shape[-1]
    dw, (dbias,) = torch.zeros((dim, width), dtype=F32, device=x.device), _zeros_like(conv_bias)
    _run("conv1d_backward", x.device, x=x, x_dtype=F32, state_dtype=numerics.activations, x_stride=x.stride(0),
         w=_taps(conv_w), bias=_wide(conv_bias), dy=dy, dy_stride=dy.stride(0), dx=dx, dx_dtype=F32,
         dx_stride=dx.stride(0), dw=dw, dbias=dbias, rows=batch.rows, dim=dim, d_conv=width, dw_by_channel=True,
         **batch.span_members())
    return dw, dbias


class _Mixer:
    """Mamba-1: in_proj, convolution, x_proj, the norms of dt, B and C where there are some, dt_proj, scan, out_proj.
    options: the epsilon of norms that have no weights, as FalconMamba's; else None."""

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
                dt_bias, a_log, d, out_w, out_bias):
        rank, states, rows, profile = dt_w.shape[1], a_log.shape[1], x.shape[0], numerics.code
        uz = _product(x, in_w, _wide(in_bias), _empty(x, rows, in_w.shape[0]), profile)
        u_in = _empty(x, rows, out_w.shape[1], dtype=BF16) if profile == _abi.MMA16 else None
        u = _convolve(numerics, batch, uz, conv_w, conv_bias, u_in)
        u_in = u if u_in is None else u_in
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
        a2 = _from_log("decay", a_log)
        scanned = _empty(x, *u.shape, dtype=numerics.activations)
        state = new_pool(batch.n, a2.shape, F32, x.device)
        _run("scan", x.device, **_Mixer.scan_members(uz, u, dt, b, c, a2, dt_bias, d), out_dtype=scanned.dtype,
             out=scanned, out_stride=scanned.stride(0), state=pool("state", state, (F32,), a2.shape, x),
             **batch.span_members())
        y = _product(scanned, out_w, _wide(out_bias), _empty(x, rows, out_w.shape[0]), profile)
        return y, (uz, u, u_in, raw, dt_in, b, c, dt, a2, scanned)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, in_w, in_bias, conv_w, conv_bias, x_w, dt_norm, b_norm, c_norm,
                 dt_w, dt_bias, a_log, d, out_w, out_bias):
        uz, u, u_in, raw, dt_in, b, c, dt, a2, scanned = kept
        rank, states, rows, dim = dt_w.shape[1], a_log.shape[1], x.shape[0], u.shape[1]
        profile, offsets = numerics.code, batch.offsets
        dout_bias, din_bias, ddt_bias, dd = _zeros_like(out_bias, in_bias, dt_bias, d)
        dscan = _product_input(dy, out_w, _empty(x, *scanned.shape), profile)
        dout_w = _product_weight(dy, scanned, profile, offsets, dout_bias)
        duz, du, ddt = _empty(x, rows, 2 * dim), _empty(x, rows, dim), _empty(x, rows, dim)
        db, dc, da2 = _empty(x, rows, states), _empty(x, rows, states), torch.zeros_like(a2)
        _run("scan_backward", x.device, **_Mixer.scan_members(uz, u, dt, b, c, a2, dt_bias, d), dout=dscan,
             dout_stride=dim, du=du, ddt=ddt, db=db, dcc=dc, dz=duz[:, dim:], dz_stride=duz.stride(0), da2=da2,
             ddt_bias=ddt_bias, dd=dd, continued=True, **batch.span_members())
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
        dconv_w, dconv_bias = _convolve_backward(numerics, batch, uz, conv_w, conv_bias, du, duz)
        din_w = _product_weight(duz, x, profile, offsets, din_bias)
        dx = _product_input(duz, in_w, _empty(x, *x.shape), profile)
        return dx, (din_w, din_bias, dconv_w, dconv_bias, dx_w, *dnorms, ddt_w, ddt_bias, da2 * LN2 * a2, dd, dout_w,
                    dout_bias)


# ---- Mamba-2 ----


def _scan(op, batch, y, members, floats):
    """y of ssd or delta, whose states of a head have so many floats."""
    state, scale = (new_pool(batch.n, (members["n_heads"], n), F32, y.device, zero=False) for n in (floats, 1))
    views = {name: pool(name, t, (F32,), t.shape[1:], y) for name, t in (("state", state), ("scale", scale))}
    _run(op, y.device, **members, **views, out_dtype=F32, out=y, out_stride=y.stride(0))


class Ssd(NamedTuple):
    """Groups of heads that share B and C; limits of dt."""
    groups: int
    dt_min: float = 0.0
    dt_max: float = float("inf")


class _Ssd:
    """The scan of Mamba-2. Options: Ssd."""

    @staticmethod
    def members(options, batch, x, dt, b, c, a, dt_bias, d):
        heads = a.shape[0]
        return dict(in_dtype=F32, x=x, dt_raw=dt, b=b, cc=c, x_stride=x.stride(0), dt_stride=dt.stride(0),
                    b_stride=b.stride(0), c_stride=c.stride(0), a=a, dt_bias=_wide(dt_bias), d=_wide(d),
                    dt_min=options.dt_min, dt_max=options.dt_max, rows=batch.rows, n_heads=heads,
                    head_dim=x.shape[1] // heads, n_groups=options.groups, n_states=b.shape[1] // options.groups,
                    **batch.span_members())

    @staticmethod
    def forward(numerics, options, batch, x, dt, b, c, a_log, dt_bias, d):
        a, y = _from_log("rates", a_log), _empty(x, *x.shape)
        members = _Ssd.members(options, batch, x, dt, b, c, a, dt_bias, d)
        _scan("ssd", batch, y, members, members["n_states"] * members["head_dim"])
        return y, (a,)

    @staticmethod
    def gradient(options, batch, dy, inputs, a, dt_bias, d, outputs):
        """Writes the gradients of x, dt, B and C; returns those of A_log, dt_bias and d."""
        da, ddt_bias, dd = _zeros_like(a, dt_bias, d)
        dx, ddt, db, dc = outputs
        _run("ssd_backward", dy.device, **_Ssd.members(options, batch, *inputs, a, dt_bias, d), dout=dy,
             dout_stride=dy.stride(0), dx=dx, db=db, dcc=dc, ddt=ddt, ddt_dtype=F32, dx_stride=dx.stride(0),
             db_stride=db.stride(0), dc_stride=dc.stride(0), ddt_stride=ddt.stride(0), da=da, ddt_bias=ddt_bias, dd=dd,
             continued=True)
        return da * a, ddt_bias, dd

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, dt, b, c, a_log, dt_bias, d):
        inputs = (x, dt, b, c)
        outputs = [_empty(x, *t.shape) for t in inputs]
        vectors = _Ssd.gradient(options, batch, dy, inputs, *kept, dt_bias, d, outputs)
        return outputs[0], (*outputs[1:], *vectors)


class _GatedNorm:
    """rms(x * silu(z)) over groups of columns. Options: how many groups."""

    @staticmethod
    def members(numerics, groups, x, z, w):
        return dict(x=x, z=z, x_stride=x.stride(0), z_stride=z.stride(0), w=_wide(w), eps=numerics.eps,
                    rows=x.shape[0], dim=x.shape[1], groups=groups)

    @staticmethod
    def forward(numerics, groups, batch, x, z, w):
        y = _empty(x, *x.shape, dtype=numerics.activations)
        _run("gated_norm", x.device, **_GatedNorm.members(numerics, groups, x, z, w), y=y, y_dtype=y.dtype,
             y_stride=y.stride(0))
        return y, ()

    @staticmethod
    def gradient(numerics, groups, dy, x, z, w, dx, dz):
        """Writes dx and dz; returns the gradient of w."""
        (dw,), scale = _zeros_like(w), _empty(x, x.shape[0], groups)
        _run("gated_norm_backward", x.device, **_GatedNorm.members(numerics, groups, x, z, w), dy=dy,
             dy_stride=dy.stride(0), dx=dx, dx_stride=dx.stride(0), dz=dz, dz_dtype=F32, dz_stride=dz.stride(0), dw=dw,
             scale=scale)
        return dw

    @staticmethod
    def backward(numerics, groups, batch, dy, x, kept, z, w):
        dx, dz = _empty(x, *x.shape), _empty(x, *x.shape)
        return dx, (dz, _GatedNorm.gradient(numerics, groups, dy, x, z, w, dx, dz))


class _Mamba2:
    """in_proj to z | x | B | C | dt; convolution of x | B | C; scan; norm behind the gate z; out_proj. Options: Ssd."""

    @staticmethod
    def sizes(conv_w, a_log, out_w):
        """Columns of z, of what the convolution takes, and of dt."""
        return out_w.shape[1], conv_w.shape[0], a_log.shape[0]

    @staticmethod
    def columns(xbc, dim):
        """x, B and C."""
        return xbc.split((dim, (xbc.shape[1] - dim) // 2, (xbc.shape[1] - dim) // 2), dim=1)

    @staticmethod
    def forward(numerics, options, batch, x, in_w, in_bias, conv_w, conv_bias, dt_bias, a_log, d, norm, out_w,
                out_bias):
        projected = _product(x, in_w, _wide(in_bias), _empty(x, x.shape[0], in_w.shape[0]), numerics.code)
        z, raw, dt = projected.split(_Mamba2.sizes(conv_w, a_log, out_w), dim=1)
        xbc = _convolve(numerics, batch, raw, conv_w, conv_bias)
        u, b, c = _Mamba2.columns(xbc, z.shape[1])
        scanned, (a,) = _Ssd.forward(numerics, options, batch, u, dt, b, c, a_log, dt_bias, d)
        normed, _ = _GatedNorm.forward(numerics, options.groups, batch, scanned, z, norm)
        y = _product(normed, out_w, _wide(out_bias), _empty(x, x.shape[0], out_w.shape[0]), numerics.code)
        return y, (projected, xbc, a, scanned, normed)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, in_w, in_bias, conv_w, conv_bias, dt_bias, a_log, d, norm,
                 out_w, out_bias):
        projected, xbc, a, scanned, normed = kept
        profile, offsets, sizes = numerics.code, batch.offsets, _Mamba2.sizes(conv_w, a_log, out_w)
        din_bias, dout_bias = _zeros_like(in_bias, out_bias)
        dprojected, dxbc, dscanned = _empty(x, *projected.shape), _empty(x, *xbc.shape), _empty(x, *scanned.shape)
        (z, raw, dt), (dz, draw, ddt) = (t.split(sizes, dim=1) for t in (projected, dprojected))
        dnormed = _product_input(dy, out_w, _empty(x, *normed.shape), profile)
        dout_w = _product_weight(dy, normed, profile, offsets, dout_bias)
        dnorm = _GatedNorm.gradient(numerics, options.groups, dnormed, scanned, z, norm, dscanned, dz)
        (u, b, c), (du, db, dc) = (_Mamba2.columns(t, z.shape[1]) for t in (xbc, dxbc))
        da_log, ddt_bias, dd = _Ssd.gradient(options, batch, dscanned, (u, dt, b, c), a, dt_bias, d, (du, ddt, db, dc))
        dconv_w, dconv_bias = _convolve_backward(numerics, batch, raw, conv_w, conv_bias, dxbc, draw)
        din_w = _product_weight(dprojected, x, profile, offsets, din_bias)
        dx = _product_input(dprojected, in_w, _empty(x, *x.shape), profile)
        return dx, (din_w, din_bias, dconv_w, dconv_bias, ddt_bias, da_log, dd, dnorm, dout_w, dout_bias)


# ---- gated delta rule ----


class _Delta:
    """The rule of rows q, k, v, a and b. Options: how many key heads."""

    @staticmethod
    def members(key_heads, batch, q, k, v, a, b, rate, dt_bias):
        heads = rate.shape[0]
        return dict(in_dtype=F32, q=q, k=k, v=v, a=a, b=b, q_stride=q.stride(0), k_stride=k.stride(0),
                    v_stride=v.stride(0), a_stride=a.stride(0), b_stride=b.stride(0), rate=rate, dt_bias=_wide(dt_bias),
                    rows=batch.rows, n_heads=heads, n_key_heads=key_heads, key_dim=q.shape[1] // key_heads,
                    value_dim=v.shape[1] // heads, **batch.span_members())

    @staticmethod
    def forward(numerics, key_heads, batch, q, k, v, a, b, a_log, dt_bias):
        rate, y = _from_log("rates", a_log), _empty(v, *v.shape)
        members = _Delta.members(key_heads, batch, q, k, v, a, b, rate, dt_bias)
        _scan("delta", batch, y, members, members["key_dim"] * members["value_dim"])
        return y, (rate,)

    @staticmethod
    def gradient(key_heads, batch, dy, inputs, rate, dt_bias, outputs):
        """Writes the gradients of q, k, v, a and b; returns those of A_log and dt_bias."""
        drate, ddt_bias = _zeros_like(rate, dt_bias)
        into = {f"d{name}": t for name, t in zip("qkvab", outputs)}
        _run("delta_backward", dy.device, **_Delta.members(key_heads, batch, *inputs, rate, dt_bias), dout=dy,
             dout_stride=dy.stride(0), **into, **{f"{name}_stride": t.stride(0) for name, t in into.items()},
             dab_dtype=F32, drate=drate, ddt_bias=ddt_bias, continued=True)
        return drate * rate, ddt_bias

    @staticmethod
    def backward(numerics, key_heads, batch, dy, q, kept, k, v, a, b, a_log, dt_bias):
        inputs = (q, k, v, a, b)
        outputs = [_empty(q, *t.shape) for t in inputs]
        vectors = _Delta.gradient(key_heads, batch, dy, inputs, *kept, dt_bias, outputs)
        return outputs[0], (*outputs[1:], *vectors)


class DeltaHeads(NamedTuple):
    """key_heads of key_dim columns; by_head: one product gives q, k, v and z of each key head in turn, another b and
    a."""
    key_heads: int
    key_dim: int
    by_head: bool = False


class _DeltaRule:
    """Products to q | k | v, z, b and a; convolution of q | k | v; the rule; norm of each head, then the gate z;
    out_proj. Options: DeltaHeads. projections: of qkv, z, b and a, or by head of qkvz and ba."""

    @staticmethod
    def by_head(options, qkv, z, ba):
        """Columns of what the two products by head give, in their order: those of qkvz, those of ba. Each [rows,
        key heads, columns]."""
        keys, heads = options.key_heads * options.key_dim, options.key_heads
        parts = (*qkv.split((keys, keys, qkv.shape[1] - 2 * keys), dim=1), z, *ba.chunk(2, dim=1))
        parts = [part.unflatten(1, (heads, part.shape[1] // heads)) for part in parts]
        return parts[:4], parts[4:]

    @staticmethod
    def project(numerics, options, x, dim, heads, projections):
        """q | k | v, z and b | a."""
        widths = (2 * options.key_heads * options.key_dim + dim, dim, 2 * heads)
        qkv, z, ba = (_empty(x, x.shape[0], n) for n in widths)
        if not options.by_head:
            for w, out in zip(projections, (qkv, z, *ba.chunk(2, dim=1))):
                _product(x, w, None, out, numerics.code)
            return qkv, z, ba
        for w, parts in zip(projections, _DeltaRule.by_head(options, qkv, z, ba)):
            whole = _product(x, w, None, _empty(x, x.shape[0], w.shape[0]), numerics.code)
            whole = whole.unflatten(1, (options.key_heads, -1))
            for part, columns in zip(parts, whole.split([part.shape[2] for part in parts], dim=2)):
                part.copy_(columns)
        return qkv, z, ba

    @staticmethod
    def project_backward(numerics, options, batch, x, dqkv, dz, dba, projections):
        """dx, and the gradients of the projections."""
        grads, dx = (dqkv, dz, *dba.chunk(2, dim=1)), _empty(x, *x.shape)
        if options.by_head:
            grads = [torch.cat(parts, dim=2).flatten(1) for parts in _DeltaRule.by_head(options, dqkv, dz, dba)]
        for i, (w, d) in enumerate(zip(projections, grads)):
            _product_input(d, w, dx, numerics.code, add=i > 0)
        return dx, [_product_weight(d, x, numerics.code, batch.offsets) for d in grads]

    @staticmethod
    def rule_inputs(options, qkv, ba):
        keys = options.key_heads * options.key_dim
        b, a = ba.chunk(2, dim=1)
        return (*qkv.split((keys, keys, qkv.shape[1] - 2 * keys), dim=1), a, b)

    @staticmethod
    def forward(numerics, options, batch, x, conv_w, dt_bias, a_log, norm, out_w, *projections):
        dim, heads = out_w.shape[1], a_log.shape[0]
        raw, z, ba = _DeltaRule.project(numerics, options, x, dim, heads, projections)
        qkv = _convolve(numerics, batch, raw, conv_w, None)
        out, (rate,) = _Delta.forward(numerics, options.key_heads, batch, *_DeltaRule.rule_inputs(options, qkv, ba),
                                      a_log, dt_bias)
        normed = _empty(x, *out.shape)
        _norm(out.view(-1, dim // heads), _wide(norm), numerics.eps, normed.view(-1, dim // heads))
        gated = _activate(z, normed, numerics.activations)
        y = _product(gated, out_w, None, _empty(x, x.shape[0], out_w.shape[0]), numerics.code)
        return y, (raw, z, ba, qkv, rate, out, normed, gated)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, conv_w, dt_bias, a_log, norm, out_w, *projections):
        raw, z, ba, qkv, rate, out, normed, gated = kept
        size = out.shape[1] // a_log.shape[0]
        dgated = _product_input(dy, out_w, _empty(x, *gated.shape), numerics.code)
        dout_w = _product_weight(dy, gated, numerics.code, batch.offsets)
        dz, dnormed = _activate_backward(z, normed, dgated)
        dout, dqkv, dba, draw = (_empty(x, *t.shape) for t in (out, qkv, ba, raw))
        dnorm = _norm_backward(out.view(-1, size), _wide(norm), numerics.eps, dnormed.view(-1, size),
                               dout.view(-1, size))
        inputs, outputs = (_DeltaRule.rule_inputs(options, *both) for both in ((qkv, ba), (dqkv, dba)))
        da_log, ddt_bias = _Delta.gradient(options.key_heads, batch, dout, inputs, rate, dt_bias, outputs)
        dconv_w, _ = _convolve_backward(numerics, batch, raw, conv_w, None, dqkv, draw)
        dx, dprojections = _DeltaRule.project_backward(numerics, options, batch, x, draw, dz, dba, projections)
        return dx, (dconv_w, ddt_bias, da_log, dnorm, dout_w, *dprojections)
