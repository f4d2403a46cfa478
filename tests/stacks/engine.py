#!/usr/bin/env python3
"""A serving engine for Jamba that is not ours, wrong in one way if asked: what `lockstep sweep --suspect` is tried on.

It answers to `generate` with the options of lockstep (docs/reference/diagnosis.md has the protocol), computes in numpy with an
order of sums of its own, and has what such engines have: state slots, KV in pages, prompts in chunks, continuous
batching, a prefix cache, preemption. `--bug NAME` plants a fault (cases.py lists them), `--noise X` makes its arithmetic
rougher, `--deaf A,B` names levers that it takes and does not obey. With `serve` it stays and answers trials on a pipe.
"""
import hashlib
import json
import os
import struct
import sys

import numpy as np

F = np.float32


def read_weights(directory):
    weights = {}
    for name in sorted(os.listdir(directory)):
        if not name.startswith("model") or not name.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, name), "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
            data = file.read()
        for key, t in header.items():
            if key == "__metadata__":
                continue
            raw = data[t["data_offsets"][0] : t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                array = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(F)
            else:
                array = np.frombuffer(raw, {"F32": F, "F16": np.float16}[t["dtype"]]).astype(F)
            weights[key] = array.reshape(t["shape"]).copy()
    return weights


def bf16(x):
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(F)


def fp8(x):
    """e4m3 with one scale a row."""
    scale = np.abs(x).max(-1, keepdims=True) / 448 + 1e-30
    y = x / scale
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(y), 2.0**-6))) - 3)
    return (np.round(y / step) * step * scale).astype(F)


def e5m2(x):
    """Without a scale."""
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-14))) - 2)
    return (np.round(x / step) * step).astype(F)


def int8(x):
    scale = np.abs(x).max(-1, keepdims=True) / 127 + 1e-30
    return (np.round(x / scale) * scale).astype(F)


def silu(x):
    return x / (1 + np.exp(-x))


class Model:
    def __init__(self, directory, bug):
        self.c = c = json.load(open(os.path.join(directory, "config.json")))
        self.w = w = read_weights(directory)
        self.bug = bug
        self.n_layers, self.hidden = c["num_hidden_layers"], c["hidden_size"]
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.p = self.hidden // self.heads
        self.inner, self.n = c["mamba_expand"] * self.hidden, c["mamba_d_state"]
        self.rank = -(-self.hidden // 16) if c["mamba_dt_rank"] == "auto" else c["mamba_dt_rank"]
        self.width = c["mamba_d_conv"]
        self.vocab, self.eos, self.bos = c["vocab_size"], c["eos_token_id"], c["bos_token_id"]
        self.eps = F(1e-5 if bug == "norm-eps" else c["rms_norm_eps"])
        self.layers = []
        for i in range(self.n_layers):
            pre = f"model.layers.{i}."
            self.layers.append({k[len(pre) :]: v for k, v in w.items() if k.startswith(pre)})
        self.is_attention = ["self_attn.q_proj.weight" in l for l in self.layers]
        self.head = w["model.embed_tokens.weight"] if c["tie_word_embeddings"] else w["lm_head.weight"]
        self.embed = w["model.embed_tokens.weight"]
        self.final = w["model.final_layernorm.weight"]
        self.spoil(bug)
        for l in self.layers:
            if "mamba.A_log" in l:
                l["A"] = -np.exp(l["mamba.A_log"])

    def spoil(self, bug):
        """Faults that lie in the weights."""
        rng = np.random.default_rng(7)
        m = [i for i in range(self.n_layers) if not self.is_attention[i]]
        name, _, arg = bug.partition(":")
        layer = self.layers[int(arg)] if name.startswith("layer-") else None
        if name == "layer-swapped":  # another layer's tensors
            other = next(i for i in m[::-1] if i != int(arg))
            for k, v in self.layers[other].items():
                if k in layer and layer[k].shape == v.shape:
                    layer[k] = v
        elif name == "layer-int8":
            for k, v in layer.items():
                if v.ndim == 2 and "A_log" not in k:
                    layer[k] = int8(v)
        elif name == "layer-fp8":
            for k, v in layer.items():
                if v.ndim == 2 and "A_log" not in k:
                    layer[k] = fp8(v)
        elif name == "layer-stale":
            for k, v in layer.items():
                layer[k] = (v * (1 + 0.02 * rng.standard_normal(v.shape))).astype(F)
        elif name == "layer-zero-ffn":
            for k in [k for k in layer if "down_proj" in k]:
                layer[k] = np.zeros_like(layer[k])
        elif name == "layer-norm-ones":
            layer["input_layernorm.weight"] = np.ones_like(layer["input_layernorm.weight"])
        elif name == "layer-no-d":
            layer["mamba.D"] = np.zeros_like(layer["mamba.D"])
        elif name == "stale-weights":
            for l in self.layers:
                for k, v in l.items():
                    l[k] = (v * (1 + 0.01 * rng.standard_normal(v.shape))).astype(F)
        elif name == "stale-norms":
            for l in self.layers:
                l["input_layernorm.weight"] = l["input_layernorm.weight"] * F(1.05)
        elif name == "all-int8":
            for l in self.layers:
                for k, v in l.items():
                    if v.ndim == 2 and "A_log" not in k:
                        l[k] = int8(v)
        elif name == "head-int8":
            self.head = int8(self.head)
        elif name == "head-fp8":
            self.head = fp8(self.head)
        elif name == "head-stale":
            self.head = (self.head * (1 + 0.02 * rng.standard_normal(self.head.shape))).astype(F)


def rms(x, w, eps):
    return x * (1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)) * w


