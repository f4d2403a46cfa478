"""The tenth set: 36 faults and 12 sound settings, written down before any of them was run.

Most faults are incidents of public projects, planted again by their mechanism. `of` names the thread; "own" is
an incident without one. A model is a tiny one of transformers with random weights. A server has one path for
prompts' values and one for what it generates; `plant` says which of them is at fault.

`family` is what a user should be told, in the words of docs/guide/diagnosis.md. NONE means that the server differs
and no name fits. `touches` is the part of ordinary requests whose values move. Each fault moves those by at
least five times what bf16 rounds of its model, in the middle of the tokens that it touches; head-fp8 by three times.
"""

import hashlib
from collections import namedtuple

from seventh_cases import ANSWERS

# Families, in the guide's words.
STALE = "stale state"
ACROSS = "hit across prompts"
RESTORES = "what a hit restores"
OTHER = "another sequence's state"
PADDING = "padding"
PREEMPTION = "preemption"
FORK = "fork"
LENGTH = "from a length on"
TEMPERATURE = "temperature"
WEIGHTS = "other weights or another formula"
HEAD = "head in low precision"
CUT = "cut distribution"
FORM = "function of the value"
PROMPT = "other tokens than were sent"
MISSING = "missing"
REPEAT = "not repeatable"
PENALTY = "penalty"
NONE = "differs, no name"
SOUND = "sound"


class Case(namedtuple("Case", "name family model type habits of plant touches")):
    """model: "+peaked" scales its head, so that some next tokens are nearly sure. habits: the dialect, how many likely
    ids an answer has, and what the server lacks: "-n" several samples of a request, "-seeds" seeds."""

    @property
    def dialect(self):
        return self.habits.split()[0]

    @property
    def directory(self):
        model, _, peaked = self.model.partition("+")
        return "tenth-" + KINDS.get(model, model) + "+peaked" * bool(peaked)


KINDS = {"qwen3-moe": "qwen3moe", "mistral window 32": "mistral32", "llama dynamic ntk 64": "llamantk",
         "granite hybrid": "granite"}

