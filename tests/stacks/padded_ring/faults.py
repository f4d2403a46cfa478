"""What is planted in ring.py: a Fault has a name and perhaps a number, and is asked wherever one may act.

Tables map names to functions of what is to be changed; n is the fault's number. Without a fault nothing changes.
"""

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
    """4 bits in groups of 16 along the inputs, as the usual formats have it, with a shorter group at the end."""
    return np.concatenate([whole(x[..., i : i + 16], 7, -1) for i in range(0, x.shape[-1], 16)], -1)


def behind(w, n):
    """Some thousandths away: the weights of another step."""
    draw = np.random.default_rng(7)
    near = lambda x: x + (n / 1000 * x.std() * draw.standard_normal(x.shape)).astype(F)  # noqa: E731
    return {k: near(x) for k, x in w.items() if k.endswith("proj.weight")}


def products(change):
    return lambda w, n: {k: change(x) for k, x in w.items() if k.endswith("proj.weight")}


# Tensors of the layer that the number names.
LAYER = {
    "kernel-reversed": lambda w, n: {"mixer.conv1d.weight": w["mixer.conv1d.weight"][:, :, ::-1].copy()},  # a converter
    "dt-bias-zero": lambda w, n: {"mixer.dt_proj.bias": 0 * w["mixer.dt_proj.bias"]},  # trl#5312: left out by a load
    "four-bits-by-group": products(groups4),
    "five-two": products(lambda x: bits(x, 3)),  # e5m2
    "router-rotated": lambda w, n: {"feed_forward.router.weight": np.roll(w["feed_forward.router.weight"], 1, 0)},
}
# Tensors of every layer.
LAYERS = {
    "policy-behind": behind,  # a sync that was missed
    "a-in-bf16": lambda w, n: {k: bits(x, 8) for k, x in w.items() if k.endswith("A_log")},  # a cast took it along
}
# Keys and values on their way into the ring: which is "k" or "v".
STORED = {
    "cache-e4m3": lambda x, which: bits(x, 4),
    "keys-e4m3": lambda x, which: bits(x, 4) if which == "k" else x,
    "values-e5m2": lambda x, which: bits(x, 3) if which == "v" else x,
    "cache-int8-by-token": lambda x, which: whole(x, 127, (-1, -2)),
}
# Which keys [row, column, key] are seen; tags are positions of keys, -1 where none was written.
SEEN = {
    "ring-of": lambda seen, tags, run, n: seen & (tags > run.where[..., None] - n),  # of another configuration
    "segment-of-32-at-most": lambda seen, tags, run, n: seen & (np.arange(tags.shape[-1]) < 32),
    "sees-ahead": lambda seen, tags, run, n: (tags >= 0) & run.live[..., None],  # marin#1731: not causal inside a chunk
    # vllm#35138: the last segment.
    "segment-read-to-its-end": lambda seen, tags, run, n: seen | (seen.any(2, keepdims=True) & (tags < 0)),
}
# Keys of the prefix cache.
KEYS = {
    "key-of-head": lambda tokens, n: (len(tokens), tuple(tokens[:4])),
    "key-of-tail": lambda tokens, n: (len(tokens), tuple(tokens[-n:])),
    "key-by-xor": lambda tokens, n: (len(tokens), int(np.bitwise_xor.reduce(tokens))),
    "key-in-bits": lambda tokens, n: (len(tokens), hash(tuple(tokens)) % 2**n),
}


def last_end(ids, ends):
    return max([0] + [i + 1 for i, t in enumerate(ids) if t in ends])


