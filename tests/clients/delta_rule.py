"""The gated delta rule of transformers' Qwen3-Next beside the ops delta and delta_backward of the shared library, on the
CPU in float32: errors of both against the recurrence in float64, outputs and gradients by autograd.

Usage: delta_rule.py PROGRAM SOURCE_DIR
(pip install torch transformers; without them the script says so and ends with 77.) Ends with 0 where the ops' outputs
are within 1e-6 of the root mean square and each gradient within 1e-5 of the largest of its kind, else with 1."""

import ctypes
import importlib.util
import math
import os
import sys
import time
from ctypes import c_int64, c_void_p

for needed in ("torch", "transformers"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
sys.path[:0] = [os.path.join(sys.argv[2], "python")]
os.environ.setdefault("LOCKSTEP_LIBRARY", os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "liblockstep.so"))

import torch
import torch.nn.functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as reference

from lockstep import _abi

NAMES = ("q", "k", "v", "a", "b", "rate", "dt_bias")


def fill(struct, **tensors):
    for name, tensor in tensors.items():
        setattr(struct, name, tensor.data_ptr())
        if hasattr(struct, name + "_stride"):
            setattr(struct, name + "_stride", tensor.stride(0))


class Ops:
    """Both ops with one thread, for one sequence from its first token."""

    def __init__(self, shape):
        self.rows, self.heads, self.key_heads, self.keys, self.dim = shape
        self.library = ctypes.CDLL(os.environ["LOCKSTEP_LIBRARY"])
        self.error = _abi.Error()
        self.workers = c_void_p()
        self.span = _abi.Span(0, self.rows, 0, 0, 0)
        self.checked(self.library.ls_cpu_workers_create(ctypes.byref(self.workers), 1, None, ctypes.byref(self.error)))

    def checked(self, status):
        if status != 0:
            sys.exit("delta_rule: " + self.error.text.decode())

    def call(self, name, args):
        size = getattr(self.library, "ls_op_%s_workspace" % name)
        size.restype = c_int64
        bytes_needed = size(ctypes.byref(args))
        memory = torch.empty(bytes_needed + 256, dtype=torch.uint8)
        place = _abi.Exec(_abi.CPU, self.workers, None, (memory.data_ptr() + 255) // 256 * 256, bytes_needed, None)
        self.checked(getattr(self.library, "ls_op_" + name)(ctypes.byref(place), ctypes.byref(args),
                                                            ctypes.byref(self.error)))

    def sized(self, struct):
        struct.rows, struct.n_heads, struct.n_key_heads = self.rows, self.heads, self.key_heads
        struct.key_dim, struct.value_dim = self.keys, self.dim
        struct.spans, struct.n_spans = ctypes.addressof(self.span), 1
        return struct

    def forward(self, inputs):
        args, state_bytes = self.sized(_abi.DeltaArgs()), 4 * self.heads * self.keys * self.dim
        out = torch.empty(self.rows, self.heads * self.dim)
        state, scale = torch.empty(state_bytes + 16, dtype=torch.uint8), torch.empty(self.heads)
        fill(args, **dict(zip(NAMES, inputs)), out=out)
        args.state = _abi.PoolView((state.data_ptr() + 15) // 16 * 16, state_bytes, 1)
        args.scale = _abi.PoolView(scale.data_ptr(), 4 * self.heads, 1)
        self.call("delta", args)
        return out

    def backward(self, inputs, dout):
        args, gradients = self.sized(_abi.DeltaBackwardArgs()), [torch.empty_like(x) for x in inputs]
        fill(args, **dict(zip(NAMES, inputs)), **{"d" + name: g for name, g in zip(NAMES, gradients)}, dout=dout)
        self.call("delta_backward", args)
        return gradients


def recurrence(shape, q, k, v, a, b, rate, dt_bias):
    """The rule token by token, in the type of its inputs."""
    rows, heads, key_heads, keys, dim = shape
    decay, beta, v = (rate * F.softplus(a + dt_bias)).exp(), b.sigmoid(), v.view(rows, heads, dim)
    q, k = (reference.l2norm(x.view(rows, key_heads, keys)).repeat_interleave(heads // key_heads, 1) for x in (q, k))
    state, out = torch.zeros(heads, keys, dim, dtype=q.dtype), []
    for t in range(rows):
        state = state * decay[t][:, None, None]
        delta = beta[t][:, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t][:, :, None] * delta[:, None, :]
        out.append(torch.einsum("hk,hkv->hv", q[t], state) / math.sqrt(keys))
    return torch.stack(out).reshape(rows, heads * dim)


def of_transformers(rule, shape, q, k, v, a, b, rate, dt_bias):
    rows, heads, key_heads, keys, dim = shape
    out, _ = rule(q.view(1, rows, key_heads, keys), k.view(1, rows, key_heads, keys), v.view(1, rows, heads, dim),
                  g=(rate * F.softplus(a + dt_bias))[None], beta=b.sigmoid()[None], use_qk_l2norm_in_kernel=True)
    return out.reshape(rows, heads * dim)


def timed(function):
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def differences(shape):
    """Prints a row for the outputs and one for each gradient; whether the ops are near enough."""
    rows, heads, key_heads, keys, dim = shape
    widths = (key_heads * keys, key_heads * keys, heads * dim, heads, heads)
    inputs = [torch.randn(rows, width) for width in widths]
    inputs += [-torch.empty(heads).uniform_(0.01, 16.0), torch.randn(heads) - 3.0]
    dout = torch.randn(rows, heads * dim)
    exact, plain = ([x.to(kind).requires_grad_() for x in inputs] for kind in (torch.float64, torch.float32))
    plain = [x.detach().clone().requires_grad_() for x in plain]
    ops = Ops(shape)
    with torch.no_grad():
        token, _ = timed(lambda: of_transformers(reference.torch_recurrent_gated_delta_rule, shape, *inputs))
    truth = recurrence(shape, *exact)
    (truth * dout.double()).sum().backward()
    ours, forward_s = timed(lambda: ops.forward(inputs))
    gradients, backward_s = timed(lambda: ops.backward(inputs, dout))
    chunks, chunk_forward_s = timed(lambda: of_transformers(reference.torch_chunk_gated_delta_rule, shape, *plain))
    _, chunk_backward_s = timed(lambda: (chunks * dout).sum().backward())

    def error(out):
        return ((out.double() - truth).pow(2).mean() / truth.pow(2).mean()).sqrt().item()

    print("%d tokens, %d value heads of %d, %d x %d" % shape)
    print("  out       ops %.2g, by tokens %.2g, by chunks %.2g" % (error(ours), error(token), error(chunks)))
    near = error(ours) <= 1e-6
    for name, mine, x, y in zip(NAMES, gradients, exact, plain):
        largest = x.grad.abs().max()
        of_ops, of_chunks = ((g.double() - x.grad).abs().max() / largest for g in (mine, y.grad))
        print("  d%-8s ops %.2g, by chunks %.2g" % (name, of_ops, of_chunks))
        near = near and bool(of_ops <= 1e-5)
    print("  seconds   ops %.3f and %.3f, by chunks %.3f and %.3f" %
          (forward_s, backward_s, chunk_forward_s, chunk_backward_s))
    return near


torch.manual_seed(1)
torch.set_num_threads(1)
sys.exit(0 if all([differences(shape) for shape in ((300, 8, 4, 128, 128), (1000, 4, 2, 64, 64))]) else 1)
