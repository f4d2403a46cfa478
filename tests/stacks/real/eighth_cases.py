"""The eighth set: 40 faults and 20 sound settings as data, written before anything of it was run.

A row: name, family, model, type, habits, what is planted, what it touches. The family is what a user should be told, in
the words of docs/guide/diagnosis.md; UNNAMED where none of them fits. Habits: `topN` entries of a record at most, `one`
no n > 1, `unseeded` no seeds, `peaked` a head that makes some tokens nearly sure, `eager` attention, `prefix` a prefix
cache that works, `chunk` a chunked prefill that works, `batch` requests decoded together.
"""

import hashlib
from typing import NamedTuple

from seventh_cases import ANSWERS


class Case(NamedTuple):
    name: str
    family: str
    model: str
    type: str
    habits: str
    planted: str
    touches: str


UNNAMED = "differs, no name"
CLEAN = "clean"
ACROSS = "prefix hit across different prompts"
RESTORES = "what a hit restores"
STALE = "stale state of a reused slot"
OTHER = "another sequence's state"
KERNEL = "the batch's kernel"
WEIGHTS = "other weights or another formula"
LENGTH = "from a length on"
TOKENS = "other tokens than were sent"

# Shared by decode and prompt: only a checkpoint can tell. These are asked with --model whatever the hash says.
BOTH_SIDES = ("weights-partly-updated", "weights-lora-twice")

