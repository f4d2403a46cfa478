"""One request to a server of the program, which is ended whatever comes. Usage: serve_once.py LOCKSTEP MODEL"""

import json
import signal
import subprocess
import sys
import threading
import urllib.request

server = subprocess.Popen([sys.argv[1], "serve", "--model", sys.argv[2], "--host", "127.0.0.1", "--port", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
guard = threading.Timer(60, server.kill)  # of a server that says nothing: its output ends then
guard.start()
try:
    url = next((line.split("listening on ")[1].split()[0] for line in server.stdout if "listening on " in line), None)
    assert url is not None, "the server ended without a word of where it listens"
    body = json.dumps({"prompt": "The river", "max_tokens": 4}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        answer = json.load(reply)
    assert answer["usage"]["completion_tokens"] == 4, answer
finally:
    server.send_signal(signal.SIGTERM)
    server.communicate()
    guard.cancel()
assert server.returncode == 0, server.returncode
print("served one request")
