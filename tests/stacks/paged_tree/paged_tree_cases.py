"""The second list of suspects, of other makes than ../cases.py: one planted fault each, with the incident it follows.

A case has a name, a family, the program (stack.py or hub.py), a model, its arguments, a threshold that has to be found
exactly (lever and value), a half by a hash of its name, and `right`: what may be answered. That is the family's causes
unless the case says otherwise; "clean" stands for exit code 0, "not named" for a difference without a name.

hub.py needs torch and transformers: `needs` says so. A length is the number of tokens before the one that is recorded.
"""

import hashlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import FAMILIES  # noqa: E402

# A fault that the table of causes has no word for: it has to be seen, and no name fits.
NO_FAMILY = ("not named",)
RIGHT = {
    **FAMILIES,
    "clean": ("clean",),
    # What is not a fault but a coarser format: clean within its noise, or told by the name of the format.
    "precision": ("clean", "weights in low precision", "log-probabilities in low precision", "head in low precision"),
    "no family": NO_FAMILY,
}

N, D, B = "jamba-nobias", "jamba-dense", "jamba-bf16"
MOE, ODD, SHARDED, TEXT, SORT = "jamba-moe", "jamba-odd", "jamba-sharded", "tiny-text", "tiny-sort"
FORMULA = ("another formula in the model", "other weights or another formula")
OTHER_STATE = ("another sequence's state is read", "no reset between packed sequences")


def case(family, bug, model=D, threshold=None, more=(), right=None, program="stack.py"):
    words = list(more)
    name = f"{program[:-3]}:{bug or 'clean'}@{model}" + "".join(f"+{w.lstrip('-')}" for w in words)
    if right is None:
        right = RIGHT[family]
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    return {
        "name": name,
        "family": family,
        "program": program,
        "model": model,
        "args": ["--bug", bug] + words,
        "half": half,
        "threshold": threshold,
        "right": tuple(right),
        "needs": ("torch", "transformers") if program == "hub.py" else (),
    }


def hub(family, bug, model=D, threshold=None, more=(), right=None):
    return case(family, bug, model, threshold, more, right, "hub.py")


TF32, BF16, F16KV = ("--arith", "tf32"), ("--arith", "bf16"), ("--kv", "f16")
FEW = ("--obeys", "samples,batch,chunk,page,prefix")
FEWER = ("--obeys", "samples,batch")
MUTE = ("--silent", "yes")
HUB_CHUNK, HUB_PREFIX = ("--obeys", "samples,batch,chunk"), ("--obeys", "samples,batch,prefix")

