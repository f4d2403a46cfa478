"""Faults around a model of transformers, one class for those that act while it generates and one for its records."""
import math
import random

import torch
from transformers import DynamicCache

IN_MODEL = ("rope-decode", "pad-positions", "beyond-64", "chunk-positions", "rope-base", "norm-eps", "int4-layer",
            "neighbours", "race", "mixer-scaled", "noise-at-end", "half-stale", "norm-stale", "before-mixed",
            "adapter-stays", "head-untied", "rope-bf16", "token-race", "head-by-rows")
IN_CACHE = ("window", "kv-int4", "heads-turned", "hand-over", "kv-fp8", "sink-lost", "scale-1.1", "keys-late",
            "sinks-and-60", "page-unwritten", "table-late")
IN_RECORDS = ("penalty", "top-p", "min-p", "eos-masked", "log2", "cumulative", "temperature-always", "nan-last", "likeliest-20",
              "temperature-warm", "two-late", "presence", "f16-logits", "frequency", "bf16-logits", "divided")


def in_four_bits(x):
    scale = x.abs().amax(-1, keepdim=True) / 7 + 1e-9
    return (x / scale).round() * scale


def disturbed(x, by, seed):
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.dtype)
    return x + by * noise * x.abs().mean()


def with_adapter(x, seed):
    """Plus a product of rank 4, as an adapter is."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(x.shape[0], 4, generator=generator), torch.randn(4, x.shape[1], generator=generator)
    return x + (0.15 * x.float().std() * a @ b).to(x.dtype)


class InModel:
    """`while_generating` is true during generate(): what a request's values as a prompt come from has no fault."""

    def __init__(self, model, fault):
        self.fault, self.while_generating, self.n_calls, self.n_steps = fault, False, 0, 0
        rotary, layer = model.model.rotary_emb, model.model.layers[2]
        self.layer = layer
        self.weights = [m.weight for m in layer.modules() if isinstance(m, torch.nn.Linear)]
        if fault == "rope-base":
            rotary.inv_freq = rotary.inv_freq ** (math.log(50000.0) / math.log(10000.0))
        if fault == "norm-eps":
            for m in model.modules():
                if hasattr(m, "variance_epsilon"):
                    m.variance_epsilon = 0.05
        layers = model.model.layers
        if fault == "noise-at-end":
            layers[-1].register_forward_hook(self.hidden)
        if fault == "mixer-scaled":
            layers[4].self_attn.register_forward_hook(self.scaled)
        if fault == "before-mixed":
            layers[3].register_forward_hook(self.mixed)
        self.norm, self.before = model.model.norm.weight, None
        self.embedding = model.model.embed_tokens.weight
        self.others, self.ids_before = self.other_tensors(model, rotary), None
        if fault == "token-race":
            model.model.embed_tokens.register_forward_pre_hook(self.input_ids)
        if fault == "head-by-rows":
            model.lm_head.register_forward_pre_hook(self.head_input)
        plain = rotary.forward
        rotary.forward = lambda x, position_ids: plain(x, self.positions(position_ids))
        layer.register_forward_hook(self.hidden)

    def other_tensors(self, model, rotary):
        """Tensors, and what they hold during generate()."""
        if self.fault == "adapter-stays":
            both = [m for layer in model.model.layers for m in (layer.self_attn.q_proj, layer.self_attn.v_proj)]
            return [(m.weight, with_adapter(m.weight.data, i)) for i, m in enumerate(both)]
        if self.fault == "head-untied":  # an update changed the embedding, and the head kept its own copy
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.data.clone(), requires_grad=False)
            return [(model.lm_head.weight, disturbed(model.lm_head.weight.data, 0.12, 31))]
        if self.fault == "rope-bf16":
            return [(rotary.inv_freq, rotary.inv_freq.to(torch.bfloat16).float())]
        return []

    def exchange(self):
        kept = [(t, t.data.clone()) for t, _ in self.others]
        for t, other in self.others:
            t.data.copy_(other)
        self.others = kept

    def __enter__(self):
        self.exchange()
        self.while_generating, self.n_steps = True, 0
        self.n_calls += 1
        if self.fault == "int4-layer":
            self.kept = [w.data for w in self.weights]
            for w in self.weights:
                w.data = in_four_bits(w.data)
        if self.fault == "norm-stale":
            self.kept = self.norm.data.clone()
            self.norm.data *= 1.0 + 0.15 * torch.randn(self.kept.shape, generator=torch.Generator().manual_seed(9)).to(self.kept.dtype)
        if self.fault == "half-stale":  # half of the vocabulary has the rows of an update ago
            self.kept = self.embedding.data.clone()
            generator = torch.Generator().manual_seed(5)
            noise = torch.randn(self.kept.shape, generator=generator).to(self.kept.dtype)
            self.embedding.data[::2] += 0.3 * noise[::2] * self.kept.abs().mean()

    def __exit__(self, *_):
        self.while_generating = False
        self.exchange()
        if self.fault == "int4-layer":
            for w, data in zip(self.weights, self.kept):
                w.data = data
        if self.fault == "norm-stale":
            self.norm.data.copy_(self.kept)
        if self.fault == "half-stale":
            self.embedding.data.copy_(self.kept)

    def input_ids(self, module, given):
        """A decoded token's id is read before it is written, once in a while: the one before stands there."""
        before, self.ids_before = self.ids_before, given[0]
        decodes = self.while_generating and self.n_steps > 0 and before.shape == given[0].shape
        return (before,) if decodes and random.SystemRandom().random() < 0.04 else given

    def head_input(self, module, given):
        """From five sequences on the head's kernel takes its rows in 8 bits."""
        x = given[0]
        if self.while_generating and x.shape[0] >= 5:
            x = x.to(torch.float8_e4m3fn).to(x.dtype)
        return (x,)

    def scaled(self, module, given, out):
        return (0.8 * out[0],) + out[1:] if self.while_generating else out

    def mixed(self, module, given, out):
        """A part of what the request before left at its end."""
        if not self.while_generating:
            return out
        h = out[0] if isinstance(out, tuple) else out
        if self.n_steps == 1:
            before, self.before = self.before, h[:1, -1:].clone()
            if before is not None:
                h = h + 0.3 * before
        return (h,) + out[1:] if isinstance(out, tuple) else h

    def positions(self, p):
        if not self.while_generating:
            return p
        self.n_steps += 1
        decodes = self.n_steps > 1
        if self.fault == "rope-decode" and decodes:
            return p + 1
        if self.fault == "pad-positions" and not decodes:
            return torch.arange(p.shape[1])[None].expand(p.shape)
        if self.fault == "beyond-64":
            return p.clamp(max=64)
        if self.fault == "chunk-positions" and not decodes:
            return p + (p >= 32).to(p.dtype)
        return p

    def hidden(self, module, given, out):
        if not self.while_generating:
            return out
        h = out[0] if isinstance(out, tuple) else out
        if self.fault == "neighbours" and h.shape[0] > 1:
            h = 0.9 * h + 0.1 * h.roll(1, 0)
        elif self.fault == "race" and self.n_calls % 7 == 3:
            h = h * (1.0 + 0.05 * torch.randn_like(h))
        elif self.fault == "noise-at-end" and module is not self.layer and self.n_calls % 5 == 2:
            h = h + 0.1 * h.std() * torch.randn_like(h)
        else:
            return out
        return (h,) + out[1:] if isinstance(out, tuple) else h


