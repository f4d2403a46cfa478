"""Frequencies of rotations from a model's config.json, in the engine's bits: src/load/rope_fields.c step by step.

Its powers are exp and log of src/num/exp64.h, binary64 with +, -, * and / alone. A Python float is such a number, so
the same steps give the same bits. A binary32 step is one binary64 step rounded once more, which for +, -, * and / of
binary32 numbers is the same as one rounding."""

import math
import struct

from ._abi import HEAD_DIM_MAX, LockstepError

_LOG2E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HI, _LN2_LO = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_ROUND_MAGIC = 6755399441055744.0
_SQRT_HALF = 0x3FE6A09E667F3BCD
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(n) for n in range(13, 2, -1)) + (0.5,)
_KEYS = ("rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "low_freq_factor", "beta_fast",
         "beta_slow", "mscale", "original_max_position_embeddings", "high_freq_factor", "mscale_all_dim", "truncate",
         "attention_factor")
# Which share of a head's columns rotates where that is not all of them, and whether a file may say another one.
_SHARES = {"bamba": (0.5, False), "qwen3_next": (0.25, True), "qwen3_5_text": (0.25, True),
           "qwen3_5_moe_text": (0.25, True)}
_OF_IMAGES = ("mrope_section", "mrope_interleaved")  # change nothing for text, in families whose files say the share


def _bits(x):
    return struct.unpack("<q", struct.pack("<d", x))[0]


