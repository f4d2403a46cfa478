"""verl's own replica, registries, load balancer and client with `lockstep.verl`, and weights that change at every step, sent as
verl sends them: the rollouts have the log-probabilities that `lockstep score`, the training forward, gives the same tokens.

Usage: verl_rollout.py PROGRAM SOURCE_DIR   (pip install verl ray torch safetensors; without them the script says so and
ends with 77). Replica, worker group, client and load balancer of verl run unmodified in a Ray of this machine, which is told
that it has a GPU; nothing uses one. Weights are given to the adapter here, not to the worker's checkpoint engine."""

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
import types

for needed in ("verl", "ray", "torch", "safetensors", "aiohttp"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
PROGRAM, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path[:0] = [os.path.join(SOURCE, "python"), os.path.join(SOURCE, "tests", "serve")]
os.environ.update(VERL_USE_EXTERNAL_MODULES="lockstep.verl", PYTHONPATH=sys.path[0], RAY_USAGE_STATS_ENABLED="0",
                  TOKENIZERS_PARALLELISM="false")

import ray  # noqa: E402
import verl  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from serving import score  # noqa: E402
from verl.workers.config import HFModelConfig, RolloutConfig  # noqa: E402
from verl.workers.rollout.base import get_rollout_class  # noqa: E402
from verl.workers.rollout.llm_server import GlobalRequestLoadBalancer, LLMServerClient  # noqa: E402
from verl.workers.rollout.replica import TokenOutput, get_rollout_replica_class  # noqa: E402

MODEL = os.path.join(SOURCE, "models", "tiny-text")
STEPS, SAMPLES, TOKENS = 5, 8, 24
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


class Worker:
    """In the place of a worker of verl."""


def configuration(**more):
    own = {"program": PROGRAM, "threads": 1}
    settings = dict(name="lockstep", mode="async", tensor_model_parallel_size=1, free_cache_engine=False, dtype="float32",
                    prompt_length=64, response_length=TOKENS, max_num_seqs=16, engine_kwargs={"lockstep": own})
    return RolloutConfig(**dict(settings, **more))


def changed(tensors, step):
    """What a trainer would have after `step` updates."""
    return {name: t * (1 + step / 8) if name == "model.final_layernorm.weight" else t for name, t in tensors.items()}


def directory_of(tensors, folder, step):
    """The same weights as a model on disk, for the rescoring."""
    path = os.path.join(folder, "step-%d" % step)
    shutil.copytree(MODEL, path, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file({name: t.contiguous() for name, t in tensors.items()}, os.path.join(path, "model.safetensors"))
    return path


async def refuses(kind, model_config):
    """Settings that would need what is not built are errors that name them."""
    for more, word in (({"tensor_model_parallel_size": 2}, "tensor_model_parallel_size"),
                       ({"free_cache_engine": True}, "free_cache_engine"), ({"dtype": "float16"}, "float16")):
        replica = kind(9, configuration(**more), model_config, gpus_per_node=8)
        replica.workers = [ray.remote(Worker).remote()]
        try:
            await replica.launch_servers()
            raise AssertionError("taken: %s" % more)
        except Exception as error:
            assert word in str(error), (more, error)


async def main(folder):
    model_config = HFModelConfig(path=MODEL)
    kind = get_rollout_replica_class("lockstep")
    await refuses(kind, model_config)
    replica = kind(0, configuration(), model_config, gpus_per_node=1)
    await replica.init_standalone()
    print("ok: a standalone replica with its worker")
    adapter = get_rollout_class("lockstep", "async")(config=configuration(), model_config=model_config, device_mesh=None,
                                                     replica_rank=0)
    balancer = ray.remote(GlobalRequestLoadBalancer).remote({replica.server_address: replica.server_handle})
    whole = types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(rollout=replica.config))
    client = LLMServerClient(whole, balancer)
    tensors = load_file(os.path.join(MODEL, "model.safetensors"))
    prompts = [[1, 289, 355, 342, 393, 87, 385], [1, 82], [1, 300, 12, 7]]
    n = n_differing = 0
    for step in range(1, STEPS + 1):
        now = changed(tensors, step)
        await replica.abort_all_requests()
        await adapter.update_weights(iter(now.items()), global_steps=step)
        await replica.clear_kv_cache()
        await replica.resume_generation()
        outputs = await asyncio.gather(*(client.generate("%d/%d" % (i, k), prompt_ids=list(ids),
                                                         sampling_params=dict(PARAMS, seed=100 * step + k))
                                         for i, ids in enumerate(prompts) for k in range(SAMPLES)))
        asked = [ids for ids in prompts for _ in range(SAMPLES)]
        scores = score(PROGRAM, directory_of(now, folder, step), [a + o.token_ids for a, o in zip(asked, outputs)])
        for output, scored in zip(outputs, scores):
            assert isinstance(output, TokenOutput) and output.stop_reason == "completed", output
            assert output.extra_fields["global_steps"] == step, output
            assert set(output.extra_fields["weights"]) == {step}, output
            n += len(output.token_ids)
            n_differing += sum(a != b for a, b in zip(output.log_probs, scored[-len(output.token_ids) :]))
        assert n_differing == 0, (step, n_differing)
        print("ok: step %d: %d samples, rollout and rescoring have the same log-probabilities" % (step, len(outputs)))
    await replica.abort_all_requests(reject_request=True)
    output = await client.generate("late", prompt_ids=prompts[0], sampling_params=dict(PARAMS))
    assert output.stop_reason == "aborted" and output.token_ids == [], output
    await replica.resume_generation()
    await replica.sleep()
    await replica.wake_up()
    output = await client.generate("after", prompt_ids=prompts[0], sampling_params=dict(PARAMS, temperature=0.0))
    assert len(output.token_ids) == TOKENS or output.token_ids, output
    print("ok: aborted while it rejects, and on again")
    await replica.server_handle.stop.remote()
    print("verl %s: %d steps, %d tokens, %d differ" % (verl.__version__, STEPS, n, n_differing))


ray.init(num_cpus=8, num_gpus=1, include_dashboard=False, log_to_driver=False)
try:
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(scratch))
finally:
    ray.shutdown()
