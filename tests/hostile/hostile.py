#!/usr/bin/env python3
"""The program against its surroundings: mutated files for every parser, kills, full disks, few descriptors, signals, bad
judges. Prints one line a part and each finding, last the counts in one line; exit code 1 if there is a finding.

  hostile.py PROGRAM SOURCE [--scale X] [--seed N] [--jobs N] [--only PART]..

Scale 1 is the whole: 10,000 mutations, 200 kills. A part is a number of cases; a case depends on the seed, its part and its
number alone, so that any number of processes (--jobs) runs the same ones. A finding of the mutations is kept in the directory
that is printed.
"""
import argparse
import collections
import http.server
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import mutate

LIMIT_S = 120
findings = []  # of the case that runs


def finding(part, what, detail=""):
    findings.append((part, what))
    print(f"FINDING {part}: {what}\n{detail[:2000]}", flush=True)


class World:
    """What one process works on: a directory of its own, with files of every kind in it."""

    def __init__(self, program, source, directory):
        self.program, self.source, self.dir = program, source, directory
        self.rng = None  # of the case
        self.wholes = {}  # runs that nobody killed
        self.out = os.path.join(self.dir, "out")
        os.makedirs(self.out)
        self.env = dict(os.environ, ASAN_OPTIONS="exitcode=99:allocator_may_return_null=1", UBSAN_OPTIONS="print_stacktrace=1")

    def at(self, *names):
        return os.path.join(self.dir, *names)

    def model(self, name):
        return os.path.join(self.source, name)

    def run(self, args, part, codes=(0, 1, 2, 3, 4), limit=LIMIT_S, **options):
        """Runs to the end; whatever is no ordinary end is a finding. Returns (code, stderr)."""
        process = subprocess.Popen([self.program] + args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   stdin=options.pop("stdin", subprocess.DEVNULL), env=self.env, start_new_session=True, **options)
        try:
            _, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            finding(part, f"no end within {limit} s: {args}")
            return None, b""
        return self.judge(args, part, process.returncode, err, codes), err

    def judge(self, args, part, code, err, codes):
        try:
            text = err.decode("utf-8")
        except UnicodeDecodeError:
            text = err.decode("utf-8", "replace")
            finding(part, f"bytes that are not UTF-8 on standard error: {args}", text)
        if code not in codes:
            finding(part, f"exit code {code}: {args}", text)
        elif "AddressSanitizer" in text or "runtime error:" in text or "LeakSanitizer" in text or "ThreadSanitizer" in text:
            finding(part, f"a sanitizer speaks: {args}", text)
        elif code == 2 and not re.search(r"^lockstep: .", text, re.M):
            finding(part, f"fails without a sentence: {args}", text)
        elif code == 2 and len(text.splitlines()) > 12:
            finding(part, f"{len(text.splitlines())} lines for one failure: {args}", text)
        if os.listdir(self.out):
            finding(part, f"left {os.listdir(self.out)}: {args}")
            for name in os.listdir(self.out):
                os.unlink(os.path.join(self.out, name))
        return code


# ---- seeds: valid files of every kind, made by the program itself ----

def grpo(world, run, *more):
    return ["train", "grpo", "--set", "model=" + world.model("models/tiny-sort"), "--set", "run=" + run, "--set", "task=sort-digits",
            "--set", "task_options=count=2", "--set", "prompts=2", "--set", "samples=2", "--set", "max_tokens=6", "--set", "threads=1",
            "--set", "rate=1e-3", "--set", "leaf=4"] + [x for m in more for x in ("--set", m)]


def sft(world, run, *more):
    return ["train", "sft", "--set", "model=" + world.model("models/tiny-sort"), "--set", "run=" + run, "--set", "data=" + world.at("data.jsonl"),
            "--set", "batch=4", "--set", "threads=1", "--set", "leaf=4"] + [x for m in more for x in ("--set", m)]


