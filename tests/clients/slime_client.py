"""slime's own code against `lockstep serve` as its external engine, with weights from disk that change at every step: its
rollouts have the log-probabilities that `lockstep score`, the training forward, gives the same tokens and weights.

Usage: slime_client.py PROGRAM SOURCE_DIR SLIME_DIR   (SLIME_DIR: a checkout of slime; pip install requests httpx numpy
aiohttp tqdm; without them the script says so and ends with 77.) Its files run unmodified: the engine's control
(backends/sglang_utils/sglang_engine.py, external.py, server_control.py), HTTP (utils/http_utils.py) and rollouts
(rollout/sglang_rollout.py, utils/types.py). What these import besides HTTP (torch, transformers, sglang, ray, PIL, the
rewards) is stood in for below where it is not installed."""

import asyncio
import dataclasses
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serving import Server, generate, other_weights, score  # noqa: E402

for needed in ("requests", "httpx", "numpy", "aiohttp", "tqdm"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
if len(sys.argv) < 4:
    print("skipped: no checkout of slime is given")
    sys.exit(77)


@dataclasses.dataclass
class ServerArgs:
    """The fields of SGLang's that slime fills for an engine that it did not start."""

    host: str = ""
    port: int = 0
    node_rank: int = 0
    nnodes: int = 1
    tp_size: int = 1
    model_path: str = ""
    enable_memory_saver: bool = False


class Standing(types.ModuleType):
    """A module of which nothing is called: whatever is asked of it is a class."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def stand_in(name, **members):
    made = Standing(name)
    made.__path__ = []
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    vars(made).update(members)
    sys.modules[name] = made


class Nothing:
    @classmethod
    def from_pretrained(cls, *_, **__):
        return None


stand_in("torch", is_tensor=lambda _: False)
stand_in("torch.cuda")
stand_in("ray")
stand_in("PIL")
stand_in("transformers", AutoTokenizer=Nothing, AutoProcessor=Nothing)
stand_in("sglang")
stand_in("sglang.srt")
stand_in("sglang.srt.server_args", ServerArgs=ServerArgs)
stand_in("sglang.srt.utils", kill_process_tree=None)
stand_in("slime.utils.accelerator", resolve_visible_device_id=lambda i: i)
stand_in("slime.rollout.rm_hub", async_rm=None, batched_async_rm=None)
stand_in("slime.utils.data")
sys.path.insert(0, sys.argv[3])
import slime.utils  # noqa: E402

slime.utils.accelerator = sys.modules["slime.utils.accelerator"]
from slime.backends.sglang_utils.external import apply_external_engine_info_to_args  # noqa: E402
from slime.backends.sglang_utils.server_control import abort_server_until_idle  # noqa: E402
from slime.backends.sglang_utils.sglang_engine import SGLangEngine  # noqa: E402
from slime.rollout import sglang_rollout  # noqa: E402
from slime.utils import http_utils  # noqa: E402
from slime.utils.types import Sample  # noqa: E402

PROMPTS = ("The river runs", "In the morning", "The old")
SAMPLES, TOKENS, SEED, STEPS = 4, 24, 11, 5


def settings(server, model):
    """What slime's command line would have set, of what this code reads."""
    return types.SimpleNamespace(
        hf_checkpoint=model, rollout_external_engine_addrs=["%s:%d" % (server.host, server.port)], rollout_external=True,
        sglang_router_ip=server.host, sglang_router_port=server.port, sglang_server_concurrency=16, sglang_dp_size=1,
        sglang_pp_size=1, sglang_ep_size=1, num_gpus_per_node=1, rollout_num_gpus_per_engine=1, colocate=False,
        debug_rollout_only=True, offload_rollout=False, fp16=False, seed=1, use_distributed_post=False,
        rollout_temperature=1.0, rollout_top_p=1.0, rollout_top_k=-1, rollout_max_response_len=TOKENS, rollout_stop=None,
        rollout_stop_token_ids=None, rollout_skip_special_tokens=False, n_samples_per_prompt=SAMPLES, rollout_seed=SEED,
        sglang_enable_deterministic_inference=True, use_rollout_routing_replay=False, ci_test=False, group_rm=False,
        partial_rollout=False, mask_offpolicy_in_partial_rollout=False, custom_generate_function_path=None,
        sglang_speculative_algorithm=None, use_opd=False, router_policy=None)


def connect(args):
    """An engine of slime's, as its external start makes one, but for the router: the server is asked directly."""
    apply_external_engine_info_to_args(args)
    info, = args.rollout_external_engine_infos
    own = types.SimpleNamespace(**vars(args))
    own.sglang_router_ip = own.sglang_router_port = None
    engine = SGLangEngine(own, rank=0, worker_type=info["worker_type"], base_gpu_id=0,
                          num_gpus_per_engine=info["num_gpus"])
    engine.init(dist_init_addr="%s:%d" % (info["host"], info["port"]), port=info["port"], nccl_port=None,
                host=info["host"])
    assert engine.health_generate()
    return engine


def update(engine, directory, version):
    """As slime's RayTrainGroup does it behind each step."""
    engine.pause_generation()
    engine.flush_cache()
    engine.update_weights_from_disk(directory, weight_version=str(version))
    engine.continue_generation()
    assert engine.get_weight_version() == str(version)


async def roll_out(args, prompts):
    """Groups of samples by slime's generate(), each with its sampling seed."""
    state = sglang_rollout.GenerateState(args)
    waiting, samples = [], []
    for i, ids in enumerate(prompts):
        for k in range(SAMPLES):
            sample = Sample(group_index=i, index=i * SAMPLES + k, prompt="", tokens=list(ids))
            params = dict(state.sampling_params, sampling_seed=state.group_sampling_seeds[k])
            samples.append(sample)
            waiting.append(sglang_rollout.generate(args, sample, params))
    await asyncio.gather(*waiting)
    return samples


async def main(program, source, folder):
    model = os.path.join(source, "models", "tiny-text")
    server = Server(program, model)
    args = settings(server, model)
    engine = connect(args)
    http_utils.init_http_client(args)
    print("ok: server_info, health_generate, get_weight_version")
    prompts = [r["prompt_ids"] for r in generate(program, model, [{"prompt": p} for p in PROMPTS], "--max-tokens", "1")]
    n_differing = n = 0
    for step in range(1, STEPS + 1):
        weights = other_weights(model, os.path.join(folder, "weight_v%06d" % step), 1 + step / 8)
        update(engine, weights, step)
        samples = await roll_out(args, prompts)
        scored = score(program, weights, [sample.tokens for sample in samples])
        for sample, scores in zip(samples, scored):
            own = scores[-sample.response_length :]
            assert sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED), sample.status
            assert str(sample.weight_versions[-1]) == str(step), sample.weight_versions
            n += len(own)
            n_differing += sum(a != b for a, b in zip(sample.rollout_log_probs, own))
        assert n_differing == 0, (step, n_differing)
        record = generate(program, weights, [{"prompt": PROMPTS[0]}], "--seed", str(SEED), "--max-tokens", str(TOKENS))[0]
        assert samples[0].tokens == record["prompt_ids"] + record["completion_ids"]
        print("ok: step %d: %d samples, rollout and rescoring have the same log-probabilities" % (step, len(samples)))
    await abort_server_until_idle(server.url)
    await http_utils._http_client.aclose()
    server.is_idle()
    server.stop()
    print("slime: %d steps, %d tokens, %d differ" % (STEPS, n, n_differing))


with tempfile.TemporaryDirectory() as scratch:
    asyncio.run(main(*sys.argv[1:3], scratch))
