"""lockstep.patch(model): a Hugging Face model of an architecture of _FAMILIES whose log-probabilities are the engine's,
bit for bit.

The model stays what it was to everyone else: the same modules, the same parameters under the same names, in the same
state_dict. What is replaced are the forward methods of the instance's causal model, its backbone and its layers. They
drop padding, run the layers over packed rows with lockstep.layers, and give what the originals give."""

import types
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn

from . import layers
from ._abi import LockstepError
from ._attention import Heads, _Attention
from ._feed_forward import Routing, _Experts, _FeedForward
from ._packed import Batch, Numerics, Rotation
from ._recurrent import DeltaHeads, Ssd, _DeltaRule, _Mamba2, _Mixer
from .ops import logprob

_WIDTHS = (torch.float32, torch.bfloat16)


def _refuse(what):
    raise LockstepError(f"patch: {what}", "unsupported")


# ---- what a model is made of ----


def _linear(module, name, bias=False):
    """The weight of a plain linear layer; an adapter, a quantised layer or an unexpected bias is refused."""
    if type(module) is not nn.Linear:
        _refuse(f"{name}: {type(module).__name__}, a plain torch.nn.Linear is taken")
    if module.bias is not None and not bias:
        _refuse(f"{name}: it has a bias")
    return module.weight


def _conv(m, name):
    if type(m.conv1d) is not nn.Conv1d:
        _refuse(f"{name}.conv1d: {type(m.conv1d).__name__}, a plain torch.nn.Conv1d is taken")
    return m.conv1d.weight, m.conv1d.bias


def _mamba(m, name, norms=(), inner_eps=None):
    conv = _conv(m, name)
    for proj in ("in_proj", "x_proj", "dt_proj", "out_proj"):
        _linear(getattr(m, proj), f"{name}.{proj}", bias=proj != "x_proj")
    return _Mixer, inner_eps, [
        m.in_proj.weight, m.in_proj.bias, *conv, m.x_proj.weight, *([n.weight for n in norms] or [None] * 3),
        m.dt_proj.weight, m.dt_proj.bias, m.A_log, m.D, m.out_proj.weight, m.out_proj.bias]


def _mamba2(m, name):
    conv = _conv(m, name)
    _silu(m.activation, f"{name}.activation")
    return _Mamba2, Ssd(m.n_groups, *map(float, m.time_step_limit)), [
        _linear(m.in_proj, f"{name}.in_proj", bias=True), m.in_proj.bias, *conv, m.dt_bias, m.A_log, m.D,
        m.norm.weight, _linear(m.out_proj, f"{name}.out_proj", bias=True), m.out_proj.bias]


def _delta(m, name):
    """Qwen3-Next has one product for q, k, v and z of each key head, and one for b and a; Qwen3.5 has four."""
    conv, by_head = _conv(m, name), hasattr(m, "in_proj_qkvz")
    if conv[1] is not None:
        _refuse(f"{name}.conv1d: it has a bias")
    projections = [_linear(getattr(m, f"in_proj_{p}"), f"{name}.in_proj_{p}")
                   for p in (("qkvz", "ba") if by_head else ("qkv", "z", "b", "a"))]
    return _DeltaRule, DeltaHeads(m.num_k_heads, m.head_k_dim, by_head), [
        conv[0], m.dt_bias, m.A_log, m.norm.weight, _linear(m.out_proj, f"{name}.out_proj"), *projections]


def _attention(a, name, rotation, window=None, scale=None, gated=False):
    """Biases and norms of heads where the module has them."""
    heads = Heads(a.config.num_attention_heads, a.config.num_key_value_heads, a.head_dim, window or 0, rotation,
                         scale, gated)
    weights = [_linear(getattr(a, f"{p}_proj"), f"{name}.{p}_proj", bias=not gated) for p in "qkvo"]
    biases = [getattr(a, f"{p}_proj").bias for p in "qkvo"]
    if len({b is None for b in biases[:3]}) != 1:
        _refuse(f"{name}: some of q_proj, k_proj and v_proj have a bias; all or none are taken")
    norms = [getattr(a, f"{p}_norm").weight if hasattr(a, f"{p}_norm") else None for p in "qk"]
    return _Attention, heads, [*weights, *biases, *norms]


