"""Servers that others wrote under `lockstep probe`: llama.cpp's and vLLM's. A case has the words of the server, and of
the proxy in front of it or of what is planted in it; what is right was written before its first run."""
import hashlib

CACHE = ("prefix hit across different prompts", "prefix hits are wrong", "prefix snapshot at the wrong token",
         "prefix cache returns old entries")
FORMULA = ("positions or scale of attention", "another formula in the model", "other weights or another formula")
FINE = ("--cache-type", "f32", "--flash-attention", "off")


# A third set, which no rule was tuned on; right answers were written before its first run, and it was run once.
THIRD = ("log10", "first-lost", "two-late", "bf16", "every-second", "cross-head", "nulls", "rope-base-20000", "block-head",
         "no-parent", "stale-head", "temperature-0.9", "nan", "likeliest-30", "beyond-160", "rows-of-four")

# A fourth, written before its first run, when rules were frozen, and run once.
FOURTH = ("rope-scale", "kv-4-bits", "cross-start", "first-zero", "three-early", "last-lost", "breaks-off", "sixteenths",
          "stale-mlp", "embedding-quarter", "rope-at-32", "block-even", "temperature-1.15", "row-zero", "clamp-7",
          "first-9999", "nucleus-0.9")

# A fifth, likewise, after the rules were mended for the fourth.
FIFTH = ("cross-end", "late-from-third", "two-in-front", "thousandths", "rows-last", "stale-qkv", "temperature-2", "block-halved")

# A sixth, by somebody who had not read the rules, written before its first run: other mechanisms, places and models.
SIXTH = ("history-leaks", "answers-swapped", "penalty-after", "cross-32", "through-text", "drafted-zero", "p-in-five",
         "least-of-ten", "pairs-exchanged", "cut-body", "yarn", "old-output", "weights-8-bits",
         "log-plus", "next-id", "specials-masked", "rows-six", "stale-norms", "layers-exchanged", "mlp-int8",
         "hash-two-bits", "row-unmoved", "border-zero", "write-race", "rope-linear", "one-expert", "hidden-min-p")
WEIGHTS = ("other weights or another formula",)


def case(model, name, *words, fault="none", right=("clean",), proxy=(), planted="", seed=0, checkpoint=False,
         serves="", near=()):
    """`serves` names what the server has where it is not `model`: a change of its weights, or a type of them."""
    name = f"{model}-{name}-{fault}-{seed}{'-model' if checkpoint else ''}"
    by_hash = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    later = {**dict.fromkeys(THIRD, "third"), **dict.fromkeys(FOURTH, "fourth"), **dict.fromkeys(FIFTH, "fifth"),
             **dict.fromkeys(SIXTH, "sixth")}
    of_sound = by_hash if seed < 50 else "fourth" if seed < 80 else "fifth" if seed < 100 else "sixth"
    half = later.get(fault, by_hash) if fault != "none" else of_sound
    return {"name": name, "model": model, "fault": fault, "words": list(words), "proxy": list(proxy),
            "planted": planted, "seed": seed, "checkpoint": checkpoint, "half": half, "right": right,
            "serves": serves or model, "near": near}


def proxied(fault, *right, words=(), model="llama", cache=False, checkpoint=False, seed=0, near=()):
    return case(model, "proxy", *words, fault=fault, right=right, proxy=(fault,) + (() if cache else ("--no-cache",)),
                checkpoint=checkpoint, seed=seed, near=near)


