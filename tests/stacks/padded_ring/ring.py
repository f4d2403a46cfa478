#!/usr/bin/env python3
"""A serving engine for the protocol of docs/reference/diagnosis.md: all lanes step at once, a rectangle padded on the left.

Each step feeds every lane its next tokens: a chunk of its prompt, or the token it drew last (with --draft 1 also a
guess of the next one, which is taken back when it was wrong). Keys lie in one ring a lane, Mamba states in a pool of
slots with a list of free ones, snapshots of whole pages in a prefix cache.

Options besides the protocol's: --bug NAME[:NUMBER], --arith f32|tf32|bf16, --weights as-is|bf16|f16, --kv f32|f16,
--draft 0|1, --obeys LEVERS (all others are as if not given), --silent yes (no meta).
"""

import os
import random
import sys
import time
from collections import deque

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "paged_tree")]
import protocol  # noqa: E402
from faults import PROMPTS, RECORD, RECORDS, F, Fault, bits  # noqa: E402
from rectangle import Rectangle  # noqa: E402

LEVERS = {"samples": 1, "batch": 8, "chunk": 0, "page": 16, "slots": 64, "slot-base": 0, "policy": "fifo",
          "policy-seed": 0, "prefix": "off", "preempt-every": 0, "preempt-by": "recompute"}
DEFAULTS = {**LEVERS, "bug": "", "arith": "f32", "weights": "as-is", "kv": "f32", "draft": 0, "obeys": ",".join(LEVERS),
            "silent": "no", "max-tokens": 16, "temperature": 1.0, "seed": 0, "logprobs": "raw", "dtype": "f32",
            "ignore-eos": False}


class Lane:
    def __init__(self, number, request, given):
        self.number, self.request, self.seq, self.prompt = number, request, list(given), len(given)
        self.slot, self.cur, self.hit, self.preempted = None, 0, 0, 0
        self.ids, self.values, self.used, self.resumed = [], [], None, False


class Run:
    """One forward: lanes and what they are fed."""

    def __init__(self, engine, fed):
        width = max(len(tokens) for _, tokens in fed)
        self.rings, self.lanes = engine.rings, np.array([lane.number for lane, _ in fed])
        self.first = np.array([width - len(tokens) for _, tokens in fed])
        self.start = np.array([lane.cur for lane, _ in fed])
        self.tokens = np.array([[0] * (width - len(tokens)) + tokens for _, tokens in fed])
        column = np.arange(width)
        self.live = column >= self.first[:, None]
        self.where = np.where(self.live, column - self.first[:, None] + self.start[:, None], -1)
        self.prefill = np.array([lane.cur < lane.prompt or lane.resumed for lane, _ in fed])
        self.decode = not self.prefill.any()
        self.later = self.prefill & (self.start > 0)
        self.handed = ~self.prefill & (self.start == [lane.prompt for lane, _ in fed])
        self.slots = np.array([lane.slot for lane, _ in fed])
        self.keep, self.carried, self.left = 1, {}, {}


class Rings:
    """Keys and values of every lane. A lane's head moves on from owner to owner, by whole segments."""

    def __init__(self, model, lanes, size, segment):
        self.size, self.segment, self.model = size, segment, model
        self.tags, self.heads = np.full((lanes, size), -1), np.zeros(lanes, int)
        shape = (lanes, size, model.kv_heads, model.head_size)
        self.keys = {i: (np.zeros(shape, F), np.zeros(shape, F)) for i in model.attentions}

    def empty(self, lane):
        if self.model.fault.name != "tags-not-emptied":
            self.tags[lane] = -1
        self.heads[lane] = (self.heads[lane] + 64) % self.size

    def index(self, lane, where):
        return (self.heads[lane] + where) % self.size

    def write(self, layer, run, k, v):
        rows, columns = np.nonzero(run.live)
        lanes, where = run.lanes[rows], run.where[rows, columns]
        at = self.index(lanes, where)
        for pool, x in zip(self.keys[layer] + (self.tags,), (k, v, run.where)):
            pool[lanes, at] = x[rows, columns]

    def segments(self, layer, run):
        for i in range(0, self.size, self.segment):
            yield *(x[run.lanes, i : i + self.segment] for x in self.keys[layer] + (self.tags,)),

    def copy(self, lane, length):
        at = self.index(lane, np.arange(length))
        return {i: (k[lane, at].copy(), v[lane, at].copy()) for i, (k, v) in self.keys.items()}

    def paste(self, lane, saved, length, skip=()):
        where = np.array([p for p in range(length) if p not in skip], int)
        at = self.index(lane, where)
        self.tags[lane, at] = where
        for i, (k, v) in self.keys.items():
            k[lane, at], v[lane, at] = saved[i][0][where], saved[i][1][where]