FAULTS = (
    # keys, values and pages
    Case("table-zero-pad", LENGTH, "mistral", "f32", "vllm 5", "tenstorrent/tt-metal#45184",
         "a page table of 4 pages of 16 is padded with zeros: from position 64 on a new key goes to page 0",
         "sequences above 64 tokens"),
    Case("window-evicted-early", LENGTH, "mistral window 32", "bf16", "vllm 1 -seeds", "kekzl/imp#967",
         "decode frees pages by ceil in place of floor: up to 15 of the window's 32 keys are gone",
         "sequences above 32 tokens"),
    Case("phantom-row", PADDING, "qwen3", "f32", "sglang 5", "local-inference-lab/vllm#621",
         "a decode batch is filled up to 2, 4, 8 .. rows; the rows that fill it write their key to row 0's cache",
         "batches whose size is no power of two"),
    Case("fork-shares-page", FORK, "llama+peaked", "bf16", "vllm 5", "own: copy on write of the last page",
         "the n samples of a request write to one last page of 16 until it is full", "requests with n above 1"),
    # prefix cache
    Case("key-last-block", ACROSS, "qwen2", "f32", "vllm 20", "vllm-project/aibrix#2329",
         "a prefix is found by the hash of its last block of 8 and by its number of blocks",
         "prompts whose block at the same place is equal"),
    Case("full-hit-doubles", RESTORES, "llama", "bf16", "vllm 1", "vllm-project/vllm#12003",
         "a prompt of whole blocks that is cached entirely runs its last token again behind its own key",
         "prompts of whole blocks of 4 that come again"),
    Case("abort-frees-twice", OTHER, "qwen3+peaked", "bf16", "vllm 5 -n", "sgl-project/sglang#23392",
         "a client that leaves has its slot freed twice, and two later requests share it",
         "requests at the same time behind clients that left"),
    Case("update-keeps-prefix", RESTORES, "llama", "f32", "vllm 5 -seeds", "PrimeIntellect-ai/prime-rl#1650",
         "a prefix that is cached keeps keys of the weights before the last update", "every hit"),
    # recurrent and convolution state
    Case("scan-not-zeroed", STALE, "jamba", "bf16", "vllm 5", "vllm-project/vllm#56524",
         "a slot's scan state is not zeroed for its next owner; the convolution's window is", "all"),
    Case("conv-two-layouts", NONE, "mamba2", "f32", "sglang 5 -n", "SearchSavior/Arcaine#10",
         "prefill hands the convolution's window over in one order, and decode reads it in the other",
         "the first three tokens of each completion"),
    Case("window-restarts", LENGTH, "mamba2", "bf16", "vllm 1", "gittensor-ai-lab/sparkinfer#1071",
         "prefill in windows of 64: each window after the first starts from a scan state of zero",
         "prompts above 64 tokens"),
    Case("chunk-pad-state", PADDING, "mamba", "f32", "vllm 5 -seeds", "huggingface/transformers#46873",
         "prefill is filled up to multiples of 8, and the state behind what fills it is handed to decode",
         "prompts whose length is no multiple of 8"),
    Case("mixed-step-lost", NONE, "granite hybrid", "f32", "vllm 20", "vllm-project/vllm#26807",
         "when a prompt joins a step, the states of those that decode are not written back",
         "requests that run while others begin"),
    Case("first-chunk-decodes", STALE, "mamba2+peaked", "f32", "vllm 5", "vllm-project/vllm#51562",
         "a prompt of at most 4 tokens is taken for a decode and reads its slot's old state",
         "prompts of at most 4 tokens"),
    # batches, padding, chunks
    Case("left-pad-positions", PADDING, "qwen2", "bf16", "vllm 5", "unslothai/unsloth#4078",
         "left padding: prefill counts a row's own positions, and decode those of the longest row",
         "batches of unlike lengths"),
    Case("left-pad-scan", PADDING, "mamba+peaked", "bf16", "sglang 5", "huggingface/transformers#32677",
         "left padding without a mask: pads go through convolution and scan", "batches of unlike lengths"),
    Case("capacity-takes-pads", PADDING, "qwen3-moe", "f32", "vllm 1", "NVIDIA/Megatron-LM#5542",
         "an expert takes a number of a batch's tokens, and pads count: tokens of the batch are dropped",
         "batches of unlike lengths"),
    Case("chunk-reads-ahead", STALE, "llama", "f32", "vllm 20 -n", "GeeeekExplorer/nano-vllm#213",
         "chunks of 32: a chunk's length of keys is that of the prompt, so it reads the slot's old keys",
         "prompts above 32 tokens"),
    # preemption
    Case("resume-doubles", PREEMPTION, "llama+peaked", "f32", "vllm 5", "vllm-project/vllm-gaudi#524",
         "a preempted sequence is computed again with its last token twice", "sequences that are preempted"),
    Case("resume-prompt-only", PREEMPTION, "jamba", "f32", "vllm 5 -seeds", "vllm-project/vllm#16832",
         "a preempted sequence is computed again from its prompt alone, and goes on with its last token",
         "sequences that are preempted"),
    # sampling and conventions
    Case("default-top-k", CUT, "qwen3", "bf16", "vllm 5", "modelscope/ms-swift#8442",
         "generation_config has top_k 20, and records are of what is left", "all"),
    Case("probabilities", FORM, "qwen2+peaked", "f32", "vllm 5 -seeds", "ggml-org/llama.cpp#10783",
         "records of what was generated are probabilities", "all"),
    Case("penalty-in-place", PENALTY, "llama", "bf16", "sglang 5 -n", "NVIDIA/TensorRT-LLM#17701",
         "a default repetition penalty of 1.2 changes the logits in place, and records are read behind it", "all"),
    Case("records-at-0.6", TEMPERATURE, "qwen3-moe+peaked", "bf16", "vllm 20", "vllm-project/vime#69",
         "records are of the temperature that was asked for, values of prompts are not",
         "temperatures other than 1"),
    # speculative decoding
    Case("speculative-zero", MISSING, "qwen3", "bf16", "vllm 5", "ggml-org/llama.cpp#27972",
         "tokens that a draft proposed and the model took have a record of 0", "about one token in three"),
    Case("draft-conv-kept", NONE, "mamba", "f32", "vllm 1 -n", "vllm-project/vllm#40738",
         "behind a draft that was refused the scan state is put back, and the convolution's window is not",
         "all but first tokens"),
    # weights
    Case("head-clone-stale", WEIGHTS, "qwen2", "bf16", "vllm 5", "PrimeIntellect-ai/prime-rl#2823",
         "updates reach the embedding and not the head that was cloned from it; both paths use that head",
         "all, and --model alone sees it"),
    Case("replica-behind", REPEAT, "qwen3", "f32", "vllm 5", "radixark/miles#1724",
         "one of two engines behind a router has the weights of some updates ago", "every other request"),
    Case("expert-layout-old", WEIGHTS, "qwen3-moe", "f32", "sglang 5", "verl-project/verl#7987",
         "decode has its own layout of the experts, which the last update did not reach", "all but first tokens"),
    # quantised caches and heads
    Case("scale-of-warm-up", NONE, "llama+peaked", "bf16", "vllm 5 -n", "vllm-project/vllm#11906",
         "keys in eight bits with the scale of the first request of one token: larger ones are cut off",
         "all but first tokens"),
    Case("head-fp8", HEAD, "qwen2", "f32", "vllm 1 -seeds", "own: a quantised head under a trainer in f32",
         "decode multiplies a head of eight bits (e5m2)", "all but first tokens"),
    # positions
    Case("ntk-keys-cached", LENGTH, "llama dynamic ntk 64", "f32", "vllm 5", "huggingface/transformers#24653",
         "dynamic NTK: keys are cached with the base of the length that they were written at",
         "sequences above 64 tokens"),
    Case("positions-bf16", LENGTH, "qwen3", "f32", "vllm 5 -seeds", "huggingface/candle#3520",
         "decode counts positions in bf16, so that those above 256 are rounded", "sequences above 256 tokens"),
    # experts and records
    Case("decode-norm-topk", WEIGHTS, "qwen3-moe+peaked", "f32", "vllm 5", "sgl-project/sglang#35160",
         "decode divides the chosen experts' weights by their sum, and the model does not", "all but first tokens"),
    Case("retokenized", PROMPT, "llama", "f32", "vllm 5", "sgl-project/sglang#26555",
         "generation takes ids through text and back, where some pairs become one id",
         "prompts with such a pair"),
    Case("records-of-next-row", OTHER, "qwen2+peaked", "bf16", "vllm 5", "vllm-project/vllm#29216",
         "records are cut out of a step's rows without those that only read a chunk: they are of the row before",
         "requests that run while others read"),
)