class Engine:
    def __init__(self, model, o):
        self.m, self.o, self.bug = model, o, o["bug"]
        self.name, _, arg = self.bug.partition(":")
        self.arg = int(arg) if arg.lstrip("-").isdigit() else 0
        m = model
        self.batch, self.chunk, self.page = o["batch"], o["chunk"] or 1 << 30, o["page"]
        self.slots = max(o["slots"], 1) if o["slots"] else self.batch
        if self.slots > 1 << 17:
            raise SystemExit("engine: out of memory")
        n_m = [i for i in range(m.n_layers) if not m.is_attention[i]]
        self.conv = {i: np.zeros((self.slots, m.width - 1, m.inner), F) for i in n_m}
        self.ssm = {i: np.zeros((self.slots, m.inner, m.n), F) for i in n_m}
        self.kv = {}  # slot -> layer -> list of pages, each [page][2][kv][p]
        self.free = list(range(self.slots))
        if o["policy"] == "highest":
            self.free.reverse()
        base = min(o["slot-base"], self.slots - 1)
        if base:
            self.free.remove(base)
            self.free.insert(0, base)
        self.cache, self.served, self.rng = {}, 0, np.random.default_rng(None)
        self.block = o["block"]
        self.tick_no = 0
        self.spill = {}

    # ---- arithmetic ----

    def rough(self, x, salt):
        n = self.o["noise"]
        if n <= 0:
            return x
        if self.o["noise-random"]:
            r = self.rng.standard_normal(x.shape)
        else:
            key = hashlib.blake2b(x.tobytes(), digest_size=8, salt=salt.to_bytes(8, "little")).digest()
            r = np.random.default_rng(int.from_bytes(key, "little")).standard_normal(x.shape)
        return (x * (1 + n * r)).astype(F)

    def act(self, x):
        return bf16(x) if self.o["rounding"] == "bf16" else x

    def address(self, slot):
        """The slot that is really touched."""
        if self.name == "slot-wrap":
            return slot % self.arg
        if self.name == "slot-wrap-one":
            return 0 if slot >= self.arg else slot
        return slot

    def mamba(self, i, l, x, seq, decode):
        m = self.m
        s, sw = self.address(seq["slot"]), self.address(seq["slot"])
        if self.name == "slot-write-wrap" and not decode:
            sw = sw % self.arg
        if self.name == "other-slot-decode" and decode and len(self.running) > 1:
            others = [r["slot"] for r in self.running]
            s = others[(others.index(seq["slot"]) + 1) % len(others)]
        uz = x @ l["mamba.in_proj.weight"].T
        u, z = uz[:, : m.inner], uz[:, m.inner :]
        tail = self.conv[i][s]
        first = seq["at"] == 0
        if self.name == "conv-tail-lost" and not first and not decode:
            tail = np.zeros_like(tail)
        if self.name == "conv-handover" and decode and seq["at"] == len(seq["prompt"]):
            tail = np.zeros_like(tail)
        long = np.concatenate([tail, u])
        w = l["mamba.conv1d.weight"][:, 0, :]
        y = sum(long[j : j + len(x)] * w[:, j] for j in range(m.width))
        if "mamba.conv1d.bias" in l:
            y = y + l["mamba.conv1d.bias"]
        if self.name == "conv-short" and len(x) < m.width - 1 and not decode:
            keep = np.concatenate([np.zeros((m.width - 1 - len(x), m.inner), F), u])
        elif self.name == "conv-off-by-one" and not decode:
            keep = long[-m.width : -1] if len(long) >= m.width else long[-(m.width - 1) :]
        else:
            keep = long[-(m.width - 1) :]
        u = self.act(silu(y))
        xp = u @ l["mamba.x_proj.weight"].T
        r, n = m.rank, m.n
        dt = rms(xp[:, :r], l["mamba.dt_layernorm.weight"], m.eps)
        b = rms(xp[:, r : r + n], l["mamba.b_layernorm.weight"], m.eps)
        c = rms(xp[:, r + n :], l["mamba.c_layernorm.weight"], m.eps)
        if self.name == "no-inner-norms":
            dt, b, c = xp[:, :r], xp[:, r : r + n], xp[:, r + n :]
        dt = dt @ l["mamba.dt_proj.weight"].T + l["mamba.dt_proj.bias"]
        dt = np.logaddexp(F(0), dt)
        h = self.ssm[i][s].astype(F)
        if self.name == "scan-chunk-reset" and not first and not decode:
            h = np.zeros_like(h)
        if self.name == "scan-handover" and decode and seq["at"] == len(seq["prompt"]):
            h = np.zeros_like(h)
        if self.name == "state-length" and seq["at"] <= self.arg < seq["at"] + len(x):
            h = np.zeros_like(h)
        if self.name == "decode-state-fp8" and decode:
            h = fp8(h)
        if self.name == "decode-state-bf16" and decode:
            h = bf16(h)
        out = np.empty_like(u)
        for t in range(len(x)):
            if self.name == "eos-resets" and seq["window"][t] == m.eos:
                h = np.zeros_like(h)
            h = np.exp(dt[t][:, None] * l["A"]) * h + (dt[t] * u[t])[:, None] * b[t][None, :]
            out[t] = h @ c[t] + l["mamba.D"] * u[t]
        self.conv[i][sw] = keep
        self.ssm[i][sw] = h
        return self.act(out * silu(z)) @ l["mamba.out_proj.weight"].T

    def attention(self, i, l, x, seq, decode):
        m = self.m
        q = (x @ l["self_attn.q_proj.weight"].T).reshape(len(x), m.heads, m.p)
        k = (x @ l["self_attn.k_proj.weight"].T).reshape(len(x), m.kv, m.p)
        v = (x @ l["self_attn.v_proj.weight"].T).reshape(len(x), m.kv, m.p)
        if self.name in ("rope", "rope-decode-shift"):
            pos = seq["at"] + np.arange(len(x))
            if self.name == "rope-decode-shift":
                pos = pos + 0
            q, k = rope(q, pos), rope(k, pos)
        if self.o["kv"] == "f16":
            k, v = k.astype(np.float16).astype(F), v.astype(np.float16).astype(F)
        if self.name == "kv-fp8":
            k, v = fp8(k), fp8(v)
        if self.name == "kv-int8":
            k, v = int8(k), int8(v)
        if self.name == "kv-e5m2":
            k, v = e5m2(k), e5m2(v)
        if self.name == "kv-int8-token":
            k, v = (int8(a.reshape(len(a), -1)).reshape(a.shape) for a in (k, v))
        store = self.kv[seq["slot"]].setdefault(i, [np.zeros((0, m.kv, m.p), F), np.zeros((0, m.kv, m.p), F)])
        if self.name == "kv-chunk-lost" and seq["at"] and not decode:
            store[0], store[1] = np.zeros_like(store[0]), np.zeros_like(store[1])
        store[0], store[1] = np.concatenate([store[0][: seq["at"]], k]), np.concatenate([store[1][: seq["at"]], v])
        rep = m.heads // m.kv
        scale = F(m.p**-0.5) if self.name != "attention-scale" else F(1.0 / m.p)
        out = np.empty((len(x), m.heads, m.p), F)
        for t in range(len(x)):
            n = seq["at"] + t + 1
            ids = np.arange(n)
            if self.name == "block-border" and n % self.page == 0:
                ids = ids[:-1] if n > 1 else ids
            if self.name == "block-first-lost" and n > self.page:
                ids = np.delete(ids, self.page)
            if self.name == "page-swap" and n > 2 * self.page:
                ids[self.page - 1] = 0
            if self.name == "block16-border" and n > 16 and n % 16 == 1:
                ids = np.delete(ids, 15)
            if self.name == "window" and n > self.arg:
                ids = ids[-self.arg :]
            if self.name == "kv-length" and n > self.arg:
                ids = ids[1:]
            kk, vv = np.repeat(store[0][ids], rep, 1), np.repeat(store[1][ids], rep, 1)
            s = np.einsum("hp,nhp->hn", q[t], kk) * scale
            s = np.exp(s - s.max(1, keepdims=True))
            s /= s.sum(1, keepdims=True)
            out[t] = np.einsum("hn,nhp->hp", s, vv)
        return self.act(out.reshape(len(x), -1)) @ l["self_attn.o_proj.weight"].T

    def ffn(self, l, x):
        def dense(pre, x):
            g = silu(x @ l[pre + "gate_proj.weight"].T) * (x @ l[pre + "up_proj.weight"].T)
            return self.act(g) @ l[pre + "down_proj.weight"].T

        if "feed_forward.router.weight" not in l:
            return dense("feed_forward.", x)
        s = x @ l["feed_forward.router.weight"].T
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        out = np.zeros_like(x)
        for t in range(len(x)):
            best = np.argsort(-p[t], kind="stable")[: self.m.c["num_experts_per_tok"]]
            total = p[t][best].sum() if self.name == "moe-renormalised" else 1
            for e in sorted(best):
                out[t] += p[t][e] / total * dense(f"feed_forward.experts.{e}.", x[t : t + 1])[0]
        return out

    def forward(self, seq, tokens, decode):
        """Runs tokens of one sequence through the model; logits behind the last of them."""
        m = self.m
        seq["window"] = tokens
        x = m.embed[tokens]
        if self.name == "embed-scale":
            x = x * F(1.01)
        rows = sum(len(r.get("next", [0])) for r in self.running)
        coarse = (self.name == "batch-path" and len(self.running) >= self.arg) or (
            self.name == "rows-path" and rows >= self.arg
        )
        for i, l in enumerate(m.layers):
            y = self.act(rms(x, l["input_layernorm.weight"], m.eps))
            if coarse:
                y = bf16(y)
            y = self.attention(i, l, y, seq, decode) if m.is_attention[i] else self.mamba(i, l, y, seq, decode)
            x = self.rough(x + y, i)
            x = x + self.ffn(l, self.act(rms(x, l["pre_ff_layernorm.weight"], m.eps)))
        if seq.get("all"):
            return (self.act(rms(x, m.final, m.eps)) @ m.head.T).astype(np.float64)
        x = rms(x[-1], m.final, m.eps)
        x = bf16(x) if self.name == "head-bf16-in" else self.act(x)
        logits = m.head @ x
        if self.name in ("head-bf16", "head-bf16-in"):
            logits = bf16(logits)
        if self.name == "head-f16":
            logits = logits.astype(np.float16).astype(F)
        if self.name == "softcap":
            logits = F(30) * np.tanh(logits / F(30))
        if self.name == "race" and self.rng.random() < 0.3:
            logits = (logits + 0.03 * self.rng.standard_normal(logits.shape)).astype(F)
        if self.name == "race-state" and self.rng.random() < 0.1 and seq["at"] > 0:
            for i in self.ssm:
                self.ssm[i][seq["slot"]] *= F(0.8)
        seq["at"] += len(tokens)
        return logits.astype(np.float64)

    # ---- requests ----

    def key(self, tokens):
        t = tuple(tokens)
        return {
            "cache-length": ("n", len(t)),
            "cache-last-block": (len(t), t[-self.block :]),
            "cache-first": (len(t), t[0]),
            "cache-sum": (len(t), sum(t)),
            "cache-hash8": (len(t), (sum((j + 1) * v for j, v in enumerate(t))) % 5),
        }.get(self.name, t)

    def borders(self, n):
        return range(self.block, n, self.block)

    def save(self, seq):
        """Publishes the state behind seq['at'] tokens of its prompt."""
        s, k = seq["slot"], self.key(seq["prompt"][: seq["at"]])
        if k in self.cache:
            return
        copy = (lambda a: a) if self.name == "cache-alias" else (lambda a: a.copy())
        conv = {i: copy(self.conv[i][s]) for i in self.conv}
        ssm = {i: copy(self.ssm[i][s]) for i in self.ssm}
        if self.name == "cache-overwrite" and len(self.cache) >= 8:  # its oldest entry's room, whose key stays
            _, old_conv, old_ssm, _ = list(self.cache.values())[-8]
            for mine, room in ((conv, old_conv), (ssm, old_ssm)):
                for i in mine:
                    room[i][...] = mine[i]
                    mine[i] = room[i]
        self.cache[k] = [seq["at"], conv, ssm, {i: [a.copy() for a in v] for i, v in self.kv[s].items()}]

    def admit(self, seq):
        m = self.m
        seq["slot"] = s = self.free.pop(0)
        fresh = self.name not in ("slot-not-reset", "slot-conv-not-reset", "slot-ssm-not-reset")
        if self.name == "stale-single" and len(seq["prompt"]) == 1:
            fresh = False
        if self.name == "stale-after" and self.served >= self.arg:
            fresh = False
        if self.name == "stale-longer" and self.spill.get(s, 0) <= len(seq["prompt"]):
            fresh = True
        elif self.name == "stale-longer":
            fresh = False
        if self.name == "abort-reuse":
            fresh = s not in self.spill or self.spill[s] != "preempted"
        for i in self.conv:
            if fresh or self.name == "slot-ssm-not-reset":
                self.conv[i][self.address(s)] = 0
            if fresh or self.name == "slot-conv-not-reset":
                self.ssm[i][self.address(s)] = 0
        self.kv[s] = {}
        seq["at"] = seq["hit"] = 0
        if "keep" in seq:  # preempt-keeps-at
            seq["at"], self.kv[s] = seq["keep"]
            return
        if self.o["prefix"] != "off":
            for n in sorted({*self.borders(len(seq["prompt"])), len(seq["prompt"]) - 1}, reverse=True):
                hit = self.cache.get(self.key(seq["prompt"][:n])) if n > 0 else None
                if hit is None:
                    continue
                seq["at"] = seq["hit"] = n
                for i in self.conv:
                    if self.name != "cache-conv-lost":
                        self.conv[i][s] = hit[1][i]
                    if self.name != "cache-ssm-lost":
                        self.ssm[i][s] = hit[2][i]
                self.kv[s] = {i: [a[:n].copy() for a in v] for i, v in hit[3].items()}
                if self.name == "cache-off-by-one" and n > 1:
                    late = dict(seq, at=n)
                    self.running.append(late)
                    self.forward(late, seq["prompt"][n - 1 : n], False)
                    self.running.remove(late)
                    self.kv[s] = {i: [a[:n].copy() for a in v] for i, v in hit[3].items()}
                break

    def release(self, seq):
        s = seq["slot"]
        self.spill[s] = seq["at"]
        self.served += 1
        self.free.insert(0, s) if self.o["policy"] != "fifo" else self.free.append(s)

    def step(self, seq):
        prompt = seq["prompt"]
        seq["draw"] = None
        if seq["at"] < len(prompt):
            stop = min(len(prompt), seq["at"] + self.chunk)
            if self.o["prefix"] != "off":
                stop = min([stop] + [b for b in [*self.borders(len(prompt)), len(prompt) - 1] if b > seq["at"]])
            seq["draw"] = self.forward(seq, prompt[seq["at"] : stop], False)
            if self.name == "decode-first-chunk":
                pass
            if self.o["prefix"] != "off" and seq["at"] < len(prompt):
                self.save(seq)
            if seq["at"] < len(prompt):
                seq["draw"] = None
        else:
            tokens = [seq["ids"][-1]]
            seq["draw"] = self.forward(seq, tokens, True)

    def before_prefill(self, starting):
        """What sequences that start in one forward do to each other when they should not."""
        if len(starting) < 2:
            return
        if self.name == "packed-no-reset":
            for a, b in zip(starting, starting[1:]):
                if b["at"]:
                    continue
                probe = dict(a)
                self.kv[("x", 0)] = {}
                keep = {i: (self.conv[i][a["slot"]].copy(), self.ssm[i][a["slot"]].copy()) for i in self.conv}
                kv, self.kv[a["slot"]] = self.kv[a["slot"]], {}
                self.forward(probe, a["prompt"][: self.chunk], False)
                self.kv[a["slot"]] = kv
                for i in self.conv:
                    self.conv[i][b["slot"]], self.ssm[i][b["slot"]] = self.conv[i][a["slot"]], self.ssm[i][a["slot"]]
                    self.conv[i][a["slot"]], self.ssm[i][a["slot"]] = keep[i]
        longest = max(len(q["prompt"]) for q in starting)
        if self.name == "pad-left":
            for q in starting:
                pad = longest - len(q["prompt"])
                if pad and not q["at"]:
                    self.kv[q["slot"]] = {}
                    self.forward(q, [0] * pad, False)
                    q["at"] = 0
                    self.kv[q["slot"]] = {}

    def after_prefill(self, starting):
        if self.name == "pad-right" and len(starting) > 1:
            longest = max(len(q["prompt"]) for q in starting)
            for q in starting:
                pad = longest - len(q["prompt"])
                if pad and q["at"] == len(q["prompt"]):
                    at = q["at"]
                    kv = {i: [a.copy() for a in v] for i, v in self.kv[q["slot"]].items()}
                    self.forward(q, [0] * pad, False)
                    q["at"], self.kv[q["slot"]] = at, kv

    def run(self, requests):
        waiting, self.running = list(requests), []
        while waiting or self.running:
            self.tick_no += 1
            while waiting and len(self.running) < self.batch and self.free:
                seq = waiting.pop(0)
                self.admit(seq)
                self.running.append(seq)
            starting = [q for q in self.running if q["at"] < len(q["prompt"]) and not q["ids"]]
            self.before_prefill([q for q in starting if q["at"] == 0])
            for q in self.running:
                self.step(q)
            self.after_prefill(starting)
            if self.name == "swap-rows" and len(self.running) >= max(self.arg, 2):
                a, b = self.running[:2]
                if a["draw"] is not None and b["draw"] is not None:
                    a["draw"], b["draw"] = b["draw"], a["draw"]
            for q in list(self.running):
                if q["draw"] is not None:
                    self.sample(q)
                if len(q["ids"]) >= q["max"]:
                    self.running.remove(q)
                    self.release(q)
            every = self.o["preempt-every"]
            if every and self.tick_no % every == 0 and self.running:
                q = self.running.pop()
                self.preempt(q)
                waiting.insert(0, q)

    def preempt(self, q):
        self.release(q)
        self.spill[q["slot"]] = "preempted"
        q["preempted"] += 1
        if self.name == "preempt-keeps-at":  # resumes at its old position, keys kept, with an empty state
            q["keep"] = (q["at"], self.kv[q["slot"]])
        q["prompt"] = q["prompt"][: q["n"]] + q["ids"]

    def sample(self, q):
        o, m = self.o, self.m
        step = len(q["ids"])
        seed = hashlib.blake2b(f"{o['seed']}/{q['index']}/{step}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(seed, "little"))
        t = o["temperature"]
        logits = q["draw"].copy()
        if self.name == "repetition":
            seen = sorted(set(q["prompt"][: q["n"]] + q["ids"]))
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / 1.1, logits[seen] * 1.1)
        if self.name == "presence":
            seen = sorted(set(q["ids"]))
            logits[seen] -= 0.5
        if self.name == "eos-masked":
            logits[m.eos] = -np.inf
        if self.name == "default-temperature":
            t = 0.8 * t
        scaled = logits / t if t > 0 else logits
        keep = np.isfinite(scaled)
        if self.name == "top-k":
            keep &= scaled >= np.sort(scaled)[-self.arg]
        if self.name == "top-p":
            p = np.exp(scaled - scaled.max())
            p /= p.sum()
            order = np.argsort(-p)
            keep[order[np.searchsorted(np.cumsum(p[order]), self.arg / 100) + 1 :]] = False
        gumbel = -np.log(-np.log(rng.random(len(logits))))
        token = int(np.argmax(np.where(keep, scaled + gumbel, -np.inf)))

        def log_softmax(x):
            top = x.max()
            return x - top - np.log(np.exp(x - top).sum())

        processed = o["logprobs"] == "processed"
        rows = log_softmax(scaled if processed else logits)
        if self.name in ("top-k", "top-p"):
            rows = log_softmax(np.where(keep, scaled if processed else logits, -np.inf))
        if self.name == "temperature-raw":  # processed are recorded as raw ones
            rows = log_softmax(logits)
        if self.name == "temperature-always":  # raw ones are processed
            rows = log_softmax(scaled)
        if self.name == "temperature-on-logprobs" and processed:
            rows = log_softmax(logits) / t
        if self.name == "logprob-bf16":
            rows = bf16(rows.astype(F)).astype(float)
        if self.name == "logprob-2dp":
            rows = np.round(rows, 2)
        value = float(rows[token])
        if self.name == "argmax-recorded":
            value = float(rows[np.argmax(scaled + np.where(keep, 0, -np.inf))])
        if self.name == "next-id":
            value = float(rows[(token + 1) % m.vocab])
        if self.name == "log10":
            value /= np.log(10)
        q["ids"].append(token)
        q["lp"].append(value)
        q["rows"].append(rows)


