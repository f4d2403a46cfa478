"""The forward over a list of rows: products, mixers and feed-forwards, with the faults of kernels and of what they read.

Stack (stack.py) has the memory that this goes by."""

import numpy as np
from formats import F, FORMATS, bf16, e4m3, f16, log_softmax, silu, tf32


class Forward:
    def product(self, x, w):
        """x times the transpose of w, split along K, the parts added from the last to the first."""
        length = w.shape[1]
        part = max(32, -(-length // 4))
        x, w = self.rough(x), self.rough(w)
        narrow = None
        if (
            self.bug == "small-batch-gemm"
            and 0 < self.decoding < self.number
            or self.bug == "large-batch-gemm"
            and self.decoding >= self.number
        ):
            narrow, part = bf16, 8
        if self.bug == "tile-by-rows" and len(x) > self.number:
            x, w = tf32(x), tf32(w)
        total = np.zeros((len(x), len(w)), F)
        for k in reversed(range(0, length, part)):
            piece = x[:, k : k + part] @ w[:, k : k + part].T
            total = total + (narrow(piece) if narrow else piece)
        if self.bug == "atomics":
            total = total * (1 + F(self.number * 1e-6) * self.entropy.standard_normal(total.shape).astype(F))
        return self.round(total)

    def round(self, x):
        return self.rough(x) if self.o["arith"] in ("bf16", "f16") else x

    def rms(self, x, w, eps=None):
        square = (x[:, ::-1] * x[:, ::-1]).sum(-1, keepdims=True, dtype=F) / F(x.shape[1])
        if self.bug == "eps-outside":
            return (x / (np.sqrt(square) + F(1e-2)) * w).astype(F)
        return self.round((x / np.sqrt(square + F(self.m.eps)) * w).astype(F))

    def segments(self, plan):
        m, found, at = self.m, [], 0
        first = [len(s.context[: s.done + n]) for s, n in plan if not s.done]
        for seq, n in plan:
            tokens, lead, tail = seq.context[seq.done : seq.done + n], 0, 0
            if not seq.done and len(first) > 1:
                lead = max(first) - n if self.bug == "left-padding" else 0
                tail = max(first) - n if self.bug == "right-padding" else 0
            if self.bug == "bucket-padding" and n > 1:
                tail = -n % self.number
            decode = n == 1 and bool(seq.ids) and seq.done > 0
            tokens = [m.pad] * lead + tokens + [m.pad] * tail
            found.append(
                {
                    "seq": seq,
                    "tokens": tokens,
                    "n": n,
                    "lead": lead,
                    "tail": tail,
                    "start": seq.done,
                    "decode": decode,
                    "rows": slice(at, at + len(tokens)),
                    "real": slice(at + lead, at + lead + n),
                    "slot": seq.slot,
                    "states": {},
                }
            )
            at += len(tokens)
        return found

    def forward(self, plan):
        m, segs = self.m, self.segments(plan)
        self.before_forward(segs)
        x = m.embed[np.concatenate([s["tokens"] for s in segs])]
        if self.bug == "embedding-scaled":
            x = x * F(np.sqrt(m.hidden))
        for i, layer in enumerate(m.layers):
            if self.decoding and self.bug == "decode-recorded-before-update" and i == self.number:
                layer = {**layer, **m.before[i]}
            h = self.rms(x, layer["input_layernorm.weight"])
            mixed = self.attention(i, layer, h, segs) if m.is_attention[i] else self.mamba(i, layer, h, segs)
            x = self.round(x + mixed)
            if self.bug == "residual-in-half" and i == len(m.layers) - 1:
                x = f16(x)
            x = self.round(x + self.feed_forward(layer, self.rms(x, layer["pre_ff_layernorm.weight"])))
        if self.o["prefix"] != "off":
            self.publish_all(segs)
        last = x[[s["real"].stop - 1 for s in segs]]
        if self.bug == "last-row-of-padded":
            last = x[[s["rows"].stop - 1 for s in segs]]
        if self.bug == "rows-of-mixed-step" and len(segs) > 1 and segs[0]["decode"] and not segs[-1]["decode"]:
            last = last[[0] + list(range(len(segs) - 1))]
        h = self.rms(last, m.norm)
        w = m.unembed
        if self.bug.startswith("head-"):
            fmt = FORMATS[self.bug[5:]] if self.bug[5:] in FORMATS else None
            if fmt:
                return self.product(fmt(h), fmt(w))
            if self.bug == "head-logits-bf16":
                return bf16(self.product(h, w))
            if self.bug == "head-logits-f16":
                return f16(self.product(h, w))
        return self.product(h, w)

    def before_forward(self, segs):
        decoding = [s for s in segs if s["decode"]]
        if self.bug == "table-not-compacted":
            # A row of decode keeps the slot of who had it in the step before.
            slots = [s["slot"] for s in decoding]
            for s, old in zip(decoding, self.table):
                s["slot"] = old
            self.table = slots
        if self.bug == "recorded-rows-stale" and decoding:
            # Decode is replayed for the next power of two; rows that are too many keep the slots of earlier steps.
            size = 1 << (len(decoding) - 1).bit_length()
            self.table = [s["slot"] for s in decoding] + self.table[len(decoding) :]
            for k in self.table[len(decoding) : size]:
                for i, pool in self.pools.items():
                    window, cells = pool.read(k)
                    pool.write(k, np.roll(window, -1, 0), cells * F(0.9), True)
        if self.bug == "padding-rows-in-slot-zero" and all(s["decode"] for s in segs) and len(segs) & (len(segs) - 1):
            for i, pool in self.pools.items():
                k = segs[0]["slot"]
                window, cells = pool.read(k)
                pool.write(k, np.concatenate([window[1:], window[:1] * 0]), cells, True)

    def window_before(self, i, s, segs, rows, index):
        """The convolution inputs before a segment."""
        window = self.pools[i].read(s["slot"], s["decode"])[0].copy()
        later = s["start"] > 0 and not s["decode"]
        packed = index and not s["start"] and not segs[index - 1]["decode"]
        if self.bug == "window-packed" and packed:
            before = rows[segs[index - 1]["rows"]]
            window[max(len(window) - len(before), 0) :] = before[-len(window) :]
        if self.bug == "window-zero-in-later-chunks" and later:
            window[:] = 0
        if self.bug == "window-late-in-later-chunks" and later:
            window[1:] = window[:-1].copy()
        if self.bug == "handover-without-window" and s["decode"] and len(s["seq"].ids) == 1:
            window[:] = 0
        if self.bug == "ring-not-turned" and s["decode"]:
            window = window[::-1].copy()
        return window

    def mamba(self, i, layer, h, segs):
        m = self.m
        both = self.product(h, layer["mamba.in_proj.weight"])
        if "mamba.in_proj.bias" in layer:
            both = both + layer["mamba.in_proj.bias"]
        raw, gate = both[:, : m.inner], both[:, m.inner :]
        taps, bias = layer["mamba.conv1d.weight"][:, 0], layer.get("mamba.conv1d.bias")
        u, windows = np.zeros_like(raw), []
        for index, s in enumerate(segs):
            window = self.window_before(i, s, segs, raw, index)
            line = np.concatenate([window, raw[s["rows"]]])
            windows.append(line)
            n = len(s["tokens"])
            total = np.zeros((n, m.inner), F)
            for k in reversed(range(m.width)):
                total = total + line[k : k + n] * taps[:, k]
            u[s["rows"]] = total if bias is None else total + bias
        u = self.round(silu(u)) if self.bug != "convolution-without-silu" else u
        mask = self.masked(segs)
        if mask is not None:
            u = u * mask
        parts = self.product(u, layer["mamba.x_proj.weight"])
        dt, b, c = parts[:, : m.rank], parts[:, m.rank : m.rank + m.states], parts[:, m.rank + m.states :]
        dt = self.rms(dt, layer["mamba.dt_layernorm.weight"])
        if self.bug != "no-norms-of-b-and-c":
            b, c = self.rms(b, layer["mamba.b_layernorm.weight"]), self.rms(c, layer["mamba.c_layernorm.weight"])
        dt = self.product(dt, layer["mamba.dt_proj.weight"]) + layer["mamba.dt_proj.bias"] * F(
            2 if self.bug == "dt-bias-twice" else 1
        )
        soft = np.where(dt > 20, dt, np.log1p(np.exp(np.minimum(dt, 20)))).astype(F)
        if self.bug == "softplus-in-decode":
            cut = np.log(f16(np.exp(np.minimum(dt, 11)) + 1)).astype(F)
            for s in segs:
                if s["decode"]:
                    soft[s["rows"]] = cut[s["rows"]]
        y, carried = np.zeros_like(u), None
        a_log = -np.exp(layer["mamba.A_log"].astype(F))
        for index, (s, line) in enumerate(zip(segs, windows)):
            r = s["rows"]
            cells = self.pools[i].read(s["slot"], s["decode"])[1].copy()
            if self.bug == "cells-packed" and index and not s["start"] and carried is not None:
                cells = carried
            if self.bug == "cells-zero-in-later-chunks" and s["start"] and not s["decode"] and not s["seq"].hit:
                cells[:] = 0
            if self.bug == "cells-half-in-later-chunks" and s["start"] and not s["decode"] and not s["seq"].hit:
                cells = cells * F(0.8)
            if self.bug == "handover-without-cells" and s["decode"] and len(s["seq"].ids) == 1:
                cells[: len(cells) // 2] = 0
            y[r], states = self.scan(soft[r], u[r], b[r], c[r], a_log, cells, s)
            carried = states[-1]
            window, after = line[len(line) - (m.width - 1) :], states[-1]
            if self.bug == "short-chunk-replaces-window" and s["n"] < m.width - 1 and not s["decode"]:
                window = np.concatenate([np.zeros((m.width - 1 - s["n"], m.inner), F), line[m.width - 1 :]])
            if self.bug == "cells-f16-in-decode" and s["decode"]:
                after = f16(after)
            if self.bug == "cells-e4m3-in-decode" and s["decode"]:
                after = e4m3(after)
            if (
                self.bug == "last-token-again"
                and not s["decode"]
                and s["start"] + s["n"] == len(s["seq"].prompt)
                and not s["seq"].ids
            ):
                a = np.exp(soft[r][-1][:, None] * a_log)
                after = a * after + (soft[r][-1] * u[r][-1])[:, None] * b[r][-1][None]
            if self.bug == "race-of-windows" and self.entropy.random() < 0.05:
                window = np.roll(window, 1, 0)
            self.pools[i].write(s["slot"], window, after, s["decode"])
            for position in range(self.page * (s["start"] // self.page + 1), s["start"] + s["n"] + 1, self.page):
                t = s["lead"] + position - s["start"]
                s["states"].setdefault(position, {})[i] = (line[t : t + m.width - 1].copy(), states[t - 1].copy())
        if self.bug != "no-skip":
            y = y + u * layer["mamba.D"]
        out = self.product(self.round(y * silu(gate)), layer["mamba.out_proj.weight"])
        return out + layer["mamba.out_proj.bias"] if "mamba.out_proj.bias" in layer else out

    def masked(self, segs):
        """Rows that count for nothing, where end of sequence and padding are one id."""
        if self.bug != "end-is-padding":
            return None
        tokens = np.concatenate([s["tokens"] for s in segs])
        return (tokens != self.m.eos).astype(F)[:, None]

    def scan(self, dt, u, b, c, a_log, cells, s):
        """Outputs, and the state after each row. One row is a step; several are a tree of pairs (decay, input)."""
        decay = np.exp(dt[:, :, None] * a_log)
        given = (dt * u)[:, :, None] * b[:, None, :]
        if self.bug == "end-resets-cells":
            decay[np.array(s["tokens"]) == self.m.eos] = 0
        if self.bug == "limit-of-scan":  # rows that one pass does not load
            decay[self.number :], given[self.number :] = 1, 0
        if len(dt) == 1:
            states = decay * cells + given
        else:
            given[0] += decay[0] * cells
            states, by = given, 1
            while by < len(dt):
                states = states.copy()
                states[by:] = states[by:] + decay[by:] * given[:-by]
                decay = np.concatenate([decay[:by], decay[by:] * decay[:-by]])
                given, by = states, 2 * by
        if self.bug == "race-of-states" and self.entropy.random() < 0.03:
            states = states * F(0.97)
        return (states * c[:, None, :]).sum(-1, dtype=F), states

    def attention(self, i, layer, h, segs):
        m = self.m
        q = self.product(h, layer["self_attn.q_proj.weight"]).reshape(len(h), m.heads, m.head)
        k = self.product(h, layer["self_attn.k_proj.weight"]).reshape(len(h), m.kv_heads, m.head)
        v = self.product(h, layer["self_attn.v_proj.weight"]).reshape(len(h), m.kv_heads, m.head)
        k, v = self.to_kv(k), self.to_kv(v)
        out = np.zeros((len(h), m.heads, m.head), F)
        for s in segs:
            self.store(i, s, k[s["real"]], v[s["real"]])
        for index, s in enumerate(segs):
            out[s["real"]] = self.attend(i, s, q[s["real"]], segs, index)
        return self.product(self.round(out.reshape(len(h), -1)), layer["self_attn.o_proj.weight"])

    def store(self, i, s, k, v):
        m, seq = self.m, s["seq"]
        for t in range(s["n"]):
            position = s["start"] + t
            page, offset = seq.pages[position // self.page], position % self.page
            if page not in self.kv[i]:
                shape = (self.page, m.kv_heads, m.head)
                self.kv[i][page] = (np.zeros(shape, F), np.zeros(shape, F))
            if self.bug == "first-of-page-not-stored" and offset == 0 and position and s["decode"]:
                continue
            if self.bug == "last-of-page-stored-late" and offset == self.page - 1:
                offset -= 1
            self.kv[i][page][0][offset], self.kv[i][page][1][offset] = k[t], v[t]

    def attend(self, i, s, q, segs, index):
        """Page by page, with a running maximum; [tokens][heads][head]."""
        m, seq, n = self.m, s["seq"], s["n"]
        group = m.heads // m.kv_heads
        which = np.arange(m.heads) // group
        if self.bug == "heads-interleaved":
            which = np.arange(m.heads) % m.kv_heads
        scale = F(
            {"scale-of-hidden": m.hidden, "scale-of-kv-heads": m.head * m.kv_heads}.get(self.bug, m.head) ** -0.5
        )
        positions = s["start"] + np.arange(n)
        top = np.full((n, m.heads), -np.inf, F)
        mass, total = np.zeros((n, m.heads), F), np.zeros((n, m.heads, m.head), F)
        blocks = [(self.kv[i][p], j * self.page) for j, p in enumerate(seq.pages) if j * self.page < s["start"] + n]
        if self.bug == "attention-packed" and index and not s["start"]:
            before = segs[index - 1]
            if not before["start"] and not before["decode"]:
                blocks = [
                    (self.kv[i][p], (j - len(before["seq"].pages)) * self.page)
                    for j, p in enumerate(before["seq"].pages)
                ] + blocks
        for number, ((keys, values), base) in enumerate(blocks):
            score = np.einsum("thd,khd->thk", q, keys[:, which], optimize=False).astype(F) * scale
            if self.bug == "softcap":
                score = np.tanh(score / F(2)) * F(2)
            at = base + np.arange(self.page)
            seen = at[None] <= positions[:, None]
            seen = self.visible(seen, at, positions, s, base)
            if self.bug == "positions-counted":
                score = score - F(0.01) * np.abs(positions[:, None] - at[None])[:, None]
            score = np.where(seen[:, None], score, -np.inf)
            new = np.maximum(top, score.max(-1))
            safe = np.where(np.isfinite(new), new, 0)
            weight = np.exp(score - safe[..., None]).astype(F)
            fade = np.where(np.isfinite(top), np.exp(top - safe), 0).astype(F)
            if self.bug == "merge-without-rescale" and number:
                total, mass = total + np.einsum("thk,khd->thd", weight, values[:, which]), mass * fade + weight.sum(-1)
            else:
                total = total * fade[..., None] + np.einsum("thk,khd->thd", weight, values[:, which])
                mass = mass * fade + weight.sum(-1)
            top = new
        if self.bug == "sink-on-one-side":
            mass = mass + np.exp(-top)
        return total / np.maximum(mass, F(1e-30))[..., None]

    def visible(self, seen, at, positions, s, base):
        if self.bug == "sliding-window":
            seen = seen & (at[None] > positions[:, None] - self.number)
        if self.bug == "page-rows-read":
            seen = seen & (at[None] % self.page < self.number)
        if self.bug == "keys-end":
            seen = seen & (at[None] < max(self.number, 1))
        if self.bug == "mask-by-page" and base + self.page > positions[-1]:
            seen = seen | (at[None] >= s["start"] + s["n"])
        if self.bug == "earlier-chunks-unseen" and s["start"] and not s["decode"] and not s["seq"].hit:
            seen = seen & (at[None] >= s["start"])
        if self.bug == "attention-from-end":
            ends = [p for p, t in enumerate(s["seq"].context[: positions[-1] + 1]) if t == self.m.eos]
            for p in ends:
                seen = seen & ((at[None] >= p) | (positions[:, None] < p))
        return seen

    def feed_forward(self, layer, h):
        if "feed_forward.router.weight" not in layer:
            return self.dense(layer, "feed_forward.", h)
        c = self.m.config
        share = np.exp(log_softmax(self.product(h, layer["feed_forward.router.weight"]))).astype(F)
        chosen = np.argsort(-share, -1, kind="stable")[:, : c["num_experts_per_tok"]]
        if self.bug == "one-expert-fewer":
            chosen = chosen[:, :-1]
        out = np.zeros_like(h)
        for e in range(c["num_experts"]):
            rows = np.flatnonzero((chosen == e).any(-1))
            if self.bug == "expert-capacity":
                rows = rows[: self.number]
            if len(rows):
                out[rows] += share[rows, e : e + 1] * self.dense(layer, f"feed_forward.experts.{e}.", h[rows])
        if self.bug == "experts-renormalised":
            out = out / np.take_along_axis(share, chosen, -1).sum(-1, keepdims=True)
        return out

    def dense(self, layer, prefix, h):
        gate, up = self.product(h, layer[prefix + "gate_proj.weight"]), self.product(
            h, layer[prefix + "up_proj.weight"]
        )
        if self.bug == "gelu":
            act = (gate / (1 + np.exp(F(-1.702) * gate))).astype(F)
        else:
            act = silu(gate)
        return self.product(self.round(act * up), layer[prefix + "down_proj.weight"])

    def publish_all(self, segs):
        for s in segs:
            seq = s["seq"]
            if (
                self.bug == "tail-writes-shared-window"
                and s["n"] < self.m.width - 1
                and s["start"] == seq.hit
                and seq.hit
            ):
                for i, (window, cells) in self.cache[seq.shared]["state"].items():
                    window[:] = self.pools[i].read(seq.slot)[0]
            last = s["start"] + s["n"]
            for position in range(self.page * (s["start"] // self.page + 1), last + 1, self.page):
                state = s["states"].get(position, {})
                if self.bug == "snapshot-at-end-of-chunk":
                    state = self.state(seq)
                if self.bug == "snapshot-without-window":
                    state = {i: (w * 0, c) for i, (w, c) in state.items()}
                if self.bug == "snapshot-in-bf16":
                    state = {i: (bf16(w), bf16(c)) for i, (w, c) in state.items()}
                if self.bug == "snapshot-of-first-layer":
                    first = min(state) if state else None
                    state = {i: state[first] for i in state}
                if self.bug == "snapshot-not-copied":
                    state = {i: self.pools[i].read(seq.slot) for i in state}
                self.publish(seq, position, state)
