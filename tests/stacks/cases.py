"""The cases of the laboratory: one planted fault each, by family. A case belongs to the tuned or the set-aside half by
a hash of its name, so that nobody chooses."""
import hashlib

# family: the causes that name it rightly
FAMILIES = {
    "clean": (None,),
    "slot": ("stale state of a reused slot",),
    "wrap": ("slot offset wraps",),
    "mixing": ("another sequence's state is read", "no reset between packed sequences"),
    "packed": ("no reset between packed sequences", "another sequence's state is read"),
    "padding": ("padding leaks into the state",),
    "batch path": ("order of sums follows the batch",),
    "cache cross": ("prefix hit across different prompts",),
    "cache state": ("prefix snapshot at the wrong token", "prefix cache returns old entries"),
    "window": ("convolution window lost in short chunks", "convolution window lost between chunks"),
    "chunk": ("state lost between chunks", "convolution window lost between chunks"),
    "page": ("page size matters",),
    "length": ("wrong from a length on",),
    "decode": ("other arithmetic in decode", "state lost between prefill and decode"),
    "preempt": ("preempted sequences come back wrong", "swapped sequences come back wrong"),
    "random": ("not repeatable",),
    "temperature": ("temperature on one side only", "log-probabilities scaled"),
    "top-k": ("top-k or top-p on one side only",),
    "penalty": ("penalty on one side only",),
    "eos": ("end of sequence inside a context", "end of sequence masked"),
    "tokens": ("other tokens than were sent",),
    "shift": ("records shifted",),
    "records": ("records of other tokens", "log-probabilities in low precision", "log-probabilities scaled"),
    "head": ("head in low precision",),
    "weights": ("one layer has other weights", "weights in low precision", "other weights or another formula"),
    "formula": ("another formula in the model", "other weights or another formula"),
    "attention": ("positions or scale of attention", "another formula in the model", "wrong from a length on"),
    "kv": ("keys and values in 8 bits",),
    "hang": ("ends without an answer",),
}

N, D, B = "jamba-nobias", "jamba-dense", "jamba-bf16"


def case(family, bug, model=N, noise="f32", threshold=None, more=()):
    """noise: "f32" is what float32 does; a number is added to it; "f16-kv" keeps keys and values in f16."""
    name = f"{bug or 'clean'}@{model}@{noise}" + "".join("+" + w.lstrip("-") for w in more)
    args = ["--bug", bug]
    if noise == "f16-kv":
        args += ["--kv", "f16"]
    elif noise == "random":
        args += ["--noise", "1e-6", "--noise-random"]
    elif noise != "f32":
        args += ["--noise", noise]
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    return {"name": name, "family": family, "model": model, "args": args + list(more), "half": half,
            "threshold": threshold}


