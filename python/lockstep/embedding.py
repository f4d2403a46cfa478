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
import numbers
import os
import weakref
from ctypes import byref, c_bool, c_char_p, c_int64, c_void_p
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _embed, _program
from ._abi import LockstepError
from ._embed import call, made, sized

_DTYPES = {"f32": 0, "bf16": 1}

Ids = Union[Sequence[int], np.ndarray]  # token ids, integers from 0 on
Prompt = Union[str, Ids]


class Rollout(NamedTuple):
    """A prompt and its completion.

    prompt, sample   the address of its random draws, as submitted
    ticket           of submit(), from 0 on, an engine's own count
    prompt_tokens    int32 [prompt]
    tokens           int32 [completion]; the last one is a stop token where finish is "stop"
    logprobs         float32 [completion]: natural logarithms, of what the engine's `logprobs` says
    weights          uint64 [completion]: version of the weights that drew each token, 0 as opened, then trainer steps
    finish           "stop", "length", "cancel" or "error"
    error            what went wrong, "" but for "error"
    text             the completion as text, of prompts that were texts; else None"""
    prompt: int
    sample: int
    ticket: int
    prompt_tokens: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray
    weights: np.ndarray
    finish: str
    error: str
    text: Optional[str] = None

    @property
    def sequence(self) -> np.ndarray:
        """Prompt and completion: int32 [prompt + completion]."""
        return np.concatenate([self.prompt_tokens, self.tokens])


def _said(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _is_text_list(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, str) for value in values) and len(values) > 0


def _choose(what, value, names):
    if value not in names:
        raise ValueError(f"{what}: {value!r} is none of {', '.join(names)}")
    return list(names).index(value)


