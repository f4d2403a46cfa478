"""Feed-forwards as parts of a layer, dense and as a mixture of experts, in the form of _attention.py. The order of ops
is src/model/part_ffn.c."""

from typing import NamedTuple

import torch

from . import _abi
from ._packed import (F32, _empty, _product, _product_input, _product_weight, _run, _sigmoid_gate,
                      _sigmoid_gate_backward, _wide)


def _activate(gate, up, dtype):
    """silu(gate) * up, or relu2(up) without a gate."""
    out = _empty(up, *up.shape, dtype=dtype)
    members = dict(y=out, y_dtype=dtype, rows=up.shape[0], dim=up.shape[1])
    if gate is None:
        _run("relu2", up.device, x=up, **members)
    else:
        _run("swiglu", up.device, gate=gate, up=up, **members)
    return out


def _activate_backward(gate, up, dgated):
    """dgate, in the memory of dgated, or None; dup."""
    dup = _empty(up, *up.shape)
    if gate is None:
        _run("relu2_backward", up.device, x=up, dy=dgated, dx=dup, dx_dtype=F32, rows=up.shape[0], dim=up.shape[1])
        return None, dup
    _run("swiglu_backward", up.device, gate=gate, up=up, dy=dgated, dgate=dgated, dup=dup, rows=up.shape[0],
         dim=up.shape[1])
    return dgated, dup


class _FeedForward:
    """down(silu(gate x) * (up x)), or without a gate down(relu2(up x))."""

    @staticmethod
    def forward(numerics, options, batch, x, gate_w, up_w, down_w):
        gate, up = (None if w is None else _product(x, w, None, _empty(x, x.shape[0], w.shape[0]), numerics.code)
                    for w in (gate_w, up_w))
        gated = _activate(gate, up, numerics.activations)
        return _product(gated, down_w, None, _empty(x, x.shape[0], down_w.shape[0]), numerics.code), (gate, up, gated)

    @staticmethod
    def through(numerics, batch, dy, x, kept, weights, dx, add=False):
        """dx (= or +=) the gradient of x; returns those of the weights."""
        (gate, up, gated), down_w = kept, weights[-1]
        profile, offsets, grads = numerics.code, batch.offsets, []
        ddown = _product_weight(dy, gated, profile, offsets)
        back = _activate_backward(gate, up, _product_input(dy, down_w, _empty(x, *up.shape), profile))
        for d, w in zip(back, weights):
            grads.append(None if d is None else _product_weight(d, x, profile, offsets))
            if d is not None:
                _product_input(d, w, dx, profile, add=add)
                add = True
        return (*grads, ddown)

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, *weights):
        dx = _empty(x, *x.shape)
        return dx, _FeedForward.through(numerics, batch, dy, x, kept, weights, dx)


class _Relu2:
    @staticmethod
    def forward(numerics, options, batch, x):
        return _activate(None, x, numerics.activations), ()

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept):
        return _activate_backward(None, x, dy)[1], ()


class _SigmoidGate:
    """x sigmoid(gate)."""

    @staticmethod
    def forward(numerics, options, batch, x, gate):
        return _sigmoid_gate(x, gate, _empty(x, *x.shape, dtype=numerics.activations)), ()

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, gate):
        dx, dgate = _empty(x, *x.shape), _empty(x, *gate.shape)
        _sigmoid_gate_backward(x, gate, dy, dx, dgate)
        return dx, (dgate,)


class Routing(NamedTuple):
    """top_k experts of a row; reweighs: these alone share the weight (src/op/moe.h), or sigmoids are normalised. groups
    above 0: by sigmoids times scale, of whose groups of experts top_groups stay (src/op/moe_sigmoid.h)."""
    top_k: int
    reweighs: bool = False
    groups: int = 0
    top_groups: int = 0
    scale: float = 1.0


