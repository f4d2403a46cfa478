"""The eleventh set: faults of public incidents, planted again by their mechanism, and sound settings.

It was written by a hand that had read only what `lockstep probe --help` and docs/guide say to a user, before anything
was run. `right` has the families that a user should be told, in the words of docs/guide/diagnosis.md, the first of them
the plain one; `near` has those that say something true and useful of another family. What is neither is a wrong name.
`no name` is right where the guide has no family for it. `source` is where the incident was told: repository and thread,
or `own` where it is from knowledge alone.

Ordinary traffic, for which `visible` speaks: prompts of 4 to 200 tokens, 12 to 24 drawn tokens, up to 8 requests at
once, some of one prompt, some that come again, some that leave, one in five with a penalty. A fault is at least five
times the bf16 rounding of its model on the tokens that it touches.

A server's habits: `top` values beside the drawn one at most, `seeds` if a seed is taken, `many` if n > 1 is.
"""
import hashlib
from typing import NamedTuple

from seventh_cases import ANSWERS


class Case(NamedTuple):
    name: str
    model: str
    dtype: str
    peaked: bool    # the head is scaled until some next tokens are nearly sure
    where: str      # the mechanism, and the place in the stack
    source: str
    right: tuple
    near: tuple
    visible: str
    top: int = 20
    seeds: bool = True
    many: bool = True

    @property
    def dialect(self):
        return "llama.cpp" if self.model == "llama.cpp" else "sglang" if self.name in SGLANG else "vllm"

    @property
    def directory(self):
        kind = KINDS.get(self.name, "llama" if self.model == "llama.cpp" else self.model)
        return "eleventh-" + kind + "+peaked" * self.peaked


SGLANG = ("delta-no-carry", "penalty-by-count", "replica-old", "sound-mamba", "sound-window")
KINDS = {"ntk-stays": "llamantk", "window-chunk": "mistral16"}  # models with something of their own
PROXY = {"first-of-top": ["likeliest"]}  # what stands in front of llama.cpp's server
REFUSED = ("ntk-stays",)  # whose checkpoint the program does not read


