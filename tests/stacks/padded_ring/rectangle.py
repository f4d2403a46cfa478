"""Jamba and Mamba in numpy, over a rectangle of tokens that is padded on the left: every row ends in the last column.

Sums over the inputs of a product go in blocks of 32, the last block first; the scan doubles inside blocks of 8 columns;
attention merges segments of a ring. A Fault is looked up where it acts; without one, all of this is the model.
"""

import glob
import json
import os

import numpy as np

from faults import SEEN, STORED, F, bits


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
        fault.weights(self)
        p = {"bf16": 8, "f16": 11}.get(weights)
        for w in self.layers:
            if p:
                w.update({k: bits(v, p) for k, v in w.items()})
            if "mixer.A_log" in w:
                w["A"] = -np.exp(w["mixer.A_log"])
        if p:
            self.embedding, self.head = bits(self.embedding, p), bits(self.head, p)
        self.conv = self.layers[self.mambas[0]]["mixer.conv1d.weight"].shape[2]
        self.inner, self.states = self.layers[self.mambas[0]]["mixer.A_log"].shape

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
        """run has columns and carried states, and is left the states after each of the last run.keep columns."""
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
        elif f.name == "time-step-limit":  # Mamba's time_step_max, taken for a bound
            soft = np.minimum(soft, F(f.number / 1000))
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
        y = y + u * w["mixer.D"]
        gate = self.silu(z)
        if f.name == "gate-in-e4m3" and run.decode:
            gate = bits(gate, 4)
        at = range(columns, columns - run.keep, -1)
        run.left[i] = [(ext[:, j : j + self.conv - 1], hs[:, j - 1]) for j in at]
        return self.mm(y * gate, w["mixer.out_proj.weight"], w.get("mixer.out_proj.bias"))

    def attention(self, i, x, run):
        f, w = self.fault, self.layers[i]
        rows, columns = run.live.shape
        q = self.mm(x, w["mixer.q_proj.weight"]).reshape(rows, columns, self.heads, -1)
        k = self.mm(x, w["mixer.k_proj.weight"]).reshape(rows, columns, self.kv_heads, -1)
        v = self.mm(x, w["mixer.v_proj.weight"]).reshape(rows, columns, self.kv_heads, -1)
        if self.kv == "f16":
            k, v = k.astype(np.float16).astype(F), v.astype(np.float16).astype(F)
        run.rings.write(i, run, f.of(STORED, k, "k"), f.of(STORED, v, "v"))
        scale = f.scale(self.head_size)
        group = self.heads // self.kv_heads
        top = np.full((rows, columns, self.heads), -1e30, F)
        total, out = np.zeros_like(top), np.zeros(q.shape, F)
        for keys, values, tags in run.rings.segments(i, run):
            seen = (tags[:, None] >= 0) & (tags[:, None] <= run.where[..., None])
            seen = f.of(SEEN, seen, tags[:, None], run, int(f.number))
            if not seen.any():
                continue
            s = f.scores(np.einsum("bthd,bshd->bths", q, np.repeat(keys, group, 2)) * scale, run, tags, scale)
            s = np.where(seen[:, :, None], s, F(-1e30))
            new = np.maximum(top, s.max(-1))
            e = np.exp(s - new[..., None]) * seen[:, :, None]
            if f.name == "border-key-twice":
                e[..., 0] *= 1 + (tags[:, 0] > 0)[:, None, None]
            old = np.exp(top - new)
            total = total * old + e.sum(-1)
            out = out * old[..., None] + np.einsum("bths,bshd->bthd", e, np.repeat(values, group, 2))
            top = new
        if f.name == "padding-attended":  # keys of zeros, as many as there is padding
            total = total + run.first[:, None, None] * np.exp(-np.maximum(top, F(-80)))
        y = out / np.maximum(total, F(1e-30))[..., None]
        return self.mm(y.reshape(rows, columns, -1), w["mixer.o_proj.weight"])

    def feed(self, w, x):
        def gated(at):
            gate = self.silu(self.mm(x, w[at + "gate_proj.weight"]))
            return self.mm(gate * self.mm(x, w[at + "up_proj.weight"]), w[at + "down_proj.weight"])

        if "feed_forward.router.weight" not in w:
            return gated("feed_forward.")
        scores = self.mm(x, w["feed_forward.router.weight"])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        share = sigmoid(scores) if self.fault.name == "router-by-sigmoid" else e / e.sum(-1, keepdims=True)
        kept = np.argsort(np.argsort(-scores, -1, kind="stable"), -1, kind="stable") < self.top
        share = share * self.fault.capacity(kept)
        return sum(gated(f"feed_forward.experts.{n}.") * share[..., n : n + 1] for n in range(scores.shape[-1]))

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
        return f.head(self, x)
