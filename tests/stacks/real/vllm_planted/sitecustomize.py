"""Faults planted in vLLM from outside: with this folder on PYTHONPATH every Python process of it is patched when it imports
what the fault is in. LOCKSTEP_PLANTED says which, or @FILE, whose word is read at every step, of those of records:

  rows     with several requests in a step, records are the neighbours'
  clamp    recorded log-probabilities end at -5
  grid     recorded log-probabilities pass through bf16
  argmax   records are the likeliest token's
  dropped  one value in eight is -9999, by its token
  stale    one layer does not have the checkpoint's weights
  hash     the prefix cache knows a block by its length
  block-tail   it does not look at a block's last four tokens
  rope-decode  decoded tokens have the position behind theirs
  late     records stand one token late
  block-head   the prefix cache does not look at a block's first 100 tokens
  no-parent    it does not look at what stands before a block
  stale-head   the head does not have the checkpoint's weights
  temperature-0.9  records are of that temperature
  nan      one value in eleven is NaN, by its token
  likeliest-30     records are of the 30 likeliest tokens alone
  rows-of-four     with four requests and more in a step, neighbours have each other's records
  stale-mlp    the fifth layer's feed-forward does not have the checkpoint's weights
  embedding-quarter  a quarter of the embedding's rows are not the checkpoint's
  rope-at-32   decoded tokens at multiples of 32 have the position before theirs
  block-even   the prefix cache looks at every second token
  temperature-1.15   records are of that temperature
  row-zero     with three requests and more in a step, all have the first one's records
  rows-last    with several requests in a step, the last one has the first one's record
  stale-qkv    the second layer's attention does not have the checkpoint's weights
  temperature-2  records are of that temperature
  block-halved the prefix cache does not look at a token's last bit
  clamp-7      recorded log-probabilities end at -7
  first-9999   the first value of a completion is -9999
  nucleus-0.9  records are of the likeliest tokens of total probability 0.9
  beyond-160   decoded tokens behind the 160th have the position behind theirs
  log-plus     recorded log-probabilities are of the probability and a thousandth
  next-id      records are of the next id of the vocabulary
  specials-masked  records of other ids are of the vocabulary without its first three
  rows-six     with six requests and more in a step, logits are multiples of an eighth
  sure-nan     the value of a token of probability 0.3 and more is NaN
  stale-norms  every second norm does not have the checkpoint's weights
  layers-exchanged the second and the third layer have each other's weights
  mlp-int8     weights of feed-forwards have 8 bits, with one scale a tensor
  hash-two-bits    the prefix cache knows a block by two bits of its hash
  row-unmoved  a row that moves to a free place of the batch leaves its block table behind
  border-zero  a decoded token at the end of 16 puts zeros into the cache
  write-race   one step in thirty puts zeros into the cache, in the upper layers
"""
import importlib.abc
import importlib.util
import os
import sys

FAULT = os.environ.get("LOCKSTEP_PLANTED", "")


