"""The ninth set, as data: forty faults and fourteen sound settings, written down before any of them was run.

A row: name, model, head, type, habits, families, what is planted and where, what it is like among public incidents.
`head`: `flat`, or `peaked` (the head is scaled so that some next tokens are nearly sure). `habits`: dialect, the
largest top-n that is answered, and `noseed` (seeds are ignored) or `one` (n > 1 is refused). `families`: what a user
should be told, first choice first; "none" stands for "differs, without a name". A fault of which both sides of the
server are wrong alike has `checkpoint`: it is run with --model always; of all others a hash of the name decides.

The families, in words of docs/guide/diagnosis.md: hit (prefix hit across prompts), restore (what a hit restores),
stale (state of a reused slot), other (another sequence's state), padding, preemption, fork, border (of a page),
length (wrong from a length on), batch (the batch's kernel), temperature, eos (masked), cut (a distribution that was
cut or widened), records (shifted, or of other tokens), value (a function of the value), bound, tokens (other tokens
than were sent), weights (other weights or another formula), repeat (not repeatable), missing, unanswered, penalty,
low (a head or cache in few bits).

Every fault moves the values that it touches by five times bf16's rounding of its model or more, and touches one of
twenty requests of ordinary traffic or more. ninth_holds.py checks that without probe.
"""

import hashlib
from typing import NamedTuple

from seventh_cases import ANSWERS