def make_seeds(world):
    tiny, sort = world.model("models/tiny-text"), world.model("models/tiny-sort")
    with open(world.at("data.jsonl"), "w") as file:
        for i in range(12):
            file.write(json.dumps({"id": i, "question": f"sort {9 - i % 10} {i % 5}:", "answer": f"so\n#### {i}", "meta": {"k": [i]}}) + "\n")
    with open(world.at("pairs.jsonl"), "w") as file:
        file.write('{"prompt":"sort 1 2:","completion":"1 2"}\n{"prompt_ids":[5,6],"completion_ids":[7]}\n')
    with open(world.at("schema.json"), "w") as file:
        file.write('{"type":"object","properties":{"a":{"type":["string","null"],"pattern":"^x","minLength":1},"b":{"items":{"enum":[1,"2"]},'
                   '"maxItems":3}},"required":["a"],"anyOf":[{"minProperties":1},{"not":{"const":3}}],"additionalProperties":false}')
    with open(world.at("prime.jsonl"), "w") as file:
        file.write('{"schema_version":1,"token_ids":[5,6,7],"loss_mask":[false,true,true],"advantages":[0.5,0.5,null],"rewards":[1.0],'
                   '"inference_logprobs":[0.0,-1.25,null],"trainer_logprobs":[0.0,-1.5,-2.0]}\n')
    with open(world.at("nemo.jsonl"), "w") as file:
        file.write('{"rewards":[1,2],"token_ids":[[1,2],[3,4]],"token_loss_mask":[[1,1],[0,1]],"sample_loss_mask":[1,0],'
                   '"generation_logprobs":[[0,-1],[0,-2]],"prev_logprobs":[[0,-3],[0,-4]]}\n')
    with open(world.at("ids.jsonl"), "w") as file:
        file.write('{"ids":[5,6,7],"id":"x"}\n{"ids":[]}\n')
    with open(world.at("config.json"), "w") as file:
        file.write('{"model":"m","task":"sort-digits","steps":3,"rate":0.001,"seed":"7","advantages":"std","population":false,"engine.batch":8}')
    check = lambda args: world.run(args, "seeds", codes=(0,))
    check(["generate", "--model", tiny, "--prompts", tiny + "/prompts.jsonl", "--max-tokens", "3", "--out", world.at("rollouts.jsonl")])
    check(["score", "--model", tiny, "--rollouts", world.at("rollouts.jsonl"), "--out", world.at("scored.jsonl")])
    check(grpo(world, world.at("grpo"), "steps=2", "save_every=1", "eval_every=1", "eval_n=2"))
    check(sft(world, world.at("sft"), "steps=2"))
    shutil.copytree(sort, world.at("sort"))
    shutil.copytree(tiny, world.at("tiny"))
    shutil.copytree(world.model("tests/fixtures/jamba-sharded"), world.at("sharded"))


def targets(world):
    """(name, file, mutation, arguments that read it)"""
    tiny, sort, newest = world.at("tiny"), world.at("sort"), world.at("grpo/checkpoints/step-00000002")
    m, one = mutate, ["--max-tokens", "1", "--out", os.path.join(world.out, "x"), "--threads", "1"]
    prompts = tiny + "/prompts.jsonl"
    step = ["--set", "reward=number", "--set", "steps=1"]
    index = [n for n in os.listdir(world.at("sharded")) if n.endswith(".index.json")][0]
    return [
        ("config.json", tiny + "/config.json", m.mutate_json, ["inspect", "--model", tiny]),
        ("generation_config", tiny + "/generation_config.json", m.mutate_json, ["inspect", "--model", tiny]),
        ("tokenizer", tiny + "/tokenizer.json", m.mutate_json, ["generate", "--model", tiny, "--prompts", prompts] + one),
        ("safetensors", sort + "/model.safetensors", m.mutate_safetensors, ["inspect", "--model", sort]),
        ("index", world.at("sharded", index), m.mutate_json, ["inspect", "--model", world.at("sharded")]),
        ("prompts", prompts, m.mutate_lines, ["generate", "--model", tiny, "--prompts", prompts] + one),
        ("rollouts", world.at("rollouts.jsonl"), m.mutate_lines, ["score", "--model", tiny, "--rollouts", world.at("rollouts.jsonl"), "--out", os.path.join(world.out, "x")]),
        ("records", world.at("scored.jsonl"), m.mutate_lines, ["compare", world.at("scored.jsonl"), world.at("rollouts.jsonl"), "--json"]),
        ("prime-rl", world.at("prime.jsonl"), m.mutate_lines, ["correct", "--dump", world.at("prime.jsonl"), "--format", "prime-rl", "--correction", "token-mask=0.5:2"]),
        ("nemo-rl", world.at("nemo.jsonl"), m.mutate_lines, ["correct", "--dump", world.at("nemo.jsonl"), "--format", "nemo-rl", "--correction", "veto=1e-4"]),
        ("data", world.at("data.jsonl"), m.mutate_lines, grpo(world, world.at("scratch"), "data=" + world.at("data.jsonl")) + step),
        ("pairs", world.at("pairs.jsonl"), m.mutate_lines, ["train", "sft", "--set", "model=" + sort, "--set", "run=" + world.at("scratch"), "--set", "data=" + world.at("pairs.jsonl"), "--set", "steps=1", "--set", "batch=2", "--set", "threads=1"]),
        ("run config", world.at("config.json"), m.mutate_json, ["train", "grpo", "--config", world.at("config.json"), "--keys"]),
        ("schema", world.at("schema.json"), m.mutate_json, grpo(world, world.at("scratch"), "reward=json", "reward_schema=" + world.at("schema.json"), "steps=1")),
        ("state.json", newest + "/state.json", m.mutate_json, ["train", "resume", world.at("grpo"), "--set", "steps=2"]),
        ("optimizer", newest + "/optimizer.safetensors", m.mutate_safetensors, ["train", "resume", world.at("grpo"), "--set", "steps=2"]),
        ("run.sqlite", world.at("sft/run.sqlite"), m.mutate_sqlite, ["report", world.at("sft"), "--out", os.path.join(world.out, "x")]),
        ("detokenize", world.at("ids.jsonl"), m.mutate_lines, ["detokenize", "--model", tiny]),
    ]


