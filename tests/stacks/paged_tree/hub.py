#!/usr/bin/env python3
"""Rollouts by transformers' own JambaForCausalLM, in batches that wait for each other, wrong in one way if asked.

Prompts of a batch are padded on the left and masked, decode goes through transformers' cache. It has few levers:
`samples` and `batch`; the faults that are about chunks or reuse of prompts add `chunk` or `prefix`, and `--obeys` says
so. Needs torch and transformers; `--bug NAME[:NUMBER]` plants a fault, most of them around the model, as scripts have
them.
"""

import copy
import os
import sys

import protocol

try:
    import torch
    from transformers import DynamicCache, JambaConfig, JambaForCausalLM
    from transformers.utils import logging
except ImportError as problem:
    sys.exit(f"hub.py: {problem}")

DEFAULTS = {
    **protocol.ASKED,
    "chunk": 0,
    "prefix": "off",
    "dtype-of-model": "float32",
    "attention": "sdpa",
    "obeys": "samples,batch",
}


def rounded(module, name):
    """Its outputs in another type and back."""
    module.register_forward_hook(lambda _, __, out: out.to(getattr(torch, name)).to(out.dtype))


def disturb(tensor, by, salt=3):
    draws = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(salt))
    tensor.data = tensor.data * (1 + by * draws).to(tensor.dtype)


def load(o):
    config = JambaConfig.from_pretrained(o["model"])
    bug, _, number = o["bug"].partition(":")
    if bug == "eps":
        config.rms_norm_eps = 10.0 ** -int(number)
    model = JambaForCausalLM.from_pretrained(
        o["model"], config=config, dtype=getattr(torch, o["dtype-of-model"]), attn_implementation=o["attention"]
    ).eval()
    layers = model.model.layers
    layer = layers[int(number or 0) % len(layers)]
    if bug == "weights-f16":
        model = model.half().float()
    elif bug == "weights-bf16":
        model = model.bfloat16().float()
    elif bug == "layer-older":
        for p in layer.parameters():
            if p.ndim > 1:
                disturb(p, 0.01)
    elif bug == "layer-exchanged":
        other = layers[(int(number or 0) + 1) % len(layers)]
        layer.feed_forward.load_state_dict(other.feed_forward.state_dict())
    elif bug == "head-not-tied":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        disturb(model.lm_head.weight, 0.05)
    elif bug == "head-in-bf16":
        rounded(model.lm_head, "bfloat16")
    elif bug == "keys-in-8-bits":
        for x in layers:
            if hasattr(x, "self_attn"):
                rounded(x.self_attn.k_proj, "float8_e4m3fn")
                rounded(x.self_attn.v_proj, "float8_e4m3fn")
    elif bug == "scale-of-attention":
        for x in layers:
            if hasattr(x, "self_attn"):
                x.self_attn.scaling = 1 / x.self_attn.head_dim
    elif bug == "dropout":
        for x in layers:
            x.feed_forward.register_forward_hook(
                lambda _, __, out: torch.nn.functional.dropout(out, int(number) / 100)
            )
    return model


