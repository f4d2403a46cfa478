"""The third list of suspects: one planted fault each, in ring.py (numpy) and replay.py (transformers), or none.

TABLE has, by family, a fault with its number, the model, and where there are any further arguments and the threshold that has
to be found exactly. Names, halves, thresholds and `right` are as in ../fresh/fresh_cases.py; ALSO says what else may
be answered for one fault. Numbers of issues stand beside the faults they are kin of, here or where the fault is.
"""

import hashlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fresh"))
from fresh_cases import FAMILIES, FORMULA, NO_FAMILY, OTHER_STATE, RIGHT  # noqa: E402

N, D, B, MOE, ODD, TEXT, SORT = "jamba-nobias jamba-dense jamba-bf16 jamba-moe jamba-odd tiny-text tiny-sort".split()
M, MO, DRAFT, FEW, MUTE = "mamba-small", "mamba-odd", "--draft 1", "--obeys samples,batch", "--silent yes"
FEWER = "--obeys samples,batch,slots,prefix"
TABLE = {
    "clean": [
        ("", D), ("", M), ("", MO), ("", MOE), ("", ODD, MUTE), ("", N, DRAFT), ("", TEXT, FEW),
        ("", SORT, DRAFT + " " + FEWER), ("", D, "--kv f16"), ("", B),
    ],
    # What is a coarser format and no fault: clean, or told by the format's name.
    "precision": [("", M, "--arith tf32"), ("", D, "--arith bf16"), ("", M, "--weights bf16"), ("", MOE, "--weights f16")],
    # Slots: vllm#56524 and its kin; a memset that is too short, or for the first layer's pool alone.
    "slot": [
        ("first-layer-cleared", M), ("quarter-cleared", D), ("last-channels-left:1", MOE), ("last-channels-left:8", MO, FEWER),
        ("window-left-for-short", SORT), ("clear-skipped-for-one", B), ("tags-not-emptied", D),
    ],
    # Offsets: vllm#35275, #20016, #20938 with other strides; a table as long as the largest captured batch.
    "wrap": [
        ("read-u32:98304", M, "", ("slot", 43691)), ("write-i32:98304", D, "", ("slot", 21846)),
        ("window-bytes-i32:110592", B, "", ("slot", 4855)), ("write-bytes-u32:73728", MO, DRAFT, ("slot", 14564)),
        ("table-of:24", M, "", ("batch", 25)), ("table-of:40", D, "", ("batch", 41)),
    ],
    # vllm#37728 (tables that are not sorted as the rows are), tails of kernels for two rows, a broadcast too many.
    "mixing": [
        ("window-of-neighbour:0", D), ("window-of-neighbour:2", M), ("states-sorted", MOE), ("state-of-row-zero:20", N),
    ],
    # NeMo-RL#2529, SkyRL#2056: rows without borders, in all of a layer or in its convolution.
    "packed": [("flat-scan:0", D), ("flat-scan:2", M), ("flat-convolution:1", MO), ("flat-convolution:3", D)],
    # transformers#32914 and kin: padding that the mask in front of the convolution does not stop.
    "padding": [("padding-through-bias", D), ("padding-through-bias", SORT), ("padding-attended", B)],
    "batch path": [
        ("kernel-by-rows-bf16:5", M, "", ("batch", 5)), ("head-in-bf16-by-rows:9", D, "", ("batch", 9)),
        ("kernel-by-rows-tf32:12", MO, "", ("batch", 12)), ("head-in-two-halves:6", MOE, FEW, ("batch", 6)),
    ],
    "cache cross": [
        ("key-of-head", M), ("key-of-tail:3", D), ("key-by-xor", MO), ("key-in-bits:3", B, FEWER), ("key-of-tail:1", TEXT),
    ],
    # vllm#37310 (the last token of a full hit twice), #43090, #29387.
    "cache state": [
        ("snapshot-window-of-end", M), ("full-hit-feeds-last-again", D), ("hit-without-last-key", D),
        ("entries-in-a-ring:6", MO), ("hit-without-state-of-layer:2", M, FEWER), ("snapshot-window-of-end", ODD),
    ],
    "window": [
        ("window-skips-newest", D), ("short-chunk-turns-window", M), ("short-chunk-keeps-newest", B),
        ("window-skips-newest", MO),
    ],
    # Carries between chunks: sglang#33450 and kin.
    "chunk": [
        ("carry-lost-in-layer:1", D), ("decay-lost-between", M), ("carry-lost-in-layer:2", MO), ("carry-in-bits:3", MOE),
    ],
    "page": [
        ("border-key-twice", D), ("partial-segment-unscaled", B), ("segment-of-32-at-most", D, "", ("page", 64)),
        ("segment-read-to-its-end", SORT),
    ],
    "length": [
        ("ring-of:52", D, "", ("length", 53)), ("restart-at:75", M, "", ("length", 76)),
        ("restart-at:44", ODD, FEW, ("length", 45)), ("long-prefill-tf32:80", MO, "", ("length", 81)),
    ],
    # vllm#38711, #53488: guesses that were taken back everywhere but in the states.
    "decode": [
        ("draft-state-kept", M, DRAFT), ("draft-window-kept", D, DRAFT), ("draft-state-kept-in-layer:2", MO, DRAFT),
        ("decode-without-dt-bias", MOE), ("window-handed-over-reversed", M), ("state-handed-over-in-e4m3", D),
        ("gate-in-e4m3", MO), ("decay-by-table", M), ("draft-keys-kept", D, DRAFT),
    ],
    # vllm#37796, #29071.
    "preempt": [
        ("resumed-without-drawn", M), ("swap-loses-first-segment", D), ("swap-leaves-window", MO), ("swap-in-e4m3", M),
        ("swap-one-layer-late", D, MUTE),
    ],
    "random": [("race-on-carry:50", M), ("race-on-carry:2", D), ("race-on-logits:5", MO), ("race-on-logits:1", N)],
    "temperature": [
        ("always-temperature:97", M), ("raw-divided-once", D), ("temperature-at-most:2", MOE), ("temperature-squared", MO),
        ("modes-exchanged", D),
    ],
    "top-k": [("hidden-top-k:64", M), ("hidden-top-p:995", D), ("hidden-min-p:10", MO), ("hidden-top-k:400", MOE)],
    "penalty": [("repetition-of-last:8", D), ("presence:20", M), ("frequency-with-prompt:3", MO)],
    "eos": [
        ("end-has-no-embedding", M), ("context-begins-at-end", D), ("end-masked-first:3", MO), ("context-begins-at-end", M),
    ],
    "tokens": [
        ("begin-twice", D), ("template-in-front", M), ("ids-in-a-byte", M), ("newest-token-doubled", MOE),
        ("end-stripped", D), ("left-cut:48", MO),
    ],
    "shift": [("late", M), ("early:1", D), ("early:2", MO), ("late-in-batches", MOE)],
    # llama.cpp#27972 (what is recorded for a guess), lists of alternatives, units of a JSON.
    "records": [
        ("runner-up-recorded", M), ("draft-recorded", D, DRAFT), ("in-units-of:50", M), ("binary-logarithm-of-head", MO),
        ("in-units-of:1000", D),
    ],
    "head": [
        ("head-in-bits:8", M), ("head-int8-tensor", D), ("logits-in-bits:8", MO), ("head-sums-f16", D), ("head-in-bits:4", MOE),
        ("head-inputs-bf16", M),
    ],
    # trl#5312, NeMo-RL#3225, verl#7495 and their kin.
    "weights": [
        ("policy-behind:20", M), ("policy-behind:2", D), ("kernel-reversed:1", MO), ("dt-bias-zero:0", M), ("a-in-bf16", M),
        ("four-bits-by-group:1", D), ("five-two:2", M), ("mixer-of-last:0", D), ("adapter-twice:0", MO),
        ("router-rotated:1", MOE), ("head-behind:5", MO), ("last-norm-dropped", D),
    ],
    "formula": [
        ("eps:1000", M), ("quick-gelu", D), ("softplus-linear-early:1", MO), ("time-step-limit:300", M), ("no-norm-of-b:1", D),
        ("skip-of-ones:0", M), ("router-by-sigmoid", MOE), ("branch-scaled:99", MO),
    ],
    "attention": [
        ("scale-of-padded-head", D), ("alibi:3", B), ("sees-ahead", D), ("scale-percent:103", B), ("table-of-positions:40", D),
    ],
    "kv": [("keys-e4m3", B), ("values-e5m2", D), ("cache-int8-by-token", D), ("cache-int8-static:60", B), ("cache-e4m3", D)],
    "hang": [("stops-at:9", D), ("dies-when-many:6", M)],
    # Seen, and no cause stands for it: experts that are full (Switch, GShard), sums of log-probabilities, cut values.
    "no family": [("expert-capacity:6", MOE), ("cumulative", M), ("clamped-at:6", D), ("logit-recorded-less-top", MO)],
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
    "weights": [
        ("adapter-merged-twice:0", D), ("layer-in-eight-bits:1", M), ("all-behind:10", MO), ("skip-sent-as-zeros", N),
        ("last-norm-sent-late:5", M),
    ],
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
    "state-of-row-zero": FAMILIES["decode"],  # a single row is its own neighbour
    "left-cut": FAMILIES["length"],
    "entries-in-a-ring": FAMILIES["cache cross"],
    "context-begins-at-end": FAMILIES["tokens"],
    "end-stripped": FAMILIES["eos"],
    "late-in-batches": OTHER_STATE,
    "draft-keys-kept": FAMILIES["attention"] + FAMILIES["page"],
    "kernel-reversed": FORMULA, "dt-bias-zero": FORMULA, "a-in-bf16": FORMULA, "mixer-of-last": FORMULA,
    "last-norm-dropped": FORMULA, "router-rotated": FORMULA, "skip-sent-as-zeros": FORMULA, "head-behind": FAMILIES["head"],
    "sees-ahead": FORMULA, "table-of-positions": FORMULA,
    "runner-up-recorded": NO_FAMILY,
    "logits-in-bits": FAMILIES["records"], "rounded-scores": FAMILIES["records"],
    "expert-capacity": OTHER_STATE + FAMILIES["batch path"],
    "epsilon-of-config": FAMILIES["top-k"],
}
# Trials that show a fault, for cases_hold.
TRIALS = {
    "one-slot": {"slots": 1}, "few-slots": {"slots": 5, "batch": 3, "policy": "random"}, "trio": {"batch": 3},
    "cache-1": {"prefix": "on", "page": 1}, "pieces": {"chunk": 1, "batch": 3},
}
TRIALS_OF = {
    "slot": ["one-slot", "few-slots"], "mixing": ["trio", "few-slots", "mixed", "samples", "crowd"],
    "cache state": ["cache", "cache-pair", "cache-1"], "hang": ["batch", "crowd"], "shift": ["solo", "batch"],
    "no family": ["solo", "batch"], "batch path": ["crowd", "batch", "trio"], "window": ["chunk-2", "chunk-1", "chunk-8"],
}


def case(family, bug, model, more="", threshold=None, program="ring.py"):
    name = f"{program[:-3]}:{bug or 'clean'}@{model}" + "".join("+" + w.lstrip("-") for w in more.split())
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    right = dict.fromkeys(RIGHT[family] + ALSO.get(bug.split(":")[0], ()))
    return {"name": name, "family": family, "program": "../third/" + program, "model": model, "half": half,
            "args": ["--bug", bug] + more.split(), "threshold": threshold, "right": tuple(right),
            "needs": ("torch", "transformers") if program == "replay.py" else ()}


CASES = [case(family, *row) for family, rows in TABLE.items() for row in rows]
CASES += [case(family, *row, **{"program": "replay.py"}) for family, rows in REPLAY.items() for row in rows]
assert len({c["name"] for c in CASES}) == len(CASES)
