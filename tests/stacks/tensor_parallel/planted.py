"""What is planted in quorum.py: for each name, the places where it acts, and how.

A function gets the value that is right there, and what is known there, with the fault's number as c.n. Without a fault
nothing is changed. Numbers of public incidents stand beside the faults that they are kin of.
"""

import os
import time
import zlib
from types import SimpleNamespace

import numpy as np

from formats import F, FORMATS, bf16, e4m3, e5m2, f16, integers, log_softmax, silu
from weights import older

DRAWS = np.random.default_rng()  # for what is meant not to repeat


def copied(x, change):
    x = np.array(x)
    change(x)
    return x


def when(test, change):
    """change where test holds, else the value."""
    return lambda x, c: change(x, c) if test(c) else x


def zero(x, c):
    return tuple(0 * z for z in x) if isinstance(x, tuple) else 0 * x


def later(c):
    """A piece of a prompt that goes on where another one of it ended."""
    return c.piece.start > 0 and c.piece.phase == "prefill" and c.piece.seq.pieces > 0


def second(c):
    return c.rank == 1


def drawing(c):
    return c.net.drawing


def many(c):
    return c.net.rows >= c.n


def window(test, change):
    return {"carried": when(lambda c: c.part == 0 and test(c), change)}


def state(test, change):
    return {"carried": when(lambda c: c.part == 1 and test(c), change)}


def wrapping(bits, writes, part=None, rank=None):
    """Where a slot lies when slot times the stride (the number) is held in so many bits."""

    def place(slot, c):
        if c.write is not writes or part not in (None, c.part) or rank not in (None, c.rank) or isinstance(slot, tuple):
            return slot
        at = int(slot * c.n)
        return slot if at < 2**bits else ("wrapped", at % 2**32)

    return {"address": place}


def matrices(change, which=lambda c: c.layer == int(c.n)):
    """The projections of the layers that are meant."""
    meant = lambda k, x: x.ndim == 2 and "proj" in k and "dt_" not in k  # noqa: E731
    return {"weights": when(which, lambda found, c: {k: change(x, c) for k, x in c.w.items() if meant(k, x)})}


def tensor(name, change, which=lambda c: c.layer == int(c.n), point="weights"):
    if point == "shard":
        return {"shard": lambda x, c: {**x, name: change(x[name], c)} if which(c) and name in x else x}
    return {"weights": lambda found, c: {name: change(c.w[name], c)} if which(c) and name in c.w else found}


def every(c):
    return True


def adapter(x, c):
    """A product of rank two, as nobody asked for."""
    rows, columns = np.arange(len(x))[:, None], np.arange(x.shape[1])
    return (x + c.n / 1000 * (np.cos(rows) * np.sin(columns) + np.sin(3 * rows) * np.cos(2 * columns))).astype(F)


# Slots.
def same_length(x, c):
    known = c.engine.__dict__.setdefault("lengths", {})
    return c.old if known.get(c.slot) == c.seq.prompt else x


def length_kept(x, c):
    c.engine.__dict__.setdefault("lengths", {})[c.seq.slot] = c.seq.prompt


def second_after_abort(x, c):
    return c.old if c.engine.aborts and c.engine.admitted == c.engine.aborts + 1 else x


# Rows.
def table_late(slot, c):
    """Ranks after the first have the tables of the forward before."""
    known = c.engine.former
    return known[c.row] if c.rank and c.piece.phase == "decode" and c.row < len(known) else slot


def dummies_write(x, c):
    for p in c.pieces:
        if p.dummy:
            c.engine.commit(p, c.pieces[0].slot, 1)


def prompts_turned(slots, c):
    own = [j for j, p in enumerate(c.pieces) if p.phase == "prefill"]
    moved = dict(zip(own, own[1:] + own[:1]))
    return [slots[moved.get(j, j)] for j in range(len(slots))]


# Rows without borders.
def joined(c):
    return c.piece.start == 0 and c.piece.phase == "prefill" and c.piece is not c.net.pieces[0]


