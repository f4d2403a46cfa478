"""lockstep.patch and the layers it is made of: log-probabilities and gradients of patched Hugging Face models against
the engine's scoring and trainer, bit for bit; the layers against float64; what is refused.

Usage: check_patch.py [CASE...]; the package is found through PYTHONPATH, its library as the package says. Without
torch, transformers or safetensors all of it is skipped. LS_TEST_DEVICE=cuda puts the patched models of scores and
gradients on the first GPU; what they are held to stays the CPU's."""

import contextlib
import copy
import glob
import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile

from harness import Report

for needed in ("torch", "transformers", "safetensors"):
    if importlib.util.find_spec(needed) is None:
        print(f"python skipped: {needed} is not installed\n0 passed, 0 failed, 1 skipped")
        sys.exit(0)

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import lockstep  # noqa: E402
from lockstep import patching  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("LS_TEST_DEVICE", "cpu")
F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
TRANSFORMERS = ("llama-small", "llama-odd", "mistral-small", "qwen2-small", "qwen3-small", "mistral-window",
                "qwen2-window")
MIXTURES = ("qwen3-moe-small", "mixtral-small")
MAMBA2 = ("mamba2-small", "mamba2-odd", "bamba-small", "granite-odd", "granite-moe-small", "nemotron-h-small",
          "nemotron-h-odd", "nemotron-h-moe")
DELTA = ("qwen3.5-small", "qwen3.5-odd", "qwen3.5-moe-small", "qwen3-next-small")
EXACT = ("jamba-dense", "jamba-moe", "jamba-odd", "jamba-nobias", "jamba-bf16", "mamba-small", "mamba-odd",
         "falcon-mamba-small", "tiny-sort", *TRANSFORMERS, *MIXTURES, *MAMBA2, *DELTA)
MMA16 = ("jamba-bf16", "falcon-mamba-small", "tiny-sort", *TRANSFORMERS, *MIXTURES, *MAMBA2, *DELTA)
# activations of bf16 in the profile exact
NARROW = ("falcon-mamba-small", "tiny-sort", *TRANSFORMERS, *MIXTURES, *MAMBA2, *DELTA)
LENGTHS = (130, 2, 65, 17, 64, 128, 3, 99, 33, 1, 80, 127, 16, 41, 55, 120, 7, 70)  # 1,058 tokens


def path_of(name):
    return str(ROOT / ("models" if name == "tiny-sort" else "tests/fixtures") / name)


def load(name, profile="exact"):
    return AutoModelForCausalLM.from_pretrained(path_of(name), dtype=BF16 if profile == "mma16" else F32)


@contextlib.contextmanager
def checkpoint(name, profile):
    """The fixture; in mma16 what its module in bfloat16 saves, where the file has more in float32 than that."""
    if profile == "mma16" and name in (*MAMBA2, *DELTA):
        with tempfile.TemporaryDirectory() as folder:
            load(name, profile).save_pretrained(folder)
            yield folder
    else:
        yield path_of(name)


def draw(lengths, vocab, side):
    """Sequences, and the same padded on a side with a mask."""
    generator = torch.Generator().manual_seed(len(lengths))
    sequences = [torch.randint(3, vocab, (n,), generator=generator) for n in lengths]
    width = max(lengths) + 2
    ids, mask = (torch.zeros((len(lengths), width), dtype=torch.int64) for _ in range(2))
    for i, sequence in enumerate(sequences):
        at = slice(width - len(sequence), width) if side == "left" else slice(0, len(sequence))
        ids[i, at], mask[i, at] = sequence, 1
    return sequences, ids, mask


def integers(x):
    return x.detach().cpu().contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])