def mutations(world, i):
    list_of = targets(world)
    name, path, change, args = list_of[i % len(list_of)]
    with open(path, "rb") as file:
        original = file.read()
    seed = world.rng.randrange(2**32)
    changed = change(original, random.Random(seed))
    try:
        with open(path, "wb") as file:
            file.write(changed)
        options = {"stdin": open(path, "rb")} if name == "detokenize" else {}
        if os.path.exists(os.path.join(world.out, "x")):
            os.unlink(os.path.join(world.out, "x"))
        code = run_mutated(world, name, args, options)
        if findings:
            kept = world.at(f"finding-{i}")
            with open(kept, "wb") as file:
                file.write(changed)
            print(f"  kept as {kept} (seed {seed})", flush=True)
    finally:
        with open(path, "wb") as file:
            file.write(original)
        shutil.rmtree(world.at("scratch"), ignore_errors=True)
    return {"mutations": 1, f"exit code {code}": 1}


def run_mutated(world, name, args, options):
    output = os.path.join(world.out, "x")
    process = subprocess.Popen([world.program] + args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               stdin=options.get("stdin", subprocess.DEVNULL), env=world.env, start_new_session=True)
    try:
        _, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        finding("mutations", f"{name}: no end within {LIMIT_S} s")
        return None
    if process.returncode in (0, 3) and os.path.exists(output):
        os.unlink(output)
    return world.judge([name] + args, "mutations", process.returncode, err, (0, 1, 2, 3))


# ---- kills ----

def digest_of(err):
    found = re.findall(rb"digest ([0-9a-f]{16})", err)
    return found[-1] if found else None


def state_of(run):
    newest = sorted(os.listdir(os.path.join(run, "checkpoints")))[-1]
    with open(os.path.join(run, "checkpoints", newest, "state.json")) as file:
        state = json.load(file)
    return state["weights"], state["optimizer"], state["step"]


KILLS_A_CASE = 3
KILLED = {"grpo": (grpo, ["steps=10", "save_every=2"]), "sft": (sft, ["steps=24", "save_every=3"])}


def whole(world, name):
    """The end of a run that nobody killed, and its seconds."""
    if name not in world.wholes:
        make, more = KILLED[name]
        start = time.monotonic()
        _, err = world.run(make(world, world.at("whole-" + name), *more), "kills", codes=(0,))
        seconds = time.monotonic() - start
        world.wholes[name] = (digest_of(err), state_of(world.at("whole-" + name))), seconds
    return world.wholes[name]


def kills(world, i):
    name = ("grpo", "sft")[i % 2]
    make, more = KILLED[name]
    want, seconds = whole(world, name)
    run = world.at("killed")
    shutil.rmtree(run, ignore_errors=True)
    for _ in range(KILLS_A_CASE):
        process = subprocess.Popen([world.program] + make(world, run, "resume=true", *more), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=world.env)
        time.sleep(world.rng.uniform(0, 1.2 * seconds))
        process.kill()
        process.wait()
    _, err = world.run(make(world, run, "resume=true", *more), "kills", codes=(0,))
    got = (digest_of(err), state_of(run))
    if got != want and not (name == "sft" and got[1] == want[1]):
        finding("kills", f"{name}: {got}, expected {want}")
    with open(os.path.join(run, "metrics.jsonl")) as file:
        steps = [json.loads(line)["step"] for line in file]
    if steps != sorted(set(steps)) or steps[-1] != want[1][2]:
        finding("kills", f"{name}: steps {steps} are recorded")
    return {"kills": KILLS_A_CASE, f"runs of {name} with the digest of one that nobody killed": int(got == want)}


