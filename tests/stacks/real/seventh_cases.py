"""The seventh set of faults and sound settings, as data: written, with what a user should be told, before any ran.

FAULTS has (name, model, families, near, what is wrong and where). `families` are the answers that are right, in the
words of docs/guide/diagnosis.md; a report that names something of `near` is near. UNNAMED stands for "differs, and no
cause is named", where the guide has no word for the fault. SOUND has (name, model, what the setting is); each must be
clean. `families` has keys of FAMILY.
"""
import hashlib

FAMILY = {
    "stale": "stale state of a reused slot: what the last owner left moves the next request",
    "across": "prefix hit across different prompts: a prompt is given the cached state of another",
    "restore": "what a hit restores is wrong, for a prompt's own beginning as well",
    "mixed": "another sequence's state, when several are in the server",
    "kernel": "the batch's kernel: values move with the number of rows alone",
    "padding": "padding: lengths that need none are right",
    "preempt": "preemption",
    "fork": "the fork of n samples",
    "temperature": "records of another temperature",
    "value": "records are a function of the value: cut, bounded, coarse, scaled, a vocabulary with other ids",
    "shift": "records shifted, or of other tokens",
    "tokens": "other tokens are computed than were sent",
    "missing": "log-probabilities missing",
    "weights": "other weights or another formula than the checkpoint",
    "page": "a page's border",
    "length": "from a length on: positions, windows, chunks, coarse keys",
    "penalty": "a penalty or bias is in the records",
    "eos": "the end of sequence is masked in the records",
    "repeat": "not repeatable: servers take turns, or noise comes and goes",
    "hang": "ends without an answer",
    "head": "head in low precision",
    "unnamed": "differs, and no cause is named",
}

