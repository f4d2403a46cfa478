"""The line protocol of environments (docs/guide/environments.md): one JSON object a line in, one out."""

import json
import sys
import traceback


def serve(reset, step):
    """reset(split, index) gives a prompt. step(item, turns, ended) gives a dict with observation, reward, done.

    An item is what Lockstep sent; turns its list of turns; ended says that no further turn will come. What these
    functions raise fails one episode, not the run.
    """
    for line in sys.stdin:
        item = json.loads(line)
        try:
            if item["op"] == "reset":
                answer = {"prompt": reset(item["split"], item["index"])}
            else:
                answer = step(item, item["turns"], item["op"] == "end")
        except Exception as error:  # one bad episode is not the end of the others
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"id": item["id"], **answer}), flush=True)
