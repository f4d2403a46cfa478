"""Jamba and Mamba in numpy, over a rectangle of tokens that is padded on the left: every row ends in the last column.

Sums over the inputs of a product go in blocks of 32, the last block first; the scan doubles inside blocks of 8 columns;
attention merges segments of a ring. A Fault is looked up where it acts; without one, all of this is the model.
"""

import glob
import json
import os

import numpy as np

F = np.float32


def bits(x, p):
    """Rounded to p significant bits, whatever the exponent."""
    m, e = np.frexp(x)
    return np.ldexp(np.rint(m * 2.0**p) / 2.0**p, e).astype(F)


def whole(x, levels, axis=None):
    """Rounded to whole multiples of the largest value / levels, of a tensor or along an axis."""
    s = np.maximum(np.abs(x).max(axis, keepdims=axis is not None), 1e-20) / levels
    return (np.rint(x / s) * s).astype(F)


def groups4(x):
    """4 bits in groups of 32 along the inputs, as the usual formats have it."""
    n = x.shape[-1] // 32 * 32
    if n == 0:
        return whole(x, 7, -1)
    y = x.copy()
    y[..., :n] = whole(x[..., :n].reshape(x.shape[:-1] + (-1, 32)), 7, -1).reshape(x[..., :n].shape)
    return y


