#!/usr/bin/env python3
"""A serving engine for the protocol of docs/reference/diagnosis.md: one worker reads prompts, another one draws.

Prompts go piece by piece through the first worker, within a budget of tokens for each tick. A finished prompt's states
are handed over to the second worker's pool, which steps all of its sequences at once, with guesses by n-grams where
asked. Keys lie in pages by block tables, prefixes in a radix tree of pages, and a router may spread requests over
replicas.

Options besides the protocol's: --bug NAME[:NUMBER], --arith, --load and --kv with formats, --draft N, --replicas N,
--workers split|joint (one pool for both), --obeys LEVERS (all others are as if not given), --silent yes (no meta).
"""

import os
import random
import sys
import zlib
from collections import deque

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "paged_tree")]
import protocol  # noqa: E402
from faults import Fault  # noqa: E402
from formats import F  # noqa: E402
from network import Network, Piece  # noqa: E402
from sampler import draw  # noqa: E402

LEVERS = {"samples": 1, "batch": 8, "chunk": 0, "tick-tokens": 512, "page": 16, "slots": 64, "slot-base": 0,
          "policy": "lowest", "policy-seed": 0, "prefix": "off", "preempt-every": 0, "preempt-by": "recompute"}
DEFAULTS = {**LEVERS, "bug": "", "arith": "f32", "load": "f32", "kv": "f32", "draft": 0, "replicas": 1,
            "workers": "split", "obeys": ",".join(LEVERS), "silent": "no", "max-tokens": 16, "temperature": 1.0,
            "seed": 0, "logprobs": "raw", "dtype": "f32", "ignore-eos": False}


class Sequence:
    def __init__(self, request, prompt):
        self.request, self.tokens, self.prompt = request, list(prompt), len(prompt)
        self.done, self.fill, self.slot, self.used, self.pages = 0, len(prompt), None, None, []
        self.ids, self.values, self.hit, self.preempted, self.saved, self.pieces = [], [], 0, 0, None, 0

    @property
    def ready(self):
        return self.done >= self.fill


class Pool:
    """Windows and states by slot, for one worker."""

    def __init__(self, net, worker):
        self.net, self.worker, self.cells = net, worker, {}

    def read(self, slot, layer, true=False):
        return tuple(self.cells.get((self.place(slot, False, j, true), layer, j), self.net.zeros[j]) for j in (0, 1))

    def write(self, slot, layer, states, true=False):
        for j in (0, 1):
            self.cells[self.place(slot, True, j, true), layer, j] = np.array(states[j], F)

    def place(self, slot, write, part, true):
        return slot if true else self.net.at("address", slot, write=write, part=part, worker=self.worker)


