#!/usr/bin/env python3
"""A server for Jamba that is not ours: state slots, pages, continuous batching, a prefix cache, two replicas; with a fault
where one is asked for.

Usage: slots.py MODEL [--dialect vllm|sglang|llama.cpp] [--type f32|bf16] [--sure X] [--cache] [--fault NAME] [--slots N]

It answers in the words of three protocols, computes in numpy, and has decode and prefill in two orders of addition, as
servers have. Its address is the first line that it prints. `slots_cases.py` says what each fault is.
"""
import argparse
import hashlib
import http.server
import json
import os
import struct
import threading
import time

import numpy as np

F = np.float32
PAGE, CHUNK = 16, 64


def read_weights(path):
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    tensors = {}
    for name, t in header.items():
        if name != "__metadata__":
            raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
            wide = np.frombuffer(raw, F) if t["dtype"] == "F32" else (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(F)
            tensors[name] = wide.reshape(t["shape"]).copy()
    return tensors


def to_bf16(x):
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(F)


def to_few_bits(x, levels):
    scale = np.abs(x).max(-1, keepdims=True) / levels + 1e-30
    return (np.round(x / scale) * scale).astype(F)


def silu(x):
    return x / (1 + np.exp(-x))


class Model:
    """Weights and products. `decode` is the other order of addition."""

    def __init__(self, path, o):
        with open(os.path.join(path, "config.json")) as file:
            self.c = c = json.load(file)
        w, self.half = read_weights(path), o.type == "bf16"
        self.embed, self.final = w["model.embed_tokens.weight"], w["model.final_layernorm.weight"] * o.sure
        self.layers = [{k[len(f"model.layers.{i}."):]: v for k, v in w.items() if k.startswith(f"model.layers.{i}.")}
                       for i in range(c["num_hidden_layers"])]
        for layer in self.layers:
            if "mamba.A_log" in layer:
                layer["A"] = -np.exp(layer["mamba.A_log"])
        self.vocab, self.hidden = self.embed.shape
        self.inner, self.n, self.width = 2 * self.hidden, c["mamba_d_state"], c["mamba_d_conv"]
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.p = self.hidden // self.heads
        self.coarse = False

    def behind(self, i, by):
        """The same weights some updates ago, in layer i."""
        rng = np.random.default_rng(11)
        for k, v in self.layers[i].items():
            if v.ndim == 2 and k != "A" and "A_log" not in k and "router" not in k:
                self.layers[i][k] = (v + by * v.std() * rng.standard_normal(v.shape)).astype(F)

    def r(self, x):
        return to_bf16(x) if self.half else x.astype(F)

    def dot(self, x, w, decode):
        if self.coarse:  # a kernel that adds in eight pieces and keeps each in few bits
            parts = np.split(np.arange(x.shape[-1]), 4)
            total = 0
            for part in parts:
                total = to_bf16(total + to_bf16(x[:, part] @ w[:, part].T))
            return total
        if not decode:
            return self.r(x @ w.T)
        # Rows choose the pieces, as in servers: their rounding follows the batch.
        h = x.shape[-1] // (2 if len(x) < 8 else 4)
        return self.r(self.r(x[:, :h] @ w[:, :h].T) + self.r(x[:, h:] @ w[:, h:].T))

    def norm(self, x, w):
        return self.r(x / np.sqrt((x * x).mean(-1, keepdims=True) + F(1e-6)) * w)

    def mixer_inputs(self, l, u, decode):
        d = self.dot(u, l["mamba.x_proj.weight"], decode)
        rank = d.shape[-1] - 2 * self.n
        dt = self.norm(d[:, :rank], l["mamba.dt_layernorm.weight"])
        b = self.norm(d[:, rank:rank + self.n], l["mamba.b_layernorm.weight"])
        c = self.norm(d[:, rank + self.n:], l["mamba.c_layernorm.weight"])
        dt = np.logaddexp(0, self.dot(dt, l["mamba.dt_proj.weight"], decode) + l["mamba.dt_proj.bias"]).astype(F)
        return dt, b, c

    def attend(self, q, k, v, first):
        """q of some rows in a line from position `first` on; k and v of all before and of themselves."""
        group = self.heads // self.kv
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        s = np.einsum("thp,shp->hts", q, k) / F(np.sqrt(self.p))
        s = np.where(np.arange(k.shape[0])[None, None, :] > first + np.arange(q.shape[0])[None, :, None], F(-1e30), s)
        s = np.exp(s - s.max(-1, keepdims=True))
        s = s / s.sum(-1, keepdims=True)
        return self.r(np.einsum("hts,shp->thp", s, v).reshape(q.shape[0], -1))

    def tail(self, l, x, decode):
        h = self.norm(x, l["pre_ff_layernorm.weight"])
        if "feed_forward.router.weight" not in l:
            return self.r(x + self.expert(l, "feed_forward.", h, decode))
        p = h @ l["feed_forward.router.weight"].T
        p = np.exp(p - p.max(-1, keepdims=True))
        p, y = p / p.sum(-1, keepdims=True), np.zeros_like(x)
        for e, k in enumerate(self.chosen(p)):
            if k.any():
                y[k] += p[k, e, None] * self.expert(l, f"feed_forward.experts.{e}.", h[k], decode)
        return self.r(x + y)

    def chosen(self, p):
        """For each expert, the rows that it is for."""
        order = np.argsort(-p, -1, kind="stable")[:, :self.c["num_experts_per_tok"]]
        return [(order == e).any(-1) for e in range(p.shape[-1])]

    def expert(self, l, pre, h, decode):
        g, u = self.dot(h, l[pre + "gate_proj.weight"], decode), self.dot(h, l[pre + "up_proj.weight"], decode)
        return self.dot(self.r(silu(g) * u), l[pre + "down_proj.weight"], decode)

    def logits(self, x, decode):
        h = self.norm(x, self.final)
        return h @ self.embed.T if not decode else h[:, ::-1] @ self.embed[:, ::-1].T


class Sequence:
    def __init__(self, ids, n_new, **more):
        self.ids, self.n_new, self.new, self.records = list(ids), n_new, [], []
        self.n_prompt, self.at, self.slot, self.pages = len(ids), 0, None, []
        self.temperature, self.top_k, self.top_p = more.get("temperature", 1.0), more.get("top_k", 0) or 0, more.get("top_p", 1.0)
        self.rng = np.random.default_rng(abs(hash((more.get("seed") or time.time_ns(), tuple(ids)))))
        self.scores = [None] if more.get("scores") else None
        self.salt, self.cacheable = more.get("salt"), more.get("cacheable", True)
        self.bias, self.penalty = dict(more.get("bias") or []), more.get("penalty", 1.0)
        self.logits, self.done, self.error = None, threading.Event(), None
        self.fork = more.get("fork", False)
        self.hits = 0


class Engine:
    def __init__(self, o, number=0):
        self.o, self.fault, self.m = o, o.fault, Model(o.model, o)
        m = self.m
        self.n_slots = o.slots
        layers, n_pages = len(m.layers), 6000
        self.conv = np.zeros((self.n_slots, layers, m.width - 1, m.inner), F)
        self.ssm = np.zeros((self.n_slots, layers, m.inner, m.n), F)
        self.k = np.zeros((layers, n_pages, PAGE, m.kv, m.p), F)
        self.v = np.zeros_like(self.k)
        self.free_pages, self.free_slots = list(range(n_pages))[::-1], list(range(self.n_slots))[::-1]
        self.uses = [0] * n_pages
        self.waiting, self.running, self.lock = [], [], threading.Condition()
        self.blocks = {}  # of the prefix cache: key to page and state behind it
        self.bias_of_slot, self.penalty_of_slot = {}, {}
        self.seen_of_slot = {}
        self.old_scores, self.n_steps, self.kept_logits = {}, 0, {}
        if self.fault == "stale-layer":
            m.behind(1, 0.1)
        if self.fault == "stale-layer-small":
            m.behind(2, 0.03)
        if self.fault in ("replicas", "replica-by-hash", "replica-by-load") and number == 1:
            m.behind(1, 0.1)
        if self.fault == "decode-worker-behind":
            self.other = Model(o.model, o)
            self.other.behind(3, 0.1)
        if self.fault == "draft-values":
            self.draft = Model(o.model, o)
            for i in range(layers):
                self.draft.behind(i, 0.3)
        threading.Thread(target=self.loop, daemon=True).start()

    # ---- the scheduler ----

    def submit(self, s):
        with self.lock:
            self.waiting.append(s)
            self.lock.notify()

    def loop(self):
        while True:
            with self.lock:
                while not self.waiting and not self.running:
                    self.lock.wait()
            time.sleep(self.o.pause)
            with self.lock:
                while self.waiting and self.free_slots:
                    s = self.waiting.pop(0)
                    self.admit(s)
                    self.running.append(s)
            try:
                self.step()
            except Exception as error:  # the client hears it
                for s in self.running:
                    s.error = repr(error)
                    self.leave(s)
                self.running = []
                import traceback
                traceback.print_exc()

    def admit(self, s):
        s.slot = self.free_slots.pop()
        if self.fault == "stale-upper":  # cleared by a wrong stride: the upper layers keep theirs
            self.ssm[s.slot, :2] = 0
        elif self.fault != "stale-ssm":
            self.ssm[s.slot] = 0
        if self.fault != "stale-conv":
            self.conv[s.slot] = 0
        s.at = 0
        if self.o.cache and s.scores is None and s.cacheable:
            self.find(s)
        if s.bias or self.fault != "bias-stays":
            self.bias_of_slot[s.slot] = s.bias
        if s.penalty != 1.0 or self.fault != "penalty-stays":
            self.penalty_of_slot[s.slot] = s.penalty
        if self.fault != "counts-stay":
            self.seen_of_slot[s.slot] = set()
        self.seen_of_slot.setdefault(s.slot, set())

    def leave(self, s):
        for page in s.pages:
            self.uses[page] -= 1
            if self.uses[page] == 0:
                self.free_pages.append(page)
        self.free_slots.append(s.slot)
        s.done.set()

    def page_of(self, s, i):
        while len(s.pages) <= i:
            page = self.free_pages.pop()
            self.uses[page] += 1
            s.pages.append(page)
        return s.pages[i]

    # ---- the prefix cache ----

    def keys(self, s, ids):
        parent, keys = hashlib.sha256(str(s.salt).encode()).digest(), []
        for i in range(len(ids) // PAGE):
            block = ids[i * PAGE:(i + 1) * PAGE]
            if self.fault == "hash-no-parent":
                text = repr((i, block))
            elif self.fault == "hash-of-ends":
                text = repr((parent, block[0], block[-1]))
            elif self.fault == "hash-of-sum":
                text = repr((parent, sum(block)))
            else:
                text = repr((parent, block))
            parent = hashlib.sha256(text.encode()).digest()
            keys.append(parent)
        return keys

    def find(self, s):
        for i, key in enumerate(self.keys(s, s.ids[:s.n_prompt - 1])):
            if key not in self.blocks:
                break
            page, conv, ssm = self.blocks[key]
            self.uses[page] += 1
            s.pages.append(page)
            s.at = (i + 1) * PAGE
            self.conv[s.slot], self.ssm[s.slot] = conv, ssm
        s.hits = s.at
        if s.hits and self.fault == "hit-late":  # the hit is taken for one block more than the state has
            self.ssm[s.slot] = self.blocks[self.keys(s, s.ids[:s.hits])[max(0, s.hits // PAGE - 2)]][2]
        if s.hits and self.fault == "hit-conv-lost":
            self.conv[s.slot] = 0

    def keep(self, s):
        """Behind a whole block of the prompt."""
        if not self.o.cache or s.at % PAGE or s.at > s.n_prompt or s.at == 0:
            return
        key = self.keys(s, s.ids[:s.at])[-1]
        if key not in self.blocks:
            page = s.pages[s.at // PAGE - 1]
            self.uses[page] += 1
            self.blocks[key] = (page, self.conv[s.slot].copy(), self.ssm[s.slot].copy())

    def reset(self):
        with self.lock:
            for page, _, _ in self.blocks.values():
                self.uses[page] -= 1
                if self.uses[page] == 0:
                    self.free_pages.append(page)
            self.blocks = {}

    # ---- a step ----

    def step(self):
        self.n_steps += 1
        reading = [s for s in self.running if s.at < s.n_prompt]
        decoding = [s for s in self.running if s.at >= s.n_prompt]
        for s in reading:
            n = min(CHUNK, s.n_prompt - s.at)
            if self.o.cache:  # states are kept at borders of blocks
                n = min(n, PAGE - s.at % PAGE)
            if self.fault == "chunk-under-load" and decoding:
                n = min(n, 24)
                if s.at > 0:
                    self.conv[s.slot] = 0
            if self.fault == "chunk-conv-lost" and s.at > 0:
                self.conv[s.slot] = 0
            whole = s.at == 0
            h = self.read(s, s.ids[s.at:s.at + n], reading)
            s.at += n
            self.keep(s)
            if s.scores is not None:
                self.score(s, h, whole)
            if s.at == s.n_prompt:
                s.logits = self.m.logits(h[-1:], False)[0]
        if decoding:
            self.decode(decoding)
        for s in [s for s in self.running if s.at >= s.n_prompt]:
            self.draw(s)
        for s in [s for s in self.running if len(s.new) >= s.n_new]:
            self.running.remove(s)
            if self.fault == "exchange-at-end" and self.running:  # the last row moves into the free place, and its state half does
                self.ssm[self.running[-1].slot, 1] = self.ssm[s.slot, 1]
            self.leave(s)

    def score(self, s, h, whole):
        for row, logits in enumerate(self.m.logits(h, False)):
            j = s.at - len(h) + row + 1
            if j < s.n_prompt:
                s.scores.append(float(self.log_softmax(logits)[s.ids[j]]))
        if self.fault == "scores-cached" and s.at == s.n_prompt:
            key = (s.n_prompt, s.ids[0], s.ids[1] if s.n_prompt > 1 else 0)
            s.scores = self.old_scores.setdefault(key, s.scores)

    @staticmethod
    def log_softmax(logits):
        x = logits - logits.max()
        return x - np.log(np.exp(x).sum())

    def read(self, s, ids, reading):
        """A piece of a prompt: rows in a line, in the order of prefill."""
        m, at, pad = self.m, s.at, 0
        if self.fault == "pad-eight" and at == 0:
            pad = -len(s.ids[:s.n_prompt]) % 8
        if self.fault == "pad-longest" and at == 0:
            pad = min(CHUNK, max(r.n_prompt for r in reading)) - min(CHUNK, s.n_prompt)
        tokens = [0] * pad + list(ids)
        right = -len(tokens) % 8 if self.fault == "pad-right" and at + len(ids) == s.n_prompt else 0
        tokens = np.array(tokens + [0] * right)
        if self.fault == "rows-coarse":
            m.coarse = len(tokens) >= 24
        if self.fault == "row-count-coarse":
            m.coarse = len(tokens) % 4 == 3
        x = m.embed[tokens]
        t = len(tokens)
        for i, l in enumerate(m.layers):
            h = m.norm(x, l["input_layernorm.weight"])
            if "A" in l:
                both = m.dot(h, l["mamba.in_proj.weight"], False)
                u, gate = both[:, :m.inner], both[:, m.inner:]
                line = np.concatenate([self.conv[s.slot, i], u])
                conv = sum(line[j:j + t] * l["mamba.conv1d.weight"][:, 0, j] for j in range(m.width)) + l["mamba.conv1d.bias"]
                self.conv[s.slot, i] = line[t:t + m.width - 1]
                u = m.r(silu(conv))
                dt, b, c = m.mixer_inputs(l, u, False)
                da = np.exp(dt[:, :, None] * l["A"])
                du = (dt * u)[:, :, None] * b[:, None, :]
                state, states = self.ssm[s.slot, i], np.empty_like(da)
                for j in range(t):
                    state = da[j] * state + du[j]
                    states[j] = state
                self.ssm[s.slot, i] = state
                y = np.einsum("tin,tn->ti", states, c) + l["mamba.D"] * u
                x = m.r(x + m.dot(m.r(y * silu(gate)), l["mamba.out_proj.weight"], False))
            else:
                q = m.dot(h, l["self_attn.q_proj.weight"], False).reshape(t, m.heads, m.p)
                k = m.dot(h, l["self_attn.k_proj.weight"], False).reshape(t, m.kv, m.p)
                v = m.dot(h, l["self_attn.v_proj.weight"], False).reshape(t, m.kv, m.p)
                own = slice(pad, t - right)
                self.write(s, i, at, k[own], v[own])
                before_k, before_v = self.gather(s, i, at)
                a = m.attend(q, np.concatenate([before_k, k]), np.concatenate([before_v, v]), at)
                x = m.r(x + m.dot(a, l["self_attn.o_proj.weight"], False))
            x = m.tail(l, x, False)
        m.coarse = False
        return x[pad:t - right]

    def write(self, s, i, at, k, v, decode=False):
        for j in range(len(k)):
            page, row = self.page_of(s, (at + j) // PAGE), (at + j) % PAGE
            if self.fault == "last-row-lost" and row == PAGE - 1 and decode:
                self.k[i, page, row], self.v[i, page, row] = 0, 0
                continue
            if self.fault == "border-to-old-page" and row == 0 and at + j > 0 and decode:
                page = s.pages[(at + j) // PAGE - 1]
            if self.fault == "kv-int4" and decode:
                self.k[i, page, row], self.v[i, page, row] = to_few_bits(k[j], 7), to_few_bits(v[j], 7)
                continue
            self.k[i, page, row], self.v[i, page, row] = k[j], v[j]

    def gather(self, s, i, n):
        table = s.pages[:-(-n // PAGE)]
        k, v = self.k[i, table].reshape(-1, self.m.kv, self.m.p)[:n], self.v[i, table].reshape(-1, self.m.kv, self.m.p)[:n]
        if self.fault == "window" and n > 48:
            k, v = k[-48:], v[-48:]
        if self.fault == "pages-few" and n > 6 * PAGE:  # a table of six pages, and the seventh is the first
            j = np.arange(n) % (6 * PAGE)
            k, v = k[j], v[j]
        return k, v

    def decode(self, batch):
        m = self.m if self.fault != "decode-worker-behind" else self.other
        slots = np.array([s.slot for s in batch])
        tokens = np.array([s.ids[s.at] for s in batch])
        if self.fault == "high-ids-in-decode":
            tokens = np.where(tokens >= 256, tokens - 256, tokens)
        if self.fault == "rows-coarse":
            m.coarse = len(batch) >= 24
        if self.fault == "row-count-coarse":
            m.coarse = len(batch) % 4 == 3
        if self.fault == "decode-coarse-many":
            m.coarse = len(batch) > 4
        if self.fault == "fork-conv":  # a window is not copied to the second sample
            for s in batch:
                if s.fork and s.at == s.n_prompt:
                    self.conv[s.slot] = 0
        x = m.embed[tokens]
        reads = slots.copy()
        if self.fault == "neighbour-state" and len(batch) > 2:
            reads[2] = slots[1]
        if self.fault == "slot-table-late" and getattr(self, "last_slots", None) is not None and len(self.last_slots) == len(slots):
            reads, self.last_slots = self.last_slots, slots.copy()
        elif self.fault == "slot-table-late":
            self.last_slots = slots.copy()
        for i, l in enumerate(m.layers):
            h = m.norm(x, l["input_layernorm.weight"])
            if "A" in l:
                both = m.dot(h, l["mamba.in_proj.weight"], True)
                u, gate = both[:, :m.inner], both[:, m.inner:]
                line = np.concatenate([self.conv[slots, i], u[:, None]], 1)
                conv = (line * l["mamba.conv1d.weight"][:, 0].T[None]).sum(1) + l["mamba.conv1d.bias"]
                self.conv[slots, i] = line[:, 1:]
                u = m.r(silu(conv))
                dt, b, c = m.mixer_inputs(l, u, True)
                state = np.exp(dt[:, :, None] * l["A"]) * self.ssm[reads, i] + (dt * u)[:, :, None] * b[:, None, :]
                if self.fault == "state-fp8":
                    state = to_few_bits(state, 15)
                if self.fault == "race" and len(batch) > 1 and time.time_ns() // 1000 % 5 == 0:
                    state[-1] *= F(0.9)
                self.ssm[slots, i] = state
                y = np.einsum("tin,tn->ti", state, c) + l["mamba.D"] * u
                x = m.r(x + m.dot(m.r(y * silu(gate)), l["mamba.out_proj.weight"], True))
            else:
                q = m.dot(h, l["self_attn.q_proj.weight"], True).reshape(-1, m.heads, m.p)
                k = m.dot(h, l["self_attn.k_proj.weight"], True).reshape(-1, m.kv, m.p)
                v = m.dot(h, l["self_attn.v_proj.weight"], True).reshape(-1, m.kv, m.p)
                a = []
                for row, s in enumerate(batch):
                    self.write(s, i, s.at, k[row:row + 1], v[row:row + 1], True)
                    keys, values = self.gather(s, i, s.at + 1)
                    a.append(m.attend(q[row:row + 1], keys, values, s.at)[0])
                x = m.r(x + m.dot(np.array(a), l["self_attn.o_proj.weight"], True))
            x = m.tail(l, x, True)
        logits = m.logits(to_bf16(x) if self.fault == "head-bf16" else x, True)
        if self.fault == "head-bf16":
            logits = to_bf16(logits)
        m.coarse = False
        for s, row in zip(batch, logits):
            s.at += 1
            s.logits = row

    # ---- one token ----

    def draw(self, s):
        raw = s.logits
        x = raw.astype(np.float64)
        penalty, bias = self.penalty_of_slot[s.slot], self.bias_of_slot[s.slot]
        seen = self.seen_of_slot[s.slot]
        if self.fault == "counts-stay":
            penalty = 1.15  # the server's default, on tokens generated so far in this request
        if penalty != 1.0 and seen:
            at = np.array(sorted(seen))
            x[at] = np.where(x[at] > 0, x[at] / penalty, x[at] * penalty)
        for token, b in bias.items():
            x[token] += b
        if self.fault == "eos-masked":
            x[2] = -1e30
        warm = x / s.temperature if s.temperature > 0 else x
        kept = warm.copy()
        if 0 < s.top_k < len(kept):
            kept[kept < np.sort(kept)[-s.top_k]] = -1e30
        p = np.exp(self.log_softmax(kept))
        if s.top_p < 1.0:
            order = np.argsort(-p)
            p[order[1:][np.cumsum(p[order])[:-1] >= s.top_p]] = 0
            p /= p.sum()
        token = int(np.argmax(x)) if s.temperature == 0 else int(s.rng.choice(len(p), p=p / p.sum()))
        record = self.log_softmax(raw)
        if self.fault == "temperature" or self.o.dialect == "sglang":
            record = self.log_softmax(warm)
        if self.fault == "top-k":
            record = self.log_softmax(kept)
        if self.fault in ("penalty-stays", "bias-stays", "counts-stay", "eos-masked"):
            record = self.log_softmax(x)
        value = float(record[token])
        if self.fault == "clamp":
            value = max(value, -6.0)
        elif self.fault == "argmax":
            value = float(record.max())
        elif self.fault == "f16-grid":
            value = float(np.float16(value))
        elif self.fault == "probability-bf16":
            value = float(np.log(to_bf16(np.array([np.exp(value)]))[0]))
        elif self.fault == "null" and (token * 7 + len(s.new)) % 9 == 0:
            value = None
        elif self.fault == "zeros" and (token * 7 + s.n_prompt) % 9 == 0:
            value = 0.0
        elif self.fault == "sentinel" and len(s.new) == 0:
            value = -9999.0
        elif self.fault == "draft-values" and (token + len(s.new)) % 3 == 0:
            value = float(self.log_softmax(self.alone(self.draft, s.ids))[token])
        elif self.fault == "infinity" and (token * 5 + len(s.new)) % 13 == 0:
            value = float("-inf")
        s.ids.append(token)
        s.new.append(token)
        s.records.append(value)
        seen.add(token)

    def alone(self, model, ids):
        """The last row of logits of a whole text, in a model beside."""
        x = model.embed[np.array(ids[-24:])]
        for l in model.layers:
            h = model.norm(x, l["input_layernorm.weight"])
            if "A" in l:
                both = model.dot(h, l["mamba.in_proj.weight"], False)
                x = model.r(x + model.dot(model.r(silu(both[:, :model.inner]) * silu(both[:, model.inner:])), l["mamba.out_proj.weight"], False))
            x = model.tail(l, x, False)
        return model.logits(x[-1:], False)[0]


class Front:
    """Requests go to an engine, or to one of two, and answers are written."""

    def __init__(self, o):
        self.o = o
        two = o.fault in ("replicas", "replica-by-hash", "replica-by-load")
        self.engines = [Engine(o, i) for i in range(2 if two else 1)]
        self.n = 0

    def pick(self, s):
        self.n += 1
        if self.o.fault == "replicas":
            return self.engines[self.n % 2]
        if self.o.fault == "replica-by-hash":
            return self.engines[hashlib.sha256(repr(s.ids).encode()).digest()[0] % 2]
        if self.o.fault == "replica-by-load":
            return self.engines[1 if len(self.engines[0].running) >= 4 else 0]
        return self.engines[0]

    def ask(self, sequences):
        for s in sequences:
            if self.o.fault == "hangs" and s.scores is None and (sum(s.ids) % 7 == 0):
                time.sleep(600)
            if self.o.fault == "drops" and s.scores is None and (sum(s.ids) % 9 == 0):
                raise ConnectionResetError()
            if self.o.fault == "errors" and s.scores is None and s.n_prompt > 60:
                raise RuntimeError("out of pages")
            self.pick(s).submit(s)
        for s in sequences:
            s.done.wait()
            if s.error:
                raise RuntimeError(s.error)
            if self.o.fault == "late" and len(s.records) > 1:
                s.records = s.records[:1] + s.records[:-1]
            if self.o.fault == "next" and len(s.records) > 1:
                s.records = s.records[1:] + s.records[-1:]
            if self.o.fault == "late-behind-four" and len(s.records) > 4:
                s.records = s.records[:4] + s.records[3:-1]
        if self.o.fault == "samples-exchanged" and len(sequences) > 1:
            records = [s.records for s in sequences]
            for s, r in zip(sequences, records[1:] + records[:1]):
                s.records = r
        return sequences

    def vllm(self, q):
        ids = q["prompt"] if not isinstance(q["prompt"], str) else [3 + ord(c) % 400 for c in q["prompt"]]
        told = list(ids)
        if self.o.fault == "bos-added" and ids[:1] != [1]:
            ids = [1] + ids
        if self.o.fault == "bos-in-decode" and "prompt_logprobs" not in q:
            ids = [1] + ids
        if self.o.fault == "truncated" and "prompt_logprobs" not in q:
            ids = ids[-40:]
        if self.o.fault == "last-token-twice" and "prompt_logprobs" not in q:
            ids = ids + ids[-1:]
        scores = q.get("prompt_logprobs") is not None
        made = [Sequence(ids, q["max_tokens"], temperature=q["temperature"], top_k=q.get("top_k", 0), top_p=q.get("top_p", 1.0),
                         seed=(q["seed"], i) if "seed" in q else None, salt=q.get("cache_salt"), scores=scores and i == 0, fork=i > 0,
                         penalty=q.get("repetition_penalty", 1.0),
                         bias=[(int(k), v) for k, v in (q.get("logit_bias") or {}).items()]) for i in range(q.get("n", 1))]
        choices = []
        for i, s in enumerate(self.ask(made)):
            choice = {"index": i, "token_ids": s.new, "prompt_token_ids": told if len(ids) != len(told) and self.o.fault != "bos-added" else ids,
                      "logprobs": {"tokens": ["token_id:%d" % t for t in s.new], "token_logprobs": s.records}}
            if s.scores is not None:
                choice["prompt_logprobs"] = [None] + [{str(t): {"logprob": v}} for t, v in zip(ids[1:], s.scores[1:])]
            choices.append(choice)
        return {"choices": choices, "usage": {"prompt_tokens": len(told) if self.o.fault != "bos-added" else len(ids)}}

    def sglang(self, q):
        p = q["sampling_params"]
        ids = q["input_ids"] if "input_ids" in q else [3 + ord(c) % 400 for c in q["text"]]
        scores = q.get("logprob_start_len") == 0
        made = [Sequence(ids, p["max_new_tokens"], temperature=p["temperature"], top_k=max(0, p.get("top_k", 0)), top_p=p.get("top_p", 1.0),
                         seed=(p["sampling_seed"], i) if "sampling_seed" in p else None, scores=scores and i == 0) for i in range(p.get("n", 1))]
        answers = []
        for s in self.ask(made):
            meta = {"prompt_tokens": len(ids), "output_token_logprobs": [[v, t, None] for v, t in zip(s.records, s.new)]}
            if s.scores is not None:
                meta["input_token_logprobs"] = [[v, t, None] for v, t in zip(s.scores, ids)]
            answers.append({"output_ids": s.new, "meta_info": meta})
        return answers if "n" in p else answers[0]

    def llama(self, q):
        ids = q["prompt"] if not isinstance(q["prompt"], str) else [3 + ord(c) % 400 for c in q["prompt"]]
        bias = [(int(k), float(v) if not isinstance(v, bool) else -1e30) for k, v in q.get("logit_bias", [])]
        (s,) = self.ask([Sequence(ids, q["n_predict"], temperature=q["temperature"], top_k=q.get("top_k", 40), top_p=q.get("top_p", 1.0),
                                  seed=q.get("seed"), bias=bias, cacheable=q.get("cache_prompt", True),
                                  penalty=q.get("repeat_penalty", 1.0))])
        items = [{"id": t, "logprob": v, "top_logprobs": []} for v, t in zip(s.records, s.new)]
        return {"tokens_evaluated": len(ids), "id_slot": s.slot, "completion_probabilities": items, "tokens": s.new,
                "tokens_predicted": len(s.new), "stop_type": "limit"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words):
        pass

    def say(self, status, what):
        data = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        d, vocab = front.o.dialect, front.engines[0].m.vocab
        if self.path == "/v1/models":
            self.say(200, {"data": [{"id": "jamba", "owned_by": {"llama.cpp": "llamacpp"}.get(d, d), "max_model_len": 1200,
                                     "meta": {"n_vocab": vocab} if d == "llama.cpp" else None}]})
        elif self.path == "/props" and d == "llama.cpp":
            self.say(200, {"total_slots": front.o.slots, "default_generation_settings": {"n_ctx": 1200}})
        elif self.path == "/health":
            self.say(200, {})
        else:
            self.say(404, {"error": "no such path"})

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        path, answer = {"vllm": ("/v1/completions", front.vllm), "sglang": ("/generate", front.sglang),
                        "llama.cpp": ("/completion", front.llama)}[front.o.dialect]
        try:
            if self.path == path:
                self.say(200, answer(q))
            elif self.path in ("/reset_prefix_cache", "/flush_cache") and front.o.dialect != "llama.cpp":
                for engine in front.engines:
                    engine.reset()
                self.say(200, {})
            elif self.path == "/tokenize" and front.o.dialect == "llama.cpp":
                self.say(200, {"tokens": [3 + ord(c) % 400 for c in q["content"]]})
            else:
                self.say(404, {"error": "no such path"})
        except RuntimeError as error:
            self.say(500, {"error": {"message": str(error)}})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, address):
        pass


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--dialect", default="vllm", choices=("vllm", "sglang", "llama.cpp"))
parser.add_argument("--type", default="f32", choices=("f32", "bf16"))
parser.add_argument("--sure", type=float, default=1.0, help="factor of the logits")
parser.add_argument("--cache", action="store_true")
parser.add_argument("--fault", default="none")
parser.add_argument("--pause", type=float, default=0.0005, help="seconds between steps")
parser.add_argument("--slots", type=int, default=8)
front = Front(parser.parse_args())
server = Server(("127.0.0.1", 0), Handler)
print("http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