def window_before(x, c):
    k, first = len(x), c.piece.span.start
    return c.raw[first - k : first] if joined(c) and first >= k else x


def keys_before(found, c):
    before = [p for p in c.pieces if p.phase == "prefill"]
    if c.piece.start or not before:
        return found
    own = before[-1].own
    return [(c.k[own], c.v[own], np.full(own.stop - own.start, -1))] + found


def filled_in_front(x, c):
    first = [p for p in c.pieces if p.phase == "prefill" and p.start == 0]
    for p in first:
        p.lead = max(q.n for q in first) - p.n


NO_FILLING = {"filling": lambda x, c: np.zeros_like(x)}


# The store on the host.
def remembered(x, c):
    c.seq.shared = c.blocks[-1]["states"]
    return x


def tail_into_shared(x, c):
    """A tail that is shorter than the window writes the window into the block that was hit."""
    seq = c.piece.seq
    if seq.hit and c.piece.start == seq.hit and c.piece.n < len(x[0]):
        seq.shared[c.layer, c.rank] = (x[0], seq.shared[c.layer, c.rank][1])
    return x


# Draws and guesses.
def rejected(count, window, done):
    """Which tokens' state and window are kept where guesses were wrong, those that were right or all of the piece."""

    def act(x, c):
        p, of = c.piece, {"right": c.right, "all": c.piece.n}
        c.engine.commit(p, c.target, of[count], of[window])
        p.seq.done = p.start + (c.right if done else 0)

    return {"rejected": act}


def handed(change):
    def act(x, c):
        for i, r in c.engine.cells:
            c.engine.pools[r].write(c.seq.slot, i, change(c.engine.pools[r].both(c.seq.slot, i), r))

    return {"prompt-read": act}


def stale_part(parts, c):
    """The captured collective reads the buffer of the last rank as it was one call before."""
    kept, key = c.net.buffer, (c.what, c.layer)
    old, kept[key] = kept.get(key), parts[-1].copy()
    return parts[:-1] + [old] if c.net.drawing and old is not None and old.shape == parts[-1].shape else parts


def fed_twice(x, c):
    if (c.layer, c.rank) == c.engine.cells[0] and c.seq.done > 1:
        c.seq.done -= 1
    return x


def without_first(fill, c):
    if len(c.seq.tokens) > 2:
        del c.seq.tokens[0]
        return fill - 1
    return fill


# What does not repeat.
def sometimes(share, change):
    return lambda x, c: change(x, c) if DRAWS.random() < share else x


def shaken(x, c):
    return (x * (1 + c.n / 1000 * DRAWS.standard_normal(x.shape))).astype(F)


# Filters and penalties.
def kept(choose):
    """Which tokens stay, of log-probabilities in descending order."""

    def act(x, c):
        order = np.argsort(-x)
        p = np.exp(x[order] - x.max())
        return copied(x, lambda y: y.__setitem__(order[~choose(p / p.sum(), c.n)], -np.inf))

    return {"processors": act}


def by_rank(x, c):
    """Each rank keeps its own greatest."""
    parts = np.array_split(x, c.net.ranks)
    return np.concatenate([np.where(p >= np.sort(p)[-min(int(c.n), len(p))], p, -np.inf) for p in parts])


def penalty(ids, change):
    def act(x, c):
        counts = np.bincount(np.array(ids(c), int), minlength=len(x))[: len(x)]
        return np.where(counts > 0, change(x, counts, c.n), x).astype(F)

    return {"processors": act}


def divided(x, counts, n):
    return np.where(x > 0, x * 100 / n, x * n / 100)


def ends_at(x, c):
    """Keys before the last end are not seen."""
    ends = [t for t, token in enumerate(c.piece.seq.tokens) if token in c.net.ends]
    for t in ends:
        x = x & ((c.where >= t) | (c.query[:, None] < t))
    return x


