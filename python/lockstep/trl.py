"""TRL's trainers with rollouts from `lockstep serve` and log-probabilities of a patched model: mismatch exactly zero.

TRL stays as it is installed. lockstep.trl.attach gives one trainer three things: the arithmetic of lockstep.patch, an
object in the place of its VLLMGeneration that brings weights by way of a directory, and use_vllm = True, with which TRL
measures and corrects the difference between sampling and training by itself."""

import os
import shutil
import tempfile
import warnings

import requests
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from ._abi import LockstepError
from ._embed import write_changes
from .patching import patch


class Client(VLLMClient):
    """TRL's client of a server, where vllm itself is not installed."""

    def __init__(self, url, seconds=60.0):
        self.session, self.base_url, self._updating_weights = requests.Session(), url.rstrip("/"), False
        self.check_server(seconds)
        self.model = self._get(f"{self.base_url}/v1/models")["data"][0]["id"]

    def numerics(self):
        """What the server computes with and tells log-probabilities of: ("exact/2/f32", "raw")."""
        reply = self._post(f"{self.base_url}/v1/completions", json={
            "model": self.model, "prompt": [1], "max_tokens": 1, "seed": 1, "lockstep": True})
        told = reply["choices"][0]["lockstep"]
        return told["numerics"], told["logprob_of"]

    def update_from_directory(self, directory):
        with self.weight_update():
            self._post(f"{self.base_url}/update_weights", json={"update_info": {"weight_dir": directory}})

    def update_from_changes(self, directory):
        """What the server says where it has other weights than these changes begin with; "": it serves what they make."""
        with self.weight_update():
            reply = self.session.post(f"{self.base_url}/update_weights", json={"update_info": {"weight_dir": directory}})
        if reply.status_code not in (200, 409):
            raise LockstepError(f"/update_weights: {reply.status_code}: {reply.text}", "io")
        return "" if reply.status_code == 200 else reply.json()["error"]["message"]


def _stored_buffers(model):
    """What a checkpoint has beside parameters, such as Nemotron-H's corrections of the router's choice."""
    return {f"{prefix}.{name}".lstrip("."): buffer.detach().cpu() for prefix, module in model.named_modules()
            for name, buffer in module.named_buffers(recurse=False) if name not in module._non_persistent_buffers_set}


class Generation(VLLMGeneration):
    """Rollouts of a server, whose weights come from a directory that is written and read for each update.

    push "changed": whole weights are written to a directory of this machine, and the server gets what changed since the
    last ones."""

    def __init__(self, url, directory, push, **options):
        self._url, self._directory, self.version = url, directory, 0
        self._own = tempfile.TemporaryDirectory(prefix="lockstep-trl-own-") if push == "changed" else None
        self._base = self._sent = None  # with "changed": the last weights, of this machine and as the server sees them
        self.pushed = []  # bytes of each directory that the server was given
        super().__init__(mode="server", server_base_url=url, **options)

    def _init_vllm(self):
        if self.accelerator.is_main_process:
            self.vllm_client = Client(self._url)
        self.accelerator.wait_for_everyone()

    def sync_weights(self):
        state = {}
        for name, parameter in self._iter_named_params():  # gathers, so every process takes part
            if self.accelerator.is_main_process:
                state[name] = parameter.detach().cpu().clone()
        if self.accelerator.is_main_process:
            self._send(state)

    def _send(self, state):
        model = self.accelerator.unwrap_model(self.model)
        whole = os.path.join(self._own.name if self._own else self._directory, f"weights-{self.version:08d}")
        model.save_pretrained(whole, state_dict={**_stored_buffers(model), **state})
        if self._own is None:
            self._push(whole, self.vllm_client.update_from_directory)
        else:
            self._send_changed(whole)
        self.version += 1

    def _send_changed(self, whole):
        """Whole weights stay where the server reads them until it has taken changes upon them."""
        changes = os.path.join(self._directory, f"changes-{self.version:08d}")
        refusal = None
        if self._base is not None and write_changes(self._base, whole, changes) > 0:
            refusal = self._push(changes, self.vllm_client.update_from_changes)
            if refusal:
                warnings.warn(f"{refusal}; it gets whole weights", stacklevel=2)
        shutil.rmtree(changes, ignore_errors=True)
        before, self._sent = self._sent, None
        if refusal != "":
            self._sent = shutil.copytree(whole, os.path.join(self._directory, os.path.basename(whole)))
            self._push(self._sent, self.vllm_client.update_from_directory, stays=True)
        for old in (before, self._base):
            if old is not None:
                shutil.rmtree(old, ignore_errors=True)
        self._base = whole

    def _push(self, directory, update, stays=False):
        try:
            self.pushed.append(sum(entry.stat().st_size for entry in os.scandir(directory)))
            return update(directory)
        finally:
            if not stays:
                shutil.rmtree(directory, ignore_errors=True)


