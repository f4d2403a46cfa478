#!/usr/bin/env python3
"""A server with slots, a block cache and batches around transformers' models on CPU; a fault where one is asked for.

Usage: seventh.py MODEL [--case NAME] [--dtype float32|bfloat16|float16] [--attention eager|sdpa] [--threads N]
       seventh.py --make DIR llama|qwen2|qwen3|mamba|jamba          writes a model of random weights

NAME is of seventh_cases.py. The address is the first line. One thread owns the model: each turn admits what waits,
computes prompts, and then one token of all sequences that run. Prompts that are scored go the same way, but read no
cache.
"""

import argparse
import itertools
import math
import select
import socket
import sys
import threading
import time
import zlib

import torch
import transformers
from transformers import DynamicCache

import front

PAGE, VOCAB, EOS, POOL, CACHED_TOKENS = 16, 512, 2, 1400, 60000
TOGETHER = ("batched-f32", "batched-bf16", "pad-through-state", "last-row-of-padded", "pad-not-masked")
CACHE = ("prefix-f32", "prefix-bf16")
PREEMPTS = ("preempt-right", "resume-without-answer", "resume-at-wrong-position")
SPECULATES = ("draft-records", "rejected-drafts-stay", "speculation-right")
SLOTS = {"int8-from-eight-rows": 16, **dict.fromkeys(PREEMPTS, 32)}