def same_bits(name, got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, f"{name}: {got.dtype} {tuple(got.shape)}, " \
        f"{want.dtype} {tuple(want.shape)} is wanted"
    different = int((integers(got) != integers(want)).sum())
    assert different == 0, f"{name}: {different} of {got.numel()} differ"


def raises(words, function, *args, kind=lockstep.LockstepError, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert words in str(error), f"'{words}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__} about '{words}'")


# ---- whole models ----


def scores(name, profile, dtype=None):
    """Padded on either side, from logits, or packed: always the bits of `score`."""
    dtype = dtype or ("bf16" if profile == "mma16" else "f32")
    model = lockstep.patch(load(name, profile).eval().to(DEVICE), profile=profile,
                           activations=BF16 if dtype == "bf16" else F32)
    for side in ("left", "right"):
        sequences, ids, mask = draw(LENGTHS, model.config.vocab_size, side)
        with checkpoint(name, profile) as folder, lockstep.Model(folder, dtype=dtype, profile=profile, device="cpu",
                                                                 trains=False) as engine:
            want = torch.cat([torch.from_numpy(x)[1:] for x in engine.score([s.numpy() for s in sequences])])
        ids, mask = ids.to(DEVICE), mask.to(DEVICE)
        pairs = (mask[:, 1:] * mask[:, :-1]).bool()
        with torch.no_grad():
            got = lockstep.token_logprobs(model, ids, mask)
            logits = model(input_ids=ids, attention_mask=mask).logits
            last = model(input_ids=ids, attention_mask=mask, logits_to_keep=5).logits
        same_bits(f"{side}: token_logprobs", got[pairs], want)
        assert not got[~pairs].any(), f"{side}: padding has log-probabilities"
        chosen = lockstep.selected_logprob(logits[:, :-1].contiguous(), ids[:, 1:])
        same_bits(f"{side}: from logits", chosen[pairs], want)
        same_bits(f"{side}: logits_to_keep", last, logits[:, -5:])
    packed = torch.cat(sequences)[None].to(DEVICE)
    positions = torch.cat([torch.arange(len(s)) for s in sequences])[None].to(DEVICE)
    with torch.no_grad():
        logits = model(input_ids=packed, position_ids=positions).logits[0]
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    inner = torch.ones(len(logits), dtype=torch.bool, device=DEVICE)
    inner[ends] = False
    same_bits("packed", lockstep.selected_logprob(logits[:-1], packed[0, 1:])[inner[:-1]], want)


def moments(name, profile, sequences):
    """Gradients of a supervised step by the engine's trainer, which has them as first moments where beta1 is 0."""
    with tempfile.TemporaryDirectory() as folder, checkpoint(name, profile) as path:
        dtype = "bf16" if profile == "mma16" else "f32"
        model = lockstep.Model(path, dtype=dtype, profile=profile, device="cpu")
        trainer = lockstep.Trainer(model, beta1=0.0, clip=0.0, leaf=len(sequences), sequences_max=len(sequences),
                                   length_max=256, rate=1e-4)
        trainer.sft([s.numpy() for s in sequences])
        trainer.save(folder)
        return load_file(glob.glob(f"{folder}/step-*/optimizer.safetensors")[0])


# Names in modules and in files: of Mixtral, of Granite, of Nemotron-H.
ALIASES = (((".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")),
           (("experts.gate_up_proj", "input_linear.weight"), ("experts.down_proj", "output_linear.weight"),
            ("router.weight", "router.layer.weight")),
           (("m.model.", "m.backbone."),))


def moment_of(found, name, shape):
    """That of a parameter of the module; experts lie in one tensor there, and but for Granite's not in the file."""
    whole = stored(f"m.{name}", found)
    if whole is not None:
        return found[whole].view(shape)
    stem, last = name.rsplit(".", 1)
    halves = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    return torch.stack([torch.cat([found[stored(f"m.{stem}.{e}.{half}.weight", found)] for half in halves])
                        for e in range(shape[0])])


def stored(name, found):
    """As the checkpoint calls it; None where it has no such tensor."""
    for pairs in ((), *ALIASES):
        other = name
        for module, file in pairs:
            other = other.replace(module, file)
        if other in found:
            return other
    return None


def gradients(name, profile):
    """Of 64 tokens of four sequences: those of one leaf of the trainer. Its factor 1/64 is exact but for tiny values,
    its moments do not tell -0 from +0."""
    model = lockstep.patch(load(name, profile).train().to(DEVICE), profile=profile)
    sequences, ids, mask = draw((17, 33, 5, 13), model.config.vocab_size, "left")
    ids, mask = ids.to(DEVICE), mask.to(DEVICE)
    found = moments(name, profile, sequences)
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        (-lockstep.token_logprobs(model, ids, mask).sum()).backward()
        for parameter, value in model.named_parameters():
            want = moment_of(found, parameter, value.shape).to(value.dtype)
            same_bits(f"{parameter}, checkpointing {checkpointing}", value.grad / 64 + 0.0, want + 0.0)


def near_autograd():
    """And they are gradients: of the model unpatched, by autograd, within 1e-4 of the largest. Unpatched, the bias of
    in_proj, which FalconMamba and some with Mamba-2 have, comes out of padding on the left into the convolution."""
    for name in ("jamba-dense", "jamba-moe", "mamba-small", "falcon-mamba-small", *TRANSFORMERS, *MIXTURES, *MAMBA2,
                 *DELTA):
        plain = load(name).train()
        plain.set_experts_implementation("eager")  # grouped products want rows of 16 bytes
        model = lockstep.patch(copy.deepcopy(plain))
        side = "right" if name in ("falcon-mamba-small", *MAMBA2) else "left"
        _, ids, mask = draw((20, 33, 64), model.config.vocab_size, side)
        weight = torch.randn(ids[:, 1:].shape, generator=torch.Generator().manual_seed(2)) * mask[:, 1:] * mask[:, :-1]
        (lockstep.token_logprobs(model, ids, mask) * weight).sum().backward()
        logits = plain(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        (torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0] * weight).sum().backward()
        for (parameter, got), want in zip(model.named_parameters(), plain.parameters()):
            worst = ((got.grad - want.grad).abs().max() / want.grad.abs().max()).item()
            assert worst <= 1e-4, f"{name}: {parameter}: {worst}"


def every_architecture():
    """What the engine runs is taken, as the README says."""
    sources = "".join(file.read_text() for file in (ROOT / "src/model").glob("*.c"))
    assert set(re.findall(r'"(\w+ForCausalLM)"', sources)) == set(patching._FAMILIES)


def stays():
    """The same parameters under the same names; labels give a loss; a copy is one of its own."""
    model = load("tiny-sort")
    before = dict(model.named_parameters())
    lockstep.patch(model)
    assert all(before[name] is value for name, value in model.named_parameters()) and type(model).__name__ in \
        model.config.architectures
    _, ids, mask = draw((9, 12), model.config.vocab_size, "right")
    out = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    want = -lockstep.token_logprobs(model, ids, mask).sum() / 19
    assert abs(out.loss.item() - want.item()) < 1e-5, (out.loss, want)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for value in other.parameters():
            value.zero_()
    same_bits("after its copy changed", model(input_ids=ids, attention_mask=mask).logits, out.logits)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = lockstep.patch(AutoModelForCausalLM.from_pretrained(folder, dtype=F32))
        same_bits("saved and loaded", again(input_ids=ids, attention_mask=mask).logits, out.logits)


def refusals():
    model = lockstep.patch(load("jamba-dense"))
    _, ids, mask = draw((9, 12), model.config.vocab_size, "right")
    hole = mask.clone()
    hole[0, 4] = 0
    raises("hole", model, input_ids=ids, attention_mask=hole)
    raises("past_key_values", model, input_ids=ids, past_key_values=object())
    raises("use_cache", model, input_ids=ids, use_cache=True)
    raises("output_hidden_states", model, input_ids=ids, output_hidden_states=True)
    raises("inputs_embeds", model, inputs_embeds=torch.zeros(1, 2, 64))
    raises("position_ids", model, input_ids=ids, position_ids=torch.ones_like(ids))
    raises("token 1000000", model, input_ids=torch.full((1, 2), 1000000))
    raises("mma16", lockstep.patch, load("jamba-dense"), profile="mma16")
    raises("JambaForCausalLM or MambaForCausalLM or FalconMambaForCausalLM", lockstep.patch, torch.nn.Linear(2, 2))
    raises("profile", lockstep.patch, load("jamba-dense"), profile="fast", kind=ValueError)
    adapted = load("jamba-dense")
    adapted.model.layers[0].feed_forward.up_proj = torch.nn.Sequential(adapted.model.layers[0].feed_forward.up_proj)
    raises("layers.0.feed_forward.up_proj: Sequential", lockstep.patch, adapted)
    raises("float16", lockstep.patch, load("jamba-dense").half())
    for name in ("jamba-moe", "qwen3-moe-small", "mixtral-small"):
        mixture = lockstep.patch(load(name))
        raises("output_router_logits", mixture, input_ids=ids, output_router_logits=True)
    ungated = load("nemotron-h-small")
    ungated.config.mlp_hidden_act = "gelu"
    raises("mlp_hidden_act: 'gelu'", lockstep.patch, ungated)
    mixer = load("mamba2-small")
    mixer.backbone.layers[2].mixer.activation = "relu"
    raises("layers.2.mixer.activation: 'relu'", lockstep.patch, mixer)
    latent = load("nemotron-h-moe")
    latent.model.layers[1].mixer.fc1_latent_proj = torch.nn.Linear(2, 2)
    raises("layers.1.mixer.fc1_latent_proj: Linear", lockstep.patch, latent)
    biased = load("qwen3.5-small")
    biased.model.layers[1].self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(1))
    raises("layers.1.self_attn.q_proj: it has a bias", lockstep.patch, biased)
    shared = load("qwen3-next-small")
    shared.model.layers[0].mlp.shared_expert.up_proj.bias = torch.nn.Parameter(torch.zeros(1))
    raises("layers.0.mlp.shared_expert.up_proj: it has a bias", lockstep.patch, shared)
    mixture = load("mixtral-small")
    mixture.model.layers[1].mlp.jitter_noise = 0.1
    raises("layers.1.mlp.jitter_noise: 0.1", lockstep.patch, mixture)

    def _fused_forward(self, *args, **kwargs):
        return None

    model.forward = _fused_forward.__get__(model)
    raises("call lockstep.patch", model, input_ids=ids)
    lockstep.patch(model)(input_ids=ids)