LLAMA_CPP = [case(model, name, *words, seed=seed, checkpoint=seed % 3 == 2, proxy=proxy)
             for model, name, words, proxy, seeds in [
                 ("llama", "slots-4", (), (), (0, 1, 2)),
                 ("llama", "slots-1-f32", ("--slots", "1") + FINE, (), (3, 4)),
                 ("llama", "slots-8-nocache", ("--slots", "8"), ("none", "--no-cache"), (5, 6)),
                 ("qwen", "slots-4-f32", FINE, (), (0, 1)), ("qwen", "slots-8", ("--slots", "8"), (), (2, 3)),
                 ("tiny-text", "checkpoints-0-f32", ("--checkpoints", "0") + FINE, (), (0, 1)),
                 ("tiny-text", "nocache-f32", FINE, ("none", "--no-cache"), (2, 3)),
                 ("tiny-text", "slots-1-checkpoints-0", ("--slots", "1", "--checkpoints", "0"), (), (4, 5)),
                 ("tiny-text", "slots-8-nocache", ("--slots", "8"), ("none", "--no-cache"), (6, 7)),
                 ("qwen2", "slots-4", (), (), (51,)), ("qwen2", "slots-2-f32", ("--slots", "2") + FINE, (), (52,)),
                 ("llama", "slots-6-f32", ("--slots", "6") + FINE, (), (53,)),
                 ("qwen", "slots-8-nocache", ("--slots", "8"), ("none", "--no-cache"), (54,)),
                 ("llama", "slots-1-nocache", ("--slots", "1"), ("none", "--no-cache"), (55,)),
                 ("tiny-text", "slots-2-checkpoints-0", ("--slots", "2", "--checkpoints", "0"), (), (57,)),
                 ("qwen", "slots-4-q8", ("--cache-type", "q8_0"), (), (58,)),
                 ("qwen2", "slots-8", ("--slots", "8"), (), (81,)), ("qwen", "slots-3-f32", ("--slots", "3") + FINE, (), (82,)),
                 ("tiny-text", "slots-8-nocache-f32", ("--slots", "8") + FINE, ("none", "--no-cache"), (84,)),
                 ("wide", "slots-4", (), (), (100,)), ("wide", "slots-2-f32", ("--slots", "2") + FINE, (), (101,)),
                 ("moe", "slots-4-f32", FINE, (), (102,)), ("llama", "rows-32", ("--rows", "32"), (), (103,)),
                 ("qwen2", "slots-4-flash", ("--flash-attention", "on"), (), (104,)),
                 ("qwen", "slots-4-bf16", ("--cache-type", "bf16"), (), (105,)),
                 ("tiny-text", "rows-64-checkpoints-0", ("--rows", "64", "--checkpoints", "0"), (), (106,)),
                 ("moe", "slots-12", ("--slots", "12"), (), (108,))] for seed in seeds] + [
    # Nothing is planted in the first: snapshots of its recurrent states are taken for those of other places.
    case("tiny-text", "slots-4", *FINE, fault="own-snapshots", right=CACHE),
    case("llama", "slots-4", "--reuse", "4", fault="pieces-moved", right=CACHE),
    case("llama", "slots-4", "--cache-type", "q8_0", fault="kv-8-bits", checkpoint=True,
         right=("keys and values in 8 bits", "other weights or another formula")),
    case("llama", "slots-4", "--rope-base", "50000", *FINE, fault="rope-base", checkpoint=True, right=FORMULA),
    proxied("cross-tail", *CACHE), proxied("cross-length", *CACHE),
    proxied("temperature", "temperature on one side only"),
    proxied("shift", "records shifted"),
    proxied("template", "other tokens than were sent"),
    proxied("after-sampling", "temperature on one side only", "top-k or top-p on one side only"),
    proxied("likeliest", "records of other tokens"),
    proxied("clamp", "log-probabilities clamped"),
    proxied("zeros", "log-probabilities missing"),
    proxied("neighbours", "another sequence's state is read", "records of other tokens"),
    proxied("last-40", "wrong from a length on"),
    proxied("f16", "log-probabilities in low precision", words=FINE),
    proxied("log10", "log-probabilities scaled", model="qwen"),
    proxied("first-lost", "other tokens than were sent", model="qwen"),
    proxied("two-late", "records shifted", model="qwen", words=FINE),
    proxied("bf16", "log-probabilities in low precision", model="qwen"),
    proxied("every-second", "another sequence's state is read", "records of other tokens", model="qwen"),
    proxied("cross-head", *CACHE, model="qwen"),
    proxied("nulls", "log-probabilities missing", model="qwen", words=FINE),
    case("qwen", "slots-4", "--rope-base", "20000", *FINE, fault="rope-base-20000", checkpoint=True, right=FORMULA),
    case("llama", "slots-2", "--slots", "2", "--rope-scale", "0.9", *FINE, fault="rope-scale", checkpoint=True, right=FORMULA,
         seed=61),
    case("qwen", "slots-4", "--cache-type", "q4_0", fault="kv-4-bits", checkpoint=True, seed=62,
         right=("keys and values in 8 bits", "other weights or another formula")),
    proxied("cross-start", *CACHE, model="qwen2", seed=63),
    proxied("first-zero", "log-probabilities missing", model="qwen2", words=FINE, seed=64),
    proxied("three-early", "records shifted", model="qwen2", words=FINE, seed=65),
    proxied("last-lost", "other tokens than were sent", model="llama", seed=66),
    proxied("breaks-off", "ends without an answer", model="qwen", seed=67),
    proxied("cross-end", *CACHE, model="llama", seed=91),
    proxied("late-from-third", "records shifted", model="qwen2", seed=92),
    proxied("two-in-front", "other tokens than were sent", model="qwen", words=FINE, seed=93),
    proxied("thousandths", "log-probabilities in low precision", model="llama", words=FINE, seed=94),
    proxied("sixteenths", "log-probabilities in low precision", model="qwen2", words=FINE, seed=68),
    proxied("history-leaks", "stale state of a reused slot", model="wide", words=FINE, seed=110,
            near=("other tokens than were sent", "another sequence's state is read")),
    proxied("answers-swapped", "another sequence's state is read", "records of other tokens", model="qwen2", seed=111,
            near=("other tokens than were sent",)),
    proxied("penalty-after", "penalty on one side only", "temperature on one side only", model="wide", seed=112),
    proxied("cross-32", *CACHE, model="qwen", words=FINE, seed=113),
    proxied("through-text", "other tokens than were sent", model="llama", seed=114),
    proxied("drafted-zero", "log-probabilities missing", model="wide", seed=115),
    proxied("p-in-five", "log-probabilities in low precision", model="qwen", words=FINE, seed=116),
    proxied("least-of-ten", "log-probabilities clamped", model="moe", seed=117,
            near=("records of other tokens", "top-k or top-p on one side only")),
    proxied("pairs-exchanged", "records shifted", "records of other tokens", model="llama", seed=118),
    proxied("cut-body", "ends without an answer", model="qwen2", seed=119),
    case("wide", "slots-4", "--yarn", "512", *FINE, fault="yarn", checkpoint=True, right=FORMULA, seed=120),
    case("wide", "slots-3", "--slots", "3", fault="old-output", checkpoint=True, right=WEIGHTS, serves="wide+old",
         seed=121),
    case("qwen2", "slots-4", *FINE, fault="weights-8-bits", checkpoint=True, serves="qwen2+q8_0", seed=122,
         right=("weights in low precision",) + WEIGHTS),
]