def _array(what, values, dtype):
    """A contiguous one-dimensional array of the type, without a loss of values."""
    if isinstance(values, (str, bytes)) or not (hasattr(values, "__len__") or hasattr(values, "__array__")):
        raise TypeError(f"{what}: {_said(values)} where a list or array of numbers is wanted")
    try:
        given = np.asarray(values)
    except ValueError as error:  # lists of several lengths
        raise TypeError(f"{what}: {_said(values)} where a list or array of numbers is wanted: {error}") from None
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
    if isinstance(sequences, (str, bytes)) or not hasattr(sequences, "__iter__"):
        raise TypeError(f"sequences: {_said(sequences)} where a list of lists of token ids is wanted")
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

    def close(self) -> None:
        """Releases it; a second time nothing happens. Every other call of it is a ValueError from then on."""
        self._release()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Model(_Handle):
    """A checkpoint directory on a device. Engines and trainers keep it alive.

    directory  config.json and safetensors, and tokenizer.json where texts are wanted
    device     "cpu", "cuda", "cuda:N" or "auto", a GPU where one can be used
    dtype      of activations: "f32" or "bf16"; carries bits
    profile    order of dense products: "exact", "mma16" or "auto"; carries bits
    threads    of the CPU; 0: all processors
    isa        of the CPU: "generic", "avx2", "avx512"; None: the best one here
    trains     whether a Trainer will be opened; every profile has a gradient, so that nothing follows

    Raises LockstepError for a directory, model or device that cannot be used, ValueError for another dtype."""

    def __init__(self, directory: Union[str, os.PathLike], *, device: str = "auto", dtype: str = "f32",
                 profile: str = "auto", threads: int = 0, isa: Optional[str] = None, trains: bool = True) -> None:
        if not isinstance(directory, (str, bytes, os.PathLike)):
            raise TypeError(f"directory: {_said(directory)} where a path is wanted")
        self.directory = os.fsdecode(directory)
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
    def info(self) -> Dict[str, Any]:
        """Numbers and names of the model: vocab, hidden, layers, parameters (counts), positions_max (tokens), weight_bytes
        (on the device), version (of the weights: 0, then trainer steps), eos (token ids), device, numerics (texts)."""
        info = self._info()
        names = ("vocab", "hidden", "layers", "parameters", "positions_max", "weight_bytes", "version")
        return {**{name: getattr(info, name) for name in names}, "eos": info.eos[:info.n_eos],
                "device": info.device.decode(), "numerics": info.numerics.decode()}

    def encode(self, texts: Sequence[str], *, special: bool = True) -> List[np.ndarray]:
        """int32 arrays, one for each text: its token ids by the directory's tokenizer.json. special: with the tokens that
        the file puts around a text. Raises LockstepError where the model has no tokenizer."""
        if not _is_text_list(texts):
            raise TypeError(f"texts: {_said(texts)} where a list of texts is wanted")
        words = ["tokenize", "--model", self.directory] + ([] if special else ["--no-special"])
        return [np.array(line["ids"], np.int32) for line in _program.lines(words, ({"text": text} for text in texts))]

    def decode(self, sequences: Sequence[Ids]) -> List[str]:
        """Texts of token sequences, without special tokens. Raises LockstepError where the model has no tokenizer."""
        rows = [{"ids": _array(f"sequence {i}", ids, np.int32).tolist()} for i, ids in enumerate(sequences)]
        return [line["text"] for line in _program.lines(["detokenize", "--model", self.directory], rows)] if rows else []

    def score(self, sequences: Sequence[Ids], *, logprobs: str = "raw", temperature: float = 1.0, top_k: int = 0,
              top_p: float = 1.0, min_p: float = 0.0, batch: int = 16, chunk: int = 0) -> List[np.ndarray]:
        """float32 arrays like the sequences: the log-probability (natural logarithm) of each token given those before it
        in its sequence, 0 for the first one.

        sequences    lists or arrays of token ids, none empty
        logprobs     "raw": the model's own; "processed": those of the distribution that temperature (0: greedy), top_k
                     (0: all), top_p in (0, 1] and min_p in [0, 1] make, which are read then alone
        batch        sequences of one forward; chunk: tokens of one in a forward, 0: all. Neither moves a bit

        Raises LockstepError for ids beyond the vocabulary, TypeError and ValueError for what are no sequences."""
        options = made(_embed.ScoreOptions, "score_options")
        options.logprobs = _choose("logprobs", logprobs, _embed.LOGPROBS)
        options.temperature, options.top_k, options.top_p, options.min_p = temperature, top_k, top_p, min_p
        options.batch, options.chunk = batch, chunk
        tokens, offsets = _pack(sequences)
        out = np.zeros(len(tokens), np.float32)
        call("score", self._use(), _pointer(tokens), _pointer(offsets), len(offsets) - 1, options, _pointer(out))
        return _split(out, offsets)


def _model(model: Union[Model, str, os.PathLike]) -> Model:
    return model if isinstance(model, Model) else Model(model)