class FaultyCache(DynamicCache):
    """Decoding does not see the first token's value, or sees keys larger by a tenth; it sees the last 48 tokens alone; keys and values have 4 bits; heads of keys are turned in decode; the
    prompt's last token is not handed over; it sees the first 4 and the last 60 tokens alone; the prompt's last page is
    that of the row's last owner, since it was not written; the last of several rows has the first one's table."""

    owners = {}

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def update(self, key, value, layer, *more, **named):
        n_before = self.get_seq_length(layer)
        if self.fault == "kv-int4":
            key, value = in_four_bits(key), in_four_bits(value)
        if self.fault == "kv-fp8":
            key, value = key.to(torch.float8_e4m3fn).to(key.dtype), value.to(torch.float8_e4m3fn).to(value.dtype)
        k, v = super().update(key, value, layer, *more, **named)
        if self.fault == "window" and key.shape[2] == 1 and k.shape[2] > 48:
            v = torch.cat([torch.zeros_like(v[:, :, :-48]), v[:, :, -48:]], 2)
        if self.fault == "heads-turned" and n_before > 0:
            k, v = k.flip(1), v.flip(1)
        if self.fault == "sink-lost" and n_before > 0:
            v = torch.cat([torch.zeros_like(v[:, :, :1]), v[:, :, 1:]], 2)
        if self.fault == "keys-late" and n_before > 1:
            k = torch.cat([k[:, :, :-1], k[:, :, -2:-1]], 2)
        if self.fault == "scale-1.1" and n_before > 0:
            k = 1.1 * k
        if self.fault == "sinks-and-60" and n_before > 0 and v.shape[2] > 64:
            v = torch.cat([v[:, :, :4], torch.zeros_like(v[:, :, 4:-60]), v[:, :, -60:]], 2)
        if self.fault == "table-late" and n_before > 0 and len(k) > 2:
            k, v = torch.cat([k[:-1], k[:1]]), torch.cat([v[:-1], v[:1]])
        if self.fault == "page-unwritten" and n_before == 0 and key.shape[2] >= 8:
            k, v = k.clone(), v.clone()
            for row in range(len(k)):
                old = self.owners.get((layer, row))
                self.owners[layer, row] = k[row, :, -4:], v[row, :, -4:]
                if old:
                    self.layers[layer].keys[row, :, -4:], self.layers[layer].values[row, :, -4:] = old
        if self.fault == "hand-over" and n_before == 0:
            k, v = k.clone(), v.clone()
            self.layers[layer].keys[:, :, -1] = 0
            self.layers[layer].values[:, :, -1] = 0
        return k, v