FAULTS = [
    # The cache of keys, and its pages.
    Case("chunk-slots", "llama", "bf16", False, "a prompt's second chunk (48 tokens) is written to the slots of the "
         "first: slots are counted from the chunk's beginning; decode reads pages that nobody wrote",
         "vllm-project/vllm#36580", ("length", "stale state"), ("page border",), "all prompts above 48 tokens"),
    Case("ring-wrap", "mistral", "bf16", False, "the ring of a window of 32 writes one place too far once it has "
         "wrapped: a key inside the window is lost, the oldest stays",
         "huggingface/transformers#37574, #47708", ("length",), ("page border", "stale state"),
         "every token behind position 32"),
    Case("write-after-free", "qwen2", "f32", False, "a finished request's step is still in flight: its key lands in "
         "its page after the next owner has written that page", "vllm-project/vllm#45357",
         ("stale state", "another sequence's state"), ("not repeatable",), "every request that takes such a page",
         top=5),
    Case("lost-append", "qwen3", "bf16", True, "a split over keys is counted without the new one: where the length "
         "is a multiple of 16, the newest key is in no split", "Dao-AILab/flash-attention#1325",
         ("page border",), ("padding", "length"), "one of 16 drawn tokens, far off"),
    Case("fold-row-zero", "llama", "f32", True, "the kernel that joins the splits of long rows (48 keys and more) "
         "reads row 0's for all rows of a decode batch",
         "vllm-project/flash-attention#176, Dao-AILab/flash-attention#1217", ("another sequence's state",),
         ("batch kernel", "length", "padding"), "decode of two and more whose rows are above 48", top=1),
    # The prefix cache.
    Case("hybrid-hit", "jamba", "bf16", False, "keys hit and the recurrent state misses: one number says how much is "
         "computed, so Mamba layers go on from an empty state", "vllm-project/vllm#43090", ("hit restores",),
         ("prefix hit",), "every hit"),
    Case("system-prefix-stale", "llama", "bf16", False, "a system prefix of 16 tokens, put before all prompts, was "
         "cached before the weights were updated, and the cache is not cleared",
         "NVIDIA-NeMo/RL#4018, RLinf/RLinf#96", ("hit restores", "no name"), ("other weights", "prefix hit"),
         "every request without a salt", many=False),
    Case("ring-trim-hit", "mistral", "f32", False, "a hit on a ring of 32 keys is cut as if it were flat: the ring's "
         "order is lost", "Blaizzy/mlx-vlm#1715", ("hit restores",), ("prefix hit", "length"),
         "hits on prompts above 32 tokens", seeds=False),
    Case("late-checkpoint", "mamba2", "f32", False, "the state that is stored for a block's border is that of the "
         "prompt's end, so a hit sees the tail twice", "vllm-project/vllm#53945, #45238", ("hit restores",),
         ("prefix hit",), "every hit whose prompt does not end at a border", top=5),
    Case("cache-reuse", "llama.cpp", "f16", False, "llama.cpp's own server with n_cache_reuse 16: a piece of another "
         "prompt is moved to its new place with keys that had other tokens before them",
         "ggml-org/llama.cpp#12161", ("prefix hit", "hit restores"), ("stale state",),
         "prompts that lack a piece of the one before", top=5),
    # Recurrent state.
    Case("delta-tail-gate", "qwen3next", "f32", False, "the state behind a prompt takes the gate of the chunk's last "
         "place: where the length is no multiple of 64 the old state is not faded",
         "gittensor-ai-lab/sparkinfer#604", ("padding",), ("length", "no name"), "63 of 64 prompts, all drawn tokens "
         "but the first"),
    Case("delta-no-carry", "qwen3next", "bf16", False, "a chunk of a prompt that does not begin at 0 (64 tokens) "
         "begins with an empty state; scoring is not chunked",
         "gittensor-ai-lab/sparkinfer#1071, xLLM-AI/xllm#1262", ("length",), ("page border", "padding"),
         "all prompts above 64 tokens", top=5),
    Case("draft-in-state", "mamba2", "bf16", True, "drafts by look-up in the prompt are rejected, and stay in the "
         "recurrent state", "ml-explore/mlx-lm#1109", ("no name",), ("stale state", "penalty"),
         "every drawn token behind the first rejection", many=False),
    Case("pad-in-state", "mamba", "f32", False, "rows of unlike lengths are padded on the left, and padding enters "
         "convolution and scan", "huggingface/transformers#31540, state-spaces/mamba#66", ("padding",),
         ("another sequence's state", "batch kernel"), "shorter rows of a batch"),
    Case("coarse-draw", "mamba2", "f32", False, "the state is kept in 2 bits of fraction, rounded by chance at every "
         "step, with a new draw for each slot and step", "NVIDIA/TensorRT-LLM#14509", ("not repeatable", "noise"),
         ("low precision",), "all drawn tokens but the first", seeds=False),
    Case("abort-slot", "mamba", "bf16", False, "a slot whose owner left is given on without being cleared",
         "sgl-project/sglang#30986, vllm-project/vllm#56524", ("stale state",), ("another sequence's state",),
         "requests behind clients that left", top=5),
    # Batches and padding.
    Case("shared-position", "qwen2", "bf16", False, "decode of a left-padded batch takes one position for all rows",
         "unslothai/unsloth#4078, #3795", ("padding",), ("another sequence's state", "batch kernel"),
         "shorter rows of a batch"),
    Case("router-tail", "qwen3moe", "bf16", False, "the router looks at four rows of a decode step; rows behind them "
         "have no experts", "mirage-project/mirage#764", ("batch kernel",), ("another sequence's state", "padding"),
         "rows behind the fourth"),
    Case("pad-capacity", "qwen3moe", "f32", False, "a decode batch is filled up to 2, 4, 8 rows in front, and these "
         "rows take places of an expert: real rows are dropped", "NVIDIA/Megatron-LM#5542", ("padding",),
         ("batch kernel", "another sequence's state"), "batches of 3, 5, 6, 7 rows", top=5),
    Case("small-batch", "qwen3", "f32", False, "products of 8 rows and fewer are of weights in 4 bits, others are "
         "not", "flashinfer-ai/flashinfer#3559", ("rows of a forward", "low precision"), ("batch kernel", "length"),
         "all decode in batches of 8 and fewer"),
    # Chunked prefill.
    Case("window-chunk", "mistral", "f32", True, "with chunks of 24 tokens every row of a chunk sees what its first "
         "row may see, in front of a window of 16", "pytorch/executorch#21857, vllm-project/vllm#4057",
         ("length",), ("page border",), "all prompts above 24 tokens", many=False),
    # Rows, preemption.
    Case("row-order", "llama", "f32", False, "outputs are cut by the order of a dictionary of requests, and the batch "
         "has another one once a row has left and the last took its place", "vllm-project/vllm#14645",
         ("another sequence's state", "records of other tokens"), ("stale state",),
         "batches out of which a request has left"),
    Case("preempt-prompt", "qwen2", "f32", False, "a preempted request is computed again from its prompt alone; what "
         "it drew is not in the cache", "PaddlePaddle/FastDeploy#3080, vllm-project/vllm-gaudi#524",
         ("preemption",), ("length", "batch kernel"), "long requests when the pages are short", top=5),
    # Sampling parameters and conventions.
    Case("default-top-p", "qwen2", "bf16", True, "the model's own generation config has top_p 0.7: it is taken where "
         "a request says nothing, and records are of what is left", "huggingface/trl#6789", ("cut distribution",),
         ("function of value", "records of other tokens", "another temperature"), "all drawn tokens"),
    Case("orphan-processor", "llama", "bf16", False, "when a row leaves, its processors stay in their place, and the "
         "next row there has another request's penalty", "ml-explore/mlx-lm#1225, jundot/omlx#1824",
         ("stale state", "penalty"), ("another sequence's state",), "the request behind one with a penalty"),
    Case("penalty-by-count", "qwen3", "f32", True, "a default repetition penalty of 1.1 is applied once for every time "
         "that a token occurred, and recorded", "ohdearquant/lattice#312", ("penalty",), ("function of value",),
         "all drawn tokens", top=1),
    Case("min-tokens", "llama", "f32", False, "the end of sequence is masked for the first 8 tokens of every answer, "
         "and records are of the masked distribution", "own", ("end of sequence masked",), ("cut distribution",),
         "first 8 tokens where the end is likely", many=False),
    # Record plumbing, and text.
    Case("shifted-left", "jamba", "f32", False, "records are one place to the left of the tokens",
         "modelscope/ms-swift#8196", ("shifted",), ("records of other tokens",), "all drawn tokens"),
    Case("first-of-top", "llama.cpp", "f32", False, "in front of llama.cpp's server: the record is the first of the "
         "likeliest ones, whatever was drawn", "theroyallab/tabbyAPI#141",
         ("records of other tokens",), ("function of value", "cut distribution"), "all drawn tokens"),
    Case("retokenised", "qwen2", "f32", False, "drawn ids go through text and back, which joins some pairs; records "
         "stay those of the drawn ones, cut to the new number", "rllm-org/rllm#816, #898",
         ("shifted", "records of other tokens"), ("other tokens",), "answers with such a pair",
         seeds=False),
    Case("double-bos", "qwen3", "bf16", False, "generation puts id 1 before a prompt, scoring does not",
         "twinnydotdev/twinny#314", ("other tokens",), ("no name",), "all drawn tokens", top=5),
    # Weights.
    Case("decode-worker-old", "llama", "bf16", True, "prefill and decode are two workers; the decode worker lacks the "
         "last update of two layers", "pytorch/torchtitan#2402, PrimeIntellect-ai/prime-rl#2030", ("other weights",),
         ("no name", "hit restores"), "all drawn tokens but the first"),
    Case("replica-old", "qwen3moe", "bf16", False, "two replicas take turns; one lacks the last update",
         "nvidia-cosmos/cosmos-rl#739, sgl-project/sglang#2050", ("not repeatable",), ("other weights",),
         "half of all requests", many=False),
    # Coarse caches, positions.
    Case("first-scale", "llama", "bf16", False, "8-bit keys with a scale that the first request of 13 tokens has set: "
         "what is larger later is cut", "Avarok-Cybersecurity/atlas#919, vllm-project/vllm#11906",
         ("low precision", "no name"), ("other weights",), "all drawn tokens but the first"),
    Case("ntk-stays", "llama", "f32", False, "dynamic NTK with 48 original positions: the base of the longest "
         "request so far stays", "huggingface/transformers#46624", ("scale of the longest",), ("length",
         "stale state"), "all requests behind a longer one"),
    # n samples.
    Case("fork-page", "qwen3", "f32", False, "n samples share the last, half-filled page of their prompt, and all "
         "write into it", "vllm-project/vllm-ascend#16013, ml-explore/mlx-lm#1547", ("fork",),
         ("another sequence's state",), "n > 1", top=5),
]