CASES = [
    case("clean", ""), case("clean", "", D), case("clean", "", B), case("clean", "", N, "2e-6"),
    case("clean", "", D, "1e-5"), case("clean", "", D, "1e-4"), case("clean", "", N, "random"),
    case("clean", "", D, "f16-kv"), case("clean", "", B, "1e-5"), case("clean", "", "tiny-text"),
    case("clean", "", D, "f32", None, ["--deaf", "chunk,page,slots"]), case("clean", "", D, "f32", None, ["--echo"]),
    case("clean", "", "jamba-moe"), case("clean", "", "jamba-moe", "1e-5"),
    case("clean", "", N, "f32", None, ["--deaf", "batch,prefix"]),
    case("slot", "slot-not-reset"), case("slot", "slot-not-reset", D, "1e-5"), case("slot", "slot-conv-not-reset", D),
    case("slot", "slot-ssm-not-reset", N, "2e-6"), case("slot", "stale-single", D), case("slot", "stale-single", N),
    case("slot", "stale-longer", D), case("slot", "stale-after:5", D, "f32", ("requests", 6)),
    case("slot", "slot-not-reset", D, "f32", None, ["--deaf", "slots,slot-base"]),
    case("slot", "slot-ssm-not-reset", D, "1e-4"),
    case("wrap", "slot-wrap:24", D, "f32", ("batch", 25)), case("wrap", "slot-wrap:11", N, "f32", ("batch", 12)),
    case("wrap", "slot-write-wrap:40", D, "1e-5", ("slot", 40)), case("wrap", "slot-write-wrap:900", N, "f32", ("slot", 900)),
    case("wrap", "slot-wrap:50", D, "1e-5", ("batch", 51)), case("wrap", "slot-write-wrap:333", D, "f32", ("slot", 333)),
    case("mixing", "other-slot-decode", D), case("mixing", "other-slot-decode", N, "2e-6"), case("mixing", "swap-rows", D),
    case("mixing", "swap-rows:5", N, "f32", ("batch", 5)), case("packed", "packed-no-reset", D),
    case("packed", "packed-no-reset", N, "2e-6"),
    case("padding", "pad-left", D), case("padding", "pad-right", D), case("padding", "pad-left", N, "2e-6"),
    case("padding", "pad-right", D, "1e-4"),
    case("batch path", "batch-path:4", D, "f32", ("batch", 4)), case("batch path", "batch-path:2", N, "f32", ("batch", 2)),
    case("batch path", "batch-path:7", B, "f32", ("batch", 7)), case("batch path", "batch-path:3", D, "1e-5", ("batch", 3)),
    case("cache cross", "cache-length", D), case("cache cross", "cache-last-block", D),
    case("cache cross", "cache-first", N), case("cache cross", "cache-sum", D), case("cache cross", "cache-hash8", D, "1e-5"),
    case("cache cross", "cache-length", N, "2e-6", None, ["--block", "4"]),
    case("cache state", "cache-conv-lost", D), case("cache state", "cache-ssm-lost", N),
    case("cache state", "cache-off-by-one", D, "1e-5"), case("cache state", "cache-alias", D),
    case("window", "conv-short", D), case("window", "conv-short", N, "2e-6"), case("window", "conv-tail-lost", D),
    case("window", "conv-tail-lost", N, "2e-6"), case("chunk", "scan-chunk-reset", D),
    case("chunk", "scan-chunk-reset", N, "f32"), case("chunk", "kv-chunk-lost", D), case("chunk", "kv-chunk-lost", B, "1e-5"),
    case("page", "block-border", D), case("page", "block-first-lost", D, "1e-5"), case("page", "page-swap", B),
    case("page", "block16-border", D), case("page", "block-border", B, "1e-5"),
    case("length", "kv-length:20", D, "f32", ("length", 21)), case("length", "window:37", D, "f32", ("length", 38)),
    case("length", "state-length:50", D, "1e-5", ("length", 51)), case("length", "kv-length:90", B, "f32", ("length", 91)),
    case("decode", "conv-handover", D), case("decode", "scan-handover", N), case("decode", "decode-state-fp8", D),
    case("decode", "decode-state-bf16", D), case("decode", "conv-off-by-one", D), case("decode", "scan-handover", D, "1e-4"),
    case("preempt", "preempt-keeps-at", D), case("cache state", "cache-overwrite", D),
    case("preempt", "abort-reuse", D), case("preempt", "abort-reuse", N, "2e-6"),
    case("random", "race", D), case("random", "race-state", D), case("random", "race", N, "random"),
    case("temperature", "temperature-raw", D), case("temperature", "temperature-always", N),
    case("temperature", "temperature-on-logprobs", D), case("temperature", "default-temperature", D),
    case("temperature", "temperature-raw", B, "1e-4"),
    case("top-k", "top-k:20", D), case("top-k", "top-k:50", D, "1e-5"), case("top-k", "top-p:90", D), case("top-k", "top-p:95", N, "2e-6"),
    case("top-k", "top-k:40", B),
    case("penalty", "repetition", D), case("penalty", "presence", D, "1e-5"), case("penalty", "repetition", N),
    case("eos", "eos-resets", D), case("eos", "eos-masked", N), case("eos", "eos-resets", N, "2e-6"), case("eos", "eos-masked", D, "1e-5"),
    case("tokens", "bos-added", D), case("tokens", "bos-doubled", D), case("tokens", "first-dropped", D, "1e-5"),
    case("tokens", "truncate:30", D), case("tokens", "eos-appended", N), case("tokens", "bos-added", N, "2e-6"),
    case("tokens", "bos-doubled", N, "2e-6"),
    case("shift", "shift:1", D), case("shift", "shift:-1", D), case("shift", "shift:2", N), case("shift", "shift:-1", N, "2e-6"),
    case("records", "argmax-recorded", D), case("records", "next-id", D), case("records", "logprob-bf16", D),
    case("records", "logprob-2dp", N), case("records", "log10", D),
    case("head", "head-bf16", D), case("head", "head-bf16", N, "2e-6"), case("head", "head-bf16-in", D),
    case("head", "head-int8", D), case("head", "head-fp8", N), case("head", "head-f16", D),
    case("weights", "layer-swapped:0", D), case("weights", "layer-int8:1", D), case("weights", "layer-fp8:0", N),
    case("weights", "layer-stale:1", D), case("weights", "layer-zero-ffn:2", D, "1e-5"), case("weights", "layer-norm-ones:0", N),
    case("weights", "stale-weights", D), case("weights", "stale-norms", N), case("weights", "all-int8", B),
    case("weights", "layer-swapped:1", N, "2e-6"), case("weights", "layer-int8:2", N), case("weights", "head-stale", D),
    case("formula", "norm-eps", D), case("formula", "no-inner-norms", D), case("formula", "layer-no-d:0", D),
    case("formula", "moe-renormalised", "jamba-moe"), case("formula", "embed-scale", N),
    case("attention", "rope", D), case("attention", "attention-scale", D), case("attention", "rope", B, "1e-5"),
    # jamba-nobias has too weak an attention: what 8 bits do to it is below the noise.
    case("kv", "kv-fp8", D), case("kv", "kv-fp8", B), case("kv", "kv-fp8", D, "2e-6"), case("kv", "kv-int8", D),
    case("kv", "kv-e5m2", D), case("kv", "kv-int8-token", D), case("kv", "kv-e5m2", B, "1e-5"),
    case("hang", "hang", D),
]
assert len({c["name"] for c in CASES}) == len(CASES)
