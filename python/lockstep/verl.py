"""verl's rollouts from `lockstep serve`: a replica and the adapter that brings it weights. pip install lockstep[verl], then

    VERL_USE_EXTERNAL_MODULES=lockstep.verl  ..  actor_rollout_ref.rollout.name=lockstep

A replica is one server, so tensor, data and pipeline parallel sizes within it are 1; verl has as many replicas as GPUs.
Its actor stands on the machine of its worker and holds one process of the program. Weights go there through a directory.
Settings of the server stand under actor_rollout_ref.rollout.engine_kwargs.lockstep: `program` (else LOCKSTEP_PROGRAM,
else what PATH has), `weights_dir`, and any other name is an option of `lockstep serve`, as batch or profile.

The server's memory stays its own: free_cache_engine must be False. Log-probabilities are verl's rollout_log_probs, and
extra_fields of every output have their bits, the numerics and the version of the weights behind each token."""

import asyncio
import json
import os
import shutil
import tempfile
import time

import aiohttp
import ray
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from ._abi import LockstepError
from .ray import _LISTENS, Heard, Process

_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float32": "f32", "fp32": "f32", "float": "f32"}
_SHARD_BYTES = 4 << 30
_START_S = 600.0


def _settings(config):
    """engine_kwargs.lockstep of a rollout's configuration: ours, and options of `lockstep serve`."""
    options = dict((config.engine_kwargs or {}).get("lockstep") or {})
    return {name: options.pop(name, None) for name in ("program", "weights_dir")}, options


def _check(config):
    for name in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        if getattr(config, name) != 1:
            raise LockstepError(f"rollout.{name}: {getattr(config, name)}; a server of Lockstep has one device")
    if config.free_cache_engine:
        raise LockstepError("rollout.free_cache_engine: True; the server's memory stays: set it to False")
    if config.dtype not in _DTYPES:
        raise LockstepError(f"rollout.dtype: {config.dtype}; {', '.join(_DTYPES)} are built")
    if config.quantization is not None:
        raise LockstepError(f"rollout.quantization: {config.quantization}; there is none")


class Server:
    """Ray actor of one replica: the process of `lockstep serve`, and what verl asks of it."""

    def __init__(self, config, model_path, environment=None):
        self.config, self.model_path, self.environment = config, model_path, environment or {}
        self.global_steps, self._rejects, self._paused = None, False, False
        self._process, self._url, self._session = Process(), None, None

    # ---- the process ----

    def _command(self):
        own, options = _settings(self.config)
        program = own["program"] or os.environ.get("LOCKSTEP_PROGRAM") or shutil.which("lockstep")
        if not program:
            raise LockstepError("verl: the program `lockstep` is not in PATH; set engine_kwargs.lockstep.program")
        length = self.config.max_model_len or self.config.prompt_length + self.config.response_length
        raw = self.config.logprobs_mode == "raw_logprobs"
        given = {"max-length": length, "dtype": _DTYPES[self.config.dtype], "logprobs": "raw" if raw else "processed",
                 "batch": min(self.config.max_num_seqs, 256), "queue": max(4096, 4 * self.config.max_num_seqs),
                 "seed": self.config.seed}
        given.update((name.replace("_", "-"), value) for name, value in options.items())
        command = [program, "serve", "--model", self.model_path, "--host", ray.util.get_node_ip_address().strip("[]"),
                   "--port", "0"]
        for name, value in given.items():
            command += [f"--{name}", str(value)]
        return command

    async def launch_server(self):
        os.environ.update(self.environment)  # the devices of the worker beside it
        self._process.start(self._command())
        until, heard = time.monotonic() + _START_S, Heard()
        while True:
            code, new = self._process.look(heard.n_bytes)
            said = heard.add(new)
            found = _LISTENS.search(said)
            if found:
                break
            if code is not None or time.monotonic() > until:
                raise LockstepError(f"verl: no server: exit code {code}: {said[-500:].strip()}")
            await asyncio.sleep(0.05)
        self._url = found.group(1)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0),
                                              timeout=aiohttp.ClientTimeout(total=None))

    def get_server_address(self):
        """(host, port)"""
        host, port = self._url.split("//")[1].rsplit(":", 1)
        return host, int(port)

    async def _post(self, path, body=None):
        """The reply's JSON. A full server (429) is asked again; any other refusal is an error with its sentence."""
        while True:
            async with self._session.post(self._url + path, json=body if body is not None else {}) as reply:
                text = await reply.text()
                if reply.status == 200:
                    return json.loads(text)
                if reply.status != 429:
                    raise LockstepError(f"{path}: {reply.status}: {text[:500]}")
            await asyncio.sleep(0.2)

    # ---- rollouts ----

    def _room(self, n_prompt):
        c = self.config
        room = min(c.response_length, c.prompt_length + c.response_length - n_prompt)
        return max(0, room if c.max_model_len is None else min(room, c.max_model_len - n_prompt))

    async def generate(self, prompt_ids, sampling_params, request_id, image_data=None, video_data=None, audio_data=None,
                       mm_processor_kwargs=None, **more):
        if image_data or video_data or audio_data:
            raise LockstepError("verl: images, videos and sounds: there are models of text only")
        if more:
            raise LockstepError(f"verl: generate: {', '.join(more)}: this is not supported")
        if self._rejects:
            return self._output([], [], "abort", None)
        params = dict(sampling_params)
        wants_logprobs = bool(params.pop("logprobs", False))
        given = params.pop("max_tokens", params.pop("max_new_tokens", None))
        params["max_tokens"] = self._room(len(prompt_ids)) if given is None else given
        if params["max_tokens"] < 1:
            return self._output([], [], "length", None)
        reply = await self._post("/inference/v1/generate", {
            "token_ids": list(prompt_ids), "sampling_params": dict(params, logprobs=0), "request_id": str(request_id),
            "lockstep": True})
        choice, = reply["choices"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]] if wants_logprobs else None
        return self._output(choice["token_ids"], logprobs, choice["finish_reason"], choice["lockstep"])

    def _output(self, ids, logprobs, reason, own):
        fields = {"global_steps": self.global_steps}
        if own is not None:
            fields.update((name, own[name]) for name in ("logprob_bits", "numerics", "logprob_of", "weights", "seed"))
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="aborted" if reason == "abort" else "completed",
                           num_preempted=own["preemptions"] if own is not None else None, extra_fields=fields)

    async def abort_all_requests(self, reject_request=False):
        """Ends what runs; what comes waits for resume_generation(), or with reject_request is told to go elsewhere."""
        self._rejects = reject_request
        await self._post("/pause?mode=abort")

    async def resume_generation(self):
        await self._post("/resume")
        self._rejects = False

    # ---- weights and memory ----

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def update_from_directory(self, directory, global_steps=None):
        """Serves the safetensors of a directory that this machine sees; their version."""
        body = {"weight_dir": directory}
        if global_steps is not None:
            body["weight_version"] = int(global_steps)
            self.global_steps = global_steps
        return (await self._post("/update_weights", body))["weight_version"]

    async def clear_kv_cache(self):
        await self._post("/reset_prefix_cache")

    async def _stays(self):
        """Memory stays, which _check() has made sure is wanted."""

    wake_up = sleep = release_kv_cache = resume_kv_cache = _stays

    async def start_profile(self, **_):
        raise LockstepError("verl: profiles of the rollout are not built; lockstep serve has /metrics")

    stop_profile = start_profile

    async def stop(self):
        if self._session is not None:
            await self._session.close()
        self._process.stop()