def plant_records(module):
    import torch
    plain = module.Sampler.forward

    def forward(self, logits, sampling_metadata, *more, **named):
        fault = FAULT
        if fault.startswith("@"):
            with open(fault[1:]) as file:
                fault = file.read().strip()
        whole = logits.float().log_softmax(-1) if fault == "argmax" else None
        if fault == "rows-six" and logits.shape[0] >= 6:
            logits = (8.0 * logits).round() / 8.0
        raw = logits.float().clone()
        out = plain(self, logits, sampling_metadata, *more, **named)
        if out.logprobs_tensors is None:
            return out
        v = out.logprobs_tensors.logprobs.clone()
        if fault == "rows":
            v = v.roll(1, 0)
        elif fault == "clamp":
            v = v.clamp(min=-5.0)
        elif fault == "clamp-7":
            v = v.clamp(min=-7.0)
        elif fault == "row-zero" and v.shape[0] > 2:
            v = v[:1].expand(v.shape).clone()
        elif fault == "rows-last" and v.shape[0] > 1:
            v[-1] = v[0]
        elif fault == "nucleus-0.9":
            ids = out.logprobs_tensors.logprob_token_ids[:, :1].long()
            p, order = raw.softmax(-1).sort(-1, descending=True)
            keep = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p < 0.9).scatter(-1, ids, True)
            v[:, :1] = raw.masked_fill(~keep, -float("inf")).log_softmax(-1).gather(-1, ids)
        elif fault == "log-plus":
            v = (v.exp() + 1e-3).log()
        elif fault == "sure-nan":
            v[:, 0] = torch.where(v[:, 0] > -1.2, float("nan"), v[:, 0])
        elif fault in ("next-id", "specials-masked"):
            ids = out.logprobs_tensors.logprob_token_ids[:, :1].long()
            if fault == "specials-masked":
                raw[:, :3] = raw[:, :3].masked_fill(ids >= 3, -float("inf"))
            v[:, :1] = raw.log_softmax(-1).gather(-1, (ids + 1) % raw.shape[1] if fault == "next-id" else ids)
        elif fault == "grid":
            v = v.to(torch.bfloat16).float()
        elif fault == "argmax":
            v[:, 0] = whole.max(-1).values
        elif fault == "rows-of-four" and v.shape[0] > 3:
            v[: v.shape[0] // 2 * 2] = v[: v.shape[0] // 2 * 2].view(-1, 2, v.shape[1]).flip(1).reshape(-1, v.shape[1])
        elif fault == "nan":
            v[:, 0] = torch.where(out.logprobs_tensors.logprob_token_ids[:, 0] % 11 == 5, float("nan"), v[:, 0])
        elif fault in ("temperature-0.9", "temperature-1.15", "temperature-2", "likeliest-30"):
            ids = out.logprobs_tensors.logprob_token_ids[:, :1].long()
            if fault.startswith("temperature"):
                raw = raw / float(fault.split("-")[1])
            else:
                least = torch.minimum(raw.topk(30, -1).values[..., -1:], raw.gather(-1, ids))
                raw = raw.masked_fill(raw < least, -float("inf"))
            v[:, :1] = raw.log_softmax(-1).gather(-1, ids)
        elif fault == "dropped":
            v[:, 0] = torch.where(out.logprobs_tensors.logprob_token_ids[:, 0] % 8 == 0, -9999.0, v[:, 0])
        return out.__class__(**{**{k: getattr(out, k) for k in out.__dataclass_fields__},
                                "logprobs_tensors": out.logprobs_tensors._replace(logprobs=v)})

    module.Sampler.forward = forward


def plant_weights(module):
    import torch
    plain = module.Qwen3ForCausalLM.load_weights

    def load_weights(self, weights):
        done = plain(self, weights)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for p in self.model.layers[2].parameters():
                p += 0.2 * torch.randn(p.shape, generator=generator).to(p.dtype) * p.abs().mean()
        return done

    module.Qwen3ForCausalLM.load_weights = load_weights


def plant_head(module):
    import torch
    plain = module.Qwen3ForCausalLM.load_weights

    def load_weights(self, weights):
        done = plain(self, weights)
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            p = self.lm_head.weight
            p += 0.1 * torch.randn(p.shape, generator=generator).to(p.dtype) * p.abs().mean()
        return done

    module.Qwen3ForCausalLM.load_weights = load_weights


def disturb(p, by, seed):
    import torch
    with torch.no_grad():
        p += by * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(p.dtype) * p.abs().mean()


def plant_mlp(module):
    plain = module.LlamaForCausalLM.load_weights

    def load_weights(self, weights):
        done = plain(self, weights)
        for p in self.model.layers[4].mlp.parameters():
            disturb(p, 0.15, 17)
        return done

    module.LlamaForCausalLM.load_weights = load_weights


def plant_qkv(module):
    plain = module.Qwen3ForCausalLM.load_weights

    def load_weights(self, weights):
        done = plain(self, weights)
        disturb(self.model.layers[1].self_attn.qkv_proj.weight, 0.25, 23)
        return done

    module.Qwen3ForCausalLM.load_weights = load_weights


def plant_loaded(module):
    """Into what is loaded of any model."""
    plain = module.DefaultModelLoader.load_weights

    def load_weights(self, model, model_config):
        plain(self, model, model_config)
        layers = model.model.layers
        if FAULT == "layers-exchanged":
            for one, two in zip(layers[1].parameters(), layers[2].parameters()):
                one.data, two.data = two.data.clone(), one.data.clone()
        for i, layer in enumerate(layers):
            if FAULT == "stale-norms":
                disturb(layer.post_attention_layernorm.weight, 0.2, 100 + i)
            for p in layer.mlp.parameters() if FAULT == "mlp-int8" else ():
                scale = p.data.abs().max() / 127
                p.data.copy_((p.data / scale).round() * scale)

    module.DefaultModelLoader.load_weights = load_weights


def plant_rows(module):
    module.MultiGroupBlockTable.move_row = lambda self, src, tgt: None


def plant_writes(module):
    """Into keys and values on their way to the cache, of steps that decode."""
    import random
    plain, zeros = module.CPUAttentionBackendImpl.forward, random.SystemRandom()

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, *more, **named):
        if attn_metadata is not None and attn_metadata.max_query_len == 1 and key is not None:
            at_end = attn_metadata.slot_mapping[:key.shape[0]] % 16 == 15
            if FAULT == "write-race":
                at_end[:] = ".0." not in layer.layer_name and zeros.random() < 1 / 30
            key, value = key.masked_fill(at_end[:, None, None], 0), value.masked_fill(at_end[:, None, None], 0)
        return plain(self, layer, query, key, value, kv_cache, attn_metadata, *more, **named)

    module.CPUAttentionBackendImpl.forward = forward


