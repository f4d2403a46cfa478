"""What is planted in ring.py: a Fault has a name and perhaps a number, and is asked wherever one may act."""

import numpy as np

from rectangle import F, bits, whole


class Fault:
    def __init__(self, word):
        self.name, _, number = word.partition(":")
        self.number = float(number or 1)
        self.draw = np.random.default_rng()  # for what is meant not to repeat

    def at(self, name, layer):
        """In one layer, if a number says which."""
        return self.name == name and layer == self.number

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
        elif f == "short-chunk-keeps-newest":  # the part of the window that the chunk does not replace is dropped
            for r in np.flatnonzero(run.later & (lengths < k)):
                ext[r, run.first[r] : run.first[r] + k - lengths[r]] = 0
        elif f == "window-of-neighbour" and run.decode and len(h) % 2 and len(h) > 1:  # two rows at a time
            if layer >= self.number:
                ext[-1, at(-1)] = ext[-2, at(-2)]
        elif f == "mixed-step-window" and run.live.shape[1] > 1:  # read at the left of the rectangle
            for r in np.flatnonzero(~run.prefill):
                ext[r, at(r)] = 0
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
        elif f == "state-of-row-zero" and run.decode:  # a broadcast: one share of another row
            h = h + F(self.number / 1000) * h[:1]
        return ext, h

    def stored(self, x, which, kv):
        f = self.name
        if kv == "f16":
            x = x.astype(np.float16).astype(F)
        if f == "cache-e4m3" or f == "keys-e4m3" and which == "k":
            return bits(x, 4)
        if f == "values-e5m2" and which == "v":
            return bits(x, 3)
        if f == "cache-int8-by-token":
            return whole(x, 127, (-1, -2))
        if f == "cache-int8-static":  # one scale from a calibration, too small for some
            s = F(self.number / 100 / 127)
            return np.clip(np.rint(x / s), -127, 127).astype(F) * s
        return x

    def scale(self, size):
        if self.name == "scale-of-padded-head":  # heads are padded up to 64 in the kernel
            size = 64
        return size**-0.5 * (self.number / 100 if self.name == "scale-percent" else 1)

    def scores(self, s, run, segment, scale):
        distance = run.where[:, :, None] - segment["tags"][:, None]
        if self.name == "alibi":
            return s - F(self.number / 100) * distance[:, :, None].astype(F)
        if self.name == "partial-segment-unscaled":
            return np.where((segment["tags"] < 0).any(1)[:, None, None, None], s / F(scale), s)
        if self.name == "table-of-positions":  # Jamba has none: a bias by parity of the distance
            return s + F(self.number / 100) * (distance % 2)[:, :, None].astype(F)
        return s

    def copies(self, seen, segment):
        """How often each key counts."""
        n = np.ones(seen.shape, F)
        if self.name == "border-key-twice" and segment["at"]:
            n[..., 0] = 2
        return n

    def seen(self, seen, run, segment):
        f, tags = self.name, segment["tags"][:, None]
        if f == "ring-of":  # as many keys as the ring of a smaller configuration has
            return seen & (tags > run.where[..., None] - self.number)
        if f == "segment-of-32-at-most":
            return seen & (np.arange(tags.shape[-1]) < 32)
        if f == "sees-ahead":  # marin#1731: not causal inside a chunk
            return (tags >= 0) & run.live[..., None] & (tags <= run.where.max(1)[:, None, None])
        if f == "segment-read-to-its-end":  # vllm#35138
            return seen | ((tags < 0) & (segment["tags"] >= 0).any(1)[:, None, None] & run.live[..., None])
        return seen

    def capacity(self, kept):
        """Switch and GShard: an expert takes so many tokens of a forward, the others get nothing."""
        if self.name != "expert-capacity":
            return kept
        flat = kept.reshape(-1, kept.shape[-1])
        return (flat & (np.cumsum(flat, 0) <= self.number)).reshape(kept.shape)

    def head(self, model, x, run):
        f, w = self.name, model.head
        if f == "head-in-bf16-by-rows" and len(x) >= self.number or f == "head-inputs-bf16":
            x = bits(x, 8)
        elif f == "head-in-bits":
            x, w = bits(x, int(self.number)), bits(w, int(self.number))
        elif f == "head-int8-tensor":
            w = whole(w, 127)
        elif f == "head-sums-f16":  # accumulated in half, as old tensor cores may
            y = np.zeros(x.shape[:-1] + (w.shape[0],), F)
            for i in range(0, w.shape[1], 4):
                y = (y + x[..., i : i + 4] @ w[:, i : i + 4].T).astype(np.float16).astype(F)
            return y
        y = model.mm(x, w)
        if f == "logits-in-bits":
            y = bits(y, int(self.number))
        elif f == "head-in-two-halves" and len(x) >= self.number:  # vocabulary split over ranks, one of them in f16
            y[..., y.shape[-1] // 2 :] = y[..., y.shape[-1] // 2 :].astype(np.float16)
        elif f == "race-on-logits":
            y = y + F(self.number / 1000) * self.draw.standard_normal(y.shape).astype(F)
        return y

    def key(self, tokens):
        """The prefix cache's."""
        f, n = self.name, len(tokens)
        if f == "key-of-head":
            return n, tuple(tokens[:4])
        if f == "key-of-tail":
            return n, tuple(tokens[-int(self.number) :])
        if f == "key-by-xor":
            return n, int(np.bitwise_xor.reduce(tokens))
        if f == "key-in-bits":
            return n, hash(tuple(tokens)) % 2 ** int(self.number)
        return tuple(tokens)

    def address(self, slot, write, window):
        """Where a slot lies: the slot itself, or what is left of slot times stride."""
        f, n = self.name, int(self.number)
        if f == "table-of":  # as many entries as the largest captured batch
            return slot % n
        what, _, rest = f.partition("-")
        if what not in ("read", "write", "window") or rest not in ("u32", "i32", "bytes-u32", "bytes-i32"):
            return slot
        if what == "window" and not window or what != "window" and write != (what == "write"):
            return slot
        if what == "window" and not write:
            return slot
        at = slot * n * (4 if "bytes" in rest else 1)
        return slot if at < (2**32 if "u32" in rest else 2**31) else ("wrapped", at % 2**32)

    def clear(self, states, layer, model, prompt):
        """What a slot's next owner finds in a layer: (window, state) of zeros, but for faults."""
        window, h = states
        zero = (np.zeros_like(window), np.zeros_like(h))
        f, n = self.name, len(prompt)
        if f == "first-layer-cleared" and layer != model.mambas[0] or f == "clear-skipped-for-one" and n == 1:
            return states
        if f == "quarter-cleared":  # memset is told elements, not bytes
            zero[1][len(h) // 4 :] = h[len(h) // 4 :]
        elif f == "last-channels-left":  # a grid that is rounded down
            zero[1][-int(self.number) :] = h[-int(self.number) :]
            zero[0][:, -int(self.number) :] = window[:, -int(self.number) :]
        elif f == "window-left-for-short" and n < model.conv:
            return window, zero[1]
        return zero

    def prompt(self, ids, config):
        f, begin = self.name, config["bos_token_id"]
        if f == "begin-twice" and ids[0] == begin:
            return [begin] + ids
        if f == "template-in-front":
            return [5, 17, 9] + ids
        if f == "ids-in-a-byte":
            return [i & 255 for i in ids]
        if f == "left-cut":
            return ids[-int(self.number) :]
        if f == "newest-token-doubled":
            return ids + ids[-1:]
        ends = config["eos_token_id"] if isinstance(config["eos_token_id"], list) else [config["eos_token_id"]]
        if f == "context-begins-at-end":  # documents told apart by the end of sequence
            last = max([i for i, t in enumerate(ids[:-1]) if t in ends] + [-1])
            return ids[last + 1 :]
        if f == "end-stripped":
            return [i for i in ids if i not in ends] or ids
        return ids

    def logits(self, x, lane, ends):
        """Processors that nobody asked for."""
        f, n = self.name, self.number
        kept = np.ones(len(x), bool)
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
            seen = np.unique(lane.seq[-int(n) :])
            x = x.copy()
            x[seen] = np.where(x[seen] > 0, x[seen] / 1.1, x[seen] * 1.1)
        elif f in ("presence", "frequency-with-prompt"):
            counts = np.bincount(lane.ids if f == "presence" else lane.seq, minlength=len(x))
            x = x - n / 100 * (counts > 0 if f == "presence" else counts)
        elif f == "end-masked-first" and len(lane.ids) < n:  # min_tokens
            kept[ends] = False
        return np.where(kept, x, -np.inf)

    def record(self, values, token, draft, x):
        f = self.name
        if f == "draft-recorded" and draft is not None:
            return values[draft]
        if f == "runner-up-recorded":  # a list of alternatives, read from its second place
            return np.sort(values)[-2]
        if f == "clamped-at":
            return max(values[token], -self.number)
        if f == "in-units-of":
            return np.rint(values[token] * self.number) / self.number
        if f == "binary-logarithm-of-head":
            return values[token] / np.log(2)
        if f == "logit-recorded-less-top":  # the sum is forgotten
            return x[token] - x.max()
        return values[token]

    def recorded(self, values, batch):
        f = self.name
        if f == "late":
            return values[:1] + values[:-1]
        if f == "early":
            return values[int(self.number) :] + values[-1:] * min(int(self.number), len(values))
        if f == "late-in-batches" and batch > 1:
            return values[:1] + values[:-1]
        if f == "cumulative":  # cumulative_logprob
            return [float(v) for v in np.cumsum(values)]
        return values
