"""The C ABI of include/lockstep in ctypes: structs of ops.h, the shared library, and statuses as exceptions. _embed.py
has the structs of engine.h and train.h.

Nothing here knows torch. The structs repeat the header member by member; tests/python/check_abi.py compares their
sizes and offsets with what a C compiler makes of it."""

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p

CPU, CUDA = 0, 1  # ls_backend
EXACT, MMA16 = 0, 1  # ls_profile
F32, BF16, F16 = 0, 1, 2  # ls_dtype
STATUS_NAMES = ("ok", "arg", "io", "format", "unsupported", "nomem", "capacity", "device")  # ls_status
LOGPROB_LEAF = 2048
LOGPROB_VOCAB_MAX = 1000000
CONV_WIDTH_MAX = 16
SCAN_STATES_MAX = 256
HEAD_DIM_MAX = 512
EXPERTS_MAX = 1024
ROPE_PARTS = 3


class LockstepError(RuntimeError):
    """A call that the library refused, or a fault that a device found. `status` is the short name of its ls_status."""

    def __init__(self, sentence, status="arg"):
        super().__init__(sentence)
        self.status = status


class Error(Structure):
    _fields_ = [("status", c_int), ("text", c_char * 1024)]


class Fault(Structure):
    _fields_ = [("code", c_int64), ("index", c_int64), ("value", c_int64), ("limit", c_int64)]


class Exec(Structure):
    _fields_ = [("backend", c_int), ("workers", c_void_p), ("stream", c_void_p), ("workspace", c_void_p),
                ("workspace_bytes", c_int64), ("fault", c_void_p)]


class Span(Structure):
    _fields_ = [("row", c_int64), ("n_rows", c_int64), ("pos", c_int64), ("slot", c_int32), ("table", c_int64)]


class PoolView(Structure):
    _fields_ = [("base", c_void_p), ("stride", c_int64), ("n_entries", c_int64)]


class LogprobLeaf(Structure):
    _fields_ = [("k", c_float), ("q", c_float), ("s", c_float), ("e", c_float)]


def _struct(name, *members):
    """A Structure from (type, "member member ...") pairs in the order of the header."""
    fields = [(member, kind) for kind, names in members for member in names.split()]
    return type(name, (Structure,), {"_fields_": fields})


LogprobArgs = _struct(
    "LogprobArgs", (c_void_p, "logits"), (c_int, "dtype"), (c_int64, "rows vocab row_stride"), (c_void_p, "targets"),
    (c_int64, "ignore_index"), (c_void_p, "mask temperature logprob lse entropy"))

LogprobShardArgs = _struct(
    "LogprobShardArgs", (c_void_p, "logits"), (c_int, "dtype"), (c_int64, "rows vocab row_stride first total"),
    (c_void_p, "targets"), (c_int64, "ignore_index"), (c_void_p, "mask temperature leaves"), (c_int64, "leaf_stride"),
    (c_void_p, "target_z"))

LogprobCombineArgs = _struct(
    "LogprobCombineArgs", (c_void_p, "leaves"), (c_int64, "rows total leaf_stride"), (c_void_p, "target_z targets"),
    (c_int64, "ignore_index"), (c_void_p, "mask logprob lse entropy"))

LogprobBackwardArgs = _struct(
    "LogprobBackwardArgs", (c_void_p, "logits"), (c_int, "dtype"), (c_int64, "rows vocab row_stride"),
    (c_void_p, "targets"), (c_int64, "ignore_index"),
    (c_void_p, "mask temperature lse entropy d_logprob d_lse d_entropy d_logits"), (c_int64, "d_stride"),
    (c_bool, "d_bf16"))

SequenceSumArgs = _struct(
    "SequenceSumArgs", (c_void_p, "logprob mask offsets"), (c_int64, "length n_sequences rows"), (c_void_p, "out"))

Conv1dArgs = _struct(
    "Conv1dArgs", (c_void_p, "x"), (c_int, "x_dtype y_dtype state_dtype"), (c_int64, "x_stride"),
    (c_void_p, "w bias y"), (c_int64, "y_stride"), (c_void_p, "rounded"),
    (c_int64, "rounded_stride rows dim d_conv"), (PoolView, "state"), (c_void_p, "spans"),
    (c_int64, "n_spans span_rows_max"), (c_bool, "spans_checked"))