def random_llama(head_dim, rotation, positions, kind="llama", **more):
    """One layer with large random weights, whose log-probabilities hang on every frequency."""
    config = AutoConfig.for_model(
        kind, vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=head_dim, max_position_embeddings=positions, initializer_range=0.4,
        rope_parameters=rotation, bos_token_id=1, eos_token_id=2, pad_token_id=0, **more)
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(config, dtype=F32).eval()


def frequencies():
    """Of published models: at most two steps from transformers' and mostly equal; in a model, the engine's bits. Where
    transformers' are others, they give other bits."""
    noticed = 0
    for line in (ROOT / "tests/fixtures/rope-vectors.jsonl").read_text().splitlines():
        vector = json.loads(line)
        name, config = vector["name"], vector["config"]
        rotation = lockstep.Rotation.of(config)
        ours = torch.tensor(rotation.inv_freq)
        theirs = torch.tensor([int(bits, 16) for bits in vector["inv_freq"]], dtype=torch.int32)
        steps = (integers(ours) - theirs).abs()
        assert steps.max() <= 2 and (steps != 0).sum() <= len(steps) // 8, f"{name}: {steps.tolist()}"
        assert rotation.scale == torch.tensor(vector["scale"], dtype=F32).item(), (name, rotation.scale)
        scaled = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        scaled["rope_type"] = scaled.pop("type", scaled.get("rope_type", "default"))
        scaled.setdefault("rope_theta", config.get("rope_theta"))
        model = random_llama(config["head_dim"], scaled, config["max_position_embeddings"])
        sequences, ids, mask = draw((150, 40), 64, "right")
        pairs = (mask[:, 1:] * mask[:, :-1]).bool()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            with lockstep.Model(folder, dtype="f32", device="cpu", trains=False) as engine:
                want = torch.cat([torch.from_numpy(x)[1:] for x in engine.score([s.numpy() for s in sequences])])
        lockstep.patch(model)
        assert model._lockstep.rotation == rotation, name
        same_bits(name, lockstep.token_logprobs(model, ids, mask)[pairs].detach(), want)
        model._lockstep.rotation = lockstep.Rotation(tuple(theirs.view(F32).tolist()), rotation.scale)
        other = lockstep.token_logprobs(model, ids, mask)[pairs].detach()
        noticed += bool(steps.any()) and not torch.equal(other, want)
    assert noticed > 0, "no other frequency was noticed"


