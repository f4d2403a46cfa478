"""Models, the rollout engine and the trainer in this process, with numpy arrays in and out.

    model = lockstep.Model("models/tiny-sort")
    engine, trainer = lockstep.Engine(model, seed=1), lockstep.Trainer(model, rate=1e-3)
    rollouts = engine.generate([[1, 2, 3]], samples=8, max_tokens=16)
    trainer.policy(rollouts, lockstep.advantages(rewards, group=8))
    engine.update()

What engine, Model.score and trainer say of the same tokens and weights has the same bits. A model and what is opened on
it are used by one thread at a time. Everything is released when it is closed or collected."""

import ctypes
import math
import os
import weakref
from ctypes import byref, c_bool, c_char_p, c_int64, c_void_p
from typing import NamedTuple

import numpy as np

from . import _embed
from ._abi import LockstepError
from ._embed import call, made, sized

_DTYPES = {"f32": 0, "bf16": 1}


class Rollout(NamedTuple):
    """A prompt and its completion. `weights` is the version of the weights that drew each token."""
    prompt: int
    sample: int
    ticket: int
    prompt_tokens: np.ndarray  # int32
    tokens: np.ndarray  # int32: the completion
    logprobs: np.ndarray  # float32, of the completion
    weights: np.ndarray  # uint64
    finish: str  # "stop", "length", "cancel", "error"
    error: str

    @property
    def sequence(self):
        """Prompt and completion."""
        return np.concatenate([self.prompt_tokens, self.tokens])


def _choose(what, value, names):
    if value not in names:
        raise ValueError(f"{what}: {value!r} is none of {', '.join(names)}")
    return list(names).index(value)


def _array(what, values, dtype):
    """A contiguous one-dimensional array of the type, without a loss of values."""
    given = np.asarray(values)
    if given.ndim != 1:
        raise ValueError(f"{what}: {given.ndim} dimensions; it takes one")
    if np.issubdtype(dtype, np.integer) and given.size and not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"{what}: {given.dtype} where integers are needed")
    out = np.ascontiguousarray(given, dtype=dtype)
    if np.issubdtype(dtype, np.integer) and not np.array_equal(out, given):
        raise ValueError(f"{what}: a value does not fit {np.dtype(dtype)}")
    return out


def _pointer(array):
    return None if array is None else array.ctypes.data_as(c_void_p)


def _pack(sequences):
    """Token sequences end to end, and their offsets."""
    parts = [_array(f"sequence {i}", sequence, np.int32) for i, sequence in enumerate(sequences)]
    if not parts:
        raise ValueError("no sequences")
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.concatenate(parts), offsets


def _pack_beside(what, arrays, offsets, dtype):
    """One array beside each sequence, end to end; None stays None."""
    if arrays is None:
        return None
    if len(arrays) != len(offsets) - 1:
        raise ValueError(f"{what}: {len(arrays)} arrays for {len(offsets) - 1} sequences")
    parts = [np.ascontiguousarray(array, dtype=dtype) for array in arrays]
    for i, part in enumerate(parts):
        if part.shape != (offsets[i + 1] - offsets[i],):
            raise ValueError(f"{what}: array {i} has shape {part.shape} beside {offsets[i + 1] - offsets[i]} tokens")
    return np.concatenate(parts)


def _split(packed, offsets):
    return [packed[offsets[i]:offsets[i + 1]] for i in range(len(offsets) - 1)]


class _Handle:
    """Something of the library that is released once: by close, at the end of a with, or when it is collected."""

    def _own(self, name, open_with):
        handle = c_void_p()
        call(f"{name}_open", byref(handle), *open_with)
        self._handle = handle
        self._release = weakref.finalize(self, getattr(_embed.embedded(), f"lockstep_{name}_close"), handle)

    def _use(self):
        if not self._release.alive:
            raise ValueError(f"{type(self).__name__}: closed")
        return self._handle

    def close(self):
        self._release()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Model(_Handle):
    """A checkpoint directory on a device. Engines and trainers keep it alive."""

    def __init__(self, directory, *, device="auto", dtype="f32", profile="auto", threads=0, isa=None, trains=True):
        options = made(_embed.ModelOptions, "model_options")
        options.device, options.profile = device.encode(), profile.encode()
        options.isa = None if isa is None else isa.encode()
        options.threads, options.dtype, options.trains = threads, _DTYPES[dtype] if dtype in _DTYPES else -1, trains
        if options.dtype < 0:
            raise ValueError(f"dtype: {dtype!r} is none of f32, bf16")
        self._own("model", (os.fsencode(directory), options))

    def _info(self):
        info = sized(_embed.ModelInfo)
        call("model_describe", self._use(), info)
        return info

    @property
    def info(self):
        """Numbers and names of the model: vocab, hidden, layers, parameters, eos, device, numerics, version, .."""
        info = self._info()
        names = ("vocab", "hidden", "layers", "parameters", "positions_max", "weight_bytes", "version")
        return {**{name: getattr(info, name) for name in names}, "eos": info.eos[:info.n_eos],
                "device": info.device.decode(), "numerics": info.numerics.decode()}

    def score(self, sequences, *, logprobs="raw", temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, batch=16, chunk=0):
        """float32 arrays like the sequences: the log-probability of each token given those before it; first 0."""
        options = made(_embed.ScoreOptions, "score_options")
        options.logprobs = _choose("logprobs", logprobs, _embed.LOGPROBS)
        options.temperature, options.top_k, options.top_p, options.min_p = temperature, top_k, top_p, min_p
        options.batch, options.chunk = batch, chunk
        tokens, offsets = _pack(sequences)
        out = np.zeros(len(tokens), np.float32)
        call("score", self._use(), _pointer(tokens), _pointer(offsets), len(offsets) - 1, options, _pointer(out))
        return _split(out, offsets)