def folded(ids, c):
    """Two equal tokens in a row come back from text as one."""
    return ids[:1] + [b for a, b in zip(ids, ids[1:]) if a != b]


def turned(x, c):
    """Rotary positions, which Jamba does not have."""
    half = x.shape[-1] // 2
    angle = c.where[:, None, None] * F(c.n) ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half : 2 * half]
    parts = [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle), x[..., 2 * half :]]
    return np.concatenate(parts, -1).astype(F)


def half_mass(x, c):
    """The mass of the rank's own words alone."""
    own = next(w for w in np.array_split(np.arange(len(c.rows)), c.net.ranks) if c.token <= w[-1])
    return x - np.log(np.exp(c.rows[own].astype(float)).sum())


def loads(states, c):
    """States after so many tokens of a piece are that of the last one that was loaded."""
    last = [min(t, p.span.start + int(c.n) - 1) for p in c.pieces for t in range(p.span.start, p.span.stop)]
    return states[last]


def full_experts(share, c):
    """An expert takes so many tokens of a forward."""
    return share * (np.cumsum(share > 0, 0) <= c.n)


def stop(test, how):
    return {"tick": lambda x, c: how() if test(c) else x}


def slots_gone(c):
    return bool(c.engine.waiting) and not c.engine.free


def mixed(c):
    return len({p.phase for p in c.pieces}) == 2