FAULTS = [
    # keys and values, pages
    ("page-freed-twice", "qwen3", "flat", "f32", "vllm 5", "other stale",
     "a client that leaves frees its pages twice; the next two requests share them", "vLLM: double free on abort"),
    ("page-last-row", "llama", "peaked", "f32", "vllm 20", "border",
     "decode does not write the key of a page's last row", "off by one of a slot mapping"),
    ("kv-fp8-scale", "qwen2", "flat", "f32", "vllm 1", "low none",
     "decode reads keys and values in e4m3 whose one scale is a fourth of what is needed, so large ones are clipped",
     "vLLM: fp8 KV without calibrated scales"),
    # prefix cache
    ("prefix-no-parent", "qwen3", "peaked", "f32", "sglang 5", "hit",
     "a page's key is a hash of its own tokens, not of those before it", "block hash without parent"),
    ("prefix-part-page", "llama", "flat", "f32", "vllm 5 noseed", "restore hit",
     "the last, partly filled page counts as full; a hit takes rows that were never written, or of another's decode",
     "hit length rounded up"),
    ("hit-positions", "qwen2", "flat", "bf16", "vllm 20", "restore hit",
     "behind a hit the rest of the prompt has positions one page too low", "position ids of a cached prefix"),
    ("evicted-hash", "qwen3", "flat", "f32", "sglang 5 one", "hit restore stale",
     "a page that is evicted and given away stays in the table of hashes", "evicted block still looked up"),
    ("llamacpp-reuse", "llama", "flat", "f32", "llama.cpp 20", "hit restore",
     "llama.cpp with cache_reuse moves chunks of keys that stood behind another beginning",
     "llama-server --cache-reuse"),
    # recurrent and convolution states
    ("hit-no-conv", "qwen3next", "flat", "f32", "vllm 5", "restore",
     "a hit restores the recurrent state and the keys, and the window of the convolution is zeros",
     "hybrid prefix cache"),
    ("slot-conv-kept", "mamba2", "peaked", "f32", "vllm 1", "stale",
     "a slot's convolution window and state are cleared only if the last owner ended at a stop, not at its length",
     "mamba slot not reset"),
    ("scan-over-pads", "mamba", "flat", "f32", "vllm 5 noseed", "padding",
     "prompts of a batch are padded on the left, and the pads go through the scan", "HF Mamba without attention mask"),
    ("fork-one-state", "jamba", "flat", "f32", "vllm 5", "fork",
     "n samples of one prompt have the keys copied and share one recurrent state", "best-of n with hybrid models"),
    ("chunk-no-state", "bamba", "flat", "f32", "sglang 20", "length none",
     "a prompt that is read in chunks of 96 before generation begins each chunk from an empty recurrent state; "
     "scoring reads it whole", "Mamba-2 chunked prefill without initial states"),
    # batching and padding
    ("pad-positions", "gpt2", "flat", "f32", "vllm 5", "padding",
     "left padding, and positions count the pads; the mask is right", "HF batch generation with absolute positions"),
    ("last-column", "qwen2", "peaked", "f32", "vllm 20 one", "padding",
     "prompts of a batch are padded on the right, and the first token is drawn and recorded of the last column",
     "TRL: logits of pads"),
    ("graph-pads-write", "llama", "flat", "f32", "vllm 5", "padding other",
     "a batch is filled up to 1, 2, 4, 8, ... rows, and the rows that fill it up write keys to the page of row 0",
     "CUDA graph padding with slot 0 for -1"),
    ("expert-capacity", "qwen3moe", "flat", "f32", "sglang 5", "batch other none",
     "in a batch of more than 4 rows each expert takes 1.25 times its share of tokens and drops the rest",
     "Megatron: capacity factor left on"),
    # chunked prefill
    ("chunk-forgets", "qwen3", "flat", "bf16", "vllm 20", "length",
     "a chunk of 128 tokens of a prompt in front of a generation attends to nothing before the chunk in front of it",
     "chunked prefill with context lengths cut"),
    # preemption, abort
    ("resume-no-last", "qwen3", "flat", "f32", "vllm 5", "preemption",
     "a preempted request is computed again without its last generated token, which is fed once more at one position "
     "too low", "recompute preemption"),
    ("abort-bias", "llama", "peaked", "f32", "vllm 5", "stale penalty",
     "the biases and penalties of a client that leaves stay with its slot for the next owner", "persistent batch"),
    # sampling and conventions
    ("repeat-default", "qwen2", "flat", "f32", "vllm 20", "penalty",
     "generation_config.json has repetition_penalty 1.15; it is applied and recorded",
     "vLLM: --generation-config auto"),
    ("topk-default", "qwen3", "flat", "f32", "vllm 5", "cut",
     "top_k 20 of the defaults is applied, and records are normalised over it", "HF generate top_k = 50 in TRL"),
    ("eos-forbidden", "llama", "peaked", "f32", "sglang 5", "eos",
     "the end of sequence is masked for the first 64 tokens and records are of the rest; the end is likely",
     "min_tokens set by a rollout worker"),
    # updates of weights, adapters
    ("lora-twice", "qwen2", "flat", "bf16", "vllm 5", "weights",
     "an adapter was merged into the queries and values twice", "merge_adapter twice", "checkpoint"),
    ("shard-stale", "llama", "flat", "f32", "sglang 5", "weights",
     "one of two ranks' halves of the down projections is of the weights before the update", "partial broadcast",
     "checkpoint"),
    ("tied-stale", "qwen2", "flat", "f32", "vllm 20", "weights",
     "the head is tied to the embedding; an update reaches the embedding, and decode's copy of the head is older",
     "tied weights in weight sync"),
    ("lora-decode-lost", "llama", "flat", "bf16", "vllm 5 one", "weights",
     "the graph of decode was captured without the adapter that prefill applies", "LoRA and CUDA graphs"),
    # quantised heads
    ("head-int8", "qwen3", "peaked", "bf16", "vllm 5", "low",
     "decode's head is int8 with one scale for all rows", "dynamic quantisation of lm_head"),
    # positions and rope
    ("rope-switch", "phi3", "flat", "f32", "vllm 5", "length",
     "longrope: a sequence that grows beyond 128 goes on with the long factors on keys that have the short ones",
     "Phi-3 longrope with a cache"),
    ("split-combine", "llama", "flat", "f32", "sglang 5 noseed", "length",
     "decode behind 192 keys and more is split in two, and the halves are averaged without their sums",
     "split-KV combine without LSE"),
    # routing
    ("moe-no-renorm", "qwen3moe", "peaked", "f32", "vllm 5", "weights none",
     "decode's fused kernel does not renormalise the weights of the chosen experts", "norm_topk_prob ignored"),
    ("replay-shift", "qwen3moe", "flat", "f32", "sglang 5", "weights none",
     "the values of prompts replay the experts that decode chose, one token late", "routing replay off by one"),
    ("few-rows-top1", "qwen3moe", "flat", "bf16", "vllm 5", "batch weights none",
     "a step of fewer than 4 rows takes a kernel with one expert less", "fused MoE for small batches"),
    # text and templates
    ("bos-added", "llama", "flat", "f32", "vllm 5", "tokens",
     "a beginning of sequence is put before prompts of a generation, and not before those that are scored",
     "double BOS"),
    ("prompt-through-text", "qwen2", "flat", "f32", "vllm 5", "tokens",
     "a prompt of ids is decoded and encoded again before generation; scoring takes the ids", "retokenisation drift"),
    # records
    ("record-of-likeliest", "qwen3", "peaked", "f32", "vllm 1", "records",
     "the record is of the likeliest token and not of the one that was drawn", "wrong entry of top-n"),
    ("record-late-row", "llama", "flat", "f32", "vllm 5", "other records",
     "when a row ends, the last row moves into its place, and the records of the next step are of the old order",
     "condense of a batch"),
    # replicas
    ("replica-stale", "llama", "flat", "f32", "llama.cpp 20", "repeat",
     "two llama.cpp servers behind a proxy, by turns; one has the weights before the update", "one replica not synced"),
    # speculation
    ("draft-records", "qwen3", "flat", "f32", "vllm 5", "weights none",
     "tokens that were drafted and accepted are recorded with the draft's log-probability", "speculative logprobs"),
    ("draft-keys-kept", "llama", "flat", "f32", "sglang 5", "weights none",
     "keys of drafted tokens that were refused stay in the cache, and the next go behind them", "rollback of a cache"),
]

