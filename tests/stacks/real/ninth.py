#!/usr/bin/env python3
"""The ninth set's server: paged keys, or a cache of transformers for each request, around transformers' models on CPU.

Usage: ninth.py MODEL --case NAME          NAME is of ninth_cases.py, which has type and habits of each
       ninth.py --make DIR KIND[+peaked]   writes a model of random weights

The address is the first line. Protocols, requests, draws and the turn of the scheduler are those of the seventh set and
the eighth; how a model is run and what is planted are this file's own. Cases of llama.cpp start its server out of
xllamacpp, with the same interpreter.
"""

import argparse
import collections
import copy
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

import torch
import transformers
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import DynamicCache
from transformers.masking_utils import AttentionMaskInterface

import eighth
import front
import seventh
from ninth_cases import BY_NAME
from seventh import EOS, PAGE, VOCAB

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
LLAMA_CPP = os.path.join(ROOT, "tests", "clients", "llama_cpp")
WHOLE = ("mamba", "mamba2", "jamba", "bamba", "qwen3next")
CACHES = ("prefix-", "hit-", "evicted-", "sound-f32-paged", "sound-bf16-paged", "sound-hybrid", "sound-f16-peaked")
SPECULATES = ("draft-records", "draft-keys-kept", "sound-spec")
POOL = {"evicted-hash": 100, "resume-no-last": 80, "sound-preempts": 80}
CHUNKS = {"chunk-forgets": 128, "chunk-no-state": 96, "sound-mamba2-chunks": 96}


