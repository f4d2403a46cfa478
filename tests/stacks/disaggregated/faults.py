"""What is planted in relay.py: for each name, the places where it acts, and how.

A function gets the value that is right there, and what is known there, with the fault's number as c.n. Without a fault
nothing is changed. Numbers of public incidents stand beside the faults that they are kin of.
"""

import os
import time
from types import SimpleNamespace

import numpy as np

from formats import F, FORMATS, bf16, e4m3, integers, log_softmax, silu
from weights import older

DRAWS = np.random.default_rng()  # for what is meant not to repeat


def copied(x, change):
    x = np.array(x)
    change(x)
    return x


def both(states, change):
    return tuple(change(x) for x in states)


def when(test, change):
    """change where test holds, else the value."""
    return lambda x, c: change(x, c) if test(c) else x


def later(c):
    return c.piece.start > 0 and c.piece.phase == "prefill" and not (c.piece.seq.hit and c.piece.seq.pieces == 0)


def wrapping(bytes_each, bits, writes, worker=None, part=None):
    """Where a slot lies when slot times the stride (the number) is held in so many bits."""

    def place(slot, c):
        if c.write != writes or worker not in (None, c.worker) or part not in (None, c.part):
            return slot
        at = int(slot * c.n * bytes_each)
        return slot if at < 2**bits else ("elsewhere", at % 2**32)

    return {"address": place}


def matrices(change, layer=None):
    """The projections of a layer, or of all."""

    def act(found, c):
        if layer and c.layer != int(c.n):
            return found
        return {k: change(x, c) for k, x in c.w.items() if x.ndim == 2 and "proj" in k and "dt_" not in k}

    return {"weights": act}


def tensor(name, change, which=lambda c: c.layer == int(c.n)):
    return {"weights": lambda found, c: {name: change(c.w[name], c)} if which(c) and name in c.w else found}


def by_rows(arith):
    return {"arith": lambda x, c: arith if c.net.decoding >= c.n else x}


def outgoing(change):
    """Keys and values of the last page are written anew."""

    def act(pages, c):
        if not pages:
            return pages
        new = c.keys.new()
        for i in c.keys.net.attentions:
            c.keys.cell(i, new)[:] = change(c.keys.cell(i, pages[-1]))
        return pages[:-1] + [new]

    return act


def previous(x, c):
    """Window and state that the piece before in the same tick has left."""
    p = c.piece.before
    if p is None or c.piece.start:
        return None
    line, states = p.states[c.layer]
    return line[len(line) - c.net.width :], states[-1]


def packed(part):
    def act(states, c):
        old = previous(states, c)
        if old is None or c.layer < c.n:
            return states
        return (old[0] if part != 1 else states[0], old[1] if part != 0 else states[1])

    return {"packed": act}


def seen_before(found, c):
    keys, values, where = found
    p = c.piece.before
    if p is None or c.piece.start:
        return found
    cells = np.concatenate([c.keys.cell(c.layer, n) for n in p.seq.pages], 1)[:, : p.n]
    return (np.concatenate([cells[0], keys]), np.concatenate([cells[1], values]),
            np.concatenate([np.full(p.n, -1), where]))


def filled(left, size):
    def act(x, c):
        if c.piece.start and left:
            return x
        more = size(c) - c.piece.n
        return (more, 0) if left else (0, more)

    return {"filling": act}


