"""lockstep.patch(model): a Hugging Face Jamba, Mamba, FalconMamba, Llama, Mistral, Mixtral, Qwen2, Qwen3 or Qwen3-MoE
whose log-probabilities are the engine's, bit for bit.

The model stays what it was to everyone else: the same modules, the same parameters under the same names, in the same
state_dict. What is replaced are the forward methods of the instance's causal model, its backbone and its layers. They
drop padding, run the layers over packed rows with lockstep.layers, and give what the originals give."""

import types
from dataclasses import dataclass

import torch
from torch import nn

from . import layers
from ._abi import LockstepError
from .layers import Batch, Numerics, Rotation
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


def _jamba_mixer(layer, name):
    if hasattr(layer, "self_attn"):
        a = layer.self_attn
        heads = (a.config.num_attention_heads, a.config.num_key_value_heads, a.head_dim, 0, None)
        return layers._Attention, heads, [_linear(getattr(a, f"{p}_proj"),
                                                  f"{name}.self_attn.{p}_proj") for p in "qkvo"]
    return _mamba(layer.mamba, f"{name}.mamba", (layer.mamba.dt_layernorm, layer.mamba.b_layernorm,
                                                 layer.mamba.c_layernorm))


def _mamba(m, name, norms):
    if type(m.conv1d) is not nn.Conv1d:
        _refuse(f"{name}.conv1d: {type(m.conv1d).__name__}, a plain torch.nn.Conv1d is taken")
    for proj in ("in_proj", "x_proj", "dt_proj", "out_proj"):
        _linear(getattr(m, proj), f"{name}.{proj}", bias=proj != "x_proj")
    return layers._Mixer, None, [
        m.in_proj.weight, m.in_proj.bias, m.conv1d.weight, m.conv1d.bias, m.x_proj.weight,
        *(None if n is None else n.weight for n in norms), m.dt_proj.weight, m.dt_proj.bias, m.A_log, m.D,
        m.out_proj.weight,
        m.out_proj.bias]


def _ffn(f, name, router, reweighs):
    """(part, options, parameters) of a feed-forward: dense, or a mixture where the module has experts. router: how the
    class calls it. reweighs: whether the router's chosen experts alone share the weight."""
    if hasattr(f, "experts"):
        gate = getattr(f, router, None)
        if gate is None or not hasattr(gate, "top_k") or not hasattr(f.experts, "gate_up_proj"):
            _refuse(f"{name}: {type(f).__name__} is not laid out as transformers 5 lays out experts")
        if getattr(f, "jitter_noise", 0.0):
            _refuse(f"{name}.jitter_noise: {f.jitter_noise}, 0 is taken")
        return layers._Experts, (gate.top_k, reweighs(gate)), [gate.weight, f.experts.gate_up_proj,
                                                               f.experts.down_proj]
    return layers._FeedForward, None, [_linear(getattr(f, f"{p}_proj"), f"{name}.{p}_proj")
                                       for p in ("gate", "up", "down")]


def _jamba_ffn(layer, name):
    return _ffn(layer.feed_forward, f"{name}.feed_forward", "router", lambda router: False)


def _transformer_ffn(layer, name):
    """Qwen3's router says whether it renormalises; Mixtral's always does."""
    return _ffn(layer.mlp, f"{name}.mlp", "gate", lambda router: bool(getattr(router, "norm_topk_prob", True)))


def _jamba_halves(layer, name, rotation):
    """(part, options, weight of the norm before it, parameters) of each half of a layer."""
    return [(*_jamba_mixer(layer, name)[:2], layer.input_layernorm.weight, _jamba_mixer(layer, name)[2]),
            (*_jamba_ffn(layer, name)[:2], layer.pre_ff_layernorm.weight, _jamba_ffn(layer, name)[2])]


def _mamba_halves(layer, name, rotation):
    part, options, parameters = _mamba(layer.mixer, f"{name}.mixer", (None, None, None))
    return [(part, options, layer.norm.weight, parameters)]


def _falcon_mamba_halves(layer, name, rotation):
    """Norms of dt, B and C without weights, whose epsilon is the mixer's."""
    part, _, norm, parameters = _mamba_halves(layer, name, rotation)[0]
    return [(part, layer.mixer.rms_eps, norm, parameters)]


def _transformer_halves(layer, name, rotation):
    """Llama, Mistral, Qwen2, Qwen3 and their mixtures: biases and norms of heads where the modules have them."""
    a = layer.self_attn
    heads = (a.config.num_attention_heads, a.config.num_key_value_heads, a.head_dim, _window(a) or 0, rotation)
    weights = [_linear(getattr(a, f"{p}_proj"), f"{name}.self_attn.{p}_proj", bias=True) for p in "qkvo"]
    biases = [getattr(a, f"{p}_proj").bias for p in "qkvo"]
    if len({b is None for b in biases[:3]}) != 1:
        _refuse(f"{name}.self_attn: some of q_proj, k_proj and v_proj have a bias; all or none are taken")
    norms = [getattr(a, f"{p}_norm").weight if hasattr(a, f"{p}_norm") else None for p in "qk"]
    part, options, ffn = _transformer_ffn(layer, name)
    return [(layers._Attention, heads, layer.input_layernorm.weight, [*weights, *biases, *norms]),
            (part, options, layer.post_attention_layernorm.weight, ffn)]


def _window(attention):
    """Positions that the layer's queries see, or None: Qwen's modules have their own, Mistral's all that of the
    config."""
    return getattr(attention if hasattr(attention, "sliding_window") else attention.config, "sliding_window", None)