def rope(x, pos):
    half = x.shape[-1] // 2
    angle = pos[:, None] / 10000.0 ** (np.arange(half) / half)
    c, s = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1).astype(F)


NUMBERS = {"max-tokens": 16, "seed": 0, "samples": 1, "batch": 16, "chunk": 256, "page": 16, "slots": 0, "slot-base": 0}
NUMBERS.update({"preempt-every": 0, "block": 16})
WORDS = {"model": "", "prompts": "", "out": "", "logprobs": "raw", "policy": "fifo", "prefix": "on", "bug": "", "deaf": ""}
WORDS.update({"rounding": "f32", "kv": "f32", "fork": "on", "dtype": "f32"})
FLOATS = {"temperature": 1.0, "noise": 0.0}
LEVERS = ("samples", "batch", "chunk", "page", "slots", "slot-base", "preempt-every", "prefix", "policy", "fork")


def parse(words):
    o = {**NUMBERS, **WORDS, **FLOATS, "ignore-eos": False, "noise-random": False, "echo": False, "tick-tokens": "0"}
    deaf = next((words[i + 1] for i, w in enumerate(words) if w == "--deaf"), "").split(",")
    words = iter(words)
    for word in words:
        name = word[2:]
        if name in ("ignore-eos", "noise-random", "echo"):
            o[name] = True
            continue
        value = next(words)
        if name in deaf:
            continue
        if name == "chunk" and value == "whole":
            value = 0
        o[name] = int(value) if name in NUMBERS else float(value) if name in FLOATS else value
    if o["policy"] == "random":
        o["policy"] = "fifo"
    return o


