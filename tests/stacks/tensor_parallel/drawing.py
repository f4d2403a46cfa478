"""From the ranks' logits to a token, by the inverse of the cumulative distribution, and the value that is recorded."""

import zlib

import numpy as np

from formats import F, FORMATS


def log_probabilities(x, shards):
    """x less the logarithm of its mass, which ranks sum over their own words and merge by their greatest."""
    own = [s for s in np.array_split(x.astype(F), shards) if s.max() > -np.inf]  # a filter may have left a rank nothing
    parts = [(s.max(), np.exp(s - s.max()).sum(dtype=F)) for s in own]
    most = max(top for top, _ in parts)
    return x - most - np.log(sum(mass * np.exp(top - most) for top, mass in parts))


def draw(engine, seq, logits, guess=None):
    o, at = engine.o, engine.at
    if engine.finished(seq):
        return None
    x = at("processors", logits.astype(F), seq=seq, net=engine.net, engine=engine)
    t = at("temperature", o["temperature"], processed=o["logprobs"] == "processed", seq=seq)
    rows = log_probabilities(x / F(t) if t > 0 else x, engine.net.ranks)
    uniform = np.random.default_rng([o["seed"], zlib.crc32(seq.request["id"].encode()), len(seq.ids)]).random()
    token = int(np.argmax(x))
    if t > 0:
        mass = np.cumsum(np.exp(rows.astype(float)))
        token = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    mode = at("mode", o["logprobs"], t=t)
    kept = rows if mode == "processed" else log_probabilities(x, engine.net.ranks)
    value = at("record", kept[token], rows=kept, token=token, logits=x, guess=guess, seq=seq, t=t, mode=mode,
               net=engine.net)
    seq.values.append(float(FORMATS[o["record"]](value)))
    seq.ids.append(token)
    seq.tokens.append(token)
    return token
