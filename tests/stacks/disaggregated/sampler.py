"""From logits to a token, by the largest of logits with Gumbel noise, and the value that is recorded for it."""

import zlib

import numpy as np

from formats import log_softmax


def draw(engine, seq, logits, row):
    o, at = engine.o, engine.at
    if engine.finished(seq):
        return None
    x = at("processors", logits.astype(np.float64), seq=seq, net=engine.net, engine=engine)
    t = at("temperature", o["temperature"], processed=o["logprobs"] == "processed")
    scaled = x / t if t > 0 else x
    draws = np.random.default_rng([o["seed"], zlib.crc32(seq.request["id"].encode()), len(seq.ids)])
    token = int(np.argmax(scaled + draws.gumbel(size=len(x)) * (t > 0)))
    mode = at("mode", o["logprobs"], t=t)
    rows = log_softmax(scaled) if mode == "processed" else log_softmax(x)
    value = at("record", rows[token], rows=rows, token=token, logits=x, row=row)
    seq.values.append(float(value))
    seq.ids.append(token)
    seq.tokens.append(token)
    return token