CASES = [
    # Sound stacks. Float32 in another order is clean on every model and with every set of levers.
    case("clean", "", D),
    case("clean", "", N),
    case("clean", "", B),
    case("clean", "", MOE),
    case("clean", "", ODD),
    case("clean", "", SORT),
    case("clean", "", TEXT, None, FEW),
    case("clean", "", SHARDED, None, FEWER),
    case("clean", "", D, None, MUTE),
    case("clean", "", B, None, F16KV),  # the default of llama.cpp's cache
    case("clean", "", ODD, None, ("--obeys", "samples,batch,chunk,tick-tokens,page,slots,policy,prefix,fork")),
    case("precision", "", D, None, TF32),  # allow_tf32 of torch: noise of products, without structure
    case("precision", "", TEXT, None, BF16),  # activations of bf16 beside a trainer in f32, the usual pair
    case("precision", "", D, None, ("--load", "bf16")),  # the checkpoint is f32, the server loads bf16
    case("precision", "", MOE, None, ("--load", "f16")),
    # jamba-nobias has no attention: nothing is kept in pages.
    case("clean", "", N, None, F16KV),
    # Slots. vllm#32118: a first chunk of one token is taken for decode. vllm#56524: blocks handed out without
    # zeroing.
    case("slot", "first-chunk-of-one-is-decode", D),
    case("slot", "first-chunk-of-one-is-decode", ODD, None, FEW),
    case("slot", "cells-not-cleared", B),
    case("slot", "window-not-cleared", MOE),
    case("slot", "cells-not-cleared-in-layer:3", D),
    case("slot", "clear-overtaken", SORT, None, FEWER),
    # Offsets. vllm#35275 (scan, elements), the page of the 3B when padded, vllm#20016 and #20938 (bytes;
    # convolution), narrow ids as in xFormers#719; one that reads and writes alike, and shows only when two live
    # sequences share a place.
    case("wrap", "scan-offset-u32", D, ("slot", 47935)),
    case("wrap", "scan-offset-u32:1", N, ("slot", 47663)),
    case("wrap", "scan-offset-i32", MOE, ("slot", 23968)),
    case("wrap", "scan-bytes-i32", N, ("slot", 5992)),
    case("wrap", "scan-bytes-u32", SORT, ("slot", 11984)),
    case("wrap", "window-bytes-u32", D, ("slot", 11984)),
    case("wrap", "slot-id-narrow:32768", SORT, ("slot", 32768)),
    case("wrap", "decode-reads-narrow-slot:256", D, ("slot", 256)),
    case("wrap", "slot-id-narrow-both:32", N, ("batch", 33)),
    case("wrap", "slot-id-narrow-both:16", MOE, ("batch", 17)),
    # Neighbours. vllm#37728 (rows of a table that was not compacted), #35431 (padding rows point at somebody's slot),
    # logits of a mixed step taken one row off, samples that share the page they write.
    case("mixing", "recorded-rows-stale", D, None, (), OTHER_STATE + ("padding leaks into the state",)),
    case("mixing", "padding-rows-in-slot-zero", D, None, (), OTHER_STATE + ("padding leaks into the state",)),
    case("mixing", "rows-of-mixed-step", N),
    case("mixing", "table-not-compacted", D),
    case("mixing", "fork-shares-last-page", D, None, (), OTHER_STATE + ("not named",)),
    case("mixing", "fork-without-window", N, None, (), OTHER_STATE + ("not named",)),
    # Packed rows. SkyRL#2056, NeMo-RL#2529 (seq_idx never built), prime-rl#3000.
    case("packed", "window-packed", D),
    case("packed", "window-packed", ODD, None, FEW),
    case("packed", "cells-packed", N),
    case("packed", "attention-packed", B),
    # Padding. transformers#32914 and #48256; prompts filled up to a bucket of lengths, as on TPUs.
    case("padding", "left-padding", B),
    case("padding", "right-padding", SORT),
    case("padding", "bucket-padding:8", D),
    hub("padding", "padding-not-masked", D),
    hub("padding", "padded-on-the-right", MOE),
    hub("padding", "padding-not-masked", TEXT),
    # Arithmetic by batch. RL-Kernel#394 (tiles by rows), partial sums of bf16 in a split along K.
    case("batch path", "large-batch-gemm:6", D, ("batch", 6)),
    case("batch path", "large-batch-gemm:3", MOE, ("batch", 3)),
    case("batch path", "tile-by-rows:40", N, None, (), FAMILIES["batch path"] + ("wrong from a length on",)),
    # Prefix cache, whose entry. Keys that leave something out; a block published before it is written (vllm#29387,
    # #56525).
    case("cache cross", "key-of-page-alone", D),
    case("cache cross", "key-without-last-tokens", MOE),
    case("cache cross", "key-narrow:7", B),
    case("cache cross", "key-of-first-token", N, None, FEW),
    hub("cache cross", "cache-by-length", D, None, HUB_PREFIX),
    # Prefix cache, which state. vllm#34587 (state of the chunk's end), #43090 (hit of attention alone), #56196 (a
    # short tail writes into the shared entry), a crop that leaves recurrent states where they are (llama.cpp,
    # transformers).
    case("cache state", "snapshot-at-end-of-chunk", D),
    case("cache state", "attention-hit-alone", B),
    case("cache state", "published-early", D, None, (), FAMILIES["cache state"] + FAMILIES["cache cross"]),
    case("cache state", "tail-writes-shared-window", D),
    case("cache state", "snapshot-without-window", TEXT),
    case("cache state", "snapshot-not-copied", N),
    hub("cache state", "crop-leaves-states", D, None, HUB_PREFIX),
    case(
        "no family", "snapshot-in-bf16", D
    ),  # SGLang's choice of the type of a cached state: seen, small, no such cause
    # Chunks. transformers#46741; a chunk shorter than the window; LSE merge of cascade attention (vllm#22103).
    case("window", "window-zero-in-later-chunks", D),
    case("window", "window-late-in-later-chunks", ODD),
    case("window", "short-chunk-replaces-window", N),
    case("window", "short-chunk-replaces-window", SORT),
    case("chunk", "cells-zero-in-later-chunks", MOE),
    case("chunk", "cells-half-in-later-chunks", D, None, FEW),
    case("chunk", "earlier-chunks-unseen", D),
    hub("chunk", "prompt-in-chunks", D, None, HUB_CHUNK),
    # Pages. Slot mapping off by one at a page's border; a kernel made for pages of 16; merging without rescaling
    # (flash-attention#87); the last page read to its end (vllm#35138).
    case("page", "first-of-page-not-stored", D),
    case("page", "last-of-page-stored-late", B),
    case("page", "page-rows-read:16", D, ("page", 32)),
    case("page", "merge-without-rescale", SORT),
    # Lengths. A sliding window on one side, the end of a table, a scan that loads so many rows (2,048 in vLLM's "all"
    # mode).
    case("length", "sliding-window:33", D, ("length", 34)),
    case("length", "sliding-window:70", B, ("length", 71)),
    case("length", "keys-end:48", D, ("length", 49)),
    case("length", "limit-of-scan:60", N, ("length", 61)),
    hub("length", "window-of-context:40", D, ("length", 41)),
    # Decode. vllm#37310 (the last token of the prompt twice), NeMo-RL#2895 (graphs that keep old weights), softplus
    # in Triton, state types of decode (vllm#55524), a ring that was not turned, autocast.
    case("decode", "last-token-again", D),
    case("decode", "decode-recorded-before-update:1", D),
    case("decode", "softplus-in-decode", D),
    case("decode", "cells-f16-in-decode", B),
    case("decode", "cells-e4m3-in-decode", SORT),
    case("decode", "handover-without-window", MOE),
    case("decode", "handover-without-cells", ODD),
    case("decode", "ring-not-turned", N),
    hub("decode", "autocast-in-decode", D),
    # Preemption. vllm#37796 (state not saved), vllm-metal#488 (resumed on its old state), sglang#27140 (buffers after
    # sleep).
    case("preempt", "swap-without-cells", D),
    case("preempt", "swap-without-window", N),
    case("preempt", "resumed-on-old-state", MOE),
    case("preempt", "sleep-loses-state", D, None, (), FAMILIES["preempt"] + ("memory given back is not restored",)),
    case("preempt", "swap-in-half", SORT),
    case("preempt", "resumed-on-old-state", SORT, None, MUTE),
    # Not repeatable. Atomics, races, dropout left on.
    case("random", "atomics:300", D),
    case("random", "race-of-windows", N),
    case("random", "race-of-states", SORT),
    case("random", "atomics-of-head:200", B),
    case("random", "atomics:20", MOE),
    hub("random", "dropout:1", D),
    # Temperature. trl#4159, prime-rl#697, defaults of generation_config.
    case("temperature", "raw-for-processed", SORT),
    case("temperature", "processed-for-raw", MOE),
    case("temperature", "temperature-twice", N),
    case("temperature", "temperature-of-log", TEXT),
    case("temperature", "temperature-default:60", D),
    case("temperature", "temperature-default:97", B),
    hub("temperature", "temperature-not-mirrored", D),
    hub("temperature", "scores-are-processed", MOE),
    # Filters. verl#6240, trl#6789; 50 is what generate() of transformers does unless told.
    case("top-k", "top-k-default:30", N),
    case("top-k", "top-p-default:85", B),
    case("top-k", "min-p-default:5", D),
    case("top-k", "top-p-default:99", MOE),
    hub("top-k", "top-k-of-config:50", D),
    # Penalties. NeMo-RL#3497, prime-rl#886.
    case("penalty", "repetition-default:110", B),
    case("penalty", "frequency-default:50", D),
    case("penalty", "presence-of-prompt:40", MOE),
    case("penalty", "frequency-default:5", N),
    hub("penalty", "repetition-of-config:120", D),
    # End of sequence. trl#4970 (padding is EOS), packed documents told apart by EOS, min_tokens.
    case("eos", "end-is-padding", D),
    case("eos", "attention-from-end", D),
    case("eos", "end-resets-cells", MOE),
    case("eos", "end-masked", MOE),
    hub("eos", "pad-is-end", D),
    # Tokens. trl#3853 (BOS twice), trl#5224 and rllm#272 (through text and back), a template's last newline, ids out
    # of range.
    case("tokens", "begin-added-if-missing", MOE),
    case("tokens", "begin-always-added", B),
    case("tokens", "specials-stripped", N),
    case("tokens", "retokenised", D),
    case("tokens", "last-token-stripped", ODD),
    case("tokens", "newline-appended", D),
    case("tokens", "cut-on-the-left:35", B, None, (), FAMILIES["tokens"] + ("wrong from a length on",)),
    hub("tokens", "begin-doubled", D),
    hub("tokens", "end-of-turn-appended", MOE),
    # Records one place off (asynchronous scheduling; labels that were not shifted).
    case("shift", "record-late:1", MOE),
    case("shift", "record-early:1", B),
    case("shift", "record-late:2", D),
    hub("shift", "labels-not-shifted", D),
    # Records. Greedy values, replies of the top N only, types and decimals of a JSON, base 2.
    case("records", "best-recorded", B),
    case("records", "beyond-top-recorded-as-last:20", D),
    case("records", "neighbour-recorded", MOE),
    case("records", "record-f16", D),
    case("records", "record-decimals:3", MOE),
    case("records", "record-log2", N),
    case("records", "record-probability-f16", D),
    hub("records", "softmax-in-bf16", D, None, (), FAMILIES["records"] + FAMILIES["head"]),
    case("no family", "record-floor:50", D),  # values below -5 are cut
    # Head. maxtext#5231 (lattice of bf16 logits), trl#4303, FP8 heads.
    case("head", "head-logits-bf16", D),
    case("head", "head-bf16", MOE),
    case("head", "head-logits-f16", B),
    case("head", "head-int8-row", D),
    case("head", "head-e4m3", SORT),
    hub("head", "head-in-bf16", D),
    case(
        "no family", "padded-vocabulary", MOE, None, (), NO_FAMILY + FORMULA
    ),  # rows of zeros up to a multiple of 64 take part
    # Weights. Merged projections in another order, NeMo-RL#3225 (scales lost), trl#5312 (buffers dropped), verl#7495
    # (adapter not delivered), an old head beside a new embedding, stale policies.
    case("weights", "gate-up-exchanged:1", D),
    case("weights", "in-proj-halves-exchanged:0", N),
    case("weights", "norm-dropped:2", B),
    case("weights", "scale-dropped:1", D),
    case("weights", "layer-four-bits:0", D),
    case("weights", "layer-eight-bits:3", B),
    case("weights", "layer-older:1", SORT),
    case("weights", "layer-of-next:0", D),
    case("weights", "experts-exchanged:1", MOE),
    case("weights", "head-of-older-policy", N),
    case("weights", "all-older:50", D),
    case("weights", "all-older:5", B),
    case("weights", "all-older:1", MOE),
    case("weights", "adapter-not-delivered", D),
    case("weights", "all-eight-bits", N),
    case("weights", "embedding-four-bits", D),
    case("weights", "bias-not-loaded", D, None, (), FAMILIES["weights"] + FORMULA),
    case("weights", "skip-not-loaded", N, None, (), FAMILIES["weights"] + FORMULA),
    hub("weights", "layer-older:0", D),
    hub("weights", "layer-exchanged:0", B),
    hub("weights", "head-not-tied", D),
    hub("weights", "weights-bf16", D),
    # Formulas. Vanilla Mamba without the norms of B and C, HF's slow path (bias), mlx-lm (renormalised experts), eps.
    case("formula", "no-norms-of-b-and-c", D),
    case("formula", "dt-bias-twice", N),
    case("formula", "experts-renormalised", MOE),
    case("formula", "one-expert-fewer", MOE),
    case("formula", "gelu", D),
    case("formula", "convolution-without-silu", B),
    case("formula", "no-skip", SORT),
    case("formula", "embedding-scaled", D),
    case("formula", "eps-outside", N),
    hub("formula", "eps:4", D),
    # Attention. Heads of GQA in another order, scale, soft cap, sink (miles#1500), positions that Jamba does not
    # have.
    case("attention", "heads-interleaved", D),
    case("attention", "scale-of-hidden", B),
    case("attention", "softcap", D),
    case("attention", "sink-on-one-side", D),
    case("attention", "positions-counted", D),
    hub("attention", "scale-of-attention", D),
    # Keys and values in 8 bits and fewer.
    case("kv", "coarse-cache", D, None, ("--kv", "e4m3")),
    case("kv", "coarse-cache", B, None, ("--kv", "int8-row")),
    case("kv", "coarse-cache", SORT, None, ("--kv", "e5m2")),
    case("kv", "coarse-cache", D, None, ("--kv", "int4-row"), FAMILIES["kv"] + ("not named",)),
    hub("kv", "keys-in-8-bits", D),
    # Stacks that stop.
    case("hang", "sleeps-for-ever:6", D),
    case("hang", "dies:5", N),
    # A state that is kept between requests, and states that are sorted otherwise than their rows: cache misuse around
    # a sound model.
    hub("slot", "cache-kept", D, None, (), FAMILIES["slot"] + OTHER_STATE),
    hub("mixing", "states-not-sorted-back", D),
    # Sound stacks by transformers.
    hub("clean", "", D),
    hub("clean", "", MOE, None, ("--attention", "eager")),
    hub("precision", "", B, None, ("--dtype-of-model", "bfloat16")),
]
assert len({c["name"] for c in CASES}) == len(CASES)
