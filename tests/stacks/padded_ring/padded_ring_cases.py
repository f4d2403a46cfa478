"""Suspects: one planted fault each, in ring.py (numpy) and replay.py (transformers), or none.

TABLE has, by family, a fault with its number, the model, and where there are any further arguments and the threshold
that has to be found exactly. Names, halves, thresholds and `right` are as in ../paged_tree/paged_tree_cases.py; ALSO says what
else may be answered for one fault. Numbers of issues stand beside the faults they are kin of, here
or where the fault is.
"""

import hashlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "paged_tree"))
from paged_tree_cases import FAMILIES, FORMULA, NO_FAMILY, OTHER_STATE, RIGHT  # noqa: E402

N, D, B, MOE, ODD, TEXT, SORT = "jamba-nobias jamba-dense jamba-bf16 jamba-moe jamba-odd tiny-text tiny-sort".split()
M, MO, DRAFT, FEW, MUTE = "mamba-small", "mamba-odd", "--draft 1", "--obeys samples,batch", "--silent yes"
FEWER, TF32, F16KV = "--obeys samples,batch,slots,prefix", "--arith tf32", "--kv f16"
TABLE = {
    "clean": [("", D), ("", M), ("", MO), ("", MOE), ("", ODD, MUTE), ("", N, DRAFT), ("", TEXT, FEW), ("", B, F16KV),
              ("", SORT, FEWER + " " + DRAFT), ("", D, F16KV)],
    # What is a coarser format and no fault: clean, or told by the format's name.
    "precision": [("", M, TF32), ("", D, "--arith bf16"), ("", M, "--weights bf16"), ("", MOE, "--weights f16")],
    # Slots: vllm#56524 and its kin; a memset that is too short, or for the first layer's pool alone.
    "slot": [("first-layer-cleared", M, TF32), ("quarter-cleared", MO), ("last-channels-left:1", MOE),
             ("last-channels-left:8", MO, FEWER), ("window-left-for-short", SORT), ("clear-skipped-for-one", MO),
             ("tags-not-emptied", D, F16KV)],
    # Offsets: vllm#35275, #20016, #20938 with other strides; a table as long as the largest captured batch.
    "wrap": [("read-u32:98304", M, "", ("slot", 43691)), ("write-i32:98304", D, "", ("slot", 21846)),
             ("window-bytes-i32:110592", B, "", ("slot", 4855)), ("write-bytes-u32:73728", MO, DRAFT, ("slot", 14564)),
             ("table-of:24", M, "", ("batch", 25)), ("table-of:32", D, "", ("batch", 33))],
    # vllm#37728 (tables that are not sorted as the rows are); the tail of a kernel for two rows.
    "mixing": [("window-of-neighbour:0", D), ("window-of-neighbour:2", MO), ("states-sorted", MOE)],
    # NeMo-RL#2529, SkyRL#2056: rows without borders, in all of a layer or in its convolution.
    "packed": [("flat-scan:0", D), ("flat-scan:2", MO), ("flat-convolution:1", MO), ("flat-convolution:0", B)],
    # transformers#32914 and kin: padding that the mask in front of the convolution does not stop.
    "padding": [("padding-through-bias", D), ("padding-through-bias", SORT), ("padding-attended", B)],
    "batch path": [("kernel-by-rows-bf16:5", M, "", ("batch", 5)), ("head-in-bf16-by-rows:9", D, "", ("batch", 9)),
                   ("kernel-by-rows-tf32:12", MO, "", ("batch", 12)), ("head-in-two-halves:6", MOE, FEW, ("batch", 6))],
    "cache cross": [("key-of-head", M), ("key-of-tail:3", D, TF32), ("key-by-xor", MO), ("key-in-bits:3", B, FEWER),
                    ("key-of-tail:1", TEXT)],
    # vllm#37310 (the last token of a full hit twice), #43090, #29387.
    "cache state": [("snapshot-window-of-end", M), ("full-hit-feeds-last-again", MO), ("hit-without-last-key", MOE),
                    ("entries-in-a-ring:6", MO), ("hit-without-state-of-layer:2", M, FEWER)],
    "window": [("window-skips-newest", MOE), ("short-chunk-turns-window", M), ("window-skips-newest", MO, TF32)],
    # Carries between chunks: sglang#33450 and kin.
    "chunk": [("carry-lost-in-layer:1", D), ("decay-lost-between", M), ("carry-lost-in-layer:2", MO),
              ("carry-in-bits:3", MOE)],
    "page": [("border-key-twice", MOE), ("partial-segment-unscaled", MOE),
             ("segment-of-32-at-most", D, "", ("page", 64)),
             ("segment-read-to-its-end", MOE)],
    "length": [("ring-of:52", MOE, "", ("length", 53)), ("restart-at:75", M, "", ("length", 76)),
               ("restart-at:44", ODD, FEW, ("length", 45)), ("long-prefill-tf32:80", MO, "", ("length", 81))],
    # vllm#38711, #53488: guesses that were taken back everywhere but in the states.
    "decode": [("draft-state-kept", M, DRAFT), ("draft-window-kept", MO, DRAFT),
               ("draft-state-kept-in-layer:2", MO, DRAFT), ("decode-without-dt-bias", MOE), ("gate-in-e4m3", MO),
               ("window-handed-over-reversed", M), ("state-handed-over-in-e4m3", D), ("decay-by-table", M)],
    # vllm#37796, #29071.
    "preempt": [("resumed-without-drawn", MO), ("swap-loses-first-segment", MOE, MUTE), ("swap-leaves-window", MO),
                ("swap-in-e4m3", M)],
    "random": [("race-on-carry:50", M), ("race-on-carry:2", D), ("race-on-logits:5", MO), ("race-on-logits:1", N)],
    "temperature": [("always-temperature:97", M), ("raw-divided-once", D), ("temperature-at-most:2", MOE),
                    ("modes-exchanged", D), ("always-temperature:99", MO)],
    "top-k": [("hidden-top-k:64", M), ("hidden-top-p:995", D), ("hidden-min-p:200", MO), ("hidden-top-k:400", MOE)],
    "penalty": [("repetition-of-last:8", MO), ("presence:20", M), ("frequency-with-prompt:3", MO)],
    "eos": [("end-has-no-embedding", M), ("context-begins-at-end", D), ("end-masked-first:3", MO)],
    "tokens": [("begin-twice", D), ("template-in-front", MO), ("ids-in-a-byte", M), ("newest-token-doubled", MO),
               ("left-cut:48", MO)],
    "shift": [("late", M), ("early:1", D), ("early:2", MO), ("late-in-batches", MOE)],
    # llama.cpp#27972 (what is recorded for a guess), lists of alternatives, units of a JSON.
    "records": [("runner-up-recorded", M), ("draft-recorded", D, DRAFT), ("in-units-of:50", M),
                ("logarithm-to-base-2", MO), ("in-units-of:1000", D)],
    "head": [("head-in-bits:8", M), ("head-int8-tensor", D), ("logits-in-bits:8", MO), ("head-in-bits:4", MOE),
             ("head-inputs-bf16", M)],
    # trl#5312, NeMo-RL#3225, verl#7495 and their kin.
    "weights": [("policy-behind:20", M), ("policy-behind:2", D), ("kernel-reversed:1", MO), ("dt-bias-zero:2", MO),
                ("a-in-bf16", M), ("four-bits-by-group:1", D), ("five-two:2", M), ("mixer-of-last:0", MO),
                ("router-rotated:1", MOE), ("last-norm-dropped", MOE)],
    "formula": [("eps:1000", M), ("quick-gelu", MO), ("softplus-linear-early:1", MO), ("time-step-limit:300", M),
                ("no-norm-of-b:2", MOE), ("router-by-sigmoid", MOE), ("branch-scaled:99", MO)],
    "attention": [("scale-of-padded-head", MOE), ("alibi:2", MOE), ("sees-ahead", MOE), ("scale-percent:103", B)],
    "kv": [("keys-e4m3", B), ("values-e5m2", D), ("cache-int8-by-token", D), ("cache-e4m3", D)],
    "hang": [("waits-when-many:7", D), ("dies-when-many:6", M)],
    # Seen, and no cause stands for it: experts that are full (Switch, GShard), sums of log-probabilities, no sum.
    "no family": [("expert-capacity:6", MOE), ("cumulative", M), ("logit-less-top-recorded", MO)],
}
REPLAY = {
    "clean": [("", D), ("", M), ("", MOE)],
    "precision": [("", M, "--type bfloat16")],
    "packed": [("rows-joined", D), ("rows-joined", MO)],
    "padding": [("padded-on-the-left", D), ("padded-on-the-left", M)],
    "mixing": [("longest-first", D)],
    "batch path": [("bf16-from-rows:4", M, "", ("batch", 4))],
    "length": [("bf16-from-width:64", D, "", ("length", 64))],
    "random": [("branch-in-training:2", D)],
    "weights": [("adapter-merged-twice:0", D), ("layer-in-eight-bits:1", M), ("all-behind:10", MO),
                ("skip-sent-as-zeros", N)],
    "formula": [("activation-of-another", D)],
    "attention": [("scaling-percent:90", D)],
    "head": [("head-in-bf16", MO), ("rounded-scores", D)],
    "penalty": [("repetition-of-config:105", M)],
    "top-k": [("top-p-of-config:90", M), ("top-k-of-config:50", MO)],
    "temperature": [("temperature-of-config:90", D), ("scores-for-logits", M)],
    "eos": [("at-least-so-many:12", M)],
    "tokens": [("begin-always", M)],
    "shift": [("labels-shifted-twice", D)],
    "records": [("record-in-half", M)],
    "no family": [("epsilon-of-config:30", D)],
}
ALSO = {
    "window-left-for-short": FAMILIES["window"],
    "tags-not-emptied": OTHER_STATE,
    "left-cut": FAMILIES["length"],
    "entries-in-a-ring": FAMILIES["cache cross"],
    "context-begins-at-end": FAMILIES["tokens"],
    "late-in-batches": OTHER_STATE,
    "expert-capacity": OTHER_STATE + FAMILIES["batch path"],
    "epsilon-of-config": FAMILIES["top-k"],
    "runner-up-recorded": NO_FAMILY,
    **dict.fromkeys(("logits-in-bits", "rounded-scores", "head-in-bf16"), FAMILIES["records"]),
    **dict.fromkeys(("kernel-reversed", "dt-bias-zero", "a-in-bf16", "mixer-of-last", "last-norm-dropped",
                     "router-rotated", "skip-sent-as-zeros", "sees-ahead"), FORMULA),
}
# Trials that show a fault, for cases_hold.
TRIALS = {
    "one-slot": {"slots": 1}, "few-slots": {"slots": 5, "batch": 3, "policy": "random"}, "trio": {"batch": 3},
    "hot": {"logprobs": "processed"}, "cache-1": {"prefix": "on", "page": 1, "samples": 2},
}
TRIALS_OF = {
    "clean": ["solo", "mixed", "cache", "cache-1", "recompute", "swap", "hot", "few-slots", "page-4", "page-64",
              "chunk-1"],
    "slot": ["one-slot", "few-slots"], "mixing": ["trio", "few-slots", "crowd"], "shift": ["solo", "batch"],
    "cache state": ["cache", "cache-pair", "cache-1"], "window": ["chunk-2", "chunk-1"],
    "preempt": ["recompute", "swap"], "temperature": ["solo", "warm", "hot"],
    "no family": ["solo", "batch"], "batch path": ["crowd", "batch", "trio"], "hang": ["crowd"],
}


def case(family, bug, model, more="", threshold=None, program="ring.py"):
    name = f"{program[:-3]}:{bug or 'clean'}@{model}" + "".join("+" + w.lstrip("-") for w in more.split())
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    right = dict.fromkeys(RIGHT[family] + ALSO.get(bug.split(":")[0], ()))
    return {"name": name, "family": family, "program": "../padded_ring/" + program, "model": model, "half": half,
            "args": ["--bug", bug] + more.split(), "threshold": threshold, "right": tuple(right),
            "needs": ("torch", "transformers") if program == "replay.py" else ()}


CASES = [case(family, *row) for family, rows in TABLE.items() for row in rows]
CASES += [case(family, *row, **{"program": "replay.py"}) for family, rows in REPLAY.items() for row in rows]
assert len({c["name"] for c in CASES}) == len(CASES)