def _window(attention):
    """Positions that the layer's queries see, or None: Qwen's modules have their own, Mistral's all that of the
    config."""
    return getattr(attention if hasattr(attention, "sliding_window") else attention.config, "sliding_window", None)


def _dense(f, name):
    """gate, up and down: one module has gate above up, one has no gate."""
    if hasattr(f, "input_linear"):
        gate, up = _linear(f.input_linear, f"{name}.input_linear").chunk(2)
        return [gate, up, _linear(f.output_linear, f"{name}.output_linear")]
    return [_linear(getattr(f, f"{p}_proj"), f"{name}.{p}_proj") if hasattr(f, f"{p}_proj") else None
            for p in ("gate", "up", "down")]


def _experts(f, name, routing, shared=(None, None, None), column=None):
    """A mixture: f has experts, and gate or router. routing: of the router. shared: gate, up and down of the expert of
    all rows; column: what its sigmoid is of."""
    router = getattr(f, "gate", getattr(f, "router", None))
    up = getattr(f.experts, "gate_up_proj", getattr(f.experts, "up_proj", None))
    if router is None or not hasattr(router, "top_k") or up is None:
        _refuse(f"{name}: {type(f).__name__} is not laid out as transformers 5 lays out experts")
    if getattr(f, "jitter_noise", 0.0):
        _refuse(f"{name}.jitter_noise: {f.jitter_noise}, 0 is taken")
    return _Experts, routing(router), [
        router.weight, getattr(router, "e_score_correction_bias", None), up, f.experts.down_proj,
        *shared, column]


def _softmax(router):
    """Qwen3's router says whether it renormalises; Mixtral's and others always do."""
    return Routing(router.top_k, bool(getattr(router, "norm_topk_prob", True)))


def _ffn(f, name, routing=_softmax):
    if not hasattr(f, "experts"):
        return _FeedForward, None, _dense(f, name)
    if not hasattr(f, "shared_expert"):
        return _experts(f, name, routing)
    return _experts(f, name, routing, _dense(f.shared_expert, f"{name}.shared_expert"),
                    _linear(f.shared_expert_gate, f"{name}.shared_expert_gate"))


# Of each kind of layer: (part, options, weight of the norm before it, parameters) of its halves, or of its only one.


def _half(norm, part):
    return part[0], part[1], norm.weight, part[2]


def _jamba_halves(layer, name, rotation):
    if hasattr(layer, "self_attn"):
        mixer = _attention(layer.self_attn, f"{name}.self_attn", None)
    else:
        m = layer.mamba
        mixer = _mamba(m, f"{name}.mamba", (m.dt_layernorm, m.b_layernorm, m.c_layernorm))
    ffn = _ffn(layer.feed_forward, f"{name}.feed_forward", lambda router: Routing(router.top_k))
    return [_half(layer.input_layernorm, mixer), _half(layer.pre_ff_layernorm, ffn)]


def _mamba_halves(layer, name, rotation):
    """FalconMamba's norms of dt, B and C have no weights, and the mixer's epsilon."""
    return [_half(layer.norm, _mamba(layer.mixer, f"{name}.mixer", inner_eps=getattr(layer.mixer, "rms_eps", None)))]


def _mamba2_halves(layer, name, rotation):
    return [_half(layer.norm, _mamba2(layer.mixer, f"{name}.mixer"))]


def _transformer_halves(layer, name, rotation):
    """Llama, Mistral, Qwen2, Qwen3 and their mixtures."""
    attention = _attention(layer.self_attn, f"{name}.self_attn", rotation, _window(layer.self_attn))
    return [_half(layer.input_layernorm, attention),
            _half(layer.post_attention_layernorm, _ffn(layer.mlp, f"{name}.mlp"))]


