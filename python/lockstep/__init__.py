"""Lockstep: a rollout engine and a trainer that agree on every log-probability, bit for bit; and its ops for torch.

    import lockstep
    model = lockstep.Model("models/tiny-sort")                       # a checkpoint directory
    engine, trainer = lockstep.Engine(model, seed=1), lockstep.Trainer(model, rate=1e-3)
    rollouts = engine.generate([[1, 2, 3]], samples=8, max_tokens=16)
    trainer.policy(rollouts, lockstep.advantages(rewards, group=8))  # one reward for each rollout
    engine.update()

Model, Engine, Trainer, Rollout and advantages need numpy; write_changes, for a server's weights, needs nothing. The ops need torch: logprob, selected_logprob, sequence_sum,
selective_scan, selective_scan_fn, causal_conv1d, scan, conv1d, spans, check; so do the layers and patch, which puts a
Hugging Face model on them. Each is imported when it is first used, and those whose library is not installed are not in
dir(lockstep). What is refused raises LockstepError with one sentence.

The command `lockstep` comes with the package; `lockstep --help` lists its commands."""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from ._abi import LockstepError

__version__ = "0.1.0"

_PLACES = {
    "_embed": (None, ("version", "write_changes")),
    "embedding": ("numpy", ("Engine", "Model", "Rollout", "Trainer", "advantages")),
    "_run": ("torch", ("check",)),
    "layers": ("torch", ("Batch", "HeadPart", "Numerics", "Rotation", "causal_attention", "delta_rule", "embed",
                         "gated_rmsnorm", "head", "linear", "mamba2_scan", "mixer", "relu2", "rmsnorm", "rope",
                         "sigmoid_gate", "swiglu")),
    "patching": ("torch", ("patch", "token_logprobs")),
    "ops": ("torch", ("LOG2E", "causal_conv1d", "conv1d", "logprob", "scan", "selected_logprob", "selective_scan",
                      "selective_scan_fn", "sequence_sum", "spans")),
}
_HOMES = {name: module for module, (_, names) in _PLACES.items() for name in names}


def _is_there(library):
    return library is None or importlib.util.find_spec(library) is not None


__all__ = ["LockstepError", "__version__"]
__all__ += [name for needs, names in _PLACES.values() if _is_there(needs) for name in names]

if TYPE_CHECKING:
    from ._embed import version, write_changes
    from ._run import check
    from .embedding import Engine, Model, Rollout, Trainer, advantages
    from .layers import (Batch, HeadPart, Numerics, Rotation, causal_attention, delta_rule, embed, gated_rmsnorm, head,
                         linear, mamba2_scan, mixer, relu2, rmsnorm, rope, sigmoid_gate, swiglu)
    from .ops import (LOG2E, causal_conv1d, conv1d, logprob, scan, selected_logprob, selective_scan, selective_scan_fn,
                      sequence_sum, spans)
    from .patching import patch, token_logprobs


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep' has no attribute '{name}'")
    needs = _PLACES[_HOMES[name]][0]
    if not _is_there(needs):
        raise ModuleNotFoundError(f"lockstep.{name} needs {needs}, which is not installed: pip install {needs}",
                                  name=needs)
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))
