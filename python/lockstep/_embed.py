"""The C ABI of include/lockstep/engine.h and train.h in ctypes: structs, functions with their types, calls that raise.

Nothing here knows numpy. tests/python/check_abi.py compares the structs with what a C compiler makes of the headers."""

import ctypes
import functools
import os
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p

from ._abi import Error, _struct, load_everything, raise_for

ABI = 1  # LOCKSTEP_ABI
FINISHES = {1: "stop", 2: "length", 3: "cancel", 4: "error"}  # lockstep_finish
LOGPROBS = ("raw", "processed")  # lockstep_logprobs
CHOICES = {  # of lockstep_trainer_options
    "schedule": ("constant", "linear", "cosine"), "loss": ("ppo", "gspo", "cispo", "reinforce"),
    "norm": ("token", "sequence", "length"), "kl": ("k1", "k2", "k3"),
}
ADVANTAGES = ("mean", "std", "rloo")  # lockstep_advantage

ModelOptions = _struct(
    "ModelOptions", (c_size_t, "size"), (c_char_p, "device profile isa"), (c_int32, "threads dtype trains reserved"))

ModelInfo = _struct(
    "ModelInfo", (c_size_t, "size"), (c_int64, "vocab hidden layers parameters positions_max weight_bytes n_eos"),
    (POINTER(c_int32), "eos"), (c_char_p, "device numerics"), (c_uint64, "version"))

ScoreOptions = _struct(
    "ScoreOptions", (c_size_t, "size"), (c_int32, "logprobs"), (c_float, "temperature"), (c_int64, "top_k"),
    (c_float, "top_p min_p"), (c_int64, "batch chunk"))

EngineOptions = _struct(
    "EngineOptions", (c_size_t, "size"), (c_int64, "length_max requests_max"), (c_int32, "logprobs"),
    (c_float, "temperature"), (c_int64, "top_k"), (c_float, "top_p min_p"), (c_uint64, "seed"), (c_void_p, "stop"),
    (c_int64, "n_stop"), (POINTER(c_char_p), "levers"), (c_int64, "n_levers"))

Request = _struct(
    "Request", (c_size_t, "size"), (c_void_p, "tokens"), (c_int64, "n_tokens max_tokens"), (c_uint32, "prompt sample"),
    (c_int64, "priority"), (c_float, "repetition_penalty frequency_penalty presence_penalty"), (c_int32, "reserved"))

Result = _struct(
    "Result", (c_size_t, "size"), (c_int64, "ticket"), (c_uint32, "prompt sample"), (c_int32, "finish"),
    (c_int64, "n_tokens"), (POINTER(c_int32), "tokens"), (POINTER(c_float), "logprob"), (POINTER(c_uint64), "weights"),
    (c_char_p, "error"))

TrainerOptions = _struct(
    "TrainerOptions", (c_size_t, "size"), (c_int64, "sequences_max length_max leaf"), (c_double, "temperature"),
    (c_int32, "schedule"), (c_double, "rate rate_floor"), (c_int64, "warmup schedule_steps"),
    (c_double, "beta1 beta2 eps decay clip"), (c_int32, "loss norm kl"),
    (c_double, "eps_low eps_high dual_clip kl_weight entropy_weight norm_length"), (c_int32, "mask_overlong recompute"),
    (c_int64, "microbatch"), (c_int32, "moments reserved"))

Batch = _struct(
    "Batch", (c_size_t, "size"), (c_int64, "n"),
    (c_void_p, "offsets tokens mask advantages recorded reference overlong"), (c_int32, "check reserved"))

StepStats = _struct(
    "StepStats", (c_size_t, "size"), (c_int64, "step"), (c_double, "loss"), (c_int64, "tokens sequences"),
    (c_double, "rate norm"), (c_int64, "compared differing"),
    (c_double, "ratio_mean ratio_min ratio_max clip_fraction kl entropy"))