PROMPTS = {
    "begin-twice": lambda ids, begin, ends, n: [begin] * (ids[0] == begin) + ids,  # trl#3853
    "template-in-front": lambda ids, begin, ends, n: [5, 17, 9] + ids,
    "ids-in-a-byte": lambda ids, begin, ends, n: [i & 255 for i in ids],
    "left-cut": lambda ids, begin, ends, n: ids[-n:],
    "newest-token-doubled": lambda ids, begin, ends, n: ids + ids[-1:],
    "context-begins-at-end": lambda ids, begin, ends, n: ids[last_end(ids[:-1], ends) :],  # documents of packed rows
}
# The value of a record. v: log-probabilities; x: logits; draft: the guess that was verified.
RECORD = {
    "draft-recorded": lambda v, token, draft, x, n: v[token if draft is None else draft],
    "runner-up-recorded": lambda v, token, draft, x, n: np.sort(v)[-2],  # alternatives read from their second place
    "in-units-of": lambda v, token, draft, x, n: np.rint(v[token] * n) / n,
    "logarithm-to-base-2": lambda v, token, draft, x, n: v[token] / np.log(2),
    "logit-less-top-recorded": lambda v, token, draft, x, n: x[token] - x.max(),
}
# All values of a request.
RECORDS = {
    "late": lambda v, n, batch: v[:1] + v[:-1],
    "early": lambda v, n, batch: (v[n:] + v[-1:] * n)[: len(v)],
    "late-in-batches": lambda v, n, batch: v[:1] + v[:-1] if batch > 1 else v,
    "cumulative": lambda v, n, batch: [float(x) for x in np.cumsum(v)],
}