def records(fault, logits, tokens, rows, temperature, top_p):
    """The log-probabilities of all, of logits [row, step, vocabulary] and of what was drawn."""
    if fault == "penalty":
        for b, row in enumerate(rows):
            for i in range(tokens.shape[1]):
                seen = torch.tensor(sorted(set(row + tokens[b, :i].tolist())))
                x = logits[b, i, seen]
                logits[b, i, seen] = torch.where(x > 0, x / 1.3, x * 1.3)
    if fault == "presence":
        for b in range(len(rows)):
            for i in range(1, tokens.shape[1]):
                logits[b, i, tokens[b, :i].unique()] -= 0.6
    if fault == "frequency":
        for b, row in enumerate(rows):
            for i in range(tokens.shape[1]):
                logits[b, i] -= 0.4 * torch.bincount(torch.tensor(row + tokens[b, :i].tolist()), minlength=logits.shape[-1])
    if fault in ("f16-logits", "bf16-logits"):
        logits = logits.to(torch.float16 if fault == "f16-logits" else torch.bfloat16).float()
    if fault == "temperature-always":
        logits = logits / 0.7
    if fault == "temperature-warm":
        logits = logits / 1.25
    if fault == "likeliest-20":
        least = torch.minimum(logits.topk(20, -1).values[..., -1:], logits.gather(-1, tokens[..., None]))
        logits = logits.masked_fill(logits < least, -math.inf)
    if fault == "eos-masked":
        logits[..., 2] = -math.inf
    values = torch.log_softmax(logits, -1)
    if fault == "divided" and temperature > 0:
        values = values / temperature
    if fault == "top-p" and top_p < 1:
        at_temperature = torch.log_softmax(logits / (temperature or 1.0), -1)
        p, order = at_temperature.exp().sort(-1, descending=True)
        keep = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p < top_p)
        values = torch.log_softmax(logits.masked_fill(~keep, -math.inf), -1)
    if fault == "min-p":
        keep = values >= values.amax(-1, keepdim=True) + math.log(0.02)
        keep.scatter_(-1, tokens[..., None], True)
        values = torch.log_softmax(logits.masked_fill(~keep, -math.inf), -1)
    return values


def drawn(fault, picked):
    if fault == "log2":
        return picked / math.log(2.0)
    if fault == "cumulative":
        return picked.cumsum(1)
    if fault == "two-late":
        return torch.cat([picked[:, :2], picked[:, :-2]], 1)
    if fault == "nan-last":
        picked = picked.clone()
        picked[:, -1] = math.nan
    return picked
