#!/usr/bin/env python3
"""Writes gradients.safetensors of the fixtures that have one, with Hugging Face transformers in float32.

    venv/bin/python tests/model/make_gradients.py [NAME ...]

The loss is the sum over a batch of weights[s][t] * log p(input_ids[s][t + 1] | input_ids[s][..t]), in eager attention
and experts and plain PyTorch Mamba, in one shot and without a cache. Versions are those of
tests/fixtures/make_fixtures.py. A file is a compact check of the gradient of every tensor of the checkpoint:
    input_ids  I32 [2, T]      two sequences; in the second, three tokens are padding, whose embedding is not trained
    weights    F32 [2, T-1]    of the log-probability of input_ids[:, 1:]
    norms      F32 [n]         L2 norm of the gradient of each tensor, names ascending by bytes
    samples    F32 [n, 60]     its elements, flat, at index (((i + 1) * 0x9E3779B97F4A7C15) mod 2^64 >> 32) mod size
"""
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fixtures"))
from make_fixtures import FIXTURES, random_ids, reload, router_gap  # noqa: E402

TOKENS = 80  # more than an attention block
SAMPLES = 60
SEEDS = {"jamba-dense": 11, "jamba-moe": 36, "jamba-odd": 24}


def gradients(path, ids, weights, dtype):
    """Tensor name of the checkpoint -> gradient in float64: save_pretrained names them, given gradients for weights."""
    model = reload(path, dtype)
    gaps = []
    for module in model.modules():
        if type(module).__name__ == "JambaTopKRouter":
            module.register_forward_hook(lambda router, _, out: gaps.append(router_gap(router, out[0])))
    logits = model(ids, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    (logprobs * weights.to(dtype)).sum().backward()
    assert min(gaps, default=1) > 5e-4, f"{path.name}: a near tie of experts, {min(gaps)}: take another seed"
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        return {k: v.double() for k, v in load_file(pathlib.Path(scratch) / "model.safetensors").items()}


def sample(gradient):
    index = [((i + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 32) % gradient.numel() for i in range(SAMPLES)]
    return gradient.flatten()[index]


def make(name):
    path = FIXTURES / name
    config = reload(path).config
    ids, weights = gradient_batch(config, SEEDS[name])
    record_gradients(path, ids, weights, gradients(path, ids, weights, torch.float32),
                     gradients(path, ids, weights, torch.float64))


def gradient_batch(config, seed):
    ids = random_ids({"vocab_size": config.vocab_size, "bos_token_id": config.bos_token_id}, TOKENS, seed)
    ids[1, [7, 20, 21]] = config.pad_token_id
    return ids, torch.rand(2, TOKENS - 1, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def record_gradients(path, ids, weights, got, truth):
    """gradients.safetensors of `got`, name -> float32 gradient; `truth` is the same in float64."""
    names = sorted(got, key=str.encode)
    assert names == sorted(load_file(path / "model.safetensors"), key=str.encode)
    worst = max(((got[n] - truth[n]).norm() / truth[n].norm()).item() for n in names if truth[n].norm() > 0)
    out = path / "gradients.safetensors"
    save_file({"input_ids": ids.int(), "weights": weights.float(),
               "norms": torch.stack([got[n].norm() for n in names]).float(),
               "samples": torch.stack([sample(got[n]) for n in names]).float()}, out)
    out.chmod(0o644)
    least = min(got[n].norm().item() for n in names if truth[n].norm() > 0)
    print(f"{path.name}: {len(names)} tensors, least norm {least:.3g}, worst relative distance of float32 from float64 "
          f"{worst:.3g}, {out.stat().st_size} bytes")
    return worst


if __name__ == "__main__":
    torch.set_num_threads(1)
    for fixture in sys.argv[1:] or SEEDS:
        make(fixture)