def _check_windows(model, layers):
    """The window that a module has must be the one that the model's mask is made of, by the config."""
    config = model.config
    if type(model).__name__.startswith("Llama") and getattr(config, "sliding_window", None) is not None:
        _refuse(f"config.sliding_window: {config.sliding_window}; Llama looks at all positions (None)")
    kinds = getattr(config, "layer_types", None)
    for i, layer in enumerate(layers):
        window = _window(layer.self_attn)
        if window is not None and window < 1:
            _refuse(f"config.sliding_window: {window}; 1 at least is taken")
        if not kinds or not hasattr(layer.self_attn, "sliding_window"):
            continue
        if kinds[i] not in ("full_attention", "sliding_attention"):
            _refuse(f"config.layer_types: layer {i} is {kinds[i]!r}, 'full_attention' and 'sliding_attention' are taken")
        masked = config.sliding_window if kinds[i] == "sliding_attention" else None
        if window != masked or (masked is None and kinds[i] == "sliding_attention"):
            _refuse(f"layers.{i}.self_attn.sliding_window: {window}, and config.layer_types: {kinds[i]!r}, whose window "
                    f"is {masked}")


@dataclass(frozen=True)
class _Family:
    backbone: str
    embed: str
    final: str
    halves: object
    rotates: bool = False


_TRANSFORMER = _Family("model", "embed_tokens", "norm", _transformer_halves, rotates=True)

_FAMILIES = {
    "JambaForCausalLM": _Family("model", "embed_tokens", "final_layernorm", _jamba_halves),
    "MambaForCausalLM": _Family("backbone", "embeddings", "norm_f", _mamba_halves),
    "FalconMambaForCausalLM": _Family("backbone", "embeddings", "norm_f", _falcon_mamba_halves),
    **{f"{name}ForCausalLM": _TRANSFORMER for name in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3",
                                                           "Qwen3Moe")},
}


@dataclass
class _State:
    """What the replaced methods of one model share."""
    family: _Family
    numerics: Numerics
    temperature: float
    rotation: object = None


def _rotation_of(model, family):
    """The engine's frequencies of the model's config; None where nothing rotates."""
    if not family.rotates:
        return None
    backbone = getattr(model, family.backbone)
    _check_windows(model, backbone.layers)
    try:
        rotation = Rotation.of(model.config, backbone.layers[0].self_attn.head_dim)
    except LockstepError as error:
        raise LockstepError(f"patch: config.{error}", "unsupported") from None
    _check_same_rotation(backbone.rotary_emb, rotation, f"{family.backbone}.rotary_emb")
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


def _check_model(model, family, numerics, rotation):
    config, backbone = model.config, getattr(model, family.backbone)
    if config.hidden_act not in ("silu", "swish"):
        _refuse(f"config.hidden_act: {config.hidden_act!r}, 'silu' is taken")
    if getattr(config, "attention_dropout", 0.0):
        _refuse(f"config.attention_dropout: {config.attention_dropout}, 0 is taken")
    if getattr(config, "residual_in_fp32", True) is not True:
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
            key: getattr(module, key) for key in ("gate_up_proj", "down_proj")
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
        hidden_states = hidden_states + layers.half(part, state.numerics, options, lockstep_batch, hidden_states, norm,
                                                    *parameters)
    return hidden_states


def _stream(backbone, layout, tied=None):
    """The residual stream behind the last layer, packed rows in float32."""
    state = backbone._lockstep
    embed = getattr(backbone, state.family.embed)
    h = layers.tied_embedding(layout.tokens, embed.weight, embed.padding_idx, tied)
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
    x = layers.rmsnorm(_stream(self, layout), getattr(self, state.family.final).weight, state.numerics.eps,
                       state.numerics.activations)
    return BaseModelOutputWithPast(last_hidden_state=layout.spread(x, layout.kept, layout.shape))


def _logits(model, layout, wanted):
    """Logits of the tokens that a bool [batch, length] wants, and their places."""
    state = model._lockstep
    backbone = getattr(model, state.family.backbone)
    rows, where = layout.rows(wanted)
    tied = {} if model.lm_head.weight is getattr(backbone, state.family.embed).weight else None
    h = backbone(lockstep_layout=layout, lockstep_tied=tied)
    norm = getattr(backbone, state.family.final).weight
    return layers.tied_head(h, norm, model.lm_head.weight, layout.batch, rows, state.numerics, tied), where


def _next_labels(labels, layout):
    """Of each token the one that follows, -100 where there is none to predict."""
    if tuple(labels.shape) != layout.shape:
        _refuse(f"labels: shape {tuple(labels.shape)}, {layout.shape} is taken")
    targets = torch.full_like(labels, -100)
    targets[:, :-1] = labels[:, 1:]
    return targets


def _has_experts(model):
    return any(hasattr(getattr(layer, name, None), "experts") for name in ("feed_forward", "mlp") for layer in getattr(model, model._lockstep.family.backbone).layers)


def _fused(self, layout, labels, num_items_in_batch):
    """What TRL asks of a model's forward with fused_lm_head=True."""
    n, length = layout.shape
    temperature = self._lockstep.temperature
    targets = _next_labels(labels, layout)
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
    """Gives a Hugging Face model the engine's arithmetic, in place; returns it: JambaForCausalLM, MambaForCausalLM,
    FalconMambaForCausalLM, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM,
    Qwen3ForCausalLM or Qwen3MoeForCausalLM.

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
    numerics = Numerics(profile, activations, getattr(backbone, family.final).variance_epsilon)
    rotation = _rotation_of(model, family)
    _check_model(model, family, numerics, rotation)
    state = _State(family, numerics, float(temperature), rotation)
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