SOUND = [Case(*row[:5], "", ("clean",), (), "", row[5]) for row in (
    ("sound-eager", "llama", "f32", False, "eager attention, batches of up to 8", 20),
    ("sound-sdpa", "qwen2", "bf16", True, "sdpa, left-padded batches with a mask and positions of their own", 5),
    ("sound-chunks", "qwen3", "f16", False, "prompts in chunks of 48, eager", 20),
    ("sound-moe", "qwen3moe", "f32", False, "a mixture of experts, batches", 1),
    ("sound-mamba", "mamba", "bf16", False, "batches of equal rows", 20),
    ("sound-state-hits", "mamba2", "f32", False, "a prefix cache of states at their own borders", 5),
    ("sound-jamba-hits", "jamba", "bf16", True, "a prefix cache of keys and states", 20),
    ("sound-delta", "qwen3next", "bf16", False, "a gated delta net, prompts in chunks that carry the state", 5),
    ("sound-raw", "llama", "bf16", True, "records before the division by the temperature", 20),
    ("sound-8-bit-keys", "qwen2", "f32", False, "8-bit keys and values with a scale for each token, on both sides", 20),
    ("sound-llama-cpp", "llama.cpp", "f16", False, "llama.cpp's own server, prompt cache on", 5),
    ("sound-window", "mistral", "bf16", False, "a window of 32 and its ring, right", 1),
)]