def _delta_halves(layer, name, rotation):
    if hasattr(layer, "self_attn"):
        mixer = _attention(layer.self_attn, f"{name}.self_attn", rotation, gated=True)
    else:
        mixer = _delta(layer.linear_attn, f"{name}.linear_attn")
    return [_half(layer.input_layernorm, mixer),
            _half(layer.post_attention_layernorm, _ffn(layer.mlp, f"{name}.mlp"))]


def _bamba_halves(layer, name, rotation):
    if hasattr(layer, "self_attn"):
        mixer = _attention(layer.self_attn, f"{name}.self_attn", rotation)
    else:
        mixer = _mamba2(layer.mamba, f"{name}.mamba")
    return [_half(layer.input_layernorm, mixer),
            _half(layer.pre_ff_layernorm, _ffn(layer.feed_forward, f"{name}.feed_forward"))]


def _granite_halves(layer, name, rotation):
    """Without experts, what stands beside them is the feed-forward."""
    if layer.self_attn is not None:
        mixer = _attention(layer.self_attn, f"{name}.self_attn", rotation, scale=float(layer.self_attn.scaling))
    else:
        mixer = _mamba2(layer.mamba, f"{name}.mamba")
    if layer.block_sparse_moe is None:
        ffn = _ffn(layer.shared_mlp, f"{name}.shared_mlp")
    else:
        ffn = _experts(layer.block_sparse_moe, f"{name}.block_sparse_moe", _softmax,
                       _dense(layer.shared_mlp, f"{name}.shared_mlp"))
    return [_half(layer.input_layernorm, mixer), _half(layer.post_attention_layernorm, ffn)]


def _sigmoids(router):
    return Routing(router.top_k, bool(router.norm_topk_prob), router.num_group, router.topk_group,
                          float(router.routed_scaling_factor))


def _nemotron_halves(layer, name, rotation):
    m, name = layer.mixer, f"{name}.mixer"
    if hasattr(m, "A_log"):
        part = _mamba2(m, name)
    elif hasattr(m, "q_proj"):
        part = _attention(m, name, None)
    elif hasattr(m, "experts"):
        if type(m.fc1_latent_proj) is not nn.Identity:
            _refuse(f"{name}.fc1_latent_proj: {type(m.fc1_latent_proj).__name__}; experts of the hidden size are taken")
        part = _experts(m, name, _sigmoids, _dense(m.shared_experts, f"{name}.shared_experts"))
    else:
        part = _FeedForward, None, _dense(m, name)
    return [_half(layer.norm, part)]


def _check_windows(model, layers):
    """The window that a module has must be the one that the model's mask is made of, by the config."""
    config = model.config
    if type(model).__name__.startswith("Llama") and getattr(config, "sliding_window", None) is not None:
        _refuse(f"config.sliding_window: {config.sliding_window}; Llama looks at all positions (None)")
    kinds = getattr(config, "layer_types", None)
    for i, layer in enumerate(layers):
        attention = getattr(layer, "self_attn", None)
        window = None if attention is None else _window(attention)
        if window is not None and window < 1:
            _refuse(f"config.sliding_window: {window}; 1 at least is taken")
        if not kinds or not hasattr(attention, "sliding_window"):
            continue
        if kinds[i] not in ("full_attention", "sliding_attention"):
            _refuse(f"config.layer_types: layer {i} is {kinds[i]!r}, 'full_attention' and 'sliding_attention' are "
                    "taken")
        masked = config.sliding_window if kinds[i] == "sliding_attention" else None
        if window != masked or (masked is None and kinds[i] == "sliding_attention"):
            _refuse(f"layers.{i}.self_attn.sliding_window: {window}, and config.layer_types: {kinds[i]!r}, whose "
                    f"window is {masked}")


