#!/usr/bin/env python3
"""A serving stack for Jamba in numpy, of another make than ../engine.py, wrong in one way if asked.

Every forward takes the tokens of all sequences as one list of rows: chunks of prompts and single tokens of decode side
by side. Dense products are split along K and added from the last part to the first, the scan of a chunk is a tree of
pairs, attention goes page by page with a running maximum. State lies in pools by slot and in pages; the prefix cache
has one entry for each full page of tokens, named by the chain of pages before it; slots and pages come back last in,
first out; the newest sequence is the one that is taken out. So its float noise is its own, and follows who shares a
forward.

`--bug NAME[:NUMBER]` plants a fault (fresh_cases.py says which stack had it), `--arith`, `--kv` and `--load` choose
what it computes in, `--obeys A,B` the levers that it has: others are taken and ignored, and not reported. `--silent
yes` reports none.
"""

import hashlib
import json
import os
import struct
import time

import numpy as np
import protocol

F = np.float32
LEVERS = (
    "samples",
    "batch",
    "chunk",
    "tick-tokens",
    "page",
    "pages",
    "slots",
    "slot-base",
    "slot-words",
    "policy",
    "prefix",
    "fork",
    "preempt-every",
    "preempt-by",
    "sleep-every",
)
DEFAULTS = {
    "model": "",
    "prompts": "",
    "out": "",
    "max-tokens": 16,
    "temperature": 1.0,
    "seed": 0,
    "logprobs": "raw",
    "samples": 1,
    "batch": 16,
    "chunk": 24,
    "tick-tokens": 0,
    "page": 8,
    "pages": 0,
    "slots": 0,
    "slot-base": 0,
    "slot-words": 0,
    "policy": "lifo",
    "prefix": "on",
    "fork": "off",
    "preempt-every": 0,
    "preempt-by": "recompute",
    "sleep-every": 0,
    "ignore-eos": False,
    "bug": "",
    "arith": "f32",
    "kv": "f32",
    "load": "",
    "silent": "no",
    "obeys": "samples,batch,chunk,tick-tokens,page,pages,slots,slot-base,prefix,fork,preempt-every,preempt-by,"
    "sleep-every",
}


# Number formats


def mantissa(x, bits, lowest=-126):
    """To `bits` of mantissa after the leading one, to nearest even, with a least exponent as formats have it."""
    x = np.asarray(x, F)
    exponent = np.maximum(np.frexp(np.where(np.isfinite(x), x, 0))[1] - 1, lowest)
    step = np.ldexp(F(1), exponent - bits).astype(F)
    return (np.rint(x / step) * step).astype(F)


def bf16(x):
    return mantissa(x, 7)


def f16(x):
    return np.asarray(x, F).astype(np.float16).astype(F)


def tf32(x):
    return mantissa(x, 10)


def e4m3(x):
    return np.clip(mantissa(x, 3, -6), -448, 448)


def e5m2(x):
    return np.clip(mantissa(x, 2, -14), -57344, 57344)


def integers(x, bits, axis=None):
    """Symmetric integers of so many bits, with one scale for all or one along an axis."""
    most = 2 ** (bits - 1) - 1
    scale = np.maximum(np.abs(x).max(axis=axis, keepdims=axis is not None), 1e-12) / most
    return (np.rint(x / scale) * scale).astype(F)


FORMATS = {
    "f32": lambda x: x,
    "bf16": bf16,
    "f16": f16,
    "tf32": tf32,
    "e4m3": e4m3,
    "e5m2": e5m2,
    "e4m3-small": lambda x: e4m3(x / 64) * 64,
    "int8": lambda x: integers(x, 8),
    "int4": lambda x: integers(x, 4),
    "int8-row": lambda x: integers(x, 8, -1),
    "int4-row": lambda x: integers(x, 4, -1),
}


# The model


