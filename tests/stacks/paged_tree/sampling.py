"""From logits to a token and the value that is recorded for it, and from ids that were sent to ids that are computed."""

import numpy as np
from formats import bf16, log_softmax


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
