"""Packed rows of several sequences, and the ops on them without autograd: what parts of layers (_attention.py,
_feed_forward.py, _recurrent.py) are made of. x may have rows apart."""

import ctypes
from dataclasses import dataclass
from typing import Optional

import torch

from . import _abi
from ._frequencies import frequencies_of
from ._run import DTYPES, _aligned, row_stride, run
from .ops import spans as make_spans

F32, BF16 = torch.float32, torch.bfloat16
PAGE = 64  # tokens of a page of keys and values; carries no bit
PROFILES = {"exact": _abi.EXACT, "mma16": _abi.MMA16}


@dataclass(frozen=True)
class Numerics:
    """How a model computes: profile "exact" or "mma16", activations torch.float32 or torch.bfloat16, eps of its norms;
    norms_above_one: weights of norms before parts and of heads are stored as what they have above 1."""
    profile: str = "exact"
    activations: torch.dtype = F32
    eps: float = 1e-6
    norms_above_one: bool = False

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

    def norm(self, w):
        """A norm's weight as it multiplies, float32; None stays None. Its gradient is that of what is stored."""
        w = _wide(w)
        return 1.0 + w if self.norms_above_one and w is not None else w


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
        return cls(*frequencies_of(fields, head_dim))


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


# ---- ops ----


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


def _sigmoid_members(x, gate):
    return dict(x=x, x_dtype=x.dtype, x_stride=_stride(x), gate=gate, gate_stride=_stride(gate), rows=x.shape[0],
                dim=x.shape[1], gates=gate.shape[1])


def _sigmoid_gate(x, gate, y):
    """y = x sigmoid(gate); gate has a column for each of x, or for so many equal parts of them."""
    _run("sigmoid_gate", x.device, **_sigmoid_members(x, gate), y=y, y_dtype=y.dtype, y_stride=_stride(y))
    return y


def _sigmoid_gate_backward(x, gate, dy, dx, dgate):
    _run("sigmoid_gate_backward", x.device, **_sigmoid_members(x, gate), dy=dy, dy_stride=_stride(dy), dx=dx,
         dx_stride=_stride(dx), dgate=dgate, dgate_dtype=F32, dgate_stride=_stride(dgate))


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