def _model(model):
    return model if isinstance(model, Model) else Model(model)


class Engine(_Handle):
    """The rollout engine over a model, or over a directory. `stop`: token ids that end a completion; None: the model's;
    (): none. Further arguments are levers (docs/levers.md) with _ for -, as batch=64: they change no bit."""

    def __init__(self, model, *, length_max=2048, requests_max=0, logprobs="raw", temperature=1.0, top_k=0, top_p=1.0,
                 min_p=0.0, seed=0, stop=None, **levers):
        options = made(_embed.EngineOptions, "engine_options")
        options.length_max, options.requests_max = length_max, requests_max
        options.logprobs = _choose("logprobs", logprobs, _embed.LOGPROBS)
        options.temperature, options.top_k, options.top_p, options.min_p = temperature, top_k, top_p, min_p
        options.seed = seed
        ids = None if stop is None or len(stop) == 0 else _array("stop", stop, np.int32)
        options.stop = _pointer(ids)
        options.n_stop = 0 if stop is None else -1 if ids is None else len(ids)
        texts = [f"{name.replace('_', '-')}={_lever_text(value)}".encode() for name, value in levers.items()]
        options.levers, options.n_levers = (c_char_p * len(texts))(*texts), len(texts)
        self.model = _model(model)
        self._prompts = {}  # of unfinished requests, by ticket
        self._own("engine", (self.model._use(), options))

    def submit(self, tokens, *, max_tokens=128, prompt=0, sample=0, priority=0, repetition_penalty=1.0,
               frequency_penalty=0.0, presence_penalty=0.0):
        """Queues a prompt; its ticket. (prompt, sample) is the address of its random draws. Penalties change what is drawn;
        log-probabilities stay the model's own."""
        ids = _array("tokens", tokens, np.int32)
        request, ticket = made(_embed.Request, "request"), c_int64()
        request.tokens, request.n_tokens, request.max_tokens = _pointer(ids), len(ids), max_tokens
        request.prompt, request.sample, request.priority = prompt, sample, priority
        request.repetition_penalty, request.frequency_penalty = repetition_penalty, frequency_penalty
        request.presence_penalty = presence_penalty
        call("engine_submit", self._use(), request, byref(ticket))
        self._prompts[ticket.value] = ids.copy()
        return ticket.value

    def tick(self):
        """One forward over all that runs; how many requests are unfinished."""
        unfinished = c_int64()
        call("engine_tick", self._use(), byref(unfinished))
        return unfinished.value

    def run(self):
        """Ticks until nothing is unfinished. Signals are heard between two ticks: KeyboardInterrupt leaves the requests
        unfinished, and run() goes on with them."""
        while self.tick() > 0:
            pass

    def cancel(self, ticket):
        call("engine_cancel", self._use(), ticket)

    def take(self):
        """The next Rollout that has ended, or None."""
        result, taken = sized(_embed.Result), c_bool()
        call("engine_take", self._use(), result, byref(taken))
        if not taken.value:
            return None
        tokens, logprobs, weights = (np.array(values[:result.n_tokens], kind) for values, kind in (
            (result.tokens, np.int32), (result.logprob, np.float32), (result.weights, np.uint64)))
        return Rollout(result.prompt, result.sample, result.ticket, self._prompts.pop(result.ticket), tokens, logprobs,
                       weights, _embed.FINISHES[result.finish], result.error.decode("utf-8", "replace"))

    def generate(self, prompts, *, samples=1, max_tokens=128, first=0):
        """`samples` rollouts of each prompt, prompt by prompt. Prompt i draws at the address first + i: another
        `first`, or seed, is another draw."""
        tickets = [self.submit(prompt, max_tokens=max_tokens, prompt=first + i, sample=sample)
                   for i, prompt in enumerate(prompts) for sample in range(samples)]
        ended = {}
        try:
            self.run()
        except BaseException:  # KeyboardInterrupt, too: nobody has these tickets, so nothing of them stays behind
            self._drop(tickets)
            raise
        while (rollout := self.take()) is not None:
            ended[rollout.ticket] = rollout
        return [ended[ticket] for ticket in tickets]

    def _drop(self, tickets):
        """Ends the requests, and takes what has ended."""
        for ticket in tickets:
            try:
                self.cancel(ticket)
            except LockstepError:  # it has ended
                pass
        while self.take() is not None:
            pass

    def update(self):
        """Behind a step of a trainer: goes on with the model's new weights."""
        call("engine_update", self._use())

    def sleep(self):
        """Gives the memory of the pools back; the next tick takes it again."""
        call("engine_sleep", self._use())


