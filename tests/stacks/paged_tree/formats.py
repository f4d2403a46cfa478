"""Number formats that a stack may compute, store or load in, rounded to in float32; what a gate and a softmax are."""

import numpy as np

F = np.float32


def mantissa(x, bits, lowest=-126):
    """To `bits` of mantissa after the leading one, to nearest even, with a least exponent as formats have it."""
    x = np.asarray(x, F)
    exponent = np.maximum(np.frexp(np.where(np.isfinite(x), x, 0))[1] - 1, lowest)
    step = np.ldexp(F(1), exponent - bits).astype(F)
    return (np.rint(x / step) * step).astype(F)


def bf16(x):
    return mantissa(x, 7)


def f16(x):
    return np.asarray(x, F).astype(np.float16).astype(F)


def tf32(x):
    return mantissa(x, 10)


def e4m3(x):
    return np.clip(mantissa(x, 3, -6), -448, 448)


def e5m2(x):
    return np.clip(mantissa(x, 2, -14), -57344, 57344)


def integers(x, bits, axis=None):
    """Symmetric integers of so many bits, with one scale for all or one along an axis."""
    most = 2 ** (bits - 1) - 1
    scale = np.maximum(np.abs(x).max(axis=axis, keepdims=axis is not None), 1e-12) / most
    return (np.rint(x / scale) * scale).astype(F)


FORMATS = {
    "f32": lambda x: x,
    "bf16": bf16,
    "f16": f16,
    "tf32": tf32,
    "e4m3": e4m3,
    "e5m2": e5m2,
    "e4m3-small": lambda x: e4m3(x / 64) * 64,
    "int8": lambda x: integers(x, 8),
    "int4": lambda x: integers(x, 4),
    "int8-row": lambda x: integers(x, 8, -1),
    "int4-row": lambda x: integers(x, 4, -1),
}


def silu(x):
    return (x / (1 + np.exp(-x))).astype(F)


def log_softmax(x):
    x = x.astype(float)
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