def rotations_refused():
    """By name, as the engine refuses them."""
    plain = {"rope_type": "default", "rope_theta": 1e4}

    def refused(words, kind="llama", rotation=plain, **more):
        raises(words, lockstep.patch, random_llama(8, dict(rotation), 64, kind, **more))

    lockstep.patch(random_llama(8, plain, 64, "mistral", sliding_window=None))
    lockstep.patch(random_llama(8, plain, 64, "qwen3", sliding_window=16, use_sliding_window=False))
    refused("sliding_window: 16; Llama", sliding_window=16)
    refused("sliding_window: 0; 1 at least", "mistral", sliding_window=0)
    for kind in ("qwen2", "qwen3"):
        windowed = random_llama(8, plain, 64, kind, use_sliding_window=True, sliding_window=16, max_window_layers=0)
        windowed.config.layer_types = ["full_attention"]
        raises("layers.0.self_attn.sliding_window: 16", lockstep.patch, windowed)
        windowed.config.layer_types = ["chunked_attention"]
        raises("layer 0 is 'chunked_attention'", lockstep.patch, windowed)
    refused('"dynamic": its frequencies change', rotation={**plain, "rope_type": "dynamic", "factor": 2.0})
    refused('"longrope": its frequencies change', rotation={
        **plain, "rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [1.0] * 4,
        "original_max_position_embeddings": 32})
    refused("short_factor is no parameter", rotation={**plain, "rope_type": "linear", "factor": 2.0,
                                                      "short_factor": [1.0]})
    refused("mlp.gate_proj: it has a bias", mlp_bias=True)
    refused("attention_dropout: 0.1", attention_dropout=0.1)
    refused("hidden_act: 'gelu'", hidden_act="gelu")
    model = lockstep.patch(random_llama(8, plain, 64))
    ids = torch.tensor([[3, 4, 5]])
    raises("use_cache", model, input_ids=ids, use_cache=True)
    raises("rollouts are the engine's", model.generate, ids, max_new_tokens=2)
    lockstep.patch(random_llama(8, plain, 64).bfloat16())
    other = random_llama(8, plain, 64)
    other.model.rotary_emb.inv_freq /= 8.0
    raises("rotary_emb.inv_freq: other frequencies", lockstep.patch, other)
    other = random_llama(8, plain, 64)
    other.model.rotary_emb.attention_scaling = 1.5
    raises("attention_scaling: 1.5", lockstep.patch, other)
    mixed = random_llama(8, plain, 64, "qwen2")
    mixed.model.layers[0].self_attn.k_proj.bias = None
    raises("some of q_proj", lockstep.patch, mixed)
    for words, fields in (
            ("partial_rotary_factor: 0.5", {"partial_rotary_factor": 0.5}),
            ("rope_theta: 1", {"rope_theta": 1}), ("rope_theta: '1e4'", {"rope_theta": "1e4"}),
            ("factor: missing", {"rope_scaling": {"type": "linear"}}),
            ("factor: 0.5", {"rope_scaling": {"type": "linear", "factor": 0.5}}),
            ("beta is no parameter", {"rope_scaling": {"type": "yarn", "beta": 1}}),
            ("high_freq_factor 1 is not above", {"rope_scaling": {
                "type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 1}}),
            ("truncate: 1, expected true or false", {"rope_scaling": {"type": "yarn", "factor": 2, "truncate": 1}}),
            ("'ntk'; default, linear, llama3 and yarn", {"rope_scaling": {"type": "ntk"}}),
            ("expected an object", {"rope_scaling": 3}), ("head_dim: 7", {"head_dim": 7}),
            ("partial_rotary_factor: 1.0, expected 0.5", {"model_type": "bamba", "partial_rotary_factor": 1.0}),
            ("partial_rotary_factor: 1.5", {"model_type": "qwen3_next", "partial_rotary_factor": 1.5}),
            ("of which 1 columns rotate", {"model_type": "qwen3_next", "head_dim": 7}),
            ("mrope_section is no parameter", {"rope_parameters": {"mrope_section": [1, 1, 2]}})):
        raises(words, lockstep.Rotation.of, {"head_dim": 8, "max_position_embeddings": 64, **fields})
    for fields, rotated in (({"model_type": "bamba"}, 8), ({"model_type": "qwen3_5_text"}, 4),
                            ({"model_type": "qwen3_5_text", "rope_parameters": {
                                "partial_rotary_factor": 0.75, "mrope_section": [1, 1, 2]}}, 12)):
        rotation = lockstep.Rotation.of({"head_dim": 16, "max_position_embeddings": 64, **fields})
        assert 2 * len(rotation.inv_freq) == rotated, (fields, rotation)


# ---- layers on their own ----


def close(name, got, want, tolerance=2e-5):
    worst = ((got.detach().to(F64) - want.detach()).abs().max() / want.detach().abs().max().clamp(min=1e-30)).item()
    assert worst <= tolerance, f"{name}: {worst}"


def against_float64(name, layer, reference, *tensors):
    """Value and gradients of a layer on float32 tensors."""
    ours = [t.clone().requires_grad_() for t in tensors]
    theirs = [t.to(F64).requires_grad_() for t in tensors]
    got, want = layer(*ours), reference(*theirs)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(3), dtype=F64)
    close(name, got, want)
    (got * weight.to(got.dtype)).sum().backward()
    (want * weight).sum().backward()
    for i, (a, b) in enumerate(zip(ours, theirs)):
        close(f"{name}: gradient {i}", a.grad, b.grad)


def own_layers():
    generator = torch.Generator().manual_seed(4)
    batch = lockstep.Batch((5, 70, 1, 20), "cpu")

    def random(*shape):
        return torch.randn(shape, generator=generator)

    def attention(qkv):
        out = []
        for part in qkv.split(batch.lengths):
            q, k, v = (x.reshape(len(part), -1, 8).transpose(0, 1) for x in part.split((32, 16, 16), 1))
            out.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                       .transpose(0, 1).reshape(len(part), 32))
        return torch.cat(out)

    def windowed(qkv):
        out = []
        for part in qkv.split(batch.lengths):
            q, k, v = (x.reshape(len(part), -1, 8).transpose(0, 1) for x in part.split((32, 16, 16), 1))
            apart = torch.arange(len(part))[:, None] - torch.arange(len(part))
            out.append(torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=(apart >= 0) & (apart < 17), enable_gqa=True).transpose(0, 1).reshape(len(part), 32))
        return torch.cat(out)

    F = torch.nn.functional
    tokens = torch.randint(0, 11, (96,), generator=generator)
    against_float64("linear", lambda *t: lockstep.linear(*t, batch=batch), F.linear, random(96, 24), random(17, 24),
                    random(17))
    against_float64("rmsnorm", lambda x, w: lockstep.rmsnorm(x, w, 1e-5), lambda x, w: F.rms_norm(x, (24,), w, 1e-5),
                    random(96, 24), random(24))
    against_float64("swiglu", lockstep.swiglu, lambda g, u: F.silu(g) * u, random(96, 12), random(96, 12))
    against_float64("causal_attention", lambda x: lockstep.causal_attention(x, batch, 4, 2, 8), attention,
                    random(96, 64))
    against_float64("windowed", lambda x: lockstep.causal_attention(x, batch, 4, 2, 8, window=17), windowed,
                    random(96, 64))
    against_float64("embedding", lambda w: lockstep.embed(tokens, w, 3),
                    lambda w: F.embedding(tokens, w, padding_idx=3), random(11, 24))
    raises("(rows, 6) is wanted", lockstep.linear, random(4, 5), random(3, 6), kind=ValueError)
    raises("mma16", lockstep.linear, random(4, 6), random(3, 6), profile="mma16", kind=TypeError)
    raises("at least one row", lockstep.Batch, (3, 0), "cpu", kind=ValueError)
    raises("3 heads over 2", lockstep.causal_attention, random(96, 64), batch, 3, 2, 8, kind=ValueError)
    raises("window: 0", lockstep.causal_attention, random(96, 64), batch, 4, 2, 8, 0, kind=ValueError)