LONGEST = lambda c: max(p.n for p in c.all)  # noqa: E731
BUCKET = lambda c: int(-(-c.piece.n // c.n) * c.n)  # noqa: E731


def kept(choose):
    """A filter of tokens that nobody asked for: choose says which stay, of probabilities in descending order."""

    def act(x, c):
        order = np.argsort(-x)
        stay = choose(np.exp(log_softmax(x))[order], c.n)
        return copied(x, lambda y: y.__setitem__(order[~stay], -np.inf))

    return {"processors": act}


def penalty(ids, change):
    def act(x, c):
        counts = np.bincount(ids(c), minlength=len(x))[: len(x)]
        return np.where(counts > 0, change(x, counts, c.n), x)

    return {"processors": act}


def divided(x, counts, n):
    return np.where(x > 0, x * 100 / n, x * n / 100)


def stale_rows(slots, c):
    """The table of the step before, where it has as many rows."""
    return c.former if len(c.former) == len(slots) and c.former != slots else slots


def turned(q, c):
    """Rotary positions, which Jamba does not have."""
    half = q.shape[-1] // 2
    angle = c.where[:, None, None] * F(c.n) ** (-np.arange(half) / half)
    a, b = q[..., :half], q[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1).astype(F)


def dead_row(x, c):
    """A sequence that has ended steps once more, in a slot that is another's by then (schedulers one step ahead)."""
    e, gone = c.engine, [s for s in c.rows if c.engine.finished(s)]
    e.dead, dead = [s.slot for s in gone], getattr(e, "dead", [])
    for slot in dead:
        for i in e.net.mambas:
            window, h = e.drawing.read(slot, i, True)
            e.drawing.write(slot, i, (np.roll(window, -1, 0), h * F(0.8)), True)


def dummy_row(x, c):
    """Rows up to a multiple of four are token 0 in the first row's slot."""
    e = c.engine
    if len(c.rows) % 4:
        for i in e.net.mambas:
            window, h = e.drawing.read(c.rows[0].slot, i)
            e.drawing.write(c.rows[0].slot, i, (np.concatenate([window[1:], 0 * window[:1]]), h))


def given_twice(x, c):
    """A preempted sequence's slot goes back to the list a second time; the list has no check for that."""
    c.engine.free.append(c.seq.slot)


def stop(test, how):
    return {"tick": lambda x, c: how() if test(c) else x}


def tokens_of(c):
    return sum(p.n for p in c.pieces) + len(c.rows)


WAIT, DIE = lambda: time.sleep(10**6), lambda: os._exit(1)  # noqa: E731
MIXER = "in_proj.weight"
FAULTS = {
    # Slots. vllm#56524, #32118; clears of a part, of some layers, of the first of several.
    "state-not-cleared": {"clear": when(lambda c: c.layer >= c.n, lambda x, c: (x[0], c.old[1]))},
    "window-not-cleared": {"clear": lambda x, c: (c.old[0], x[1])},
    "odd-slots-not-cleared": {"clear": when(lambda c: c.slot % 2, lambda x, c: c.old)},
    "channels-cleared": {"clear": lambda x, c: both(
        c.old, lambda y: copied(y, lambda z: z.__setitem__((Ellipsis, slice(None, int(c.n))), 0)))},
    "first-admitted-cleared": {"clear": when(lambda c: c.nth, lambda x, c: c.old)},
    "short-prompt-not-cleared": {"clear": when(lambda c: c.seq.prompt <= c.n, lambda x, c: c.old)},
    "handed-state-added": {"handed": lambda x, c: (x[0], x[1] + c.old[1])},
    # Offsets. vllm#35275, #20016, #20938, xFormers#719; two workers with two sorts of arithmetic.
    "prefill-write-u32": wrapping(1, 32, True, "prefill", 1),
    "decode-read-i32": wrapping(1, 31, False, "decode", 1),
    "window-bytes-u32": wrapping(4, 32, True, None, 0),
    "prefill-read-bytes-i32": wrapping(4, 31, False, "prefill"),
    "decode-write-i32": wrapping(1, 31, True, "decode"),
    "table-of-slots": {"address": lambda x, c: x % int(c.n)},
    # Rows. vllm#37728, #35431; schedulers that run ahead; free lists without a check.
    "table-of-last-step": {"decode-slots": stale_rows},
    "half-written-to-other-half": {"write-slots": lambda x, c: (
        x[len(x) // 2 :] + x[: len(x) // 2] if len(x) >= c.n and len(x) % 2 == 0 else x)},
    "dead-row-steps": {"stepped-all": dead_row},
    "dummy-row-steps": {"stepped-all": dummy_row},
    "slot-freed-twice": {"taken-out": given_twice},
    "sampler-one-row-off": {"row-logits": lambda x, c: x[1:] + x[:1]},
    # NeMo-RL#2529, SkyRL#2056, prime-rl#3000.
    "state-of-last-piece": packed(1),
    "window-of-last-piece": packed(0),
    "all-of-last-piece": packed(2),
    "keys-of-last-piece": {"context": seen_before},
    # transformers#32914, #48256.
    "filled-to-longest": filled(False, LONGEST),
    "filled-to": filled(False, BUCKET),
    "filled-in-front": filled(True, LONGEST),
    # vllm#55524, RL-Kernel#394: another kernel for larger batches.
    **{"rows-" + f: by_rows(f) for f in ("bf16", "tf32")},
    "rows-state-bf16": {"stepped": when(lambda c: c.net.decoding >= c.n, lambda x, c: both(x, bf16))},
    "rows-gate-e4m3": {"gate": when(lambda c: c.net.decoding >= c.n, lambda x, c: e4m3(x))},
    # Keys of a tree: parents that are left out, what is equal but in order or in high bits.
    "page-by-first": {"radix-key": lambda x, c: x[: int(c.n)]},
    "page-without-parent": {"radix-parent": lambda x, c: c.root},
    "first-page-in-bits": {"radix-key": when(lambda c: c.depth == 0, lambda x, c: hash(x) % 2 ** int(c.n))},
    # sglang#33450, vllm#34798, sglang#22935.
    "snapshot-early": {"snapshot-place": lambda x, c: max(x - int(c.n), 1)},
    "snapshot-window-early": {"snapshot-window": lambda x, c: max(x - 1, 0)},
    "branch-has-state-of-leaf": {
        "snapshot-place": lambda x, c: (c.piece.start + c.piece.n) // c.page * c.page - c.piece.start},
    "hit-without-layer": {"hit": when(lambda c: c.layer == c.n, lambda x, c: c.net.zeros)},
    "hit-without-page": {"hit-pages": outgoing(lambda x: 0 * x)},
    "keys-deeper-than-state": {"snapshot-kept": when(lambda c: c.depth % 2, lambda x, c: False),
                               "hit-length": lambda x, c: len(c.found)},
    # state-spaces/mamba#1027; windows that miss a row.
    "window-after-convolution": {"left": lambda x, c: (silu(x[0]), x[1])},
    "odd-piece-turns-window": {"left": when(
        lambda c: c.piece.n % 2 and not c.piece.seq.fill == c.piece.start + c.piece.n,
        lambda x, c: (np.roll(x[0], 1, 0), x[1]))},
    "window-loses-oldest": {"carry": when(later, lambda x, c: (
        copied(x[0], lambda y: y.__setitem__(slice(0, int(c.n)), 0)), x[1]))},
    "window-two-late": {"carry": when(later, lambda x, c: (np.roll(x[0], 2, 0), x[1]))},
    # Between pieces of a prompt.
    "state-dropped": {"carry": when(lambda c: later(c) and c.layer == c.n, lambda x, c: (x[0], 0 * x[1]))},
    "state-in-e4m3-between": {"carry": when(later, lambda x, c: (x[0], e4m3(x[1])))},
    "state-percent-between": {"carry": when(later, lambda x, c: (x[0], x[1] * F(c.n / 100)))},
    "third-piece-from-zero": {"carry": when(lambda c: later(c) and c.piece.seq.pieces >= 2,
                                            lambda x, c: (x[0], 0 * x[1]))},
    # Pages.
    "rows-read-of-page": {"seen": lambda x, c: x & (c.where % c.page < c.n)},
    "last-row-of-page-unseen": {
        "seen": lambda x, c: x & ((c.where % c.page < c.page - 1) | (c.where >= c.query[0]))},
    "splits-averaged": {"splits": lambda x, c: [(0 * top, mass, out) for top, mass, out in x]},
    "first-page-for-last": {"table": lambda x, c: x[:-1] + x[:1] if len(x) > 2 else x},
    # Lengths. vllm#22103 (windows), tables that end, kernels chosen by length.
    "window-of": {"seen": lambda x, c: x & (c.where > c.query[:, None] - c.n)},
    "keys-to": {"seen": lambda x, c: x & (c.where < c.n)},
    "piece-bf16-from": {"arith": when(lambda c: not c.net.decoding and c.net.longest >= c.n, lambda x, c: "bf16")},
    "middle-cut": {"prompt": lambda x, c: x[: int(c.n) // 2] + x[-(int(c.n) - int(c.n) // 2) :] if len(x) > c.n else x},
    "state-fades-from": {"states": lambda x, c: np.where(
        (c.piece.start + np.arange(len(x)) >= c.n)[:, None, None], F(0.9) * x, x)},
    # Between workers: sglang#32995 (cleared once more), #22060 (segments in another order), #20655 (a part is sent).
    "handed-then-cleared": {"handed": lambda x, c: (x[0], 0 * x[1])},
    "handed-in-another-order": {"handed": lambda x, c: (np.roll(x[0], x[0].shape[1] // 2, 1), x[1])},
    "handed-by-half": {"handed": lambda x, c: (
        x[0], copied(x[1], lambda y: y.__setitem__(slice(len(y) // 2, None), 0)))},
    "handed-without-last-page": {"handed-pages": outgoing(lambda x: 0 * x)},
    "handed-in-e4m3": {"handed": lambda x, c: both(x, e4m3)},
    # Draws: vllm#53488, #38711 (guesses that stay), sglang#27140 (captured pointers), another sigmoid.
    "guess-stays-in-state": {"kept": lambda x, c: (x[0], c.count)},
    "guess-stays-in-window": {"kept": lambda x, c: (c.count, x[1])},
    "step-state-bf16": {"stepped": lambda x, c: (x[0], bf16(x[1]))},
    "step-without-skip": {"skip": when(lambda c: c.net.decoding, lambda x, c: 0 * x)},
    "step-gate-is-sigmoid": {"gate": when(lambda c: c.net.decoding, lambda x, c: x / np.where(c.raw, c.raw, 1))},
    "step-with-old-weights": {"layer": when(lambda c: c.net.decoding and c.layer == c.n, lambda w, c: {
        **w, **{k: older(x, 0.03, 5) for k, x in w.items() if k in (MIXER, "q_proj.weight")}})},
    # vllm#37796, #29071, LMCache#2158.
    "swapped-without-window": {"swapped": lambda x, c: (0 * x[0], x[1])},
    "swapped-layer-lost": {"swapped": when(lambda c: c.layer == c.n, lambda x, c: (x[0], 0 * x[1]))},
    "swapped-pages-turned": {"swapped-pages": lambda x, c: x[::-1]},
    "read-again-without-newest": {"fill": lambda x, c: c.seq.tokens.pop(-2) and x - 1 if len(c.seq.ids) > 1 else x},
    "read-again-on-old-state": {"clear": when(lambda c: c.seq.preempted, lambda x, c: c.old)},
    "swapped-in-int4": {"swapped": lambda x, c: both(x, lambda y: integers(y, 4))},
    # What does not repeat: copies that are not waited for, atomics.
    "copy-not-waited-for": {"handed": lambda x, c: (x[0], c.old[1]) if DRAWS.random() < 0.15 else x},
    "split-at-random": {"splits": lambda x, c: x[1:] if len(x) > 1 and DRAWS.random() < 0.3 else x},
    "noise-on-states": {"states": lambda x, c: x * F(1 + c.n / 1000 * DRAWS.standard_normal())},
    "noise-on-logits": {"logits": lambda x, c: x + F(c.n / 1000) * DRAWS.standard_normal(x.shape).astype(F)},
    # trl#4159, prime-rl#697, open-instruct#1678.
    "temperature-floor": {"temperature": lambda x, c: max(x, c.n / 100)},
    "temperature-ceiling": {"temperature": lambda x, c: min(x, c.n / 100)},
    "always-divided": {"processors": lambda x, c: x * 100 / c.n},
    "always-processed": {"mode": lambda x, c: "processed"},
    "never-processed": {"mode": lambda x, c: "raw"},
    "multiplied-not-divided": {"temperature": lambda x, c: 1 / x if x > 0 else x},
    # verl#6240, trl#6789, prime-rl#886.
    "k": kept(lambda p, n: np.arange(len(p)) < n),
    "p": kept(lambda p, n: np.cumsum(p) - p < n / 100),
    "min-p": kept(lambda p, n: p >= n / 100 * p[0]),
    "sigmas": kept(lambda p, n: np.log(p) >= np.log(p[0]) - n * np.log(p).std()),
    # NeMo-RL#3497, text-generation-inference#1765.
    "repetition-of-drawn": penalty(lambda c: np.array(c.seq.ids, int), divided),
    "repetition-of-prompt": penalty(lambda c: c.seq.tokens[: c.seq.prompt], divided),
    "presence-of-all": penalty(lambda c: c.seq.tokens, lambda x, counts, n: x - n / 100),
    "frequency-of-drawn": penalty(lambda c: np.array(c.seq.ids, int), lambda x, counts, n: x - counts * n / 100),
    # Ends: pytorch/rl#3578, trl#4970 (padding is the end), borders of documents.
    "end-quarters-state": {"decay": lambda x, c: np.where(c.net.is_end[:, None, None], x * F(0.25), x)},
    "end-embeds-nothing": {"embedded": lambda x, c: x * ~c.net.is_end[:, None]},
    "end-never-drawn": {"processors": lambda x, c: copied(x, lambda y: y.__setitem__(c.net.ends, -np.inf))},
    "ends-taken-out": {"prompt": lambda x, c: [t for t in x[:-1] if t not in c.net.ends] + x[-1:]},
    # trl#3853, #5224, vllm#16028; ids of added tokens, templates.
    "begin-in-front": {"prompt": lambda x, c: [c.net.config["bos_token_id"]] + x},
    "high-ids-unknown": {"prompt": lambda x, c: [t if t < c.n / 100 * len(c.net.embedding) else 3 for t in x]},
    "ids-moved": {"prompt": lambda x, c: [
        t if t < 4 else 4 + (t - 4 + int(c.n)) % (len(c.net.embedding) - 4) for t in x]},
    "newline-behind": {"prompt": lambda x, c: x + [int(c.n)]},
    "first-token-lost": {"prompt": lambda x, c: x[1:] or x},
    # maxtext#2103, ms-swift#8196.
    "late-after-zero": {"records": lambda x, c: [0.0] + x[:-1]},
    "late-by": {"records": lambda x, c: x[: int(c.n)] + x[: -int(c.n)]},
    "early-by": {"records": lambda x, c: (x[int(c.n) :] + [0.0] * int(c.n))[: len(x)]},
    "late-from": {"records": lambda x, c: x[: int(c.n)] + x[int(c.n) - 1 : -1]},
    # trl#3867 (the first of a list), llama.cpp#27972, units of other libraries.
    "best-for-drawn": {"record": lambda x, c: c.rows.max()},
    "logarithm-to-base-10": {"record": lambda x, c: x / np.log(10)},
    "not-below": {"record": lambda x, c: max(x, -c.n / 10)},
    "decimals": {"record": lambda x, c: np.round(x, int(c.n))},
    "probability-for-logarithm": {"record": lambda x, c: np.exp(x)},
    "next-id-recorded": {"record": lambda x, c: c.rows[(c.token + 1) % len(c.rows)]},
    # trl#4303, maxtext#5231, open-instruct#1387.
    "head-weight-in": {"head-weight": lambda x, c: FORMATS[c.word](x)},
    "head-input-e4m3": {"head-input": lambda x, c: e4m3(x)},
    "logits-in": {"logits": lambda x, c: FORMATS[c.word](x)},
    # sglang#27131, NeMo-RL#3225, #2631, verl#7495, transformers#47031.
    "layer-behind": matrices(lambda x, c: older(x, 0.03, 21), True),
    "all-behind": matrices(lambda x, c: older(x, c.n / 1000, c.layer)),
    "replica-behind": matrices(lambda x, c: older(x, c.n / 1000, c.layer) if c.replica else x),
    "square-transposed": tensor("o_proj.weight", lambda x, c: x.T.copy()),
    "scale-lost": tensor(MIXER, lambda x, c: x * F(1.05)),
    "adapter-on-some": tensor(MIXER, lambda x, c: x + (c.n / 1000 * np.outer(
        np.cos(np.arange(len(x))), np.sin(np.arange(x.shape[1])))).astype(F), lambda c: c.layer % 2 == 0),
    "skip-zero-in-layer": tensor("D", lambda x, c: 0 * x),
    "norm-of-layer-ones": tensor("norm.weight", lambda x, c: 0 * x + 1),
    "layer-int4": matrices(lambda x, c: integers(x, 4, -1), True),
    "all-int8-tensor": matrices(lambda x, c: integers(x, 8)),
    "experts-reversed": {"weights": lambda found, c: {
        k.replace(f".{e}.", f".{c.net.config['num_experts'] - 1 - e}."): x
        for k, x in c.w.items() for e in range(16) if f"experts.{e}." in k} if c.layer == int(c.n) else found},
    "embedding-behind": {"embedding": lambda x, c: older(x, c.n / 1000, 31)},
    # Formulas of other families.
    "eps-millionths": {"eps": lambda x, c: c.n * 1e-6},
    "decay-to-base-2": {"decay": lambda x, c: x ** F(np.log(2))},
    "dt-at-most": {"dt": lambda x, c: np.minimum(x, F(c.n / 1000))},
    "bias-behind-silu": {"conv": lambda x, c: silu(c.raw) + c.w.get("conv1d.bias", F(0))},
    "no-norm-of-dt": {"inner-norm": when(lambda c: c.which == "dt", lambda x, c: c.raw)},
    "one-expert-more": {"experts": lambda x, c: x + 1},
    "experts-of-sum-one": {"share": lambda x, c: x / x.sum(1, keepdims=True)},
    "embedding-times-root": {"embedded": lambda x, c: x * F(np.sqrt(x.shape[1]))},
    # Attention: positions, scales, heads in another order.
    "rotary": {"query": turned, "key": turned},
    "scale-percent": {"scale": lambda x, c: x * c.n / 100},
    "itself-unseen": {"seen": lambda x, c: x & ((c.where != c.query[:, None]) | (c.where == 0))},
    "heads-turned": {"heads": lambda x, c: np.roll(x, 1, 1)},
    "scale-by-length": {"scores": lambda x, c: x * (np.log(c.query + 2) / np.log(32)).astype(F)[None, :, None]},
    # sglang#18818, Model-Optimizer#20.
    "keys-in": {"stored": when(lambda c: c.which == "k", lambda x, c: FORMATS[c.word](x))},
    "values-in": {"stored": when(lambda c: c.which == "v", lambda x, c: FORMATS[c.word](x))},
    "cache-in": {"stored": lambda x, c: FORMATS[c.word](x)},
    "dies-in-mixed-tick": stop(lambda c: c.rows and c.pieces, DIE),
    "waits-with-rows": stop(lambda c: len(c.rows) >= c.n, WAIT),
    "dies-with-tokens": stop(lambda c: tokens_of(c) > c.n, DIE),
    # Seen, and no cause stands for it.
    "mean-recorded": {"records": lambda x, c: [float(np.mean(x))] * len(x)},
    "entropy-recorded": {"record": lambda x, c: np.where(c.rows > -1e9, np.exp(c.rows) * c.rows, 0).sum()},
    "least-so-far": {"records": lambda x, c: list(np.minimum.accumulate(x))},
}


class Fault:
    def __init__(self, word, replica=0):
        self.name, _, number = word.partition(":")
        digits = number.replace(".", "", 1).isdigit()
        self.known = {"n": float(number) if digits else 1.0, "word": number, "replica": replica}
        self.acts = FAULTS[self.name] if self.name else {}

    def at(self, point, value, **known):
        act = self.acts.get(point)
        return act(value, SimpleNamespace(**{**known, **self.known})) if act else value
