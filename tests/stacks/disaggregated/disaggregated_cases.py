"""Suspects: one planted fault each in relay.py (numpy), or none.

TABLE is read as that of ../padded_ring/padded_ring_cases.py; numbers of issues stand beside the faults in faults.py.
"""

import hashlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "paged_tree"))
from paged_tree_cases import FAMILIES, FORMULA, NO_FAMILY, OTHER_STATE, RIGHT  # noqa: E402

N, D, B, MOE, ODD, TEXT, SORT = "jamba-nobias jamba-dense jamba-bf16 jamba-moe jamba-odd tiny-text tiny-sort".split()
M, MO, SHARDED = "mamba-small", "mamba-odd", "jamba-sharded"
DRAFT, DRAFTS, JOINT, TWO, MUTE = "--draft 1", "--draft 3", "--workers joint", "--replicas 2", "--silent yes"
FEW, FEWER = "--obeys samples,batch", "--obeys samples,batch,chunk,slots,prefix,page"
TF32, F16KV = "--arith tf32", "--kv f16"
TABLE = {
    "clean": [("", N), ("", D), ("", B, F16KV), ("", MOE, DRAFT), ("", ODD, JOINT), ("", TEXT, FEW), ("", SORT, FEWER),
              ("", SHARDED, MUTE), ("", M), ("", MO, DRAFTS), ("", M, TWO), ("", MOE, JOINT + " " + F16KV)],
    "precision": [("", MO, TF32), ("", B, "--arith bf16"), ("", D, "--load f16"), ("", M, "--load bf16"),
                  ("", TEXT, TF32)],
    "slot": [("state-not-cleared:1", M), ("state-not-cleared", TEXT, FEWER), ("window-not-cleared", D),
             ("odd-slots-not-cleared", MO), ("channels-cleared:8", MOE, JOINT), ("first-admitted-cleared", SORT),
             ("short-prompt-not-cleared:3", N), ("handed-state-added", M)],
    "wrap": [("prefill-write-u32:122880", M, "", ("slot", 34953)),
             ("prefill-write-u32:94208", TEXT, "", ("slot", 45591)),
             ("decode-read-i32:57344", D, "", ("slot", 37450)), ("window-bytes-u32:20480", MO, "", ("slot", 52429)),
             ("prefill-read-bytes-i32:28672", SORT, MUTE, ("slot", 18725)),
             ("decode-write-i32:131072", MOE, "", ("slot", 16384)), ("table-of-slots:12", MOE, "", ("batch", 13)),
             ("table-of-slots:20", M, JOINT, ("batch", 21))],
    "mixing": [("table-of-last-step", M), ("half-written-to-other-half:4", D), ("dead-row-steps", MO),
               ("dummy-row-steps", M, JOINT), ("slot-freed-twice", D), ("sampler-one-row-off", MOE)],
    "packed": [("state-of-last-piece:1", D), ("window-of-last-piece", MO), ("all-of-last-piece", SORT),
               ("keys-of-last-piece", MOE)],
    "padding": [("filled-to-longest", M), ("filled-to:8", D), ("filled-in-front", MO), ("filled-to:16", B)],
    "batch path": [("rows-bf16:7", M, "", ("batch", 7)), ("rows-tf32:10", MO, "", ("batch", 10)),
                   ("rows-state-bf16:6", D, "", ("batch", 6)), ("rows-gate-e4m3:14", MOE, "", ("batch", 14)),
                   ("rows-gate-e4m3:3", B, FEW, ("batch", 3))],
    "cache cross": [("page-by-first:2", M), ("page-by-first:1", D), ("page-without-parent", B),
                    ("page-without-parent", MO), ("first-page-in-bits:2", MOE), ("page-without-parent", TEXT, FEWER)],
    "cache state": [("snapshot-early:1", M), ("snapshot-window-early", MO), ("branch-has-state-of-leaf", D),
                    ("hit-without-layer:1", N), ("hit-without-page", MOE), ("keys-deeper-than-state", SORT),
                    ("snapshot-early:3", TEXT, MUTE)],
    "window": [("odd-piece-turns-window", M), ("window-loses-oldest:2", MOE), ("window-two-late", D),
               ("window-loses-oldest:1", MO)],
    "chunk": [("state-dropped:1", D), ("state-in-e4m3-between", MO), ("state-percent-between:97", M),
              ("third-piece-from-zero", SORT)],
    "page": [("rows-read-of-page:8", MOE, "", ("page", 16)), ("rows-read-of-page:32", D, "", ("page", 64)),
             ("last-row-of-page-unseen", SORT), ("splits-averaged", MOE), ("first-page-for-last", D)],
    "length": [("window-of:34", MOE, "", ("length", 35)), ("keys-to:48", D, "", ("length", 49)),
               ("piece-bf16-from:90", MO, "", ("length", 90)), ("middle-cut:62", M, "", ("length", 63)),
               ("state-fades-from:40", SORT, FEW, ("length", 41))],
    "decode": [("handed-then-cleared", M), ("handed-in-another-order", D), ("handed-by-half", MO),
               ("handed-without-last-page", MOE), ("handed-in-e4m3", TEXT), ("guess-stays-in-state", M, DRAFT),
               ("guess-stays-in-window", MO, DRAFTS), ("step-state-bf16", D), ("step-without-skip", MO),
               ("step-gate-is-sigmoid", MOE), ("step-with-old-weights:1", D), ("window-after-convolution", SORT)],
    "preempt": [("swapped-without-window", M), ("swapped-layer-lost:2", MO), ("swapped-pages-turned", MOE),
                ("read-again-without-newest", D), ("read-again-on-old-state", B), ("swapped-in-int4", SORT)],
    "random": [("copy-not-waited-for", M), ("split-at-random", MOE), ("noise-on-states:20", D),
               ("noise-on-logits:4", MO), ("noise-on-states:3", TEXT)],
    "temperature": [("temperature-floor:120", M), ("temperature-ceiling:100", D), ("always-divided:96", MO),
                    ("always-processed", MOE), ("never-processed", SORT), ("multiplied-not-divided", B)],
    "top-k": [("k:40", M), ("p:95", D), ("min-p:5", MOE), ("k:20", TEXT), ("sigmas:1", MO)],
    "penalty": [("repetition-of-drawn:120", M), ("repetition-of-prompt:110", D), ("presence-of-all:50", MO),
                ("frequency-of-drawn:40", SORT)],
    "eos": [("end-quarters-state", B), ("end-embeds-nothing", MOE), ("end-never-drawn", SORT),
            ("end-quarters-state", MO)],
    "tokens": [("begin-in-front", D), ("high-ids-unknown:80", M), ("ids-moved:1", MOE), ("newline-behind:13", SORT),
               ("first-token-lost", B), ("ends-taken-out", M)],
    "shift": [("late-after-zero", D), ("late-by:2", MO), ("early-by:1", SORT), ("late-from:3", M)],
    "records": [("best-for-drawn", M), ("logarithm-to-base-10", D), ("not-below:50", MO), ("decimals:1", MOE),
                ("probability-for-logarithm", SORT), ("next-id-recorded", TEXT)],
    "head": [("head-weight-in:int4-row", D), ("head-weight-in:e4m3", M), ("head-input-e4m3", SORT),
             ("logits-in:bf16", B), ("logits-in:e4m3", MO)],
    "weights": [("layer-behind:1", M), ("layer-behind:3", D), ("all-behind:15", MO), ("all-behind:4", TEXT),
                ("square-transposed:2", D), ("scale-lost:0", B), ("adapter-on-some:20", M), ("skip-zero-in-layer:1", D),
                ("norm-of-layer-ones:3", ODD), ("layer-int4:1", MO), ("all-int8-tensor", SORT),
                ("experts-reversed:1", MOE), ("embedding-behind:20", M), ("replica-behind:30", D, TWO)],
    "formula": [("eps-millionths:3000", MO), ("decay-to-base-2", M), ("dt-at-most:50", D), ("bias-behind-silu", D),
                ("no-norm-of-dt", MOE), ("one-expert-more", MOE), ("experts-of-sum-one", TEXT),
                ("embedding-times-root", M)],
    "attention": [("rotary:10000", D), ("scale-percent:120", MOE), ("itself-unseen", SORT), ("heads-turned", D),
                  ("scale-by-length", B)],
    "kv": [("keys-in:e5m2", B), ("values-in:e4m3", D), ("cache-in:int4-row", MOE), ("cache-in:e5m2", TEXT)],
    "hang": [("dies-in-mixed-tick", M), ("waits-with-rows:5", D), ("dies-with-tokens:120", MO)],
    "no family": [("mean-recorded", M), ("entropy-recorded", D), ("least-so-far", MOE)],
}
# What else is a fair answer.
ALSO = {
    "handed-state-added": FAMILIES["decode"],
    **dict.fromkeys(("dead-row-steps", "slot-freed-twice"), FAMILIES["slot"] + FAMILIES["preempt"] + NO_FAMILY),
    "dummy-row-steps": FAMILIES["padding"],
    "sampler-one-row-off": FAMILIES["records"] + NO_FAMILY,
    "handed-by-half": FAMILIES["slot"],
    "handed-without-last-page": FAMILIES["page"],
    **dict.fromkeys(("window-after-convolution", "odd-piece-turns-window"), FAMILIES["window"] + FAMILIES["decode"]),
    "first-page-for-last": FAMILIES["length"],
    "splits-averaged": FAMILIES["length"] + FAMILIES["attention"],
    "last-row-of-page-unseen": FAMILIES["attention"],
    "middle-cut": FAMILIES["tokens"],
    "ends-taken-out": FAMILIES["eos"],
    "replica-behind": NO_FAMILY,
    "state-in-e4m3-between": NO_FAMILY,
    "logits-in": FAMILIES["records"],
    "always-processed": FAMILIES["records"],
    "not-below": NO_FAMILY,
    "best-for-drawn": NO_FAMILY,
    "sigmas": NO_FAMILY,
    "embedding-behind": FORMULA,
    **dict.fromkeys(("square-transposed", "scale-lost", "skip-zero-in-layer", "norm-of-layer-ones", "experts-reversed",
                     "adapter-on-some"), FORMULA),
    **dict.fromkeys(("keys-of-last-piece", "hit-without-page"), NO_FAMILY),
    **dict.fromkeys(("heads-turned", "itself-unseen"), FORMULA),
}
TRIALS = {"floor": {"temperature": 0.8, "logprobs": "processed"},
          "pressed": {"batch": 5, "preempt-every": 2, "slots": 7}}
TRIALS_OF = {
    "hang": ["crowd", "mixed"],
    "mixing": ["trio", "crowd", "batch", "pressed"], "temperature": ["solo", "floor", "hot"],
    "page": ["page-4", "page-64", "solo"], "decode": ["solo", "batch"], "preempt": ["recompute", "swap", "pressed"],
    "packed": ["batch", "crowd"], "padding": ["batch", "crowd"], "slot": ["one-slot", "few-slots", "batch"],
}


def case(family, bug, model, more="", threshold=None):
    name = f"relay:{bug or 'clean'}@{model}" + "".join("+" + w.lstrip("-") for w in more.split())
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    right = dict.fromkeys(RIGHT[family] + ALSO.get(bug.split(":")[0], ()))
    return {"name": name, "family": family, "program": "../disaggregated/relay.py", "model": model, "half": half,
            "args": ["--bug", bug] + more.split(), "threshold": threshold, "right": tuple(right), "needs": ()}


CASES = [case(family, *row) for family, rows in TABLE.items() for row in rows]
assert len({c["name"] for c in CASES}) == len(CASES)
