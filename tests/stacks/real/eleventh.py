#!/usr/bin/env python3
"""The servers of the eleventh set: those of the seventh set and the tenth, and llama.cpp's own, with other faults.

Usage: eleventh.py MODEL --case NAME          NAME is of eleventh_cases.py, which has type and habits of each
       eleventh.py --make DIR KIND[+peaked]   writes a model of random weights

The address is the first line. A prompt whose values are asked for is computed alone and whole. Where an earlier set
has a mechanism already, that is used (SAME).
"""

import argparse
import contextlib
import math
import sys
import types

import torch
import transformers
from torch.nn.functional import linear
from transformers import DynamicCache
from transformers.models.qwen3_next import modeling_qwen3_next

import eighth
import eleventh_cases
import front
import ninth
import seventh
import tenth
from seventh import EOS, PAGE, VOCAB
from tenth import WINDOW, is_scan

SAME = {"pad-in-state": "pad-through-state", "shared-position": "left-pad-positions",
        "preempt-prompt": "resume-without-answer", "orphan-processor": "bias-stays", "min-tokens": "eos-masked",
        "double-bos": "bos-for-generation", "fork-page": "fork-without-copy", "first-scale": "scale-of-warm-up",
        "sound-raw": "default-temperature"}
TOGETHER = ("pad-in-state", "shared-position", "sound-eager", "sound-sdpa", "sound-moe")
CHUNKS = {"chunk-slots": 48, "delta-no-carry": 64, "window-chunk": 24, "sound-chunks": 48, "sound-delta": 64}
SYSTEM = [(37 * i + 11) % 500 + 3 for i in range(16)]  # what one server puts before all prompts
SPLIT = 48  # keys from which on a kernel splits a row


