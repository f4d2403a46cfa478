#!/usr/bin/env python3
"""The server of the seventh set with the faults, models and habits of the tenth.

Usage: tenth.py MODEL --case NAME          NAME is of tenth_cases.py, which has type and habits of each
       tenth.py --make DIR KIND[+peaked]   writes a model of random weights

The address is the first line. A prompt whose values are asked for is always computed alone and whole; all that is
planted is in the path of what is generated, except where a case says otherwise. Where the seventh set has a mechanism
already, that is used (SAME).
"""

import argparse
import contextlib
import copy
import math
import sys
import types

import torch
import transformers
from torch.nn.functional import linear
from transformers import DynamicCache

import eighth
import front
import ninth
import seventh
import tenth_cases
from seventh import EOS, PAGE, VOCAB

SAME = {"phantom-row": "graph-pads-write-row-0", "fork-shares-page": "fork-without-copy",
        "left-pad-scan": "pad-through-state", "resume-prompt-only": "resume-without-answer",
        "records-at-0.6": "record-of-temperature", "head-clone-stale": "tied-head-not-updated",
        "raw-at-0.6": "default-temperature"}
TOGETHER = ("left-pad-positions", "left-pad-scan", "capacity-takes-pads", "batched-bf16", "experts-bf16", "mamba-f32",
            "mamba2-bf16")
PREEMPTS = ("resume-doubles", "resume-prompt-only", "jamba-bf16")
PAGES = {"key-last-block": 8, "full-hit-doubles": 4, "update-keeps-prefix": PAGE, "prefix-f32": 8}
CHUNKS = {"chunk-reads-ahead": 32, "chunked-f16": 32, "hybrid-bf16": 64}
WINDOW, TABLE = 32, 64