class _Experts:
    """A mixture of experts: the router's top choices of each row, in the order of their experts, and where there is one
    the expert of all rows. Options: Routing.

    up [experts, 2 * inner, hidden] holds gate above up, or [experts, inner, hidden] up alone; down [experts, hidden,
    inner]. bias [experts] corrects the choice of routing by sigmoids. shared: gate (None: relu2), up and down of the
    expert of all rows, and the column [1, hidden] whose sigmoid multiplies it, or None; all None without it."""

    @staticmethod
    def route(x, router, bias, options):
        top_k, n = options.top_k, router.shape[0]
        logits = _product(x, router, None, _empty(x, x.shape[0], router.shape[0]), _abi.EXACT)
        rows = x.shape[0]
        expert, weight = _empty(x, rows, top_k, dtype=torch.int32), _empty(x, rows, top_k)
        members = dict(logits=logits, rows=rows, n_experts=n, top_k=top_k, expert=expert, weight=weight)
        if options.groups:
            _run("moe_sigmoid_route", x.device, **members, bias=_wide(bias), n_groups=options.groups,
                 top_groups=options.top_groups, normalised=options.reweighs, scale=options.scale)
        else:
            _run("moe_route", x.device, **members)
            if options.reweighs:
                _run("moe_reweigh", x.device, **members)
        pick, row, place = (_empty(x, rows * top_k, dtype=torch.int64) for _ in range(3))
        offsets = _empty(x, n + 1, dtype=torch.int64)
        _run("moe_place", x.device, expert=expert, rows=rows, n_experts=n, top_k=top_k, pick=pick, row=row, place=place,
             offsets=offsets)
        return logits, expert, weight, pick, row, place, offsets

    @staticmethod
    def halves(up):
        """Of what the experts' first products give: gate, None where there is none, and up."""
        return (None, up[0]) if len(up) == 1 else up

    @staticmethod
    def forward(numerics, options, batch, x, router, bias, gate_up, down, *shared):
        inner, n = down.shape[2], down.shape[0]
        logits, expert, weight, pick, row, place, offsets = _Experts.route(x, router, bias, options)
        picked_x, picked_weight = x[row], weight.view(-1)[pick]
        gate_and_up = [_empty(x, row.shape[0], inner) for _ in range(gate_up.shape[1] // inner)]
        for e in range(n):
            for w, out in zip(gate_up[e].split(inner), gate_and_up):
                _product(picked_x, w, None, out, numerics.code, offsets[e:])
        gated = _activate(*_Experts.halves(gate_and_up), numerics.activations)
        picked_y, y = _empty(x, row.shape[0], x.shape[1]), torch.zeros(x.shape, dtype=F32, device=x.device)
        for e in range(n):
            _product(gated, down[e], None, picked_y, numerics.code, offsets[e:])
        for e in range(n):
            _run("moe_combine", x.device, y=picked_y, rows=row, weight=picked_weight, acc=y, n=row.shape[0],
                 dim=x.shape[1], range=offsets[e:])
        kept = (logits, expert, row, place, offsets, picked_x, picked_weight, gated, picked_y, *gate_and_up)
        if shared[1] is None:
            return y, kept
        own, of_shared = _Experts.shared(numerics, batch, x, *shared)
        return y + own, (*kept, *of_shared)

    @staticmethod
    def shared(numerics, batch, x, gate_w, up_w, down_w, column):
        """What the expert of all rows adds, and what its gradient needs."""
        y, kept = _FeedForward.forward(numerics, None, batch, x, gate_w, up_w, down_w)
        if column is None:
            return y, kept
        taken = _product(x, column, None, _empty(x, x.shape[0], 1), numerics.code)
        return _sigmoid_gate(y, taken, _empty(x, *y.shape)), (*kept, y, taken)

    @staticmethod
    def shared_backward(numerics, batch, dy, x, dx, kept, gate_w, up_w, down_w, column):
        """Adds to dx; returns the gradients of the expert of all rows."""
        gate, up, gated, *of_column = kept
        if column is None:
            return (*_FeedForward.through(numerics, batch, dy, x, kept, (gate_w, up_w, down_w), dx, True), None)
        shared_y, taken = of_column
        dshared, dtaken = _empty(x, *shared_y.shape), _empty(x, *taken.shape)
        _sigmoid_gate_backward(shared_y, taken, dy, dshared, dtaken)
        grads = _FeedForward.through(numerics, batch, dshared, x, (gate, up, gated), (gate_w, up_w, down_w), dx, True)
        _product_input(dtaken, column, dx, numerics.code, add=True)
        return (*grads, _product_weight(dtaken, x, numerics.code, batch.offsets))

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
    def route_backward(options, logits, expert, dweight):
        dlogits = torch.empty_like(logits)
        members = dict(logits=logits, rows=logits.shape[0], n_experts=logits.shape[1], top_k=options.top_k,
                       expert=expert, d_weight=dweight, dlogits=dlogits)
        if options.groups:
            _run("moe_sigmoid_route_backward", logits.device, **members, normalised=options.reweighs,
                 scale=options.scale)
        else:
            _run("moe_reweigh_backward" if options.reweighs else "moe_route_backward", logits.device, **members)
        return dlogits

    @staticmethod
    def backward(numerics, options, batch, dy, x, kept, router, bias, gate_up, down, *shared):
        inner, n, profile = down.shape[2], down.shape[0], numerics.code
        logits, expert, row, place, offsets, picked_x, picked_weight, gated, picked_y, *kept = kept
        count = gate_up.shape[1] // inner
        gate, up = _Experts.halves(kept[:count])
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
        back = [d for d in _activate_backward(gate, up, dgated) if d is not None]
        for e, (at, picked, sequences) in enumerate(groups):
            for d, w, dw in zip(back, gate_up[e].split(inner), dgate_up[e].split(inner)):
                _product_weight(d[at], picked_x[at], profile, sequences, dw=dw, picked=picked)
                _product_input(d[at], w, dx, profile, add=True, rows=row[at], picked=picked)
        dlogits = _Experts.route_backward(options, logits, expert, dpicked_weight[place])
        drouter = _product_weight(dlogits, x, _abi.EXACT, batch.offsets)
        _product_input(dlogits, router, dx, _abi.EXACT, add=True)
        dshared = (None,) * 4
        if shared[1] is not None:
            dshared = _Experts.shared_backward(numerics, batch, dy, x, dx, kept[count:], *shared)
        return dx, (drouter, None, dgate_up, ddown, *dshared)