def make(directory, kind):
    torch.manual_seed(11)
    tokens = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, pad_token_id=0)
    common = dict(hidden_size=96, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.12,
                  tie_word_embeddings=kind == "qwen2", **tokens)
    config = {"llama": lambda: transformers.LlamaConfig(**common), "qwen2": lambda: transformers.Qwen2Config(**common),
              "qwen3": lambda: transformers.Qwen3Config(head_dim=32, **common),
              "mamba": lambda: transformers.MambaConfig(
                  hidden_size=96, state_size=8, num_hidden_layers=4, initializer_range=0.15,
                  rescale_prenorm_residual=False, tie_word_embeddings=False, **tokens),
              "jamba": lambda: transformers.JambaConfig(
                  attn_layer_offset=1, attn_layer_period=3, num_experts=1, num_experts_per_tok=1,
                  use_mamba_kernels=False, mamba_d_state=8, **common)}[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        if kind != "qwen2":  # the end of sequence is likely behind some texts, and unlikely behind most
            model.get_output_embeddings().weight[EOS] *= 3
    model.to(torch.bfloat16).save_pretrained(directory)


def coarse(x, bits):
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / (2 ** (bits - 1) - 1)
    return (x / step).round() * step


class Sequence:
    def __init__(self, ids, n_new, temperature=1.0, top_k=0, top_p=1.0, seed=0, salt=None, bias=(), repetition=1.0,
                 presence=0.0, frequency=0.0, scores=False, stops=(), min_tokens=0, adapter=False):
        self.ids, self.n_new, self.salt, self.bias = list(ids), n_new, salt, dict(bias)
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.repetition, self.presence, self.frequency = repetition, presence, frequency
        self.wants_scores, self.stops, self.min_tokens, self.adapter = scores, stops, min_tokens, adapter
        self.generator = torch.Generator().manual_seed(seed)
        self.new, self.records, self.scores, self.error = [], [], None, None
        self.done, self.left = threading.Event(), False  # left: its client went away
        self.slot, self.state, self.group = None, None, None
        self.base, self.behind = 0, 0  # rows in front of its own; how far its positions lag

    def finished(self):
        return self.left or len(self.new) >= self.n_new or bool(self.new and self.new[-1] in self.stops)

    def changes(self):
        return bool(self.bias) or (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


class KeysInF16(DynamicCache):
    def update(self, keys, values, *more, **named):
        return super().update(keys.half().to(keys.dtype), values.half().to(values.dtype), *more, **named)


class Model:
    """A model of transformers whose caches can be taken apart and put together: a state is (keys, values) or
    (window, scan) of each layer, without the batch's dimension."""

    def __init__(self, o):
        self.m = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=getattr(torch, o.dtype),
                                                                   attn_implementation=o.attention).eval()
        self.kind, self.config = self.m.config.model_type, self.m.config
        self.cache_type = KeysInF16 if o.case == "keys-in-f16" else DynamicCache
        self.mask_pads, self.pad, self.empty, self.exit = True, 0, DynamicCache(config=self.config), -2
        self.blocks = self.m.backbone.layers if hasattr(self.m, "backbone") else self.m.model.layers

    def pack(self, states):
        if states[0] is None:
            return self.cache_type(config=self.config), [0] * len(states)
        cache, rows = self.cache_type(config=self.config), [0] * len(states)
        for i, layer in enumerate(cache.layers):
            a, b = [s[i][0] for s in states], [s[i][1] for s in states]
            if hasattr(layer, "conv_states"):
                layer.update_conv_state(torch.stack(a))
                layer.update_recurrent_state(torch.stack(b))
                continue
            rows = [k.shape[1] for k in a]
            pads = [(0, 0, max(rows) - n, 0) for n in rows]
            layer.update(*(torch.stack([torch.nn.functional.pad(x, p) for x, p in zip(xs, pads)]) for xs in (a, b)))
        return cache, rows

    def unpack(self, cache, at, rows):
        return [(x.conv_states[0][at].clone(), x.recurrent_states[0][at].clone()) if hasattr(x, "conv_states") else
                tuple(t[at, :, t.shape[2] - rows:].clone() for t in (x.keys, x.values)) for x in cache.layers]

    @torch.no_grad()
    def __call__(self, states, tokens, positions, hidden=False):
        """Logits [row, token, vocabulary] and new states. Rows of unequal length are padded on the left."""
        cache, rows = self.pack(states)
        longest, before = max(map(len, tokens)), max(rows)
        ids = torch.tensor([[self.pad] * (longest - len(t)) + t for t in tokens])
        where = torch.tensor([[0] * (longest - len(p)) + list(p) for p in positions])
        mask = torch.tensor([[0] * (before - n) + [1] * n + [0] * (longest - len(t)) + [1] * len(t)
                             for n, t in zip(rows, tokens)])
        if not self.mask_pads:
            mask[:] = 1
        more = {"attention_mask": mask, "position_ids": where}
        if hasattr(self.m, "backbone"):
            more = {"attention_mask": mask[:, before:]}
        out = self.m(input_ids=ids, cache=cache, use_cache=True, output_hidden_states=hidden, **more)
        after = [self.unpack(out.cache, i, n + len(t)) for i, (n, t) in enumerate(zip(rows, tokens))]
        early = self.m.lm_head(self.m.model.norm(out.hidden_states[self.exit]))[:, -1].float() if hidden else None
        return out.logits.float(), after, early


class Engine:
    model_type = Model

    def __init__(self, o, older=False):
        self.fault = o.case
        self.model = self.model_type(o)
        self.together, self.speculates, self.preempts = (o.case in of for of in (TOGETHER, SPECULATES, PREEMPTS))
        self.chunk, self.pool = 64 if o.case == "chunked-bf16" else 4096, POOL
        self.waiting, self.running, self.lock = [], [], threading.Condition()
        self.slots = [None] * SLOTS.get(o.case, 8)  # the sequence that has it
        self.left = {}  # what a slot's last owner left: its state, and itself
        self.kept, self.page = {}, 1 if o.case == "hit-adds-last-twice" else PAGE
        self.reads_cache = o.case in CACHE or o.case.startswith(("hit-", "hash-"))
        self.tenants = itertools.count()
        if older:
            self.disturb(self.model.blocks[1].mlp.down_proj.weight, 0.5)
        self.plant()
        threading.Thread(target=self.loop, daemon=True).start()
        if self.fault == "adapter-of-neighbour":
            threading.Thread(target=self.other_tenant, daemon=True).start()

    # ---- planted in the model ----

    @staticmethod
    def disturb(weight, by):
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(5))
        weight.data = (weight.data.float() + by * weight.data.float().std() * noise).to(weight.dtype)

    def plant(self):
        self.rows = 1
        if self.fault == "tied-head-not-updated":
            head = self.model.m.lm_head
            head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
            self.disturb(head.weight, 0.2)
        for layer in self.model.blocks if self.fault == "int8-from-eight-rows" else ():
            for linear in [m for m in layer.modules() if isinstance(m, torch.nn.Linear)]:
                linear.register_forward_hook(lambda m, x, y: coarse(y, 5) if self.rows >= 8 else y)
        if self.fault == "adapter-of-neighbour":
            self.adapted = False
            for i, layer in enumerate(self.model.blocks):
                a = torch.randn(96, 4, generator=torch.Generator().manual_seed(i)) * 0.05
                delta = (a @ a.T.roll(1, 1)).to(self.model.m.dtype)
                layer.self_attn.o_proj.register_forward_hook(
                    lambda m, x, y, d=delta: y + x[0] @ d * 3 if self.adapted else y)
        if self.fault == "graph-pads-write-row-0":
            self.pad = self.model([None], [[0]], [[0]])[1][0]

    def other_tenant(self):
        while True:
            time.sleep(0.25)
            i = next(self.tenants)
            self.ask([Sequence([3 + (i * 7 + j * 13) % 500 for j in range(8)], 12, seed=i, adapter=True)])

    # ---- the turn ----

    def ask(self, sequences, connection=None):
        with self.lock:
            self.waiting += sequences
            self.lock.notify()
        for s in sequences:
            while not s.done.wait(0.02 if connection else None):
                if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
                    for each in sequences:
                        each.left = True
            if s.error:
                raise RuntimeError(s.error)
        return sequences

    def loop(self):
        while True:
            with self.lock:
                while not self.waiting and not self.running:
                    self.lock.wait()
            if not self.running:
                time.sleep(0.002)  # what is sent at once begins at once
            try:
                self.turn()
            except Exception as error:  # the client hears it
                for s in self.running + self.waiting:
                    s.error = repr(error)
                    s.done.set()
                self.running, self.waiting, self.slots = [], [], [None] * len(self.slots)

    def turn(self):
        for s in [s for s in self.running if s.left]:
            self.release(s)
        self.preempt()
        fresh = self.admit()
        prefilled = self.prefill_together(fresh) if self.together else [self.prefill(s) for s in fresh]
        for s, (logits, early) in zip(fresh, prefilled):
            if not s.new:
                self.take([s], logits[None], early)
            elif self.fault == "resume-at-wrong-position":
                s.behind = len(s.new) - 1
        for s in [s for s in fresh if s.finished()]:
            self.release(s)
        if self.running:
            self.decode(self.running)
            for s in [s for s in self.running if s.finished()]:
                self.release(s)

    def admit(self):
        fresh = []
        with self.lock:
            for s in [s for s in self.waiting if s.left]:
                self.waiting.remove(s)
                s.done.set()
            while self.waiting and None in self.slots and (not self.preempts or not self.running or
                                                           self.used() + len(self.waiting[0].ids) < self.pool):
                s = self.waiting.pop(0)
                s.slot = self.slots.index(None)
                self.slots[s.slot] = s
                s.others = len(self.running)
                fresh.append(s)
                self.running.append(s)
        return fresh

    def used(self):
        return sum(len(s.ids) + len(s.new) for s in self.running)

    def preempt(self):
        """The newest gives up its state when the pool is full, and is computed again later."""
        while self.preempts and len(self.running) > 1 and self.used() + len(self.running) > self.pool:
            s = self.running.pop()
            self.slots[s.slot] = s.state = None
            with self.lock:
                self.waiting.insert(0, s)

    def release(self, s):
        self.left[s.slot] = s
        self.slots[s.slot] = None
        self.running.remove(s)
        s.done.set()

    # ---- prompts ----

    def begin(self, s):
        """The state that a sequence begins with, and how many of its tokens are in it."""
        last = self.left.get(s.slot)
        if last is not None and last.state is not None:
            if self.fault == "conv-not-cleared":
                return last.state, 0
            if self.fault == "handover-not-cleared" and s.others:
                return [(torch.zeros_like(a), b) if a.dim() == 2 else (a[:, :0], b[:, :0]) for a, b in last.state], 0
            if self.fault == "abort-keeps-rows" and last.left:
                s.base = last.state[0][0].shape[1]
                return last.state, 0
        return self.hit(s) if self.reads_cache and not s.wants_scores else (None, 0)

    def words_of(self, s):
        if self.fault == "bos-for-generation" and not s.wants_scores:
            return [1] + s.ids
        return s.ids + s.new[:-1] if self.fault != "resume-without-answer" else s.ids

    def prefill(self, s):
        words = self.words_of(s)
        state, n = self.begin(s)
        first = 0 if self.fault == "hit-restarts-positions" else n
        positions = list(range(s.base + first, s.base + first + len(words) - n))
        if self.fault == "hit-adds-last-twice" and n == len(words) - 1 and self.keys_of(s, words)[-1] in self.kept:
            state = self.join(state, self.kept[self.keys_of(s, words)[-1]])
        if self.fault == "hash-without-parent":
            logits, state = self.prefill_around(s, words)
        else:
            logits, (state,), early = self.in_chunks(state, words[n:], positions)
        self.after_prompt(s, words, state, logits)
        return logits[-1], early if self.speculates else None

    def in_chunks(self, state, words, positions):
        size = self.chunk
        if state is not None and hasattr(self.model.empty.layers[-1], "conv_states"):
            size = 1  # a scan of many tokens begins without a state in transformers
        parts = []
        for at in range(0, len(words), size):
            logits, (state,), early = self.model([state], [words[at:at + size]], [positions[at:at + size]],
                                                 hidden=self.speculates)
            parts.append(logits[0])
        return torch.cat(parts), [state], early

    def prefill_together(self, fresh):
        if not fresh:
            return []
        words = [self.words_of(s) for s in fresh]
        right = self.fault == "last-row-of-padded"
        longest = max(map(len, words))
        self.model.mask_pads = self.fault != "pad-through-state"
        if right:
            padded = [w + [0] * (longest - len(w)) for w in words]
            logits, states, _ = self.model([None] * len(fresh), padded, [range(longest)] * len(fresh))
            states = [[(k[:, :len(w)], v[:, :len(w)]) for k, v in state] for w, state in zip(words, states)]
        else:
            logits, states, _ = self.model([None] * len(fresh), words, [range(len(w)) for w in words])
        self.model.mask_pads = True
        for s, w, state, of in zip(fresh, words, states, logits):
            self.after_prompt(s, w, state, of[:len(w)] if right else of[-len(w):])
        return [(of[-1], None) for of in logits]

    def after_prompt(self, s, words, state, logits):
        s.state = state
        if s.wants_scores and s.scores is None:
            of_next = torch.tensor(words[1:])[:, None].long()
            s.scores = torch.log_softmax(logits[:-1], -1).gather(1, of_next)[:, 0].tolist()
        if self.reads_cache:
            self.keep(s, words, state)
        if self.fault == "tail-page-not-sent":
            n = len(words) // PAGE * PAGE
            for pair in state:
                for x in pair:
                    x[:, n:] = 0

    # ---- the cache of blocks ----

    def keys_of(self, s, words):
        """Of each full block; each key but a planted one stands for all tokens up to the block's end."""
        key, keys = repr(s.salt), []
        for at in range(0, len(words) - self.page + 1, self.page):
            block = tuple(words[at:at + self.page])
            if self.fault == "hash-of-eight-bits":
                key = zlib.crc32(repr((key, block)).encode()) & 0xff
            else:
                key = (s.salt, block) if self.fault == "hash-without-parent" else hash((key, block))
            keys.append(key)
        return keys

    def keep(self, s, words, state):
        whole = self.model.kind == "mamba"
        rows = 0 if whole else state[0][0].shape[1]
        for i, key in enumerate(self.keys_of(s, words)):
            if whole:
                self.kept.setdefault(key, [(a.clone(), b.clone()) for a, b in state])
            elif (i + 1) * self.page <= rows:
                part = slice(i * self.page, (i + 1) * self.page)
                self.kept.setdefault(key, self.stored([tuple(x[:, part].clone() for x in pair) for pair in state]))
        n = len(words) % PAGE
        if self.fault == "hit-ignores-partial-block" and n >= PAGE // 2:
            parent = self.keys_of(s, words)[-1:] or [repr(s.salt)]
            part = slice(len(words) - n, len(words))
            tail = [tuple(torch.nn.functional.pad(x[:, part], (0, 0, 0, PAGE - n)) for x in pair) for pair in state]
            self.kept.setdefault(("partial", parent[0]), []).append((words[-n:], tail))
        while len(self.kept) > CACHED_TOKENS // self.page:
            del self.kept[next(iter(self.kept))]

    def stored(self, block):
        if self.fault == "hit-from-4-bit-store":
            return [tuple(coarse(x, 4) for x in pair) for pair in block]
        if self.fault == "hit-loses-last-layer":
            return block[:-1] + [tuple(torch.zeros_like(x) for x in block[-1])]
        return block

    @staticmethod
    def join(state, block):
        return block if state is None else [tuple(torch.cat(xs, 1) for xs in zip(a, b)) for a, b in zip(state, block)]

    def hit(self, s):
        state, n, words = None, 0, self.words_of(s)
        if self.fault == "hash-without-parent":
            return None, 0
        keys = self.keys_of(s, words)
        for key in keys:
            if key not in self.kept or n + self.page >= len(words):
                break
            state = self.kept[key] if self.model.kind == "mamba" else self.join(state, self.kept[key])
            n += self.page
        if self.fault == "hit-ignores-partial-block":
            parent = keys[n // PAGE - 1] if n else repr(s.salt)
            for tokens, block in self.kept.get(("partial", parent), []):
                if words[n:n + len(tokens)] == tokens and n + PAGE < len(words):
                    return self.join(state, block), n + PAGE
        return state, n

    def prefill_around(self, s, words):
        """Blocks that are known are taken wherever they stand; those between them are computed."""
        state, logits = None, None
        for at, key in itertools.zip_longest(range(0, len(words), PAGE), self.keys_of(s, words)):
            part = words[at:at + PAGE]
            if key in self.kept and at + PAGE < len(words) and not s.wants_scores:
                state = self.join(state, self.kept[key])
                continue
            of, (state,), _ = self.model([state], [part], [range(at, at + len(part))])
            logits = of[0] if logits is None else torch.cat([logits, of[0]])
        return logits, state

    # ---- one token of all that run ----

    def decode(self, running):
        self.rows = len(running)
        self.adapted = any(s.adapter for s in running)
        self.model.mask_pads = self.fault != "pad-not-masked"
        extra = int(self.fault == "bos-for-generation")
        positions = [s.base + len(s.ids) + len(s.new) - 1 - s.behind + extra * (not s.wants_scores) for s in running]
        states = [self.read(s) for s in running]
        logits, after, early = self.model(states, [[s.new[-1]] for s in running], [[p] for p in positions],
                                          hidden=self.speculates)
        for s, before, state in zip(running, states, after):
            s.state = self.written(s, before, state)
        self.model.mask_pads, self.rows, self.adapted = True, 1, False
        if self.fault == "graph-pads-write-row-0" and len(running) & (len(running) - 1):
            for pair, pad in zip(running[0].state, self.pad):
                for x, p in zip(pair, pad):
                    x[:, -1] = p[:, 0]
        if self.fault == "fork-without-copy":
            self.share_page(running)
        self.take(running, logits[:, -1], early)

    def read(self, s):
        """What decode attends to."""
        if self.fault == "window-in-decode":
            return [(k[:, -47:], v[:, -47:]) for k, v in s.state]
        last = self.left.get(s.slot)
        if self.fault == "longer-owner-seen" and last is not None and last.state is not None:
            n = s.state[0][0].shape[1]
            return [tuple(torch.cat([x, old[:, n + 1:]], 1) for x, old in zip(*of_layer))
                    for of_layer in zip(s.state, last.state)]
        return s.state

    def written(self, s, before, after):
        """The sequence's state with the new row, where decode read others than its own."""
        if self.fault not in ("window-in-decode", "longer-owner-seen"):
            return after
        return [tuple(torch.cat([x, new[:, -1:]], 1) for x, new in zip(a, b)) for a, b in zip(s.state, after)]

    @staticmethod
    def share_page(running):
        for s in running:
            row = len(s.ids) + len(s.new) - 1
            others = [t for t in running if t.group is s.group and len(t.new) == len(s.new)]
            if s.group is not None and len(s.ids) % PAGE and row < -(-len(s.ids) // PAGE) * PAGE:
                for pair, last in zip(s.state, others[-1].state):
                    for x, y in zip(pair, last):
                        x[:, row] = y[:, row]

    # ---- draws and records ----

    def changed(self, s, logits):
        """Logits behind bias and penalties."""
        x, p = logits.clone(), s
        last = self.left.get(s.slot)
        if self.fault == "bias-stays":
            if not s.changes() and last is not None and hasattr(last, "row"):
                p = last.row
            s.row = p
        repetition = 1.3 if self.fault == "default-penalty" else p.repetition
        if repetition != 1.0:
            seen = torch.tensor(sorted(set(s.ids + s.new)))
            x[seen] = torch.where(x[seen] > 0, x[seen] / repetition, x[seen] * repetition)
        if s.new and (p.presence or p.frequency):
            counts = torch.bincount(torch.tensor(s.new), minlength=VOCAB)
            x -= p.presence * (counts > 0) + p.frequency * counts
        for token, by in p.bias.items():
            x[token] += by
        if len(s.new) < (8 if self.fault == "eos-masked" else s.min_tokens):
            x[EOS] = -math.inf
        return x

    @staticmethod
    def cut(s, x):
        if s.top_k > 0:
            x = x.masked_fill(x < x.topk(min(s.top_k, VOCAB)).values[-1], -math.inf)
        if s.top_p < 1:
            p, order = torch.softmax(x, -1).sort(descending=True)
            out = torch.zeros_like(x, dtype=torch.bool).scatter(0, order, p.cumsum(0) - p >= s.top_p)
            x = x.masked_fill(out, -math.inf)
        return x

    def draw(self, s, x):
        if s.temperature == 0:
            return int(x.argmax())
        u = torch.rand(x.shape, generator=s.generator).clamp(1e-9, 1 - 1e-7)
        return int((self.cut(s, x / s.temperature) - torch.log(-torch.log(u))).argmax())

    def take(self, running, logits, early):
        """Draws a token of each row of logits and records it."""
        tokens, drafted = [], [False] * len(running)
        for i, s in enumerate(running):
            x = self.changed(s, logits[i])
            if self.speculates:
                token, drafted[i] = self.speculate(s, x, self.changed(s, early[i]))
            else:
                token = self.draw(s, x)
            tokens.append(token)
        ends = [len(s.new) + 1 >= s.n_new for s in running]
        rows = list(range(len(running)))
        if self.fault == "rows-before-compaction" and any(ends):
            stay = itertools.count()
            rows = [i if end else next(stay) for i, end in zip(rows, ends)]
        for i, s in enumerate(running):
            of = early[i] if drafted[i] and self.fault == "draft-records" else logits[rows[i]]
            value = self.record(s, of, tokens[i])
            if self.fault == "record-one-late":
                value, s.held = getattr(s, "held", value), value
            s.new.append(tokens[i])
            s.records.append(round(value, 4) if self.fault == "four-digits" else value)

    def speculate(self, s, x, early):
        """A draw of an early exit's distribution, taken with probability p / q, and else one of what is left of p."""
        if s.temperature == 0:
            token, guess = int(x.argmax()), int(early.argmax())
        else:
            p, q = (torch.softmax(self.cut(s, y / s.temperature), -1) for y in (x, early))
            guess = token = int(torch.multinomial(q, 1, generator=s.generator))
            if torch.rand(1, generator=s.generator) * q[guess] > p[guess]:
                token = int(torch.multinomial((p - q).clamp(min=0), 1, generator=s.generator))
        if token != guess and self.fault == "rejected-drafts-stay":
            _, (s.state,), _ = self.model([s.state], [[guess]], [[len(s.ids) + len(s.new)]])
        return token, token == guess

    def record(self, s, logits, token):
        x = logits
        if self.fault in ("bias-stays", "default-penalty", "eos-masked"):
            x = self.changed(s, x)
        if self.fault in ("record-of-temperature", "sglang-raw") and s.temperature > 0:
            x = x / s.temperature
        if self.fault == "record-behind-top-p":
            kept = self.cut(s, x / (s.temperature or 1.0)) > -math.inf
            kept[token] = True
            x = x.masked_fill(~kept, -math.inf)
        if self.fault == "head-in-fp8":
            x = x.to(torch.float8_e4m3fn).float()
        if self.fault == "vocabulary-padded":
            x = torch.cat([x, x[64:128]])
        value = float(torch.log_softmax(x, -1)[token])
        if self.fault == "log-of-p-and-epsilon":
            return math.log(math.exp(value) + 1e-3)
        if self.fault == "log-base-2":
            return value / math.log(2)
        if self.fault == "zero-out-of-top-20" and x[token] < x.topk(20).values[-1]:
            return 0.0
        return value


class Handler(front.Handler):
    engines, dialect, turns = [], "vllm", itertools.count()

    def do_GET(self):
        self.say_models(self.dialect)

    def do_POST(self):
        q = self.asked()
        engine = self.engines[next(self.turns) % len(self.engines)]
        try:
            if self.path in ("/reset_prefix_cache", "/flush_cache"):
                for each in self.engines:
                    each.kept = {}
                self.say(200, {})
            elif self.path == "/v1/completions" and self.dialect == "vllm" and not isinstance(q["prompt"], str):
                self.say(200, self.vllm(engine, q))
            elif self.path == "/generate" and self.dialect == "sglang" and "input_ids" in q:
                self.say(200, self.sglang(engine, q))
            else:
                self.say(404, {"error": "ids to /v1/completions or /generate alone"})
        except ValueError as error:
            self.say(400, {"error": {"message": str(error)}})
        except RuntimeError as error:
            self.say(500, {"error": {"message": str(error)}})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def samples(self, engine, n, ids, n_new, seed, scores, **more):
        group = object() if n > 1 else None
        made = [Sequence(ids, n_new, seed=(seed + i) % 2**31, scores=scores and i == 0, **more) for i in range(n)]
        for s in made:
            s.group = group
        return engine.ask(made, self.connection)

    def vllm(self, engine, q):
        ids, choices, hot = q["prompt"], [], 0.6 if engine.fault == "default-temperature" else 1.0
        scores = q.get("prompt_logprobs") is not None
        made = self.samples(engine, q.get("n", 1), ids, q["max_tokens"], q.get("seed", 0), scores,
                            temperature=q.get("temperature", hot), top_k=q.get("top_k", 0),
                            top_p=q.get("top_p", 1.0), salt=q.get("cache_salt"),
                            bias={int(k): v for k, v in (q.get("logit_bias") or {}).items()},
                            repetition=q.get("repetition_penalty", 1.0), presence=q.get("presence_penalty", 0.0),
                            frequency=q.get("frequency_penalty", 0.0), min_tokens=q.get("min_tokens", 0),
                            stops=(q.get("stop_token_ids") or []) + ([] if q.get("ignore_eos") else [EOS]))
        for i, s in enumerate(made):
            choices.append({"index": i, "token_ids": s.new, "prompt_token_ids": ids,
                            "finish_reason": "length" if len(s.new) == s.n_new else "stop",
                            "logprobs": {"tokens": ["token_id:%d" % t for t in s.new], "token_logprobs": s.records}})
            if s.scores is not None:
                choices[-1]["prompt_logprobs"] = [None] + [{str(t): {"logprob": v}} for t, v in zip(ids[1:], s.scores)]
        return {"choices": choices, "usage": {"prompt_tokens": len(ids)}}

    def sglang(self, engine, q):
        p, answers = q["sampling_params"], []
        made = self.samples(engine, p.get("n", 1), q["input_ids"], p["max_new_tokens"], p.get("sampling_seed", 0),
                            q.get("logprob_start_len") == 0, temperature=p.get("temperature", 1.0),
                            top_k=max(0, p.get("top_k", 0)), top_p=p.get("top_p", 1.0),
                            stops=(p.get("stop_token_ids") or []) + ([] if p.get("ignore_eos") else [EOS]))
        for s in made:
            records = [[v, t, None] for v, t in zip(s.records, s.new)]
            meta = {"prompt_tokens": len(s.ids), "output_token_logprobs": records}
            if s.scores is not None:
                meta["input_token_logprobs"] = [[v, t, None] for v, t in zip([None] + s.scores, s.ids)]
            answers.append({"output_ids": s.new, "meta_info": meta})
        return answers if "n" in p else answers[0]


def main():
    if sys.argv[1:2] == ["--make"]:
        return make(*sys.argv[2:4])
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--case", default="none")
    parser.add_argument("--threads", type=int, default=1)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    Handler.dialect = "sglang" if o.case == "sglang-raw" else "vllm"
    Handler.engines = [Engine(o)]
    if o.case in ("two-replicas", "replica-of-older-weights"):
        Handler.engines.append(Engine(o, older=o.case == "replica-of-older-weights"))
    front.serve(Handler)


if __name__ == "__main__":
    main()