class Hub:
    def __init__(self, o):
        self.bug, _, number = o["bug"].partition(":")
        self.number = int(number or 0)
        self.model = load(o)
        c = self.model.config
        eos = c.eos_token_id
        self.bos, self.pad, self.eos, self.vocab = (
            c.bos_token_id,
            c.pad_token_id,
            eos[0] if isinstance(eos, list) else eos,
            c.vocab_size,
        )
        if self.bug == "pad-is-end":
            self.pad = self.eos
        self.kept, self.by_length, self.last = None, {}, None

    def begin(self):
        """A trial begins: nothing is left of the one before."""
        self.kept, self.by_length, self.last = None, {}, None

    def states(self, cache):
        return [x for x in cache.layers if hasattr(x, "conv_states")]

    def forward(self, ids, mask, cache):
        return self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)

    def prefill(self, prompts, o):
        """The logits after each prompt, the mask so far and the cache."""
        longest = max(map(len, prompts))
        right = self.bug == "padded-on-the-right"
        cells = [
            p + [self.pad] * (longest - len(p)) if right else [self.pad] * (longest - len(p)) + p for p in prompts
        ]
        masks = [
            [1] * len(p) + [0] * (longest - len(p)) if right else [0] * (longest - len(p)) + [1] * len(p)
            for p in prompts
        ]
        ids, mask = torch.tensor(cells), torch.tensor(masks)
        if self.bug == "padding-not-masked":
            mask = torch.ones_like(mask)
        if self.bug == "pad-is-end":
            mask = (ids != self.pad).long()
            mask[:, -1] = 1
        cache = DynamicCache(config=self.model.config)
        if self.bug == "cache-kept" and self.kept is not None and self.kept[0] == len(prompts):
            cache = self.kept[1]
            mask = torch.cat([self.kept[2], mask], 1)
        reused = self.reuse(prompts, o)
        if reused is not None:
            cache, skip = reused
            logits = None
            for t in range(skip, longest):
                logits = self.forward(ids[:, t : t + 1], mask[:, : t + 1], cache).logits
            return logits[:, -1], mask, cache
        chunk = o["chunk"] or longest
        for at in range(0, longest, chunk):
            logits = self.forward(
                ids[:, at : at + chunk], mask[:, : mask.shape[1] - longest + at + chunk], cache
            ).logits
        if right:
            where = torch.tensor([len(p) - 1 for p in prompts])
            logits = logits[torch.arange(len(prompts)), where]
        else:
            logits = logits[:, -1]
        if (
            self.bug == "states-not-sorted-back"
        ):  # sorted by length for the prefill, and back without the recurrent states
            order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
            for x in self.states(cache):
                x.conv_states = (
                    {k: v[order].clone() for k, v in x.conv_states.items()}
                    if isinstance(x.conv_states, dict)
                    else [v if v is None else v[order].clone() for v in x.conv_states]
                )
                x.recurrent_states = (
                    {k: v[order].clone() for k, v in x.recurrent_states.items()}
                    if isinstance(x.recurrent_states, dict)
                    else [v if v is None else v[order].clone() for v in x.recurrent_states]
                )
        return logits, mask, cache

    def reuse(self, prompts, o):
        """A cache that is taken for that of this prompt's beginning, and how many tokens it is believed to hold."""
        if o["prefix"] == "off" or len(prompts) != 1:
            return None
        prompt = prompts[0]
        if self.bug == "cache-by-length" and len(prompt) > 1:
            key = (len(prompt), tuple(prompt[:2]))
            if key in self.by_length:
                return copy.deepcopy(self.by_length[key]), len(prompt) - 1
            cache = DynamicCache(config=self.model.config)
            self.forward(torch.tensor([prompt[:-1]]), None, cache)
            self.by_length[key] = copy.deepcopy(cache)
            return cache, len(prompt) - 1
        if self.bug == "crop-leaves-states" and self.last is not None:
            tokens, cache = self.last
            same = 0
            while same < min(len(tokens), len(prompt) - 1) and tokens[same] == prompt[same]:
                same += 1
            if same < 4:
                return None
            cache = copy.deepcopy(cache)
            for x in cache.layers:
                if hasattr(x, "keys") and x.keys is not None:
                    x.keys, x.values = x.keys[..., :same, :], x.values[..., :same, :]
            return cache, same
        return None

    @torch.no_grad()
    def run(self, requests, o):
        torch.manual_seed(int.from_bytes(os.urandom(6), "little") if self.bug == "dropout" else 0)
        for begin in range(0, len(requests), o["batch"]):
            batch = requests[begin : begin + o["batch"]]
            prompts = [self.prompt(r["given"]) for r in batch]
            logits, mask, cache = self.prefill(prompts, o)
            for r, p in zip(batch, prompts):
                r.update(context=list(p), ids=[], lp=[], p=p)
            for step in range(o["max-tokens"]):
                tokens = [self.draw(r, row, o) for r, row in zip(batch, logits.double())]
                if step + 1 == o["max-tokens"]:
                    break
                mask = torch.cat([mask, torch.ones(len(batch), 1, dtype=mask.dtype)], 1)
                if self.bug == "window-of-context":
                    logits = torch.stack(
                        [
                            self.model(input_ids=torch.tensor([r["context"][-self.number :]])).logits[0, -1]
                            for r in batch
                        ]
                    )
                    continue
                if self.bug == "autocast-in-decode":
                    with torch.autocast("cpu", torch.bfloat16):
                        logits = self.forward(torch.tensor(tokens)[:, None], mask, cache).logits[:, -1].float()
                    continue
                logits = self.forward(torch.tensor(tokens)[:, None], mask, cache).logits[:, -1]
            self.kept = (len(batch), cache, mask)
            self.last = (batch[-1]["context"][:-1], cache) if len(batch) == 1 else None

    def prompt(self, ids):
        if self.bug == "begin-doubled":
            return [self.bos] + ids
        if self.bug == "window-of-context":
            return ids[-self.number :]
        if self.bug == "end-of-turn-appended":
            return ids + [self.eos]
        return list(ids)

    def draw(self, r, logits, o):
        t = o["temperature"] or 1
        if self.bug == "repetition-of-config":
            seen = torch.tensor(sorted(set(r["context"])))
            logits = logits.clone()
            logits[seen] = torch.where(
                logits[seen] > 0, logits[seen] / (self.number / 100), logits[seen] * (self.number / 100)
            )
        scaled = logits / t
        if self.bug == "top-k-of-config":
            scaled = torch.where(scaled < scaled.topk(self.number).values[-1], -torch.inf, scaled)
        drawn = scaled.log_softmax(-1)
        generator = torch.Generator().manual_seed(hash((o["seed"], r["index"], r["sample"], len(r["ids"]))) % 2**62)
        place = torch.rand((), generator=generator, dtype=torch.float64)
        token = (
            min(int(torch.searchsorted(drawn.exp().cumsum(0), place)), self.vocab - 1)
            if o["temperature"]
            else int(drawn.argmax())
        )
        rows = drawn if o["logprobs"] == "processed" or self.bug == "top-k-of-config" else logits.log_softmax(-1)
        if self.bug == "temperature-not-mirrored":
            rows = logits.log_softmax(-1)
        if self.bug == "scores-are-processed":
            rows = drawn
        if self.bug == "softmax-in-bf16":
            rows = (scaled if o["logprobs"] == "processed" else logits).bfloat16().log_softmax(-1)
        r["ids"].append(token)
        r["context"].append(token)
        r["lp"].append(float(rows[token]))
        return token


hubs = {}


def generate(words):
    o = protocol.options(words, DEFAULTS)
    obeyed = o["obeys"].split(",")
    for lever in ("batch", "chunk", "prefix"):
        if lever not in obeyed:
            o[lever] = DEFAULTS[lever] if lever != "batch" else 4
    key = (o["model"], o["bug"], o["dtype-of-model"], o["attention"])
    hub = hubs[key] = hubs.get(key) or Hub(o)
    hub.begin()
    requests = protocol.requests(o)
    hub.run(requests, o)
    records = []
    for r in requests:
        ids = r["ids"]
        lp = r["lp"][:1] + r["lp"][:-1] if hub.bug == "labels-not-shifted" else r["lp"]
        if not o["ignore-eos"] and hub.eos in ids:
            ids = ids[: ids.index(hub.eos) + 1]
        levers = {k: "whole" if k == "chunk" and not o[k] else o[k] for k in obeyed}
        records.append({"id": r["id"], "completion_ids": ids, "logprobs": lp[: len(ids)], "meta": {"levers": levers}})
    protocol.write(o["out"], records)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    protocol.run(generate)