def _check_server(told, logprob_of, trainer, profile, activations):
    wanted = (profile, "bf16" if activations == "bfloat16" else "f32")
    if (told.split("/")[0], told.split("/")[-1]) != wanted:
        raise LockstepError(f"attach: the server computes {told}, the model {wanted[0]} with activations of "
                            f"{wanted[1]}")
    if trainer.temperature != 1.0 and logprob_of != "processed":
        raise LockstepError(f"attach: at temperature {trainer.temperature} the server needs --logprobs processed")
    whole = {"top_k": (0, -1, None), "top_p": (1.0,), "min_p": (0.0, None), "repetition_penalty": (1.0,)}
    for name, off in whole.items():
        if getattr(trainer, name) not in off:
            raise LockstepError(f"attach: {name} {getattr(trainer, name)}: rollouts of a part of the distribution have "
                                "other log-probabilities than a trainer gives them")


def attach(trainer, url, directory=None, profile="exact", patched=True, generation_kwargs=None, push="whole"):
    """Gives a GRPOTrainer (made with use_vllm=False) the rollouts of the server at `url`; returns the trainer.

    directory  a place that trainer and server both see, for weights on their way; None: a new one below the system's
               temporary directory
    profile    of the model, as in lockstep.patch; the server must compute with the same one, and is asked
    patched    False leaves the model as it is: for comparison
    push       "changed" sends the elements that changed since the last weights (docs/reference/changes.md), and whole
               weights where the server says that it has others, with a warning; the machine's temporary directory then
               holds the weights twice. "whole" always sends all of them

    Before each generation TRL sends the weights of the step, draws, computes the model's own log-probabilities of what
    was drawn and logs sampling/sampling_logp_difference. Temperature other than 1 needs `serve --logprobs
    processed`."""
    if push not in ("whole", "changed"):
        raise LockstepError(f"attach: push is {push!r}; it is 'whole' or 'changed'")
    directory = directory or tempfile.mkdtemp(prefix="lockstep-trl-")
    generation = Generation(
        url, directory, push, model=trainer.model, accelerator=trainer.accelerator, processing_class=trainer.processing_class,
        repetition_penalty=trainer.repetition_penalty, temperature=trainer.temperature, top_p=trainer.top_p,
        top_k=trainer.top_k, min_p=trainer.min_p, max_completion_length=trainer.max_completion_length, logprobs=0,
        generation_kwargs=generation_kwargs)
    if trainer.accelerator.is_main_process:
        _check_server(*generation.vllm_client.numerics(), trainer, profile,
                      "bfloat16" if profile == "mma16" else "float32")
    for model in (trainer.model, trainer.ref_model) if patched else ():
        if model is not None:
            patch(model, profile=profile, temperature=trainer.temperature)
    trainer.vllm_generation, trainer.use_vllm, trainer.vllm_mode = generation, True, "server"
    trainer._last_loaded_step = -1
    return trainer
