"""Servers of other projects under `lockstep probe`: settings that are sound, and faults planted around them. A case
belongs to the tuned or the set-aside half by a hash of its name, so that nobody chooses."""
import hashlib

# fault of serve.py: the causes that name it rightly; "not named" where no cause of the list stands for it
RIGHT = {
    "pad-eight": ("padding leaks into the state",),
    "pad-batch": ("padding leaks into the state",),
    "temperature": ("temperature on one side only",),
    "next-step": ("records shifted",),
    "late": ("records shifted",),
    "stale-layer": ("other weights or another formula", "one layer has other weights"),
    "bf16-log-softmax": ("log-probabilities in low precision",),
    "bos": ("other tokens than were sent",),
    "first-null": ("log-probabilities missing",),
    "sentinel": ("log-probabilities missing",),
    "zeros": ("log-probabilities missing",),
    "clamp": ("log-probabilities clamped",),
    "argmax": ("records of other tokens",),
    "cache-length": ("prefix hit across different prompts", "prefix hits are wrong"),
    "cache-shifted": ("prefix snapshot at the wrong token", "prefix hits are wrong"),
    "leak": ("stale state of a reused slot",),
    "leak-all": ("stale state of a reused slot", "not repeatable"),
    "rows-swapped": ("another sequence's state is read", "records of other tokens"),
    "rows-coarse": ("order of sums follows the batch",),
    "window": ("wrong from a length on", "other arithmetic in decode"),
    "kv-int4": ("keys and values in 8 bits", "other arithmetic in decode", "other weights or another formula"),
    "top-k": ("top-k or top-p on one side only",),
    "replicas": ("not repeatable",),
    "hangs": ("ends without an answer",),
}
# A second set, each right answer written before its first run.
SECOND = {
    "rope-decode": ("other arithmetic in decode", "positions or scale of attention",
                    "state lost between prefill and decode"),
    "pad-positions": ("padding leaks into the state",),
    "beyond-64": ("wrong from a length on",),
    "chunk-positions": ("wrong from a length on", "state lost between chunks", "page size matters"),
    "rope-base": ("positions or scale of attention", "another formula in the model", "other weights or another formula"),
    "norm-eps": ("another formula in the model", "other weights or another formula"),
    "int4-layer": ("weights in low precision", "one layer has other weights", "other weights or another formula"),
    "neighbours": ("another sequence's state is read",),
    "race": ("not repeatable",),
    "heads-turned": ("other arithmetic in decode", "positions or scale of attention"),
    "hand-over": ("state lost between prefill and decode", "other arithmetic in decode"),
    "penalty": ("penalty on one side only",),
    "top-p": ("top-k or top-p on one side only",),
    "min-p": ("top-k or top-p on one side only",),
    "eos-masked": ("end of sequence masked",),
    "log2": ("log-probabilities scaled",),
    "cumulative": ("not named",),
    "temperature-always": ("temperature on one side only",),
    "nan-last": ("log-probabilities missing",),
    "bos-twice": ("other tokens than were sent",),
    "cache-long": ("prefix hit across different prompts", "prefix hits are wrong"),
    "samples-swapped": ("another sequence's state is read", "records of other tokens", "fork is not a copy"),
}
# A third, which no rule was tuned on: other places and sizes. Written before its first run as well, and run once.
FORMULA = ("positions or scale of attention", "another formula in the model", "other weights or another formula")
THIRD = {
    "mixer-scaled": FORMULA,
    "noise-at-end": ("not repeatable",),
    "half-stale": ("other weights or another formula", "one layer has other weights"),
    "kv-fp8": ("keys and values in 8 bits", "other arithmetic in decode", "other weights or another formula"),
    "likeliest-20": ("top-k or top-p on one side only",),
    "temperature-warm": ("temperature on one side only",),
    "two-late": ("records shifted",),
    "first-lost": ("other tokens than were sent",),
    "pad-sixteen": ("padding leaks into the state",),
    "cache-even": ("prefix hit across different prompts", "prefix hits are wrong"),
}
# A fourth, written before its first run, when rules were frozen, and run once: other places, sizes and models.
FOURTH = {
    "sink-lost": ("other arithmetic in decode", "state lost between prefill and decode", "positions or scale of attention"),
    "scale-1.1": ("other arithmetic in decode", "positions or scale of attention"),
    "norm-stale": FORMULA + ("one layer has other weights",),
    "presence": ("penalty on one side only",),
    "rows-by-two": ("another sequence's state is read", "records of other tokens"),
    "pad-32": ("padding leaks into the state",),
    "cache-sum": ("prefix hit across different prompts", "prefix hits are wrong"),
    "before-mixed": ("stale state of a reused slot",),
    "f16-logits": ("log-probabilities in low precision", "head in low precision", "other weights or another formula"),
}
# A fifth, likewise, after the rules were mended for the fourth.
FIFTH = {
    "keys-late": ("other arithmetic in decode", "state lost between prefill and decode", "positions or scale of attention"),
    "frequency": ("penalty on one side only",),
    "bf16-logits": ("log-probabilities in low precision", "head in low precision"),
    "cache-sorted": ("prefix hit across different prompts", "prefix hits are wrong"),
}
# A sixth, by somebody who had not read the rules, written before its first run: other mechanisms, places and models.
SIXTH = {
    "adapter-stays": ("other weights or another formula",),
    "head-untied": ("other weights or another formula", "head in low precision"),
    "rope-bf16": FORMULA,
    "sinks-and-60": ("wrong from a length on", "other arithmetic in decode"),
    "pad-power": ("padding leaks into the state",),
    "page-unwritten": ("stale state of a reused slot",),
    "table-late": ("another sequence's state is read",),
    "head-by-rows": ("order of sums follows the batch",),
    "divided": ("temperature on one side only", "log-probabilities scaled"),
    "cache-unwritten": ("prefix snapshot at the wrong token", "prefix hits are wrong"),
    "token-race": ("not repeatable",),
    "eos-behind": ("other tokens than were sent",),
    "scores-cached": ("not named", "prefix hits are wrong", "records of other tokens"),
}
RIGHT.update(SECOND)
RIGHT.update(THIRD)
RIGHT.update(FOURTH)
RIGHT.update(FIFTH)
RIGHT.update(SIXTH)
NEEDS_CACHE = ("cache-length", "cache-shifted", "cache-long", "cache-even", "cache-sum", "cache-sorted",
               "cache-unwritten")