FAULTS = [
    # Prefix caches
    ("hash-without-parent", "llama", ("across",), ("restore", "mixed"),
     "the key of a cached block has its own 16 tokens and not what stands before them"),
    ("hash-of-eight-bits", "qwen3", ("across",), ("restore", "repeat"),
     "the key of a cached prefix is a checksum of 8 bits, and tokens are not compared"),
    ("hit-ignores-partial-block", "llama", ("restore", "across"), ("length", "page"),
     "the last block is entered into the cache when it is half full; a hit takes all 16 rows, the rest as zeros"),
    ("hit-restarts-positions", "qwen2", ("restore",), ("across", "length"),
     "behind a hit the positions of the rest of the prompt begin at 0"),
    ("hit-adds-last-twice", "llama", ("restore",), ("across", "tokens"),
     "a prompt that is wholly cached computes its last token again, and its key is appended a second time"),
    ("hit-from-4-bit-store", "qwen3", ("restore",), ("across", "length"),
     "blocks that left for the host's store come back from 4 bits a value"),
    ("hit-state-of-the-end", "mamba", ("across", "restore"), ("stale",),
     "a hit on a prefix restores the recurrent state of the end of the prompt that left it"),
    ("hit-loses-last-layer", "qwen3", ("restore",), ("across",),
     "the host's store lacks the last layer; a hit has zeros there"),
    # State that stays
    ("conv-not-cleared", "mamba", ("stale",), ("repeat", "mixed"),
     "a slot's convolution window and scan state are kept when it goes to the next request"),
    ("handover-not-cleared", "jamba", ("stale", "mixed"), ("repeat",),
     "a slot that is handed over while others run keeps its scan state; an idle server clears it"),
    ("longer-owner-seen", "llama", ("stale",), ("length", "repeat"),
     "a slot's rows are not cut: a shorter successor attends to the rows behind its own that the last owner left"),
    ("abort-keeps-rows", "qwen2", ("stale",), ("mixed", "repeat"),
     "a request whose client left keeps its rows, and the next owner of its slot is appended to them"),
    ("bias-stays", "llama", ("stale", "penalty"), ("mixed", "repeat"),
     "the sampler's row keeps logit_bias and penalties of its last owner, and records are taken behind it"),
    # Preemption
    ("resume-without-answer", "llama", ("preempt",), ("mixed", "unnamed"),
     "a preempted sequence is computed again from its prompt alone, without what it had generated"),
    ("resume-at-wrong-position", "qwen3", ("preempt",), ("mixed", "unnamed"),
     "a preempted sequence goes on at the position where its prompt ended"),
    # Batches
    ("pad-through-state", "mamba", ("padding", "mixed"), ("kernel",),
     "prompts are padded at the left to the longest of the batch, and pads go through the recurrent state"),
    ("pad-not-masked", "qwen2", ("padding", "mixed"), ("kernel",),
     "in decode of unequal lengths the mask of pads is dropped"),
    ("last-row-of-padded", "llama", ("padding", "mixed"), ("shift",),
     "prompts are padded at the right, and first tokens are drawn from the last row, of a pad"),
    ("rows-before-compaction", "llama", ("mixed",), ("shift", "repeat"),
     "in the step in which a sequence ends, records are gathered with row numbers of before it left"),
    ("int8-from-eight-rows", "qwen3", ("kernel",), ("mixed",),
     "from 8 rows on the products of a layer multiply in 5 bits"),
    ("graph-pads-write-row-0", "llama", ("mixed", "padding"), ("kernel",),
     "a batch is padded to a power of two, and padding rows write their key into the first sequence"),
    ("adapter-of-neighbour", "qwen2", ("repeat", "mixed"), ("kernel", "stale"),
     "another tenant's request with an adapter is in the batch now and then; its adapter is applied to all rows"),
    # What is recorded
    ("record-of-temperature", "llama", ("temperature",), ("value",),
     "records are divided by the temperature though the server answers as one of raw values does"),
    ("record-behind-top-p", "qwen3", ("value",), ("temperature",),
     "with top-p or top-k, records are normalised over what was kept"),
    ("default-penalty", "qwen2", ("penalty",), ("value", "weights"),
     "generation_config.json has repetition_penalty 1.3, and records are taken behind it"),
    ("eos-masked", "llama", ("eos",), ("value", "penalty"),
     "min_tokens masks the end of sequence for the first 8 tokens, and records are taken behind it"),
    ("log-of-p-and-epsilon", "llama", ("value",), ("missing",),
     "records are log(p + 0.001)"),
    ("log-base-2", "mamba", ("value", "temperature"), ("weights",),
     "records are logarithms to the base 2"),
    ("vocabulary-padded", "qwen3", ("value",), ("weights", "head"),
     "decode's normaliser runs over 64 rows that pad the vocabulary; the prompt's does not"),
    ("head-in-fp8", "llama", ("head", "value"), ("weights", "unnamed"),
     "decode's head rounds logits to float8 e4m3; the prompt's is whole"),
    ("record-one-late", "qwen2", ("shift",), ("missing",),
     "a record is that of the token before"),
    ("zero-out-of-top-20", "llama", ("missing",), ("value",),
     "a token that is not among the 20 likeliest is recorded as 0"),
    ("draft-records", "qwen3", ("unnamed",), ("weights", "value", "repeat"),
     "an accepted token of speculation is recorded with the draft model's probability"),
    # Tokens, positions, lengths
    ("rejected-drafts-stay", "llama", ("tokens", "unnamed"), ("length", "shift"),
     "the key of one rejected token of speculation stays in front of the next; it is not rolled back"),
    ("bos-for-generation", "qwen2", ("tokens",), ("unnamed",),
     "an extra token 1 is put before a prompt that is to be continued, and not before one that is scored"),
    ("window-in-decode", "qwen2", ("length",), ("page", "unnamed"),
     "decode attends to the last 48 positions only; the model has no window"),
    ("tail-page-not-sent", "llama", ("padding", "page"), ("tokens", "length"),
     "between prefill's and decode's machine the last page of 16 is not sent unless it is full"),
    # Samples and replicas
    ("fork-without-copy", "llama", ("fork",), ("mixed",),
     "n samples share the last page of the prompt and write into it"),
    ("replica-of-older-weights", "qwen3", ("repeat",), ("weights", "mixed"),
     "two replicas take turns; one missed the last update"),
    ("tied-head-not-updated", "qwen2", ("weights",), ("unnamed",),
     "an update writes the embedding, and a copy stays as the head: both sides are wrong alike"),
]

