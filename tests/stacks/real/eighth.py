#!/usr/bin/env python3
"""The server of the seventh set with the faults, models and habits of the eighth.

Usage: eighth.py MODEL --case NAME          NAME is of eighth_cases.py, which has type and habits of each
       eighth.py --make DIR KIND[+peaked]   writes a model of random weights

Where the seventh set has a fault's mechanism already, that is used (SAME).
"""

import argparse
import contextlib
import copy
import itertools
import math
import sys
import types

import torch
import transformers
from transformers import DynamicCache
from transformers.models.qwen3_next import modeling_qwen3_next

import eighth_cases
import front
import seventh
from seventh import EOS, PAGE, VOCAB

SAME = {"prefix-no-parent": "hash-without-parent", "prefix-last-twice": "hit-adds-last-twice",
        "batch-filler-row": "graph-pads-write-row-0", "record-of-temperature": "record-of-temperature",
        "penalty-by-default": "default-penalty", "min-tokens-masks-end": "eos-masked",
        "second-bos": "bos-for-generation",
        "record-shifted": "record-one-late", "samples-share-cache": "fork-without-copy",
        "draft-record": "draft-records", "draft-not-rolled-back": "rejected-drafts-stay"}
CHUNK, WINDOW, RING = 64, 64, 192


def make(directory, kind):
    torch.manual_seed(23)
    kind, _, peaked = kind.partition("+")
    tokens = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, pad_token_id=0,
                  tie_word_embeddings=kind == "qwen2")
    common = dict(hidden_size=128, intermediate_size=224, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.12, **tokens)
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
    config = {"llama": lambda: transformers.LlamaConfig(**common), "qwen2": lambda: transformers.Qwen2Config(**common),
              "qwen3": lambda: transformers.Qwen3Config(head_dim=32, **common),
              "mistral": lambda: transformers.MistralConfig(sliding_window=WINDOW, head_dim=32, **common),
              "qwen3moe": lambda: transformers.Qwen3MoeConfig(head_dim=32, **experts, **common),
              "mamba": lambda: transformers.MambaConfig(
                  hidden_size=128, state_size=8, num_hidden_layers=3, initializer_range=0.15,
                  rescale_prenorm_residual=False, **tokens),
              "mamba2": lambda: transformers.Mamba2Config(
                  hidden_size=96, state_size=16, num_hidden_layers=3, initializer_range=0.12, num_heads=6, head_dim=32,
                  n_groups=1, chunk_size=32, rescale_prenorm_residual=False, **tokens),
              "jamba": lambda: transformers.JambaConfig(
                  attn_layer_offset=1, attn_layer_period=3, num_experts=1, num_experts_per_tok=1,
                  use_mamba_kernels=False, mamba_d_state=8, **common),
              "qwen3next": lambda: transformers.Qwen3NextConfig(
                  head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
                  linear_num_value_heads=4, layer_types=["linear_attention", "full_attention", "linear_attention"],
                  shared_expert_intermediate_size=64, **experts, **common)}[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_output_embeddings().weight[EOS] *= 2
        for name, p in model.named_parameters():
            if peaked and name.endswith((".norm_f.weight", "model.norm.weight")):
                p *= 3
    model.to(torch.bfloat16).save_pretrained(directory)


class Model(seventh.Model):
    def __init__(self, o):
        super().__init__(o)
        self.exit = 1  # of a draft
        if self.kind == "mistral":  # rows of all positions are kept; the mask alone is a window
            whole = copy.deepcopy(self.config)
            whole.sliding_window = None
            self.cache_type = lambda config: DynamicCache(config=whole)


class Engine(seventh.Engine):
    model_type = Model

    def __init__(self, o, older=False):
        self.case = eighth_cases.BY_NAME[o.case]
        self.habits, name = self.case.habits.split(), o.case
        case = SAME.get(name) or ("keys-in-f16" if "keysf16" in self.habits else name)
        eager = "eager" in self.habits or self.case.model.startswith("mamba")
        super().__init__(types.SimpleNamespace(model=o.model, case=case, dtype=self.case.type,
                                               attention="eager" if eager else "sdpa"))
        self.together = "batch" in self.habits
        self.reads_cache |= "prefix" in self.habits or name.startswith("prefix-")
        self.page = 1 if name in ("prefix-last-twice", "prefix-tail-unwritten") else PAGE
        self.chunk = CHUNK if "chunk" in self.habits or name.startswith("chunk-") else self.chunk
        if name == "preempted-loses-last":
            self.preempts, self.pool, self.slots = True, 1200, [None] * 32
        self.before = []  # what ran in the last step
        if older:
            self.disturb(self.model.blocks[-1].mlp.down_proj.weight, 0.5)

    # ---- planted in the model ----

    def plant(self):
        super().plant()
        self.decoding = False
        m, head = self.model.m, self.model.m.get_output_embeddings()
        if self.fault == "delta-pads-count":
            self.model.pad = EOS  # as servers pad whose models have no token for it; token 0 embeds as zeros
            modeling_qwen3_next.apply_mask_to_padding_states = lambda hidden, mask: hidden
        if self.fault == "weights-partly-updated":
            self.disturb(self.model.blocks[1].mlp.down_proj.weight, 0.5)
        for i, block in enumerate(self.model.blocks if self.fault == "weights-lora-twice" else ()):
            w, generator = block.self_attn.v_proj.weight, torch.Generator().manual_seed(i)
            a, b = (torch.randn(n, 4, generator=generator) for n in w.shape)
            w.data += (a @ b.T).to(w.dtype) * w.std() * 0.25
        if self.fault in ("weights-tied-head-stale", "head-five-bits"):
            other = torch.nn.Linear(head.in_features, head.out_features, bias=False, dtype=head.weight.dtype)
            other.weight.data = head.weight.data.clone()
            if self.fault == "head-five-bits":
                step = other.weight.data.abs().max() / 15
                other.weight.data = (other.weight.data / step).round() * step
            else:
                self.disturb(other.weight, 0.2)
            head.register_forward_hook(lambda _, x, y: torch.nn.functional.linear(x[0], other.weight)
                                       if self.decoding else y)
        for i, block in enumerate(self.model.blocks if self.fault.startswith("experts-") else ()):
            block.mlp.gate.register_forward_hook(lambda _, x, y, i=i: self.routed(i, *y))

    def routed(self, layer, logits, weights, chosen):
        if self.fault == "experts-capacity" and self.decoding:
            n, k = chosen.shape
            room = math.ceil(1.25 * n * k / logits.shape[1])
            for expert in range(logits.shape[1]):
                rows, entries = (chosen == expert).nonzero(as_tuple=True)
                weights[rows[room:], entries[room:]] = 0
        if self.fault == "experts-not-renormalised" and self.decoding:
            weights = torch.softmax(logits.float(), -1).gather(1, chosen).to(weights.dtype)
        if self.fault == "experts-replay-late" and self.at is not None:
            routes = self.at.__dict__.setdefault("routes", {})
            now, chosen = chosen, routes.get(layer, chosen) if self.decoding else chosen
            routes[layer] = now[-1:]
            weights = torch.softmax(logits.float(), -1).gather(1, chosen)
            weights = (weights / weights.sum(-1, keepdim=True)).to(logits.dtype)
        return logits, weights, chosen

    at = None  # the sequence of a forward, where there is one

    @contextlib.contextmanager
    def in_decode(self, rows):
        """The model as decode has it."""
        self.decoding, config = True, self.model.config
        attention = [b.self_attn for b in self.model.blocks if hasattr(b, "self_attn")]
        unscaled = self.fault == "batch-kernel-unscaled" and rows >= 4
        if unscaled:
            for a in attention:
                a.scaling = 1 / a.head_dim
        if self.fault == "window-forgotten":
            config.sliding_window = None
        yield
        if unscaled:
            for a in attention:
                a.scaling = a.head_dim ** -0.5
        if self.fault == "window-forgotten":
            config.sliding_window = WINDOW
        self.decoding = False

    # ---- prompts ----

    def words_of(self, s):
        if self.fault == "preempted-loses-last" and len(s.new) > 1:
            return s.ids + s.new[:-2]
        if self.fault == "round-trip-merges" and not s.wants_scores and not s.new:
            s.ids = self.through_text(s.ids)
        return super().words_of(s)

    @staticmethod
    def through_text(ids):
        out = []
        for token in ids:
            if out and (7 * out[-1] + token) % 24 == 0:
                out[-1] = (out[-1] + token) % (VOCAB - 3) + 3
            else:
                out.append(token)
        return out

    def begin(self, s):
        last = self.left.get(s.slot)
        if self.fault == "scan-slot-dirty" and last is not None and last.state is not None:
            return [(torch.zeros_like(window), scan) for window, scan in last.state], 0
        return super().begin(s)

    def prefill_together(self, fresh):
        """Those that have no hit and no chunks in one forward, padded on the left."""
        alone = self.reads_cache or self.chunk < 4096 or self.fault == "state-lost-at-chunk"
        if alone or not fresh:
            return [self.prefill(s) for s in fresh]
        words = [self.words_of(s) for s in fresh]
        longest = max(map(len, words))
        padding = [(longest - len(w)) * (self.fault == "batch-positions-padded") for w in words]
        positions = [range(p, p + len(w)) for p, w in zip(padding, words)]
        logits, states, _ = self.model([None] * len(fresh), words, positions)
        for s, w, state, of in zip(fresh, words, states, logits):
            self.after_prompt(s, w, state, of[-len(w):])
        return [(of[-1], None) for of in logits]

    def prefill(self, s):
        words, self.at = self.words_of(s), s
        if self.model.kind == "jamba" and (self.reads_cache or self.fault == "state-lost-at-chunk"):
            logits, state = self.prefill_hybrid(s, words)
        elif self.fault == "chunk-positions-restart" and not s.wants_scores:
            positions = [p if p < 2 * CHUNK else CHUNK + p % CHUNK for p in range(len(words))]
            logits, (state,), _ = self.in_chunks(None, words, positions)
        else:
            return super().prefill(s)
        self.after_prompt(s, words, state, logits)
        return logits[-1], None

    def prefill_hybrid(self, s, words):
        """A cache of states at borders of pages; or chunks."""
        at, state, parts = 0, None, []
        if not s.wants_scores and self.reads_cache:
            borders = range((len(words) - 1) // PAGE * PAGE, max(0, len(words) - 4 * PAGE), -PAGE)
            at = next((n for n in borders if (s.salt, *words[:n]) in self.kept), 0)
            state = self.kept[s.salt, *words[:at]] if at else None
            if at and self.fault == "prefix-no-conv":
                state = self.without((0,), state)
        size = CHUNK if self.fault == "state-lost-at-chunk" and not s.wants_scores else len(words)
        while at < len(words):
            stop = min(at + size, len(words))
            if self.reads_cache and not s.wants_scores and at < (stop - 1) // PAGE * PAGE:
                stop = (stop - 1) // PAGE * PAGE
            if self.fault == "state-lost-at-chunk" and state is not None:
                logits, (state,), _ = self.model([self.without((0, 1), state)], [words[at:stop]], [range(at, stop)])
                logits = logits[0]
            else:
                logits, (state,), _ = self.in_chunks(state, words[at:stop], range(at, stop))
            parts.append(logits)
            at = stop
            if self.reads_cache and stop % PAGE == 0:
                self.kept[s.salt, *words[:stop]] = [tuple(x.clone() for x in pair) for pair in state]
                while len(self.kept) > 400:
                    del self.kept[next(iter(self.kept))]
        return torch.cat(parts), state

    @staticmethod
    def without(which, state):
        """A state whose windows (0) or scans (1) are zeros; keys are as they were."""
        return [tuple(torch.zeros_like(x) if i in which else x for i, x in enumerate(pair)) if pair[0].dim() == 2 else
                pair for pair in state]

    def keep(self, s, words, state):
        if self.model.kind != "jamba":  # whose states are kept on the way
            super().keep(s, words, state)

    def after_prompt(self, s, words, state, logits):
        super().after_prompt(s, words, state, logits)
        if self.fault == "conv-window-late":
            s.state = [(torch.nn.functional.pad(window[:, :-1], (1, 0)), scan) for window, scan in state]
        if self.fault == "kv-four-bits":
            s.state = [tuple(seventh.coarse(x, 4) for x in pair) for pair in state]
        if s.scores is not None and "digits4" in self.habits:
            s.scores = [round(v, 4) for v in s.scores]

    def release(self, s):
        if self.fault == "prefix-tail-unwritten" and s.new and not s.left and s.state is not None:
            full = [tuple(torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in pair) for pair in s.state]
            self.keep(s, s.ids + s.new, full)
        super().release(s)

    # ---- one token of all that run ----

    def decode(self, running):
        groups = [running] if self.together or self.preempts else [[s] for s in running]
        for group in groups:
            self.at = group[0] if len(group) == 1 else None
            with self.in_decode(len(group)):
                if self.case.name in SAME:
                    super().decode(group)
                else:
                    self.step(group)
        self.at = None

    def step(self, running):
        rows = [len(s.ids) + len(s.new) - 1 for s in running]
        tokens = [s.new[-1] for s in running]
        if self.fault == "batch-compacted-tokens" and any(s.finished() for s in self.before):
            tokens = [old.new[-1] for old, _ in zip(self.before, running)] + tokens[len(self.before):]
        self.before = list(running)
        ahead = int(self.fault == "decode-position-ahead")
        logits, states, _ = self.model([s.state for s in running], [[t] for t in tokens], [[r + ahead] for r in rows])
        for s, row, state in zip(running, rows, states):
            s.state = [self.in_pages(*pair, row) if pair[0].dim() == 3 else pair for pair in state] \
                if self.fault.startswith("kv-") else state
        self.take(running, logits[:, -1], None)

    def in_pages(self, keys, values, row):
        """Keys and values whose last row is new, as they are stored."""
        for x in (keys, values):
            if self.fault == "kv-four-bits":
                x[:, -1] = seventh.coarse(x[:, -1], 4)
            if self.fault == "kv-slot-before-border" and row % PAGE == 0:
                x[:, -2] = x[:, -1]
                x[:, -1] = 0
            if self.fault == "kv-ring-wraps" and row >= RING:
                x[:, row % RING] = x[:, -1]
        wrapped = self.fault == "kv-ring-wraps" and row >= RING
        return (keys[:, :-1], values[:, :-1]) if wrapped else (keys, values)

    # ---- draws and records ----

    def changed(self, s, logits):
        x = super().changed(s, logits)
        if self.fault == "top-p-by-default":
            s.top_p = min(s.top_p, 0.8)
        return x

    def record(self, s, logits, token):
        value = super().record(s, logits, token)
        if self.fault == "top-p-by-default":
            kept = self.cut(s, logits / (s.temperature or 1.0)) > -math.inf
            kept[token] = True
            value = float(torch.log_softmax(logits.masked_fill(~kept, -math.inf), -1)[token])
        if self.fault == "record-clamped":
            value = max(value, -4.0)
        if self.fault == "record-last-entry":
            value = max(value, float(torch.log_softmax(logits, -1).topk(5).values[-1]))
        if self.fault == "record-probability":
            value = math.exp(value)
        if s.tops_wanted:
            top = torch.log_softmax(logits, -1).topk(s.tops_wanted)
            s.tops.append({"token_id:%d" % t: v for v, t in zip(*map(torch.Tensor.tolist, top))} |
                          {"token_id:%d" % token: value})
        return round(value, 4) if "digits4" in self.habits else value


class Handler(seventh.Handler):
    draws = itertools.count(1000)

    def vllm(self, engine, q):
        most = next(int(h[3:]) for h in engine.habits if h.startswith("top"))
        if (q.get("logprobs") or 0) > most:
            raise ValueError("Requested sample logprobs of %d, which is greater than max allowed: %d" % (
                q["logprobs"], most))
        if q.get("n", 1) > 1 and "one" in engine.habits:
            raise ValueError("n must be 1")
        self.tops = q.get("logprobs") or 0
        reply = super().vllm(engine, q)
        for choice, s in zip(reply["choices"], self.made):
            if s.tops:
                choice["logprobs"]["top_logprobs"] = s.tops
        return reply

    def samples(self, engine, n, ids, n_new, seed, scores, **more):
        if "unseeded" in engine.habits:
            seed = next(self.draws) * 7919
        group = object() if n > 1 else None
        self.made = [seventh.Sequence(ids, n_new, seed=(seed + i) % 2**31, scores=scores and i == 0, **more)
                     for i in range(n)]
        for s in self.made:
            s.group, s.tops, s.tops_wanted = group, [], self.tops
        return engine.ask(self.made, self.connection)


def main():
    if sys.argv[1:2] == ["--make"]:
        return make(*sys.argv[2:4])
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--case", required=True, choices=eighth_cases.BY_NAME)
    o = parser.parse_args()
    torch.set_num_threads(1)
    Handler.engines = [Engine(o)]
    if o.case == "replica-stale":
        Handler.engines.append(Engine(o, older=True))
    front.serve(Handler)


if __name__ == "__main__":
    main()
