"""Lockstep: a rollout engine and a trainer that agree on every log-probability, bit for bit; and its ops for torch.

Model, Engine and Trainer need numpy, the ops torch. Each is imported when it is first used."""

import importlib

from ._abi import LockstepError

_PLACES = {
    "_embed": ("version",),
    "embedding": ("Engine", "Model", "Rollout", "Trainer", "advantages"),
    "_run": ("check",),
    "layers": ("Batch", "Numerics", "causal_attention", "embed", "head", "linear", "mixer", "rmsnorm", "swiglu"),
    "patching": ("patch", "token_logprobs"),
    "ops": ("LOG2E", "causal_conv1d", "conv1d", "logprob", "scan", "selected_logprob", "selective_scan",
            "selective_scan_fn", "sequence_sum", "spans"),
}
_HOMES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = ["LockstepError", *_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))