class Engine:
    def __init__(self, model, o):
        self.model, self.fault, self.o = model, model.fault, o
        self.free, self.pool = deque(range(o["slots"])), {}
        self.free.rotate(-o["slot-base"])
        self.order = random.Random(o["policy-seed"])
        self.cache, self.forwards, self.turn = {}, 0, 0
        self.zeros = np.zeros((model.conv - 1, model.inner), F), np.zeros((model.inner, model.states), F)

    # Slots: (window, state) of each Mamba layer.
    def load(self, slot, layer):
        return tuple(self.pool.get((self.fault.address(slot, False, j == 0), layer, j), self.zeros[j]) for j in (0, 1))

    def store(self, slot, layer, states):
        for j in (0, 1):
            self.pool[self.fault.address(slot, True, j == 0), layer, j] = states[j].copy()

    def take(self, lane):
        """A free slot, its states zeroed, which is done by the slot's true address but for a small table."""
        n = {"lowest": min, "highest": max}.get(self.o["policy"])
        slot = n(self.free) if n else self.order.choice(self.free) if self.o["policy"] == "random" else self.free[0]
        self.free.remove(slot)
        lane.slot = slot
        lane.used = slot if lane.used is None else lane.used
        at = slot % int(self.fault.number) if self.fault.name == "table-of" else slot
        for i in self.model.mambas:
            states = tuple(self.pool.get((at, i, j), self.zeros[j]) for j in (0, 1))
            clean = self.fault.clear(states, i, self.model, lane.seq)
            self.pool.update({(at, i, j): clean[j].copy() for j in (0, 1)})

    # Snapshots of whole pages.
    def hit(self, lane):
        limit = lane.prompt if self.fault.name == "full-hit-feeds-last-again" else lane.prompt - 1
        page = self.o["page"]
        for length in range(limit // page * page, 0, -page):
            saved = self.cache.get(self.fault.key(lane.seq[:length]))
            if saved is None:
                continue
            for i in self.model.mambas:
                states = saved["states"][i]
                if self.fault.at("hit-without-state-of-layer", i):
                    states = (states[0], np.zeros_like(states[1]))
                self.store(lane.slot, i, states)
            skip = (length - 1,) if self.fault.name == "hit-without-last-key" else ()
            self.rings.paste(lane.number, saved["keys"], length, skip)
            lane.hit, lane.cur = length, min(length, lane.prompt - 1)  # vllm#37310: the last token twice
            return

    def snapshot(self, lane):
        key = self.fault.key(lane.seq[: lane.cur])
        old = self.cache.get(key)
        if old is None and self.fault.name == "entries-in-a-ring" and len(self.cache) >= self.fault.number:
            old = self.cache[list(self.cache)[self.turn % int(self.fault.number)]]  # its buffer, not its key
            self.turn += 1
        elif old is not None:
            return
        entry = {} if old is None else old
        entry["states"] = {i: self.load(lane.slot, i) for i in self.model.mambas}
        length = max([lane.cur] + [len(k) for k, _ in entry.get("keys", {}).values()])
        entry["keys"] = self.rings.copy(lane.number, length)
        self.cache[key] = entry

    def end_of_prompt(self, lane):
        """The copy of a snapshot's window is queued behind the prompt's last chunk."""
        length = (lane.prompt - 1) // self.o["page"] * self.o["page"]
        entry = self.cache.get(self.fault.key(lane.seq[:length])) if length else None
        if entry and self.fault.name == "snapshot-window-of-end":
            entry["states"] = {i: (self.load(lane.slot, i)[0], s[1]) for i, s in entry["states"].items()}

    # Sequences taken out and brought back.
    def take_out(self, lane):
        f = self.fault.name
        lane.preempted += 1
        swap = self.o["preempt-by"] == "swap" or self.o["preempt-by"] == "alternate" and lane.preempted % 2 == 0
        states = {i: self.load(lane.slot, i) for i in self.model.mambas}
        keys, length = self.rings.copy(lane.number, lane.cur), lane.cur
        self.free.append(lane.slot)
        self.rings.empty(lane.number)
        self.take(lane)
        if not swap:
            if f == "resumed-without-drawn":
                del lane.seq[lane.prompt : -1]
            lane.cur, lane.resumed = 0, True
            return
        self.rings.paste(lane.number, keys, length, range(self.o["page"]) if f == "swap-loses-first-segment" else ())
        for i, (window, h) in states.items():
            if f == "swap-in-e4m3":
                h = bits(h, 4)
            elif f == "swap-leaves-window":
                window = np.zeros_like(window)
            self.store(lane.slot, i, (window, h))

    def drafted(self, lane):
        """What followed the newest token before."""
        for i in range(len(lane.seq) - 2, -1, -1):
            if lane.seq[i] == lane.seq[-1]:
                return lane.seq[i + 1]
        return (lane.seq[-1] * 7 + 3) % self.model.config["vocab_size"]

    def piece(self, lane):
        """The tokens that a lane is fed next; with a draft or None."""
        end = len(lane.seq)
        if self.o["chunk"]:
            end = min(end, lane.cur + self.o["chunk"])
        if self.o["prefix"] != "off" and lane.cur < lane.prompt:
            end = min(end, (lane.cur // self.o["page"] + 1) * self.o["page"])
        decoding = lane.cur >= lane.prompt and not lane.resumed
        return lane.seq[lane.cur : end], self.drafted(lane) if self.o["draft"] and decoding else None

    def step(self, lanes):
        fed = [(lane,) + self.piece(lane) for lane in lanes]
        run = Run(self, [(lane, tokens + ([draft] if draft is not None else [])) for lane, tokens, draft in fed])
        run.keep = 1 + any(draft is not None for *_, draft in fed)
        for i in self.model.mambas:
            run.carried[i] = [np.stack(x) for x in zip(*(self.load(lane.slot, i) for lane in lanes))]
        f, n = self.fault.name, self.fault.number
        usual, size = self.model.arith, run.live.shape[1] - 1 if f.startswith("long-prefill") else len(fed)
        if f in ("kernel-by-rows-tf32", "long-prefill-tf32", "kernel-by-rows-bf16") and size >= n:
            self.model.arith = f[-4:]
        logits = self.model.forward(run)
        self.model.arith = usual
        for row, (lane, tokens, draft) in enumerate(fed):
            self.advance(run, row, lane, tokens, draft, logits[row])
        self.forwards += 1
        every = self.o["preempt-every"]
        going = [lane for lane in lanes if lane.slot is not None and lane.cur >= lane.prompt]
        if every and self.forwards % every == 0 and going:
            self.take_out(going[self.forwards // every % len(going)])

    def advance(self, run, row, lane, tokens, draft, logits):
        f, end = self.fault.name, lane.cur + len(tokens)
        drawn = False
        if end == len(lane.seq):
            lane.resumed = False
            drawn = self.draw(lane, logits[-2 if draft is not None else -1], draft)
        agreed = draft is not None and drawn and lane.seq[-1] == draft and len(lane.ids) < self.o["max-tokens"]
        for i in self.model.mambas:
            kept = [x[row] for x in run.left[i][0]]
            if draft is not None and not agreed:
                before = [x[row] for x in run.left[i][1]]
                # vllm#38711, #53488: what a wrong guess did to the states stays.
                stays = f == "draft-state-kept" or self.fault.at("draft-state-kept-in-layer", i)
                kept = [(kept if f == "draft-window-kept" else before)[0], (kept if stays else before)[1]]
            self.store(lane.slot, i, kept)
        if draft is not None and not agreed:
            self.rings.tags[lane.number, self.rings.index(lane.number, end)] = -1
        lane.cur = end + agreed
        if self.o["prefix"] != "off" and lane.cur <= lane.prompt and not lane.preempted:
            if lane.cur % self.o["page"] == 0:
                self.snapshot(lane)
            if lane.cur == lane.prompt:
                self.end_of_prompt(lane)
        if agreed:
            self.draw(lane, logits[-1], None)
        stop = not self.o["ignore-eos"] and lane.ids and lane.ids[-1] in self.model.eos
        if len(lane.ids) >= self.o["max-tokens"] or stop:
            self.free.append(lane.slot)
            lane.slot = None

    def draw(self, lane, logits, draft):
        t, f = self.o["temperature"], self.fault
        x = f.logits(logits.astype(np.float64), lane, self.model.eos)
        logs = lambda x: x - x.max() - np.log(np.exp(x - x.max()).sum())  # noqa: E731
        if t > 0:
            drawn = logs(x / t)
            u = random.Random(f"{self.o['seed']}/{lane.request['id']}/{len(lane.ids)}").random()
            token = int(min(np.searchsorted(np.cumsum(np.exp(drawn)), u), len(x) - 1))
        else:
            drawn, token = logs(x), int(x.argmax())
        if f.name == "raw-divided-once":  # prime-rl#697: the log-probabilities, not the logits
            values = logs(x) / max(t, 1e-3)
        elif (self.o["logprobs"] == "raw") != (f.name == "modes-exchanged"):
            values = logs(x)
        else:
            values = logs(x / min(t, f.number)) if f.name == "temperature-at-most" else drawn
        record = RECORD.get(f.name, lambda values, token, *_: values[token])
        lane.values.append(float(record(values, token, draft, x, f.number)))
        lane.ids.append(token)
        lane.seq.append(token)
        return True

    def run(self, requests):
        lanes = [None] * min(self.o["batch"], self.o["slots"])
        waiting, done = deque(enumerate(requests)), {}
        longest = max(len(r["given"]) for r in requests) + 4 + self.o["max-tokens"] + 2
        self.rings = Rings(self.model, len(lanes), 64 * (2 + (longest + 63) // 64), self.o["page"])
        while waiting or any(lanes):
            for n in range(len(lanes)):
                if lanes[n] is None and waiting:
                    place, request = waiting.popleft()
                    begin, number = self.model.config["bos_token_id"], int(self.fault.number)
                    given = self.fault.of(PROMPTS, request["given"], begin, self.model.eos, number)
                    lane = lanes[n] = done[place] = Lane(n, request, given)
                    self.rings.empty(n)
                    self.take(lane)
                    if self.o["prefix"] != "off":
                        self.hit(lane)
            busy = [lane for lane in lanes if lane]
            if self.fault.name == "dies-when-many" and len(busy) > self.fault.number:
                os._exit(1)  # out of memory
            elif self.fault.name == "waits-when-many" and len(busy) > self.fault.number:
                time.sleep(10**6)  # two locks
            self.step(busy)
            lanes = [lane if lane and lane.slot is not None else None for lane in lanes]
        return [done[i] for i in sorted(done)]


MODELS = {}


def generate(words):
    o = protocol.options(words, DEFAULTS)
    if o["dtype"] != "f32":
        raise ValueError("this engine has one type of activations")
    o["slots"] = o["slots"] or LEVERS["slots"]
    obeyed = o["obeys"].split(",")
    for name in LEVERS:
        if name not in obeyed:
            o[name] = LEVERS[name]
    if o["prefix"] not in ("off", "on") or o["policy"] not in ("fifo", "lowest", "highest", "random"):
        raise ValueError("this engine has prefix off and on; fifo, lowest, highest and random slots")
    key = (o["model"], o["bug"], o["arith"], o["weights"], o["kv"])
    if key not in MODELS:
        MODELS[key] = Rectangle(o["model"], Fault(o["bug"]), o["arith"], o["weights"], o["kv"])
    levers = {name: o[name] for name in obeyed if name != "chunk"}
    if "chunk" in obeyed:
        levers["chunk"] = o["chunk"] or "whole"
    records, fault = [], MODELS[key].fault
    for lane in Engine(MODELS[key], o).run(protocol.requests(o)):
        record = {"id": lane.request["id"], "completion_ids": lane.ids}
        record["logprobs"] = fault.of(RECORDS, lane.values, int(fault.number), o["batch"])
        if o["silent"] == "no":
            record["meta"] = {"cache_hit": lane.hit, "preemptions": lane.preempted, "levers": levers}
            if "slots" in obeyed:
                record["meta"]["slot"] = lane.used
        records.append(record)
    protocol.write(o["out"], records)


if __name__ == "__main__":
    protocol.run(generate)