FAULTS = [
    # KV cache, pages
    Case("kv-slot-before-border", "a page's border", "llama", "float32", "batch top5",
         "the first key of a new page of 16 is written over the last one of the page before", "decode over a border"),
    Case("kv-ring-wraps", LENGTH, "qwen2", "bfloat16", "top5 peaked",
         "decode behind 192 tokens overwrites the oldest keys, prompts do not", "completions behind 192 tokens"),
    Case("kv-four-bits", "a coarse cache; or " + UNNAMED, "qwen3", "bfloat16", "batch top1",
         "keys and values lie in 4 bits a token once the prompt is over; decode reads them", "all decode"),
    # prefix cache
    Case("prefix-no-parent", ACROSS, "llama", "float32", "top5 batch",
         "a block's key is its own tokens, not those in front of it", "equal blocks behind unequal beginnings"),
    Case("prefix-last-twice", RESTORES, "qwen3", "float32", "top20",
         "a prompt that is found whole computes its last token again behind itself", "a prompt that comes again"),
    Case("prefix-no-conv", RESTORES, "jamba", "float32", "top5",
         "a hit restores keys and scan state, and a convolution window of zeros", "all hits"),
    Case("prefix-tail-unwritten", RESTORES, "qwen2", "bfloat16", "top5 unseeded",
         "blocks of a finished request are kept with the last drawn token, whose keys were never computed (zeros)",
         "prompts that go on behind a completion"),
    # recurrent and convolution state
    Case("scan-slot-dirty", STALE, "mamba", "float32", "top5 one",
         "the scan state of a slot is not cleared for its next owner", "all requests behind another"),
    Case("conv-window-late", "decode alone; " + UNNAMED, "mamba", "bfloat16", "top5",
         "prefill hands decode a convolution window that lacks the last token", "all second tokens to about the fifth"),
    Case("state-lost-at-chunk", LENGTH, "jamba", "float32", "top5 batch",
         "prefill in chunks of 64 begins each with an empty window and scan; prompt values come in one piece",
         "prompts above 64 tokens"),
    Case("delta-pads-count", "padding", "qwen3next", "float32", "batch top5",
         "padding (ends of sequence) in front of a shorter row goes into the gated delta state",
         "batches of unequal lengths"),
    # batching and padding
    Case("batch-positions-padded", "padding", "qwen2", "float32", "batch top5",
         "positions of a padded row count the padding for prefill, decode goes on with the true length",
         "shorter rows of a batch of unequal lengths"),
    Case("batch-compacted-tokens", OTHER, "llama", "bfloat16", "batch top5",
         "when a row has ended the caches close up and the last tokens do not", "batches whose rows end apart"),
    Case("batch-kernel-unscaled", KERNEL, "qwen3", "bfloat16", "batch top5 peaked",
         "from four rows on attention of decode has scale 1/head instead of 1/sqrt(head)", "batches of four and more"),
    Case("batch-filler-row", "what fills a batch up", "qwen2", "float32", "batch top5",
         "a batch is filled up to a power of two; filler rows write their keys into row 0's cache",
         "batches of 3, 5, 6, 7, ..."),
    # chunked prefill, preemption
    Case("chunk-positions-restart", LENGTH, "llama", "float32", "top20 unseeded",
         "the third and later chunks of 64 tokens begin at position 64 again", "prompts above 128 tokens"),
    Case("preempted-loses-last", "preemption", "qwen3", "float32", "batch top5",
         "above 1,200 tokens in all the youngest rows wait; they are computed again without their last token",
         "long requests beside others"),
    # sampling and conventions of records
    Case("record-of-temperature", "records are of the temperature", "qwen2", "float32", "batch top5 one",
         "records are of the distribution that was drawn from", "temperatures other than 1"),
    Case("penalty-by-default", "a penalty", "llama", "bfloat16", "top5 batch",
         "generation_config has repetition_penalty 1.3; draws and records are of it", "all decode"),
    Case("top-p-by-default", "a distribution that was cut", "qwen3", "float32", "top5 peaked",
         "generation_config has top_p 0.8; records are renormalised over what is left", "all decode"),
    Case("min-tokens-masks-end", "end of sequence is masked", "qwen2", "float32", "batch top5",
         "min_tokens 8 by default: the end is masked in draws and records; a token of like chance as others here, "
         "by a bias of 3 on its logit", "first 8 tokens"),
    # weights and adapters
    Case("weights-partly-updated", WEIGHTS, "qwen3", "bfloat16", "batch top5",
         "down_proj of layer 1 is of an earlier step", "all, both sides"),
    Case("weights-lora-twice", WEIGHTS, "llama", "float32", "top5",
         "an adapter that the checkpoint has merged is merged once more", "all, both sides"),
    Case("weights-tied-head-stale", WEIGHTS, "qwen2", "bfloat16", "top1 batch",
         "decode's own copy of the tied head is of an earlier step", "all decode"),
    # quantised
    Case("head-five-bits", "head in low precision", "llama", "float32", "top5 batch",
         "decode multiplies by a head of 5 bits, one scale for the tensor; prompts by the full one", "all decode"),
    # positions
    Case("window-forgotten", LENGTH, "mistral", "float32", "batch top5",
         "decode attends over everything, prompts over a window of 64", "decode behind 64 tokens"),
    Case("decode-position-ahead", "decode alone; " + UNNAMED, "llama", "float32", "batch top5 peaked",
         "positions of decode are one too high, of prefill right", "all but first tokens"),
    # experts
    Case("experts-not-renormalised", WEIGHTS + "; decode alone", "qwen3moe", "float32", "batch top5",
         "decode's kernel of experts does not renormalise the weights of the chosen", "all but first tokens"),
    Case("experts-capacity", KERNEL, "qwen3moe", "bfloat16", "batch top5",
         "in forwards of decode an expert takes at most 1.25 times its share of rows and drops the rest",
         "batches of four and more"),
    Case("experts-replay-late", "decode alone; " + UNNAMED, "qwen3moe", "float32", "top5 unseeded",
         "decode takes the experts that the token before had chosen", "all but first tokens"),
    # text
    Case("round-trip-merges", TOKENS, "qwen2", "float32", "batch top5",
         "prompts for generation go through text and back: two neighbours of a pair list come back as one token",
         "prompts with such a pair, about one in two"),
    Case("second-bos", TOKENS, "llama", "bfloat16", "top5 batch peaked",
         "generation puts the first special token in front, and scoring does not", "all decode"),
    # plumbing of records
    Case("record-shifted", "records shifted", "qwen3", "bfloat16", "batch top5",
         "a token's record is the one of the token before; the first has its own", "all but first tokens"),
    Case("record-clamped", "a bound", "llama", "float32", "top5 peaked",
         "records below -4 are -4", "unlikely draws"),
    Case("record-last-entry", "records of one token", "qwen2", "bfloat16", "top5 batch",
         "a token that is not of the top 5 has the record of the fifth", "draws outside the top 5"),
    Case("record-probability", "a function of the value", "mamba2", "float32", "top5",
         "records are probabilities", "all decode"),
    # replicas, samples, speculation
    Case("replica-stale", "not repeatable: servers take turns", "qwen3", "float32", "top5 batch",
         "two replicas take turns; one has the last layer of an earlier step", "every second request"),
    Case("samples-share-cache", "the fork", "llama", "float32", "batch top5",
         "n samples of a request share their prompt's last page of 16, and write their tokens into it",
         "n > 1"),
    Case("draft-record", WEIGHTS, "qwen3", "float32", "top5",
         "a draft of the first layer alone proposes; accepted tokens keep the draft's record", "accepted tokens"),
    Case("draft-not-rolled-back", "decode alone; " + UNNAMED, "qwen2", "float32", "top5",
         "keys of rejected proposals stay in the cache and are attended to", "all tokens behind a rejection"),
]