SOUND = [
    ("f32-eager", "llama", "float32, eager attention"),
    ("f32-sdpa", "qwen3", "float32, sdpa"),
    ("bf16-eager", "llama", "bfloat16, eager attention"),
    ("bf16-sdpa", "qwen2", "bfloat16, sdpa"),
    ("f16-sdpa", "llama", "float16, sdpa"),
    ("mamba-f32", "mamba", "a recurrent model in float32"),
    ("mamba-bf16", "mamba", "a recurrent model in bfloat16"),
    ("jamba-f32", "jamba", "a hybrid in float32"),
    ("batched-f32", "llama", "decode of unequal lengths in one batch, pads masked, float32"),
    ("batched-bf16", "qwen3", "decode of unequal lengths in one batch, pads masked, bfloat16"),
    ("prefix-f32", "qwen2", "prefix cache of blocks of 16, float32"),
    ("prefix-bf16", "llama", "prefix cache of blocks of 16, bfloat16"),
    ("chunked-bf16", "qwen3", "prefill in chunks of 64, bfloat16"),
    ("sglang-raw", "llama", "SGLang's convention: records of the temperature, prompts raw"),
    ("default-temperature", "qwen2", "generation_config.json has temperature 0.6; records are raw, as vLLM's"),
    ("preempt-right", "llama", "preemption by recomputation of prompt and answer, float32"),
    ("two-replicas", "qwen3", "two replicas of equal weights take turns, bfloat16"),
    ("four-digits", "qwen2", "values are printed with 4 digits behind the point"),
    ("keys-in-f16", "llama", "keys and values are kept in float16 on both paths; the model is float32"),
    ("speculation-right", "qwen3", "speculative decoding with exact rollback and the model's own records"),
]

# What a report says where it means a family. "other arithmetic in decode" is no word of the guide. Of a fault of decode
# alone it is near.
ANSWERS = {
    "stale": ("stale state of a reused slot",),
    "across": ("prefix hit across different prompts",),
    "restore": ("prefix hits are wrong", "prefix snapshot at the wrong token", "prefix cache returns old entries"),
    "mixed": ("another sequence's state is read",),
    "kernel": ("order of sums follows the batch",),
    "padding": ("padding leaks into the state",),
    "preempt": ("preempted sequences come back wrong", "swapped sequences come back wrong"),
    "fork": ("fork is not a copy",),
    "temperature": ("temperature on one side only",),
    "value": ("log-probabilities clamped", "log-probabilities in low precision", "log-probabilities scaled",
              "top-k or top-p on one side only", "vocabulary on one side only"),
    "shift": ("records shifted", "records of other tokens"),
    "tokens": ("other tokens than were sent",),
    "missing": ("log-probabilities missing",),
    "weights": ("other weights or another formula", "one layer has other weights", "another formula in the model",
                "weights in low precision"),
    "page": ("page size matters",),
    "length": ("wrong from a length on", "state lost between chunks", "keys and values in 8 bits",
               "positions or scale of attention"),
    "penalty": ("penalty on one side only",),
    "eos": ("end of sequence masked",),
    "repeat": ("not repeatable",),
    "hang": ("ends without an answer",),
    "head": ("head in low precision",),
    "unnamed": ("not named",),
}
DECODE_ALONE = ("vocabulary-padded", "head-in-fp8", "rejected-drafts-stay", "bos-for-generation", "window-in-decode",
                "tail-page-not-sent")

NEEDS_CHECKPOINT = ("tied-head-not-updated",)


def cases():
    """For script/probe-table. A hash of the name says whether a user has the checkpoint, and a fault's type."""
    for sound, entries in ((False, FAULTS), (True, [(name, model, (), (), what) for name, model, what in SOUND])):
        for i, (name, model, families, near, _) in enumerate(entries):
            digest = hashlib.sha256(name.encode()).digest()
            dtype = "float32" if sound or digest[1] % 2 or model == "jamba" else "bfloat16"
            for mark, other in (("bf16", "bfloat16"), ("f16-", "float16"), ("two-replicas", "bfloat16")) * sound:
                dtype = other if mark in name and dtype == "float32" else dtype
            attention = "eager" if "eager" in name or model == "mamba" else "sdpa"
            yield {"name": "seventh-" + name, "model": "seventh-" + model, "fault": "none" if sound else name,
                   "words": ["--case", name, "--dtype", dtype, "--attention", attention],
                   "seed": 200 + i + 100 * sound, "half": "seventh", "server": "seventh.py",
                   "checkpoint": bool(digest[0] % 2) or name in NEEDS_CHECKPOINT,
                   "right": ("clean",) if sound else tuple(a for f in families for a in ANSWERS[f]),
                   "near": tuple(a for f in near for a in ANSWERS[f]) +
                           ("other arithmetic in decode",) * (name in DECODE_ALONE)}


CASES = list(cases())