def read(directory):
    weights = {}
    for name in sorted(n for n in os.listdir(directory) if n.startswith("model") and n.endswith(".safetensors")):
        with open(os.path.join(directory, name), "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header, data = json.loads(file.read(size)), file.read()
        header.pop("__metadata__", None)
        for key, t in header.items():
            raw = data[slice(*t["data_offsets"])]
            if t["dtype"] == "BF16":
                flat = np.left_shift(np.frombuffer(raw, "<u2").astype(np.uint32), 16).view(F)
            else:
                flat = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(F)
            weights[key] = flat.reshape(t["shape"]).copy()
    return weights


def older(w, by, salt):
    """The weights of an earlier step: every element somewhat elsewhere."""
    draws = np.random.default_rng([salt, w.size]).standard_normal(w.shape)
    return (w * (1 + by * draws)).astype(F)


class Model:
    """The checkpoint as this stack loads it; faults of loading and of weight updates are planted here."""

    def __init__(self, directory, bug, load):
        c = json.load(open(os.path.join(directory, "config.json")))
        self.config, w = c, read(directory)
        if load:
            w = {k: FORMATS[load](v) if v.ndim > 1 and "conv1d" not in k else v for k, v in w.items()}
        self.hidden, self.vocab = c["hidden_size"], c["vocab_size"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head = self.hidden // self.heads
        self.inner, self.states = c["mamba_expand"] * self.hidden, c["mamba_d_state"]
        rank = c["mamba_dt_rank"]
        self.rank = -(-self.hidden // 16) if rank == "auto" else rank
        self.width, self.eps = c["mamba_d_conv"], c["rms_norm_eps"]
        eos = c["eos_token_id"]
        self.eos = eos[0] if isinstance(eos, list) else eos
        self.bos, self.pad = c["bos_token_id"], c["pad_token_id"]
        self.layers = []
        for i in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{i}."
            self.layers.append({k[len(prefix) :]: v for k, v in w.items() if k.startswith(prefix)})
        self.is_attention = ["self_attn.q_proj.weight" in layer for layer in self.layers]
        self.embed, self.norm = w["model.embed_tokens.weight"], w["model.final_layernorm.weight"]
        self.unembed = w.get("lm_head.weight", self.embed)
        self.damage(bug)
        # The older policy, for paths recorded before the last update.
        self.before = [
            {
                k: older(v, 0.05, 7)
                for k, v in layer.items()
                if k.endswith("in_proj.weight") or k.endswith("up_proj.weight")
            }
            for layer in self.layers
        ]

    def damage(self, bug):
        name, _, number = bug.partition(":")
        at = int(number) if number.lstrip("-").isdigit() else 0
        layer = self.layers[at % len(self.layers)]
        if name == "gate-up-exchanged":
            a, b = "feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"
            layer[a], layer[b] = layer[b], layer[a]
        elif name == "in-proj-halves-exchanged":
            w = layer["mamba.in_proj.weight"]
            layer["mamba.in_proj.weight"] = np.concatenate([w[self.inner :], w[: self.inner]])
        elif name == "norm-dropped":
            layer["pre_ff_layernorm.weight"] = np.ones(self.hidden, F)
        elif name == "scale-dropped":
            key = next(
                k for k in ("feed_forward.down_proj.weight", "feed_forward.experts.0.down_proj.weight") if k in layer
            )
            w = layer[key].copy()
            w[: len(w) // 4] *= F(0.5)
            layer[key] = w
        elif name == "layer-four-bits":
            layer.update({k: integers(v, 4, -1) for k, v in layer.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "layer-eight-bits":
            layer.update({k: e4m3(v * 8) / 8 for k, v in layer.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "layer-older":
            layer.update({k: older(v, 0.02, 3) for k, v in layer.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "layer-of-next":
            other = self.layers[(at + 1) % len(self.layers)]
            layer.update(
                {
                    k: v
                    for k, v in other.items()
                    if k in layer and k.startswith("feed_forward") and v.shape == layer[k].shape
                }
            )
        elif name == "experts-exchanged":
            for kind in ("gate", "up", "down"):
                a, b = (f"feed_forward.experts.{e}.{kind}_proj.weight" for e in (0, 2))
                layer[a], layer[b] = layer[b], layer[a]
        elif name == "head-of-older-policy":
            self.unembed = older(self.unembed, 0.02, 11)
        elif name == "all-older":
            by = at / 10000
            self.layers = [
                {k: older(v, by, i) if v.ndim == 2 else v for k, v in x.items()} for i, x in enumerate(self.layers)
            ]
        elif name == "adapter-not-delivered":
            draws = np.random.default_rng(5)
            for x, attends in zip(self.layers, self.is_attention):
                key = "self_attn.q_proj.weight" if attends else "mamba.in_proj.weight"
                rows, columns = x[key].shape
                a, b = draws.standard_normal((rows, 2)), draws.standard_normal((2, columns))
                x[key] = (x[key] - 0.01 * (a @ b)).astype(F)
        elif name == "all-eight-bits":
            for x in self.layers:
                x.update({k: integers(v, 8, -1) for k, v in x.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "embedding-four-bits":
            self.embed = integers(self.embed, 4, -1)
        elif name == "bias-not-loaded":
            for x in self.layers:
                if "mamba.conv1d.bias" in x:
                    x["mamba.conv1d.bias"] = np.zeros_like(x["mamba.conv1d.bias"])
        elif name == "skip-not-loaded":
            for x in self.layers:
                if "mamba.D" in x:
                    x["mamba.D"] = np.ones_like(x["mamba.D"]) * F(1.1)


def silu(x):
    return (x / (1 + np.exp(-x))).astype(F)


def log_softmax(x):
    x = x.astype(float)
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))


# Memory


class Free:
    """Numbers that are free, without a list of those that nobody has had yet."""

    def __init__(self, count, base, policy):
        self.count, self.base, self.policy, self.fresh, self.back = count, base, policy, 0, []

    def __len__(self):
        return self.count - self.fresh + len(self.back)

    def take(self):
        if self.policy == "fifo" and self.fresh < self.count or not self.back:
            self.fresh += 1
            return (self.base + self.fresh - 1) % self.count
        if self.policy == "fifo":
            return self.back.pop(0)
        if self.policy in ("lowest", "highest"):
            self.back.sort(reverse=self.policy == "lowest")
        return self.back.pop()

    def give(self, number):
        self.back.append(number)


class Pool:
    """The recurrent state of one layer, by slot: convolution window, then scan state, one slot every `stride` words."""

    def __init__(self, model, stride, bug, number):
        self.window, self.cells = (model.width - 1, model.inner), (model.inner, model.states)
        self.split = self.window[0] * self.window[1]
        self.size = self.split + self.cells[0] * self.cells[1]
        self.stride, self.bug, self.number, self.slots = max(stride, self.size), bug, number, {}

    def slot(self, k):
        if k not in self.slots:
            self.slots[k] = np.zeros(self.size, F)
        return self.slots[k]

    def read(self, k, decode=False):
        if self.bug == "slot-id-narrow-both":
            k %= self.number
        if self.bug == "decode-reads-narrow-slot" and decode:
            k %= self.number
        flat = self.slot(k)
        return flat[: self.split].reshape(self.window), flat[self.split :].reshape(self.cells)

    def write(self, k, window, cells, decode=False):
        if self.bug == "slot-id-narrow-both":
            k %= self.number
        to_window, to_cells = k * self.stride, k * self.stride + self.split
        if not decode:
            narrow = {"scan-offset-u32": 2**32, "scan-bytes-u32": 2**30}.get(self.bug)
            if narrow:
                to_cells = k * self.stride % narrow + self.split
            if (
                self.bug == "scan-offset-i32"
                and to_cells >= 2**31
                or self.bug == "scan-bytes-i32"
                and 4 * k * self.stride >= 2**31
            ):
                to_cells = None  # a negative address: nothing of this pool
            if self.bug == "window-bytes-u32":
                to_window = k * self.stride * 4 % 2**32 // 4
            if self.bug == "slot-id-narrow":
                to_window, to_cells = k % self.number * self.stride, k % self.number * self.stride + self.split
        self.put(to_window, window.ravel())
        if to_cells is not None:
            self.put(to_cells, cells.ravel())

    def put(self, word, values):
        """Words of the pool, wherever they lie: a write that lands elsewhere hits whoever is there."""
        while len(values):
            k, offset = divmod(word, self.stride)
            room = self.stride - offset
            inside = min(len(values), room, max(self.size - offset, 0))
            if inside:
                self.slot(k)[offset : offset + inside] = values[:inside]
            word, values = word + min(room, len(values)), values[room:]


class Sequence:
    def __init__(self, request, prompt, most):
        self.request, self.prompt, self.most = request, prompt, most
        self.ids, self.lp, self.done, self.slot, self.pages, self.hit = [], [], 0, None, [], 0
        self.preempted, self.drawn, self.swapped, self.keys, self.fresh, self.row = 0, 0, None, [], True, None
        self.resumed = False

    @property
    def context(self):
        return self.prompt + self.ids


# The stack


class Stack:
    def __init__(self, model, o):
        self.m, self.o = model, o
        self.bug, _, number = o["bug"].partition(":")
        self.number = int(number) if number.lstrip("-").isdigit() else 0
        self.page, self.step_number = o["page"], 0
        count = o["slots"] or 64
        self.free_slots = Free(count, o["slot-base"] % count, o["policy"])
        self.free_pages = Free(o["pages"] or 1 << 20, 0, "lifo")
        stride = o["slot-words"] or (90112 if self.bug == "scan-offset-u32" and self.number else 89600)
        self.pools = {i: Pool(model, stride, self.bug, self.number) for i, a in enumerate(model.is_attention) if not a}
        self.kv = {i: {} for i, a in enumerate(model.is_attention) if a}
        self.owners, self.cache, self.groups, self.table = {}, {}, {}, []
        self.waiting, self.running, self.swapped = [], [], {}
        self.rough = {"f32": lambda x: x, "tf32": tf32, "bf16": bf16, "f16": f16}[o["arith"]]
        self.to_kv = FORMATS[o["kv"]]
        self.decoding = 0
        self.entropy = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))

    # Arithmetic

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

    # Slots, pages, prefix cache

    def key(self, before, tokens):
        if self.bug == "key-of-page-alone":
            before = b""
        if self.bug == "key-without-last-tokens":
            tokens = tokens[:-2]
        if self.bug == "key-of-first-token":  # an edge of a tree, compared by where it begins
            tokens = tokens[:1]
        digest = hashlib.md5(before + struct.pack(f"<{len(tokens)}q", *tokens)).digest()
        if self.bug == "key-narrow":
            return bytes([digest[0] % self.number])
        return digest

    def look_up(self, seq):
        """The longest chain of pages that the cache has and that leaves a token to compute."""
        context, key, entries = seq.context, b"", []
        while (len(entries) + 1) * self.page < len(context):
            key = self.key(key, context[len(entries) * self.page : (len(entries) + 1) * self.page])
            if key not in self.cache:
                break
            entries.append(key)
        if not entries:
            return
        entry = self.cache[entries[-1]]
        if entry["state"] is None:
            if self.bug != "published-early":
                return
        for k in entries:
            self.cache[k]["used"] = self.step_number
        seq.done = len(entries) * self.page
        seq.hit, seq.keys, seq.pages = seq.done, entries, [self.cache[k]["page"] for k in entries]
        for p in seq.pages:
            self.owners[p] = self.owners.get(p, 0) + 1
        seq.fresh = False
        if self.bug == "attention-hit-alone":
            self.clear(seq)
            return
        for i, (window, cells) in (entry["state"] or {}).items():
            self.pools[i].write(seq.slot, window, cells, True)
        if entry["state"] is None:
            self.clear(seq)
        seq.shared = entries[-1]

    def publish(self, seq, position, state):
        """The page that ends at `position` and the state after it."""
        index = position // self.page - 1
        if index != len(seq.keys):
            return
        tokens = seq.context[index * self.page : position]
        key = self.key(seq.keys[-1] if seq.keys else b"", tokens)
        seq.keys.append(key)
        known = self.cache.get(key)
        if known is not None and known["state"] is None:
            known["state"] = state
        if known is not None:
            return
        page = seq.pages[index]
        self.owners[page] += 1
        self.cache[key] = {"page": page, "state": state, "used": self.step_number}

    def evict(self):
        key = min(
            (k for k in self.cache if self.owners[self.cache[k]["page"]] == 1),
            key=lambda k: self.cache[k]["used"],
            default=None,
        )
        if key is None:
            return False
        self.release(self.cache.pop(key)["page"])
        return True

    def release(self, page):
        self.owners[page] -= 1
        if not self.owners[page]:
            del self.owners[page]
            self.free_pages.give(page)

    def grow(self, seq, length):
        while len(seq.pages) * self.page < length:
            while not len(self.free_pages):
                if self.evict():
                    continue
                victim = next((s for s in reversed(self.running) if s is not seq), None)
                if victim is None:
                    raise RuntimeError(f"{length} tokens do not fit into the pages")
                self.take_out(victim)
            page = self.free_pages.take()
            self.owners[page] = 1
            seq.pages.append(page)

    def clear(self, seq):
        for i, pool in self.pools.items():
            window, cells = pool.read(seq.slot)
            window, cells = np.zeros_like(window), np.zeros_like(cells)
            old_window, old_cells = pool.read(seq.slot)
            if self.bug == "cells-not-cleared" or self.bug == "cells-not-cleared-in-layer" and i == self.number:
                cells = old_cells.copy()
            if self.bug == "window-not-cleared":
                window = old_window.copy()
            if self.bug == "clear-overtaken":  # the fill had done half of the channels when the scan began
                cells[len(cells) * 3 // 4 :] = old_cells[len(cells) * 3 // 4 :]
            if self.bug == "resumed-on-old-state" and seq.preempted:
                continue
            if self.bug == "first-chunk-of-one-is-decode" and 1 in (len(seq.context) - seq.done, self.o["chunk"]):
                continue
            pool.write(seq.slot, window, cells, True)

    # Scheduling

    def admit(self):
        o, later = self.o, []
        while self.waiting and len(self.running) < o["batch"] and len(self.free_slots):
            seq = self.waiting.pop(0)
            group = seq.request["index"] if o["fork"] == "on" and o["samples"] > 1 else None
            saved = self.groups.get(group)
            if group is not None and saved is None and seq.request["sample"] and not seq.preempted:
                later.append(seq)
                continue
            seq.slot = self.free_slots.take()
            self.running.append(seq)
            if seq.swapped:
                self.swap_in(seq)
            elif saved and seq.request["sample"] and not seq.ids:
                self.fork(seq, saved)
            else:
                seq.fresh = True
                if o["prefix"] != "off":
                    self.look_up(seq)
                if seq.fresh:
                    self.clear(seq)
                if self.bug == "published-early" and o["prefix"] != "off":
                    self.publish_unwritten(seq)
        self.waiting = later + self.waiting

    def publish_unwritten(self, seq):
        """The pages of a first chunk, when it is planned: who comes in the same step finds no state there."""
        length = min(self.o["chunk"] or 1 << 20, len(seq.context))
        self.grow(seq, length)
        key = b""
        for index in range(length // self.page):
            key = self.key(key, seq.context[index * self.page : (index + 1) * self.page])
            if key not in self.cache:
                self.cache[key] = {"page": seq.pages[index], "state": None, "used": self.step_number}
                self.owners[seq.pages[index]] += 1

    def state(self, seq):
        return {i: tuple(x.copy() for x in pool.read(seq.slot)) for i, pool in self.pools.items()}

    def fork(self, seq, saved):
        full = len(seq.prompt) // self.page
        seq.pages, seq.done, seq.row, seq.fresh = list(saved["pages"][:full]), len(seq.prompt), saved["row"], False
        for p in seq.pages:
            self.owners[p] += 1
        seq.keys = list(saved["keys"])
        if len(saved["pages"]) > full:
            last = saved["pages"][full]
            if self.bug == "fork-shares-last-page":
                seq.pages.append(last)
                self.owners[last] += 1
            else:
                self.grow(seq, len(seq.prompt))
                for layer in self.kv.values():
                    layer[seq.pages[-1]] = tuple(x.copy() for x in saved["last"][id(layer)])
        for i, (window, cells) in saved["state"].items():
            if self.bug == "fork-without-window":
                window = np.zeros_like(window)
            self.pools[i].write(seq.slot, window, cells, True)

    def keep_for_samples(self, seq, row):
        if (
            self.o["fork"] != "on"
            or self.o["samples"] < 2
            or seq.request["sample"]
            or seq.ids
            or seq.request["index"] in self.groups
        ):
            return
        last = {id(layer): tuple(x.copy() for x in layer[seq.pages[-1]]) for layer in self.kv.values()}
        for p in seq.pages:
            self.owners[p] += 1
        self.groups[seq.request["index"]] = {
            "pages": list(seq.pages),
            "keys": list(seq.keys),
            "state": self.state(seq),
            "row": row,
            "last": last,
        }

    def leave(self, seq):
        self.running.remove(seq)
        for p in seq.pages:
            self.release(p)
        self.free_slots.give(seq.slot)
        seq.pages, seq.keys = [], []

    def take_out(self, seq, how=None):
        how = how or self.o["preempt-by"]
        seq.preempted += 1
        if how == "swap" or how == "alternate" and seq.preempted % 2:
            state = self.state(seq)
            if self.bug == "swap-without-cells":
                state = {i: (window, cells * 0) for i, (window, cells) in state.items()}
            if self.bug == "swap-without-window":
                state = {i: (window * 0, cells) for i, (window, cells) in state.items()}
            if self.bug == "swap-in-half":
                state = {i: (bf16(window), bf16(cells)) for i, (window, cells) in state.items()}
            pages = [[tuple(x.copy() for x in layer[p]) for p in seq.pages] for layer in self.kv.values()]
            seq.swapped = (state, pages, seq.done)
        else:
            seq.done = 0
        seq.drawn = 0
        self.leave(seq)
        self.waiting.insert(0, seq)

    def swap_in(self, seq):
        state, pages, done = seq.swapped
        seq.swapped, seq.fresh, seq.keys, seq.pages = None, False, [], []
        self.grow(seq, done)
        for layer, kept in zip(self.kv.values(), pages):
            layer.update(zip(seq.pages, kept))
        for i, (window, cells) in state.items():
            self.pools[i].write(seq.slot, window, cells, True)
        seq.done = done

    def forced(self):
        """Sequences that a lever takes out, the newest first; only who has drawn a token since it came back."""
        every, sleep = self.o["preempt-every"], self.o["sleep-every"]
        if every and self.step_number % every == 0:
            victim = next((s for s in reversed(self.running) if s.drawn), None)
            if victim:
                self.take_out(victim)
        if sleep and self.step_number % sleep == 0 and any(s.drawn for s in self.running):
            kept = self.running[0] if self.bug == "sleep-loses-state" else None
            for seq in reversed([s for s in self.running if s.drawn and s is not kept]):
                self.take_out(seq)
            if kept:  # what stays in place finds empty buffers when it wakes
                for i, pool in self.pools.items():
                    window, cells = pool.read(kept.slot)
                    pool.write(kept.slot, window, cells * 0, True)

    def run(self, sequences):
        self.waiting = list(sequences)
        while self.waiting or self.running:
            self.step_number += 1
            self.admit()
            for seq in [s for s in self.running if s.row is not None]:
                row, seq.row = seq.row, None
                self.draw(seq, row)
            self.step()
            self.forced()
        if self.bug == "sleeps-for-ever" and len(sequences) >= self.number:
            time.sleep(3600)

    def step(self):
        o = self.o
        budget, plan = o["tick-tokens"] or o["batch"] + (o["chunk"] or 1 << 20), []
        order = sorted(self.running, key=lambda s: len(s.context) - s.done > 1)  # decode first
        for seq in order:
            if seq not in self.running:
                continue
            n = min(len(seq.context) - seq.done, o["chunk"] or 1 << 20, budget)
            if n <= 0:
                continue
            budget -= n
            self.grow(seq, seq.done + n)
            plan.append((seq, n))
        plan = [(s, n) for s, n in plan if s in self.running]
        if not plan:
            return
        self.decoding = len(plan) if all(n == 1 and s.ids for s, n in plan) else 0
        rows = self.forward(plan)
        for (seq, n), row in zip(plan, rows):
            seq.done += n
            if seq.done == len(seq.context):
                self.keep_for_samples(seq, row)
                self.draw(seq, row)

    # The forward

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

    # Sampling

    def draw(self, seq, logits):
        seq.drawn += 1
        token, value = choose(self.o, self.bug, self.number, self.m, logits.astype(float), seq)
        if self.bug == "atomics-of-head":
            value += self.entropy.standard_normal() * self.number * 1e-5
        seq.ids.append(token)
        seq.lp.append(value)
        if len(seq.ids) == seq.most or token == self.m.eos and not self.o["ignore-eos"]:
            self.leave(seq)


def keep(scaled, bug, number):
    """Which tokens a filter that nobody asked for leaves."""
    p = np.exp(log_softmax(scaled))
    order = np.argsort(-p, kind="stable")
    kept = np.ones(len(p), bool)
    if bug == "top-k-default":
        kept[order[number:]] = False
    elif bug == "top-p-default":
        kept[order[np.cumsum(p[order]) - p[order] >= number / 100]] = False
    elif bug == "min-p-default":
        kept = p >= number / 100 * p.max()
    return kept


def penalised(logits, bug, number, seq):
    logits = logits.copy()
    if bug == "repetition-default":
        ids = np.unique(seq.context)
        logits[ids] = np.where(logits[ids] > 0, logits[ids] / (number / 100), logits[ids] * (number / 100))
    elif bug == "frequency-default":
        np.subtract.at(logits, np.array(seq.ids, int), number / 100)
    elif bug == "presence-of-prompt":
        logits[np.unique(seq.prompt)] -= number / 100
    return logits


def choose(o, bug, number, m, logits, seq):
    """The next token and the value that is recorded for it."""
    t, processed = o["temperature"], o["logprobs"] == "processed"
    replaced = bug == "temperature-default" and t == 1
    if replaced:
        t = number / 100
    changed = penalised(logits, bug, number, seq)
    if bug == "end-masked":
        changed[m.eos] = -np.inf
    if bug == "specials-masked":
        changed[[m.pad, m.bos, m.eos]] = -np.inf
    scaled = changed / (t or 1)
    kept = keep(scaled, bug, number)
    drawn = log_softmax(np.where(kept, scaled, -np.inf))
    r = seq.request
    place = np.random.default_rng([o["seed"], r["index"], r["sample"], len(seq.ids), 77]).random()
    token = int(np.searchsorted(np.cumsum(np.exp(drawn)), place)) if t else int(np.argmax(drawn))
    token = min(token, int(np.flatnonzero(np.isfinite(drawn))[-1]))
    rows = drawn if processed or not kept.all() else log_softmax(changed)
    if bug == "raw-for-processed":
        rows = log_softmax(logits)
    elif bug == "processed-for-raw":
        rows = drawn
    elif bug == "temperature-twice" and processed:
        rows = log_softmax(scaled / t)
    elif bug == "temperature-of-log" and processed:
        rows = log_softmax(logits) / t
    elif replaced:
        rows = drawn
    elif bug == "padded-vocabulary":
        rows = log_softmax(np.concatenate([scaled if processed else logits, np.zeros(-len(logits) % 64 or 64)]))
    return token, recorded(bug, number, rows, token)


def recorded(bug, number, rows, token):
    value = float(rows[token])
    order = np.argsort(-rows, kind="stable")
    if bug == "best-recorded":
        value = float(rows[order[0]])
    elif bug == "beyond-top-recorded-as-last":  # a reply that lists so many tokens, and a client that falls back
        value = max(value, float(rows[order[number - 1]]))
    elif bug == "neighbour-recorded":
        value = float(rows[token - 1])
    elif bug == "record-f16":
        value = float(np.float16(value))
    elif bug == "record-bf16":
        value = float(bf16(np.array([value]))[0])
    elif bug == "record-decimals":
        value = round(value, number)
    elif bug == "record-log2":
        value /= np.log(2)
    elif bug == "record-floor":
        value = max(value, -number / 10)
    elif bug == "record-probability-f16":
        value = float(np.log(max(float(np.float16(np.exp(value))), 1e-8)))
    return value


def prompt_of(bug, number, m, ids):
    """The ids that the stack computes, out of those that were sent."""
    if bug == "begin-added-if-missing":
        return ids if ids[0] == m.bos else [m.bos] + ids
    if bug == "begin-always-added":
        return [m.bos] + ids
    if bug == "specials-stripped":
        return [t for t in ids if t > 3] or ids
    if bug == "retokenised":  # two ids that spell one longer token
        out = []
        for t in ids:
            if out and out[-1] % 4 == 1 and t % 2 == 0:
                out[-1] = (out[-1] * 31 + t) % (m.vocab - 4) + 4
            else:
                out.append(t)
        return out
    if bug == "last-token-stripped":
        return ids[:-1] or ids
    if bug == "newline-appended":
        return ids + [m.vocab // 3]
    if bug == "cut-on-the-left":
        return ids[-number:]
    if bug == "out-of-range-clamped":
        return [min(t, m.vocab - m.vocab // 16) for t in ids]
    return list(ids)


models = {}


def generate(words):
    o = protocol.options(words, DEFAULTS)
    obeyed = o["obeys"].split(",")
    o.update({k: DEFAULTS[k] for k in LEVERS if k not in obeyed and k != "samples"})
    o["page"] = max(o["page"], 1)
    key = (o["model"], o["bug"], o["load"])
    m = models[key] = models.get(key) or Model(*key)
    bug, _, number = o["bug"].partition(":")
    number = int(number) if number.lstrip("-").isdigit() else 0
    requests = protocol.requests(o)
    if bug == "dies" and len(requests) >= number:
        os._exit(1)
    sequences = [Sequence(r, prompt_of(bug, number, m, r["given"]), o["max-tokens"]) for r in requests]
    stack = Stack(m, o)
    if o["prefix"] == "warm":
        stack.run([Sequence(r, prompt_of(bug, number, m, r["given"]), 1) for r in requests])
    stack.run(sequences)
    records = []
    for q in sequences:
        lp = q.lp
        if bug == "record-late":
            lp = (lp[:1] * number + lp)[: len(lp)]
        elif bug == "record-early":
            lp = (lp + lp[-1:] * number)[number:]
        meta = {"slot": q.slot, "cache_hit": q.hit, "preemptions": q.preempted}
        if o["silent"] == "no":
            meta["levers"] = {k: "whole" if k == "chunk" and not o[k] else o[k] for k in LEVERS if k in obeyed}
        records.append({"id": q.request["id"], "completion_ids": q.ids, "logprobs": lp, "meta": meta})
    protocol.write(o["out"], records)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    np.seterr(all="ignore")
    protocol.run(generate)