class Engine(_Handle):
    """The rollout engine over a model, or over a directory.

    length_max    tokens of prompt and completion together, at most
    requests_max  that may be unfinished at once; 0: no limit
    logprobs      what is recorded: "raw", the model's own, or "processed", of the distribution that is drawn from
    temperature   0 is greedy
    top_k         0: all tokens; top_p in (0, 1]; min_p in [0, 1]
    seed          of all draws, 0 to 2^64 - 1
    stop          token ids that end a completion and are its last one; None: the model's; (): none
    levers        settings that change no bit, with _ for -: batch=64 (sequences of a forward), chunk=256 (tokens of one
                  sequence in a forward), memory="2G", prefix="off", .. (`lockstep generate --help` lists them)

    Raises LockstepError for options that cannot be, and for more memory than there is."""

    def __init__(self, model: Union[Model, str, os.PathLike], *, length_max: int = 2048, requests_max: int = 0,
                 logprobs: str = "raw", temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
                 min_p: float = 0.0, seed: int = 0, stop: Optional[Ids] = None,
                 **levers: Union[str, int, float, bool]) -> None:
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

    def submit(self, tokens: Ids, *, max_tokens: int = 128, prompt: int = 0, sample: int = 0, priority: int = 0,
               repetition_penalty: float = 1.0, frequency_penalty: float = 0.0,
               presence_penalty: float = 0.0) -> int:
        """Queues a prompt of token ids; its ticket.

        max_tokens      of the completion
        prompt, sample  the address of its random draws, unique among unfinished requests, each 0 to 2^32 - 1
        priority        lower runs first
        penalties       change what is drawn; log-probabilities stay the model's own. repetition: above 0, 1 is none

        Raises LockstepError for a request that can never run; the others are not affected."""
        ids = _array("tokens", tokens, np.int32)
        request, ticket = made(_embed.Request, "request"), c_int64()
        request.tokens, request.n_tokens, request.max_tokens = _pointer(ids), len(ids), max_tokens
        request.prompt, request.sample, request.priority = prompt, sample, priority
        request.repetition_penalty, request.frequency_penalty = repetition_penalty, frequency_penalty
        request.presence_penalty = presence_penalty
        call("engine_submit", self._use(), request, byref(ticket))
        self._prompts[ticket.value] = ids.copy()
        return ticket.value

    def tick(self) -> int:
        """One forward over all that runs; how many requests are unfinished."""
        unfinished = c_int64()
        call("engine_tick", self._use(), byref(unfinished))
        return unfinished.value

    def run(self) -> None:
        """Ticks until nothing is unfinished. Signals are heard between two ticks: KeyboardInterrupt leaves the requests
        unfinished, and run() goes on with them."""
        while self.tick() > 0:
            pass

    def cancel(self, ticket: int) -> None:
        """Ends an unfinished request, which becomes a Rollout with finish "cancel". Raises LockstepError for another."""
        call("engine_cancel", self._use(), ticket)

    def take(self) -> Optional[Rollout]:
        """The next Rollout that has ended, or None."""
        result, taken = sized(_embed.Result), c_bool()
        call("engine_take", self._use(), result, byref(taken))
        if not taken.value:
            return None
        tokens, logprobs, weights = (np.array(values[:result.n_tokens], kind) for values, kind in (
            (result.tokens, np.int32), (result.logprob, np.float32), (result.weights, np.uint64)))
        return Rollout(result.prompt, result.sample, result.ticket, self._prompts.pop(result.ticket), tokens, logprobs,
                       weights, _embed.FINISHES[result.finish], result.error.decode("utf-8", "replace"))

    def generate(self, prompts: Sequence[Prompt], *, samples: int = 1, max_tokens: int = 128,
                 first: int = 0) -> List[Rollout]:
        """`samples` rollouts of each prompt, prompt by prompt: len(prompts) * samples of them.

        prompts     a list whose items are lists or arrays of token ids, or texts where the model has a tokenizer; with
                    texts the rollouts have `text`
        max_tokens  of a completion
        first       prompt i draws at the address first + i: another `first`, or seed, is another draw

        Raises TypeError for what is no list of prompts, LockstepError for a prompt that can never run or a text without
        a tokenizer; nothing is queued then, and the engine goes on."""
        ids, are_texts = self._prompt_ids(prompts)
        tickets: List[int] = []
        ended: Dict[int, Rollout] = {}
        try:
            for i, prompt in enumerate(ids):
                try:
                    for sample in range(samples):
                        tickets.append(self.submit(prompt, max_tokens=max_tokens, prompt=first + i, sample=sample))
                except LockstepError as error:
                    raise LockstepError(f"prompt {i}: {error}", error.status) from None
            self.run()
        except BaseException:  # KeyboardInterrupt, too: nobody has these tickets, so nothing of them stays behind
            self._drop(tickets)
            raise
        while (rollout := self.take()) is not None:
            ended[rollout.ticket] = rollout
        out = [ended[ticket] for ticket in tickets]
        if are_texts:
            out = [one._replace(text=text) for one, text in zip(out, self.model.decode([one.tokens for one in out]))]
        return out

    def _prompt_ids(self, prompts):
        """Token ids of each prompt, and whether they were texts."""
        wanted = "a list of prompts is wanted, each a list of token ids or a text"
        if isinstance(prompts, (str, bytes)) or not hasattr(prompts, "__iter__"):
            raise TypeError(f"prompts: {_said(prompts)}; {wanted}")
        prompts = list(prompts)
        for i, prompt in enumerate(prompts):
            if isinstance(prompt, numbers.Number) or prompt is None or isinstance(prompt, (bytes, dict)):
                raise TypeError(f"prompts: item {i} is {_said(prompt)}; {wanted}")
        if not any(isinstance(prompt, str) for prompt in prompts):
            return [_array(f"prompt {i}", prompt, np.int32) for i, prompt in enumerate(prompts)], False
        if not _is_text_list(prompts):
            raise TypeError("prompts: some are texts and some are not; all of one call are of one kind")
        return self.model.encode(prompts), True

    def _drop(self, tickets):
        """Ends the requests, and takes what has ended."""
        for ticket in tickets:
            try:
                self.cancel(ticket)
            except LockstepError:  # it has ended
                pass
        while self.take() is not None:
            pass

    def update(self) -> None:
        """Behind a step of a trainer: goes on with the model's new weights."""
        call("engine_update", self._use())

    def sleep(self) -> None:
        """Gives the memory of the pools back; the next tick takes it again."""
        call("engine_sleep", self._use())


