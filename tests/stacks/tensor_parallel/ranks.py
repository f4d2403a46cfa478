"""Jamba and Mamba in numpy over tensor-parallel ranks, on one flat list of the tokens of all pieces of a forward.

A rank owns some of the channels, heads, hidden units, experts and words. What ranks add goes around a ring, each
slice of columns from another rank on (`--wire` is the type it travels in); words are gathered. The scan doubles over
the flat list, a decay of zero at each piece's first row keeping pieces apart; attention merges what was cached before
the piece with the piece's own keys by their masses. `at` is where a fault may act: see planted.py.
"""

import json
import os

import numpy as np

from formats import F, FORMATS, silu
from weights import read

LOG2E = F(np.log2(np.e))


class Piece:
    """Tokens of one sequence in one forward, perhaps filled up with rows in front (lead) or behind (tail)."""

    def __init__(self, seq, tokens, phase, slot):
        self.seq, self.tokens, self.phase, self.start, self.n = seq, tokens, phase, seq.done, len(tokens)
        self.slot, self.lead, self.tail, self.dummy, self.left = slot, 0, 0, seq.request is None, {}


def normalised(tensors, load):
    found = {}
    for name, x in tensors.items():
        name = name.split(".", 1)[-1] if name.split(".")[0] in ("model", "backbone") else name
        for old in ("mamba.", "mixer.", "self_attn."):
            name = name.replace(old, "")
        found[name.replace("input_layernorm", "norm")] = FORMATS[load](x) if x.ndim == 2 and "A_log" not in name else x
    return found