def own_gates():
    """relu2, the sigmoid gate and the gated norm against float64."""
    generator = torch.Generator().manual_seed(8)
    F = torch.nn.functional

    def random(*shape):
        return torch.randn(shape, generator=generator)

    def gated_norm(x, z, w):
        y = F.rms_norm((x * F.silu(z)).view(len(x), 3, 8), (8,), None, 1e-5).flatten(1)
        return y * w

    against_float64("relu2", lockstep.relu2, lambda x: F.relu(x) ** 2, random(40, 11))
    against_float64("sigmoid_gate", lockstep.sigmoid_gate, lambda x, g: x * g.sigmoid().repeat_interleave(4, 1),
                    random(40, 24), random(40, 6))
    against_float64("gated_rmsnorm", lambda *t: lockstep.gated_rmsnorm(*t, groups=3, eps=1e-5), gated_norm,
                    random(40, 24), random(40, 24), random(24))
    x, gate = random(9, 6), random(9, 6)
    same_bits("one rounding", lockstep.sigmoid_gate(x, gate, BF16), lockstep.sigmoid_gate(x, gate).to(BF16))
    same_bits("relu2 once", lockstep.relu2(x, BF16), lockstep.relu2(x).to(BF16))
    raises("gate: 4 columns for 6", lockstep.sigmoid_gate, x, random(9, 4), kind=ValueError)
    raises("groups: 4 for 6", lockstep.gated_rmsnorm, x, gate, random(6), groups=4, kind=ValueError)
    raises("float32 is taken", lockstep.relu2, x.to(BF16), kind=TypeError)