SOUND = [
    ("sound-f32-paged", "llama", "flat", "f32", "vllm 5", "pages, batches, a right prefix cache"),
    ("sound-bf16-paged", "qwen3", "flat", "bf16", "vllm 20", "the same in bf16"),
    ("sound-f16-peaked", "qwen2", "peaked", "f16", "sglang 5", "f16, a head that is nearly sure"),
    ("sound-eager-sdpa", "llama", "flat", "bf16", "vllm 5", "prompts by sdpa, decode by eager attention"),
    ("sound-moe-bf16", "qwen3moe", "flat", "bf16", "vllm 5", "experts in bf16, with ties"),
    ("sound-hybrid", "qwen3next", "flat", "f32", "vllm 5 noseed", "gated delta, hits that restore all of it"),
    ("sound-jamba-bf16", "jamba", "peaked", "bf16", "vllm 1", "scan, attention and experts in bf16"),
    ("sound-mamba2-chunks", "mamba2", "flat", "f32", "sglang 20", "chunked prefill with states passed on"),
    ("sound-left-pads", "qwen2", "flat", "f32", "vllm 5 one", "left padding with mask and positions"),
    ("sound-temperature", "qwen3", "flat", "f32", "sglang 5", "SGLang's convention: records of the temperature"),
    ("sound-preempts", "qwen3", "flat", "f32", "vllm 5", "few pages: preempted requests are computed again rightly"),
    ("sound-kv-bf16", "llama", "peaked", "f32", "vllm 5", "keys and values in bf16 under float32"),
    ("sound-llamacpp", "llama", "flat", "f16", "llama.cpp 20", "llama.cpp as it is, keys in f16, no values of prompts"),
    ("sound-spec", "qwen3", "flat", "bf16", "vllm 5", "drafts that are verified, recorded and rolled back rightly"),
]

# A family in the words of a report, as the seventh set has them. "none" is right where it is listed.
WORDS = {"hit": "across", "other": "mixed", "preemption": "preempt", "border": "page", "batch": "kernel",
         "records": "shift", "none": "unnamed", "unanswered": "hang"}
MORE = {"cut": ("top-k or top-p on one side only", "vocabulary on one side only"),
        "bound": ("log-probabilities clamped",), "low": ANSWERS["head"] + ("keys and values in 8 bits",)}
# Of faults that are in decode alone a report may say so: right where no closer word is listed, near elsewhere.
DECODE, ONLY_DECODE = "other arithmetic in decode", ("kv-fp8-scale", "head-int8", "replay-shift", "draft-records")
DECODE_IS_RIGHT = ("tied-stale", "lora-decode-lost", "moe-no-renorm", "few-rows-top1", "draft-keys-kept")

REFUSED = ("gpt2", "phi3")  # models whose checkpoints the program does not read


class Case(NamedTuple):
    name: str
    model: str
    head: str
    type: str
    habits: str
    families: str = ""
    planted: str = ""
    like: str = ""
    checkpoint: str = ""

    @property
    def dialect(self):
        return self.habits.split()[0]

    @property
    def directory(self):
        return "ninth-" + self.model + "+peaked" * (self.head == "peaked")


CASES = [Case(*row) for row in FAULTS] + [Case(*row[:5], "", row[5]) for row in SOUND]
BY_NAME = {c.name: c for c in CASES}


def answers(families):
    return tuple(word for f in families for word in MORE.get(f) or ANSWERS[WORDS.get(f, f)])


def judged(c):
    """What is right to say of a case, and what is near."""
    families = c.families.split()
    right = answers(families[:1] + ["none"] * ("none" in families)) + (DECODE,) * (c.name in DECODE_IS_RIGHT)
    return right or ("clean",), answers(families[1:]) + (DECODE,) * (c.name in ONLY_DECODE)


def for_table():
    """For script/probe-table. Half of all users have the checkpoint: those whose name has one of the smaller hashes."""
    by_hash = sorted(BY_NAME, key=lambda name: hashlib.sha256(name.encode()).digest())
    for i, c in enumerate(CASES):
        right, near = judged(c)
        yield {"name": "ninth-" + c.name, "model": c.directory, "fault": c.name if c.families else "none",
               "words": ["--case", c.name], "seed": 900 + i, "half": "ninth", "server": "ninth.py",
               "right": right, "near": near,
               "checkpoint": c.model not in REFUSED and (bool(c.checkpoint) or c.name in by_hash[:len(CASES) // 2])}


FOR_TABLE = list(for_table())