Conv1dBackwardArgs = _struct(
    "Conv1dBackwardArgs", (c_void_p, "x"), (c_int, "x_dtype state_dtype"), (c_int64, "x_stride"),
    (c_void_p, "w bias dy"), (c_int64, "dy_stride"), (c_void_p, "dx"), (c_int64, "dx_stride"), (c_void_p, "dw dbias"),
    (c_int64, "rows dim d_conv"), (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"),
    (c_bool, "continued dw_by_channel"), (c_int, "dx_dtype"), (c_void_p, "initial dinitial dfinal"))

ScanArgs = _struct(
    "ScanArgs", (c_int, "in_dtype out_dtype"), (c_bool, "dt_activated"), (c_void_p, "u dt_raw b cc z out"),
    (c_int64, "u_stride dt_stride b_stride c_stride z_stride out_stride"), (c_void_p, "a2 dt_bias d"),
    (c_int64, "rows dim n_states"), (PoolView, "state"), (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"),
    (c_bool, "spans_checked"))

ScanBackwardArgs = _struct(
    "ScanBackwardArgs", (c_int, "in_dtype"), (c_bool, "dt_activated"), (c_void_p, "u dt_raw b cc z"),
    (c_int64, "u_stride dt_stride b_stride c_stride z_stride"), (c_void_p, "a2 dt_bias d dout"),
    (c_int64, "dout_stride"), (c_void_p, "du ddt db dcc dz da2 ddt_bias dd"), (c_int64, "rows dim n_states"),
    (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"), (c_bool, "continued dout_bf16 du_bf16"),
    (c_int, "out_dtype"), (c_int64, "dz_stride"), (c_void_p, "initial dinitial dfinal"))

SsdArgs = _struct(
    "SsdArgs", (c_int, "in_dtype out_dtype"), (c_void_p, "x dt_raw b cc out"),
    (c_int64, "x_stride dt_stride b_stride c_stride out_stride"), (c_void_p, "a dt_bias d"),
    (c_float, "dt_min dt_max"), (c_int64, "rows n_heads head_dim n_groups n_states"), (PoolView, "state scale"),
    (c_int64, "state_every"), (PoolView, "held"), (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"),
    (c_bool, "spans_checked"))

SsdBackwardArgs = _struct(
    "SsdBackwardArgs", (c_int, "in_dtype"), (c_void_p, "x dt_raw b cc"),
    (c_int64, "x_stride dt_stride b_stride c_stride"), (c_void_p, "a dt_bias d"), (c_float, "dt_min dt_max"),
    (c_void_p, "dout"), (c_int64, "dout_stride"), (c_void_p, "dx db dcc ddt"), (c_int, "ddt_dtype"),
    (c_int64, "dx_stride db_stride dc_stride ddt_stride"), (c_void_p, "da ddt_bias dd"),
    (c_int64, "rows n_heads head_dim n_groups n_states"), (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"),
    (c_bool, "continued"), (c_void_p, "initial initial_scale dinitial dfinal"))

DeltaArgs = _struct(
    "DeltaArgs", (c_int, "in_dtype out_dtype"), (c_void_p, "q k v a b out"),
    (c_int64, "q_stride k_stride v_stride a_stride b_stride out_stride"), (c_void_p, "rate dt_bias"),
    (c_int64, "rows n_heads n_key_heads key_dim value_dim"), (PoolView, "state scale"), (c_int64, "state_every"),
    (PoolView, "held"), (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"), (c_bool, "spans_checked"))

DeltaBackwardArgs = _struct(
    "DeltaBackwardArgs", (c_int, "in_dtype"), (c_void_p, "q k v a b"),
    (c_int64, "q_stride k_stride v_stride a_stride b_stride"), (c_void_p, "rate dt_bias initial dout"),
    (c_int64, "dout_stride"), (c_void_p, "dq dk dv da db"), (c_int, "dab_dtype"),
    (c_int64, "dq_stride dk_stride dv_stride da_stride db_stride"), (c_void_p, "drate ddt_bias dinitial"),
    (c_int64, "rows n_heads n_key_heads key_dim value_dim"), (c_void_p, "spans"), (c_int64, "n_spans span_rows_max"),
    (c_bool, "continued"), (c_void_p, "initial_scale dfinal"))

GemmWeight = _struct("GemmWeight", (c_int, "dtype"), (c_int64, "n k"), (c_void_p, "panels"),
                     (c_int64, "panel_stride panel_bytes"))

GemmRepackArgs = _struct("GemmRepackArgs", (c_void_p, "weight w"), (c_int, "dtype"))

GemmArgs = _struct(
    "GemmArgs", (c_void_p, "x"), (c_int, "x_dtype"), (c_int64, "x_stride"), (c_void_p, "weight bias out"),
    (c_int, "out_dtype"), (c_int64, "out_stride m"), (c_int, "profile"), (c_void_p, "range"), (c_bool, "nan_open"))

GemmBackwardInputArgs = _struct(
    "GemmBackwardInputArgs", (c_void_p, "dy"), (c_int64, "dy_stride"), (c_void_p, "w"), (c_int, "w_dtype"),
    (c_void_p, "dx"), (c_int64, "dx_stride dx_count"), (c_void_p, "dx_rows"), (c_bool, "add"), (c_int64, "m n k"),
    (c_int, "profile"), (c_void_p, "range dy_rounded"), (c_int64, "dy_rounded_stride"))

GemmBackwardWeightArgs = _struct(
    "GemmBackwardWeightArgs", (c_void_p, "dy"), (c_int64, "dy_stride"), (c_void_p, "x"), (c_int, "x_dtype"),
    (c_int64, "x_stride x_count"), (c_void_p, "x_rows dw dbias"), (c_int64, "m n k"), (c_int, "profile"),
    (c_void_p, "sequences"), (c_int64, "n_sequences"), (c_void_p, "range dy_rounded"), (c_int64, "dy_rounded_stride"),
    (c_bool, "sequences_whole dw_is_zero"))

RmsnormArgs = _struct(
    "RmsnormArgs", (c_void_p, "x"), (c_int, "x_dtype"), (c_int64, "x_stride"), (c_void_p, "w"), (c_float, "eps"),
    (c_void_p, "y"), (c_int, "y_dtype"), (c_int64, "y_stride rows dim"))

RmsnormBackwardArgs = _struct(
    "RmsnormBackwardArgs", (c_void_p, "x"), (c_int, "x_dtype"), (c_int64, "x_stride"), (c_void_p, "w"),
    (c_float, "eps"), (c_void_p, "dy"), (c_int64, "dy_stride"), (c_void_p, "dx"), (c_int64, "dx_stride"),
    (c_bool, "add"), (c_void_p, "dw scale"), (c_int64, "rows dim"))

GatedNormArgs = _struct(
    "GatedNormArgs", (c_void_p, "x z"), (c_int64, "x_stride z_stride"), (c_void_p, "w"), (c_float, "eps"),
    (c_void_p, "y"), (c_int, "y_dtype"), (c_int64, "y_stride rows dim groups"))

GatedNormBackwardArgs = _struct(
    "GatedNormBackwardArgs", (c_void_p, "x z"), (c_int64, "x_stride z_stride"), (c_void_p, "w"), (c_float, "eps"),
    (c_void_p, "dy"), (c_int64, "dy_stride"), (c_void_p, "dx"), (c_int64, "dx_stride"), (c_void_p, "dz"),
    (c_int, "dz_dtype"), (c_int64, "dz_stride"), (c_void_p, "dw scale"), (c_int64, "rows dim groups"))

RopeTableArgs = _struct(
    "RopeTableArgs", (c_void_p, "inv_freq"), (c_int64, "half"), (c_float, "scale"), (c_void_p, "table spans"),
    (c_int64, "n_spans span_rows_max rows"))

RopePart = _struct("RopePart", (c_int64, "n_heads"), (c_void_p, "bias norm"), (c_bool, "rotates"), (c_void_p, "dnorm"))

RopeArgs = _struct(
    "RopeArgs", (c_void_p, "x"), (c_int64, "x_stride"), (c_void_p, "y"), (c_int, "y_dtype"), (c_int64, "y_stride"),
    (c_void_p, "table"), (c_int64, "half"), (c_float, "eps"), (c_int64, "rows head_dim"),
    (RopePart * ROPE_PARTS, "part"), (c_int64, "n_parts"))

RopeBackwardArgs = _struct(
    "RopeBackwardArgs", (c_void_p, "x"), (c_int64, "x_stride"), (c_void_p, "dy"), (c_int64, "dy_stride"),
    (c_void_p, "dx"), (c_int, "dx_dtype"), (c_int64, "dx_stride"), (c_void_p, "table"), (c_int64, "half"),
    (c_float, "eps"), (c_int64, "rows head_dim"), (RopePart * ROPE_PARTS, "part"), (c_int64, "n_parts"),
    (c_void_p, "scale"))

RopeNormFoldArgs = _struct("RopeNormFoldArgs", (c_void_p, "chains"), (c_int64, "n_heads head_dim"), (c_void_p, "out"))

EmbedArgs = _struct(
    "EmbedArgs", (c_void_p, "table"), (c_int, "table_dtype"), (c_int64, "vocab dim"), (c_void_p, "tokens y"),
    (c_int, "y_dtype"), (c_int64, "rows"))

EmbedBackwardArgs = _struct(
    "EmbedBackwardArgs", (c_void_p, "tokens dy"), (c_int64, "dy_stride"), (c_void_p, "dtable"),
    (c_int64, "vocab dim rows"), (c_int32, "pad"))

SwigluArgs = _struct("SwigluArgs", (c_void_p, "gate up y"), (c_int, "y_dtype"), (c_int64, "rows dim"))

SwigluBackwardArgs = _struct("SwigluBackwardArgs", (c_void_p, "gate up dy dgate dup"), (c_int64, "rows dim"))

Relu2Args = _struct("Relu2Args", (c_void_p, "x y"), (c_int, "y_dtype"), (c_int64, "rows dim"))

Relu2BackwardArgs = _struct("Relu2BackwardArgs", (c_void_p, "x dy dx"), (c_int, "dx_dtype"), (c_int64, "rows dim"))

SigmoidGateArgs = _struct(
    "SigmoidGateArgs", (c_void_p, "x"), (c_int, "x_dtype"), (c_void_p, "gate"), (c_int64, "x_stride gate_stride"),
    (c_void_p, "y"), (c_int, "y_dtype"), (c_int64, "y_stride rows dim gates"))

SigmoidGateBackwardArgs = _struct(
    "SigmoidGateBackwardArgs", (c_void_p, "x"), (c_int, "x_dtype"), (c_void_p, "gate"),
    (c_int64, "x_stride gate_stride"), (c_void_p, "dy"), (c_int64, "dy_stride"), (c_void_p, "dx"),
    (c_int64, "dx_stride"), (c_void_p, "dgate"), (c_int, "dgate_dtype"), (c_int64, "dgate_stride rows dim gates"))

AttentionArgs = _struct(
    "AttentionArgs", (c_void_p, "q k v out"), (c_int, "dtype"), (c_int64, "q_stride kv_stride out_stride"),
    (c_int64, "n_heads n_kv_heads head_dim"), (c_float, "scale"), (c_int64, "page_tokens"), (PoolView, "pages"),
    (c_void_p, "spans"), (c_int64, "n_spans"), (c_void_p, "tables"), (c_int64, "n_tables rows"),
    (c_bool, "spans_checked"), (c_int64, "window"), (c_int, "profile"), (c_void_p, "log_sum"),
    (c_int64, "log_sum_stride"))

AttentionBackwardArgs = _struct(
    "AttentionBackwardArgs", (c_void_p, "q k v"), (c_int, "dtype"), (c_int64, "q_stride kv_stride"),
    (c_void_p, "dout"), (c_int64, "dout_stride"), (c_void_p, "dq dk dv"), (c_int64, "dq_stride dkv_stride"),
    (c_int64, "rows n_heads n_kv_heads head_dim"), (c_float, "scale"), (c_void_p, "spans"),
    (c_int64, "n_spans span_rows_max window"), (c_int, "profile"), (c_void_p, "out"), (c_int64, "out_stride"),
    (c_void_p, "log_sum"), (c_int64, "log_sum_stride"), (c_void_p, "key_rows"), (c_int64, "key_rows_n keys_max"))

DecayArgs = _struct("DecayArgs", (c_void_p, "x"), (c_int, "dtype"), (c_int64, "n"), (c_void_p, "out"))

RatesArgs = _struct("RatesArgs", (c_void_p, "x"), (c_int, "dtype"), (c_int64, "n"), (c_void_p, "out"))

MoeRouteArgs = _struct("MoeRouteArgs", (c_void_p, "logits"), (c_int64, "rows n_experts top_k"),
                       (c_void_p, "expert weight"))

MoeReweighArgs = _struct("MoeReweighArgs", (c_void_p, "logits"), (c_int64, "rows n_experts top_k"),
                         (c_void_p, "expert weight"))

MoePlaceArgs = _struct("MoePlaceArgs", (c_void_p, "expert"), (c_int64, "rows n_experts top_k"),
                       (c_void_p, "pick row place offsets"))

MoeCombineArgs = _struct("MoeCombineArgs", (c_void_p, "y rows weight acc"), (c_int64, "n dim"), (c_void_p, "range"))

MoeCombineBackwardArgs = _struct("MoeCombineBackwardArgs", (c_void_p, "y rows weight dacc dy dweight"),
                                 (c_int64, "n dim acc_rows"))

MoeRouteBackwardArgs = _struct("MoeRouteBackwardArgs", (c_void_p, "logits"), (c_int64, "rows n_experts top_k"),
                               (c_void_p, "expert d_weight dlogits"))

MoeReweighBackwardArgs = _struct("MoeReweighBackwardArgs", (c_void_p, "logits"), (c_int64, "rows n_experts top_k"),
                                 (c_void_p, "expert d_weight dlogits"))

MoeSigmoidRouteArgs = _struct(
    "MoeSigmoidRouteArgs", (c_void_p, "logits bias"), (c_int64, "rows n_experts top_k n_groups top_groups"),
    (c_bool, "normalised"), (c_float, "scale"), (c_void_p, "expert weight"))

MoeSigmoidRouteBackwardArgs = _struct(
    "MoeSigmoidRouteBackwardArgs", (c_void_p, "logits"), (c_int64, "rows n_experts top_k"),
    (c_void_p, "expert d_weight"), (c_bool, "normalised"), (c_float, "scale"), (c_void_p, "dlogits"))

# Every op: ls_op_NAME(exec, args, err) and ls_op_NAME_workspace(args).
OPS = {
    "logprob": LogprobArgs,
    "logprob_shard": LogprobShardArgs,
    "logprob_combine": LogprobCombineArgs,
    "logprob_backward": LogprobBackwardArgs,
    "sequence_sum": SequenceSumArgs,
    "conv1d": Conv1dArgs,
    "conv1d_backward": Conv1dBackwardArgs,
    "scan": ScanArgs,
    "scan_backward": ScanBackwardArgs,
    "ssd": SsdArgs,
    "ssd_backward": SsdBackwardArgs,
    "delta": DeltaArgs,
    "delta_backward": DeltaBackwardArgs,
    "gemm_repack": GemmRepackArgs,
    "gemm": GemmArgs,
    "gemm_backward_input": GemmBackwardInputArgs,
    "gemm_backward_weight": GemmBackwardWeightArgs,
    "rmsnorm": RmsnormArgs,
    "rmsnorm_backward": RmsnormBackwardArgs,
    "gated_norm": GatedNormArgs,
    "gated_norm_backward": GatedNormBackwardArgs,
    "rope_table": RopeTableArgs,
    "rope": RopeArgs,
    "rope_backward": RopeBackwardArgs,
    "rope_norm_fold": RopeNormFoldArgs,
    "embed": EmbedArgs,
    "embed_backward": EmbedBackwardArgs,
    "swiglu": SwigluArgs,
    "swiglu_backward": SwigluBackwardArgs,
    "relu2": Relu2Args,
    "relu2_backward": Relu2BackwardArgs,
    "sigmoid_gate": SigmoidGateArgs,
    "sigmoid_gate_backward": SigmoidGateBackwardArgs,
    "attention": AttentionArgs,
    "attention_backward": AttentionBackwardArgs,
    "decay": DecayArgs,
    "rates": RatesArgs,
    "moe_route": MoeRouteArgs,
    "moe_reweigh": MoeReweighArgs,
    "moe_place": MoePlaceArgs,
    "moe_combine": MoeCombineArgs,
    "moe_combine_backward": MoeCombineBackwardArgs,
    "moe_route_backward": MoeRouteBackwardArgs,
    "moe_reweigh_backward": MoeReweighBackwardArgs,
    "moe_sigmoid_route": MoeSigmoidRouteArgs,
    "moe_sigmoid_route_backward": MoeSigmoidRouteBackwardArgs,
}


HERE = pathlib.Path(__file__).resolve().parent
EVERYTHING, OPS_ALONE = "liblockstep.so.1", "liblockstep_ops.so"  # the second has ops.h and nothing else


def _find_library(names):
    """LOCKSTEP_LIBRARY; else a file beside this one; else that of a build of this source tree: the newest of the
    presets ops and release, else of others, which may carry a sanitizer. None: none of these."""
    chosen = os.environ.get("LOCKSTEP_LIBRARY")
    if chosen:
        if not os.path.isfile(chosen):
            raise LockstepError(f"LOCKSTEP_LIBRARY={chosen}: no such file", "io")
        return chosen
    beside = [HERE / name for name in names if (HERE / name).is_file()]
    if beside:
        return str(beside[0])
    built = [file for name in names for file in (HERE.parent.parent / "build").glob(f"*/{name}")]
    built.sort(key=lambda file: (file.parent.name in ("ops", "release"), file.stat().st_mtime))
    return str(built[-1]) if built else None


def _load_installed(names):
    """What the system's loader finds."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise LockstepError(f"{' or '.join(names)} is not found: LOCKSTEP_LIBRARY is not set, and it is neither in {HERE}, "
                        "nor in a build of its source tree (`cmake --preset release && cmake --build --preset "
                        "release`), nor installed", "io")


@functools.lru_cache(maxsize=None)
def _load(names):
    """The library of the first of these names that is there, and before it what a wheel carries for it."""
    path = _find_library(names)
    if path is None:
        return _load_installed(names)
    try:
        if pathlib.Path(path).parent == HERE:
            for carried in sorted(HERE.glob("libjansson.so*")):
                ctypes.CDLL(str(carried))
        return ctypes.CDLL(path)
    except OSError as error:
        raise LockstepError(f"{path} does not load: {error}", "io") from error


def load_everything():
    """The library that has engine.h and train.h; their functions have no types yet."""
    lib = _load((EVERYTHING,))
    if not hasattr(lib, "lockstep_version"):
        raise LockstepError(f"{lib._name} has the ops alone; engine and trainer are in {EVERYTHING}", "unsupported")
    return lib


@functools.lru_cache(maxsize=None)
def library():
    """The loaded library, with types of ops.h declared. Loaded by the first call that needs it."""
    lib = _load((OPS_ALONE, EVERYTHING))
    lib.ls_backend_available.argtypes = [c_int, POINTER(Error)]
    lib.ls_backend_available.restype = c_bool
    lib.ls_cpu_workers_create.argtypes = [POINTER(c_void_p), c_int32, c_char_p, POINTER(Error)]
    lib.ls_fault_take.argtypes = [POINTER(Exec), POINTER(Error)]
    lib.ls_op_gemm_plan.argtypes = [c_int, c_int, c_int64, c_int64, POINTER(GemmWeight), POINTER(Error)]
    for name, args in OPS.items():
        getattr(lib, f"ls_op_{name}").argtypes = [POINTER(Exec), POINTER(args), POINTER(Error)]
        workspace = getattr(lib, f"ls_op_{name}_workspace")
        workspace.argtypes, workspace.restype = [POINTER(args)], c_int64
    return lib


def raise_for(status, error):
    """Turns a status other than LS_OK into LockstepError with the library's sentence."""
    if status != 0:
        raise LockstepError(error.text.decode("utf-8", "replace"), STATUS_NAMES[status])


def backend_unavailable(backend):
    """Why this build or machine cannot run the back end; None where it can."""
    error = Error()
    return None if library().ls_backend_available(backend, error) else error.text.decode("utf-8", "replace")


def workers_create(n_threads, isa=None):
    """Workers of the CPU: threads and instruction set ("generic", "avx2", "avx512", None for the best). Bits do not depend."""
    workers, error = c_void_p(), Error()
    raise_for(library().ls_cpu_workers_create(workers, n_threads, isa.encode() if isa else None, error), error)
    return workers


def workspace_bytes(op, args):
    n = getattr(library(), f"ls_op_{op}_workspace")(args)
    if n < 0:
        raise LockstepError(f"{op}: the workspace does not fit 64 bits", "nomem")
    return n


def gemm_plan(backend, dtype, n, k):
    """The back end's layout of a weight [n][k], without its memory."""
    weight, error = GemmWeight(), Error()
    raise_for(library().ls_op_gemm_plan(backend, dtype, n, k, weight, error), error)
    return weight


def call(op, exec_, args):
    error = Error()
    raise_for(getattr(library(), f"ls_op_{op}")(exec_, args, error), error)


def fault_take(exec_):
    error = Error()
    raise_for(library().ls_fault_take(exec_, error), error)