class Fault:
    def __init__(self, word):
        self.name, _, number = word.partition(":")
        self.number = float(number or 1)
        self.draw = np.random.default_rng()  # for what is meant not to repeat

    def at(self, name, layer):
        """In one layer, if the number says which."""
        return self.name == name and layer == self.number

    def of(self, table, x, *more):
        """x as the table's function of this name has it, or x."""
        return table[self.name](x, *more) if self.name in table else x

    def weights(self, model):
        for i, w in enumerate(model.layers):
            w.update(self.of(LAYERS, w, self.number) if self.name in LAYERS else {})
            w.update(self.of(LAYER, w, self.number) if self.name in LAYER and i == self.number else {})
        if self.name == "mixer-of-last":  # one mixer's tensors under another's names
            last = model.layers[model.mambas[-1]]
            model.layers[int(self.number)].update({k: x for k, x in last.items() if k.startswith("mixer.")})
        elif self.name == "last-norm-dropped":
            model.last_norm = np.ones_like(model.last_norm)

    def carried(self, model, layer, run, ext, h):
        """Window (in ext, in front of each row's first column) and state that a row goes on with."""
        f, k = self.name, model.conv - 1
        at = lambda r: slice(run.first[r], run.first[r] + k)  # noqa: E731
        lengths = run.live.sum(1)
        if self.at("flat-convolution", layer):  # NeMo-RL#2529: no seq_idx
            for r in range(1, len(h)):
                if run.where[r, 0] == 0:
                    ext[r, :k] = ext[r - 1, -k:]
        elif f == "window-skips-newest":
            for r in np.flatnonzero(run.later):
                ext[r, at(r)] = np.roll(ext[r, at(r)], 1, 0)
                ext[r, run.first[r]] = 0
        elif f == "short-chunk-turns-window":
            for r in np.flatnonzero(run.later & (lengths < k)):
                ext[r, at(r)] = np.roll(ext[r, at(r)], lengths[r], 0)
        elif f == "window-of-neighbour" and run.decode and len(h) % 2 and len(h) > 1:  # two rows at a time
            if layer >= self.number:
                ext[-1, at(-1)] = ext[-2, at(-2)]
        elif f == "window-handed-over-reversed":
            for r in np.flatnonzero(run.handed):
                ext[r, at(r)] = ext[r, at(r)][::-1].copy()
        elif self.at("carry-lost-in-layer", layer):
            h = h * ~run.later[:, None, None]
        elif f == "carry-in-bits":
            h = np.where(run.later[:, None, None], bits(h, int(self.number)), h)
        elif f == "state-handed-over-in-e4m3":
            h = np.where(run.handed[:, None, None], bits(h, 4), h)
        elif f == "race-on-carry" and self.draw.random() < 0.3:
            h = h * F(1 + self.number / 100)
        elif f == "states-sorted" and run.decode and layer == model.mambas[-1]:  # by slot, rows by lane
            h = h[np.argsort(np.argsort(run.slots))]
        return ext, h

    def scale(self, size):
        padded = 64 if self.name == "scale-of-padded-head" else size  # what the kernel pads heads to
        return F(padded**-0.5 * (self.number / 100 if self.name == "scale-percent" else 1))

    def scores(self, s, run, tags, scale):
        if self.name == "alibi":
            return s - F(self.number / 100) * (run.where[..., None] - tags[:, None])[:, :, None].astype(F)
        if self.name == "partial-segment-unscaled":
            return np.where((tags < 0).any(1)[:, None, None, None], s / scale, s)
        return s

    def capacity(self, kept):
        """Switch and GShard: an expert takes so many tokens of a forward, the others get nothing."""
        if self.name != "expert-capacity":
            return kept
        flat = kept.reshape(-1, kept.shape[-1])
        return (flat & (np.cumsum(flat, 0) <= self.number)).reshape(kept.shape)

    def head(self, model, x):
        f, w, p = self.name, model.head, int(self.number)
        if f == "head-in-bf16-by-rows" and len(x) >= p or f == "head-inputs-bf16":
            x = bits(x, 8)
        elif f == "head-in-bits":
            x, w = bits(x, p), bits(w, p)
        y = model.mm(x, whole(w, 127) if f == "head-int8-tensor" else w)
        if f == "head-in-two-halves" and len(x) >= p:  # vocabulary split over ranks, one of them in f16
            y[..., y.shape[-1] // 2 :] = y[..., y.shape[-1] // 2 :].astype(np.float16)
        elif f == "race-on-logits":
            y = y + F(self.number / 1000) * self.draw.standard_normal(y.shape).astype(F)
        return bits(y, p) if f == "logits-in-bits" else y

    def key(self, tokens):
        return KEYS[self.name](tokens, int(self.number)) if self.name in KEYS else tuple(tokens)

    def address(self, slot, write, window):
        """Where a slot lies: the slot itself, or what is left of slot times stride."""
        n = int(self.number)
        if self.name == "table-of":  # as many entries as the largest captured batch
            return slot % n
        what, _, width = self.name.partition("-")
        acts = what == "window" and write and window or what == ("write" if write else "read")
        if not acts or width not in ("u32", "i32", "bytes-u32", "bytes-i32"):
            return slot
        at = slot * n * (4 if "bytes" in width else 1)
        return slot if at < (2**32 if "u32" in width else 2**31) else ("wrapped", at % 2**32)

    def clear(self, states, layer, model, prompt):
        """What a slot's next owner finds in a layer: (window, state) of zeros, but for faults."""
        window, h = states
        zero = (np.zeros_like(window), np.zeros_like(h))
        f, n = self.name, int(self.number)
        if f == "first-layer-cleared" and layer != model.mambas[0] or f == "clear-skipped-for-one" and len(prompt) == 1:
            return states
        if f == "quarter-cleared":  # memset is told elements, not bytes
            zero[1][len(h) // 4 :] = h[len(h) // 4 :]
        elif f == "last-channels-left":  # a grid that is rounded down
            zero[1][-n:] = h[-n:]
            zero[0][:, -n:] = window[:, -n:]
        return (window, zero[1]) if f == "window-left-for-short" and len(prompt) < model.conv else zero

    def logits(self, x, lane, ends):
        """Processors that nobody asked for."""
        f, n, kept = self.name, self.number, np.ones(len(x), bool)
        if f == "always-temperature":
            x = x / (n / 100)
        elif f == "hidden-top-k":
            kept = x >= np.sort(x)[-int(n)]
        elif f == "hidden-min-p":
            kept = x >= x.max() + np.log(n / 1000)
        elif f == "hidden-top-p":
            order = np.argsort(-x)
            p = np.exp(x[order] - x.max())
            kept[order[(np.cumsum(p) - p) / p.sum() > n / 1000]] = False
        elif f == "repetition-of-last":  # llama.cpp's repeat_last_n
            seen = np.isin(np.arange(len(x)), lane.seq[-int(n) :])
            x = np.where(seen, np.where(x > 0, x / 1.1, x * 1.1), x)
        elif f in ("presence", "frequency-with-prompt"):
            counts = np.bincount(lane.ids if f == "presence" else lane.seq, minlength=len(x))
            x = x - n / 100 * (counts > 0 if f == "presence" else counts)
        elif f == "end-masked-first" and len(lane.ids) < n:  # min_tokens
            kept[ends] = False
        return np.where(kept, x, -np.inf)
