"""Jamba and Mamba in numpy over pieces of sequences: rows of all pieces in one product, each piece scanned by itself.

Products add even inputs and odd ones; the scan goes token by token; attention is split by pairs of pages, and the
splits are merged at the end. `at` is where a fault may act: see faults.py.
"""

import json
import os

import numpy as np

from formats import F, FORMATS, silu
from weights import read


class Piece:
    """Tokens of one sequence in one forward, perhaps with filling in front (lead) and behind (tail)."""

    def __init__(self, seq, tokens, phase):
        self.seq, self.tokens, self.phase, self.start, self.n = seq, tokens, phase, seq.done, len(tokens)
        self.lead, self.tail, self.before, self.states, self.rows = 0, 0, None, {}, None


class Network:
    def __init__(self, folder, fault, arith, load, kv):
        c = self.config = json.load(open(os.path.join(folder, "config.json")))
        self.at, self.arith, self.kv = fault.at, arith, FORMATS[kv]
        w = {}
        for name, x in read(folder).items():
            name = name.split(".", 1)[-1] if name.split(".")[0] in ("model", "backbone") else name
            for old in ("mamba.", "mixer.", "self_attn."):
                name = name.replace(old, "")
            w[name.replace("input_layernorm", "norm")] = FORMATS[load](x) if x.ndim == 2 else x
        self.embedding = w.get("embed_tokens.weight", w.get("embeddings.weight"))
        self.head = self.at("head-weight", w.get("lm_head.weight", self.embedding), net=self)
        self.embedding = self.at("embedding", self.embedding, net=self)
        self.last_norm = w.get("final_layernorm.weight", w.get("norm_f.weight"))
        split = [(k.split(".", 2), x) for k, x in w.items() if k.startswith("layers.")]
        count = c["num_hidden_layers"]
        self.layers = [{k[2]: x for k, x in split if k[1] == str(i)} for i in range(count)]
        self.mambas = [i for i, x in enumerate(self.layers) if "A_log" in x]
        self.attentions = [i for i, x in enumerate(self.layers) if "q_proj.weight" in x]
        for i, x in enumerate(self.layers):
            x.update(self.at("weights", {}, w=x, layer=i, net=self))
        self.eps = c.get("rms_norm_eps", c.get("layer_norm_epsilon"))
        self.heads, self.kv_heads = c.get("num_attention_heads", 1), c.get("num_key_value_heads", 1)
        self.size = c["hidden_size"] // self.heads
        first = self.layers[self.mambas[0]]
        self.inner, self.width = first["A_log"].shape, first["conv1d.weight"].shape[2] - 1
        self.ends = c["eos_token_id"] if isinstance(c["eos_token_id"], list) else [c["eos_token_id"]]
        self.decoding, self.zeros = 0, (np.zeros((self.width, self.inner[0]), F), np.zeros(self.inner, F))

    def product(self, x, w):
        arith = self.at("arith", self.arith, net=self, rows=len(x))
        near = FORMATS[arith]
        x, w = near(x), near(w)
        y = x[:, ::2] @ w[:, ::2].T + x[:, 1::2] @ w[:, 1::2].T
        return near(y) if arith in ("bf16", "f16") else y

    def norm(self, x, w):
        eps = self.at("eps", self.eps)
        return (x * w / np.sqrt(np.einsum("rk,rk->r", x, x)[:, None] / F(x.shape[1]) + F(eps))).astype(F)

    def scan(self, a, b, h):
        states = np.empty_like(b)
        for t in range(len(b)):
            h = states[t] = a[t] * h + b[t]
        return states

    def mamba(self, i, w, x, pieces, engine):
        k, both = self.width, self.product(x, w["in_proj.weight"]) + w.get("in_proj.bias", F(0))
        raw, gate = both[:, : self.inner[0]], both[:, self.inner[0] :]
        u, lines = np.empty_like(raw), []
        for p in pieces:
            window, p.carry = engine.carried(p, i)
            line = np.concatenate([window, raw[p.rows]])
            lines.append(line)
            u[p.rows] = sum(line[j : j + len(line) - k] * w["conv1d.weight"][:, 0, j] for j in range(k + 1))
        u = self.at("conv", silu(u + w.get("conv1d.bias", F(0))), w=w, raw=u, net=self)
        dt, b, c = np.split(self.product(u, w["x_proj.weight"]), [-2 * self.inner[1], -self.inner[1]], 1)
        if "dt_layernorm.weight" in w:
            dt, b, c = (
                self.at("inner-norm", self.norm(q, w[n + "_layernorm.weight"]), raw=q, which=n, layer=i)
                for q, n in ((dt, "dt"), (b, "b"), (c, "c"))
            )
        dt = np.logaddexp(self.product(dt, w["dt_proj.weight"]) + w["dt_proj.bias"], F(0)).astype(F)
        dt = self.at("dt", dt, net=self, pieces=pieces)
        a = self.at("decay", np.exp(-dt[..., None] * np.exp(w["A_log"])), net=self, pieces=pieces, dt=dt, w=w)
        b = (dt * u)[..., None] * b[:, None]
        y = np.empty_like(u)
        for p, line in zip(pieces, lines):
            states = self.scan(a[p.rows], b[p.rows], p.carry)
            states = self.at("states", states, piece=p, layer=i, net=self, b=b[p.rows])
            y[p.rows] = np.einsum("tis,ts->ti", states, c[p.rows])
            p.states[i] = line, states
        y = y + self.at("skip", u * w["D"], net=self)
        y = y * self.at("gate", silu(gate), raw=gate, net=self)
        return self.product(y.astype(F), w["out_proj.weight"]) + w.get("out_proj.bias", F(0))

    def attention(self, i, w, x, pieces, engine):
        shape = (len(x), -1, self.size)
        q, k, v = (self.product(x, w[n + "_proj.weight"]).reshape(shape) for n in "qkv")
        k, v = (self.at("stored", self.kv(z), which=n) for n, z in (("k", k), ("v", v)))
        out = np.zeros((len(x), self.heads * self.size), F)
        for p in pieces:
            own = slice(p.rows.start + p.lead, p.rows.start + p.lead + p.n)
            engine.keys.write(i, p, k[own], v[own])
        for p in pieces:
            own = slice(p.rows.start + p.lead, p.rows.start + p.lead + p.n)
            keys, values, where = engine.keys.read(i, p)
            out[own] = self.attend(i, p, q[own], keys, values, where, 2 * engine.keys.page)
        return self.product(out, w["o_proj.weight"])

    def attend(self, i, p, q, keys, values, where, length):
        """Softmax over splits of so many keys; each has its maximum, its sum and its output."""
        query, group = p.start + np.arange(p.n), self.heads // self.kv_heads
        q = self.at("query", q, where=query, net=self)
        keys = self.at("key", keys, where=where, net=self)
        keys, values = np.repeat(keys, group, 1), np.repeat(values, group, 1)
        s = np.einsum("thd,khd->htk", q, keys) * F(self.at("scale", self.size**-0.5, net=self))
        s = self.at("scores", s, query=query, where=where)
        seen = self.at("seen", where <= query[:, None], query=query, where=where, page=length // 2, piece=p)
        s = np.where(seen, s, F(-1e30))
        parts = []
        for at in range(0, s.shape[2], length):
            top = s[..., at : at + length].max(-1)
            e = np.exp(s[..., at : at + length] - top[..., None]) * seen[:, at : at + length]
            parts.append((top, e.sum(-1), np.einsum("htk,khd->htd", e, values[at : at + length])))
        parts = self.at("splits", parts)
        most = np.max([top for top, *_ in parts], 0)
        total = sum(mass * np.exp(top - most) for top, mass, _ in parts)
        out = sum(y * np.exp(top - most)[..., None] for top, _, y in parts) / np.maximum(total, F(1e-30))[..., None]
        return self.at("heads", out.transpose(1, 0, 2), net=self).reshape(p.n, -1)

    def feed(self, w, x):
        def gated(name, x):
            up = silu(self.product(x, w[name + "gate_proj.weight"])) * self.product(x, w[name + "up_proj.weight"])
            return self.product(up, w[name + "down_proj.weight"])

        if "feed_forward.router.weight" not in w:
            return gated("feed_forward.", x)
        s = self.product(x, w["feed_forward.router.weight"])
        share = np.exp(s - s.max(1, keepdims=True))
        share = share / share.sum(1, keepdims=True)
        count = self.at("experts", self.config["num_experts_per_tok"])
        least = np.sort(share, 1)[:, -count][:, None]
        share = self.at("share", share * (share >= least), scores=s)
        out = np.zeros_like(x)
        for e in range(s.shape[1]):
            rows = np.flatnonzero(share[:, e])
            if len(rows):
                out[rows] += share[rows, e, None] * gated(f"feed_forward.experts.{e}.", x[rows])
        return out

    def forward(self, pieces, engine):
        """Logits of the real tokens of decoding pieces, and of the last one of others."""
        tokens, count = [], 0
        for p in pieces:
            tokens += [0] * p.lead + p.tokens + [0] * p.tail
            p.rows, count = slice(count, len(tokens)), len(tokens)
        self.decoding = len(pieces) if pieces[0].phase == "decode" else 0
        self.longest = max(p.n for p in pieces)
        self.is_end = np.isin(tokens, self.ends)
        x = self.at("embedded", self.embedding[tokens], net=self)
        for i, w in enumerate(self.layers):
            w = self.at("layer", w, layer=i, net=self)
            mixer = self.mamba if i in self.mambas else self.attention
            x = x + mixer(i, w, self.norm(x, w["norm.weight"]), pieces, engine)
            if "pre_ff_layernorm.weight" in w:
                x = x + self.feed(w, self.norm(x, w["pre_ff_layernorm.weight"]))
        keep = [p.rows.start + p.lead + t for p in pieces for t in range(0 if self.decoding else p.n - 1, p.n)]
        x = self.at("head-input", self.norm(x[keep], self.last_norm), net=self)
        logits = self.at("logits", self.product(x, self.head), net=self)
        sizes = [p.n if self.decoding else 1 for p in pieces]
        return np.split(logits, np.cumsum(sizes)[:-1])