def shift(q, by, m):
    """Records that stand `by` places late."""
    n = len(q["lp"])
    return [q["lp"][min(max(i - by, 0), n - 1)] for i in range(n)]


def generate(o, model):
    if o["bug"] == "hang" and o["batch"] > 1:
        while True:
            pass
    prompts = [json.loads(line) for line in open(o["prompts"]) if line.strip()]
    requests = []
    m = model
    for p in prompts:
        for s in range(o["samples"]):
            ids = list(p["prompt_ids"])
            if o["bug"] == "bos-added":
                ids = [m.bos] + ids
            if o["bug"] == "bos-doubled" and ids[0] == m.bos:
                ids = [m.bos] + ids
            if o["bug"] == "first-dropped" and len(ids) > 1:
                ids = ids[1:]
            if o["bug"].startswith("truncate:"):
                ids = ids[-int(o["bug"][9:]) :]
            if o["bug"] == "eos-appended":
                ids = ids + [m.eos]
            if o["bug"] == "eos-stripped":
                ids = [t for t in ids if t != m.eos] or ids
            requests.append(
                {"id": f"{p['id']}/{s}", "given": p["prompt_ids"], "prompt": ids, "n": len(ids), "ids": [], "lp": [],
                 "rows": [], "max": o["max-tokens"], "index": len(requests), "preempted": 0, "sample": s}
            )
    engine = Engine(model, o)
    engine.run(requests)
    with open(o["out"] + ".part", "w") as file:
        for q in requests:
            lp = q["lp"]
            if o["bug"].startswith("shift:"):
                lp = shift(q, int(o["bug"][6:]), m)
            meta = {"slot": q["slot"], "cache_hit": q["hit"], "preemptions": q["preempted"]}
            if o["echo"]:
                meta["levers"] = {k: o[k] for k in LEVERS if k not in o["deaf"].split(",")}
            record = {"id": q["id"], "prompt_ids": q["given"], "completion_ids": q["ids"], "logprobs": lp}
            record.update(finish="length", meta=meta)
            file.write(json.dumps(record) + "\n")
    os.rename(o["out"] + ".part", o["out"])


