"""The servers of slots.py under `lockstep probe`: sound ones, and one planted fault each. `right` names the fault; `near` is
true and less than its name. Written before the rules of probe were looked at, and so are the settings of each case."""




def case(name, right, near=(), words=(), kind="f32", dialect="vllm", checkpoint=False, cache=False, fault=None, seed=0, sure=False):
    fault = fault or ("none" if right == ("clean",) else name)
    words = ["--dialect", dialect, "--type", kind, "--fault", fault] + (["--cache"] if cache else []) + list(words)
    # The tokens of the one are as a trained model's; the other is nearly sure of each at temperature 1.
    model = "tests/fixtures/jamba-dense" if sure else "models/tiny-text"
    return {"name": f"{dialect}-{kind}-{name}{'-sure' if sure else ''}", "model": model, "fault": fault, "words": words, "seed": seed, "checkpoint": checkpoint, "right": right, "near": near}


STALE = ("stale state of a reused slot",)
LENGTH = ("wrong from a length on",)
DECODE = ("other arithmetic in decode",)
CROSSED = ("prefix hit across different prompts", "prefix hits are wrong")
SNAPSHOT = ("prefix snapshot at the wrong token", "prefix hits are wrong")
MISSING = ("log-probabilities missing",)
PADDING = ("padding leaks into the state",)
TOKENS = ("other tokens than were sent",)
BATCH = ("order of sums follows the batch",)
MIXED = ("another sequence's state is read",)
LOW = ("log-probabilities in low precision",)
WEIGHTS = ("other weights or another formula", "one layer has other weights", "stale weights")
CHUNKS = ("state lost between chunks", "convolution window lost between chunks")

CLEAN = [
    case("clean", ("clean",)),
    case("clean", ("clean",), kind="bf16", seed=1),
    case("clean-checkpoint", ("clean",), kind="bf16", checkpoint=True, seed=2),
    case("clean-convention", ("clean",), kind="bf16", dialect="sglang", seed=3),
    case("clean-convention", ("clean",), dialect="sglang", seed=4),
    case("clean", ("clean",), kind="bf16", seed=5, sure=True),
    case("clean", ("clean",), seed=9, sure=True, checkpoint=True),
    case("clean-cache", ("clean",), cache=True, kind="bf16", seed=6),
    case("clean", ("clean",), kind="bf16", dialect="llama.cpp", cache=True, seed=7),
    case("clean-slots", ("clean",), words=["--slots", "32"], kind="bf16", seed=8),
]
PLANTED = [
    case("pad-eight", PADDING),
    case("pad-eight", PADDING, kind="bf16"),
    case("pad-right", PADDING, ("state lost between prefill and decode",), kind="bf16"),
    case("pad-longest", PADDING, MIXED),
    case("stale-layer", WEIGHTS, kind="bf16", checkpoint=True),
    case("stale-layer-small", WEIGHTS, checkpoint=True),
    case("decode-worker-behind", DECODE, WEIGHTS, kind="bf16"),
    case("temperature", ("temperature on one side only",), kind="bf16"),
    case("temperature", ("temperature on one side only",), kind="bf16", sure=True),
    case("scores-cached", ("not named", "prefix hits are wrong", "records of other tokens"), CROSSED),
    case("stale-ssm", STALE),
    case("stale-ssm", STALE, kind="bf16"),
    case("stale-ssm", STALE, kind="bf16", sure=True),
    case("stale-conv", STALE, kind="bf16"),
    case("stale-upper", STALE, dialect="sglang"),
    case("replicas", ("not repeatable",), kind="bf16"),
    case("replica-by-hash", ("not named", "some sequences are wrong"), WEIGHTS + DECODE),
    case("replica-by-load", BATCH + ("not named",), MIXED, words=["--slots", "16"]),
    case("last-row-lost", DECODE + ("page size matters",), LENGTH, kind="bf16"),
    case("border-to-old-page", DECODE + ("page size matters",), LENGTH),
    case("late", ("records shifted",), kind="bf16"),
    case("next", ("records shifted",), dialect="sglang"),
    case("late-behind-four", ("records shifted", "records one token late"), ("not named",) + DECODE),
    case("penalty-stays", STALE + ("penalty on one side only", "not named"), dialect="llama.cpp"),
    case("bias-stays", STALE + ("not named",), ("not repeatable",), dialect="llama.cpp"),
    case("counts-stay", ("penalty on one side only",) + STALE, ("not repeatable",), kind="bf16"),
    case("hash-no-parent", CROSSED, cache=True, kind="bf16"),
    case("hash-of-ends", CROSSED, ("not named",), cache=True),
    case("hash-of-sum", CROSSED, ("not named",), cache=True),
    case("hit-late", SNAPSHOT, cache=True, kind="bf16"),
    case("hit-conv-lost", SNAPSHOT, cache=True),
    case("rows-coarse", BATCH, kind="bf16", words=["--slots", "32"]),
    case("row-count-coarse", BATCH, DECODE),
    case("decode-coarse-many", BATCH, dialect="sglang"),
    case("neighbour-state", MIXED, kind="bf16"),
    case("slot-table-late", MIXED, STALE),
    case("exchange-at-end", MIXED, kind="bf16"),
    case("window", LENGTH, DECODE),
    case("pages-few", LENGTH, kind="bf16"),
    case("clamp", ("log-probabilities clamped",), kind="bf16"),
    case("f16-grid", LOW),
    case("probability-bf16", LOW),
    case("null", MISSING, kind="bf16"),
    case("zeros", MISSING, kind="bf16"),
    case("sentinel", MISSING, dialect="sglang"),
    case("infinity", MISSING),
    case("argmax", ("records of other tokens",), kind="bf16"),
    case("draft-values", ("not named",), ("records of other tokens",) + DECODE),
    case("chunk-conv-lost", CHUNKS + ("not named",), LENGTH),
    case("chunk-under-load", CHUNKS, BATCH + MIXED + ("not named",)),
    # What is recorded is of the temperature as well.
    case("top-k", ("top-k or top-p on one side only",), ("temperature on one side only",), kind="bf16"),
    case("eos-masked", ("end of sequence masked",), ("not named",)),
    case("bos-added", TOKENS, kind="bf16"),
    case("bos-in-decode", TOKENS, ("not named",), kind="bf16"),
    case("truncated", TOKENS + LENGTH, kind="bf16"),
    case("last-token-twice", TOKENS, ("not named",)),
    case("fork-conv", ("fork is not a copy",), kind="bf16"),
    case("samples-exchanged", ("records of other tokens", "fork is not a copy"), MIXED),
    case("kv-int4", DECODE + ("keys and values in 8 bits",)),
    case("state-fp8", DECODE, kind="f32"),
    case("head-bf16", DECODE + ("head in low precision",) + LOW),
    case("race", ("not repeatable",), ("not named",)),
    case("high-ids-in-decode", DECODE + ("not named",), TOKENS),
    case("hangs", ("ends without an answer",), kind="bf16"),
    case("drops", ("ends without an answer",)),
    case("errors", ("ends without an answer", "not named"), LENGTH),
]
CASES = CLEAN + PLANTED
assert len({c["name"] for c in CASES}) == len(CASES)
