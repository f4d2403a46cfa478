"""GRPO runs over the machines of a Ray cluster: trainer ranks and rollout servers as actors, restarted from the last
checkpoint when one of them, or its machine, dies. pip install lockstep[ray]

    import ray, lockstep.ray
    ray.init(address="auto")
    result = lockstep.ray.train({"model": "/shared/model", "run": "/shared/run", "steps": 100}, ranks=2)
    result.digest

An actor holds one process of the program `lockstep` and nothing else, so a run computes what the same processes would
without Ray, and its digest is that of one process. Model, data and run directory must lie under the same path on every
machine; so must the program."""

import codecs
import ctypes
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ._abi import LockstepError

_DIFFERS, _STOPPED = 3, 4  # exit codes of `lockstep train`
_STEP = re.compile(r"^step (\d+)/", re.M)
_DIGEST = re.compile(r"^digest ([0-9a-f]{16})$", re.M)
_LISTENS = re.compile(r"listening on (\S+)")


def _die_with_parent():
    """In the child: SIGKILL when the actor's process is gone, whatever ended it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


class Process:
    """One process of the program, beside the actor that holds it."""

    def __init__(self):
        self._process, self._log = None, tempfile.TemporaryFile()

    def place(self):
        """(id of the node, its address, a port that is free there)"""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port

    def start(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
                                         preexec_fn=_die_with_parent)

    def look(self, since=0):
        """(exit code or None, the bytes it has said from that byte on): only what is new goes over the network."""
        code = self._process.poll()
        size = os.fstat(self._log.fileno()).st_size
        return code, os.pread(self._log.fileno(), max(size - since, 0), since)

    def stop(self, seconds=5.0):
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Heard:
    """What a process has said so far, put together from looks."""

    def __init__(self):
        self.n_bytes, self.text, self._decoder = 0, "", codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, new):
        self.n_bytes += len(new)
        self.text += self._decoder.decode(new)
        return self.text


@dataclasses.dataclass
class Result:
    digest: str    # of the run
    step: int      # steps done
    restarts: int  # how often it was begun again from a checkpoint
    stopped: bool  # a signal ended it, saved
    text: str      # what rank 0 said in the last of its starts


class _Lost(Exception):
    """An actor, its process or its machine is gone; the run may go on from its checkpoint."""


class Run:
    """A run and the actors that hold it. See train()."""

    def __init__(self, settings, ranks=1, servers=0, config=None, program=None, resources=None, server_resources=None,
                 server_options=(), strategy="SPREAD", restarts=3, poll_s=0.2, start_s=120.0, on_step=None):
        self.settings, self.config = dict(settings), config
        for needed in ("run", "model"):
            if needed not in self.settings and (needed == "run" or config is None):
                raise LockstepError(f"train: settings have no '{needed}'")
        for own in ("rank", "ranks", "address", "resume", "rollout_url"):
            if own in self.settings and (own != "rollout_url" or servers):
                raise LockstepError(f"train: '{own}' is for the driver to set")
        if ranks < 1 or servers < 0:
            raise LockstepError(f"train: {ranks} ranks, {servers} servers")
        self.program = program or os.environ.get("LOCKSTEP_PROGRAM") or shutil.which("lockstep")
        if not self.program:
            raise LockstepError("train: the program `lockstep` is not in PATH; give program=..")
        self.n_ranks, self.n_servers, self.server_options = ranks, servers, list(server_options)
        self.resources = dict(resources or {"CPU": 1})
        self.server_resources = dict(server_resources or self.resources)
        self.strategy, self.restarts_max, self.poll_s, self.start_s = strategy, restarts, poll_s, start_s
        self.on_step, self.step, self.restarts, self.text = on_step, 0, 0, ""
        self.ranks, self.servers, self.nodes, self._group = [], [], [], None
        self._heard, self._told = {}, 0  # what actors have said; how far rank 0's text was searched

    # ---- actors ----

    def _place(self):
        """Actors on a placement group: the servers', then the ranks'. self.nodes are theirs, ranks first."""
        wanted = [self.server_resources] * self.n_servers + [self.resources] * self.n_ranks
        self._group = placement_group(wanted, strategy=self.strategy)
        if not self._group.wait(self.start_s):
            raise LockstepError(f"train: the cluster has no room for {len(wanted)} bundles of {self.resources} within "
                                f"{self.start_s:g} s")
        actor = ray.remote(Process)
        made = []
        for i, need in enumerate(wanted):
            rest = {k: v for k, v in need.items() if k not in ("CPU", "GPU")}
            made.append(actor.options(
                num_cpus=need.get("CPU", 0), num_gpus=need.get("GPU", 0), resources=rest, max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, i)).remote())
        self.servers, self.ranks = made[: self.n_servers], made[self.n_servers :]
        self._heard, self._told = {id(actor): Heard() for actor in made}, 0
        return self._all([a.place.remote() for a in self.ranks]), self._all([a.place.remote() for a in self.servers])

    def _all(self, refs):
        try:
            return ray.get(refs, timeout=self.start_s)
        except RayError as error:
            raise _Lost(str(error).strip().splitlines()[0]) from error

    def _start_servers(self, places):
        model = self.settings.get("model")
        if self.n_servers and model is None:
            raise LockstepError("train: servers need settings['model']")
        commands = [[self.program, "serve", "--model", str(model), "--host", ip, "--port", "0", *self.server_options]
                    for _, ip, _ in places]
        self._all([a.start.remote(c) for a, c in zip(self.servers, commands)])
        until = time.monotonic() + self.start_s
        while True:
            seen = self._look(self.servers, "server")
            urls = [found.group(1) for _, said in seen if (found := _LISTENS.search(said))]
            if len(urls) == self.n_servers:
                return ",".join(urls)
            if time.monotonic() > until:
                raise LockstepError(f"train: a server does not listen within {self.start_s:g} s: {seen[-1][1][-500:]}")
            time.sleep(self.poll_s)

    def _start_ranks(self, places, urls):
        more = {"resume": "true"}
        if urls:
            more["rollout_url"] = urls
        if self.n_ranks > 1:
            more.update(ranks=self.n_ranks, address=f"{places[0][1]}:{places[0][2]}")
        commands = []
        for rank in range(self.n_ranks):
            command = [self.program, "train", "grpo"] + (["--config", str(self.config)] if self.config else [])
            own = {"rank": rank} if self.n_ranks > 1 else {}
            for key, value in {**self.settings, **more, **own}.items():
                command += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
            commands.append(command)
        self._all([a.start.remote(c) for a, c in zip(self.ranks, commands)])

    def _look(self, actors, what):
        """(exit code, text) of each; a lost actor, or a server that ended, is an error."""
        heard = [self._heard[id(actor)] for actor in actors]
        new = self._all([actor.look.remote(one.n_bytes) for actor, one in zip(actors, heard)])
        seen = [(code, one.add(said)) for one, (code, said) in zip(heard, new)]
        for i, (code, said) in enumerate(seen):
            if code is not None and what == "server":
                raise _Lost(f"server {i} ended with exit code {code}: {said[-300:].strip()}")
        return seen

    def _release(self):
        for actor in self.ranks + self.servers:
            try:
                ray.get(actor.stop.remote(), timeout=30)
            except RayError:
                pass
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self.ranks, self.servers, self._group = [], [], None

    # ---- the run ----

    def _tell_step(self, said):
        steps = _STEP.findall(said, self._told)
        self._told = said.rfind("\n") + 1  # a line that is not whole yet is searched again
        if steps and int(steps[-1]) != self.step:
            self.step = int(steps[-1])
            if self.on_step is not None:
                self.on_step(self, self.step)

    def _follow(self):
        """Until all ranks have ended by themselves; their exit codes."""
        while True:
            self._look(self.servers, "server")
            seen = self._look(self.ranks, "rank")
            self.text = seen[0][1]
            self._tell_step(self.text)
            codes = [code for code, _ in seen]
            lost = [r for r, code in enumerate(codes) if code not in (None, 0, _DIFFERS, _STOPPED)]
            if lost:
                time.sleep(self.poll_s)  # the others say why they end
                said = self._look(self.ranks, "rank")[lost[0]][1].strip().splitlines()
                raise _Lost(f"rank {lost[0]} ended with exit code {codes[lost[0]]}: {said[-1] if said else ''}")
            if None not in codes:
                return codes
            time.sleep(self.poll_s)

    def _attempt(self):
        try:
            ranks, servers = self._place()
            self.nodes = [place[0] for place in ranks + servers]
            self._start_ranks(ranks, self._start_servers(servers))
            return self._follow()
        finally:
            self._release()

    def __call__(self):
        while True:
            try:
                codes = self._attempt()
                break
            except _Lost as lost:
                has_begun = self.step > 0 or self.restarts > 0
                if not has_begun or self.restarts == self.restarts_max:
                    raise LockstepError(f"train: {lost}") from None
                self.restarts += 1
                time.sleep(min(10.0, 0.5 * 2 ** self.restarts))  # what is left of the lost processes ends
        if _DIFFERS in codes:
            raise LockstepError(f"train: rollout and trainer differ: {self.text[-2000:]}")
        found = _DIGEST.search(self.text)
        if found is None:
            raise LockstepError(f"train: rank 0 ended without a digest: {self.text[-500:]}")
        return Result(found.group(1), self.step, self.restarts, _STOPPED in codes, self.text)


def train(settings, **options):
    """Runs `lockstep train grpo` on a Ray cluster to its end; ray.init() comes first. Returns a Result.

    settings          its options as a dict, with "run", a directory that every machine sees; those of --set
    config            a configuration file, behind the settings
    ranks             processes of the trainer, which share each step (docs/guide/scaling.md)
    servers           rollout servers (`lockstep serve`) in the engine's place; 0: the ranks draw for themselves. With a
                      lag they are of one rank
    resources         of a rank, as {"CPU": 1} (the default) or {"CPU": 4, "GPU": 1}; server_resources: of a server
    server_options    of `lockstep serve`, as a list
    strategy          of the placement group: SPREAD over the machines, or another of Ray's
    program           path of `lockstep` on the machines; else LOCKSTEP_PROGRAM, else what PATH has
    restarts          how often a run that has begun is begun again from its newest checkpoint, where a machine, an actor
                      or a process is lost; set save_every so that this costs little
    on_step           called with the Run and the number of the newest step

    A difference between rollout and trainer, which no restart mends, is a LockstepError; so is an error of the very
    start, and one restart too many. All actors are gone when the call returns."""
    return Run(settings, **options)()