def score(words, model, more):
    """Log-probabilities of all tokens after the first, the sequence in one piece: the trainer's side."""
    given = {words[i][2:]: words[i + 1] for i in range(0, len(words), 2)}
    o = parse(more)
    o.update(batch=1, slots=1, chunk=0, prefix="off")
    temperature = float(given["temperature"]) if given["logprobs"] == "processed" else 1.0
    with open(given["out"] + ".part", "w") as file:
        for line in open(given["tokens"]):
            request = json.loads(line)
            ids = request["token_ids"]
            engine, values = Engine(model, o), []
            seq = {"prompt": ids, "n": len(ids), "ids": [], "max": 0, "index": 0, "slot": 0, "at": 0, "all": True}
            engine.running, engine.kv[0] = [seq], {}
            rows = engine.forward(seq, ids, False) / temperature
            for t, token in enumerate(ids[1:]):
                top = rows[t].max()
                values.append(float(rows[t][token] - top - np.log(np.exp(rows[t] - top).sum())))
            file.write(json.dumps({"id": request["id"], "logprobs": values}) + "\n")
    os.rename(given["out"] + ".part", given["out"])


def serve(words):
    """One trial a line: {"argv": [..]} in, {"ok": true} or {"ok": false, "error": ".."} out."""
    models = {}
    print(json.dumps({"lockstep": 1, "levers": [k for k in LEVERS]}), flush=True)
    for line in sys.stdin:
        try:
            argv = json.loads(line)["argv"]
            o = parse(words)
            o["model"] = argv[argv.index("--model") + 1]
            key = (o["model"], o["bug"])
            models[key] = models.get(key) or Model(*key)
            if argv[0] == "score":
                score(argv[1:], models[key], words)
            else:
                generate(parse(argv[1:] + words), models[key])
            answer = {"ok": True}
        except (Exception, SystemExit) as problem:  # whatever it is, the next trial may be answered
            answer = {"ok": False, "error": str(problem)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    np.seterr(all="ignore")
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    elif sys.argv[1] == "score":
        score(sys.argv[2:14], Model(sys.argv[sys.argv.index("--model") + 1], ""), sys.argv[14:])
    else:
        options = parse(sys.argv[2:])
        generate(options, Model(options["model"], options["bug"]))
