"""The settings of docs/guide/clients.md's run with verl, put together by hydra over verl's own configuration files: a
name that verl does not have is an error there.

Usage: verl_keys.py SOURCE_DIR   (pip install verl hydra-core; without them the script says so and ends with 77.) verl
is not imported, so it may be there without what it needs."""

import importlib.util
import os
import shlex
import sys
import warnings

for needed in ("verl", "hydra", "omegaconf"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
warnings.filterwarnings("ignore")

from hydra import compose, initialize_config_dir  # noqa: E402
from hydra.errors import ConfigCompositionException  # noqa: E402


def command_of(guide):
    """The words behind verl.trainer.main_ppo of the guide's block."""
    with open(guide) as file:
        text = file.read()
    block = text[text.index("-m verl.trainer.main_ppo"):]
    return shlex.split(block[:block.index("```")].replace("\\\n", " "))[2:]


def composed(overrides):
    folder = os.path.join(list(importlib.util.find_spec("verl").submodule_search_locations)[0], "trainer", "config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def main():
    overrides = command_of(os.path.join(sys.argv[1], "docs", "guide", "clients.md"))
    config = composed(overrides)
    rollout = config.actor_rollout_ref.rollout
    assert rollout.name == "lockstep" and rollout.engine_kwargs.lockstep.profile == "mma16", rollout
    try:
        composed(overrides + ["actor_rollout_ref.rollout.no_such_name=1"])
    except ConfigCompositionException as error:
        assert "no_such_name" in str(error), error
    else:
        raise AssertionError("a name that verl does not have was taken")
    print("verl has all of the guide's %d names" % len(overrides))


main()