def make(directory, kind):
    torch.manual_seed(71)
    kind, _, peaked = kind.partition("+")
    tokens = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, pad_token_id=0,
                  tie_word_embeddings=kind == "qwen2")
    common = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.13, **tokens)
    scan = dict(hidden_size=80, num_hidden_layers=4, initializer_range=0.15, rescale_prenorm_residual=False, **tokens)
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    mistral = {"mistral": WINDOW, "mistral16": 16}
    config = {
        "llama": lambda: transformers.LlamaConfig(**common),
        "llamantk": lambda: transformers.LlamaConfig(rope_parameters=dynamic,
                                                     **{**common, "max_position_embeddings": 48}),
        "qwen2": lambda: transformers.Qwen2Config(**{**common, "num_hidden_layers": 2, "hidden_size": 128}),
        "qwen3": lambda: transformers.Qwen3Config(head_dim=32, **{**common, "num_hidden_layers": 3}),
        "qwen3moe": lambda: transformers.Qwen3MoeConfig(head_dim=32, **experts, **{**common, "num_hidden_layers": 2}),
        "mamba": lambda: transformers.MambaConfig(state_size=8, **scan),
        "mamba2": lambda: transformers.Mamba2Config(state_size=16, num_heads=5, head_dim=32, n_groups=1, chunk_size=32,
                                                    **scan),
        "jamba": lambda: transformers.JambaConfig(attn_layer_offset=1, attn_layer_period=4, num_experts=1,
                                                  num_experts_per_tok=1, use_mamba_kernels=False, mamba_d_state=8,
                                                  **common),
        "qwen3next": lambda: transformers.Qwen3NextConfig(
            head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
            linear_num_value_heads=4, shared_expert_intermediate_size=64, **experts,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            **{**common, "num_hidden_layers": 3}),
        **{name: lambda n=n: transformers.MistralConfig(sliding_window=n, head_dim=24,
                                                        **{**common, "num_hidden_layers": 3})
           for name, n in mistral.items()}}[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[EOS] *= 2
        if peaked:
            head *= 3
        for name, p in model.named_parameters():
            if kind == "qwen3next" and name.endswith("A_log"):  # states that last, as most heads of trained models have
                p.copy_(torch.linspace(-5, -3, len(p)))
    model.to(torch.bfloat16).save_pretrained(directory)


def common(a, b):
    """How many items two tuples begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class KeysIn8Bits(DynamicCache):
    def update(self, keys, values, *more, **named):
        return super().update(seventh.coarse(keys, 8), seventh.coarse(values, 8), *more, **named)


class Engine(tenth.Engine):
    def __init__(self, o, older=False):
        self.case, self.name = eleventh_cases.BY_NAME[o.case], SAME.get(o.case, o.case)
        self.habits = eleventh_cases.habits_of(self.case)
        self.decoding, self.fresh, self.real_tokens, self.reading, self.twice = False, [], 0, [], []
        self.order = []  # of rows in the batch: who leaves is replaced by the last
        kind = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[self.case.dtype]
        eager = o.case in ("sound-eager", "sound-chunks") or self.case.model.startswith("mamba")
        seventh.Engine.__init__(self, types.SimpleNamespace(model=o.model, case=self.name, dtype=kind,
                                                            attention="eager" if eager else "sdpa"))
        self.together, self.preempts = o.case in TOGETHER, o.case == "preempt-prompt"
        if self.preempts:
            self.slots, self.pool = [None] * 32, 900
        if older:
            self.disturb(self.model.blocks[1].self_attn.o_proj.weight, 0.5)

    # ---- planted in the model ----

    def plant(self):
        super().plant()
        m, name, blocks = self.model.m, self.name, self.model.blocks
        if name == "sound-8-bit-keys":
            self.model.cache_type = KeysIn8Bits
        if name == "scale-of-warm-up":
            state = self.model([None], [[1] * 13], [range(13)])[1][0]
            self.most = [tuple(x.abs().max() for x in pair) for pair in state]
        if name == "ntk-stays":
            m.model.rotary_emb.original_max_seq_len = 0
        if name == "system-prefix-stale":
            self.prefixes = [self.system_prefix(by) for by in (0.0, 0.4)]
        if name == "delta-tail-gate":
            plain = modeling_qwen3_next.torch_chunk_gated_delta_rule
            modeling_qwen3_next.torch_chunk_gated_delta_rule = lambda *a, **k: self.tail_not_faded(plain, *a, **k)
        if name == "lost-append":
            m.register_forward_pre_hook(self.newest_unseen, with_kwargs=True)
        if name == "decode-worker-old":
            self.parts = [p for b in blocks[1:3] for p in (b.mlp.down_proj.weight, b.self_attn.o_proj.weight)]
            self.old = [p.data + ninth.noise(p.data, i, 0.3) for i, p in enumerate(self.parts)]
        for b in blocks:
            if name == "fold-row-zero":
                b.self_attn.o_proj.register_forward_pre_hook(self.of_row_zero)
            if name in ("router-tail", "pad-capacity"):
                b.mlp.gate.register_forward_hook(lambda _, x, y: self.without_experts(*y))
            for part in [p for p in b.modules() if isinstance(p, torch.nn.Linear)] if name == "small-batch" else ():
                part.register_forward_hook(lambda p, x, y, w=seventh.coarse(part.weight.data, 4):
                                           linear(x[0], w, p.bias) if x[0].shape[:-1].numel() <= 8 else y)

    def system_prefix(self, by):
        """The state behind the system prefix, of weights that are so far from this model's."""
        parts = [b.mlp.down_proj.weight for b in self.model.blocks]
        now = [p.data for p in parts]
        for i, p in enumerate(parts):
            p.data = p.data + ninth.noise(p.data, i, by)
        state = self.model([None], [SYSTEM], [range(len(SYSTEM))])[1][0]
        for p, data in zip(parts, now):
            p.data = data
        return state

    @staticmethod
    def tail_not_faded(plain, q, k, v, g, beta, **more):
        out, state = plain(q, k, v, g=g, beta=beta, **more)
        tail = g[:, g.shape[1] - g.shape[1] % 64:]
        return out, state * torch.exp(-tail.sum(1))[..., None, None].to(state.dtype)

    def newest_unseen(self, _, args, named):
        if self.decoding:
            mask = named["attention_mask"]
            mask[mask.sum(1) % PAGE == 0, -1] = 0
        return args, named

    def of_row_zero(self, _, args):
        x = args[0]
        if not self.decoding or len(x) < 2:
            return None
        long = torch.tensor([s.state[0][0].shape[1] >= SPLIT for s in self.running])
        return (torch.where(long[:, None, None], x[:1], x),)

    def without_experts(self, logits, weights, chosen):
        n = len(chosen)
        if self.decoding and self.name == "router-tail":
            weights[4:] = 0
        pads = (1 << (n - 1).bit_length()) - n
        for expert in (0, 1) if self.decoding and self.name == "pad-capacity" and pads else ():
            rows, entries = (chosen == expert).nonzero(as_tuple=True)
            weights[rows[max(0, len(rows) - pads):], entries[max(0, len(rows) - pads):]] = 0
        return logits, weights, chosen

    @contextlib.contextmanager
    def in_decode(self):
        with super().in_decode():
            if self.name != "decode-worker-old":
                yield
                return
            new = [p.data for p in self.parts]
            for p, data in zip(self.parts, self.old):
                p.data = data
            yield
            for p, data in zip(self.parts, new):
                p.data = data

    # ---- prompts ----

    def begin(self, s):
        last = self.left.get(s.slot)
        if self.name == "abort-slot" and last is not None and last.left and last.state is not None:
            return (last.state, 0) if not s.wants_scores else (None, 0)
        return super().begin(s)

    def prefill(self, s):
        words = self.words_of(s)
        way = {"chunk-slots": self.second_chunk_on_first, "delta-no-carry": self.in_parts, "window-chunk":
               self.window_of_first_row, "sound-chunks": self.in_parts, "sound-delta": self.in_parts,
               "hybrid-hit": self.keys_hit_alone, "late-checkpoint": self.from_borders, "sound-state-hits":
               self.from_borders, "sound-jamba-hits": self.from_borders, "ring-trim-hit": self.ring_cut_flat,
               "system-prefix-stale": self.behind_system}.get(self.name)
        if way is None or s.wants_scores and way != self.behind_system:
            return super().prefill(s)
        logits, state = way(s, words)
        self.after_prompt(s, words, state, logits)
        return logits[-1], None

    def in_parts(self, s, words):
        state, parts, size = None, [], CHUNKS[self.name]
        for at in range(0, len(words), size):
            if self.name == "delta-no-carry" and state is not None:
                state = [(a, torch.zeros_like(b)) if is_scan((a, b)) else (a, b) for a, b in state]
            part = words[at:at + size]
            logits, (state,), _ = self.model([state], [part], [range(at, at + len(part))])
            parts.append(logits[0])
        return torch.cat(parts), state

    def second_chunk_on_first(self, s, words):
        logits, state = self.in_parts(s, words)
        last, size = self.left.get(s.slot), CHUNKS[self.name]
        for i, pair in enumerate(state):
            for j, x in enumerate(pair):
                made = x.clone()
                x[:, size:] = 0
                if last is not None and last.state is not None:
                    old = last.state[i][j][:, size:x.shape[1]]
                    x[:, size:size + old.shape[1]] = old
                for at in range(size, len(words), size):
                    x[:, :len(words[at:at + size])] = made[:, at:at + size]
        return logits, state

    def window_of_first_row(self, s, words):
        config, state, parts, size = self.model.config, None, [], CHUNKS[self.name]
        window, config.sliding_window = config.sliding_window, None
        for at in range(0, len(words), size):
            part = words[at:at + size]
            seen = [tuple(x[:, max(0, at - window + 1):] for x in pair) for pair in state] if at else None
            logits, (after,), _ = self.model([seen], [part], [range(at, at + len(part))])
            state = self.join(state, [tuple(x[:, -len(part):] for x in pair) for pair in after])
            parts.append(logits[0])
        config.sliding_window = window
        return torch.cat(parts), state

    def behind_system(self, s, words):
        s.base = len(SYSTEM)
        prefix = self.prefixes[s.salt is None and not s.wants_scores]
        logits, (state,), _ = self.model([prefix], [words], [range(s.base, s.base + len(words))])
        return logits[0], state

    # ---- the prefix cache ----

    def remember(self, key, state):
        self.kept[key] = state
        while len(self.kept) > 400:
            del self.kept[next(iter(self.kept))]

    def from_borders(self, s, words):
        """States at borders of pages; of `late-checkpoint` the prompt's last border has that of its end."""
        self.reads_cache = True
        logits, state = eighth.Engine.prefill_hybrid(self, s, words)
        self.reads_cache, border = False, (len(words) - 1) // PAGE * PAGE
        if self.name == "late-checkpoint" and border:
            self.remember((s.salt, *words[:border]), [(a.clone(), b.clone()) for a, b in state])
        return logits, state

    def keys_hit_alone(self, s, words):
        borders = range((len(words) - 1) // PAGE * PAGE, 0, -PAGE)
        n = next((n for n in borders if (s.salt, *words[:n]) in self.kept), 0)
        state = [tuple(torch.zeros_like(x) if is_scan(pair) else x[:, :n] for x in pair)
                 for pair in self.kept[s.salt, *words[:n]]] if n else None
        logits, (state,), _ = self.model([state], [words[n:]], [range(n, len(words))])
        for border in borders:
            self.remember((s.salt, *words[:border]), state)
        return logits[0], state

    def ring_cut_flat(self, s, words):
        """A hit on the longest common beginning. Place j of a ring has the latest row that is j modulo its length."""
        own, state = (s.salt, *words), None
        key = max(self.kept, key=lambda known: common(known, own), default=())
        n, length = min(common(key, own), len(words)) - 1, len(key) - 1
        if n >= PAGE:
            rows = [length - 1 - (length - 1 - place) % WINDOW for place in range(min(n, WINDOW))]
            state = [tuple(torch.cat([x[:, :n - len(rows)], x[:, rows]], 1) for x in pair) for pair in self.kept[key]]
        n = n if state else 0
        logits, (state,), _ = self.model([state], [words[n:]], [range(n, len(words))])
        self.remember(own, state)
        return logits[0], state

    # ---- a request's pages and rows ----

    def after_prompt(self, s, words, state, logits):
        super().after_prompt(s, words, state, logits)
        last = self.left.get(s.slot)
        if self.name == "write-after-free" and not s.wants_scores and hasattr(last, "in_flight"):
            row, written = last.in_flight
            for pair, late in zip(s.state, written):
                for x, value in zip(pair, late):
                    x[:, row:row + 1] = value if row < len(words) else x[:, row:row + 1]

    def release(self, s):
        if self.name == "write-after-free" and s.new and s.state is not None:
            n = s.state[0][0].shape[1]
            after = self.model([s.state], [[s.new[-1]]], [[n]])[1][0]
            s.in_flight = n % PAGE, [tuple(x[:, -1:] for x in pair) for pair in after]
        if self.name == "shifted-left":
            for values in (s.records, getattr(s, "tops", [])):
                values[:-1] = values[1:]
        if self.name == "retokenised" and s.new:
            s.new = eighth.Engine.through_text(s.new)
            s.n_new = len(s.new)
            s.records = s.records[:s.n_new]
            s.tops = getattr(s, "tops", [])[:s.n_new]
        super().release(s)

    # ---- one token of all that run ----

    def decode(self, running):
        for s in [s for s in self.order if s not in running]:
            self.order[self.order.index(s)] = self.order[-1]
            self.order.pop()
        self.order += [s for s in running if s not in self.order]
        super().decode(running)

    def read(self, s):
        row = s.state[0][0].shape[1]
        if self.name == "ring-wrap" and row >= WINDOW:
            ring = s.__dict__.setdefault("ring", {p % WINDOW: p for p in range(row - WINDOW, row)})
            ring[(row + 1) % WINDOW] = row
            rows = sorted(set(ring.values()) - {row})
            return [tuple(x[:, rows] for x in pair) for pair in s.state]
        return super().read(s)

    def written(self, s, before, after):
        if hasattr(s, "ring"):
            return self.join(s.state, [tuple(x[:, -1:] for x in pair) for pair in after])
        if self.name == "coarse-draw":
            return [(a, self.by_chance(b)) for a, b in after]
        return super().written(s, before, after)

    @staticmethod
    def by_chance(x):
        """Two bits of fraction, rounded up as often as the rest of the fraction says."""
        step = torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=1e-30))) - 2)
        return torch.floor(x / step + torch.rand(x.shape)) * step

    # ---- draws and records ----

    def changed(self, s, logits):
        x = super().changed(s, logits)
        if self.name == "penalty-by-count":
            by = 1.1 ** torch.bincount(torch.tensor(s.ids + s.new), minlength=VOCAB)
            x = torch.where(x > 0, x / by, x * by)
        return x

    def take(self, running, logits, early):
        if self.name == "row-order" and self.decoding:
            logits = logits[[running.index(s) for s in self.order]]
        super().take(running, logits, early)
        for s in running if self.name == "draft-in-state" else ():
            known = s.ids + s.new[:-1]
            at = next((i for i in range(len(known) - 2, -1, -1) if known[i] == known[-1]), None)
            if at is not None and known[at + 1] != s.new[-1]:
                s.state = self.model([s.state], [[known[at + 1]]], [[0]])[1][0]

    def record(self, s, logits, token):
        x = logits
        if self.name == "penalty-by-count":
            x = self.changed(s, x)
        if self.name == "default-top-p" and s.top_p < 1:
            kept = self.cut(s, x / (s.temperature or 1.0)) > -math.inf
            kept[token] = True
            x = x.masked_fill(~kept, -math.inf)
        return super().record(s, x, token)


class Handler(ninth.Handler):
    def vllm(self, engine, q):
        if engine.name == "default-top-p":
            q.setdefault("top_p", 0.7)
        return super().vllm(engine, q)


def serve_llama_cpp(o, kind):
    """llama.cpp's own server, as the ninth set starts it."""
    o.case = "llamacpp-reuse" if o.case == "cache-reuse" else o.case
    ninth.BY_NAME[o.case] = types.SimpleNamespace(type=kind)
    ninth.serve_llama_cpp(o)


def main():
    if sys.argv[1:2] == ["--make"]:
        return make(*sys.argv[2:4])
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--case", required=True, choices=eleventh_cases.BY_NAME)
    o = parser.parse_args()
    torch.set_num_threads(1)
    case = eleventh_cases.BY_NAME[o.case]
    if case.dialect == "llama.cpp":
        return serve_llama_cpp(o, case.dtype)
    Handler.dialect, Handler.engines = case.dialect, [Engine(o)]
    if o.case == "replica-old":
        Handler.engines.append(Engine(o, older=True))
    front.serve(Handler)


if __name__ == "__main__":
    main()
