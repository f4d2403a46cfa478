"""Suspects: one planted fault each in quorum.py (numpy), or none.

TABLE is read as that of ../padded_ring/padded_ring_cases.py; numbers of issues stand beside the faults in planted.py.
"""

import hashlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "paged_tree"))
from paged_tree_cases import FAMILIES, FORMULA, NO_FAMILY, OTHER_STATE, RIGHT  # noqa: E402

N, D, B, MOE, ODD, TEXT, SORT = "jamba-nobias jamba-dense jamba-bf16 jamba-moe jamba-odd tiny-text tiny-sort".split()
M, MO, SHARDED = "mamba-small", "mamba-odd", "jamba-sharded"
ONE, FOUR, ANY, FILL, MUTE = "--ranks 1", "--ranks 4", "--order any", "--fill 8", "--silent yes"
DRAFT, DRAFTS, FEW = "--draft 1", "--draft 3", "--obeys samples,batch"
FEWER = "--obeys samples,batch,chunk,slots,prefix,page"
TF32, F16KV, WIRE, HALF = "--arith tf32", "--kv f16", "--wire f16", "--record f16"


def first(bits, stride):
    """The first slot whose offset does not fit."""
    return "slot", -(-(2**bits) // stride)


TABLE = {
    "clean": [("", N), ("", D, FOUR), ("", B, F16KV), ("", MOE, FOUR + " " + ANY), ("", ODD, FILL), ("", TEXT, FEW),
              ("", SORT, FEWER + " " + ANY), ("", SHARDED, MUTE), ("", M, DRAFTS), ("", MO, FOUR), ("", D, DRAFT),
              ("", M, ONE), ("", B, FOUR + " " + ANY), ("", D, FILL + " " + F16KV), ("", SORT, "--captured no")],
    "precision": [("", MO, TF32), ("", M, "--wire bf16"), ("", D, "--arith bf16"), ("", B, "--wire f16"),
                  ("", MOE, "--load f16"), ("", MO, "--load bf16")],
    "slot": [("rank-not-cleared", M), ("rank-not-cleared", TEXT, FOUR + " " + FEWER), ("window-cleared-short", D),
             ("clears-run-out:5", MOE), ("cleared-below:2", SORT), ("kept-for-same-length", MO),
             ("second-after-abort", D), ("rank-not-cleared", MO, HALF)],
    "wrap": [("state-write-u32:179200", M, "", first(32, 179200)),
             ("state-read-i32:61440", MOE, FOUR, first(31, 61440)),
             ("window-read-u32:92160", MO, "", first(32, 92160)),
             ("window-write-i32:45056", SORT, MUTE, first(31, 45056)),
             ("rank-read-u32:358400", MO, ANY, first(32, 358400)), ("id-in-16-bits", B, "", ("slot", 65536)),
             ("table-of:18", MO, "", ("batch", 19)), ("table-of:9", M, FEW, ("batch", 10))],
    "mixing": [("rank-table-late", M), ("dummies-write", D), ("prompts-turned", SORT),
               ("rows-in-lanes:12", MOE, "", ("batch", 13)), ("gathered-turned", MO)],
    "packed": [("no-borders-in-layer:3", D), ("borders-to:3", MO), ("window-crosses", SORT, ANY), ("keys-cross", MOE),
               ("no-borders", B, TF32)],
    "padding": [("filling-in-all", D, FILL), ("filling-in-window", MO, "--fill 16"),
                ("filling-in-all", SORT, "--fill 32"), ("filled-in-front", M),
                ("front-masked-behind-convolution", MO)],
    "batch path": [("rows-f16:6", M, "", ("batch", 6)), ("rows-wire-bf16:9", D, FOUR, ("batch", 9)),
                   ("captured-bf16:8", MO, "", ("batch", 5)), ("exactly-bf16:8", MOE),
                   ("rows-logits-f16:11", B, "", ("batch", 11)), ("rows-state-e4m3:4", SORT, FEW, ("batch", 4))],
    "cache cross": [("name-of-sum", M), ("name-of-ends", D), ("name-in-bits:3", B), ("name-without-chain", MOE, WIRE),
                    ("name-of-first-block", TEXT, FEWER), ("name-of-sum", SORT, HALF)],
    "cache state": [("kept-early:2", M), ("kept-window-of-end", D), ("kept-of-first-rank", MO),
                    ("loaded-block-before", MOE), ("tail-into-shared", B), ("loaded-keys-of-rank-lost", TEXT),
                    ("loaded-in-int4", M)],
    "window": [("window-of-rank-lost", M), ("window-reversed", D, FOUR), ("short-piece-leaves-window", B),
               ("window-of-beginning", MO)],
    "chunk": [("state-of-rank-lost", D), ("state-in-e5m2-between", MO), ("flag-of-last", M),
              ("second-piece-from-zero", B), ("state-of-channels-lost:16", SORT, ANY)],
    "page": [("rows-of-page:16", MOE, "", ("page", 32)), ("rows-of-page:4", D, "", ("page", 8)),
             ("border-row-lost", SORT), ("table-short-at-border", MOE, FOUR), ("last-row-twice", D)],
    "length": [("sees-last:30", MOE, "", ("length", 31)), ("sees-first:56", MOE, "", ("length", 57)),
               ("positions-in:64", SORT, "", ("length", 65)), ("scan-loads:72", M, "", ("length", 73)),
               ("long-wire-bf16:88", MO, "", ("length", 88))],
    "decode": [("rejected-kept", M, DRAFTS), ("rejected-window-kept", D, DRAFTS), ("right-fed-again", MO, DRAFT),
               ("handed-without-window-of-rank", D), ("step-reduces-old", MOE), ("step-state-e5m2", B),
               ("step-without-conv-bias", M), ("step-in:bf16", MO), ("step-decay-linear", TEXT),
               ("handed-states-turned", M, HALF)],
    "preempt": [("returned-without-rank", M), ("returned-window-turned", SORT), ("returned-keys-short", MOE),
                ("returned-in-e5m2", D), ("returned-fed-twice", MO), ("again-without-first", B)],
    "random": [("unordered-bf16", M, FOUR), ("buffer-read-early", D), ("states-shaken:30", MO),
               ("logits-shaken:6", SORT), ("clear-overtaken", MOE)],
    "temperature": [("divided-behind-softmax", M), ("always-at:104", D), ("temperature-in-halves", SORT),
                    ("temperature-squared", B), ("records-raw", MOE)],
    "top-k": [("p:97", M), ("min-p:2", M), ("k-by-rank:24", MOE, FOUR), ("k:100", MO, WIRE)],
    "penalty": [("repetition:105", M), ("repetition-of-last:130", D), ("presence-of-drawn:30", SORT),
                ("frequency-of-all:8", MOE)],
    "eos": [("end-clears-state", M), ("end-hides-before", MOE), ("end-embeds-as-last", SORT), ("end-masked", MO), ],
    "tokens": [("header-in-front:17", D), ("special-ids-dropped", MOE), ("folded", SORT), ("newest-dropped", B),
               ("ids-swapped", MO), ("even-ids-in-front-lost", M)],
    "shift": [("late-round", D), ("early-round:1", MO), ("late-twice:2", SORT), ("early-to-zero", MOE),
              ("early-round:2", M, HALF)],
    "records": [("best", D), ("token-before", M), ("bits-for-nats", SORT), ("whole-parts-of:64", MO),
                ("guess", M, DRAFT), ("", MO, "--record bf16"), ("", TEXT, "--record e5m2"), ("", D, "--record f16")],
    "head": [("head-in:bf16", MO), ("head-in:int8-row", M), ("head-input-in:e4m3", D), ("logits-in:f16", B),
             ("head-in:int4-row", MOE, ANY)],
    "weights": [("rank-behind:20", M), ("rank-behind:60", D, FOUR), ("layer-behind:2", MO), ("all-behind:6", SORT),
                ("ranks-exchanged:1", D), ("experts-one-on:1", MOE), ("adapter-always:15", M),
                ("adapter-of-queries:60", D), ("layer-in-e4m3:1", MO), ("conv-bias-of-rank-lost", M),
                ("head-behind:15", MOE), ("last-norm-ones", SORT)],
    "formula": [("eps-millionths:5000", M), ("gate-is-gelu", SORT), ("convolution-relu", MO), ("no-norm-of-c", D),
                ("rates-by-root", M), ("dt-at-least:100", MO), ("share-of-kept", ODD), ("skip-twice", N)],
    "attention": [("rotary:500000", D), ("scale-percent:70", MOE), ("capped:1", SORT), ("sink", TEXT),
                  ("slope:40", D)],
    "kv": [("keys-in:e4m3", SORT), ("values-in:int8", D), ("rank-cache-in:e5m2", MOE), ("cache-in:e4m3-small", B),
           ("cache-in:int8-row", TEXT, FEW)],
    "hang": [("waits-for-slots", M), ("dies-with-rows:9", D), ("waits-when-mixed", MO), ("dies-behind:100", SORT)],
    "no family": [("own-words-alone", M), ("averaged", D), ("experts-full:5", MOE), ("running-mean", SORT)],
}
# What else is a fair answer.
ALSO = {
    "second-after-abort": FAMILIES["preempt"],
    "dummies-write": FAMILIES["padding"],
    "gathered-turned": FAMILIES["records"] + NO_FAMILY,
    "flag-of-last": FAMILIES["packed"] + NO_FAMILY,
    "tail-into-shared": FAMILIES["window"],
    "short-piece-leaves-window": FAMILIES["decode"],
    **dict.fromkeys(("loaded-in-int4", "loaded-keys-of-rank-lost"), NO_FAMILY),
    "border-row-lost": FAMILIES["length"],
    **dict.fromkeys(("table-short-at-border", "last-row-twice"), FAMILIES["length"] + FAMILIES["attention"]),
    "state-in-e5m2-between": NO_FAMILY,
    "handed-states-turned": FAMILIES["slot"],
    "temperature-in-halves": NO_FAMILY,
    "records-raw": FAMILIES["records"],
    "end-hides-before": FAMILIES["attention"],
    "special-ids-dropped": FAMILIES["eos"],
    **dict.fromkeys(("even-ids-in-front-lost", "folded"), NO_FAMILY),
    "token-before": NO_FAMILY,
    "logits-in": FAMILIES["records"],
    **dict.fromkeys(("ranks-exchanged", "experts-one-on", "adapter-always", "adapter-of-queries", "rank-behind",
                     "conv-bias-of-rank-lost", "last-norm-ones", "head-behind"), FORMULA),
    "own-words-alone": FAMILIES["top-k"] + FAMILIES["records"],
    "experts-full": OTHER_STATE + FAMILIES["batch path"] + FAMILIES["length"],
    **dict.fromkeys(("averaged", "running-mean"), FAMILIES["records"]),
    "clear-overtaken": FAMILIES["slot"],
}


def case(family, bug, model, more="", threshold=None):
    name = f"quorum:{bug or 'clean'}@{model}" + "".join("+" + w.lstrip("-") for w in more.split())
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    right = dict.fromkeys(RIGHT[family] + ALSO.get(bug.split(":")[0], ()))
    return {"name": name, "family": family, "program": "../tensor_parallel/quorum.py", "model": model, "half": half,
            "args": ["--bug", bug] + more.split(), "threshold": threshold, "right": tuple(right), "needs": ()}


CASES = [case(family, *row) for family, rows in TABLE.items() for row in rows]
assert len({c["name"] for c in CASES}) == len(CASES)