def tensors(folder):
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        data = open(path, "rb").read()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            raw = data[start + t["data_offsets"][0] : start + t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(F)
            else:
                x = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(F)
            yield name, x.reshape(t["shape"]).copy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Rectangle:
    def __init__(self, folder, fault, arith="f32", weights="as-is", kv="f32"):
        c = self.config = json.load(open(os.path.join(folder, "config.json")))
        self.fault, self.arith, self.kv = fault, arith, kv
        self.jamba = c["model_type"] == "jamba"
        self.eps = c["rms_norm_eps"] if self.jamba else c["layer_norm_epsilon"]
        self.top = c.get("num_experts_per_tok", 0)
        self.heads, self.kv_heads = c.get("num_attention_heads", 1), c.get("num_key_value_heads", 1)
        self.head_size = c["hidden_size"] // self.heads
        self.eos = c["eos_token_id"] if isinstance(c["eos_token_id"], list) else [c["eos_token_id"]]
        rename = {"mamba.": "mixer.", "self_attn.": "mixer.", "input_layernorm": "norm"}
        w = {}
        for name, x in tensors(folder):
            for old, new in rename.items():
                name = name.replace(old, new)
            w[name.split(".", 1)[1] if name != "lm_head.weight" else name] = x
        self.embedding = w.get("embed_tokens.weight", w.get("embeddings.weight"))
        self.head = w.get("lm_head.weight", self.embedding)
        self.last_norm = w.get("final_layernorm.weight", w.get("norm_f.weight"))
        self.layers = []
        for i in range(c["num_hidden_layers"]):
            start = f"layers.{i}."
            self.layers.append({k[len(start) :]: v for k, v in w.items() if k.startswith(start)})
        self.mambas = [i for i, w in enumerate(self.layers) if "mixer.A_log" in w]
        self.attentions = [i for i, w in enumerate(self.layers) if "mixer.q_proj.weight" in w]
        self.spoil()
        p = {"bf16": 8, "f16": 11}.get(weights)
        for w in self.layers:
            if p:
                w.update({k: bits(v, p) for k, v in w.items()})
            if "mixer.A_log" in w:
                w["A"] = -np.exp(w["mixer.A_log"])
        if p:
            self.embedding, self.head, self.last_norm = (bits(x, p) for x in (self.embedding, self.head, self.last_norm))
        self.conv = self.layers[self.mambas[0]]["mixer.conv1d.weight"].shape[2]
        self.inner, self.states = self.layers[self.mambas[0]]["mixer.A_log"].shape

    def spoil(self):
        """Faults of loading and of weights that were sent."""
        f, n = self.fault.name, int(self.fault.number)
        draw = np.random.default_rng(7)
        near = lambda x, s: x + (s * x.std() * draw.standard_normal(x.shape)).astype(F)  # noqa: E731
        w = self.layers[min(n, len(self.layers) - 1)]
        if f == "policy-behind":  # a sync that was missed: all tensors some thousandths away
            for w in self.layers:
                w.update({k: near(v, self.fault.number / 1000) for k, v in w.items() if k.endswith("proj.weight")})
        elif f == "kernel-reversed":  # a converter that took convolution for correlation
            w["mixer.conv1d.weight"] = w["mixer.conv1d.weight"][:, :, ::-1].copy()
        elif f == "dt-bias-zero":  # an in-place load left a buffer out (trl#5312)
            w["mixer.dt_proj.bias"][:] = 0
        elif f == "a-in-bf16":  # a cast of the whole model took A_log along
            for i in self.mambas:
                self.layers[i]["mixer.A_log"] = bits(self.layers[i]["mixer.A_log"], 8)
        elif f == "four-bits-by-group":
            w.update({k: groups4(v) for k, v in w.items() if k.endswith("proj.weight")})
        elif f == "five-two":  # e5m2 for one layer
            w.update({k: bits(v, 3) for k, v in w.items() if k.endswith("proj.weight")})
        elif f == "mixer-of-last":  # one mixer's tensors under another's names
            w.update({k: v for k, v in self.layers[self.mambas[-1]].items() if k.startswith("mixer.")})
        elif f == "adapter-twice":  # merged at loading, and added again
            x = w["mixer.in_proj.weight"]
            a, b = draw.standard_normal((x.shape[0], 4)), draw.standard_normal((4, x.shape[1]))
            w["mixer.in_proj.weight"] = x + (x.std() * 0.1 * a @ b).astype(F)
        elif f == "router-rotated":  # expert parallel ranks in another order on one side
            w["feed_forward.router.weight"] = np.roll(w["feed_forward.router.weight"], 1, 0)
        elif f == "head-behind":
            self.head = near(self.head, self.fault.number / 1000)
        elif f == "last-norm-dropped":
            self.last_norm = np.ones_like(self.last_norm)

    def mm(self, x, w, bias=None):
        if self.arith != "f32":
            p = {"tf32": 11, "bf16": 8}[self.arith]
            x, w = bits(x, p), bits(w, p)
        at = list(range(0, w.shape[1], 32))[::-1]
        y = x[..., at[0] :] @ w[:, at[0] :].T
        for i in at[1:]:
            y = y + x[..., i : i + 32] @ w[:, i : i + 32].T
        y = y if bias is None else y + bias
        return bits(y, 8) if self.arith == "bf16" else y.astype(F)

    def norm(self, x, w):
        eps = self.fault.number / 1e6 if self.fault.name == "eps" else self.eps
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + F(eps)) * w).astype(F)

    def silu(self, x):
        return x * sigmoid(1.702 * x) if self.fault.name == "quick-gelu" else x * sigmoid(x)

    def scan(self, a, b, h):
        """h_t = a_t h_(t-1) + b_t for all columns."""
        out = np.empty_like(b)
        for s in range(0, b.shape[1], 8):
            p, x, k = a[:, s : s + 8].copy(), b[:, s : s + 8].copy(), 1
            while k < x.shape[1]:
                x[:, k:] += p[:, k:] * x[:, :-k]
                p[:, k:] *= p[:, :-k]
                k *= 2
            out[:, s : s + 8] = p * h[:, None] + x
            h = out[:, min(s + 8, b.shape[1]) - 1]
        return out

    def mamba(self, i, x, run):
        """run: the rectangle's columns and carried states. Leaves the states after each of the last run.keep columns."""
        f, w, live = self.fault, self.layers[i], run.live[..., None]
        window, h = run.carried[i]
        rows, columns = run.live.shape
        xz = self.mm(x, w["mixer.in_proj.weight"], w.get("mixer.in_proj.bias"))
        u, z = xz[..., : self.inner] * live, xz[..., self.inner :]
        ext = np.zeros((rows, self.conv - 1 + columns, self.inner), F)
        ext[:, self.conv - 1 :] = u
        for r, s in enumerate(run.first):
            ext[r, s : s + self.conv - 1] = window[r]
        window, h = f.carried(self, i, run, ext, h)
        u = sum(ext[:, k : k + columns] * w["mixer.conv1d.weight"][:, 0, k] for k in range(self.conv))
        u = self.silu(u + w["mixer.conv1d.bias"] if "mixer.conv1d.bias" in w else u)
        if f.name != "padding-through-bias":  # masked in front of the convolution only (transformers)
            u = u * live
        p = self.mm(u, w["mixer.x_proj.weight"])
        rank = p.shape[-1] - 2 * self.states
        parts = [p[..., :rank], p[..., rank : rank + self.states], p[..., rank + self.states :]]
        if self.jamba:
            names = ("dt", "b", "c")
            parts = [
                q if f.at("no-norm-of-b", i) and n == "b" else self.norm(q, w[f"mixer.{n}_layernorm.weight"])
                for n, q in zip(names, parts)
            ]
        bias = 0 if f.name == "decode-without-dt-bias" and run.decode else w["mixer.dt_proj.bias"]
        dt = self.mm(parts[0], w["mixer.dt_proj.weight"]) + bias
        soft = np.log1p(np.exp(-np.abs(dt))) + np.maximum(dt, 0)
        if f.name == "softplus-linear-early":  # the line begins at 1 in place of 20
            soft = np.where(dt > f.number, dt, soft)
        elif f.name == "time-step-limit":  # a limit of vanilla Mamba's initialisation
            soft = np.clip(soft, 0, f.number / 1000)
        dt = soft if f.name == "padding-through-bias" else soft * live
        a = np.exp(dt[..., None] * w["A"])
        if f.name == "decay-by-table" and run.decode:  # a table of 256 steps for exp
            a = bits(a, 8)
        b = (dt * u)[..., None] * parts[1][:, :, None]
        if f.name == "decay-lost-between":  # the carry is added, not decayed
            a[run.later, run.first[run.later]] = 1
        elif f.name == "restart-at":  # a counter of positions ends
            a[run.where == f.number] = 0
        hs = self.scan(a, b, h)
        if f.at("flat-scan", i):  # rows without borders: each begins with the end of the one above
            for r in range(1, rows):
                hs[r] += np.cumprod(a[r], 0) * hs[r - 1, -1] * F(run.start[r] == 0)
        y = (hs * parts[2][:, :, None]).sum(-1)
        y = y + (u if f.at("skip-of-ones", i) else u * w["mixer.D"])
        gate = self.silu(z)
        if f.name == "gate-in-e4m3" and run.decode:
            gate = bits(gate, 4)
        run.left[i] = [(ext[:, columns - j : columns - j + self.conv - 1], hs[:, columns - 1 - j]) for j in range(run.keep)]
        return self.mm(y * gate, w["mixer.out_proj.weight"], w.get("mixer.out_proj.bias"))

    def attention(self, i, x, run):
        f, w = self.fault, self.layers[i]
        rows, columns = run.live.shape
        q = self.mm(x, w["mixer.q_proj.weight"]).reshape(rows, columns, self.heads, -1)
        k = self.mm(x, w["mixer.k_proj.weight"]).reshape(rows, columns, self.kv_heads, -1)
        v = self.mm(x, w["mixer.v_proj.weight"]).reshape(rows, columns, self.kv_heads, -1)
        run.rings.write(i, run, f.stored(k, "k", self.kv), f.stored(v, "v", self.kv))
        scale = f.scale(self.head_size)
        group = self.heads // self.kv_heads
        top = np.full((rows, columns, self.heads), -1e30, F)
        total, out = np.zeros_like(top), np.zeros(q.shape, F)
        for keys, values, seen, segment in run.rings.segments(i, run):
            if not seen.any():
                continue
            s = np.einsum("bthd,bshd->bths", q, np.repeat(keys, group, 2)) * F(scale)
            s = f.scores(s, run, segment, scale)
            s = np.where(seen[:, :, None], s, F(-1e30))
            new = np.maximum(top, s.max(-1))
            e = np.exp(s - new[..., None]) * f.copies(seen, segment)[:, :, None]
            old = np.exp(top - new)
            total = total * old + e.sum(-1)
            out = out * old[..., None] + np.einsum("bths,bshd->bthd", e, np.repeat(values, group, 2))
            top = new
        if f.name == "padding-attended":  # keys of zeros, as many as there is padding
            total = total + run.first[:, None, None] * np.exp(-top)
        y = out / np.maximum(total, F(1e-30))[..., None]
        return self.mm(y.reshape(rows, columns, -1), w["mixer.o_proj.weight"])

    def feed(self, w, x):
        gated = lambda at: self.mm(  # noqa: E731
            self.silu(self.mm(x, w[at + "gate_proj.weight"])) * self.mm(x, w[at + "up_proj.weight"]), w[at + "down_proj.weight"]
        )
        if "feed_forward.router.weight" not in w:
            return gated("feed_forward.")
        scores = self.mm(x, w["feed_forward.router.weight"])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        share = sigmoid(scores) if self.fault.name == "router-by-sigmoid" else e / e.sum(-1, keepdims=True)
        kept = np.argsort(np.argsort(-scores, -1, kind="stable"), -1, kind="stable") < self.top
        kept = self.fault.capacity(kept)
        return sum(gated(f"feed_forward.experts.{n}.") * (share * kept)[..., n : n + 1] for n in range(scores.shape[-1]))

    def forward(self, run):
        """Logits of the last run.keep columns."""
        f = self.fault
        x = self.embedding[run.tokens] * run.live[..., None]
        if f.name == "end-has-no-embedding":  # padding_idx is the end of sequence
            x = x * ~np.isin(run.tokens, self.eos)[..., None]
        for i, w in enumerate(self.layers):
            mixer = self.mamba if i in self.mambas else self.attention
            y = mixer(i, self.norm(x, w["norm.weight"]), run)
            x = x + (y * F(f.number / 100) if f.name == "branch-scaled" else y)
            if self.jamba:
                x = x + self.feed(w, self.norm(x, w["pre_ff_layernorm.weight"]))
        x = self.norm(x[:, run.live.shape[1] - run.keep :], self.last_norm)
        return f.head(self, x, run)