@dataclass(frozen=True)
class _Family:
    backbone: str
    embed: str
    final: str
    halves: object
    act: str = "hidden_act"  # the config's field
    norms_above_one: bool = False


_TRANSFORMER = _Family("model", "embed_tokens", "norm", _transformer_halves)
_DELTA = _Family("model", "embed_tokens", "norm", _delta_halves, norms_above_one=True)

_FAMILIES = {f"{name}ForCausalLM": family for name, family in {
    "Jamba": _Family("model", "embed_tokens", "final_layernorm", _jamba_halves),
    "Mamba": _Family("backbone", "embeddings", "norm_f", _mamba_halves),
    "FalconMamba": _Family("backbone", "embeddings", "norm_f", _mamba_halves),
    "Mamba2": _Family("backbone", "embeddings", "norm_f", _mamba2_halves),
    **dict.fromkeys(("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe"), _TRANSFORMER),
    **dict.fromkeys(("Qwen3Next", "Qwen3_5", "Qwen3_5Moe"), _DELTA),
    "Bamba": _Family("model", "embed_tokens", "final_layernorm", _bamba_halves),
    "GraniteMoeHybrid": _Family("model", "embed_tokens", "norm", _granite_halves),
    "NemotronH": _Family("model", "embeddings", "norm_f", _nemotron_halves, act="mamba_hidden_act"),
}.items()}


@dataclass(frozen=True)
class _Factors:
    """Of the embedding, of what a half of a layer adds, and of logits; None is 1."""
    embedding: Optional[float] = None
    residual: Optional[float] = None
    logits: Optional[float] = None

    @classmethod
    def of(cls, config):
        embedding, residual, logits = (getattr(config, name, 1.0) for name in (
            "embedding_multiplier", "residual_multiplier", "logits_scaling"))
        one = torch.ones((), dtype=torch.float32)
        logits = (one / torch.tensor(float(logits), dtype=torch.float32)).item()  # the quotient in float32
        return cls(*(None if factor == 1.0 else float(factor) for factor in (embedding, residual, logits)))

    @staticmethod
    def apply(x, factor):
        return x if factor is None else x * factor


@dataclass
class _State:
    """What the replaced methods of one model share."""
    family: _Family
    numerics: Numerics
    temperature: float
    rotation: object = None
    factors: _Factors = _Factors()


def _rotation_of(model, backbone, name):
    """The engine's frequencies of the model's config; None where nothing rotates."""
    rotates = getattr(backbone, "rotary_emb", None)
    heads = [layer.self_attn.head_dim for layer in backbone.layers if getattr(layer, "self_attn", None) is not None]
    if rotates is None or not heads:
        return None
    _check_windows(model, backbone.layers)
    try:
        rotation = Rotation.of(model.config, heads[0])
    except LockstepError as error:
        raise LockstepError(f"patch: config.{error}", "unsupported") from None
    _check_same_rotation(rotates, rotation, f"{name}.rotary_emb")
    return rotation


def _check_same_rotation(module, rotation, name):
    """The module's own frequencies may have another last bit, or bfloat16; others than the config's are refused."""
    if module.inv_freq.device.type == "meta":
        return
    theirs, ours = module.inv_freq.detach().double().cpu(), torch.tensor(rotation.inv_freq, dtype=torch.float64)
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=1e-2, atol=0.0):
        _refuse(f"{name}.inv_freq: other frequencies than those of config.rope_parameters")
    if abs(module.attention_scaling - rotation.scale) > 1e-3 * rotation.scale:
        _refuse(f"{name}.attention_scaling: {module.attention_scaling}, that of config.rope_parameters is "
                f"{rotation.scale}")


def _silu(act, name):
    if act not in ("silu", "swish"):
        _refuse(f"{name}: {act!r}, 'silu' is taken")