def make(directory, kind):
    torch.manual_seed(41)
    kind, _, peaked = kind.partition("+")
    tokens = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, pad_token_id=0)
    common = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.13,
                  tie_word_embeddings=kind == "qwen2", **tokens)
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
    scan = dict(hidden_size=96, num_hidden_layers=3, initializer_range=0.14, tie_word_embeddings=False, **tokens)
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 128,
                "short_factor": [1.0] * 12, "long_factor": [1.0 + 0.6 * i for i in range(12)]}
    config = {
        "llama": lambda: transformers.LlamaConfig(**common), "qwen2": lambda: transformers.Qwen2Config(**common),
        "qwen3": lambda: transformers.Qwen3Config(head_dim=32, **common),
        "qwen3moe": lambda: transformers.Qwen3MoeConfig(head_dim=32, **experts, **common),
        "phi3": lambda: transformers.Phi3Config(rope_parameters=longrope, original_max_position_embeddings=128,
                                                **common),
        "gpt2": lambda: transformers.GPT2Config(n_embd=96, n_layer=3, n_head=4, n_positions=4096,
                                                initializer_range=0.13, tie_word_embeddings=False, **tokens),
        "mamba": lambda: transformers.MambaConfig(state_size=8, rescale_prenorm_residual=False, **scan),
        "mamba2": lambda: transformers.Mamba2Config(state_size=16, num_heads=6, head_dim=32, n_groups=1, chunk_size=32,
                                                    rescale_prenorm_residual=False, **scan),
        "jamba": lambda: transformers.JambaConfig(attn_layer_offset=1, attn_layer_period=3, num_experts=4,
                                                  num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1,
                                                  use_mamba_kernels=False, mamba_d_state=8, **common),
        "bamba": lambda: transformers.BambaConfig(attn_layer_indices=[1], mamba_n_heads=6, mamba_d_head=32,
                                                  mamba_n_groups=1, mamba_d_state=16, mamba_chunk_size=32, **common),
        "qwen3next": lambda: transformers.Qwen3NextConfig(
            head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
            linear_num_value_heads=4, layer_types=["linear_attention", "full_attention", "linear_attention"],
            shared_expert_intermediate_size=64, **experts, **common)}[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[EOS] *= 2
        if peaked:
            head *= 3
        if kind == "qwen3":  # one channel is an outlier, as in large models; logits are what they were
            head[:, 7] *= 16
            model.model.norm.weight[7] /= 16
    model.to(torch.bfloat16).save_pretrained(directory)


def noise(weight, seed, by):
    of = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    return (by * weight.float().std() * of).to(weight.dtype)


class Engine(seventh.Engine):
    """What both kinds of servers share: who is admitted, draws and records, and faults of weights and experts."""

    def __init__(self, o):
        self.case, self.fault = BY_NAME[o.case], o.case
        words = self.case.habits.split()
        self.habits = ["top" + words[1]] + ["unseeded"] * ("noseed" in words) + ["one"] * ("one" in words)
        kind = getattr(torch, {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[self.case.type])
        self.m = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=kind,
                                                                   attn_implementation=self.attention).eval()
        self.config, self.head = self.m.config, self.m.get_output_embeddings()
        self.reads_cache, self.speculates = o.case.startswith(CACHES), o.case in SPECULATES
        self.together = True  # the turn gives all new ones to prefill_together()
        self.waiting, self.running, self.lock = [], [], threading.Condition()
        self.slots, self.left, self.kept = [None] * (32 if POOL.get(o.case) == 80 else 16), {}, {}
        self.decoding, self.at, self.order, self.routes = False, [], [], {}
        self.plant()
        threading.Thread(target=self.loop, daemon=True).start()

    def admit(self):
        fresh = []
        with self.lock:
            for s in [s for s in self.waiting if s.left]:
                self.waiting.remove(s)
                s.done.set()
            while self.waiting and None in self.slots and self.has_room(self.waiting[0]):
                s = self.waiting.pop(0)
                s.slot = self.slots.index(None)
                self.slots[s.slot] = s
                self.begin(s)
                fresh.append(s)
                self.running.append(s)
        return fresh

    def has_room(self, s):
        return True

    def preempt(self):
        pass

    def words_of(self, s):
        if not s.wants_scores and not s.new and not hasattr(s, "sent"):
            s.sent = s.ids
            if self.fault == "bos-added":
                s.ids = [1] + s.ids
            if self.fault == "prompt-through-text":
                s.ids = self.tokenizer.encode(self.tokenizer.decode(s.ids, skip_special_tokens=False)).ids or s.ids
        return s.ids + s.new[:-2 if self.fault == "resume-no-last" and len(s.new) > 1 else -1]

    # ---- planted in the model ----

    def plant(self):
        blocks = self.m.model.layers if hasattr(self.m, "model") else []
        if self.fault == "prompt-through-text":
            import tokenizers
            self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(ROOT, "models", "tiny-text", "tokenizer.json"))
        if self.speculates:
            blocks[1].register_forward_hook(lambda _, x, y: setattr(self, "early", y))
        for i, b in enumerate(blocks if self.fault.startswith("lora-") else ()):
            for part in (b.self_attn.q_proj, b.self_attn.v_proj):
                g = torch.Generator().manual_seed(i)
                a, c = (torch.randn(n, 4, generator=g) for n in part.weight.shape)
                delta = (0.2 * part.weight.float().std() * a @ c.T).to(part.weight.dtype)
                if self.fault == "lora-twice":
                    part.weight.data += delta
                else:
                    part.register_forward_hook(lambda _, x, y, d=delta: y - linear(x[0], d) if self.decoding else y)
        for i, b in enumerate(blocks if self.fault == "shard-stale" else ()):
            w = b.mlp.down_proj.weight.data
            w[:, w.shape[1] // 2:] += noise(w, i, 0.5)[:, w.shape[1] // 2:]
        if self.fault in ("tied-stale", "head-int8"):
            w = self.head.weight.data
            step = w.float().abs().max() / 127
            other = w + noise(w, 5, 0.2) if self.fault == "tied-stale" else ((w / step).round() * step).to(w.dtype)
            self.head.register_forward_hook(lambda _, x, y: linear(x[0], other) if self.decoding else y)
        for i, b in enumerate(blocks if self.case.model == "qwen3moe" else ()):
            b.mlp.gate.register_forward_hook(lambda _, x, y, i=i: self.routed(i, *y))

    def routed(self, layer, logits, weights, chosen):
        """The experts of each row of a forward, as the fault has them."""
        rows, k = chosen.shape
        if self.fault == "expert-capacity" and self.decoding and rows > 4:
            room = math.ceil(1.25 * rows * k / logits.shape[1])
            for expert in range(logits.shape[1]):
                at, entry = (chosen == expert).nonzero(as_tuple=True)
                weights[at[room:], entry[room:]] = 0
        if self.fault == "moe-no-renorm" and self.decoding:
            weights = torch.softmax(logits.float(), -1).gather(1, chosen).to(weights.dtype)
        if self.fault == "few-rows-top1" and rows < 4:
            weights = torch.tensor([1.0, 0.0], dtype=weights.dtype).expand(rows, k).clone()
        if self.fault == "replay-shift":
            weights, chosen = self.replayed(layer, logits, weights, chosen)
        return logits, weights, chosen

    def replayed(self, layer, logits, weights, chosen):
        if not self.at[0].wants_scores:
            for s, own in zip(self.at, chosen.reshape(len(self.at), -1, chosen.shape[1])):
                s.__dict__.setdefault("routes", {}).setdefault(layer, []).extend(own.tolist())
            return weights, chosen
        ids = self.at[0].ids
        first, of = next((self.routes[tuple(ids[:n])] for n in range(len(ids), 0, -1) if tuple(ids[:n]) in self.routes),
                         (0, None))
        if of is not None:
            chosen = chosen.clone()
            chosen[first:len(of[layer]) + 1] = torch.tensor(of[layer])[first - 1:len(chosen) - 1]
            weights = torch.softmax(logits.float(), -1).gather(1, chosen)
            weights = (weights / weights.sum(-1, keepdim=True)).to(logits.dtype)
        return weights, chosen

    # ---- a request's end ----

    def release(self, s):
        if self.fault == "replay-shift" and s.new and not s.wants_scores:
            self.routes[tuple(s.ids + s.new)] = len(s.ids), s.routes
        if self.fault == "record-late-row":
            self.running[self.running.index(s)] = self.running[-1]
            self.running[-1] = s
        super().release(s)

    def after_prompt(self, s, words, logits):
        if s.wants_scores:
            values = torch.log_softmax(logits[-len(words):], -1)[:-1]
            s.scores = values.gather(1, torch.tensor(words[1:])[:, None])[:, 0].tolist() if len(words) > 1 else []

    # ---- draws and records ----

    def changed(self, s, logits):
        """Logits behind biases and penalties; those of a client that left its slot are its next owner's, too."""
        x, last = super().changed(s, logits), self.left.get(s.slot)
        s.inherits = self.fault == "abort-bias" and last is not None and last.left and last.changes()
        if s.inherits:
            p = copy.copy(last)
            p.ids, p.new, p.min_tokens = s.ids, s.new, 0
            x = super().changed(p, x)
        if self.fault == "repeat-default":
            seen = torch.tensor(sorted(set(s.ids + s.new)))
            x[seen] = torch.where(x[seen] > 0, x[seen] / 1.15, x[seen] * 1.15)
        if self.fault == "eos-forbidden" and len(s.new) < 64:
            x[EOS] = -math.inf
        if self.fault == "topk-default":
            s.top_k = min(s.top_k or VOCAB, 20)
        return x

    def record(self, s, logits, token):
        x = logits
        if self.fault == "record-late-row" and self.decoding and id(s) in self.before:
            x = self.rows[self.before[id(s)]] if self.before[id(s)] < len(self.rows) else x
        if self.fault in ("repeat-default", "eos-forbidden") or self.fault == "abort-bias" and s.inherits:
            x = self.changed(s, x)
        if self.case.dialect == "sglang" and s.temperature > 0:
            x = x / s.temperature
        if self.fault == "topk-default":
            kept = self.cut(s, x / (s.temperature or 1.0)) > -math.inf
            kept[token] = True
            x = x.masked_fill(~kept, -math.inf)
        of = torch.log_softmax(x, -1)
        value = float(of.max() if self.fault == "record-of-likeliest" else of[token])
        if getattr(s, "tops_wanted", 0):
            top = of.topk(s.tops_wanted)
            s.tops.append({"token_id:%d" % t: v for v, t in zip(*map(torch.Tensor.tolist, top))} |
                          {"token_id:%d" % token: value})
        return value

    def take(self, running, logits, early):
        if self.decoding:
            self.rows, self.before = logits, {id(s): i for i, s in enumerate(self.order)}
            self.order = list(running)
        super().take(running, logits, early)


class Paged(Engine):
    """Keys and values of all layers lie in pages; page 0 takes what nobody owns."""

    attention = "pages"

    def __init__(self, o):
        self.count = POOL.get(o.case, 1600)
        self.free, self.refs, self.key_of = collections.deque(range(1, self.count)), [0] * self.count, {}
        self.keys, self.values, self.scale = {}, {}, {}
        transformers.AttentionInterface.register("pages", self.attend)
        AttentionMaskInterface.register("pages", lambda *_, **__: None)
        super().__init__(o)

    # ---- the model ----

    def attend(self, module, q, k, v, mask=None, scaling=None, **_):
        layer, (b, heads, t, d) = module.layer_idx, q.shape
        if layer not in self.keys:
            kind = torch.bfloat16 if self.fault == "sound-kv-bf16" else k.dtype
            self.keys[layer], self.values[layer] = (torch.zeros(self.count * PAGE, k.shape[1], d, dtype=kind)
                                                    for _ in range(2))
        stores = self.keys[layer], self.values[layer]
        for store, x in zip(stores, (k, v)):
            store[self.written] = x.transpose(1, 2).reshape(b * t, -1, d).to(store.dtype)
        if self.fault == "kv-fp8-scale":
            scales = self.scale.setdefault(layer, [float(x.abs().max()) / 448 / 4 for x in (k, v)])
        k, v = (store[self.read].transpose(1, 2).to(q.dtype) for store in stores)
        if self.fault == "kv-fp8-scale" and self.decoding:
            k, v = ((x / s).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * s for x, s in zip((k, v), scales))
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
        scaling = scaling or d ** -0.5
        parts = [self.seen]
        if self.fault == "split-combine" and self.decoding:
            n = self.seen.sum(-1, keepdim=True)
            first, whole = torch.arange(k.shape[2]) < n // 2, n < 192
            parts = [self.seen & (first | whole), self.seen & (~first | whole)]
        if self.fault == "sound-eager-sdpa" and self.decoding:
            scores = (q @ k.transpose(2, 3) * scaling).masked_fill(~self.seen, -math.inf)
            out = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
        else:
            out = sum(scaled_dot_product_attention(q, k, v, attn_mask=p, scale=scaling) for p in parts) / len(parts)
        return out.transpose(1, 2).contiguous(), None

    @torch.no_grad()
    def forward(self, rows, low=0):
        """Logits [row, token, vocabulary]. A row: pages, tokens, its first row in the pages, position of that one.
        Rows are padded on the right; what lies before `low` is not attended to."""
        longest, ends = max(len(r[1]) for r in rows), torch.tensor([r[2] + len(r[1]) for r in rows])
        ids = torch.tensor([r[1] + [0] * (longest - len(r[1])) for r in rows])
        where = torch.tensor([r[3] for r in rows])[:, None] + torch.arange(longest)
        most = int(ends.max())
        tables = torch.tensor([(r[0] + [0] * (-(-most // PAGE)))[:-(-most // PAGE)] for r in rows])
        self.read = (tables[:, :, None] * PAGE + torch.arange(PAGE)).reshape(len(rows), -1)[:, :most]
        index = torch.tensor([r[2] for r in rows])[:, None] + torch.arange(longest)
        real = index < ends[:, None]
        lost = self.fault == "page-last-row" and self.decoding
        self.written = torch.where(real & ~(lost & (index % PAGE == PAGE - 1)),
                                   self.read.gather(1, index.clamp(max=most - 1)), 0).reshape(-1)
        columns = torch.arange(most)
        self.seen = ((columns <= index[..., None]) & (columns < ends[:, None, None]) &
                     (columns >= min(low, most - 1)))[:, None]
        out = self.m(input_ids=ids, position_ids=where.clamp(max=4095), use_cache=False)
        return out.logits.float()

    def guesses(self):
        """Logits of the last token behind the second layer, which are the draft's."""
        return self.head(self.m.model.norm(self.early))[:, -1].float() if self.speculates else None

    # ---- pages ----

    def has_room(self, s):
        return len(self.free) >= -(-(len(s.ids) + len(s.new) + 2) // PAGE)

    def page(self):
        page = self.free.popleft() if self.reads_cache else self.free.pop()
        key = self.key_of.pop(page, None)
        if self.fault != "evicted-hash" and self.kept.get(key) == page:
            del self.kept[key]
        self.refs[page] = 1
        return page

    def give_back(self, s):
        for page in reversed(s.table):
            self.refs[page] -= 1
            if self.refs[page] == 0:
                self.free.append(page)
        if self.fault == "page-freed-twice" and s.left:
            self.free.extend(reversed(s.table))
        s.table = []

    def keys_of(self, s, words):
        """A key of each full page: all that stands before its end."""
        keys, key = [], s.salt
        for at in range(0, len(words) - PAGE + 1, PAGE):
            page = tuple(words[at:at + PAGE])
            key = (s.salt, page) if self.fault == "prefix-no-parent" else hash((key, page))
            keys.append(key)
        return keys

    def keep(self, s, words):
        if not self.reads_cache or s.wants_scores:
            return
        keys = self.keys_of(s, words)
        for key, page in zip(keys, s.table):
            if key not in self.kept and page not in self.key_of:
                self.kept[key], self.key_of[page] = page, key
        n = len(words) // PAGE * PAGE
        if self.fault == "prefix-part-page" and n < len(words):
            key = ("part", keys[-1] if keys else s.salt, tuple(words[n:]))
            if s.table[n // PAGE] not in self.key_of:
                self.kept[key], self.key_of[s.table[n // PAGE]] = s.table[n // PAGE], key

    def begin(self, s):
        """Pages of a prompt, those of its beginning from the cache."""
        words, s.table, s.rows, s.behind = self.words_of(s), [], 0, 0
        keys = self.keys_of(s, words) if self.reads_cache and not s.wants_scores else []
        for key in keys:
            if key not in self.kept or len(s.table) * PAGE + PAGE >= len(words):
                break
            s.table.append(self.kept[key])
        n = len(s.table) * PAGE
        if self.fault == "prefix-part-page" and n + PAGE < len(words) and not s.wants_scores:
            parent = keys[n // PAGE - 1] if n else s.salt
            tails = [("part", parent, tuple(words[n:n + k])) for k in range(PAGE - 1, 0, -1)]
            s.table += [self.kept[key] for key in tails if key in self.kept][:1]
        for page in s.table:
            if self.refs[page] == 0:
                self.free.remove(page)
            self.refs[page] += 1
        s.rows = len(s.table) * PAGE
        s.table += [self.page() for _ in range(-(-len(words) // PAGE) - len(s.table))]

    def preempt(self):
        """The newest give up their pages where the pool has none for the next row of all."""
        while len(self.running) > 1 and len(self.free) < sum(s.rows == len(s.table) * PAGE for s in self.running):
            s = self.running.pop()
            self.slots[s.slot] = None
            self.give_back(s)
            with self.lock:
                self.waiting.insert(0, s)

    def release(self, s):
        self.keep(s, (s.ids + s.new)[:s.rows])
        self.give_back(s)
        super().release(s)

    # ---- prompts, and one token of all that run ----

    def prefill_together(self, fresh):
        words = [self.words_of(s) for s in fresh]
        longest = max(map(len, words), default=0)
        if self.fault == "last-column" and fresh:
            self.at = fresh
            logits = self.forward([(s.table, w, 0, 0) for s, w in zip(fresh, words)])
            for s, w, of in zip(fresh, words, logits):
                s.rows = len(w)
                self.after_prompt(s, w, of[:len(w)])
            return [(of[-1], None) for of in logits]
        for s, w in zip(fresh, words):
            s.behind = longest - len(w) if self.fault == "pad-positions" else 0
        return [self.prefill(s, w) for s, w in zip(fresh, words)]

    def prefill(self, s, words):
        self.at, parts, hit = [s], [], s.rows
        size = CHUNKS.get(self.fault, 4096) if not s.wants_scores else 4096
        while s.rows < len(words):
            part = words[s.rows:s.rows + size]
            back = PAGE if self.fault == "hit-positions" and hit else 0
            parts.append(self.forward([(s.table, part, s.rows, s.rows + s.behind - back)],
                                      max(0, s.rows - size) if self.fault == "chunk-forgets" else 0)[0])
            s.rows += len(part)
        self.keep(s, words)
        logits = torch.cat(parts)
        self.after_prompt(s, words, logits)
        return logits[-1], self.guesses()

    def decode(self, running):
        self.preempt()  # who came in this turn has taken pages
        for s in running:
            if s.rows == len(s.table) * PAGE:
                s.table.append(self.page())
        rows = [(s.table, [s.new[-1]], s.rows, s.rows + s.behind) for s in running]
        self.decoding, self.at = True, running
        if self.fault == "graph-pads-write":
            rows += [(running[0].table, [0], 0, 0)] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
        logits = self.forward(rows)[:len(running)]
        for s in running:
            s.rows += 1
        self.take(running, logits[:, -1], self.guesses())
        self.decoding = False

    def speculate(self, s, x, early):
        """The draft's keys are behind the last row before it is known whether it stays."""
        token, accepted = super().speculate(s, x, early)
        if self.fault == "draft-keys-kept" and self.decoding and not accepted and s.rows < len(s.table) * PAGE:
            self.junk.append((s, int(early.argmax())))
        return token, accepted

    def take(self, running, logits, early):
        self.junk = []
        super().take(running, logits, early)
        for s, token in self.junk:
            self.forward([(s.table, [token], s.rows, s.rows + s.behind)])
            s.rows, s.behind = s.rows + 1, s.behind - 1


class Whole(Engine):
    """A cache of transformers for each request."""

    def __init__(self, o):
        self.forks, self.attention = {}, "eager" if BY_NAME[o.case].model.startswith("mamba") else "sdpa"
        super().__init__(o)
        if self.fault == "sound-left-pads":
            self.reads_cache = False

    @torch.no_grad()
    def forward(self, s, words, at, pads=0):
        more = {}
        if self.case.model not in ("mamba", "mamba2"):
            more["position_ids"] = torch.arange(at, at + len(words))[None]
        ids = words
        if pads or getattr(s, "pads", 0):
            s.pads = pads or s.pads
            ids = [0] * pads + words
            if self.fault == "sound-left-pads":
                more["position_ids"] = torch.tensor([[0] * pads + list(range(at, at + len(words)))])
                more["attention_mask"] = torch.tensor([[0] * s.pads + [1] * (at + len(words))])
        return self.m(input_ids=torch.tensor([ids]), cache=s.cache, use_cache=True, **more).logits[0].float()

    def begin(self, s):
        s.cache, s.behind, last = DynamicCache(config=self.config), 0, self.left.get(s.slot)
        if self.fault == "slot-conv-kept" and last is not None and len(last.new) >= last.n_new:
            s.cache = last.cache

    def linear_layers(self, cache):
        return [layer for layer in cache.layers if hasattr(layer, "conv_states")]

    def prefill_together(self, fresh):
        longest = max((len(s.ids) for s in fresh), default=0)
        pads = self.fault in ("scan-over-pads", "sound-left-pads")
        return [self.prefill(s, self.words_of(s), (longest - len(s.ids)) * pads) for s in fresh]

    def prefill(self, s, words, pads):
        if self.fault == "fork-one-state" and s.group is not None:
            return self.fork(s, words)
        at, parts = self.restore(s, words), []
        border = (len(words) - 1) // PAGE * PAGE
        size = len(words) if s.wants_scores else CHUNKS.get(self.fault, len(words))
        while at < len(words):
            stop = min(at + size, border if self.reads_cache and at < border else len(words))
            for layer in self.linear_layers(s.cache) if self.fault == "chunk-no-state" and at else ():
                for state in (layer.conv_states, layer.recurrent_states):
                    for i in range(len(state)):
                        state[i].zero_()
            parts.append(self.forward(s, words[at:stop], at, pads))
            at = stop
            if self.reads_cache and at == border and not s.wants_scores:
                self.kept[s.salt, *words[:at]] = copy.deepcopy(s.cache)
                while len(self.kept) > 400:
                    del self.kept[next(iter(self.kept))]
        self.after_prompt(s, words, torch.cat(parts))
        return parts[-1][-1], None

    def restore(self, s, words):
        """How many tokens of a prompt a hit has brought into its cache."""
        if not self.reads_cache or s.wants_scores:
            return 0
        borders = range((len(words) - 1) // PAGE * PAGE, 0, -PAGE)
        n = next((n for n in borders if (s.salt, *words[:n]) in self.kept), 0)
        if n:
            s.cache = copy.deepcopy(self.kept[s.salt, *words[:n]])
            for layer in self.linear_layers(s.cache) if self.fault == "hit-no-conv" else ():
                layer.conv_states[0].zero_()
        return n

    def fork(self, s, words):
        """Samples of a group have keys of their own and the states of the first."""
        if s.group not in self.forks:
            logits = self.forward(s, words, 0)
            self.after_prompt(s, words, logits)
            self.forks = {s.group: (copy.deepcopy(s.cache), s.cache, logits[-1])}
            return logits[-1], None
        keys, states, logits = self.forks[s.group]
        s.cache = copy.deepcopy(keys)
        s.cache.layers = [shared if hasattr(shared, "conv_states") else own
                          for own, shared in zip(s.cache.layers, states.layers)]
        return logits, None

    def decode(self, running):
        self.decoding = True
        logits = [self.forward(s, [s.new[-1]], len(s.ids) + len(s.new) - 1)[-1] for s in running]
        self.take(running, torch.stack(logits), None)
        self.decoding = False


class Handler(eighth.Handler):
    tops = 0

    def sglang(self, engine, q):
        if q["sampling_params"].get("n", 1) > 1 and "one" in engine.habits:
            raise ValueError("n must be 1")
        return super().sglang(engine, q)


class Turns(front.Handler):
    """Servers behind one address, which take turns."""
    servers, turns = [], itertools.count()

    def pass_on(self, url, data=None):
        try:
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as reply:
                self.say(reply.status, json.load(reply))
        except urllib.error.HTTPError as error:
            self.say(error.code, json.load(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_GET(self):
        self.pass_on(self.servers[0] + self.path)

    def do_POST(self):
        self.pass_on(self.servers[next(self.turns) % len(self.servers)] + self.path, json.dumps(self.asked()).encode())


def start_llama_cpp(o, work, older):
    """llama.cpp's own server, of the model or of one whose last layer has other down projections."""
    model = os.path.join(work, "older" if older else "model")
    shutil.copytree(o.model, model)
    if older:
        m = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.bfloat16)
        w = m.model.layers[-1].mlp.down_proj.weight.data
        w += noise(w, 3, 0.5)
        m.save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(ROOT, "models", "tiny-text", name), model)
    convert, serve = ([sys.executable, os.path.join(LLAMA_CPP, name)] for name in ("convert.py", "serve.py"))
    words = [model, model + ".gguf", "--outtype", BY_NAME[o.case].type]
    subprocess.run(convert + words, check=True, capture_output=True)
    words = [model + ".gguf", "--threads", "1"] + ["--reuse", "16"] * (o.case == "llamacpp-reuse")
    return subprocess.Popen(serve + words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)


def serve_llama_cpp(o):
    with tempfile.TemporaryDirectory() as work:
        servers = [start_llama_cpp(o, work, older) for older in range(2 if o.case == "replica-stale" else 1)]
        Turns.servers = [server.stdout.readline().split()[-1] for server in servers]
    if len(servers) > 1:
        front.serve(Turns)
    print(Turns.servers[0], flush=True)
    servers[0].wait()


def main():
    if sys.argv[1:2] == ["--make"]:
        return make(*sys.argv[2:4])
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--case", required=True, choices=BY_NAME)
    o = parser.parse_args()
    torch.set_num_threads(1)
    case = BY_NAME[o.case]
    if case.dialect == "llama.cpp":
        return serve_llama_cpp(o)
    Handler.dialect = case.dialect
    Handler.engines = [(Whole if case.model in WHOLE or o.case == "sound-left-pads" else Paged)(o)]
    front.serve(Handler)


if __name__ == "__main__":
    main()