# Functions that take an ls_error last and return a status: the types of what comes before it.
_CALLS = {
    "model_open": (POINTER(c_void_p), c_char_p, POINTER(ModelOptions)),
    "model_describe": (c_void_p, POINTER(ModelInfo)),
    "score": (c_void_p, c_void_p, c_void_p, c_int64, POINTER(ScoreOptions), c_void_p),
    "engine_open": (POINTER(c_void_p), c_void_p, POINTER(EngineOptions)),
    "engine_submit": (c_void_p, POINTER(Request), POINTER(c_int64)),
    "engine_tick": (c_void_p, POINTER(c_int64)),
    "engine_run": (c_void_p,),
    "engine_cancel": (c_void_p, c_int64),
    "engine_take": (c_void_p, POINTER(Result), POINTER(c_bool)),
    "engine_update": (c_void_p,),
    "engine_sleep": (c_void_p,),
    "changes_write": (c_char_p, c_char_p, c_char_p, POINTER(c_int64)),
    "trainer_open": (POINTER(c_void_p), c_void_p, POINTER(TrainerOptions)),
    "trainer_score": (c_void_p, POINTER(Batch), c_void_p),
    "trainer_sft": (c_void_p, POINTER(Batch), POINTER(StepStats)),
    "trainer_policy": (c_void_p, POINTER(Batch), POINTER(StepStats)),
    "trainer_save": (c_void_p, c_char_p, c_int64),
    "trainer_export": (c_void_p, c_char_p),
    "trainer_resume": (c_void_p,),
    "advantages": (c_void_p, c_void_p, c_int64, c_int64, c_int32),
}
# The others.
_PLAIN = {
    "version": (c_char_p,), "abi": (c_int32,),
    "model_close": (None, c_void_p), "engine_close": (None, c_void_p), "trainer_close": (None, c_void_p),
    "trainer_step": (c_int64, c_void_p),
    "model_options_init": (None, POINTER(ModelOptions), c_size_t),
    "score_options_init": (None, POINTER(ScoreOptions), c_size_t),
    "engine_options_init": (None, POINTER(EngineOptions), c_size_t),
    "request_init": (None, POINTER(Request), c_size_t),
    "trainer_options_init": (None, POINTER(TrainerOptions), c_size_t),
    "batch_init": (None, POINTER(Batch), c_size_t),
}


@functools.lru_cache(maxsize=None)
def embedded():
    """The loaded library, with types declared; one of another ABI is refused."""
    lib = load_everything()
    for name, types in _CALLS.items():
        getattr(lib, f"lockstep_{name}").argtypes = [*types, POINTER(Error)]
    for name, (result, *types) in _PLAIN.items():
        function = getattr(lib, f"lockstep_{name}")
        function.argtypes, function.restype = types, result
    if lib.lockstep_abi() != ABI:
        error = Error(status=4, text=f"liblockstep has the ABI {lib.lockstep_abi()}, this package {ABI}".encode())
        raise_for(4, error)
    return lib


def call(name, *args):
    """A function of _CALLS; raises LockstepError with its sentence."""
    error = Error()
    raise_for(getattr(embedded(), f"lockstep_{name}")(*args, error), error)


def made(kind, name):
    """A struct with the library's defaults."""
    out = kind()
    getattr(embedded(), f"lockstep_{name}_init")(out, ctypes.sizeof(out))
    return out


def write_changes(base, next, directory):
    """Bytes of the changes that make the weights of the directory `base` those of `next`, which have the same tensors;
    they are written to a third directory, which is made where it is missing. A server that serves `base` takes it in the
    place of `next`. 0: they would be no smaller than the weights, and nothing is written. Raises LockstepError."""
    size = c_int64()
    call("changes_write", os.fsencode(base), os.fsencode(next), os.fsencode(directory), size)
    return size.value


def sized(kind):
    """A struct that the library writes."""
    return kind(size=ctypes.sizeof(kind))


def version():
    """Of the library."""
    return embedded().lockstep_version().decode()