def vllm(fault, *right, words=(), dtype="bfloat16", model="qwen", checkpoint=False, seed=0, near=()):
    return case(model, "vllm-" + dtype, "--dtype", dtype, *words, fault=fault, right=right, planted=fault,
                checkpoint=checkpoint, seed=seed, near=near)


VLLM = [case(model, f"vllm-{dtype}{'-nocache' if words and seed < 100 else ''.join(words[:1])[1:]}", "--dtype", dtype,
             *words, seed=seed, checkpoint=seed % 3 == 1)
        for model, dtype, words, seeds in [
            ("qwen", "bfloat16", (), (0, 1, 2)), ("qwen", "float32", (), (0, 1, 2)), ("llama", "bfloat16", (), (5, 6)),
            ("qwen", "bfloat16", ("--no-enable-prefix-caching",), (3, 4)),
            ("llama", "float32", ("--no-enable-prefix-caching",), (3, 4)),
            ("qwen2", "bfloat16", (), (50,)), ("qwen2", "float32", (), (51,)), ("llama", "bfloat16", (), (52,)),
            ("qwen", "float32", ("--no-enable-prefix-caching",), (53,)), ("llama", "float32", (), (55,)),
            ("qwen2", "bfloat16", ("--max-num-batched-tokens", "64"), (56,)),
            ("qwen", "bfloat16", ("--max-num-batched-tokens", "96"), (58,)),
            # In the place of the last two, which end of themselves: vLLM's chunks refuse seeds on a CPU.
            ("qwen2", "float32", ("--no-enable-prefix-caching",), (57,)), ("llama", "bfloat16", (), (58,)),
            ("qwen2", "bfloat16", (), (80,)), ("llama", "float32", ("--no-enable-prefix-caching",), (81,)),
            ("qwen", "float32", (), (82,)), ("wide", "bfloat16", (), (103,)),
            ("wide", "float32", ("--no-enable-prefix-caching", "--max-num-seqs", "2"), (101,)),
            ("moe", "bfloat16", (), (102,)), ("moe", "float32", ("--max-num-seqs", "8"), (104,)),
            ("qwen2", "float32", ("--block-size", "32"), (105,)),
            ("llama", "bfloat16", ("--max-num-seqs", "4"), (106,)),
            ("qwen", "float16", (), (108,))] for seed in seeds] + [
    vllm("clamp", "log-probabilities clamped"),
    vllm("argmax", "records of other tokens"),
    vllm("dropped", "log-probabilities missing"),
    vllm("rows", "another sequence's state is read", "records of other tokens"),
    vllm("stale", "one layer has other weights", "other weights or another formula", checkpoint=True),
    vllm("hash", *CACHE),
    vllm("block-tail", *CACHE, dtype="float32"),
    vllm("rope-decode", "other arithmetic in decode", "positions or scale of attention",
         "state lost between prefill and decode"),
    vllm("late", "records shifted"),
    case("qwen", "vllm-float32", "--logprobs-mode", "processed_logprobs", "--override-generation-config",
         '{"repetition_penalty": 1.3}', "--dtype", "float32", fault="penalty", right=("penalty on one side only", "temperature on one side only")),
    case("qwen", "vllm-bfloat16", "--logprobs-mode", "processed_logprobs", "--dtype", "bfloat16", fault="processed",
         right=("temperature on one side only", "top-k or top-p on one side only")),
    case("qwen", "vllm-bfloat16", "--hf-overrides", '{"rms_norm_eps": 0.05}', "--dtype", "bfloat16", fault="norm-eps",
         checkpoint=True, right=FORMULA),
    vllm("block-head", *CACHE, model="llama", dtype="float32"),
    vllm("no-parent", *CACHE, dtype="float32"),
    vllm("stale-head", "other weights or another formula", "head in low precision", checkpoint=True),
    vllm("temperature-0.9", "temperature on one side only"),
    vllm("nan", "log-probabilities missing", dtype="float32"),
    vllm("likeliest-30", "top-k or top-p on one side only"),
    vllm("beyond-160", "wrong from a length on", "other arithmetic in decode", dtype="float32"),
    vllm("rows-of-four", "another sequence's state is read", "records of other tokens", model="llama"),
    vllm("stale-mlp", "one layer has other weights", "other weights or another formula", model="llama", checkpoint=True,
         seed=71),
    vllm("embedding-quarter", "one layer has other weights", "other weights or another formula", dtype="float32",
         checkpoint=True, seed=72),
    vllm("rope-at-32", "page size matters", "other arithmetic in decode", "positions or scale of attention", model="qwen2",
         dtype="float32", seed=73),
    vllm("block-even", *CACHE, model="llama", seed=74),
    vllm("temperature-1.15", "temperature on one side only", model="qwen2", dtype="float32", seed=75),
    vllm("row-zero", "another sequence's state is read", "records of other tokens", model="qwen2", seed=76),
    vllm("rows-last", "another sequence's state is read", "records of other tokens", model="qwen2", dtype="float32", seed=95),
    vllm("stale-qkv", "one layer has other weights", "other weights or another formula", checkpoint=True, seed=96),
    vllm("temperature-2", "temperature on one side only", model="llama", dtype="float32", seed=97),
    vllm("block-halved", *CACHE, model="qwen2", seed=98),
    vllm("clamp-7", "log-probabilities clamped", dtype="float32", seed=77),
    vllm("first-9999", "log-probabilities missing", model="qwen2", seed=78),
    vllm("nucleus-0.9", "top-k or top-p on one side only", model="llama", seed=79),
    vllm("log-plus", "log-probabilities clamped", model="qwen2", seed=110),
    vllm("next-id", "records of other tokens", model="wide", dtype="float32", seed=111),
    vllm("specials-masked", "end of sequence masked", "top-k or top-p on one side only", model="llama", dtype="float32",
         seed=112),
    vllm("rows-six", "order of sums follows the batch", model="wide", seed=113),
    vllm("stale-norms", *WEIGHTS, model="qwen2", checkpoint=True, seed=114),
    vllm("layers-exchanged", *WEIGHTS, "another formula in the model", model="wide", dtype="float32", checkpoint=True,
         seed=115),
    vllm("mlp-int8", "weights in low precision", *WEIGHTS, dtype="float32", checkpoint=True, seed=116),
    vllm("hash-two-bits", *CACHE, model="llama", seed=117),
    vllm("row-unmoved", "another sequence's state is read", model="qwen2", dtype="float32", seed=118,
         near=("stale state of a reused slot",)),
    vllm("border-zero", "page size matters", "other arithmetic in decode", "state lost between prefill and decode",
         model="llama", seed=119),
    vllm("write-race", "not repeatable", model="qwen", seed=120),
    case("qwen2", "vllm-bfloat16", "--hf-overrides",
         '{"rope_parameters": {"rope_type": "linear", "factor": 1.5, "rope_theta": 10000.0}}', "--dtype", "bfloat16",
         fault="rope-linear", checkpoint=True, right=FORMULA, seed=121),
    case("moe", "vllm-float32", "--hf-overrides", '{"num_experts_per_tok": 1}', "--dtype", "float32",
         fault="one-expert", checkpoint=True, right=("another formula in the model",) + WEIGHTS, seed=122),
    case("qwen", "vllm-float32", "--logprobs-mode", "processed_logprobs", "--override-generation-config",
         '{"min_p": 0.03}', "--dtype", "float32", fault="hidden-min-p", seed=123,
         right=("top-k or top-p on one side only", "temperature on one side only")),
]