def _check_model(model, family, numerics, rotation):
    config, backbone = model.config, getattr(model, family.backbone)
    _silu(getattr(config, family.act), f"config.{family.act}")
    if getattr(config, "mlp_hidden_act", "relu2") != "relu2":
        _refuse(f"config.mlp_hidden_act: {config.mlp_hidden_act!r}, 'relu2' is taken")
    if getattr(config, "attention_dropout", 0.0):
        _refuse(f"config.attention_dropout: {config.attention_dropout}, 0 is taken")
    if not all(getattr(layer, "residual_in_fp32", True) for layer in backbone.layers):
        _refuse("config.residual_in_fp32: false; the residual stream is float32")
    if type(getattr(backbone, family.embed)) is not nn.Embedding:
        _refuse(f"{family.backbone}.{family.embed}: {type(getattr(backbone, family.embed)).__name__}")
    _linear(model.lm_head, "lm_head")
    for name, parameter in model.named_parameters():
        if parameter.dtype not in _WIDTHS:
            _refuse(f"{name}: {parameter.dtype}, float32 or bfloat16 is taken")
    for i, layer in enumerate(backbone.layers):
        family.halves(layer, f"{family.backbone}.layers.{i}", rotation)
    if numerics.profile == "mma16":
        _check_bf16(model)


def _check_bf16(model):
    """Dense products of mma16 take their weights as they are; routers are float32 chains in every profile."""
    for name, module in model.named_modules():
        matrices = {"weight": module.weight} if isinstance(module, nn.Linear) else {
            key: getattr(module, key) for key in ("gate_up_proj", "up_proj", "down_proj")
            if isinstance(getattr(module, key, None), nn.Parameter)}
        for key, w in matrices.items():
            if w.dtype != torch.bfloat16:
                _refuse(f"profile mma16: {name}.{key} is {w.dtype}, the profile multiplies bf16 only")


# ---- rows ----


class _Layout:
    """Where the tokens of a padded batch lie among its packed rows."""

    def __init__(self, input_ids, attention_mask, position_ids):
        if input_ids is None or input_ids.dim() != 2 or input_ids.shape[1] < 1:
            _refuse(f"input_ids: {None if input_ids is None else tuple(input_ids.shape)}, (batch, length) is taken")
        self.shape, self.device = tuple(input_ids.shape), input_ids.device
        if attention_mask is None:
            self.kept, lengths = None, self._packed_lengths(position_ids)
        else:
            self.kept, lengths = self._padded_lengths(attention_mask)
        self.batch = Batch(lengths, self.device)
        tokens = input_ids.reshape(-1)
        self.tokens = tokens if self.kept is None else tokens[self.kept]

    def leave_ends(self, wanted):
        """Sequences lose their last token where a bool [batch, length] does not want it: it changes nothing before it.
        The trainer has rows of tokens that predict one alone, and scales of gradients begin at the last row."""
        lengths, ends = self.batch.offsets.diff(), self.batch.offsets[1:] - 1
        kept = torch.arange(wanted.numel(), device=self.device) if self.kept is None else self.kept
        gone = (lengths > 1) & ~wanted.reshape(-1)[kept[ends]]
        stay = torch.ones_like(kept, dtype=torch.bool)
        stay[ends[gone]] = False
        self.kept, self.tokens = kept[stay], self.tokens[stay]
        self.batch = Batch((lengths - gone.long()).tolist(), self.device)

    def _packed_lengths(self, position_ids):
        """Without a mask every row of input_ids is one sequence, or several where positions begin again at 0."""
        n, length = self.shape
        if position_ids is None:
            return [length] * n
        positions = position_ids.expand(n, length)
        first, later = positions == 0, positions[:, 1:]
        if not bool(first[:, 0].all()) or bool(((later != positions[:, :-1] + 1) & (later != 0)).any()):
            _refuse("position_ids: each sequence's run 0, 1, 2, ...")
        starts = first.reshape(-1).nonzero()[:, 0].tolist() + [n * length]
        return [end - start for start, end in zip(starts, starts[1:])]

    def _padded_lengths(self, mask):
        if tuple(mask.shape) != self.shape:
            _refuse(f"attention_mask: shape {tuple(mask.shape)}, {self.shape} is taken")
        mask = mask.to(torch.bool)
        if bool(((mask[:, 1:] & ~mask[:, :-1]).sum(1) + mask[:, 0] > 1).any()):
            _refuse("attention_mask: a sequence has a hole; padding is taken on the left and on the right")
        lengths = [n for n in mask.sum(1).tolist() if n > 0]
        flat = mask.reshape(-1)
        return (None if sum(lengths) == flat.numel() else flat.nonzero()[:, 0]), lengths

    def rows(self, wanted):
        """Of a bool [batch, length]: packed rows where it is true, and their places in it; padding is left out."""
        wanted = wanted.reshape(-1)
        if self.kept is None:
            where = wanted.nonzero()[:, 0]
            return where, where
        rows = wanted[self.kept].nonzero()[:, 0]
        return rows, self.kept[rows]

    def spread(self, x, where, shape):
        """Packed rows x at their places of a zero tensor [*shape, width]."""
        n = shape[0] * shape[1]
        if x.shape[0] != n:
            x = x.new_zeros((n, *x.shape[1:])).index_copy(0, where, x)
        return x.view(*shape, *x.shape[1:])