# ---- limits and signals ----

def writers(world):
    tiny, out = world.at("tiny"), os.path.join(world.out, "x")
    return [["task", "arithmetic", "--n", "3000", "--out", out],
            ["generate", "--model", tiny, "--prompts", tiny + "/prompts.jsonl", "--max-tokens", "2", "--out", out],
            ["report", world.at("sft"), "--out", out],
            grpo(world, world.at("scratch"), "steps=3", "save_every=1")]


def clean(world):
    for name in os.listdir(world.out):
        os.unlink(os.path.join(world.out, name))
    shutil.rmtree(world.at("scratch"), ignore_errors=True)


def run_limited(world, part, args, limit):
    process = subprocess.Popen([world.program] + args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               env=world.env, preexec_fn=limit)
    try:
        _, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        finding(part, f"no end: {args}")
        clean(world)
        return
    if process.returncode == 0 and os.path.exists(os.path.join(world.out, "x")):
        os.unlink(os.path.join(world.out, "x"))
    world.judge(args, part, process.returncode, err, (0, 2))
    clean(world)


def full_disks(world, i):
    to_stdout = [["task", "arithmetic"], ["report", world.at("sft")], ["inspect", "--model", world.at("tiny")]]
    if i < len(to_stdout):
        with open("/dev/full", "wb") as full:
            process = subprocess.run([world.program] + to_stdout[i], stdout=full, stderr=subprocess.PIPE, env=world.env)
        world.judge(to_stdout[i], "full disk", process.returncode, process.stderr, (2,))
    else:
        size = world.rng.choice([0, 1, 100, 4096, 10000, 70000, 300000])
        run_limited(world, "full disk", writers(world)[i % 4], lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    return {"full disks": 1}


def few_descriptors(world, i):
    most = world.rng.randrange(4, 24)
    run_limited(world, "descriptors", writers(world)[i % 4], lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
    return {"few descriptors": 1}


def signals(world, i):
    number = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)[i % 3]
    args = (["task", "arithmetic", "--n", "1000000000", "--out", os.path.join(world.out, "x")] if i % 2 == 0
            else grpo(world, world.at("scratch"), "steps=1000000"))
    process = subprocess.Popen([world.program] + args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=world.env)
    time.sleep(world.rng.uniform(0.05, 0.6))
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        finding("signals", f"signal {number} ends nothing: {args}")
        return {"signals": 1}
    if process.returncode not in (-number, 4):
        finding("signals", f"signal {number}: exit code {process.returncode}: {args}", err.decode("utf-8", "replace"))
    if os.listdir(world.out):
        finding("signals", f"signal {number} left {os.listdir(world.out)}")
    clean(world)
    return {"signals": 1}


# ---- judges ----

JUDGES = {
    "flood": "yes '{\"id\":\"0\",\"reward\":1}'",
    "flood of complaints": "yes complaint >&2 & cat >/dev/null; sleep 100",
    "long line": "head -c 3000000 /dev/zero | tr '\\0' x; sleep 100",
    "trickle": "while read -r l; do i=${l#*\\\"id\\\":\\\"}; i=${i%%\\\"*}; for c in '{\"id\":\"' \"$i\" '\",\"rew' 'ard\":1}'; do printf %s \"$c\"; sleep 0.01; done; echo; done",
    "hang": "sleep 1000",
    "stubborn hang": "trap '' TERM HUP INT; while :; do sleep 1; done",
    "dies": "exit 3",
    "kills itself": "kill -9 $$",
    "kills its group": "kill 0",
    "closes its output": "exec >&-; sleep 100",
    "leaves children": "sleep 1000 & sleep 1000 & exit 0",
    "garbage": "head -c 100000 /dev/urandom; sleep 100",
    "made-up ids": "while read -r l; do echo '{\"id\":\"99999\",\"reward\":1}'; done",
    "not numbers": "while read -r l; do i=${l#*\\\"id\\\":\\\"}; i=${i%%\\\"*}; echo \"{\\\"id\\\":\\\"$i\\\",\\\"reward\\\":NaN}\"; done",
    "beyond float32": "while read -r l; do i=${l#*\\\"id\\\":\\\"}; i=${i%%\\\"*}; echo \"{\\\"id\\\":\\\"$i\\\",\\\"reward\\\":1e300}\"; done",
}


class Server(http.server.BaseHTTPRequestHandler):
    kind = ""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        try:
            self.answer()
        except OSError:
            pass

    def answer(self):
        if self.kind == "hang":
            time.sleep(5)
            return
        if self.kind == "redirect":
            self.send_response(302)
            self.send_header("Location", self.path + "x")
            self.end_headers()
            return
        if self.kind == "redirect to file":
            self.send_response(301)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return
        if self.kind == "close":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.kind == "no http":
            self.wfile.write(b"\x00\xff" * 1000)
            return
        body = {"garbage": os.urandom(5000), "nested": b"[" * 100000, "flood": b"x" * 30000000, "trickle": b'{"reward":1}'}[self.kind]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if self.kind != "flood" else 10**12))
        self.end_headers()
        if self.kind == "trickle":
            for byte in body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.02)
        else:
            self.wfile.write(body)


