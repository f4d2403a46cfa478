"""lockstep.ray on two local nodes of Ray, one of them killed in step 7: the run ends with the digest of an undisturbed
one. With two ranks of the trainer, where the killed node has rank 0; and with two rollout servers, where it has one. Both
once more with lag=1, whose older weights lie beside the checkpoints; that several ranks have no servers then is said.

Usage: ray_train.py PROGRAM SOURCE_DIR   (pip install ray; without it the script says so and ends with 77)"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time

if importlib.util.find_spec("ray") is None:
    print("skipped: the package ray is not installed")
    sys.exit(77)
PROGRAM, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path.insert(0, os.path.join(SOURCE, "python"))
os.environ["PYTHONPATH"] = sys.path[0]  # of the nodes that are started below
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import lockstep.ray  # noqa: E402

SETTINGS = {"model": os.path.join(SOURCE, "models", "tiny-sort"), "task": "sort-digits",
            "task_options": "count=4,reward=ratio", "steps": 10, "prompts": 32, "samples": 8, "max_tokens": 8, "length": 40,
            "rate": 3e-4, "leaf": 16, "threads": 1, "save_every": 2, "timeout": 60}
SERVER = ["--max-length", "40", "--threads", "1"]
KILLED_IN = 7


def undisturbed(folder, lag):
    """The digest of one process, without Ray."""
    command = [PROGRAM, "train", "grpo"]
    for key, value in dict(SETTINGS, run=os.path.join(folder, "alone-%d" % lag), lag=lag).items():
        command += ["--set", "%s=%s" % (key, value)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()
    return re.search(r"^digest ([0-9a-f]{16})$", said, re.M).group(1)


def disturbed(folder, name, lag, wanted, victim, **options):
    """A cluster of two nodes beside the driver's, of which the victim's dies in step 7: not between two steps, as its
    processes are killed with it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=4, include_dashboard=False) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    killed = []

    def kill(run, step):
        if step != KILLED_IN - 1 or killed:  # step 7 runs now
            return
        node, = [n for n in nodes if n.node_id == run.nodes[victim]]
        assert len(set(run.nodes)) == 2, "all actors on one node: %s" % run.nodes
        killed.append(node.node_id)
        cluster.remove_node(node, allow_graceful=False)

    result = lockstep.ray.train(dict(SETTINGS, run=os.path.join(folder, name), lag=lag), program=PROGRAM, poll_s=0.02,
                                on_step=kill, **options)
    until = time.monotonic() + 60
    while sum(n["Alive"] for n in ray.nodes()) > 2 and time.monotonic() < until:  # it takes Ray a while to say so
        time.sleep(0.2)
    alive = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
    ray.shutdown()
    cluster.shutdown()
    assert len(alive) == 2 and killed and killed[0] not in alive and result.restarts >= 1, (killed, alive, result)
    # Behind step 4 or 6, or the last one that the processes that were left came to: on a busy machine Ray kills late.
    assert re.search(r"^going on behind step [4-9] ", result.text, re.M), result.text
    print("%s: node killed in step %d, %d restart, %s" % (name, KILLED_IN, result.restarts,
                                                          re.search(r"going on behind step \d+", result.text).group(0)))
    assert result.digest == wanted, (result.digest, wanted)
    print("%s: digest %s, as without Ray" % (name, result.digest))


def refused(folder):
    """Servers of several ranks, with a lag."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        lockstep.ray.train(dict(SETTINGS, run=os.path.join(folder, "refused"), lag=1), program=PROGRAM, ranks=2, servers=1,
                           server_options=SERVER, strategy="PACK")
    except lockstep.LockstepError as error:
        assert "lag: 1 with rollout_url of several ranks" in str(error), error
        print("two ranks and a server, lag=1: %s" % str(error).split(": ", 2)[2])
    else:
        raise AssertionError("lag=1 with servers of two ranks was taken")
    finally:
        ray.shutdown()


def main():
    with tempfile.TemporaryDirectory() as folder:
        for lag in 0, 1:
            wanted, of = undisturbed(folder, lag), ", lag=1" if lag else ""
            print("one process%s: digest %s" % (of, wanted))
            disturbed(folder, "two ranks" + of, lag, wanted, 0, ranks=2)
            disturbed(folder, "two servers" + of, lag, wanted, 2, ranks=1, servers=2, strategy="SPREAD", server_options=SERVER)
        refused(folder)
        print("ray %s: as it should be" % ray.__version__)


main()