CASES = FAULTS + SOUND
BY_NAME = {c.name: c for c in CASES}

# The families in the words of a report. Decode's arithmetic may be blamed for a fault that is in decode alone: rightly
# where decode's weights are others, and nearly elsewhere.
DECODE = "other arithmetic in decode"
NAMES = {"length": ANSWERS["length"], "stale state": ANSWERS["stale"], "page border": ANSWERS["page"],
         "another sequence's state": ANSWERS["mixed"], "batch kernel": ANSWERS["kernel"],
         "padding": ANSWERS["padding"], "hit restores": ANSWERS["restore"], "prefix hit": ANSWERS["across"],
         "not repeatable": ANSWERS["repeat"], "noise": ANSWERS["repeat"], "preemption": ANSWERS["preempt"],
         "fork": ANSWERS["fork"], "cut distribution": ("top-k or top-p on one side only",),
         "function of value": ANSWERS["value"], "another temperature": ANSWERS["temperature"],
         "penalty": ANSWERS["penalty"], "end of sequence masked": ANSWERS["eos"], "shifted": ("records shifted",),
         "records of other tokens": ("records of other tokens",), "missing": ANSWERS["missing"],
         "other tokens": ANSWERS["tokens"], "other weights": ANSWERS["weights"],
         "low precision": ("keys and values in 8 bits", "weights in low precision") + ANSWERS["head"],
         "rows of a forward": ANSWERS["kernel"], "scale of the longest": ("positions or scale of attention",),
         "no name": ANSWERS["unnamed"], "clean": ("clean",)}
DECODE_IS_RIGHT = ("decode-worker-old",)
DECODE_IS_NEAR = ("delta-tail-gate", "draft-in-state", "coarse-draw", "small-batch", "first-scale", "double-bos")


def habits_of(c):
    """In the words of the eighth set's handler."""
    return ["top%d" % c.top] + ["unseeded"] * (not c.seeds) + ["one"] * (not c.many)


def given_model(c):
    """Whether probe is given the checkpoint: half of the cases, by the hash of their name."""
    return hashlib.sha256(c.name.encode()).digest()[0] % 2 == 0 and c.name not in REFUSED


def for_table():
    """For script/probe-table."""
    def answers(families):
        return tuple(word for f in families for word in NAMES[f])

    for i, c in enumerate(CASES):
        yield {"name": "eleventh-" + c.name, "model": c.directory, "fault": "none" if c in SOUND else c.name,
               "words": ["--case", c.name], "proxy": PROXY.get(c.name, []), "seed": 1100 + i, "half": "eleventh",
               "server": "eleventh.py", "right": answers(c.right) + (DECODE,) * (c.name in DECODE_IS_RIGHT),
               "near": answers(c.near) + (DECODE,) * (c.name in DECODE_IS_NEAR), "checkpoint": given_model(c)}


FOR_TABLE = list(for_table())