SERVERS = ("hang", "redirect", "redirect to file", "close", "no http", "garbage", "nested", "flood", "trickle")


def judges(world, i):
    if i < len(JUDGES):
        judge_by_command(world, *list(JUDGES.items())[i])
    else:
        judge_by_server(world, SERVERS[i - len(JUDGES)])
    clean(world)
    return {"judges": 1}


def judge_by_command(world, name, command):
    mark = f"LS_HOSTILE_{os.getpid()}_{time.monotonic_ns()}"
    world.env[mark] = "1"
    world.run(grpo(world, world.at("scratch"), "steps=1", "reward_timeout=0.5", "reward_command=" + command), "judges: " + name, codes=(0, 2), limit=60)
    del world.env[mark]
    time.sleep(0.05)
    left = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid() and mark.encode() in environment(p)]
    if left:
        finding("judges", f"{name}: {len(left)} processes are left")


def judge_by_server(world, kind):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("S", (Server,), {"kind": kind}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/judge"
    world.run(grpo(world, world.at("scratch"), "steps=1", "reward_timeout=1", "reward_url=" + url), "judges: server, " + kind, codes=(0, 2), limit=90)
    server.shutdown()
    server.server_close()


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


class Part:
    def __init__(self, run, whole, least):
        self.run, self.whole, self.least = run, whole, least

    def cases(self, scale):
        return max(self.least, int(self.whole * scale))


# What takes longest goes first.
PARTS = {"judges": Part(judges, 0, len(JUDGES) + len(SERVERS)), "kills": Part(kills, 67, 2), "signals": Part(signals, 120, 6),
         "disks": Part(full_disks, 83, 7), "descriptors": Part(few_descriptors, 60, 4), "mutations": Part(mutations, 10000, 18)}

place = here = None  # what this process is to work on, and its world once it has one


def begin(*where):
    global place
    place = where


def open_world():
    global here
    program, source, directory = place
    here = World(program, source, os.path.join(directory, f"process-{os.getpid()}"))
    make_seeds(here)
    if findings:
        raise RuntimeError("the program fails on sound files")


def run_case(case):
    """(part, counts, number of findings) of a case."""
    seed, name, i = case
    findings.clear()
    if here is None:
        open_world()
    here.rng = random.Random(f"{seed} {name} {i}")
    try:
        counts = PARTS[name].run(here, i)
    except Exception as error:  # a file that should be there is not, or holds something else
        finding(name, f"case {i}: {type(error).__name__}: {error}")
        counts = {}
    return name, counts, len(findings)


def results(o, directory, cases):
    where = (os.path.abspath(o.program), os.path.abspath(o.source), directory)
    if o.jobs == 1:
        begin(*where)
        yield from map(run_case, cases)
    else:
        with multiprocessing.Pool(o.jobs, begin, where) as pool:
            yield from pool.imap_unordered(run_case, cases)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("source")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--only", choices=PARTS, action="append")
    o = parser.parse_args()
    if o.jobs < 1:
        parser.error("--jobs: at least 1")
    directory = tempfile.mkdtemp(prefix="lockstep-hostile-")
    cases = [(o.seed, name, i) for name, part in PARTS.items() if not o.only or name in o.only for i in range(part.cases(o.scale))]
    counts, n_findings = {}, 0
    for name, more, n in results(o, directory, cases):
        counts.setdefault(name, collections.Counter()).update(more)
        n_findings += n
    for name, count in counts.items():
        print(f"{name}: " + ", ".join(f"{n} {what}" for what, n in sorted(count.items(), key=lambda item: -item[1])))
    print("hostile: " + ", ".join(f"{count[what]} {what}" for count in counts.values() for what in list(count)[:1])
          + f", {n_findings} findings")
    if n_findings:
        print(f"files are kept in {directory}")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