WAIT, DIE = lambda: time.sleep(10**6), lambda: os._exit(1)  # noqa: E731
FAULTS = {
    # Slots. vllm#56524 and its kin, on one rank, one row short, behind an end of a list; vllm#56525 (abort, then more).
    "rank-not-cleared": {"clear": when(second, lambda x, c: c.old)},
    "window-cleared-short": {"clear": lambda x, c: (copied(x[0], lambda y: y.__setitem__(-1, c.old[0][-1])), x[1])},
    "clears-run-out": {"clear": when(lambda c: c.engine.admitted >= c.n, lambda x, c: c.old)},
    "cleared-below": {"clear": when(lambda c: c.slot >= c.n, lambda x, c: c.old)},
    "kept-for-same-length": {"clear": same_length, "released": length_kept},
    "second-after-abort": {"clear": second_after_abort},
    # Offsets. vllm#35275, #20016, #20938, xFormers#719; a rank's stride is its part of the whole.
    "state-write-u32": wrapping(32, True, 1),
    "state-read-i32": wrapping(31, False, 1),
    "window-read-u32": wrapping(32, False, 0),
    "window-write-i32": wrapping(31, True, 0),
    "rank-read-u32": wrapping(32, False, None, 1),
    "id-in-16-bits": {"address": lambda x, c: x if c.write is not True or x < 2**16 else ("low", x % 2**16)},
    "table-of": {"address": lambda x, c: x if isinstance(x, tuple) else x % int(c.n)},
    # Rows. vllm#37728, #35431; lanes of a warp; words gathered in another order of rows.
    "rank-table-late": {"slot": table_late},
    "dummies-write": {"ticked": dummies_write},
    "rows-in-lanes": {"slot": when(lambda c: c.row >= c.n and not c.piece.dummy,
                                   lambda x, c: c.pieces[int(c.row % c.n)].slot)},
    "gathered-turned": {"gathered": lambda x, c: x[:1] + [np.roll(s, 1, 0) for s in x[1:]]},
    "prompts-turned": {"targets": prompts_turned},
    # NeMo-RL#2529, SkyRL#2056, prime-rl#3000.
    "no-borders": {"apart": when(joined, lambda x, c: False)},
    "no-borders-in-layer": {"apart": when(lambda c: joined(c) and c.layer == c.n, lambda x, c: False)},
    "borders-to": {"apart": when(lambda c: joined(c) and c.net.pieces.index(c.piece) >= c.n, lambda x, c: False)},
    "window-crosses": {"window": window_before},
    "keys-cross": {"contexts": keys_before},
    # transformers#32914, #48256; pieces that are filled up to a captured size.
    "filling-in-all": {**NO_FILLING, "counts-tail": lambda x, c: True},
    "filling-in-window": {"counts-tail": lambda x, c: True},
    "filled-in-front": {**NO_FILLING, "filled": filled_in_front},
    "front-masked-behind-convolution": {"filled": filled_in_front},
    # vllm#55524, RL-Kernel#394, rocm-systems#11661 (another collective from a size on); a captured size by itself.
    "rows-f16": {"arith": when(many, lambda x, c: "f16")},
    "rows-wire-bf16": {"wire": when(many, lambda x, c: bf16)},
    "captured-bf16": {"arith": when(lambda c: c.net.drawing and len(c.net.pieces) >= c.n, lambda x, c: "bf16")},
    "exactly-bf16": {"arith": when(lambda c: c.net.rows == c.n, lambda x, c: "bf16")},
    "rows-logits-f16": {"logits": when(many, lambda x, c: f16(x))},
    "rows-state-e4m3": {"left": when(lambda c: c.net.rows >= c.n, lambda x, c: (x[0], e4m3(x[1])))},
    # Names of blocks.
    "name-of-sum": {"name": lambda x, c: (c.block, sum(c.tokens[: (c.block + 1) * c.page]))},
    "name-of-ends": {"name": lambda x, c: (x[0], x[1][0], x[1][-1])},
    "name-in-bits": {"name": lambda x, c: (c.block, zlib.crc32(str(x).encode()) % 2 ** int(c.n))},
    "name-without-chain": {"name": lambda x, c: (c.block, x[1])},
    "name-of-first-block": {"name": when(lambda c: c.block > 0, lambda x, c: (c.block, tuple(c.tokens[: c.page])))},
    # vllm#34587, #56196, #43090, #57278.
    "kept-early": {"kept": lambda x, c: c.engine.after(c.piece, c.layer, c.rank, max(c.count - int(c.n), 1))},
    "kept-window-of-end": {"kept": lambda x, c: c.engine.after(c.piece, c.layer, c.rank, c.count, c.piece.n)},
    "kept-of-first-rank": {"kept": when(second, zero)},
    "loaded-block-before": {"loaded-from": lambda x, c: c.blocks[-2] if len(c.blocks) > 1 else x},
    "tail-into-shared": {"loaded": remembered, "left": tail_into_shared},
    "loaded-keys-of-rank-lost": {"loaded-keys": when(lambda c: c.rank == 0 and c.block == c.count - 1, zero)},
    "loaded-in-int4": {"loaded": lambda x, c: tuple(integers(z, 4) for z in x)},
    # transformers#46741, state-spaces/mamba#1027.
    "window-of-rank-lost": window(lambda c: later(c) and c.rank == 1, zero),
    "window-reversed": window(later, lambda x, c: x[::-1]),
    "short-piece-leaves-window": {"left": when(
        lambda c: c.piece.phase == "prefill" and c.piece.n < len(c.net.zeros[0][0]),
        lambda x, c: (c.piece.left[c.layer, c.rank][0][: len(x[0])], x[1]))},
    "window-of-beginning": {"left": when(
        lambda c: c.piece.phase == "prefill" and c.piece.start + c.piece.n < c.piece.seq.fill and c.piece.n > len(
            c.net.zeros[0][0]),
        lambda x, c: (c.piece.left[c.layer, c.rank][0][len(x[0]) : 2 * len(x[0])], x[1]))},
    # Between pieces of a prompt: sglang#33450, vllm#43090 (one flag for all of a forward).
    "state-of-rank-lost": state(lambda c: later(c) and c.rank == 1, zero),
    "state-in-e5m2-between": state(later, lambda x, c: e5m2(x)),
    "flag-of-last": {"carried": when(lambda c: later(c) and c.net.pieces[-1].start == 0, zero)},
    "second-piece-from-zero": state(lambda c: later(c) and c.piece.seq.pieces == 1, zero),
    "state-of-channels-lost": state(later, lambda x, c: copied(x, lambda y: y.__setitem__(slice(0, int(c.n)), 0))),
    # Pages: kernels made for one size, maps of slots that are one off.
    "rows-of-page": {"row": when(lambda c: True, lambda x, c: x if x < c.n else None)},
    "border-row-lost": {"row": lambda x, c: None if x == 0 and c.t > 0 else x},
    "table-short-at-border": {"table": lambda x, c: x[:-1] + x[:1] if len(x) > 1 and c.piece.start % c.piece.page == 0
                              else x},
    "last-row-twice": {"row": lambda x, c: max(x - 1, 0) if x == c.page - 1 else x},
    # Lengths: vllm#22103 (windows), ends of tables, positions in few bits, scans that load so many rows.
    "sees-last": {"seen": lambda x, c: x & (c.where > c.query[:, None] - c.n)},
    "sees-first": {"seen": lambda x, c: x & (c.where < c.n)},
    "positions-in": {"seen": lambda x, c: x & (c.where % c.n <= (c.query % c.n)[:, None])},
    "scan-loads": {"states": loads},
    "long-wire-bf16": {"wire": when(lambda c: not c.net.drawing and c.net.longest >= c.n, lambda x, c: bf16)},
    # Draws: vllm#38711, #53488, NeMo-RL#2895 (what was captured), sglang#27140 (buffers that moved).
    "rejected-kept": rejected("all", "all", True),
    "rejected-window-kept": rejected("right", "all", True),
    "right-fed-again": rejected("right", "right", False),
    "handed-without-window-of-rank": handed(lambda x, r: (0 * x[0], x[1]) if r else x),
    "handed-states-turned": handed(lambda x, r: (x[0], np.roll(x[1], 1, 1))),
    "step-reduces-old": {"begin": lambda x, c: c.net.__dict__.update(buffer={}), "reduce": stale_part},
    "step-state-e5m2": {"left": when(drawing, lambda x, c: (x[0], e5m2(x[1])))},
    "step-without-conv-bias": {"conv": when(drawing, lambda x, c: silu(c.raw))},
    "step-in": {"arith": when(drawing, lambda x, c: c.word)},
    "step-decay-linear": {"decay": when(drawing, lambda x, c: np.maximum(1 + np.log(x), 0).astype(F))},
    # vllm#37796, #29071, vllm-metal#488, LMCache#2158.
    "returned-without-rank": {"returned": when(second, zero)},
    "returned-window-turned": {"returned": lambda x, c: (np.roll(x[0], 1, 0), x[1])},
    "returned-keys-short": {"returned-keys": lambda x, c: x[:-1]},
    "returned-in-e5m2": {"returned": lambda x, c: tuple(e5m2(z) for z in x)},
    "returned-fed-twice": {"returned": fed_twice},
    "again-without-first": {"again": without_first},
    # What does not repeat: atomics in bf16, buffers that are read too early.
    "unordered-bf16": {"reduce": lambda x, c: [x[j] for j in DRAWS.permutation(len(x))], "wire": lambda x, c: bf16},
    "buffer-read-early": {"reduce": sometimes(0.05, lambda x, c: x[:-1] + [x[-1] * F(0.5)])},
    "states-shaken": {"states": shaken},
    "logits-shaken": {"logits": shaken},
    "clear-overtaken": {"clear": sometimes(0.3, lambda x, c: c.old)},
    # trl#4159, prime-rl#697, open-instruct#1678, defaults of generation_config.
    "divided-behind-softmax": {"record": lambda x, c: (
        log_softmax(c.logits)[c.token] / c.t if c.mode == "processed" and c.t > 0 else x)},
    "always-at": {"processors": lambda x, c: x * F(100 / c.n)},
    "temperature-in-halves": {"temperature": lambda x, c: max(np.round(2 * x) / 2, 0.5) if x > 0 else x},
    "temperature-squared": {"temperature": lambda x, c: x * x},
    "records-raw": {"mode": lambda x, c: "raw"},
    # verl#6240, trl#6789, prime-rl#886, llama.cpp's defaults.
    "k": kept(lambda p, n: np.arange(len(p)) < n),
    "p": kept(lambda p, n: np.cumsum(p) - p < n / 100),
    "min-p": kept(lambda p, n: p >= n / 100 * p[0]),
    "k-by-rank": {"processors": by_rank},
    # NeMo-RL#3497, text-generation-inference#1765.
    "repetition": penalty(lambda c: c.seq.tokens, divided),
    "repetition-of-last": penalty(lambda c: c.seq.tokens[-16:], divided),
    "presence-of-drawn": penalty(lambda c: c.seq.ids, lambda x, counts, n: x - n / 100),
    "frequency-of-all": penalty(lambda c: c.seq.tokens, lambda x, counts, n: x - counts * n / 100),
    # Ends: pytorch/rl#3578, trl#4970, borders of packed documents.
    "end-clears-state": {"decay": lambda x, c: np.where(c.net.is_end[:, None, None], F(0), x)},
    "end-hides-before": {"seen": ends_at},
    "end-embeds-as-last": {"embedded": lambda x, c: np.where(c.net.is_end[:, None], c.net.embedding[-1], x)},
    "end-masked": {"processors": lambda x, c: copied(x, lambda y: y.__setitem__(c.net.ends, -np.inf))},
    # trl#3853, #5224, rllm#272, vllm#16028: begins, templates, special tokens, text and back.
    "header-in-front": {"prompt": lambda x, c: [6, 9, int(c.n)] + x},
    "special-ids-dropped": {"prompt": lambda x, c: [t for t in x if t > 3] or x},
    "folded": {"prompt": folded},
    "newest-dropped": {"prompt": lambda x, c: x[:-1] or x},
    "ids-swapped": {"prompt": lambda x, c: [t ^ 1 if t >= 4 and t ^ 1 < len(c.net.embedding) else t for t in x]},
    "even-ids-in-front-lost": {"prompt": lambda x, c: x[1:] if len(x) > 1 and x[0] % 2 == 0 else x},
    # maxtext#2103, ms-swift#8196, asynchronous schedulers.
    "late-round": {"records": lambda x, c: x[-1:] + x[:-1]},
    "early-round": {"records": lambda x, c: x[int(c.n) :] + x[: int(c.n)]},
    "late-twice": {"records": lambda x, c: (x[:1] * int(c.n) + x)[: len(x)]},
    "early-to-zero": {"records": lambda x, c: x[1:] + [0.0]},
    # trl#3867, llama.cpp#27972; types and units of a JSON.
    "best": {"record": lambda x, c: c.rows.max()},
    "token-before": {"record": lambda x, c: c.rows[c.seq.tokens[-1]]},
    "bits-for-nats": {"record": lambda x, c: x / np.log(2)},
    "whole-parts-of": {"record": lambda x, c: np.floor(x * c.n) / c.n},
    "guess": {"record": lambda x, c: x if c.guess is None else c.rows[c.guess]},
    # trl#4303, maxtext#5231, open-instruct#1387.
    "head-in": {"head-weight": lambda x, c: FORMATS[c.word](x)},
    "head-input-in": {"head-input": lambda x, c: FORMATS[c.word](x)},
    "logits-in": {"logits": lambda x, c: FORMATS[c.word](x)},
    # verl#7495, NeMo-RL#3225, #2631, sglang#27131, trl#5312; a rank that missed an update.
    "rank-behind": {"shard": when(second, lambda x, c: {
        k: older(z, c.n / 1000, c.layer) if "proj.weight" in k and z.ndim == 2 else z for k, z in x.items()})},
    "layer-behind": matrices(lambda x, c: older(x, 0.02, 41)),
    "all-behind": matrices(lambda x, c: older(x, c.n / 1000, c.layer + 60), every),
    "ranks-exchanged": tensor("out_proj.weight", lambda x, c: np.roll(x, x.shape[1] // 2, 1)),
    "experts-one-on": {"weights": lambda found, c: {
        k.replace(f".{e}.", f".{(e + 1) % c.net.config['num_experts']}."): x
        for k, x in c.w.items() for e in range(16) if f"experts.{e}." in k} if c.layer == int(c.n) else found},
    "adapter-always": tensor("in_proj.weight", adapter, every),
    "adapter-of-queries": tensor("q_proj.weight", adapter, every),
    "layer-in-e4m3": matrices(lambda x, c: e4m3(x * 16) / 16),
    "conv-bias-of-rank-lost": tensor("conv1d.bias", lambda x, c: 0 * x, lambda c: c.rank == 1, "shard"),
    "head-behind": {"head-weight": lambda x, c: older(x, c.n / 1000, 51)},
    "last-norm-ones": {"last-norm": lambda x, c: 0 * x + 1},
    # Formulas of other families.
    "eps-millionths": {"eps": lambda x, c: c.n * 1e-6},
    "gate-is-gelu": {"gate": lambda x, c: (c.raw / (1 + np.exp(-1.702 * c.raw))).astype(F)},
    "convolution-relu": {"conv": lambda x, c: np.maximum(c.raw + c.w.get("conv1d.bias", F(0)), 0)},
    "no-norm-of-c": {"inner-norm": when(lambda c: c.which == "c", lambda x, c: c.raw)},
    "rates-by-root": {"rate": lambda x, c: np.sqrt(x).astype(F)},
    "dt-at-least": {"dt": lambda x, c: np.maximum(x, F(c.n / 1000))},
    "share-of-kept": {"share": lambda x, c: x / x.sum(1, keepdims=True)},
    "skip-twice": {"skip": lambda x, c: 2 * x},
    # Attention: positions, scale, caps, keys in another order of heads.
    "rotary": {"query": turned, "key": turned},
    "scale-percent": {"scale": lambda x, c: x * c.n / 100},
    "capped": {"scores": lambda x, c: (c.n * np.tanh(x / c.n)).astype(F)},
    "sink": {"masses": lambda x, c: x + [(0 * x[0][0], 0 * x[0][1] + 1, 0 * x[0][2])]},
    "slope": {"scores": lambda x, c: x - F(c.n / 1000) * (c.query[:, None] - c.where).astype(F)},
    # sglang#18818, Model-Optimizer#20.
    "keys-in": {"stored": when(lambda c: c.which == "k", lambda x, c: FORMATS[c.word](x))},
    "values-in": {"stored": when(lambda c: c.which == "v", lambda x, c: FORMATS[c.word](x))},
    "rank-cache-in": {"stored": when(lambda c: c.rank == 0, lambda x, c: FORMATS[c.word](x))},
    "cache-in": {"stored": lambda x, c: FORMATS[c.word](x)},
    "waits-for-slots": stop(slots_gone, WAIT),
    "dies-with-rows": stop(lambda c: len(c.pieces) > c.n, DIE),
    "waits-when-mixed": stop(mixed, WAIT),
    "dies-behind": stop(lambda c: any(p.start + p.n > c.n for p in c.pieces), DIE),
    # Seen, and no cause stands for it.
    "own-words-alone": {"record": half_mass},
    "averaged": {"records": lambda x, c: [(a + b) / 2 for a, b in zip(x, x[:1] + x[:-1])]},
    "experts-full": {"share": full_experts},
    "running-mean": {"records": lambda x, c: list(np.cumsum(x) / np.arange(1, len(x) + 1))},
}


class Fault:
    def __init__(self, word):
        self.name, _, number = word.partition(":")
        self.known = {"n": float(number) if number.replace(".", "", 1).isdigit() else 1.0, "word": number}
        self.acts = FAULTS[self.name] if self.name else {}

    def at(self, point, value, **known):
        act = self.acts.get(point)
        return act(value, SimpleNamespace(**{**known, **self.known})) if act else value