SOUND = [
    Case("sound-" + name, CLEAN, model, kind, habits, planted, "nothing") for name, model, kind, habits, planted in [
        ("llama-f32-eager", "llama", "float32", "eager top5", ""),
        ("llama-bf16-batch", "llama", "bfloat16", "batch top5", ""),
        ("llama-f16-peaked", "llama", "float16", "batch top20 peaked", ""),
        ("qwen2-bf16-unseeded", "qwen2", "bfloat16", "batch top1 unseeded one", ""),
        ("qwen2-f32-prefix", "qwen2", "float32", "batch prefix top5", ""),
        ("qwen3-bf16-prefix-chunk", "qwen3", "bfloat16", "batch prefix chunk top5", ""),
        ("qwen3-f32-eager-prefix", "qwen3", "float32", "batch eager prefix top5", "records before temperature"),
        ("qwen3moe-bf16", "qwen3moe", "bfloat16", "batch top5", ""),
        ("qwen3moe-f32-peaked", "qwen3moe", "float32", "batch top5 peaked", ""),
        ("mamba-f32", "mamba", "float32", "batch top5", ""),
        ("mamba-bf16-one", "mamba", "bfloat16", "top5 one", ""),
        ("mamba2-f32", "mamba2", "float32", "top5", ""),
        ("mamba2-bf16-peaked", "mamba2", "bfloat16", "top20 peaked", ""),
        ("jamba-f32-prefix", "jamba", "float32", "prefix top5", "hits restore every state"),
        ("jamba-bf16-batch", "jamba", "bfloat16", "batch top5", ""),
        ("qwen3next-bf16", "qwen3next", "bfloat16", "batch top5", ""),
        ("mistral-window-f32", "mistral", "float32", "batch top5 chunk", ""),
        ("llama-f32-four-digits", "llama", "float32", "batch top5 digits4", "all values have four decimals"),
        ("qwen3-f32-keys-f16", "qwen3", "float32", "batch top5 keysf16", "keys and values lie in f16"),
        ("qwen2-f16-chunk", "qwen2", "float16", "batch chunk top1", ""),
    ]
]
CASES = FAULTS + SOUND
BY_NAME = {c.name: c for c in CASES}

# What a report says where it means a family, and what is near: the keys of ANSWERS, or a report's own words. Also
# written before anything was run.
DECODE, NAMELESS = "other arithmetic in decode", "not named"
JUDGED = {
    "kv-slot-before-border": (["page"], ["length"]),
    "kv-ring-wraps": (["length"], ["page"]),
    "kv-four-bits": (["keys and values in 8 bits", NAMELESS], [DECODE, "weights", "head"]),
    "prefix-no-parent": (["across"], ["restore"]),
    "prefix-last-twice": (["restore"], ["across", "tokens"]),
    "prefix-no-conv": (["restore"], ["across"]),
    "prefix-tail-unwritten": (["restore"], ["across"]),
    "scan-slot-dirty": (["stale"], ["repeat"]),
    "conv-window-late": ([NAMELESS, DECODE], ["state lost between chunks"]),
    "state-lost-at-chunk": (["length"], ["page"]),
    "delta-pads-count": (["padding"], ["mixed", "kernel"]),
    "batch-positions-padded": (["padding"], ["mixed", "kernel"]),
    "batch-compacted-tokens": (["mixed"], ["shift", "kernel", "repeat"]),
    "batch-kernel-unscaled": (["kernel"], ["mixed"]),
    "batch-filler-row": (["mixed", "padding"], ["kernel"]),
    "chunk-positions-restart": (["length"], ["page"]),
    "preempted-loses-last": (["preempt"], ["mixed"]),
    "record-of-temperature": (["temperature"], ["value"]),
    "penalty-by-default": (["penalty"], ["value", "weights"]),
    "top-p-by-default": (["top-k or top-p on one side only"], ["value", "temperature"]),
    "min-tokens-masks-end": (["eos"], ["value", "penalty"]),
    "weights-partly-updated": (["weights"], ["head"]),
    "weights-lora-twice": (["weights"], ["head"]),
    "weights-tied-head-stale": (["weights"], [DECODE, "head"]),
    "head-five-bits": (["head"], ["value", "weights", DECODE]),
    "window-forgotten": (["length"], ["page"]),
    "decode-position-ahead": ([NAMELESS, DECODE, "positions or scale of attention"], ["tokens", "weights", "length"]),
    "experts-not-renormalised": (["weights", DECODE], []),
    "experts-capacity": (["kernel"], ["mixed"]),
    "experts-replay-late": ([NAMELESS, DECODE], ["weights"]),
    "round-trip-merges": (["tokens"], []),
    "second-bos": (["tokens"], [DECODE]),
    "record-shifted": (["shift"], []),
    "record-clamped": (["log-probabilities clamped"], ["value"]),
    "record-last-entry": (["records of other tokens", "log-probabilities clamped"], ["value", "missing"]),
    "record-probability": (["value"], ["shift", "temperature"]),
    "replica-stale": (["repeat"], ["weights", "mixed"]),
    "samples-share-cache": (["fork"], ["mixed"]),
    "draft-record": (["weights"], [DECODE, "value"]),
    "draft-not-rolled-back": ([NAMELESS, DECODE], ["tokens", "length", "shift"]),
}


def words(families):
    return tuple(word for f in families for word in ANSWERS.get(f, (f,)))


def cases():
    """For script/probe-table. A hash of the name says whether a user has the checkpoint."""
    for i, c in enumerate(CASES):
        right, near = JUDGED.get(c.name, ([CLEAN], []))
        yield {"name": "eighth-" + c.name, "model": "eighth-" + c.model + "+peaked" * ("peaked" in c.habits.split()),
               "fault": "none" if c.family == CLEAN else c.name, "words": ["--case", c.name], "seed": 500 + i,
               "half": "eighth", "server": "eighth.py", "right": words(right), "near": words(near),
               "checkpoint": hashlib.sha256(c.name.encode()).digest()[0] % 2 == 1 or c.name in BOTH_SIDES}


FOR_TABLE = list(cases())