def _lever_text(value):
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _stats(stats):
    names = [name for name, _ in stats._fields_ if name != "size"]
    return {name: value for name in names if not math.isnan(value := getattr(stats, name))}


class Trainer(_Handle):
    """The trainer of a model, or of a directory. Options: the members of lockstep_trainer_options (lockstep/train.h),
    those that are names as texts: loss="gspo", schedule="cosine"."""

    def __init__(self, model, **options):
        made_options = made(_embed.TrainerOptions, "trainer_options")
        known = {name for name, _ in made_options._fields_} - {"size"}
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"Trainer: {name!r} is no option; there are {', '.join(sorted(known))}")
            names = tuple(_DTYPES) if name == "moments" else _embed.CHOICES.get(name)
            setattr(made_options, name, value if names is None else _choose(name, value, names))
        self.model = _model(model)
        self._own("trainer", (self.model._use(), made_options))

    def _batch(self, sequences, masks, **arrays):
        """The struct, with the arrays that it points to."""
        tokens, offsets = _pack(sequences)
        batch = made(_embed.Batch, "batch")
        kept = {"tokens": tokens, "offsets": offsets, "mask": _pack_beside("masks", masks, offsets, np.uint8)}
        for name, (values, dtype) in arrays.items():
            kept[name] = _pack_beside(name, values, offsets, dtype)
        for name, array in kept.items():
            setattr(batch, name, _pointer(array))
        batch.n = len(offsets) - 1
        return batch, kept

    def score(self, sequences, masks=None):
        """The forward of a step: float32 arrays like the sequences, 0 where nothing is learnt."""
        batch, kept = self._batch(sequences, masks)
        out = np.zeros(len(kept["tokens"]), np.float32)
        call("trainer_score", self._use(), batch, _pointer(out))
        return _split(out, kept["offsets"])

    def sft(self, sequences, masks=None):
        """A supervised step on the tokens that the masks take, without masks all but the first of each sequence.
        Returns its numbers."""
        batch, _kept = self._batch(sequences, masks)
        stats = sized(_embed.StepStats)
        call("trainer_sft", self._use(), batch, stats)
        return _stats(stats)

    def policy(self, rollouts, advantages, *, check=True, reference=None, overlong=None):
        """A step by advantages, one for each Rollout. With `check` a bit that differs from the trainer's own forward is
        an error, and nothing is learnt. `reference`: arrays like the sequences, with kl_weight. Returns its numbers."""
        rollouts = list(rollouts)
        zeros = [np.zeros(len(rollout.prompt_tokens), np.float32) for rollout in rollouts]
        batch, kept = self._batch(
            [rollout.sequence for rollout in rollouts],
            [np.concatenate([zero, np.ones(len(rollout.tokens))]) for zero, rollout in zip(zeros, rollouts)],
            recorded=([np.concatenate([zero, rollout.logprobs]) for zero, rollout in zip(zeros, rollouts)], np.float32),
            reference=(reference, np.float32))
        each = {"advantages": np.ascontiguousarray(advantages, np.float32),
                "overlong": None if overlong is None else np.ascontiguousarray(overlong, np.uint8)}
        for name, array in each.items():
            if array is not None and array.shape != (len(rollouts),):
                raise ValueError(f"{name}: shape {array.shape} for {len(rollouts)} rollouts")
            setattr(batch, name, _pointer(array))
        batch.check = check
        stats = sized(_embed.StepStats)
        call("trainer_policy", self._use(), batch, stats)
        del kept
        return _stats(stats)

    @property
    def step(self):
        """Steps done."""
        return _embed.embedded().lockstep_trainer_step(self._use())

    def save(self, run, keep=0):
        """RUN/step-00000040: a model directory with what it takes to go on; the newest `keep` stay, 0: all."""
        call("trainer_save", self._use(), os.fsencode(run), keep)

    def export(self, directory):
        """The weights as a model directory."""
        call("trainer_export", self._use(), os.fsencode(directory))

    def resume(self):
        """Goes on from the checkpoint that the model was opened from."""
        call("trainer_resume", self._use())


def advantages(rewards, group, kind="std"):
    """Advantages of rewards, `group` samples of a prompt beside each other: mean, std (GRPO's) or rloo."""
    rewards = np.ascontiguousarray(rewards, np.float32)
    if rewards.ndim != 1:
        raise ValueError(f"rewards: {rewards.ndim} dimensions; it takes one")
    out = np.zeros_like(rewards)
    call("advantages", _pointer(out), _pointer(rewards), len(rewards), group, _choose("kind", kind, _embed.ADVANTAGES))
    return out
