"""The records of a run (docs/reference/runs.md) as a run of Weights & Biases, offline unless told otherwise.

    python3 examples/wandb_export.py RUN [--project NAME] [--online] [--dir DIR]

needs `pip install wandb`. Reads metrics.jsonl, and of run.sqlite the configuration of the newest start, so it can be used while
the run goes on and after. Offline nothing is sent: what is written lies below DIR/wandb, and `wandb sync` sends it later.
"""

import argparse
import json
import os
import sqlite3

import wandb


def configuration(run):
    database = sqlite3.connect(f"file:{os.path.join(run, 'run.sqlite')}?mode=ro", uri=True)
    try:
        row = database.execute("SELECT config FROM runs ORDER BY id DESC LIMIT 1").fetchone()
    finally:
        database.close()
    return json.loads(row[0]) if row and row[0] else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("run", help="directory of the run")
    parser.add_argument("--project", default="lockstep")
    parser.add_argument("--online", action="store_true")
    parser.add_argument("--dir", default=".", help="where the offline run is written")
    o = parser.parse_args()
    name = os.path.basename(os.path.normpath(o.run))
    mode = "online" if o.online else "offline"
    to = wandb.init(project=o.project, name=name, config=configuration(o.run), mode=mode, dir=o.dir)
    steps = 0
    with open(os.path.join(o.run, "metrics.jsonl")) as file:
        for line in file:
            measures = json.loads(line)
            step = measures.pop("step")
            to.log({key: value for key, value in measures.items() if value is not None}, step=step)
            steps += 1
    to.finish()
    print(f"{steps} steps written")


if __name__ == "__main__":
    main()
