#!/usr/bin/env python3
"""A serving stack for Jamba in numpy, of another make than ../engine.py, wrong in one way if asked.

Every forward takes the tokens of all sequences as one list of rows: chunks of prompts and single tokens of decode side
by side. Dense products are split along K and added from the last part to the first, the scan of a chunk is a tree of
pairs, attention goes page by page with a running maximum. State lies in pools by slot and in pages; the prefix cache
has one entry for each full page of tokens, named by the chain of pages before it; slots and pages come back last in,
first out; the newest sequence is the one that is taken out. So its float noise is its own, and follows who shares a
forward.

`--bug NAME[:NUMBER]` plants a fault (paged_tree_cases.py says which stack had it), `--arith`, `--kv` and `--load` choose
what it computes in, `--obeys A,B` the levers that it has: others are taken and ignored, and not reported. `--silent
yes` reports none.
"""

import hashlib
import os
import struct
import time

import numpy as np
import protocol
from formats import FORMATS, bf16, f16, tf32
from forward import Forward
from memory import Free, Pool, Sequence
from sampling import choose, prompt_of
from weights import Model

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
    **protocol.ASKED,
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
    "arith": "f32",
    "kv": "f32",
    "load": "",
    "silent": "no",
    "obeys": "samples,batch,chunk,tick-tokens,page,pages,slots,slot-base,prefix,fork,preempt-every,preempt-by,"
    "sleep-every",
}


class Stack(Forward):
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