SOUND_SETTINGS = (
    Case("plain-f32", SOUND, "llama", "f32", "vllm 5", "", "eager attention", ""),
    Case("batched-bf16", SOUND, "qwen2+peaked", "bf16", "vllm 20", "", "sdpa, batches with left padding", ""),
    Case("chunked-f16", SOUND, "qwen3", "f16", "vllm 1 -seeds", "", "chunks of 32", ""),
    Case("experts-bf16", SOUND, "qwen3-moe", "bf16", "vllm 5", "", "batches", ""),
    Case("mamba-f32", SOUND, "mamba+peaked", "f32", "sglang 5 -n", "", "batches", ""),
    Case("mamba2-bf16", SOUND, "mamba2", "bf16", "vllm 5", "", "batches", ""),
    Case("jamba-bf16", SOUND, "jamba", "bf16", "vllm 5 -seeds", "", "batches, preemption done right", ""),
    Case("prefix-f32", SOUND, "llama", "f32", "vllm 5", "", "a prefix cache of blocks of 8, done right", ""),
    Case("raw-at-0.6", SOUND, "qwen3+peaked", "bf16", "vllm 5", "", "raw records, and a default temperature", ""),
    Case("coarse-records", SOUND, "qwen2", "f32", "vllm 1", "", "records and values rounded to 1/1024", ""),
    Case("window-bf16", SOUND, "mistral window 32", "bf16", "sglang 1", "", "a window, and pages given back right", ""),
    Case("hybrid-bf16", SOUND, "granite hybrid", "bf16", "vllm 5", "", "chunks of 64 with the state carried", ""),
)


