"""The ops as torch custom ops (namespace "lockstep") with shapes for compilers and gradients, and the functions that
people call. Each op runs on the device of its tensors, CPU or CUDA, and gives the same bits on both.

Common to all. Tensors whose rows are long are read where they lie: [*, width] with contiguous, evenly spaced rows, such
as a column slice of a wider tensor; anything else is a ValueError, never a silent copy. Wrong types are a TypeError,
wrong shapes, strides and devices a ValueError that names the argument. What only the device can see (targets,
temperatures, offsets, spans) is checked there before anything is written:

    check="wait"    the call waits for that check and raises LockstepError. Not while a CUDA stream is captured.
    check="stream"  nothing waits; lockstep.check() raises later. On the CPU the same as "wait".

The arithmetic, to the bit, is NUMERICS.md and src/op/*.h of the Lockstep sources."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _abi
from ._run import new_pool, pool, require, row_stride, rows, run

# log2(e) rounded to float32, the constant LS_LOG2E.
LOG2E = float.fromhex("0x1.715476p+0")

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_STORED = (torch.float32, torch.bfloat16)
_F32 = (torch.float32,)
_I64 = (torch.int64,)
_MASK = (torch.bool, torch.uint8)


def _small(name, tensor, dtypes, shape, like):
    """A checked contiguous vector or matrix of parameters; None stays None."""
    if tensor is None:
        return None
    require(name, tensor, dtypes, shape, like)
    return tensor.contiguous()


def _with_gradient(op, save, gradient):
    """The op with its gradient. Compilers get it from the op; elsewhere an autograd.Function around the op keeps its
    books in a third of the time, and where nothing asks for a gradient there are none to keep."""
    op.register_autograd(gradient, setup_context=save)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):  # with a setup_context apart, torch binds all arguments to a signature at every call
            output = op(*inputs)
            save(ctx, inputs, output)
            return output

        backward = staticmethod(gradient)

    def call(*inputs):
        wanted = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        return (Differentiable.apply if wanted and not torch.compiler.is_compiling() else op)(*inputs)

    return call


# ---- selected-token log-probability ----


def _logprob_inputs(logits, targets, mask, temperature, ignore_index):
    stride = rows("logits", logits, _FLOATS)
    lead, vocab = logits.shape[:-1], logits.shape[-1]
    if not 1 <= vocab <= _abi.LOGPROB_VOCAB_MAX:
        raise ValueError(f"logits: a vocabulary of {vocab}; 1 to {_abi.LOGPROB_VOCAB_MAX} is taken")
    return dict(
        logits=logits, dtype=logits.dtype, rows=lead.numel(), vocab=vocab, row_stride=stride,
        targets=_small("targets", targets, _I64, lead, logits), ignore_index=ignore_index,
        mask=_small("mask", mask, _MASK, lead, logits),
        temperature=_small("temperature", temperature, _F32, lead, logits))


@torch.library.custom_op("lockstep::logprob", mutates_args=())
def _logprob(logits: Tensor, targets: Tensor, mask: Optional[Tensor], temperature: Optional[Tensor], ignore_index: int,
             check: str) -> Tuple[Tensor, Tensor, Tensor]:
    inputs = _logprob_inputs(logits, targets, mask, temperature, ignore_index)
    value, lse, entropy = (logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(3))
    if inputs["rows"] > 0:
        run("logprob", logits.device, check, **inputs, logprob=value, lse=lse, entropy=entropy)
    return value, lse, entropy


@_logprob.register_fake
def _(logits, targets, mask, temperature, ignore_index, check):
    return tuple(logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(3))


@torch.library.custom_op("lockstep::logprob_backward", mutates_args=())
def _logprob_backward(logits: Tensor, targets: Tensor, mask: Optional[Tensor], temperature: Optional[Tensor],
                      lse: Tensor, entropy: Tensor, d_logprob: Optional[Tensor], d_lse: Optional[Tensor],
                      d_entropy: Optional[Tensor], ignore_index: int, check: str) -> Tensor:
    inputs = _logprob_inputs(logits, targets, mask, temperature, ignore_index)
    vectors = dict(lse=lse, entropy=entropy, d_logprob=d_logprob, d_lse=d_lse, d_entropy=d_entropy)
    vectors = {name: _small(name, value, _F32, logits.shape[:-1], logits) for name, value in vectors.items()}
    d_logits = logits.new_empty(logits.shape)
    if inputs["rows"] > 0:
        run("logprob_backward", logits.device, check, **inputs, **vectors, d_logits=d_logits, d_stride=logits.shape[-1])
    return d_logits


@_logprob_backward.register_fake
def _(logits, *_):
    return logits.new_empty(logits.shape)


def _logprob_save(ctx, inputs, output):
    logits, targets, mask, temperature, ctx.ignore_index, ctx.check = inputs
    ctx.save_for_backward(logits, targets, mask, temperature, output[1], output[2])
    ctx.set_materialize_grads(False)


def _logprob_gradient(ctx, d_logprob, d_lse, d_entropy):
    d_logits = _logprob_backward(*ctx.saved_tensors, d_logprob, d_lse, d_entropy, ctx.ignore_index, ctx.check)
    return d_logits, None, None, None, None, None


_logprob_call = _with_gradient(_logprob, _logprob_save, _logprob_gradient)


def logprob(logits, targets, mask=None, temperature=None, ignore_index=-100, check="wait"):
    """Log-probability of one selected token for each row of logits, with the log of the sum of exponentials and the
    entropy of the row's distribution.

    logits       [*, vocab] float32, bfloat16 or float16, vocab up to 1,000,000
    targets      [*] int64, each in [0, vocab) or ignore_index
    mask         [*] bool or uint8, 0 leaves a row out; None takes all
    temperature  None for 1, a number, or [*] float32; finite and > 0. No gradient flows into it.

    Returns (logprob, lse, entropy), each [*] float32, of softmax(logits / temperature). A row left out gives 0 in all
    three and its logits are not read. All three carry gradients into logits, in the type of logits.

    Bits: a row's results depend on that row alone. Contract: src/op/logprob.h. Peers: -cross_entropy, logsumexp and
    Categorical.entropy of torch, whose sums have no fixed order."""
    if isinstance(temperature, Tensor):
        if temperature.requires_grad:
            raise ValueError("temperature: requires a gradient, which lockstep.logprob does not compute")
    elif temperature is not None:
        temperature = torch.full(logits.shape[:-1], float(temperature), dtype=torch.float32, device=logits.device)
    return _logprob_call(logits, targets, mask, temperature, ignore_index, check)


def selected_logprob(logits, targets, temperature=None, ignore_index=-100, check="wait"):
    """In place of -torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none").

    logits [*, vocab], the vocabulary last (cross_entropy wants it second), targets [*] int64; returns [*] float32.
    Differences: no float32 copy of the logits is made; targets are indices only, and one outside the vocabulary that is
    not ignore_index raises LockstepError; a row of -inf gives NaN; label smoothing and class weights do not exist."""
    return logprob(logits, targets, None, temperature, ignore_index, check)[0]


# ---- sums over sequences ----


def _check_offsets(offsets, like):
    offsets = _small("offsets", offsets, _I64, None, like)
    if offsets.dim() != 1 or offsets.shape[0] < 1:
        raise ValueError(f"offsets: shape {tuple(offsets.shape)}; (n_sequences + 1,) is wanted")
    return offsets


@torch.library.custom_op("lockstep::sequence_sum", mutates_args=())
def _sequence_sum(logprob: Tensor, mask: Optional[Tensor], offsets: Optional[Tensor], check: str) -> Tensor:
    logprob = _small("logprob", logprob, _F32, None, logprob)
    if logprob.dim() != (2 if offsets is None else 1):
        raise ValueError(f"logprob: shape {tuple(logprob.shape)}; (n_sequences, length), or (rows,) with offsets, is "
                         "wanted")
    mask = _small("mask", mask, _MASK, logprob.shape, logprob)
    length = 0
    if offsets is None:
        n, length = logprob.shape
    else:
        offsets = _check_offsets(offsets, logprob)
        n = offsets.shape[0] - 1
    out = logprob.new_zeros(n)
    if n > 0 and logprob.numel() > 0:
        run("sequence_sum", logprob.device, check, logprob=logprob, mask=mask, offsets=offsets, length=length,
            n_sequences=n, rows=logprob.numel(), out=out)
    return out


@_sequence_sum.register_fake
def _(logprob, mask, offsets, check):
    return logprob.new_empty(logprob.shape[0] if offsets is None else offsets.shape[0] - 1)


def _sequence_sum_save(ctx, inputs, output):
    logprob, mask, offsets, _ = inputs
    ctx.shape = logprob.shape
    ctx.save_for_backward(mask, offsets)


def _sequence_sum_gradient(ctx, d_out):
    mask, offsets = ctx.saved_tensors
    if offsets is None:
        grad = d_out[:, None].expand(ctx.shape)
    else:
        # The sequence of each row; rows before the first or after the last get 0.
        row = torch.arange(ctx.shape[0], device=d_out.device)
        sequence = torch.searchsorted(offsets, row, right=True)
        grad = torch.nn.functional.pad(d_out, (1, 1))[sequence]
    return grad if mask is None else grad * mask.ne(0), None, None, None


_sequence_sum_call = _with_gradient(_sequence_sum, _sequence_sum_save, _sequence_sum_gradient)


def sequence_sum(logprob, mask=None, offsets=None, check="wait"):
    """Sums of log-probabilities by sequence, in a tree that depends on each sequence's kept tokens only.

    logprob  [n_sequences, length] float32, or [rows] with offsets
    mask     shape of logprob, bool or uint8, 0 leaves a token out; None takes all
    offsets  [n_sequences + 1] int64 ascending: sequence s is the rows [offsets[s], offsets[s+1])

    Returns [n_sequences] float32. Padding on either side or in between, padded or packed layout change no bit. Carries
    gradients into logprob. Contract: src/op/logprob.h."""
    return _sequence_sum_call(logprob, mask, offsets, check)


# ---- spans and whole sequences ----


def spans(row, n_rows, pos, slot, device=None):
    """The spans of a call with state pools, int64 [n_spans, 5]: rows [row, row + n_rows) are tokens pos, pos + 1, ...
    of one sequence whose state lies in `slot`. A span with pos 0 reads no state; a negative slot marks padding. No two
    spans of a call share a slot or a row. Each argument is a list or an int64 tensor [n_spans].

    The tensor is the C array ls_span[n_spans]: row, n_rows, pos, slot, and table, which only attention reads."""
    row, n_rows, pos, slot = (torch.as_tensor(value, dtype=torch.int64, device=device) for value in
                              (row, n_rows, pos, slot))
    # The C slot is 32 bits wide: a larger one must not come back as a small one.
    slot = slot.clamp(-1, 2**31 - 1)
    return torch.stack((row, n_rows, pos, slot, torch.zeros_like(row)), dim=1)


def _span_members(tensor, max_rows, like):
    require("spans", tensor, _I64, (tensor.shape[0] if tensor.dim() else 0, 5), like)
    if not tensor.is_contiguous():
        raise ValueError(f"spans: strides {tensor.stride()}; lockstep.spans() makes them")
    if max_rows < 0:
        raise ValueError(f"max_rows: {max_rows} is negative")
    return dict(spans=tensor, n_spans=tensor.shape[0], span_rows_max=max_rows)


def _whole(first, offsets, max_length):
    """Span members of whole sequences. Without offsets first [*, length, width] holds them side by side."""
    if offsets is not None:
        offsets = _check_offsets(offsets, first)
        n, row, n_rows = offsets.shape[0] - 1, offsets[:-1], offsets[1:] - offsets[:-1]
        made = spans(row, n_rows, torch.zeros_like(row), torch.arange(n, device=first.device))
    else:
        if first.dim() < 2:
            raise ValueError(f"shape {tuple(first.shape)}; (*, length, width) is wanted")
        n, max_length = first.shape[:-2].numel(), first.shape[-2]
        made = _even_spans(n, max_length, first.device)
    return _span_members(made, max_length, first)


_EVEN_SPANS, _EVEN_SPANS_MAX = {}, 64


def _even_spans(n, length, device):
    """Spans of n sequences of one length side by side, only read. The first ones are kept on their device: a copy from
    the host's memory waits for the stream, and kernels and their launches would take turns. They are there for all
    streams before they are kept, and stay."""
    key = n, length, device
    if key in _EVEN_SPANS:
        return _EVEN_SPANS[key]
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    i = torch.arange(n, device=device)
    made = spans(i * length, torch.full_like(i, length), torch.zeros_like(i), i)
    if not capturing and len(_EVEN_SPANS) < _EVEN_SPANS_MAX:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        _EVEN_SPANS[key] = made
    return made


def _n_sequences(first, offsets):
    return first.shape[:-2].numel() if offsets is None else offsets.shape[0] - 1


def _row_output(like, shape, dtype, offsets):
    """Rows that an op writes. Offsets may leave rows out, which then hold 0."""
    return (like.new_empty if offsets is None else like.new_zeros)(shape, dtype=dtype)


# ---- selective scan ----


def _scan_inputs(u, dt, a2, b, c, d, z, dt_bias, softplus):
    lead, dim = u.shape[:-1], u.shape[-1]
    strides = dict(u_stride=rows("u", u, _STORED))
    same = (u.dtype,)
    if a2.dim() != 2 or not 1 <= a2.shape[1] <= _abi.SCAN_STATES_MAX:
        raise ValueError(f"a: shape {tuple(a2.shape)}; (dim, states) with 1 to {_abi.SCAN_STATES_MAX} states is wanted")
    n_states = a2.shape[1]
    for name, tensor, width in (("dt", dt, dim), ("b", b, n_states), ("c", c, n_states), ("z", z, dim)):
        if tensor is not None:
            strides[f"{name}_stride"] = rows(name, tensor, same, (*lead, width), u)
    return dict(
        in_dtype=u.dtype, dt_activated=not softplus, u=u, dt_raw=dt, b=b, cc=c, z=z, **strides,
        a2=_small("a", a2, _F32, (dim, n_states), u), dt_bias=_small("dt_bias", dt_bias, _F32, (dim,), u),
        d=_small("d", d, _F32, (dim,), u), rows=lead.numel(), dim=dim, n_states=n_states)


@torch.library.custom_op("lockstep::selective_scan", mutates_args=())
def _selective_scan(u: Tensor, dt: Tensor, a2: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor], z: Optional[Tensor],
                    dt_bias: Optional[Tensor], offsets: Optional[Tensor], max_length: int, softplus: bool,
                    out_dtype: torch.dtype, check: str) -> Tuple[Tensor, Tensor]:
    inputs = _scan_inputs(u, dt, a2, b, c, d, z, dt_bias, softplus)
    sequences = _whole(u, offsets, max_length)
    out = _row_output(u, u.shape, out_dtype, offsets)
    state = new_pool(sequences["n_spans"], (inputs["dim"], inputs["n_states"]), torch.float32, u.device,
                     zero=offsets is not None or inputs["rows"] == 0)
    if inputs["rows"] > 0 and sequences["n_spans"] > 0:
        run("scan", u.device, check, **inputs, **sequences, out_dtype=out_dtype, out=out, out_stride=inputs["dim"],
            state=pool("state", state, _F32, state.shape[1:], u))
    return out, state.contiguous()


@_selective_scan.register_fake
def _(u, dt, a2, b, c, d, z, dt_bias, offsets, max_length, softplus, out_dtype, check):
    state = u.new_empty((_n_sequences(u, offsets), u.shape[-1], a2.shape[1]), dtype=torch.float32)
    return u.new_empty(u.shape, dtype=out_dtype), state


@torch.library.custom_op("lockstep::selective_scan_backward", mutates_args=())
def _selective_scan_backward(u: Tensor, dt: Tensor, a2: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor],
                             z: Optional[Tensor], dt_bias: Optional[Tensor], offsets: Optional[Tensor], dout: Tensor,
                             max_length: int, softplus: bool, check: str
                             ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = _scan_inputs(u, dt, a2, b, c, d, z, dt_bias, softplus)
    sequences = _whole(u, offsets, max_length)
    dout_stride = rows("dout", dout, _STORED, u.shape, u)
    any_rows = inputs["rows"] > 0 and sequences["n_spans"] > 0
    du, ddt, db, dc, dz = (None if x is None else _row_output(x, x.shape, x.dtype, offsets) for x in (u, dt, b, c, z))
    da2, dd, ddt_bias = (None if x is None else (x.new_empty if any_rows else x.new_zeros)(x.shape)
                         for x in (a2, d, dt_bias))
    if any_rows:
        run("scan_backward", u.device, check, **inputs, **sequences, dout=dout, dout_stride=dout_stride, du=du, ddt=ddt,
            db=db, dcc=dc, dz=dz, da2=da2, ddt_bias=ddt_bias, dd=dd, out_dtype=u.dtype,
            du_bf16=u.dtype == torch.bfloat16, dout_bf16=dout.dtype == torch.bfloat16)
    return tuple(like.new_empty(0) if x is None else x for x, like in
                 ((du, u), (ddt, dt), (da2, a2), (db, b), (dc, c), (dd, a2), (dz, u), (ddt_bias, a2)))


@_selective_scan_backward.register_fake
def _(u, dt, a2, b, c, d, z, dt_bias, *_):
    def made(x, like):
        return like.new_empty(0 if x is None else x.shape)

    return made(u, u), made(dt, dt), made(a2, a2), made(b, b), made(c, c), made(d, a2), made(z, u), made(dt_bias, a2)


def _selective_scan_save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:9])
    ctx.max_length, ctx.softplus, _, ctx.check = inputs[9:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _selective_scan_gradient(ctx, dout, _):
    if dout is None:
        return (None,) * 13
    inputs = ctx.saved_tensors[:8]
    grads = _selective_scan_backward(*ctx.saved_tensors, dout.contiguous(), ctx.max_length, ctx.softplus, ctx.check)
    return tuple(None if x is None else grad for x, grad in zip(inputs, grads)) + (None,) * 5


_selective_scan_call = _with_gradient(_selective_scan, _selective_scan_save, _selective_scan_gradient)


def selective_scan(u, dt, a, b, c, d=None, z=None, dt_bias=None, softplus=True, offsets=None, max_length=0,
                   out_dtype=None, check="wait"):
    """Selective scan of Mamba-1 (Gu & Dao 2023, arXiv:2312.00752) over whole sequences, token-major, with gradients.

    u, dt, z  [batch, length, dim], or [rows, dim] with offsets; float32 or bfloat16, all of one type; z may be None
    b, c      [batch, length, states], or [rows, states] with offsets; the type of u
    a         [dim, states] float32, usually -exp(A_log)
    d         [dim] float32 or None;  dt_bias [dim] float32 or None
    softplus  True: dt = softplus(dt + dt_bias). False: dt + dt_bias is used as it is.
    offsets   [n_sequences + 1] int64: sequence s is the rows [offsets[s], offsets[s+1]); other rows give 0
    max_length  with offsets, a bound of the sequences' lengths where one is known (0: none); carries no bits
    out_dtype   float32 or bfloat16; None for the type of u

    Returns (out, last_state): out like u, [n_sequences, dim, states] float32 last states. No gradient flows through
    last_state. The gradients of u, dt, b, c, z are computed in float32 and rounded once to their type.

    Bits: a sequence's results depend on that sequence alone, and are those of any chunking through `scan`. Contract:
    src/op/scan.h. Peer: selective_scan_fn of mamba_ssm, channel-major; `selective_scan_fn` here takes its arguments."""
    return _selective_scan_call(u, dt, _decay(a), b, c, d, z, dt_bias, offsets, max_length, softplus,
                                out_dtype or u.dtype, check)


def _decay(a):
    if a.dtype != torch.float32:
        raise TypeError(f"a: {a.dtype} of shape {tuple(a.shape)}; torch.float32 is taken")
    return a * LOG2E


@torch.library.custom_op("lockstep::scan", mutates_args=("state",))
def _scan(u: Tensor, dt: Tensor, a2: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor], z: Optional[Tensor],
          dt_bias: Optional[Tensor], state: Tensor, spans: Tensor, max_rows: int, softplus: bool,
          out_dtype: torch.dtype, check: str) -> Tensor:
    inputs = _scan_inputs(u, dt, a2, b, c, d, z, dt_bias, softplus)
    view = pool("state", state, _F32, (inputs["dim"], inputs["n_states"]), u)
    members = _span_members(spans, max_rows, u)
    out = u.new_zeros(u.shape, dtype=out_dtype)
    if inputs["rows"] > 0 and members["n_spans"] > 0:
        run("scan", u.device, check, **inputs, **members, out_dtype=out_dtype, out=out, out_stride=inputs["dim"],
            state=view)
    return out


@_scan.register_fake
def _(u, dt, a2, b, c, d, z, dt_bias, state, spans, max_rows, softplus, out_dtype, check):
    return u.new_empty(u.shape, dtype=out_dtype)


def scan(u, dt, a2, b, c, state, spans, d=None, z=None, dt_bias=None, softplus=True, max_rows=0, out_dtype=None,
         check="wait"):
    """The same scan for inference: packed rows of many sequences, states read from and written to a pool, in place.

    u, dt, z  [rows, dim];  b, c [rows, states];  as in selective_scan
    a2        [dim, states] float32, a * lockstep.LOG2E, made once
    state     [slots, dim, states] float32, changed in place; slots may lie apart (a slice of a wider pool)
    spans     int64 [n_spans, 5] of lockstep.spans(): prefill, chunks and decode steps together
    max_rows  a bound of the spans' rows where one is known (0: none); 1 for decode

    Returns out [rows, dim]; rows of no span hold 0. Has no gradient. Any cut of a sequence into spans gives the same
    bits."""
    return _scan(u, dt, a2, b, c, d, z, dt_bias, state, spans, max_rows, softplus, out_dtype or u.dtype, check)


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
                      return_last_state=False):
    """In place of mamba_ssm's selective_scan_fn, in its order of arguments and its channel-major shapes.

    u, delta, z  (batch, dim, length) float32 or bfloat16, all of one type
    A            (dim, state) float32, real
    B, C         (batch, state, length) or (batch, groups, state, length), the type of u; channel d reads group
                 d * groups // dim, and groups divides dim
    D, delta_bias  (dim,) float32

    Returns (batch, dim, length) in the type of u, and with return_last_state also (batch, dim, state) float32. Where
    the transpose of a tensor is contiguous, as that of a projection's output usually is, nothing is copied; other
    layouts are copied once. Groups are scanned one after the other, each as if its channels were all. Not taken, each
    with an error that says so: complex A, constant B or C (dim, state), float16. No gradient flows through the last
    state (as there)."""
    if A.is_complex():
        raise TypeError(f"A: {A.dtype}: complex A is not taken")
    if u.dim() != 3:
        raise ValueError(f"u: shape {tuple(u.shape)}; (batch, dim, length) is wanted")
    require("u", u, _STORED)
    dim = u.shape[1]
    B, C = _groups("B", B), _groups("C", C)
    groups = B.shape[1]
    if groups == 0 or dim % groups != 0:
        raise ValueError(f"B: shape {tuple(B.shape)}: {groups} groups do not divide {dim} channels")
    for name, x, shape in (("delta", delta, (dim,)), ("B", B, (groups, A.shape[-1])), ("C", C, (groups, A.shape[-1])),
                           ("z", z, (dim,))):
        if x is not None:
            require(name, x, (u.dtype,), (u.shape[0], *shape, u.shape[2]))
    u, delta, z = (None if x is None else _token_major(x) for x in (u, delta, z))
    parts = []
    for g in range(groups):
        own = slice(g * (dim // groups), (g + 1) * (dim // groups))
        rows_of = [None if x is None else x[..., own] for x in (u, delta, z)]
        of = [None if x is None else x[own] for x in (A, D, delta_bias)]
        b, c = _token_major(B[:, g]), _token_major(C[:, g])
        parts.append(selective_scan(rows_of[0], rows_of[1], of[0], b, c, of[1], rows_of[2], of[2], delta_softplus))
    out, last_state = parts[0] if groups == 1 else (torch.cat([p[0] for p in parts], 2),
                                                    torch.cat([p[1] for p in parts], 1))
    out = out.transpose(1, 2)
    return (out, last_state) if return_last_state else out


def _groups(name, x):
    if x.dim() == 2:
        raise ValueError(f"{name}: shape {tuple(x.shape)}: a constant {name} (dim, state) is not taken")
    return x[:, None] if x.dim() == 3 else x


def _token_major(x):
    x = x.transpose(1, 2)
    return x if row_stride(x) is not None else x.contiguous()


# ---- causal convolution ----


def _conv1d_inputs(x, w, bias, state_dtype):
    stride = rows("x", x, _STORED)
    dim = x.shape[-1]
    if w.dim() != 2 or not 1 <= w.shape[0] <= _abi.CONV_WIDTH_MAX:
        raise ValueError(f"w: shape {tuple(w.shape)}; (width, dim), width 1 to {_abi.CONV_WIDTH_MAX}, is wanted")
    return dict(x=x, x_dtype=x.dtype, state_dtype=state_dtype, x_stride=stride,
                w=_small("w", w, _F32, (w.shape[0], dim), x), bias=_small("bias", bias, _F32, (dim,), x),
                rows=x.shape[:-1].numel(), dim=dim, d_conv=w.shape[0])


@torch.library.custom_op("lockstep::causal_conv1d", mutates_args=())
def _causal_conv1d(x: Tensor, w: Tensor, bias: Optional[Tensor], offsets: Optional[Tensor], max_length: int,
                   out_dtype: torch.dtype, check: str) -> Tuple[Tensor, Tensor]:
    inputs = _conv1d_inputs(x, w, bias, x.dtype)
    sequences = _whole(x, offsets, max_length)
    y = _row_output(x, x.shape, out_dtype, offsets)
    state = new_pool(sequences["n_spans"], (inputs["d_conv"] - 1, inputs["dim"]), x.dtype, x.device)
    if inputs["rows"] > 0 and sequences["n_spans"] > 0:
        run("conv1d", x.device, check, **inputs, **sequences, y_dtype=out_dtype, y=y, y_stride=inputs["dim"],
            state=pool("state", state, (x.dtype,), state.shape[1:], x))
    return y, state.contiguous()


@_causal_conv1d.register_fake
def _(x, w, bias, offsets, max_length, out_dtype, check):
    return x.new_empty(x.shape, dtype=out_dtype), x.new_empty((_n_sequences(x, offsets), w.shape[0] - 1, x.shape[-1]))


@torch.library.custom_op("lockstep::causal_conv1d_backward", mutates_args=())
def _causal_conv1d_backward(x: Tensor, w: Tensor, bias: Optional[Tensor], offsets: Optional[Tensor], dy: Tensor,
                            max_length: int, check: str) -> Tuple[Tensor, Tensor, Tensor]:
    inputs = _conv1d_inputs(x, w, bias, x.dtype)
    sequences = _whole(x, offsets, max_length)
    dy_stride = rows("dy", dy, _F32, x.shape, x)
    dx = _row_output(x, x.shape, torch.float32, offsets)
    dw, dbias = (None if v is None else torch.zeros_like(v, memory_format=torch.contiguous_format) for v in (w, bias))
    if inputs["rows"] > 0 and sequences["n_spans"] > 0:
        run("conv1d_backward", x.device, check, **inputs, **sequences, dy=dy, dy_stride=dy_stride, dx=dx,
            dx_stride=inputs["dim"], dw=dw, dbias=dbias)
    return dx, dw, x.new_empty(0, dtype=torch.float32) if dbias is None else dbias


@_causal_conv1d_backward.register_fake
def _(x, w, bias, *_):
    return tuple(x.new_empty(0 if v is None else v.shape, dtype=torch.float32) for v in (x, w, bias))


def _causal_conv1d_save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.max_length, _, ctx.check = inputs[4:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _causal_conv1d_gradient(ctx, dy, _):
    if dy is None:
        return (None,) * 7
    x, w, bias, offsets = ctx.saved_tensors
    dx, dw, dbias = _causal_conv1d_backward(x, w, bias, offsets, dy.float().contiguous(), ctx.max_length, ctx.check)
    return dx.to(x.dtype), dw, None if bias is None else dbias, None, None, None, None


_causal_conv1d_call = _with_gradient(_causal_conv1d, _causal_conv1d_save, _causal_conv1d_gradient)


def causal_conv1d(x, w, bias=None, offsets=None, max_length=0, out_dtype=None, check="wait"):
    """Causal depthwise convolution, then SiLU, over whole sequences, token-major, with gradients.

    x     [batch, length, dim], or [rows, dim] with offsets; float32 or bfloat16
    w     [width, dim] float32, width up to 16, the newest tap last: torch's Conv1d weight [dim, 1, width] is
          weight.squeeze(1).t()
    bias  [dim] float32 or None
    offsets, max_length, out_dtype as in selective_scan

    Returns (y, last_state): y like x, last_state [n_sequences, width - 1, dim] in the type of x, the last inputs,
    oldest first, 0 before the sequence. No gradient flows through last_state. Contract: src/op/conv1d.h. Peer:
    causal_conv1d_fn with activation "silu"."""
    return _causal_conv1d_call(x, w, bias, offsets, max_length, out_dtype or x.dtype, check)


@torch.library.custom_op("lockstep::conv1d", mutates_args=("state",))
def _conv1d(x: Tensor, w: Tensor, bias: Optional[Tensor], state: Tensor, spans: Tensor, max_rows: int,
            out_dtype: torch.dtype, check: str) -> Tensor:
    inputs = _conv1d_inputs(x, w, bias, state.dtype)
    view = pool("state", state, _STORED, (inputs["d_conv"] - 1, inputs["dim"]), x)
    members = _span_members(spans, max_rows, x)
    y = x.new_zeros(x.shape, dtype=out_dtype)
    if inputs["rows"] > 0 and members["n_spans"] > 0:
        run("conv1d", x.device, check, **inputs, **members, y_dtype=out_dtype, y=y, y_stride=inputs["dim"], state=view)
    return y


@_conv1d.register_fake
def _(x, w, bias, state, spans, max_rows, out_dtype, check):
    return x.new_empty(x.shape, dtype=out_dtype)


def conv1d(x, w, state, spans, bias=None, max_rows=0, out_dtype=None, check="wait"):
    """The same convolution for inference: packed rows of many sequences, windows read from and written to a pool.

    x      [rows, dim];  w, bias as in causal_conv1d
    state  [slots, width - 1, dim] float32 or bfloat16, changed in place; inputs are rounded to its type first
    spans, max_rows as in scan

    Returns y [rows, dim]; rows of no span hold 0. Has no gradient. Any cut into spans gives the same bits."""
    return _conv1d(x, w, bias, state, spans, max_rows, out_dtype or x.dtype, check)
