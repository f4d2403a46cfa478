#!/usr/bin/env python3
"""A serving engine for the protocol of docs/reference/diagnosis.md: one scheduler before several tensor-parallel ranks.

Each rank has its own part of every state, its own pools and its own copy of the tables. Chunks of prompts and drawn
tokens share a forward; one that only draws is filled up with dummy rows to a size that was captured. The head over
the embedding guesses, and what was not wholly right is fed again from the last state that was. Full blocks of prompts
go to a store on the host, under names that hold those of the blocks before, and come back as copies; sequences that
are taken out go there as well.

Options besides the protocol's: --bug NAME[:NUMBER], --ranks N, --arith, --load, --kv, --wire and --record with formats,
--order ring|any (any: the ring is entered anywhere, another time elsewhere), --fill N (pieces of prompts are filled up
to multiples, and masked), --captured yes|no, --draft N, --obeys LEVERS (all others are as if not given), --silent yes
(no meta).
"""

import os
import random
import sys
from collections import deque

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "paged_tree")]
import protocol  # noqa: E402
from drawing import draw  # noqa: E402
from formats import F  # noqa: E402
from planted import Fault  # noqa: E402
from ranks import Network, Piece  # noqa: E402

LEVERS = {"samples": 1, "batch": 12, "chunk": 48, "tick-tokens": 384, "page": 16, "slots": 64, "slot-base": 0,
          "policy": "fifo", "policy-seed": 0, "prefix": "off", "preempt-every": 0, "preempt-by": "swap"}
DEFAULTS = {**LEVERS, "bug": "", "ranks": 2, "arith": "f32", "load": "f32", "kv": "f32", "wire": "f32", "order": "ring",
            "record": "f32", "fill": 0, "captured": "yes", "draft": 0, "obeys": ",".join(LEVERS), "silent": "no",
            "max-tokens": 16, "temperature": 1.0, "seed": 0, "logprobs": "raw", "dtype": "f32", "ignore-eos": False}
CAPTURED = (1, 2, 4, 8, 16, 32, 64)


class Sequence:
    def __init__(self, request, prompt):
        self.request, self.tokens, self.prompt = request, list(prompt), len(prompt)
        self.done, self.fill, self.slot, self.used, self.pages = 0, len(prompt), None, None, []
        self.ids, self.values, self.hit, self.preempted, self.saved, self.pieces = [], [], 0, 0, None, 0

    @property
    def ready(self):
        return self.done >= self.fill


class Pools:
    """A rank's windows and states by slot, and its keys and values by page."""

    def __init__(self, net, rank):
        self.net, self.rank, self.states, self.pages = net, rank, {}, {}

    def place(self, slot, part, write):
        return self.net.at("address", slot, part=part, write=write, rank=self.rank)

    def read(self, slot, layer, part):
        return self.states.get((self.place(slot, part, False), layer, part), self.net.zeros[self.rank][part])

    def write(self, slot, layer, states):
        for part in (0, 1):
            self.states[self.place(slot, part, True), layer, part] = np.array(states[part], F)

    def both(self, slot, layer):
        """What lies in a slot, without a detour."""
        return tuple(self.states.get((slot, layer, j), self.net.zeros[self.rank][j]) for j in (0, 1))

    def page(self, layer, number, size):
        shape = (2, size, len(self.net.own_kv[self.rank]), self.net.size)
        return self.pages.setdefault((layer, number), np.zeros(shape, F))