CASES = FAULTS + SOUND_SETTINGS
BY_NAME = {c.name: c for c in CASES}
REFUSED = ("llama dynamic ntk 64",)  # a model whose checkpoint the program does not read

# The families in the words of a report: what is right to say, and what is near. A fault that changes decode's
# arithmetic alone may be called so: rightly where it is a formula or weights, and nearly elsewhere.
DECODE = "other arithmetic in decode"
NAMES = {STALE: ANSWERS["stale"], ACROSS: ANSWERS["across"], RESTORES: ANSWERS["restore"], OTHER: ANSWERS["mixed"],
         PADDING: ANSWERS["padding"], PREEMPTION: ANSWERS["preempt"], FORK: ANSWERS["fork"],
         LENGTH: ANSWERS["length"], TEMPERATURE: ANSWERS["temperature"],
         WEIGHTS: ANSWERS["weights"], HEAD: ANSWERS["head"], CUT: ("top-k or top-p on one side only",),
         FORM: ANSWERS["value"], PROMPT: ANSWERS["tokens"], MISSING: ANSWERS["missing"],
         REPEAT: ANSWERS["repeat"], PENALTY: ANSWERS["penalty"], NONE: ANSWERS["unnamed"], SOUND: ("clean",)}
ALSO_RIGHT = {"expert-layout-old": (DECODE,), "decode-norm-topk": (DECODE,)}
NEAR = {"scale-of-warm-up": ("keys and values in 8 bits", DECODE), "conv-two-layouts": (DECODE,),
        "draft-conv-kept": (DECODE,), "head-fp8": (DECODE,) + ANSWERS["value"], "phantom-row": ANSWERS["mixed"],
        "default-top-k": ANSWERS["value"],
        "update-keeps-prefix": ANSWERS["across"], "full-hit-doubles": ANSWERS["across"],
        "records-of-next-row": ANSWERS["shift"], "abort-frees-twice": ANSWERS["stale"],
        "window-restarts": ANSWERS["page"], "capacity-takes-pads": ANSWERS["mixed"] + ANSWERS["kernel"]}


def habits_of(c):
    """In the words of the eighth set's handler."""
    words = c.habits.split()
    return ["top" + words[1]] + ["unseeded"] * ("-seeds" in words) + ["one"] * ("-n" in words)


def given_model(name):
    """Whether probe is given the checkpoint: half of the cases, by the hash of their name."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0 and BY_NAME[name].model not in REFUSED


def for_table():
    """For script/probe-table."""
    for i, c in enumerate(CASES):
        yield {"name": "tenth-" + c.name, "model": c.directory, "fault": "none" if c.family == SOUND else c.name,
               "words": ["--case", c.name], "seed": 1000 + i, "half": "tenth", "server": "tenth.py",
               "right": NAMES[c.family] + ALSO_RIGHT.get(c.name, ()), "near": NEAR.get(c.name, ()),
               "checkpoint": given_model(c.name)}


FOR_TABLE = list(for_table())