def own_scans():
    """The scan of Mamba-2 and the delta rule against the recurrences in float64, token by token."""
    generator = torch.Generator().manual_seed(9)
    batch, heads, groups = lockstep.Batch((5, 70, 1, 20), "cpu"), 4, 2
    limits = (0.05, 1.5)
    F = torch.nn.functional

    def random(*shape):
        return torch.randn(shape, generator=generator)

    def by_heads(x, n):
        """[rows, groups of heads, columns], once for each of n heads."""
        return x.repeat_interleave(n // x.shape[1], 1)

    def mamba2(x, dt, b, c, a_log, dt_bias, d):
        out = []
        x, b, c = x.view(len(x), heads, -1), *(by_heads(t.view(len(t), groups, -1), heads) for t in (b, c))
        dt = F.softplus(dt + dt_bias).clamp(*limits)
        for first, n in zip(batch.starts.tolist(), batch.lengths):
            state = torch.zeros(heads, x.shape[2], b.shape[2], dtype=F64)
            for t in range(first, first + n):
                state = state * (-dt[t] * a_log.exp()).exp()[:, None, None] \
                    + (dt[t][:, None] * x[t])[:, :, None] * b[t][:, None]
                out.append(((state * c[t][:, None]).sum(2) + d[:, None] * x[t]).flatten())
        return torch.stack(out)

    def delta(q, k, v, a, b, a_log, dt_bias):
        out = []
        q, k = (by_heads(t.view(len(t), groups, -1), heads) for t in (q, k))
        q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
        v, decay = v.view(len(v), heads, -1), (-a_log.exp() * F.softplus(a + dt_bias)).exp()
        for first, n in zip(batch.starts.tolist(), batch.lengths):
            state = torch.zeros(heads, k.shape[2], v.shape[2], dtype=F64)
            for t in range(first, first + n):
                state = state * decay[t][:, None, None]
                d = b[t].sigmoid()[:, None] * (v[t] - (state * k[t][:, :, None]).sum(1))
                state = state + k[t][:, :, None] * d[:, None]
                out.append(((state * q[t][:, :, None]).sum(1) / q.shape[2] ** 0.5).flatten())
        return torch.stack(out)

    x, dt, b, c = random(96, heads * 3), random(96, heads), random(96, groups * 5), random(96, groups * 5)
    vectors = random(heads), random(heads), random(heads)
    against_float64("mamba2_scan", lambda *t: lockstep.mamba2_scan(*t, batch, groups, limits), mamba2, x, dt, b, c,
                    *vectors)
    q, k, v = random(96, groups * 6), random(96, groups * 6), random(96, heads * 5)
    against_float64("delta_rule", lambda *t: lockstep.delta_rule(*t, batch, groups), delta, q, k, v, dt,
                    random(96, heads), *vectors[:2])
    raises("x: shape (96, 12) for 5 heads", lockstep.mamba2_scan, x, dt, b, c, random(5), *vectors[:2], batch,
           kind=ValueError)
    raises("groups: 3", lockstep.mamba2_scan, x, dt, b, c, *vectors, batch, 3, kind=ValueError)
    raises("d: shape (3,)", lockstep.mamba2_scan, x, dt, b, c, *vectors[:2], random(3), batch, 2, kind=ValueError)
    raises("dt_max", lockstep.mamba2_scan, x, dt, b, c, *vectors, batch, 2, (0.5, 0.1))
    raises("key_heads: 3", lockstep.delta_rule, q, k, v, dt, dt, *vectors[:2], batch, 3, kind=ValueError)
    raises("k: shape (96, 5)", lockstep.delta_rule, q, random(96, 5), v, dt, dt, *vectors[:2], batch, 2,
           kind=ValueError)


def own_rope():
    """Against float64, and assembled by hand the attention of patched models."""
    generator = torch.Generator().manual_seed(6)
    batch, head_dim, half = lockstep.Batch((5, 70, 1, 20), "cpu"), 10, 4
    rotation = lockstep.Rotation((1.0, 0.25, 0.0625, 0.015625), 1.5)

    def random(*shape):
        return torch.randn(shape, generator=generator)

    def parts(bias_q, norm_q, bias_v, norm_k):
        return (lockstep.HeadPart(3, bias_q, norm_q), lockstep.HeadPart(2, None, norm_k),
                lockstep.HeadPart(2, bias_v, None, rotates=False))

    def layer(x, *weights):
        return lockstep.rope(x, batch, parts(*weights), head_dim, rotation, 1e-5)

    def reference(x, *weights):
        angle = torch.cat([torch.arange(n) for n in batch.lengths])[:, None].to(F64) * torch.tensor(rotation.inv_freq,
                                                                                                    dtype=F64)
        c, s = (t[:, None] * rotation.scale for t in (angle.cos(), angle.sin()))
        out, at = [], 0
        for part in parts(*weights):
            y = x[:, at:at + part.n_heads * head_dim]
            y = (y if part.bias is None else y + part.bias).reshape(len(x), part.n_heads, head_dim)
            if part.norm is not None:
                y = torch.nn.functional.rms_norm(y, (head_dim,), part.norm, 1e-5)
            if part.rotates:
                a, b, rest = y[..., :half], y[..., half:2 * half], y[..., 2 * half:]
                y = torch.cat((a * c - b * s, b * c + a * s, rest), -1)
            out.append(y.flatten(1))
            at += part.n_heads * head_dim
        return torch.cat(out, 1)

    against_float64("rope", layer, reference, random(96, 70), random(30), random(10), random(20), random(10))
    x, bare = random(96, 20), (lockstep.HeadPart(2, rotates=False),)
    same_bits("a part that asks for nothing", lockstep.rope(x, batch, bare, 10), x)
    same_bits("one rounding", lockstep.rope(x, batch, (lockstep.HeadPart(2),), 10, rotation, out_dtype=BF16),
              lockstep.rope(x, batch, (lockstep.HeadPart(2),), 10, rotation).to(BF16))
    raises("(96, 30) is wanted", lockstep.rope, x, batch, (lockstep.HeadPart(3),), 10, rotation, kind=ValueError)
    raises("float32 is taken", lockstep.rope, x.to(BF16), batch, bare, 10, kind=TypeError)
    raises("parts: 0", lockstep.rope, x, batch, (), 10, kind=ValueError)
    raises("rotation: None", lockstep.rope, x, batch, (lockstep.HeadPart(2),), 10, kind=ValueError)
    raises("rotation: 4 frequencies", lockstep.rope, x, batch, (lockstep.HeadPart(5),), 4, rotation, kind=ValueError)
    raises("parts[0].norm", lockstep.rope, x, batch, (lockstep.HeadPart(2, norm=random(9), rotates=False),), 10,
           kind=ValueError)
    for name in ("qwen3-small", "qwen2-small", "llama-odd"):
        model = lockstep.patch(load(name).eval())
        a, norm = model.model.layers[0].self_attn, model.model.layers[0].input_layernorm
        batch = lockstep.Batch((40, 7), "cpu")
        numerics = lockstep.Numerics(eps=norm.variance_epsilon)
        h = torch.randn((47, model.config.hidden_size), generator=generator)
        heads = (model.config.num_attention_heads, model.config.num_key_value_heads, a.head_dim)
        norms = [getattr(a, f"{p}_norm").weight if hasattr(a, f"{p}_norm") else None for p in "qk"] + [None]
        with torch.no_grad():
            x = lockstep.rmsnorm(h, norm.weight, numerics.eps)
            raw = torch.cat([lockstep.linear(x, getattr(a, f"{p}_proj").weight) for p in "qkv"], 1)
            each = [lockstep.HeadPart(n, getattr(a, f"{p}_proj").bias, w, p != "v")
                    for p, n, w in zip("qkv", (heads[0], heads[1], heads[1]), norms)]
            qkv = lockstep.rope(raw, batch, each, a.head_dim, lockstep.Rotation.of(model.config), numerics.eps)
            y = lockstep.linear(lockstep.causal_attention(qkv, batch, *heads), a.o_proj.weight, a.o_proj.bias)
            part, options, weight, parameters = model._lockstep.family.halves(
                model.model.layers[0], name, model._lockstep.rotation)[0]
            same_bits(name, y, lockstep.layers.half(part, numerics, options, batch, h, weight, *parameters))


def own_mixer_and_head():
    """Assembled by hand they are the first layer and the head of a patched model."""
    model = lockstep.patch(load("jamba-dense").eval())
    _, ids, _ = draw((40,), model.config.vocab_size, "right")
    ids = ids[:, :40]
    batch, layer = lockstep.Batch((40,), "cpu"), model.model.layers[0]
    numerics = lockstep.Numerics(eps=model.model.final_layernorm.variance_epsilon)
    m = layer.mamba
    with torch.no_grad():
        h = lockstep.embed(ids[0], model.model.embed_tokens.weight)
        x = lockstep.rmsnorm(h, layer.input_layernorm.weight, numerics.eps)
        y = lockstep.mixer(x, batch, m.in_proj.weight, m.conv1d.weight, m.x_proj.weight, m.dt_proj.weight,
                           m.dt_proj.bias, m.A_log, m.D, m.out_proj.weight, m.in_proj.bias, m.conv1d.bias,
                           m.out_proj.bias, m.dt_layernorm.weight, m.b_layernorm.weight, m.c_layernorm.weight, numerics)
        f, mid = layer.feed_forward, h + y
        x = lockstep.rmsnorm(mid, layer.pre_ff_layernorm.weight, numerics.eps)
        gated = lockstep.swiglu(lockstep.linear(x, f.gate_proj.weight), lockstep.linear(x, f.up_proj.weight))
        same_bits("layer", mid + lockstep.linear(gated, f.down_proj.weight), layer(h, lockstep_batch=batch))
        for each in model.model.layers:
            h = each(h, lockstep_batch=batch)
        rows = torch.tensor([3, 39])
        logits = lockstep.head(h, model.model.final_layernorm.weight, model.lm_head.weight, batch, rows, numerics)
        same_bits("head", logits, model(input_ids=ids).logits[0, rows])


def main(chosen):
    report = Report()
    cases = {f"scores_{profile}_{name}": (scores, name, profile)
             for profile, names in (("exact", EXACT), ("mma16", MMA16)) for name in names}
    cases |= {f"scores_exact_bf16_{name}": (scores, name, "exact", "bf16") for name in NARROW}
    cases |= {f"gradients_{profile}_{name}": (gradients, name, profile)
              for profile, names in (("exact", EXACT), ("mma16", MMA16)) for name in names
              if name != "jamba-nobias"}
    cases |= {case.__name__: (case,) for case in (near_autograd, every_architecture, stays, refusals, frequencies,
                                                   rotations_refused, own_layers, own_gates, own_scans, own_rope,
                                                   own_mixer_and_head)}
    for name, (function, *args) in cases.items():
        if not chosen or any(word in name for word in chosen):
            report.run(name, function, *args)
    report.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