WITH_CHECKPOINT = ("stale-layer", "bos", "bos-twice", "rope-base", "norm-eps")


def case(model, fault="none", dtype="bfloat16", attention="sdpa", batch=16, cache=False, seed=0, checkpoint=False):
    name = f"{model}-{dtype}-{attention}-{batch}{'-cache' if cache else ''}-{fault}-{seed}{'-model' if checkpoint else ''}"
    words = ["--dtype", dtype, "--attention", attention, "--batch", str(batch), "--fault", fault] + (["--cache"] if cache else [])
    by_hash = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    later = {**dict.fromkeys(THIRD, "third"), **dict.fromkeys(FOURTH, "fourth"), **dict.fromkeys(FIFTH, "fifth"),
             **dict.fromkeys(SIXTH, "sixth")}
    of_sound = by_hash if seed < 50 else "fourth" if seed < 80 else "fifth" if seed < 100 else "sixth"
    half = later.get(fault, by_hash) if fault != "none" else of_sound
    return {"name": name, "model": model, "fault": fault, "words": words, "seed": seed, "checkpoint": checkpoint, "half": half,
            "right": RIGHT.get(fault, ("clean",))}


CLEAN = [case(model, dtype=dtype, attention=attention, batch=batch, cache=cache, seed=seed, checkpoint=checkpoint)
         for model, dtype, attention, batch, cache, seed, checkpoint in [
             ("llama", "bfloat16", "sdpa", 16, False, 0, False), ("llama", "bfloat16", "sdpa", 16, False, 1, True),
             ("llama", "bfloat16", "eager", 16, False, 2, False), ("llama", "bfloat16", "sdpa", 4, False, 3, False),
             ("llama", "bfloat16", "sdpa", 16, True, 4, False), ("llama", "float32", "sdpa", 16, False, 5, False),
             ("llama", "float32", "eager", 16, True, 6, True), ("qwen", "bfloat16", "sdpa", 16, False, 0, False),
             ("qwen", "bfloat16", "eager", 16, False, 1, True), ("qwen", "bfloat16", "sdpa", 16, True, 2, False),
             ("qwen", "float32", "sdpa", 16, False, 3, False), ("qwen", "float32", "sdpa", 4, True, 4, False),
             ("jamba", "bfloat16", "eager", 16, False, 0, False), ("jamba", "bfloat16", "eager", 16, False, 1, True),
             ("jamba", "bfloat16", "sdpa", 1, False, 2, False), ("jamba", "float32", "eager", 16, False, 3, False),
             ("llama", "float32", "sdpa", 16, False, 7, False), ("llama", "float32", "sdpa", 8, True, 8, False),
             ("qwen", "float32", "eager", 16, False, 9, False), ("qwen", "float32", "sdpa", 16, False, 10, True),
             ("qwen", "bfloat16", "sdpa", 16, False, 11, False),
             ("qwen2", "bfloat16", "sdpa", 16, False, 50, False), ("qwen2", "float32", "sdpa", 8, False, 51, False),
             ("llama", "float32", "eager", 4, False, 52, False), ("qwen", "bfloat16", "eager", 8, True, 53, False),
             ("llama", "bfloat16", "eager", 8, False, 54, True), ("qwen", "float32", "eager", 16, False, 55, True),
             ("qwen2", "bfloat16", "eager", 16, False, 80, False), ("llama", "float32", "sdpa", 16, True, 81, False),
             ("qwen", "bfloat16", "sdpa", 8, False, 82, True),
             ("moe", "bfloat16", "sdpa", 16, False, 100, False), ("moe", "float32", "eager", 8, False, 101, True),
             ("wide", "bfloat16", "eager", 4, False, 102, True), ("wide", "float32", "sdpa", 16, True, 103, False),
             ("qwen2", "float32", "eager", 2, False, 104, True), ("jamba", "bfloat16", "eager", 8, False, 105, False),
             ("llama", "bfloat16", "sdpa", 2, True, 106, False), ("wide", "bfloat16", "sdpa", 32, False, 107, False)]]