class Network:
    def __init__(self, folder, fault, ranks, arith="f32", load="f32", kv="f32", wire="f32", order="ring"):
        c = self.config = json.load(open(os.path.join(folder, "config.json")))
        self.at, self.ranks, self.arith, self.kv = fault.at, ranks, arith, FORMATS[kv]
        self.wire, self.order = FORMATS[wire], np.random.default_rng() if order == "any" else None
        w = normalised(read(folder), load)
        self.embedding = w.get("embed_tokens.weight", w.get("embeddings.weight"))
        head = self.at("head-weight", w.get("lm_head.weight", self.embedding), net=self)
        self.last_norm = self.at("last-norm", w.get("final_layernorm.weight", w.get("norm_f.weight")))
        split = [(k.split(".", 2), x) for k, x in w.items() if k.startswith("layers.")]
        self.layers = [{k[2]: x for k, x in split if k[1] == str(i)} for i in range(c["num_hidden_layers"])]
        self.mambas = [i for i, x in enumerate(self.layers) if "A_log" in x]
        self.attentions = [i for i, x in enumerate(self.layers) if "q_proj.weight" in x]
        for i, x in enumerate(self.layers):
            x.update(self.at("weights", {}, w=x, layer=i, net=self))
        self.eps = c.get("rms_norm_eps", c.get("layer_norm_epsilon"))
        self.heads, self.kv_heads = c.get("num_attention_heads", 1), c.get("num_key_value_heads", 1)
        self.size, inner = c["hidden_size"] // self.heads, self.layers[self.mambas[0]]["A_log"].shape
        self.n, self.width = inner[1], self.layers[self.mambas[0]]["conv1d.weight"].shape[2] - 1
        self.ends = c["eos_token_id"] if isinstance(c["eos_token_id"], list) else [c["eos_token_id"]]
        shares = lambda count: np.array_split(np.arange(count), ranks)  # noqa: E731
        self.channels, self.own_heads = shares(inner[0]), shares(self.heads)
        group = self.heads // self.kv_heads
        self.own_kv = [np.unique(h // group) for h in self.own_heads]
        # For each head of a rank, which of the rank's keys it looks at.
        self.kv_of = [np.searchsorted(kv, h // group) for h, kv in zip(self.own_heads, self.own_kv)]
        self.zeros = [(np.zeros((self.width, len(x)), F), np.zeros((len(x), self.n), F)) for x in self.channels]
        self.parts = [[self.at("shard", self.shard(i, r), layer=i, rank=r) for r in range(ranks)]
                      for i in range(len(self.layers))]
        self.words = [head[x] for x in shares(len(head))]
        self.guesses, self.drawing = {}, False

    def shard(self, i, r):
        """What rank r has of a layer."""
        w, x, inner = self.layers[i], {}, len(self.layers[self.mambas[0]]["A_log"])
        own = self.channels[r]
        both = np.concatenate([own, own + inner])
        flat = lambda heads: (heads[:, None] * self.size + np.arange(self.size)).ravel()  # noqa: E731
        hidden = np.array_split(np.arange(len(w.get("feed_forward.gate_proj.weight", ()))), self.ranks)[r]
        rows = {"in_proj": both, **dict.fromkeys(("conv1d", "dt_proj", "A_log", "D"), own),
                "q_proj": flat(self.own_heads[r]), **dict.fromkeys(("k_proj", "v_proj"), flat(self.own_kv[r])),
                **dict.fromkeys(("feed_forward.gate_proj", "feed_forward.up_proj"), hidden)}
        columns = {"x_proj": own, "out_proj": own, "o_proj": flat(self.own_heads[r]), "feed_forward.down_proj": hidden}
        for name, t in w.items():
            base = name.removesuffix(".weight").removesuffix(".bias")
            if base in rows:
                x[name] = t[rows[base]]
            elif base in columns and t.ndim == 2:
                x[name] = t[:, columns[base]]
            elif "experts." not in name or int(name.split("experts.")[1].split(".")[0]) % self.ranks == r:
                x[name] = t
        return x

    def next_by_head(self, token):
        """What the head alone would say after a token."""
        if token not in self.guesses:
            x = self.norm(self.embedding[[token]], self.last_norm)[0]
            self.guesses[token] = int(np.argmax(np.concatenate([w @ x for w in self.words])))
        return self.guesses[token]

    def product(self, x, w):
        near = FORMATS[self.at("arith", self.arith, net=self)]
        x, w = near(x), near(w)
        half = x.shape[1] // 2
        y = x[:, half:] @ w[:, half:].T + x[:, :half] @ w[:, :half].T
        return near(y) if near in (FORMATS["bf16"], FORMATS["f16"]) else y

    def reduce(self, parts, what, layer):
        """The ranks' sum: around a ring, where the slice j of the columns sets out from rank j."""
        parts, n = self.at("reduce", parts, what=what, layer=layer, net=self), len(parts)
        out, wire = np.empty_like(parts[0]), self.at("wire", self.wire, net=self, what=what)
        ends = [out.shape[1] * j // n for j in range(n + 1)]
        for j, slot in enumerate(slice(*e) for e in zip(ends, ends[1:])):
            order = [(j + s) % n for s in range(n)] if self.order is None else self.order.permutation(n)
            total = parts[order[0]][:, slot]
            for r in order[1:]:
                total = wire(total) + wire(parts[r][:, slot])
            out[:, slot] = total
        return out

    def norm(self, x, w):
        eps = F(self.at("eps", self.eps, net=self))
        return (x / np.sqrt(np.einsum("rk,rk->r", x, x) / F(x.shape[1]) + eps)[:, None] * w).astype(F)

    def scan(self, a, b):
        """Inclusive scan of h = a h + b over the flat list, by doubling."""
        step = 1
        while step < self.longest:
            b[step:] += a[step:] * b[:-step]
            a[step:] *= a[:-step]
            step *= 2
        return b

    def mamba(self, i, x, pieces, engine):
        k, ranks = self.width, range(self.ranks)
        before = [self.before(i, r, self.parts[i][r], x, pieces, engine) for r in ranks]
        sums = self.reduce([self.product(u, self.parts[i][r]["x_proj.weight"]) for r, (u, _, _) in enumerate(before)],
                           "x_proj", i)
        w = self.layers[i]
        low, b, c = np.split(sums, [-2 * self.n, -self.n], 1)
        if "dt_layernorm.weight" in w:
            low, b, c = (self.at("inner-norm", self.norm(q, w[m + "_layernorm.weight"]), raw=q, which=m, layer=i)
                         for q, m in ((low, "dt"), (b, "b"), (c, "c")))
        parts = []
        for r, (u, gate, lines) in enumerate(before):
            w = self.parts[i][r]
            dt = self.product(low, w["dt_proj.weight"]) + w["dt_proj.bias"]
            dt = self.at("dt", np.logaddexp(dt, F(0)).astype(F), raw=dt, layer=i, rank=r, net=self)
            dt[self.at("filling", self.filling, net=self, layer=i)] = 0
            rate = self.at("rate", np.exp(w["A_log"]) * LOG2E, rank=r)
            a = self.at("decay", np.exp2(-dt[..., None] * rate), net=self, layer=i, rank=r)
            inputs = (dt * u)[..., None] * b[:, None]
            for p in pieces:
                if self.at("apart", True, piece=p, layer=i, net=self, rank=r):
                    h = engine.carried(p, i, r, 1)
                    inputs[p.span.start] += a[p.span.start] * h
                    a[p.span.start] = 0
            states = self.at("states", self.scan(a, inputs), net=self, layer=i, rank=r, pieces=pieces)
            y = np.einsum("tdn,tn->td", states, c) + self.at("skip", u * w["D"], net=self, layer=i, rank=r)
            parts.append(self.product((y * self.at("gate", silu(gate), raw=gate, net=self, layer=i)).astype(F),
                                      w["out_proj.weight"]))
            for p, line in zip(pieces, lines):
                p.left[i, r] = line, states[p.span]
        return self.reduce(parts, "out_proj", i) + self.layers[i].get("out_proj.bias", F(0))

    def before(self, i, r, w, x, pieces, engine):
        """The convolution's output, the gate, and for each piece its window and its own inputs in one line."""
        k, d = self.width, len(self.channels[r])
        both = self.product(x, w["in_proj.weight"]) + w.get("in_proj.bias", F(0))
        raw, lines = both[:, :d], []
        for p in pieces:
            window = self.at("window", engine.carried(p, i, r, 0), piece=p, layer=i, rank=r, raw=raw, net=self)
            lines.append(np.concatenate([window, raw[p.span]]))
        flat = np.concatenate(lines)
        u = sum(flat[self.taps + j] * w["conv1d.weight"][:, 0, j] for j in reversed(range(k + 1)))
        u = self.at("conv", silu(u + w.get("conv1d.bias", F(0))), raw=u, w=w, net=self, layer=i)
        return u, both[:, d:], lines

    def attention(self, i, x, pieces, engine):
        parts = []
        for r in range(self.ranks):
            w = self.parts[i][r]
            q, k, v = (self.product(x, w[m + "_proj.weight"]).reshape(len(x), -1, self.size) for m in "qkv")
            k, v = (self.at("stored", self.kv(z), which=m, rank=r) for m, z in (("k", k), ("v", v)))
            q, k = (self.at(m, z, where=self.where, net=self) for m, z in (("query", q), ("key", k)))
            out = np.zeros((len(x), len(self.own_heads[r]), self.size), F)
            for p in pieces:
                engine.store(i, r, p, k[p.own], v[p.own])
            for j, p in enumerate(pieces):
                keys, values, where = engine.cached(i, r, p)
                found = [(k[p.own], v[p.own], p.start + np.arange(p.n))]
                if len(keys):
                    found.insert(0, (keys, values, where))
                found = self.at("contexts", found, piece=p, pieces=pieces[:j], k=k, v=v)
                out[p.own] = self.attend(i, r, p, q[p.own], found)
            parts.append(self.product(out.reshape(len(x), -1), w["o_proj.weight"]))
        return self.reduce(parts, "o_proj", i)

    def attend(self, i, r, p, q, found):
        """Softmax over each part of the context by itself; parts are merged by their greatest scores and masses."""
        query, masses = p.start + np.arange(p.n), []
        for keys, values, where in found:
            s = np.einsum("thd,khd->htk", q, keys[:, self.kv_of[r]]) * F(self.at("scale", self.size**-0.5, net=self))
            s = self.at("scores", s, query=query, where=where, piece=p, net=self)
            seen = self.at("seen", where <= query[:, None], query=query, where=where, piece=p, page=p.page, net=self)
            s = np.where(seen, s, F(-1e30))
            top = s.max(-1)
            e = np.exp2((s - top[..., None]) * LOG2E) * seen
            masses.append((top, e.sum(-1), np.einsum("htk,khd->htd", e, values[:, self.kv_of[r]])))
        masses = self.at("masses", masses, piece=p, net=self)
        most = np.max([top for top, *_ in masses], 0)
        total = sum(mass * np.exp(top - most) for top, mass, _ in masses)
        out = sum(y * np.exp(top - most)[..., None] for top, _, y in masses)
        return (out / np.maximum(total, F(1e-30))[..., None]).transpose(1, 0, 2)

    def feed(self, i, x):
        def gated(w, name, x):
            up = silu(self.product(x, w[name + "gate_proj.weight"])) * self.product(x, w[name + "up_proj.weight"])
            return self.product(up, w[name + "down_proj.weight"])

        w = self.layers[i]
        if "feed_forward.router.weight" not in w:
            return self.reduce([gated(part, "feed_forward.", x) for part in self.parts[i]], "down_proj", i)
        s = self.product(x, w["feed_forward.router.weight"])
        share = np.exp(s - s.max(1, keepdims=True))
        share = share / share.sum(1, keepdims=True)
        least = np.sort(share, 1)[:, -self.config["num_experts_per_tok"]][:, None]
        share = self.at("share", share * (share >= least), scores=s, net=self, layer=i)
        parts = [np.zeros_like(x) for _ in range(self.ranks)]
        for e in range(s.shape[1]):
            rows, r = np.flatnonzero(share[:, e]), e % self.ranks
            if len(rows):
                parts[r][rows] += share[rows, e, None] * gated(self.parts[i][r], f"feed_forward.experts.{e}.", x[rows])
        return self.reduce(parts, "experts", i)

    def forward(self, pieces, engine):
        """For each piece its logits: of all tokens where it draws, else of the last; ranks have words of their own."""
        tokens, rows, filling, where, taps = [], 0, [], [], []
        for j, p in enumerate(pieces):
            first, rows = rows, rows + p.lead + p.n + p.tail
            p.span, p.own = slice(first, rows), slice(first + p.lead, first + p.lead + p.n)
            tokens += [0] * p.lead + p.tokens + [0] * p.tail
            filling += [True] * p.lead + [False] * p.n + [True] * p.tail
            where += list(range(p.start - p.lead, p.start + p.n + p.tail))
            taps += range(first + j * self.width, rows + j * self.width)
        self.taps, self.filling, self.where = np.array(taps), np.array(filling), np.array(where)
        self.pieces = pieces
        self.rows = sum(p.phase == "decode" and not p.dummy for p in pieces)
        self.drawing = all(p.phase == "decode" for p in pieces)
        self.longest = max(p.span.stop - p.span.start for p in pieces)
        self.is_end = np.isin(tokens, self.ends)
        x = self.at("embedded", self.embedding[tokens], net=self)
        for i, w in enumerate(self.layers):
            mixer = self.mamba if i in self.mambas else self.attention
            x = x + mixer(i, self.norm(x, w["norm.weight"]), pieces, engine)
            if "pre_ff_layernorm.weight" in w:
                x = x + self.feed(i, self.norm(x, w["pre_ff_layernorm.weight"]))
        keep = [range(p.own.stop - (p.n if p.phase == "decode" else 1), p.own.stop) for p in pieces]
        x = self.norm(x[np.concatenate(keep)], self.last_norm)
        x = self.at("head-input", x, net=self)
        shards = [self.at("logits", self.product(x, w), net=self, rank=r) for r, w in enumerate(self.words)]
        logits = np.concatenate(self.at("gathered", shards, net=self), 1)
        return np.split(logits, np.cumsum([len(k) for k in keep])[:-1])