# ---- the methods that take the place of others ----


def _nothing_else(kwargs):
    """Arguments that ask for nothing are taken; the others are refused by name."""
    for name, value in kwargs.items():
        if value is not None and value is not False:
            _refuse(f"forward: {name} is not supported; rollouts are the engine's" if "cache" in name or
                    name == "past_key_values" else f"forward: {name} is not supported")


def _layer_forward(self, hidden_states, lockstep_batch=None, **kwargs):
    state = self._lockstep
    if lockstep_batch is None:
        _refuse(f"{type(self).__name__}: a layer is called by its own model alone")
    for part, options, norm, parameters in state.family.halves(self, type(self).__name__, state.rotation):
        y = layers.half(part, state.numerics, options, lockstep_batch, hidden_states, norm, *parameters)
        hidden_states = hidden_states + state.factors.apply(y, state.factors.residual)
    return hidden_states


def _stream(backbone, layout, tied=None):
    """The residual stream behind the last layer, packed rows in float32."""
    state = backbone._lockstep
    embed = getattr(backbone, state.family.embed)
    h = layers.tied_embedding(layout.tokens, embed.weight, embed.padding_idx, tied)
    h = state.factors.apply(h, state.factors.embedding)
    for layer in backbone.layers:
        h = layer(h, lockstep_batch=layout.batch)
    return h


def _backbone_forward(self, input_ids=None, attention_mask=None, position_ids=None, lockstep_layout=None,
                      lockstep_tied=None, **kwargs):
    from transformers.modeling_outputs import BaseModelOutputWithPast
    state, layout = self._lockstep, lockstep_layout
    kwargs.pop("return_dict", None)
    _nothing_else(kwargs)
    if layout is not None:
        return _stream(self, layout, lockstep_tied)
    layout = _Layout(input_ids, attention_mask, position_ids)
    w = getattr(self, state.family.final).weight
    x = layers.rmsnorm(_stream(self, layout), 1.0 + w.float() if state.family.norms_above_one else w,
                       state.numerics.eps, state.numerics.activations)
    return BaseModelOutputWithPast(last_hidden_state=layout.spread(x, layout.kept, layout.shape))