def _of_bits(bits):
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def exp64(x):
    """e^x for finite x of at most 709."""
    x = max(x, -746.0)
    n = (x * _LOG2E + _ROUND_MAGIC) - _ROUND_MAGIC
    f = (x - n * _LN2_HI) - n * _LN2_LO
    q = _INVERSE_FACTORIALS[0]
    for coefficient in _INVERSE_FACTORIALS[1:]:
        q = q * f + coefficient
    whole = int(n)
    half = -(-whole // 2) if whole < 0 else whole // 2
    return (1.0 + (f + f * f * q)) * _of_bits((half + 1023) << 52) * _of_bits((whole - half + 1023) << 52)


def log64(x):
    """Natural logarithm of a normal positive x."""
    bits = _bits(x)
    exponent = (bits - _SQRT_HALF) >> 52
    m = _of_bits(bits - (exponent << 52))
    k = float(exponent)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 23.0
    for odd in range(21, 2, -2):
        p = p * z + 1.0 / float(odd)
    return k * _LN2_HI + (2.0 * s + (2.0 * s * (z * p) + k * _LN2_LO))


def _f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def _refuse(sentence, status="format"):
    raise LockstepError(sentence, status)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _Source:
    """Where the parameters stand: rope_parameters, or rope_scaling of older files."""

    def __init__(self, config):
        newer, older = config.get("rope_parameters"), config.get("rope_scaling")
        self.config, self.field = config, "rope_scaling" if newer is None else "rope_parameters"
        self.object = older if newer is None else newer
        if self.object is not None and not isinstance(self.object, dict):
            _refuse(f"{self.field}: {self.object!r}, expected an object")
        self.object = self.object or {}
        self.share, self.may_say_share = _SHARES.get(config.get("model_type"), (1.0, False))

    def rotated(self, head_dim):
        """Columns of a head that rotate, the first ones."""
        share = self.either("partial_rotary_factor")
        if share is None:
            share = self.share
        elif not self.may_say_share and not (_is_number(share) and share == self.share):
            _refuse(f"partial_rotary_factor: {share!r}, expected {self.share:g}", "unsupported")
        elif not (_is_number(share) and 0.0 < share <= 1.0):
            _refuse(f"partial_rotary_factor: {share!r}, expected a number above 0 and at most 1")
        dim = int(float(head_dim) * share)
        if dim < 2 or dim % 2 or dim > HEAD_DIM_MAX:
            _refuse(f"head_dim: {head_dim}, of which {dim} columns rotate; these are even and at most {HEAD_DIM_MAX}",
                    "unsupported")
        return dim

    def kind(self):
        """One of those that are built. The type is looked at before the parameters, which may be another type's."""
        value = self.object.get("rope_type")
        value = self.object.get("type") if value is None else value
        value = "default" if value is None else value
        if value in ("dynamic", "longrope", "su"):
            _refuse(f'{self.field}.rope_type: "{value}": its frequencies change with the length of a sequence; '
                    "default, linear, llama3 and yarn are built", "unsupported")
        if value not in ("default", "linear", "llama3", "yarn"):
            _refuse(f"{self.field}.rope_type: {value!r}; default, linear, llama3 and yarn are built", "unsupported")
        for key in self.object:
            if key not in _KEYS and not (self.may_say_share and key in _OF_IMAGES):
                _refuse(f"{self.field}: {key} is no parameter of a rotation that is built", "unsupported")
        return value

    def either(self, key):
        value = self.object.get(key)
        return self.config.get(key) if value is None else value

    def number(self, key, low, high, default=None):
        value = self.object.get(key)
        if value is None and default is not None:
            return float(default)
        if not _is_number(value) or not low <= value <= high:
            _refuse(f"{self.field}.{key}: {'missing' if value is None else repr(value)}, expected a number in "
                    f"{low:g}..{high:g}")
        return float(value)

    def original(self, positions_max):
        return self.number("original_max_position_embeddings", 1.0, 1e18, positions_max)


def _power(base, j, dim):
    return _f32(exp64(_f32(2.0 * j / dim) * log64(base)))


def _linear(source, plain):
    factor = _f32(source.number("factor", 1.0, 1e6))
    return [_f32(f / factor) for f in plain]


def _llama3(source, plain, positions_max):
    factor = source.number("factor", 1.0, 1e6)
    low, high = (source.number(f"{which}_freq_factor", 1e-6, 1e6) for which in ("low", "high"))
    original = source.original(positions_max)
    if not high > low:
        _refuse(f"{source.field}: high_freq_factor {high:g} is not above low_freq_factor {low:g}")
    out = []
    for f in plain:
        length = _f32(_f32(2.0 * math.pi) / f)
        is_long, is_short = length > _f32(original / low), length < _f32(original / high)
        scaled = _f32(f / _f32(factor)) if is_long else f
        smooth = _f32(_f32(_f32(_f32(original) / length) - _f32(low)) / _f32(high - low))
        mixed = _f32(_f32(_f32(_f32(1.0 - smooth) * scaled) / _f32(factor)) + _f32(smooth * scaled))
        out.append(scaled if is_long or is_short else mixed)
    return out


def _yarn_scale(factor, m):
    return 1.0 if factor <= 1.0 else 0.1 * m * log64(factor) + 1.0


def _yarn(source, base, dim, positions_max):
    original = source.original(positions_max)
    factor = source.number("factor", 1.0, 1e6, positions_max / original)
    fast, slow = source.number("beta_fast", 1e-6, 1e9, 32.0), source.number("beta_slow", 1e-6, 1e9, 1.0)
    m, m_all = (source.number(key, 0.0, 1e3, 0.0) for key in ("mscale", "mscale_all_dim"))
    both = m > 0.0 and m_all > 0.0
    attention = source.number("attention_factor", 1e-6, 1e3, _yarn_scale(factor, m) / _yarn_scale(factor, m_all)
                              if both else _yarn_scale(factor, 1.0))
    truncate = source.object.get("truncate")
    if truncate is not None and not isinstance(truncate, bool):
        _refuse(f"{source.field}.truncate: {truncate!r}, expected true or false")
    low, high = (float(dim) * log64(original / (turns * 2.0 * math.pi)) / (2.0 * log64(base)) for turns in (fast, slow))
    if truncate is not False:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, float(dim - 1))
    if low == high:
        high += 0.001
    out = []
    for j in range(dim // 2):
        p = _power(base, j, dim)
        ramp = _f32(_f32(j - _f32(low)) / _f32(high - low))
        kept = _f32(1.0 - min(max(ramp, 0.0), 1.0))
        slower = _f32(1.0 / _f32(_f32(factor) * p))
        out.append(_f32(_f32(slower * _f32(1.0 - kept)) + _f32(_f32(1.0 / p) * kept)))
    return out, _f32(attention)


def frequencies_of(config, head_dim):
    """(inv_freq, scale) of a config.json as a dict: a binary32 number for each two columns of a head that rotate, and
    the scale of cosines and sines. LockstepError for what the engine refuses."""
    source, positions_max = _Source(config), config["max_position_embeddings"]
    kind, theta = source.kind(), source.either("rope_theta")
    theta = 10000.0 if theta is None else theta
    if not _is_number(theta) or not 1.0 < theta <= 1e30:
        _refuse(f"rope_theta: {theta!r}, expected a number above 1")
    theta, dim = float(theta), source.rotated(head_dim)
    plain = [_f32(1.0 / _power(theta, j, dim)) for j in range(dim // 2)]
    if kind == "default":
        return tuple(plain), 1.0
    if kind == "linear":
        return tuple(_linear(source, plain)), 1.0
    if kind == "llama3":
        return tuple(_llama3(source, plain, positions_max)), 1.0
    scaled, scale = _yarn(source, theta, dim, positions_max)
    return tuple(scaled), scale