def _name(replica_rank, is_reward_model=False, suffix=""):
    return f"lockstep_server_{'reward_' if is_reward_model else ''}{replica_rank}{suffix}"


def _whereabouts(_worker):
    """In a worker of verl: its node, and the devices that it sees."""
    names = ("CUDA_VISIBLE_DEVICES",)
    return (ray.get_runtime_context().get_node_id(), {n: os.environ[n] for n in names if n in os.environ})


class Replica(RolloutReplica):
    """verl's replica of one server."""

    async def launch_servers(self):
        _check(self.config)
        node, environment = await self.workers[0].__ray_call__.remote(_whereabouts)
        server = ray.remote(Server).options(
            name=_name(self.replica_rank, self.is_reward_model, self.name_suffix), num_cpus=0,
            max_concurrency=self.max_concurrency,
            scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(self.config, self.model_config.local_path, environment)
        await server.launch_server.remote()
        host, port = await server.get_server_address.remote()
        self.servers.append(server)
        self._server_handle, self._server_address = server, f"{host}:{port}"


class _Shards:
    """Tensors on their way to a directory, in files of some gigabytes, with the index that names them."""

    def __init__(self, directory):
        self._directory, self._tensors, self._bytes, self._map, self._n = directory, {}, 0, {}, 0

    def add(self, name, tensor):
        held = tensor.detach().to("cpu", copy=True).contiguous()  # a buffer of the sender's may be used again
        self._tensors[name] = held
        self._bytes += held.numel() * held.element_size()
        if self._bytes >= _SHARD_BYTES:
            self._write()

    def _write(self):
        from safetensors.torch import save_file

        self._n += 1
        file = f"model-{self._n:05d}.safetensors"
        save_file(self._tensors, os.path.join(self._directory, file))
        self._map.update((name, file) for name in self._tensors)
        self._tensors, self._bytes = {}, 0

    def finish(self):
        if self._tensors:
            self._write()
        if not self._map:
            raise LockstepError("verl: update_weights: there is no tensor")
        with open(os.path.join(self._directory, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": self._map}, file)


async def _each(weights):
    """Items of an iterator of either kind."""
    if hasattr(weights, "__aiter__"):
        async for item in weights:
            yield item
    else:
        for item in weights:
            yield item


class ServerAdapter(BaseRollout):
    """In a worker of verl, beside the server of its replica: brings the weights."""

    def __init__(self, config, model_config, device_mesh=None, replica_rank=-1, **more):
        super().__init__(config, model_config, device_mesh)
        _check(self.config)
        if device_mesh is not None:  # a replica for each process of the trainer
            import torch.distributed

            replica_rank = torch.distributed.get_rank()
        if replica_rank < 0:
            raise LockstepError("verl: neither a device mesh nor a replica_rank is given")
        self.replica_rank, self.is_leader_rank, self._server, self._n = replica_rank, True, None, 0

    def _find_server(self):
        if self._server is None:  # it is launched after this object is made
            self._server = ray.get_actor(_name(self.replica_rank))
        return self._server

    async def resume(self, tags):
        """Nothing was released."""

    async def release(self):
        """Memory stays, which the configuration says is wanted."""

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **more):
        """Writes (name, tensor) pairs with the names of Hugging Face into a directory and has them served."""
        if wire_format != "named_tensors":
            raise LockstepError(f"verl: weights as {wire_format}: whole named tensors are taken")
        server, own = self._find_server(), _settings(self.config)[0]
        directory = tempfile.mkdtemp(prefix=f"lockstep-verl-{self.replica_rank}-", dir=own["weights_dir"])
        try:
            shards = _Shards(directory)
            async for name, tensor in _each(weights):
                shards.add(name, tensor)
            shards.finish()
            version = await server.update_from_directory.remote(directory, global_steps)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return version


RolloutReplicaRegistry.register("lockstep", lambda: Replica)
_ROLLOUT_REGISTRY[("lockstep", "async")] = "lockstep.verl.ServerAdapter"