def _lever_text(value):
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _stats(stats):
    names = [name for name, _ in stats._fields_ if name != "size"]
    return {name: value for name in names if not math.isnan(value := getattr(stats, name))}


class Trainer(_Handle):
    """The trainer of a model, or of a directory: AdamW on float32 masters, supervised steps and policy steps.

    sequences_max, length_max  of a batch: sequences; tokens of one
    rate, rate_floor           learning rate and where a schedule ends
    schedule                   "constant", "linear" or "cosine"; over schedule_steps steps behind warmup of them
    beta1, beta2, eps, decay   of AdamW
    clip                       largest norm of a gradient; 0: no limit
    temperature                of the log-probabilities of policy steps, above 0
    loss                       of policy steps: "ppo", "gspo", "cispo" or "reinforce"
    norm                       mean of its terms: "token", "sequence" or "length", the last with norm_length tokens
    kl, kl_weight              "k1", "k2" or "k3" against `reference`; weight 0: none
    eps_low, eps_high          how far a ratio goes below and above 1 before it is clipped
    dual_clip                  above 1; 0: none
    entropy_weight             0: none
    mask_overlong              sequences that a limit of length ended do not count
    leaf                       sequences whose gradient is one ordered computation
    moments                    type that both moments are stored in: "f32" or "bf16"
    recompute, microbatch      activations again in the backward; leaves of one forward. These two move no bit

    Raises LockstepError for options that cannot be and for more memory than there is, ValueError for another name."""

    def __init__(self, model: Union[Model, str, os.PathLike], *, sequences_max: int = 64, length_max: int = 2048,
                 leaf: int = 1, temperature: float = 1.0, schedule: str = "constant", rate: float = 1e-4,
                 rate_floor: float = 0.0, warmup: int = 0, schedule_steps: int = 0, beta1: float = 0.9,
                 beta2: float = 0.95, eps: float = 1e-8, decay: float = 0.1, clip: float = 1.0, loss: str = "ppo",
                 norm: str = "token", kl: str = "k3", eps_low: float = 0.2, eps_high: float = 0.2,
                 dual_clip: float = 0.0, kl_weight: float = 0.0, entropy_weight: float = 0.0,
                 norm_length: float = 0.0, mask_overlong: bool = False, recompute: bool = False, microbatch: int = 4,
                 moments: str = "f32") -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "model", "__class__")}
        options = made(_embed.TrainerOptions, "trainer_options")
        for name, value in given.items():
            names = tuple(_DTYPES) if name == "moments" else _embed.CHOICES.get(name)
            try:
                setattr(options, name, value if names is None else _choose(name, value, names))
            except TypeError:
                raise TypeError(f"{name}: {_said(value)} where a number is wanted") from None
        self.model = _model(model)
        self._own("trainer", (self.model._use(), options))

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

    def score(self, sequences: Sequence[Ids], masks: Optional[Sequence[Sequence[int]]] = None) -> List[np.ndarray]:
        """The forward of a step: float32 arrays like the sequences of log-probabilities, 0 where nothing is learnt."""
        batch, kept = self._batch(sequences, masks)
        out = np.zeros(len(kept["tokens"]), np.float32)
        call("trainer_score", self._use(), batch, _pointer(out))
        return _split(out, kept["offsets"])

    def sft(self, sequences: Sequence[Ids], masks: Optional[Sequence[Sequence[int]]] = None) -> Dict[str, float]:
        """A supervised step on the tokens that the masks take, without masks all but the first of each sequence.

        sequences  lists or arrays of token ids, two at least in each
        masks      beside them arrays of their lengths, not 0 where a token is learnt from

        Returns its numbers: step (steps done), loss (mean of -log-probability), tokens and sequences that counted, rate,
        norm (of the gradient before clipping). Raises LockstepError; no weight is changed then."""
        batch, _kept = self._batch(sequences, masks)
        stats = sized(_embed.StepStats)
        call("trainer_sft", self._use(), batch, stats)
        return _stats(stats)

    def policy(self, rollouts: Iterable[Rollout], advantages: Union[Sequence[float], np.ndarray], *,
               check: bool = True, reference: Optional[Sequence[np.ndarray]] = None,
               overlong: Optional[Sequence[int]] = None) -> Dict[str, float]:
        """A step by advantages, float32 [rollouts].

        check      a bit that differs from the trainer's own forward is a LockstepError, and nothing is learnt. False for
                   updates behind the first one of the same rollouts
        reference  float32 arrays like the sequences: log-probabilities of the reference model, with kl_weight
        overlong   [rollouts] not 0: a limit of length ended it; None: none

        Returns its numbers: those of sft(), compared and differing (tokens), ratio_mean, ratio_min, ratio_max,
        clip_fraction, kl, entropy."""
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
    def step(self) -> int:
        """Steps done."""
        return _embed.embedded().lockstep_trainer_step(self._use())

    def save(self, run: Union[str, os.PathLike], keep: int = 0) -> None:
        """RUN/step-00000040: a model directory with what it takes to go on; the newest `keep` stay, 0: all."""
        call("trainer_save", self._use(), os.fsencode(run), keep)

    def export(self, directory: Union[str, os.PathLike]) -> None:
        """The weights as a model directory, which is made where it is missing."""
        call("trainer_export", self._use(), os.fsencode(directory))

    def resume(self) -> None:
        """Goes on from the checkpoint that the model was opened from, before the first step. Options that carry bits must
        be those of the run that saved it, else LockstepError."""
        call("trainer_resume", self._use())


def advantages(rewards: Union[Sequence[float], np.ndarray], group: int, kind: str = "std") -> np.ndarray:
    """float32 [n]: advantages of rewards [n], sample i being of group i // group.

    kind  "mean": r - mean; "std" (GRPO's): that / (std + 1e-6), std with n - 1; "rloo": r - mean of the others

    A reward that is not finite is left out, and gets 0. Raises LockstepError where n is no multiple of group."""
    rewards = np.ascontiguousarray(rewards, np.float32)
    if rewards.ndim != 1:
        raise ValueError(f"rewards: {rewards.ndim} dimensions; it takes one")
    out = np.zeros_like(rewards)
    call("advantages", _pointer(out), _pointer(rewards), len(rewards), group, _choose("kind", kind, _embed.ADVANTAGES))
    return out