class Keys:
    """Pages of keys and values, with a count of the owners of each."""

    def __init__(self, net, page):
        self.net, self.page, self.owners, self.free, self.cells = net, page, {}, [], {}

    def new(self):
        number = self.free.pop() if self.free else len(self.owners)
        self.owners[number] = 1
        return number

    def leave(self, pages):
        for number in pages:
            self.owners[number] -= 1
            if not self.owners[number]:
                self.free.append(number)

    def cell(self, layer, number):
        shape = (2, self.page, self.net.kv_heads, self.net.size)
        return self.cells.setdefault((layer, number), np.zeros(shape, F))

    def write(self, layer, piece, k, v):
        for t in range(piece.n):
            page, row = divmod(piece.start + t, self.page)
            while page >= len(piece.seq.pages):
                piece.seq.pages.append(self.new())
            self.cell(layer, piece.seq.pages[page])[:, row] = k[t], v[t]

    def read(self, layer, piece):
        """Keys, values and positions of all that the piece may see."""
        end = piece.start + piece.n
        pages = piece.seq.pages[: -(-end // self.page)]
        pages = self.net.at("table", pages, piece=piece, keys=self)
        found = np.concatenate([self.cell(layer, n) for n in pages], 1)[:, :end]
        return self.net.at("context", (*found, np.arange(end)), piece=piece, keys=self, layer=layer)


class Node:
    """A page of a prefix in the tree, with the states after it."""

    def __init__(self):
        self.children, self.page, self.states = {}, None, {}


class Engine:
    def __init__(self, net, o, number):
        self.net, self.at, self.o, self.number = net, net.at, o, number
        self.order, self.free = random.Random(o["policy-seed"] + number), deque(range(o["slots"]))
        self.free.rotate(-o["slot-base"])
        self.reading = Pool(net, "prefill")
        self.drawing = self.reading if o["workers"] == "joint" else Pool(net, "decode")
        self.keys, self.root, self.live, self.waiting = Keys(net, o["page"]), Node(), [], deque()
        self.ticks, self.admitted, self.former = 0, 0, []

    def pool(self, phase):
        return self.drawing if phase == "decode" else self.reading

    def carried(self, p, layer):
        states = self.at("carry", self.pool(p.phase).read(p.seq.slot, layer), piece=p, layer=layer, net=self.net)
        return self.at("packed", states, piece=p, layer=layer, net=self.net)

    # Admission.
    def admit(self):
        fresh = 0
        while self.waiting and self.free and len(self.live) < self.o["batch"]:
            seq = self.waiting.popleft()
            of = {"lowest": min, "highest": max}.get(self.o["policy"])
            slot = of(self.free) if of else self.free[0]
            slot = self.order.choice(self.free) if self.o["policy"] == "random" else slot
            self.free.remove(slot)
            seq.slot, seq.used, seq.pieces = slot, slot if seq.used is None else seq.used, 0
            for i in self.net.mambas:
                old = self.reading.read(slot, i, True)
                given = self.at("clear", self.net.zeros, old=old, layer=i, seq=seq, net=self.net, slot=slot, nth=fresh)
                self.reading.write(slot, i, given, True)
            if seq.saved:
                self.swap_in(seq)
            elif self.o["prefix"] != "off" and not seq.preempted:
                self.lookup(seq)
            fresh, self.admitted = fresh + 1, self.admitted + 1
            self.live.append(seq)

    # The tree.
    def walk(self, seq, count):
        """Nodes of the first pages, until one is missing."""
        node, page = self.root, self.o["page"]
        for j in range(count):
            key = self.at("radix-key", tuple(seq.tokens[j * page : (j + 1) * page]), depth=j, seq=seq)
            node = self.at("radix-parent", node, root=self.root, depth=j)
            yield j, node, (key, j)
            node = node.children.get((key, j))
            if node is None:
                return

    def lookup(self, seq):
        found = [node.children[key] for _, node, key in self.walk(seq, (seq.prompt - 1) // self.o["page"])
                 if key in node.children]
        known = [n for n, node in enumerate(found, 1) if node.states]
        if not known:
            return
        states = found[known[-1] - 1].states
        length = self.at("hit-length", known[-1], found=found)
        seq.pages = [node.page for node in found[:length] if node.page is not None]
        for number in seq.pages:
            self.keys.owners[number] += 1
        seq.pages = self.at("hit-pages", seq.pages, keys=self.keys)
        for i in self.net.mambas:
            self.reading.write(seq.slot, i, self.at("hit", states[i], layer=i, net=self.net))
        seq.done = seq.hit = length * self.o["page"]

    def publish(self, p):
        page, seq = self.o["page"], p.seq
        for j, node, key in self.walk(seq, (p.start + p.n) // page):  # which goes on into nodes that are new
            if key in node.children:
                continue
            child = node.children[key] = Node()
            if seq.pages:
                child.page = seq.pages[j]
                self.keys.owners[child.page] += 1
            t = (j + 1) * page - p.start
            t = self.at("snapshot-place", t, page=page, piece=p)
            if self.at("snapshot-kept", t > 0, depth=j):
                child.states = {i: self.left(p, i, t, self.at("snapshot-window", t)) for i in self.net.mambas}

    def left(self, p, layer, t, tw):
        """Window and state after so many of the piece's tokens."""
        line, states = p.states[layer]
        return line[p.lead + tw : p.lead + tw + self.net.width].copy(), states[p.lead + t - 1].copy()

    # The first worker.
    def pieces(self, budget):
        found = []
        for seq in [s for s in self.live if not s.ready]:
            n = min(seq.fill - seq.done, self.o["chunk"] or seq.fill, budget)
            if n < 1:
                break
            budget -= n
            found.append(Piece(seq, seq.tokens[seq.done : seq.done + n], "prefill"))
        before = None
        for p in found:
            p.before, before = before, p
            p.lead, p.tail = self.at("filling", (0, 0), piece=p, all=found)
        return found

    def read(self, p):
        (logits,) = self.net.forward([p], self)
        seq = p.seq
        for i in self.net.mambas:
            n = p.n + p.tail
            states = self.at("left", self.left(p, i, n, n), piece=p, layer=i, net=self.net, pool=self.reading)
            self.reading.write(seq.slot, i, states)
        seq.done, seq.pieces = p.start + p.n, seq.pieces + 1
        if self.o["prefix"] != "off" and seq.done <= seq.prompt and not seq.preempted:
            self.publish(p)
        if not seq.ready:
            return
        for i in self.net.mambas:
            states, old = self.reading.read(seq.slot, i), self.drawing.read(seq.slot, i, True)
            states = self.at("handed", states, old=old, layer=i, net=self.net, seq=seq)
            self.drawing.write(seq.slot, i, states)
        seq.pages = self.at("handed-pages", seq.pages, keys=self.keys)
        draw(self, seq, logits[-1], 1)

    # The second worker.
    def guess(self, seq):
        """What followed the newest token before, or what is next to it."""
        room = min(self.o["draft"], self.o["max-tokens"] - len(seq.ids) - 1)
        before = [i for i in range(len(seq.tokens) - 1) if seq.tokens[i] == seq.tokens[-1]]
        text = seq.tokens[before[-1] + 1 :] if before else [(seq.tokens[-1] + 11) % len(self.net.embedding)]
        return text[: max(room, 0)]

    def step(self, rows):
        pieces = [Piece(s, s.tokens[s.done :] + self.guess(s), "decode") for s in rows]
        true = [s.slot for s in rows]
        slots = self.at("decode-slots", true, former=self.former)
        for s, slot in zip(rows, slots):
            s.slot = slot
        outputs = self.at("row-logits", self.net.forward(pieces, self))
        for s, slot in zip(rows, true):
            s.slot = slot
        self.former = true
        for p, target, logits in zip(pieces, self.at("write-slots", true), outputs):
            seq, used = p.seq, 0
            while used < p.n:
                used += 1
                token = draw(self, seq, logits[used - 1], used)
                if used < p.n and token != p.tokens[used]:
                    break
            used = min(used, p.n)
            tw, t = self.at("kept", (used, used), count=p.n)
            for i in self.net.mambas:
                states = self.at("stepped", self.left(p, i, t, tw), layer=i, net=self.net, piece=p)
                self.drawing.write(target, i, states)
            seq.done = p.start + used
        self.at("stepped-all", None, engine=self, rows=rows)

    def finished(self, seq):
        return len(seq.ids) >= self.o["max-tokens"] or (
            not self.o["ignore-eos"] and seq.ids and seq.ids[-1] in self.net.ends)

    def release(self, seq):
        self.free.append(seq.slot)
        self.keys.leave(seq.pages)
        seq.slot, seq.pages = None, []
        self.live.remove(seq)

    def take_out(self, seq):
        """Out of the running, to come back next: its states are kept, or its tokens are read again."""
        by, seq.preempted = self.o["preempt-by"], seq.preempted + 1
        if by == "swap" or by == "alternate" and seq.preempted % 2 == 0:
            states = {i: self.drawing.read(seq.slot, i) for i in self.net.mambas}
            pages = [{i: self.keys.cell(i, n).copy() for i in self.net.attentions} for n in seq.pages]
            seq.saved = states, pages
        else:
            seq.done = 0
            seq.fill = self.at("fill", len(seq.tokens), seq=seq)
        self.at("taken-out", None, engine=self, seq=seq)
        self.release(seq)
        self.waiting.appendleft(seq)

    def swap_in(self, seq):
        (states, pages), seq.saved = seq.saved, None
        seq.pages = [self.keys.new() for _ in pages]
        for number, page in zip(seq.pages, self.at("swapped-pages", pages)):
            for i in self.net.attentions:
                self.keys.cell(i, number)[:] = page[i]
        for i in self.net.mambas:
            self.drawing.write(seq.slot, i, self.at("swapped", states[i], layer=i, net=self.net))

    def run(self, requests):
        done = [Sequence(r, self.at("prompt", list(r["given"]), net=self.net)) for r in requests]
        self.waiting.extend(done)
        while self.waiting or self.live:
            self.admit()
            rows = [s for s in self.live if s.ready]
            work = self.pieces(max(self.o["tick-tokens"] - len(rows), 0 if rows else 1))
            self.at("tick", None, rows=rows, pieces=work)
            if rows:
                self.step(rows)
            for p in work:
                self.read(p)
            for seq in [s for s in self.live if self.finished(s)]:
                self.release(seq)
            self.ticks += 1
            every, ready = self.o["preempt-every"], [s for s in self.live if s.ready]
            if every and self.ticks % every == 0 and ready:
                self.take_out(ready[self.ticks // every % len(ready)])
        return done


NETWORKS = {}


def network(o, number):
    key = (o["model"], o["bug"], o["arith"], o["load"], o["kv"], number)
    if key not in NETWORKS:
        NETWORKS[key] = Network(o["model"], Fault(o["bug"], number), o["arith"], o["load"], o["kv"])
    return NETWORKS[key]


def obey(o):
    """Levers that are not obeyed as if they were not given; those that are, for the records."""
    obeyed = o["obeys"].split(",")
    o.update({name: value for name, value in LEVERS.items() if name not in obeyed})
    for name in ("slots", "tick-tokens"):
        o[name] = o[name] or LEVERS[name]
    if o["policy"] not in ("fifo", "lowest", "highest", "random") or o["prefix"] not in ("off", "on"):
        raise ValueError("slots are fifo, lowest, highest or random; prefix is on or off")
    return {name: o[name] if name != "chunk" else o[name] or "whole" for name in obeyed}


def generate(words):
    o = protocol.options(words, DEFAULTS)
    levers = obey(o)
    if o["dtype"] != "f32":
        raise ValueError("activations are f32 here: what else there is, --arith says")
    requests, found = protocol.requests(o), {}
    for number in range(o["replicas"]):
        # The router: a request goes where its tokens say.
        mine = [r for r in requests if zlib.crc32(str(r["given"]).encode()) % o["replicas"] == number]
        found.update((s.request["id"], s) for s in Engine(network(o, number), o, number).run(mine))
    records, at = [], network(o, 0).at
    for seq in (found[r["id"]] for r in requests):
        values = at("records", seq.values, seq=seq)
        slot = {"slot": seq.used} if "slots" in levers else {}
        meta = {**slot, "preemptions": seq.preempted, "cache_hit": seq.hit, "levers": levers}
        record = {"id": seq.request["id"], "completion_ids": seq.ids, "logprobs": [float(v) for v in values]}
        records.append(record if o["silent"] == "yes" else {**record, "meta": meta})
    protocol.write(o["out"], records)


if __name__ == "__main__":
    protocol.run(generate)