def make(directory, kind):
    torch.manual_seed(53)
    kind, _, peaked = kind.partition("+")
    tokens = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, pad_token_id=0)
    common = dict(hidden_size=96, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.13,
                  tie_word_embeddings=kind == "qwen2", **tokens)
    scan = dict(hidden_size=96, num_hidden_layers=3, initializer_range=0.14, tie_word_embeddings=False,
                rescale_prenorm_residual=False, **tokens)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = {
        "llama": lambda: transformers.LlamaConfig(**common), "qwen2": lambda: transformers.Qwen2Config(**common),
        "llamantk": lambda: transformers.LlamaConfig(rope_parameters=dynamic,
                                                     **{**common, "max_position_embeddings": 64}),
        "qwen3": lambda: transformers.Qwen3Config(head_dim=32, **common),
        "mistral": lambda: transformers.MistralConfig(sliding_window=None, head_dim=24, **common),
        "mistral32": lambda: transformers.MistralConfig(sliding_window=WINDOW, head_dim=24, **common),
        "qwen3moe": lambda: transformers.Qwen3MoeConfig(head_dim=32, num_experts=8, num_experts_per_tok=2,
                                                        moe_intermediate_size=64, norm_topk_prob=False, **common),
        "mamba": lambda: transformers.MambaConfig(state_size=8, **scan),
        "mamba2": lambda: transformers.Mamba2Config(state_size=16, num_heads=6, head_dim=32, n_groups=1, chunk_size=32,
                                                    **scan),
        "jamba": lambda: transformers.JambaConfig(attn_layer_offset=1, attn_layer_period=3, num_experts=1,
                                                  num_experts_per_tok=1, use_mamba_kernels=False, mamba_d_state=8,
                                                  **common),
        "granite": lambda: transformers.GraniteMoeHybridConfig(
            layer_types=["mamba", "attention", "mamba"], mamba_n_heads=6, mamba_d_head=32, mamba_n_groups=1,
            mamba_d_state=16, mamba_chunk_size=32, shared_intermediate_size=128, num_local_experts=0, **common)}[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[EOS] *= 2
        if peaked:
            head *= 3
    model.to(torch.bfloat16).save_pretrained(directory)


def is_scan(pair):
    """Of a layer's state: (window, scan) and not (keys, values)."""
    return pair[0].dim() == 2


class Model(seventh.Model):
    """`moved` changes the positions of a forward."""
    moved = None

    def __init__(self, o):
        super().__init__(o)
        self.pad = EOS
        whole = copy.deepcopy(self.config)
        if self.kind == "mistral":  # rows of all positions are kept; the mask alone is a window
            whole.sliding_window = None
            self.cache_type = lambda config: DynamicCache(config=whole)

    def __call__(self, states, tokens, positions, hidden=False):
        return super().__call__(states, tokens, self.moved(positions) if self.moved else positions, hidden)


class Engine(seventh.Engine):
    model_type = Model

    def __init__(self, o, older=False):
        self.case, self.name = tenth_cases.BY_NAME[o.case], o.case
        self.habits = tenth_cases.habits_of(self.case)
        self.decoding, self.fresh = False, []  # fresh: who was admitted in this turn
        self.real_tokens = 0  # of a batch of prompts whose pads take room of the experts
        self.reading, self.twice = [], []  # who reads chunks in this step; shared rows of slots that were freed twice
        kind = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[self.case.type]
        eager = o.case == "plain-f32" or self.case.model.startswith("mamba")
        super().__init__(types.SimpleNamespace(model=o.model, case=SAME.get(o.case, o.case), dtype=kind,
                                               attention="eager" if eager else "sdpa"), older)
        self.together, self.preempts = o.case in TOGETHER, o.case in PREEMPTS
        self.speculates, self.model.exit = o.case == "speculative-zero", 1
        self.reads_cache, self.page = o.case in PAGES, PAGES.get(o.case, PAGE)
        if self.preempts:
            self.slots, self.pool = [None] * 32, 900

    # ---- planted in the model ----

    def plant(self):
        super().plant()
        m, name, blocks = self.model.m, self.name, self.model.blocks
        self.model.moved = {"positions-bf16": self.in_bf16, "left-pad-positions": self.of_longest}.get(name)
        if name == "head-fp8":
            head = m.get_output_embeddings()
            coarse = head.weight.data.to(torch.float8_e5m2).to(head.weight.dtype)
            head.register_forward_hook(lambda _, x, y: linear(x[0], coarse) if self.decoding else y)
        if name == "update-keeps-prefix":
            self.former = copy.copy(self.model)
            self.former.m = copy.deepcopy(m)
            self.disturb(self.former.m.model.layers[0].mlp.down_proj.weight, 0.5)
        if name == "expert-layout-old":
            self.experts = [b.mlp.experts.down_proj for b in blocks]
            self.layouts = [p.data + ninth.noise(p.data, i, 0.5) for i, p in enumerate(self.experts)]
        if name == "scale-of-warm-up":
            state = self.model([None], [[1]], [[0]])[1][0]
            self.most = [tuple(x.abs().max() for x in pair) for pair in state]
        for i, b in enumerate(blocks if name in ("decode-norm-topk", "capacity-takes-pads") else ()):
            b.mlp.gate.register_forward_hook(lambda _, x, y: self.routed(*y))

    def routed(self, logits, weights, chosen):
        if self.name == "decode-norm-topk" and self.decoding:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.real_tokens:
            room = math.ceil(2 * self.real_tokens * chosen.shape[1] / logits.shape[1])
            for expert in range(logits.shape[1]):
                rows, entries = (chosen == expert).nonzero(as_tuple=True)
                weights[rows[room:], entries[room:]] = 0
        return logits, weights, chosen

    def in_bf16(self, positions):
        if not self.decoding:
            return positions
        return [[int(torch.tensor(float(x)).to(torch.bfloat16)) for x in p] for p in positions]

    def of_longest(self, positions):
        return [[max(max(p) for p in positions)]] * len(positions) if self.decoding else positions

    @contextlib.contextmanager
    def in_decode(self):
        """The model as decode has it."""
        self.decoding = True
        if self.name == "expert-layout-old":
            new = [p.data for p in self.experts]
            for p, old in zip(self.experts, self.layouts):
                p.data = old
        yield
        if self.name == "expert-layout-old":
            for p, data in zip(self.experts, new):
                p.data = data
        self.decoding = False

    # ---- who is admitted, and who leaves ----

    def admit(self):
        if self.name == "records-of-next-row":
            self.read_chunks()
        if self.reading:  # they take part in this step, and not as rows that are drawn of
            with self.lock:
                self.waiting = [s for s in self.waiting if s not in self.reading]
        self.fresh = super().admit()
        if self.reading:
            with self.lock:
                self.waiting += self.reading
        return self.fresh

    def read_chunks(self):
        """A prompt is read in chunks of 32, one a step, and is in the step without a draw until its last one."""
        self.reading = []
        with self.lock:
            for s in self.waiting:
                s.chunks = getattr(s, "chunks", (len(s.ids) - 1) // 32) - 1
                if s.chunks >= 0:
                    self.reading.append(s)
        for s in self.reading:
            if not hasattr(s, "of_chunk"):
                logits = self.model([None], [s.ids[:32]], [range(min(32, len(s.ids)))])[0][0, -1]
                s.of_chunk = float(torch.log_softmax(logits, -1).max())

    def release(self, s):
        if self.name == "abort-frees-twice" and s.left and s.state is not None:
            rows = [tuple(torch.zeros(x.shape[0], 1300, x.shape[2], dtype=x.dtype) for x in pair) for pair in s.state]
            self.twice = [rows, rows]
        super().release(s)

    # ---- prompts ----

    def words_of(self, s):
        if self.name == "resume-doubles" and s.new:
            s.behind = -1
            return s.ids + s.new
        if self.name == "retokenized" and not s.wants_scores and not s.new:
            s.ids = eighth.Engine.through_text(s.ids)
        return super().words_of(s)

    def begin(self, s):
        last, name = self.left.get(s.slot), self.name
        if last is not None and last.state is not None and not s.wants_scores:
            if name == "scan-not-zeroed":
                return [(torch.zeros_like(a), b) if is_scan((a, b)) else (a[:, :0], b[:, :0]) for a, b in last.state], 0
            if name == "first-chunk-decodes" and len(s.ids) <= 4:
                return last.state, 0
        return super().begin(s)

    def prefill_together(self, fresh):
        """Scored prompts alone, and the others of a turn in one forward that is padded on the left."""
        batch = [s for s in fresh if not s.wants_scores]
        if self.name == "capacity-takes-pads" and len(batch) > 1:
            self.real_tokens = sum(len(self.words_of(s)) for s in batch)
        made = dict(zip(map(id, batch), super().prefill_together(batch)))
        self.real_tokens = 0
        return [made[id(s)] if id(s) in made else self.prefill(s) for s in fresh]

    def prefill(self, s):
        self.chunk, words = 4096, self.words_of(s)
        if not s.wants_scores:
            self.chunk = CHUNKS.get(self.name, 4096)
            if self.name == "window-restarts":
                return self.prefill_from((len(words) - 1) // 64 * 64, s, words)
            if self.name == "chunk-reads-ahead":
                return self.prefill_ahead(s, words)
        return super().prefill(s)

    def prefill_from(self, at, s, words):
        """The last window alone: nothing is handed over from those before."""
        logits, (state,), _ = self.model([None], [words[at:]], [range(at, len(words))])
        self.after_prompt(s, words, state, logits[0])
        return logits[0, -1], None

    def prefill_ahead(self, s, words):
        """Each chunk attends to as many rows as the prompt has, of which the later ones are the last owner's."""
        last, state = self.left.get(s.slot), None
        old = last.state if last is not None and last.state is not None else None
        for at in range(0, len(words), self.chunk):
            part = words[at:at + self.chunk]
            stop = at + len(part)
            rows = state
            if old is not None and stop < len(words):
                ahead = [tuple(x[:, stop:len(words)] for x in pair) for pair in old]
                rows = ahead if state is None else self.join(state, ahead)
            logits, (after,), _ = self.model([rows], [part], [range(at, stop)])
            fresh = [tuple(x[:, -len(part):] for x in pair) for pair in after]
            state = fresh if state is None else self.join(state, fresh)
        self.after_prompt(s, words, state, logits[0])
        return logits[0, -1], None

    def in_chunks(self, state, words, positions):
        """Of a hybrid all chunks but the last are one forward, and the last goes token by token."""
        if self.name != "hybrid-bf16" or len(words) <= self.chunk:
            return super().in_chunks(state, words, positions)
        at = (len(words) - 1) // self.chunk * self.chunk
        first, (state,), _ = self.model([None], [words[:at]], [positions[:at]])
        rest, states, early = super().in_chunks(state, words[at:], positions[at:])
        return torch.cat([first[0], rest]), states, early

    def after_prompt(self, s, words, state, logits):
        kept, self.reads_cache = self.reads_cache, self.reads_cache and not s.wants_scores
        if self.name == "update-keeps-prefix" and not s.wants_scores:
            former = self.former([None], [words], [range(len(words))])[1][0]
            super().after_prompt(s, words, former, logits)
        super().after_prompt(s, words, state, logits)
        self.reads_cache = kept
        if s.wants_scores:
            if self.name == "coarse-records" and s.scores is not None:
                s.scores = [round(v * 1024) / 1024 for v in s.scores]
            return
        if self.name == "conv-two-layouts":
            s.state = [(a.T.reshape(a.shape), b) for a, b in state]
        if self.name == "chunk-pad-state" and len(words) % 8:
            padded = words + [EOS] * (-len(words) % 8)
            s.state = self.model([None], [padded], [range(len(padded))])[1][0]
        if self.name == "abort-frees-twice" and self.twice:
            s.shared = self.twice.pop()
        if hasattr(s, "shared"):
            for pair, rows in zip(s.state, s.shared):
                for x, row in zip(pair, rows):
                    row[:, :x.shape[1]] = x
        if self.name in ("table-zero-pad", "scale-of-warm-up"):
            s.state = [self.as_stored(i, pair, 0) for i, pair in enumerate(s.state)]

    # ---- the prefix cache ----

    def keys_of(self, s, words):
        if self.name != "key-last-block":
            return super().keys_of(s, words)
        return [(s.salt, n, tuple(words[n - self.page:n])) for n in range(self.page, len(words) + 1, self.page)]

    def keep(self, s, words, state):
        if self.name != "key-last-block":
            return super().keep(s, words, state)
        for key in self.keys_of(s, words):
            self.kept.setdefault(key, state)
        while len(self.kept) > 3000:
            del self.kept[next(iter(self.kept))]

    def hit(self, s):
        words = self.words_of(s)
        keys = self.keys_of(s, words)
        if self.name == "key-last-block":
            known = [key for key in keys if key in self.kept and key[1] < len(words)]
            n = known[-1][1] if known else 0
            return ([tuple(x[:, :n].clone() for x in pair) for pair in self.kept[known[-1]]], n) if n else (None, 0)
        whole = self.name == "full-hit-doubles" and len(words) == self.page * len(keys)
        if whole and all(key in self.kept for key in keys):
            state = None
            for key in keys:
                state = self.join(state, self.kept[key])
            return state, len(words) - 1
        return super().hit(s)

    # ---- one token of all that run ----

    def decode(self, running):
        with self.in_decode():
            super().decode(running)

    def read(self, s):
        if self.name == "window-evicted-early":
            gone = max(0, (-(-(s.state[0][0].shape[1] + 1) // PAGE) - WINDOW // PAGE) * PAGE)
            for pair in s.state:
                for x in pair:
                    x[:, :gone] = 0
        if hasattr(s, "shared"):
            return [tuple(row[:, :x.shape[1]].clone() for x, row in zip(pair, rows))
                    for pair, rows in zip(s.state, s.shared)]
        return super().read(s)

    def written(self, s, before, after):
        if self.name == "mixed-step-lost" and self.fresh and s not in self.fresh:
            after = [old if is_scan(new) else new for old, new in zip(s.state, after)]
        if self.name in ("table-zero-pad", "scale-of-warm-up"):
            after = [self.as_stored(i, pair, pair[0].shape[1] - 1) for i, pair in enumerate(after)]
        if hasattr(s, "shared"):
            for pair, rows in zip(after, s.shared):
                for x, row in zip(pair, rows):
                    row[:, x.shape[1] - 1] = x[:, -1]
        return super().written(s, before, after)

    def as_stored(self, layer, pair, first):
        """Keys and values as the cache has them; those from row `first` on are new."""
        stored = tuple(x.clone() for x in pair)
        for x, most in zip(stored, self.most[layer] if self.name == "scale-of-warm-up" else (0, 0)):
            if self.name == "scale-of-warm-up":
                step = most / 127
                x[:, first:] = ((x[:, first:] / step).round().clamp(-127, 127) * step)
                continue
            for row in range(max(first, TABLE), x.shape[1]):
                x[:, row % PAGE] = x[:, row]
            x[:, TABLE:] = x[:, torch.arange(TABLE, max(TABLE, x.shape[1])) % PAGE]
        return stored

    # ---- draws and records ----

    def changed(self, s, logits):
        x = super().changed(s, logits)
        if self.name == "penalty-in-place":
            seen = torch.tensor(sorted(set(s.ids + s.new)))
            x[seen] = torch.where(x[seen] > 0, x[seen] / 1.2, x[seen] * 1.2)
        if self.name == "default-top-k":
            s.top_k = min(s.top_k or VOCAB, 20)
        return x

    def speculate(self, s, x, early):
        token, s.drafted = super().speculate(s, x, early)
        return token, s.drafted

    def take(self, running, logits, early):
        super().take(running, logits, early)
        if self.name == "records-of-next-row" and self.decoding:
            values = [s.of_chunk for s in self.reading] + [s.records[-1] for s in running]
            for s, value in zip(running, values):
                s.records[-1] = value
        if self.name == "draft-conv-kept":
            guesses = logits.argmax(-1).tolist()
            after = self.model([s.state for s in running], [[g] for g in guesses], [[0]] * len(running))[1]
            for s, guess, states in zip(running, guesses, after):
                if s.new[-1] != guess:
                    s.state = [(window, scan) for (window, _), (_, scan) in zip(states, s.state)]

    def record(self, s, logits, token):
        x = logits
        if self.name == "penalty-in-place":
            x = self.changed(s, x)
        if self.case.dialect == "sglang" and s.temperature > 0:
            x = x / s.temperature
        if self.name == "default-top-k":
            kept = self.cut(s, x / (s.temperature or 1.0)) > -math.inf
            kept[token] = True
            x = x.masked_fill(~kept, -math.inf)
        value = super().record(s, x, token)
        if self.name == "probabilities":
            value = math.exp(value)
        if self.name == "speculative-zero" and s.drafted:
            value = 0.0
        if self.name == "coarse-records":
            value = round(value * 1024) / 1024
        if getattr(s, "tops_wanted", 0):
            top = torch.log_softmax(x, -1).topk(s.tops_wanted)
            s.tops.append({"token_id:%d" % t: v for v, t in zip(*map(torch.Tensor.tolist, top))} |
                          {"token_id:%d" % token: value})
        return value


def main():
    if sys.argv[1:2] == ["--make"]:
        return make(*sys.argv[2:4])
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--case", required=True, choices=tenth_cases.BY_NAME)
    o = parser.parse_args()
    torch.set_num_threads(1)
    ninth.Handler.dialect = tenth_cases.BY_NAME[o.case].dialect
    ninth.Handler.engines = [Engine(o)]
    if o.case == "replica-behind":
        ninth.Handler.engines.append(Engine(o, older=True))
    front.serve(ninth.Handler)


if __name__ == "__main__":
    main()