def plant_embedding(module):
    plain = module.Qwen3ForCausalLM.load_weights

    def load_weights(self, weights):
        done = plain(self, weights)
        disturb(self.model.embed_tokens.weight[3::4], 0.2, 19)
        return done

    module.Qwen3ForCausalLM.load_weights = load_weights


def plant_hash(module):
    def hash_block_tokens(function, parent, tokens, extra_keys=None):
        if FAULT == "block-tail":
            return module.BlockHash(function((parent or module.NONE_HASH, tuple(tokens[:-4]), extra_keys)))
        if FAULT == "block-head":
            return module.BlockHash(function((parent or module.NONE_HASH, tuple(tokens[100:]), extra_keys)))
        if FAULT == "block-halved":
            return module.BlockHash(function((parent or module.NONE_HASH, tuple(t // 2 for t in tokens), extra_keys)))
        if FAULT == "block-even":
            return module.BlockHash(function((parent or module.NONE_HASH, tuple(tokens[::2]), extra_keys)))
        if FAULT == "hash-two-bits":
            whole = function((parent or module.NONE_HASH, tuple(tokens), extra_keys))
            return module.BlockHash(bytes([whole[0] % 4]) * 32)
        if FAULT == "no-parent":
            return module.BlockHash(function((module.NONE_HASH, tuple(tokens), extra_keys)))
        return module.BlockHash(function((b"", len(tokens), extra_keys)))

    module.hash_block_tokens = hash_block_tokens


def plant_positions(module):
    plain = module.GPUModelRunner._prepare_inputs

    def prepare(self, scheduler_output, n_scheduled):
        done = plain(self, scheduler_output, n_scheduled)  # where keys are put is settled by now
        batch, at = self.input_batch, 0
        for row, n in enumerate(n_scheduled.tolist()):
            least = max(batch.num_prompt_tokens[row], 160 if FAULT == "beyond-160" else 0)
            if batch.num_computed_tokens_cpu[row] >= least and FAULT != "rope-at-32":
                self.positions[at:at + n] += 1
            elif batch.num_computed_tokens_cpu[row] >= least and batch.num_computed_tokens_cpu[row] % 32 == 0:
                self.positions[at:at + n] -= 1
            at += n
        return done

    module.GPUModelRunner._prepare_inputs = prepare


def plant_late(module):
    plain = module.LogprobsProcessor._update_sample_logprobs

    def update(self, lists):
        for values in lists.logprobs:
            own = float(values[0])
            if FAULT == "late":
                values[0] = getattr(self, "one_before", own)
            elif not hasattr(self, "one_before"):
                values[0] = -9999.0
            self.one_before = own
        return plain(self, lists)

    module.LogprobsProcessor._update_sample_logprobs = update


PLANTED = {"stale": ("vllm.model_executor.models.qwen3", plant_weights), "hash": ("vllm.v1.core.kv_cache_utils", plant_hash),
           "block-tail": ("vllm.v1.core.kv_cache_utils", plant_hash), "late": ("vllm.v1.engine.logprobs", plant_late),
           "first-9999": ("vllm.v1.engine.logprobs", plant_late),
           "block-head": ("vllm.v1.core.kv_cache_utils", plant_hash), "no-parent": ("vllm.v1.core.kv_cache_utils", plant_hash),
           "stale-head": ("vllm.model_executor.models.qwen3", plant_head),
           "stale-mlp": ("vllm.model_executor.models.llama", plant_mlp),
           "embedding-quarter": ("vllm.model_executor.models.qwen3", plant_embedding),
           "stale-qkv": ("vllm.model_executor.models.qwen3", plant_qkv),
           "block-halved": ("vllm.v1.core.kv_cache_utils", plant_hash),
           "hash-two-bits": ("vllm.v1.core.kv_cache_utils", plant_hash),
           **dict.fromkeys(("stale-norms", "layers-exchanged", "mlp-int8"),
                           ("vllm.model_executor.model_loader.default_loader", plant_loaded)),
           **dict.fromkeys(("border-zero", "write-race"), ("vllm.v1.attention.backends.cpu_attn", plant_writes)),
           "row-unmoved": ("vllm.v1.worker.block_table", plant_rows),
           "block-even": ("vllm.v1.core.kv_cache_utils", plant_hash),
           "rope-at-32": ("vllm.v1.worker.gpu_model_runner", plant_positions),
           "beyond-160": ("vllm.v1.worker.gpu_model_runner", plant_positions),
           "rope-decode": ("vllm.v1.worker.gpu_model_runner", plant_positions)}
if FAULT:
    WHERE, PLANT = PLANTED.get(FAULT, ("vllm.v1.sample.sampler", plant_records))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if not FAULT or name != WHERE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            PLANT(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