def _logits(model, layout, wanted):
    """Logits of the tokens that a bool [batch, length] wants, and their places."""
    state = model._lockstep
    backbone = getattr(model, state.family.backbone)
    rows, where = layout.rows(wanted)
    tied = {} if model.lm_head.weight is getattr(backbone, state.family.embed).weight else None
    h = backbone(lockstep_layout=layout, lockstep_tied=tied)
    norm = getattr(backbone, state.family.final).weight
    logits = layers.tied_head(h, norm, model.lm_head.weight, layout.batch, rows, state.numerics, tied)
    return state.factors.apply(logits, state.factors.logits), where


def _next_labels(labels, layout):
    """Of each token the one that follows, -100 where there is none to predict."""
    if tuple(labels.shape) != layout.shape:
        _refuse(f"labels: shape {tuple(labels.shape)}, {layout.shape} is taken")
    targets = torch.full_like(labels, -100)
    targets[:, :-1] = labels[:, 1:]
    return targets


def _has_experts(model):
    return any(hasattr(module, "experts") for module in getattr(model, model._lockstep.family.backbone).modules())


def _fused(self, layout, labels, num_items_in_batch):
    """What TRL asks of a model's forward with fused_lm_head=True."""
    n, length = layout.shape
    temperature = self._lockstep.temperature
    targets = _next_labels(labels, layout)
    layout.leave_ends(targets != -100)
    logits, where = _logits(self, layout, targets != -100)
    targets = targets.reshape(-1)[where]
    value, _, entropy = logprob(logits, targets, None, None if temperature == 1.0 else temperature)
    with torch.no_grad():
        extra = dict(mean_logits=logits.mean(-1), is_top1=logits.argmax(-1) == targets)
    spread = {name: layout.spread(x, where, (n, length))[:, :-1] for name, x in
              dict(log_probs=value, entropy=entropy, **extra).items()}
    mask = labels[:, 1:] != -100
    count = mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    # Without experts there is nothing to balance.
    return _outputs()(loss=-value.sum() / count, label_mask=mask, aux_loss=value.new_zeros(()), **spread)


def _outputs():
    """The class of those answers; transformers is imported when it is first wanted."""
    global _Scored
    if _Scored is None:
        from transformers.utils import ModelOutput

        @dataclass
        class Scored(ModelOutput):
            """Per token, [batch, length - 1]: of labels[:, 1:], 0 where the label is -100."""
            loss: torch.Tensor = None
            log_probs: torch.Tensor = None
            entropy: torch.Tensor = None
            log_sum_sq_probs: torch.Tensor = None
            mean_logits: torch.Tensor = None
            is_top1: torch.Tensor = None
            label_mask: torch.Tensor = None
            aux_loss: torch.Tensor = None

        _Scored = Scored
    return _Scored


_Scored = None


def _causal_forward(self, input_ids=None, attention_mask=None, position_ids=None, labels=None, logits_to_keep=0,
                    fused_lm_head=False, num_items_in_batch=None, output_router_logits=None, return_dict=None,
                    **kwargs):
    from transformers.modeling_outputs import CausalLMOutputWithPast
    _nothing_else(kwargs)
    if output_router_logits and _has_experts(self):
        _refuse("forward: output_router_logits is not supported: a router's own loss is not computed "
                "(TRL: router_aux_loss_coef=0.0)")
    layout = _Layout(input_ids, attention_mask, position_ids)
    if fused_lm_head:
        return _fused(self, layout, labels, num_items_in_batch)
    n, length = layout.shape
    keep = torch.zeros(length, dtype=torch.bool, device=layout.device)
    keep[slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep] = True
    wanted, loss = keep.expand(n, length), None
    if labels is not None:
        targets = _next_labels(labels, layout)
        wanted = wanted | (targets != -100)
    logits, where = _logits(self, layout, wanted)
    if labels is not None:
        count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
        loss = -logprob(logits, targets.reshape(-1)[where])[0].sum() / count
    kept, column = keep[where % length], torch.cumsum(keep, 0) - 1  # of a place among those that are kept
    logits, where = logits[kept], where[kept]
    where = where // length * int(keep.sum()) + column[where % length]
    out = CausalLMOutputWithPast(loss=loss, logits=layout.spread(logits, where, (n, int(keep.sum()))))
    return out if return_dict is not False else out.to_tuple()