class Engine:
    def __init__(self, net, o):
        self.net, self.at, self.o, self.page = net, net.at, o, o["page"]
        self.any, self.free = random.Random(o["policy-seed"]), deque(range(o["slots"]))
        self.free.rotate(-o["slot-base"])
        self.pools = [Pools(net, r) for r in range(net.ranks)]
        self.cells = [(i, r) for i in net.mambas for r in range(net.ranks)]
        self.free_pages, self.count, self.host = [], 0, {}
        self.live, self.waiting, self.ticks, self.admitted, self.aborts, self.former = [], deque(), 0, 0, 0, []
        self.at("begin", None, net=net)

    # What the network asks for.
    def carried(self, p, layer, rank, part):
        """Window (0) or state (1) that a piece begins with."""
        value = self.pools[rank].read(p.slots[rank], layer, part)
        return self.at("carried", value, piece=p, layer=layer, rank=rank, part=part, net=self.net, engine=self)

    def store(self, layer, rank, p, k, v):
        for t in range(0 if p.dummy else p.n):
            block, row = divmod(p.start + t, self.page)
            cell = self.pools[rank].page(layer, self.number(p.seq, block), self.page)
            at = self.at("row", row, page=self.page, piece=p, rank=rank, t=t)
            if at is not None:
                cell[:, at] = k[t], v[t]

    def number(self, seq, block):
        while block >= len(seq.pages):
            seq.pages.append(self.free_pages.pop() if self.free_pages else self.count)
            self.count = max(self.count, seq.pages[-1] + 1)
        return seq.pages[block]

    def cached(self, layer, rank, p):
        """Keys, values and positions of what was there before the piece."""
        pages = p.seq.pages[: -(-p.start // self.page)]
        pages = self.at("table", pages, piece=p, rank=rank, engine=self)
        cells = [self.pools[rank].page(layer, n, self.page) for n in pages]
        none = np.zeros((2, 0, len(self.net.own_kv[rank]), self.net.size), F)
        keys, values = np.concatenate([none] + cells, 1)[:, : p.start]
        return keys, values, np.arange(len(keys))

    # Admission.
    def admit(self):
        while self.waiting and self.free and len(self.live) < self.o["batch"]:
            seq = self.waiting.popleft()
            of = {"lowest": min, "highest": max, "random": self.any.choice}.get(self.o["policy"])
            slot = of(self.free) if of else self.free[0]
            self.free.remove(slot)
            seq.slot, seq.used, seq.pieces = slot, slot if seq.used is None else seq.used, 0
            for i, r in self.cells:
                old = self.pools[r].both(slot, i)
                given = self.at("clear", self.net.zeros[r], old=old, layer=i, rank=r, seq=seq, engine=self, slot=slot)
                for j in (0, 1):
                    self.pools[r].states[self.pools[r].place(slot, j, None), i, j] = np.array(given[j], F)
            self.admitted += 1
            if seq.saved:
                self.swap_in(seq)
            elif self.o["prefix"] != "off" and not seq.preempted:
                self.load(seq)
            self.live.append(seq)

    # The store of blocks on the host.
    def chain(self, tokens, blocks):
        """Names of the first blocks; each holds the name of the one before."""
        name, size = None, self.page
        for j in range(blocks):
            name = self.at("name", (name, tuple(tokens[j * size : (j + 1) * size])), tokens=tokens, block=j, page=size)
            yield name

    def load(self, seq):
        names = list(self.chain(seq.tokens, (seq.prompt - 1) // self.page))
        count = next((n for n, name in enumerate(names) if name not in self.host), len(names))
        if not count:
            return
        blocks = [self.host[name] for name in names[:count]]
        for j, block in enumerate(blocks):
            number = self.number(seq, j)
            for (i, r), cell in block["keys"].items():
                cell = self.at("loaded-keys", cell, block=j, count=count, rank=r, layer=i)
                self.pools[r].page(i, number, self.page)[:] = cell
        for i, r in self.cells:
            source = self.at("loaded-from", blocks[-1], blocks=blocks)
            states = self.at("loaded", source["states"][i, r], layer=i, rank=r, net=self.net, blocks=blocks, seq=seq)
            self.pools[r].write(seq.slot, i, states)
        seq.done = seq.hit = count * self.page

    def publish(self, p):
        seq = p.seq
        end = min(p.start + p.n, seq.prompt)
        for j, name in enumerate(self.chain(seq.tokens, end // self.page)):
            count = (j + 1) * self.page - p.start
            if count <= 0 or name in self.host:
                continue
            keys = {(i, r): self.pools[r].page(i, seq.pages[j], self.page).copy()
                    for i in self.net.attentions for r in range(self.net.ranks)}
            states = {(i, r): self.at("kept", self.after(p, i, r, count), piece=p, layer=i, rank=r, count=count,
                                      engine=self, page=self.page) for i, r in self.cells}
            self.host[name] = {"keys": keys, "states": states}

    def after(self, p, layer, rank, count, window=None):
        """Window and state after so many of the piece's tokens."""
        line, states = p.left[layer, rank]
        first = p.lead + (count if window is None else window)
        return line[first : first + self.net.width].copy(), states[max(p.lead + count - 1, 0)].copy()

    # A forward.
    def work(self):
        """Pieces of this tick: what is drawn, and of prompts what the budget leaves."""
        found = [Piece(s, s.tokens[s.done :] + self.guess(s), "decode", s.slot) for s in self.live if s.ready]
        budget = max(self.o["tick-tokens"] - len(found), 0 if found else 1)
        for seq in [s for s in self.live if not s.ready]:
            n = min(seq.fill - seq.done, self.o["chunk"] or seq.fill, budget)
            if n < 1:
                break
            budget -= n
            p = Piece(seq, seq.tokens[seq.done : seq.done + n], "prefill", seq.slot)
            p.lead, p.tail = 0, -n % self.o["fill"] if self.o["fill"] else 0
            found.append(p)
        self.at("filled", None, pieces=found)
        if self.o["captured"] == "yes" and found and all(p.phase == "decode" for p in found):
            size = next((c for c in CAPTURED if c >= len(found)), len(found))
            found += [Piece(Sequence(None, [0]), [0], "decode", ("scratch", n)) for n in range(size - len(found))]
        for n, p in enumerate(found):
            p.page = self.page
            p.slots = [self.at("slot", p.slot, piece=p, rank=r, row=n, pieces=found, engine=self)
                       for r in range(self.net.ranks)]
        return found

    def guess(self, seq):
        """By the head over the embedding of the newest token; none where much is fed again."""
        text, room = [], min(self.o["draft"], self.o["max-tokens"] - len(seq.ids) - 1)
        for _ in range(room if len(seq.tokens) - seq.done < 4 else 0):
            text.append(self.net.next_by_head((seq.tokens + text)[-1]))
        return text

    def tick(self):
        pieces = self.work()
        self.at("tick", None, pieces=[p for p in pieces if not p.dummy], engine=self)
        outputs = self.net.forward(pieces, self)
        self.former = [p.slots[0] for p in pieces if p.phase == "decode"]
        real = [p for p in pieces if not p.dummy]
        targets = self.at("targets", [p.slot for p in real], pieces=real)
        for p, target, logits in zip(real, targets, outputs):
            (self.step if p.phase == "decode" else self.read)(p, target, logits)
        self.at("ticked", None, pieces=pieces, engine=self)

    def commit(self, p, target, count, window=None):
        for i, r in self.cells:
            states = self.at("left", self.after(p, i, r, count, window), piece=p, layer=i, rank=r, net=self.net,
                             engine=self)
            self.pools[r].write(target, i, states)

    def read(self, p, target, logits):
        seq = p.seq
        self.commit(p, target, p.n)
        if self.at("counts-tail", False) and p.tail:
            self.commit(p, target, p.n + p.tail)
        seq.done, seq.pieces = p.start + p.n, seq.pieces + 1
        if self.o["prefix"] != "off" and not seq.preempted:
            self.publish(p)
        if seq.done >= seq.fill:
            draw(self, seq, logits[-1])
            self.at("prompt-read", None, seq=seq, engine=self)

    def step(self, p, target, logits):
        seq, known = p.seq, len(p.seq.tokens) - p.start
        for t in range(known - 1, p.n):
            token = draw(self, seq, logits[t], p.tokens[t + 1] if t + 1 < p.n else None)
            if t + 1 < p.n and token != p.tokens[t + 1]:
                break
        right = min(len(seq.tokens) - 1 - p.start, p.n)
        if right == p.n:
            self.commit(p, target, p.n)
            seq.done = p.start + p.n
        else:  # fed again in the next step, from where the state is
            self.at("rejected", None, piece=p, engine=self, right=right, target=target)

    # Ends and preemption.
    def finished(self, seq):
        return len(seq.ids) >= self.o["max-tokens"] or (
            not self.o["ignore-eos"] and seq.ids and seq.ids[-1] in self.net.ends)

    def release(self, seq):
        self.at("released", None, seq=seq, engine=self)
        self.free.append(seq.slot)
        self.free_pages += seq.pages
        seq.slot, seq.pages = None, []
        self.live.remove(seq)

    def take_out(self, seq):
        by, seq.preempted, self.aborts = self.o["preempt-by"], seq.preempted + 1, self.admitted
        if by == "swap" or by == "alternate" and seq.preempted % 2 == 0:
            keys = [{(i, r): self.pools[r].page(i, n, self.page).copy() for i in self.net.attentions
                     for r in range(self.net.ranks)} for n in seq.pages]
            states = {(i, r): tuple(self.pools[r].read(seq.slot, i, j) for j in (0, 1)) for i, r in self.cells}
            seq.saved = keys, states
        else:
            seq.done, seq.fill = 0, len(seq.tokens)
            seq.fill = self.at("again", seq.fill, seq=seq)
        self.release(seq)
        self.waiting.appendleft(seq)

    def swap_in(self, seq):
        (keys, states), seq.saved = seq.saved, None
        for j, block in enumerate(self.at("returned-keys", keys)):
            number = self.number(seq, j)
            for (i, r), cell in block.items():
                self.pools[r].page(i, number, self.page)[:] = cell
        for i, r in self.cells:
            given = self.at("returned", states[i, r], layer=i, rank=r, net=self.net, seq=seq, engine=self)
            self.pools[r].write(seq.slot, i, given)

    def run(self, requests):
        done = [Sequence(r, self.at("prompt", list(r["given"]), net=self.net)) for r in requests]
        self.waiting.extend(done)
        while self.waiting or self.live:
            self.admit()
            self.tick()
            self.ticks += 1
            for seq in [s for s in self.live if self.finished(s)]:
                self.release(seq)
            every, ready = self.o["preempt-every"], [s for s in self.live if s.ready]
            if every and self.ticks % every == 0 and ready:
                self.take_out(ready[-1 - self.ticks // every % len(ready)])
        return done


NETWORKS = {}


def network(o):
    key = tuple(o[k] for k in ("model", "bug", "ranks", "arith", "load", "kv", "wire", "order"))
    if key not in NETWORKS:
        NETWORKS[key] = Network(key[0], Fault(key[1]), *key[2:])
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


def answer(o, requests):
    """The records of a trial."""
    levers = obey(o)
    if o["dtype"] != "f32":
        raise ValueError("activations are f32 here: what else there is, --arith says")
    net, records = network(o), []
    for seq in Engine(net, o).run(requests):
        values = [float(v) for v in net.at("records", seq.values, seq=seq)]
        record = {"id": seq.request["id"], "completion_ids": seq.ids, "logprobs": values}
        if o["silent"] != "yes":
            slot = {"slot": seq.used} if "slots" in levers else {}
            record["meta"] = {**slot, "preemptions": seq.preempted, "cache_hit": seq.hit, "levers": levers}
        records.append(record)
    return records


def generate(words):
    o = protocol.options(words, DEFAULTS)
    protocol.write(o["out"], answer(o, protocol.requests(o)))


if __name__ == "__main__":
    protocol.run(generate)