LATER = (*THIRD, *FOURTH, *FIFTH, *SIXTH)
PLANTED = [case(model, fault, dtype=dtype, cache=fault in NEEDS_CACHE, checkpoint=fault in WITH_CHECKPOINT, seed=seed)
           for fault in RIGHT if fault not in LATER
           for seed, (model, dtype) in enumerate([("llama", "bfloat16"), ("qwen", "float32")])]
PLANTED += [case(model, fault, dtype=dtype, cache=fault in NEEDS_CACHE, seed=40 + i)
            for i, (fault, (model, dtype)) in enumerate(zip(THIRD, [
                ("qwen", "float32"), ("qwen", "bfloat16"), ("llama", "bfloat16"), ("llama", "float32"), ("qwen", "bfloat16"),
                ("qwen", "bfloat16"), ("qwen", "bfloat16"), ("llama", "bfloat16"), ("qwen", "bfloat16"), ("qwen", "float32")]))]
PLANTED += [case(model, fault, dtype=dtype, cache=fault in NEEDS_CACHE, seed=60 + i)
            for i, (fault, (model, dtype)) in enumerate(zip(FOURTH, [
                ("qwen2", "float32"), ("llama", "bfloat16"), ("qwen2", "bfloat16"), ("llama", "float32"), ("qwen2", "bfloat16"),
                ("qwen2", "bfloat16"), ("qwen", "float32"), ("llama", "bfloat16"), ("llama", "float32")]))]
PLANTED += [case(model, fault, dtype=dtype, cache=fault in NEEDS_CACHE, seed=90 + i)
            for i, (fault, (model, dtype)) in enumerate(zip(FIFTH, [
                ("qwen", "bfloat16"), ("qwen2", "bfloat16"), ("llama", "float32"), ("llama", "float32")]))]
PLANTED += [case(model, fault, dtype=dtype, attention=attention, batch=batch, cache=fault in NEEDS_CACHE, seed=110 + i)
            for i, (fault, (model, dtype, attention, batch)) in enumerate(zip(SIXTH, [
                ("qwen2", "bfloat16", "sdpa", 16), ("wide", "bfloat16", "sdpa", 16), ("llama", "float32", "sdpa", 8),
                ("wide", "bfloat16", "sdpa", 16), ("jamba", "bfloat16", "eager", 16), ("wide", "float32", "sdpa", 16),
                ("qwen", "float32", "eager", 8), ("llama", "bfloat16", "sdpa", 16), ("moe", "float32", "sdpa", 16),
                ("qwen2", "bfloat16", "sdpa", 16), ("qwen", "bfloat16", "sdpa", 16), ("moe", "bfloat16", "sdpa", 16),
                ("llama", "bfloat16", "sdpa", 16)], strict=True))]
CASES = PLANTED + CLEAN
assert len({c["name"] for c in CASES}) == len(CASES)