def _replace(module, function, state):
    module._lockstep = state
    module.forward = types.MethodType(function, module)


def _before_forward(model, args, kwargs):
    """TRL's GRPOTrainer gives its model a forward of its own, which computes log-probabilities by torch."""
    function = getattr(model.forward, "__func__", None)
    while function is not None and getattr(function, "__code__", None) is not _causal_forward.__code__:
        if getattr(getattr(function, "__code__", None), "co_name", "") == "_fused_forward":
            _refuse("TRL's trainer has replaced the forward of a model that was patched before: call lockstep.patch "
                    "when the trainer is there")
        function = getattr(function, "__wrapped__", None)


def patch(model, profile="exact", activations=None, temperature=1.0):
    """Gives a Hugging Face model the engine's arithmetic, in place; returns it. Its class is one of JambaForCausalLM,
    MambaForCausalLM, FalconMambaForCausalLM, Mamba2ForCausalLM, LlamaForCausalLM, MistralForCausalLM,
    MixtralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, Qwen3NextForCausalLM,
    Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, BambaForCausalLM, GraniteMoeHybridForCausalLM and NemotronHForCausalLM.

    profile      "exact", or "mma16", which takes matrices of bfloat16
    activations  torch.float32 or torch.bfloat16; None: float32 for exact, bfloat16 for mma16, as `lockstep` has them
    temperature  what TRL's trainers divide logits by; logits themselves are not divided

    Afterwards log-probabilities of lockstep.token_logprobs, of lockstep.selected_logprob on the model's logits
    (float32), and of TRL's trainers have the bits of `lockstep score` with this profile and type of activations;
    gradients those of the engine's trainer as far as docs/guide/torch.md says. Modules, parameters, their names and
    state_dict stay. May be called again, and must be after something else has replaced the model's forward, such as the
    making of a TRL trainer.

    Rotations have the engine's frequencies, computed from model.config; what model.model.rotary_emb holds is only
    compared.

    Not taken, each with a LockstepError that names it: other architectures, rotations that change
    with the length (dynamic, longrope), biases of a feed-forward, adapters and quantised layers, float16, dropout,
    caches (generation is the engine's), inputs_embeds, outputs of hidden states, attentions or routers, masks with
    holes."""
    family = _FAMILIES.get(type(model).__name__)
    if family is None:
        _refuse(f"{type(model).__name__}: {' or '.join(_FAMILIES)} is taken")
    if not temperature > 0.0:
        raise ValueError(f"temperature: {temperature}; above 0 is taken")
    backbone = getattr(model, family.backbone)
    if activations is None:
        activations = torch.bfloat16 if profile == "mma16" else torch.float32
    final = getattr(backbone, family.final)
    numerics = Numerics(profile, activations, final.eps if hasattr(final, "eps") else final.variance_epsilon,
                        family.norms_above_one)
    rotation = _rotation_of(model, backbone, family.backbone)
    _check_model(model, family, numerics, rotation)
    state = _State(family, numerics, float(temperature), rotation, _Factors.of(model.config))
    if not hasattr(model, "_lockstep"):
        model.register_forward_pre_hook(_before_forward, with_kwargs=True)
    for layer in backbone.layers:
        _replace(layer, _layer_forward, state)
    _replace(backbone, _backbone_forward, state)
    _replace(model, _causal_forward, state)
    return model


def token_logprobs(model, input_ids, attention_mask=None):
    """Log-probability of each token after the first, [batch, length - 1] float32, at the patched model's temperature; 0
    where the token or the one before it is padding. Carries gradients. Bits: those of `lockstep score`."""
    if not hasattr(model, "_lockstep"):
        raise ValueError("model: lockstep.patch(model) first")
    labels = input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, -100)
    return model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True).log_probs
