/* Rewards and environments that are Python's: both forms of functions, classes, everything that they can do wrong, and
 * runs that do not depend on how many workers there are or whether one is killed. Needs python3, else it skips. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>

#include "harness.h"
#include "rl/beside.h"
#include "rl/grpo_run.h"
#include "rl/reward_python.h"
#include "run/history.h"

static const char functions[] =
    "import asyncio, os, signal, sys, time\n"
    "def texts(completions):\n"
    "    return [c if isinstance(c, str) else c[0]['content'] for c in completions]\n"
    "def of_group(completions, prompts, answer, **columns):\n"
    "    longest = max(map(len, texts(completions)))\n"
    "    return [len(c) / (longest + 1) + (a in c) for c, a in zip(texts(completions), answer)]\n"
    "def of_one(prompt, completion, answer, level, **fields):\n"
    "    return 10 * level + (completion == answer)\n"
    "async def promised(completion):\n"
    "    await asyncio.sleep(0)\n"
    "    return float(len(completion))\n"
    "def lengths(completion_ids, **kwargs):\n"
    "    return [float(sum(ids)) for ids in completion_ids]\n"
    "def roles(prompts, completions, source):\n"
    "    assert [m['role'] for m in prompts[0]] == ['system', 'user'], prompts\n"
    "    assert completions[0][0]['role'] == 'assistant', completions\n"
    "    return [len(c[0]['content']) + s for c, s in zip(completions, source)]\n"
    "def odd(completion):\n"
    "    print('a word')\n"
    "    if completion == 'raise': raise ValueError('no sum\\nin it')\n"
    "    if completion == 'none': return None\n"
    "    if completion == 'text': return '1'\n"
    "    if completion == 'nan': return float('nan')\n"
    "    if completion == 'huge': return 1e300\n"
    "    if completion == 'exit': sys.exit(3)\n"
    "    if completion == 'die': os._exit(5)\n"
    "    if completion == 'crash': os.kill(os.getpid(), signal.SIGSEGV)\n"
    "    if completion == 'hang': time.sleep(1000)\n"
    "    if completion == 'stop': os.kill(os.getpid(), signal.SIGSTOP)\n"
    "    if completion == 'lies': os.write(1, b'{\"id\":\"1\",\"reward\":77}\\n')\n"
    "    if completion == 'closes': os.close(1)\n"
    "    return 1\n"
    "def odd_group(completions):\n"
    "    return [odd(c) for c in completions]\n"
    "def short(completions): return [1.0]\n"
    "def number(completions): return 1.0\n"
    "def sums(completions): return [float(sum(map(int, completions)))] * len(completions)\n"
    "def needs(completions, solution): return [1.0 for _ in completions]\n"
    "def needs_one(completion, answer, level): return 1.0\n"
    "def neither(text): return 1\n"
    "value = 5\n"
    "def mortal(completions, prompts, **columns):\n"
    "    mark = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'killed')\n"
    "    if not os.path.exists(mark):\n"
    "        open(mark, 'w').close()\n"
    "        os.kill(os.getpid(), signal.SIGKILL)\n"
    "    return of_group(completions, prompts, **columns)\n"
    "def orphaned(completions, prompts, **columns):\n"
    "    mark = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'killed')\n"
    "    if not os.path.exists(mark):\n"
    "        open(mark, 'w').close()\n"
    "        os.kill(os.getppid(), signal.SIGKILL)\n"
    "        time.sleep(1000)\n"
    "    return of_group(completions, prompts, **columns)\n"
    "class World:\n"
    "    kills = False\n"
    "    def reset(self, problem):\n"
    "        self.n, self.seed = 0, problem['seed']\n"
    "        return [{'role': 'user', 'content': 'p' + str(self.seed % 10)}]\n"
    "    def step(self, messages):\n"
    "        self.n += 1\n"
    "        assert len(messages) == 2 * self.n, messages\n"
    "        if self.kills: mortal(['a'], ['b'], answer=['c'])\n"
    "        if self.n == 3: return None, float(len(messages[-1]['content'])), True\n"
    "        return [{'role': 'tool', 'content': str(self.n)}], 0.5, False\n"
    "class Mortal(World):\n"
    "    kills = True\n"
    "class Lacking:\n"
    "    def reset(self, problem): return 'x'\n"
    "class Wrong(World):\n"
    "    def step(self, reply): return 'x'\n"
    "class Odd(World):\n"
    "    def step(self, reply):\n"
    "        odd = ({1}, 1 << 70, float('nan'), '\\ud800', 'x' * 70000, 'fine')[self.seed % 6]\n"
    "        return {'role': 'tool', 'content': odd}, 1.0, odd == 'fine'\n"
    "class Late(World):\n"
    "    def step(self, reply): time.sleep(1000)\n"
    "def one_step(problem, messages, reply):\n"
    "    if not messages: return [{'role': 'user', 'content': 'p' + str(problem['seed'] % 10)}]\n"
    "    n = len(messages) // 2\n"
    "    if n == 3: return [], float(len(reply)), True\n"
    "    return [{'role': 'tool', 'content': str(n)}], 0.5, False\n";

static char script[512];

static void write_file(const char *directory, const char *name, const char *text) {
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state) {
    if (scratch_make(state) != 0) return 1;
    snprintf(script, sizeof script, "%s/functions.py", scratch);
    write_file(scratch, "functions.py", functions);
    write_file(model_dir, "chat_template.jinja",
               "{% for m in messages %}<1>{{ m.role }}:{{ m.content }}<2>{{ '\\n' }}{% endfor %}"
               "{% if add_generation_prompt %}<1>assistant:{% endif %}");
    return 0;
}

static void need_python(void) {
    if (system("python3 -c '' >/dev/null 2>&1") == 0) return; /* NOLINT: a fixed command */
    print_message("skipped: python3 not found\n");
    skip();
}

/* ---- one ask ---- */

typedef struct asked {
    ls_reward *reward;
    ls_reward_item items[16];
    ls_reward_result results[16];
    char names[16][32];
    int64_t n;
} asked;

static ls_status open_function(ls_reward **out, const char *name, bool is_environment, double seconds, ls_error *err) {
    char spec[640];
    const ls_reward_python_options o = {.spec = spec,
                                        .option = is_environment ? "environment" : "reward",
                                        .is_environment = is_environment,
                                        .workers = 3,
                                        .timeout_s = seconds};
    snprintf(spec, sizeof spec, "%s:%s", script, name);
    return ls_reward_python_open(out, &o, err);
}

/* Completions as samples of groups of n_group. */
static void ask_open(asked *a, const char *name, double seconds, const char *const *completions, int64_t n,
                     int64_t n_group, const ls_reward_item *like) {
    ls_error err;
    assert_ok(open_function(&a->reward, name, false, seconds, &err), err);
    assert_true(ls_reward_wants_groups(a->reward));
    a->n = n;
    for (int64_t i = 0; i < n; i++) {
        a->items[i] = *like;
        snprintf(a->names[i], sizeof a->names[i], "q#%lld", (long long)i);
        a->items[i].problem = "q";
        a->items[i].sample = a->names[i];
        if (completions != NULL) a->items[i].completion = (ls_reply){completions[i], (int64_t)strlen(completions[i])};
        a->items[i].group = i / n_group;
        a->items[i].group_n = n_group;
    }
    assert_ok(ls_reward_ask(a->reward, a->results, a->items, n, &err), err);
}

static void ask_close(asked *a) {
    for (int64_t i = 0; i < a->n; i++) free(a->results[i].text);
    ls_reward_close(a->reward);
}

static ls_status is_whole(void *context, int64_t i, ls_error *err) {
    (void)i, (void)err;
    (void)atomic_fetch_add((atomic_int *)context, 1);
    return LS_OK;
}

/* The first group of an ask is no part of the first of another, of which one sample has come. */
static void groups_of_asks_stay_apart(void **state) {
    static const char *const said[] = {"1", "20", "300", "4000"};
    ls_reward_item items[4];
    ls_reward_result results[4];
    atomic_int n_come = 0;
    ls_reward_late late = {.complete = is_whole, .context = &n_come};
    ls_reward *reward;
    beside first, second;
    ls_error err;
    (void)state;
    need_python();
    assert_ok(open_function(&reward, "sums", false, 20, &err), err);
    assert_ok(ls_feed_create(&late.feed, 2, &err), err);
    for (int i = 0; i < 4; i++)
        items[i] = (ls_reward_item){
            .problem = "q", .completion = {said[i], (int64_t)strlen(said[i])}, .group = 0, .group_n = 2};
    ls_feed_begin(late.feed);
    ls_feed_put(late.feed, 0);
    beside_begin(&first, reward, items, results, 2, &late);
    while (atomic_load(&n_come) == 0) usleep(1000);
    beside_begin(&second, reward, items + 2, results + 2, 2, NULL);
    assert_ok(beside_end(&second), second.err);
    ls_feed_put(late.feed, 1);
    ls_feed_end(late.feed);
    assert_ok(beside_end(&first), first.err);
    for (int i = 0; i < 4; i++) assert_true(results[i].ok && results[i].reward == (i < 2 ? 21 : 4300));
    ls_reward_close(reward);
    ls_feed_free(late.feed);
}

static void functions_of_both_forms(void **state) {
    static const char *const words[] = {"a 7", "7", "bcdefg", "x"};
    const ls_reward_item item = {.prompt = {"p", 1}, .answer = "7", .data = "{\"prompt\":\"p\",\"level\":3}"};
    const double of_group[] = {3 / 4.0 + 1, 1 / 4.0 + 1, 6 / 7.0, 1 / 7.0}, of_one[] = {30, 31, 30, 30};
    asked a;
    (void)state;
    need_python();
    ask_open(&a, "of_group", 20, words, 4, 2, &item);
    for (int i = 0; i < 4; i++) assert_true(a.results[i].ok && a.results[i].reward == of_group[i]);
    ask_close(&a);
    ask_open(&a, "of_one", 20, words, 4, 2, &item);
    for (int i = 0; i < 4; i++) assert_true(a.results[i].ok && a.results[i].reward == of_one[i]);
    ask_close(&a);
    ask_open(&a, "promised", 20, words, 4, 4, &item);
    for (int i = 0; i < 4; i++) assert_true(a.results[i].ok && a.results[i].reward == (double)strlen(words[i]));
    ask_close(&a);
}

static void tokens_are_there(void **state) {
    static const char *const words[] = {"a", "b"};
    const int32_t ids[] = {5, 6, 7};
    const ls_reward_item item = {.prompt = {"p", 1}, .completion_ids = ids, .n_completion_ids = 3};
    asked a;
    (void)state;
    need_python();
    ask_open(&a, "lengths", 20, words, 2, 2, &item);
    for (int i = 0; i < 2; i++) assert_true(a.results[i].ok && a.results[i].reward == 18);
    ask_close(&a);
}

/* Conversations come as messages; columns are the line's members. */
static void conversations_are_messages(void **state) {
    const ls_reward_item item = {
        .prompt = {"text", 4},
        .completion = {"ab", 2},
        .data = "{\"messages\":[],\"source\":5}",
        .prompt_messages = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]",
        .completion_messages = "[{\"role\":\"assistant\",\"content\":\"ab\"}]"};
    asked a;
    (void)state;
    need_python();
    ask_open(&a, "roles", 20, NULL, 2, 2, &item);
    for (int i = 0; i < 2; i++) assert_true(a.results[i].ok && a.results[i].reward == 7);
    ask_close(&a);
}

/* The guilty fail, each with its sentence, and the others do not; of a group as of single samples. */
static void what_goes_wrong_is_told(void **state) {
    static const struct {
        const char *completion, *says;
    } cases[] = {
        {"fine", NULL},
        {"raise", "ValueError: no sum in it (functions.py, line "},
        {"none", "the reward is None, expected a number"},
        {"text", "the reward is '1', expected a number"},
        {"nan", "the reward is nan, expected a finite number"},
        {"huge", "reward: 1e+300 is beyond float32"},
        {"exit", "SystemExit: 3"},
        {"die", "the worker ended with status 5"},
        {"crash", "the worker was killed by signal 11"},
        {"hang", "no answer for 3 s (reward_timeout)"},
        {"stop", "no answer for 3 s (reward_timeout)"},
        {"lies", NULL},
        {"closes", NULL},
        {"fine", NULL},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    const char *words[N];
    const ls_reward_item item = {.prompt = {"p", 1}};
    (void)state;
    need_python();
    for (int i = 0; i < N; i++) words[i] = cases[i].completion;
    for (int form = 0; form < 2; form++) {
        asked a;
        ask_open(&a, form == 0 ? "odd" : "odd_group", 3, words, N, N, &item);
        for (int i = 0; i < N; i++) {
            if (a.results[i].ok != (cases[i].says == NULL))
                fail_msg("%s: %s", words[i], a.results[i].ok ? "no failure" : a.results[i].error);
            if (cases[i].says == NULL) assert_true(a.results[i].reward == 1);
            if (cases[i].says != NULL && strstr(a.results[i].error, cases[i].says) == NULL)
                fail_msg("%s: '%s'", words[i], a.results[i].error);
        }
        assert_int_equal(ls_reward_counts_of(a.reward)->failed, 10);
        assert_int_equal(ls_reward_counts_of(a.reward)->restarts, 0); /* the dispatcher has not suffered */
        ask_close(&a);
    }
}

static void words_are_told_with_the_sample(void **state) {
    static const char *const words[] = {"fine", "fine"};
    const ls_reward_item item = {.prompt = {"p", 1}};
    asked a;
    (void)state;
    need_python();
    ask_open(&a, "odd_group", 20, words, 2, 2, &item);
    assert_true(a.results[0].ok && a.results[1].ok);
    assert_string_equal(ls_reward_counts_of(a.reward)->message, "q#0: it printed \"a word a word\" to standard output");
    ask_close(&a);
}

static void groups_of_a_wrong_length_fail(void **state) {
    static const struct {
        const char *name, *says;
    } cases[] = {{"short", "short() returned 1 rewards for 2 completions"},
                 {"number", "number() returned 1.0, expected a list of numbers"},
                 {"needs", "needs() needs 'solution', which the problem does not have"}};
    static const char *const words[] = {"a", "b"};
    const ls_reward_item item = {.prompt = {"p", 1}};
    (void)state;
    need_python();
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        asked a;
        ask_open(&a, cases[k].name, 20, words, 2, 2, &item);
        for (int i = 0; i < 2; i++) assert_string_equal(a.results[i].error, cases[k].says);
        ask_close(&a);
    }
}

static void what_cannot_be_used_is_refused(void **state) {
    static const struct {
        const char *name;
        bool is_environment;
        const char *says;
    } cases[] = {
        {"of_groups", false, "functions.py has no 'of_groups'; did you mean 'of_group'?"},
        {"value", false, "is no function: 5"},
        {"neither", false, "neither(text) has neither a parameter 'completions'"},
        {"Lacking", true, "the class Lacking has no method step"},
        {"value", true, "is neither a class nor a function: 5"},
    };
    ls_reward_python_options o = {.option = "reward", .workers = 1, .timeout_s = 20, .spec = "no_such_module:f"};
    ls_reward *reward;
    ls_error err;
    (void)state;
    need_python();
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        check_failed(open_function(&reward, cases[k].name, cases[k].is_environment, 20, &err), &err, cases[k].says);
        check_failed(LS_ERR_ARG, &err, cases[k].is_environment ? "environment: " : "reward: ");
    }
    check_failed(ls_reward_python_open(&reward, &o, &err), &err,
                 "reward: no_such_module:f: no_such_module cannot be imported: ModuleNotFoundError");
    o.spec = "/nowhere/it's.py:f";
    check_failed(ls_reward_python_open(&reward, &o, &err), &err, "/nowhere/it's.py is no file");
    o.python = "/nowhere/python3";
    check_failed(ls_reward_python_open(&reward, &o, &err), &err, "the command ended with status 127");
    o.workers = 0;
    check_failed(ls_reward_python_open(&reward, &o, &err), &err, "reward_workers: 0 is not in 1..256");
}

/* Whatever a class says is answered: a line that cannot be read would be waited for. */
static void odd_messages_are_answered(void **state) {
    static const char *const says[] = {"the answer is no JSON: Object of type set is not JSON serializable",
                                       "the answer has a whole number of more than 64 bits: 1180591620717411303424",
                                       "the answer is no JSON: Out of range float values are not JSON compliant",
                                       "surrogates not allowed",
                                       "bytes; at most 65000 are taken",
                                       NULL};
    ls_reward *reward;
    ls_error err;
    int n_seen = 0;
    bool seen[6] = {false};
    (void)state;
    need_python();
    assert_ok(open_function(&reward, "Odd", true, 20, &err), err);
    assert_true(ls_reward_wants_resets(reward));
    for (int i = 0; i < 200 && n_seen < 6; i++) {
        char name[40];
        ls_reward_item item = {.op = "step", .problem = name, .episode = name, .turns = "[{\"completion\":\"a\"}]"};
        ls_reward_result result;
        int kind = -1;
        snprintf(name, sizeof name, "environment/train/%d", i);
        assert_ok(ls_reward_ask(reward, &result, &item, 1, &err), err);
        for (int k = 0; k < 6; k++)
            if (says[k] == NULL ? result.ok : strstr(result.error, says[k]) != NULL) kind = k;
        if (kind < 0) fail_msg("'%s'", result.error);
        assert_true(!result.ok || (result.done && result.are_messages && result.reward == 1));
        n_seen += !seen[kind];
        seen[kind] = true;
        free(result.text);
    }
    assert_int_equal(n_seen, 6);
    ls_reward_close(reward);
}

/* ---- runs ---- */

static job python_job(const char *option, const char *name, int64_t workers) {
    job j = job_make("python");
    char text[700];
    snprintf(text, sizeof text, "%s=python:%s:%s", option, script, name);
    job_set(&j, text);
    snprintf(text, sizeof text, "reward_workers=%lld", (long long)workers);
    job_set(&j, text);
    job_set(&j, "steps=3");
    return j;
}

static uint64_t python_digest(const char *option, const char *name, int64_t workers, const char *data) {
    job j = python_job(option, name, workers);
    char text[256];
    uint64_t digest;
    if (strcmp(option, "environment") == 0) job_set(&j, "length=160");
    if (data != NULL) {
        snprintf(text, sizeof text, "data=%s/%s", scratch, data);
        job_set(&j, text);
        job_set(&j, "length=160");
    }
    job_must_run(&j);
    assert_false(j.result.differs);
    digest = j.result.digest;
    remove_tree(j.o->train.run);
    job_free(&j);
    return digest;
}

static bool was_killed(void) {
    char mark[512];
    snprintf(mark, sizeof mark, "%s/killed", scratch);
    return remove(mark) == 0;
}

static void runs_do_not_depend_on_workers(void **state) {
    uint64_t want;
    (void)state;
    need_python();
    want = python_digest("reward", "of_group", 1, NULL);
    assert_true(python_digest("reward", "of_group", 3, NULL) == want);
    assert_true(python_digest("reward", "mortal", 3, NULL) == want);
    assert_true(was_killed());
    assert_true(python_digest("reward", "mortal", 1, NULL) == want);
    assert_true(was_killed());
    assert_true(python_digest("reward", "orphaned", 2, NULL) == want); /* the dispatcher is killed */
    assert_true(was_killed());
}

static void environments_do_not_depend_on_workers(void **state) {
    uint64_t want;
    (void)state;
    need_python();
    want = python_digest("environment", "World", 1, NULL);
    assert_true(python_digest("environment", "World", 3, NULL) == want);
    assert_true(python_digest("environment", "Mortal", 3, NULL) == want);
    assert_true(was_killed());
    assert_true(python_digest("environment", "one_step", 2, NULL) == want);
}

/* With data a class begins every line; None leaves the line its own prompt. */
static void environments_take_data(void **state) {
    uint64_t want;
    (void)state;
    need_python();
    write_file(scratch, "lines.jsonl",
               "{\"id\":1,\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}]}\n"
               "{\"id\":2,\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}\n");
    write_file(scratch, "own.py",
               "from functions import World, one_step\n"
               "class Own(World):\n"
               "    def reset(self, problem):\n"
               "        super().reset(problem)\n"
               "        assert problem['messages'][0]['content'] in 'ab'\n");
    want = python_digest("environment", "one_step", 1, "lines.jsonl"); /* has no beginning of its own */
    snprintf(script, sizeof script, "%s/own.py", scratch);
    assert_true(python_digest("environment", "Own", 3, "lines.jsonl") == want);
    snprintf(script, sizeof script, "%s/functions.py", scratch);
    assert_true(python_digest("environment", "World", 2, "lines.jsonl") != want);
}

static void refuse_run(const char *option, const char *name, const char *more, const char *says) {
    job j = python_job(option, name, 1);
    ls_error err;
    job_set(&j, more);
    check_failed(job_run(&j, &err), &err, says);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* What a function needs and no line has ends the run before anything is drawn; one line that has it is enough. */
static void columns_are_looked_for_first(void **state) {
    char more[600], says[600];
    job j;
    (void)state;
    need_python();
    write_file(scratch, "bare.jsonl", "\n{\"prompt\":\"a\",\"answer\":\"b\"}\n{\"prompt\":\"b\",\"answer\":\"b\"}\n");
    snprintf(more, sizeof more, "data=%s/bare.jsonl", scratch);
    snprintf(says, sizeof says,
             "reward: %s/bare.jsonl: line 2: needs() needs 'solution', which the problem does not have", scratch);
    refuse_run("reward", "needs", more, says);
    refuse_run("reward", "needs_one", more, "line 2: needs_one() needs 'level', which the problem does not have");
    write_file(scratch, "bare.jsonl", "{\"prompt\":\"a\",\"answer\":\"b\"}\n{\"prompt\":\"b\",\"solution\":1}\n");
    j = python_job("reward", "needs", 1);
    job_set(&j, more);
    job_set(&j, "steps=1");
    job_must_run(&j);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* The mean of a measure's name in a run of one step. */
static double measure(const ls_history *h, const char *name) {
    for (int64_t i = 0; i < h->n_names; i++)
        if (strcmp(h->names[i], name) == 0) return h->values[i * h->n_steps];
    fail_msg("no measure %s", name);
    return 0;
}

/* Samples have the weighted sum of what was given, None is nothing, and each function's mean is recorded. */
static void several_rewards_are_added(void **state) {
    ls_history h = {0};
    ls_history_sample *samples;
    char text[700];
    double sum[3] = {0};
    int64_t n, n_half = 0;
    ls_error err;
    job j = python_job("reward", "half", 2);
    (void)state;
    need_python();
    write_file(scratch, "parts.py",
               "def half(completions, prompts, completion_ids, n, **kwargs):\n"
               "    assert n == [7] * len(completions) and len(completion_ids) == len(prompts)\n"
               "    return [None if ord(c[0]) % 2 else 0.25 for c in completions]\n"
               "def size(completion): return len(completion)\n");
    write_file(scratch, "seven.jsonl",
               "{\"prompt\":\"a\",\"answer\":\"x\",\"n\":7}\n{\"prompt\":\"b\",\"answer\":\"x\",\"n\":7}\n");
    snprintf(text, sizeof text, "reward=exact,python:%s/parts.py:half,python:%s/parts.py:size", scratch, scratch);
    job_set(&j, text);
    snprintf(text, sizeof text, "data=%s/seven.jsonl", scratch);
    job_set(&j, text);
    job_set(&j, "held_out=0");
    job_set(&j, "reward_weights=3,2,-0.5");
    job_set(&j, "steps=1");
    job_set(&j, "record_samples=13"); /* groups are recorded whole: of four episodes each */
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_ok(ls_history_samples(&samples, &n, j.o->train.run, h.steps, 1, 100, &err), err);
    assert_int_equal(n, 16);
    for (int64_t i = 0; i < n; i++) {
        const double size = (double)samples[i].sample.completion_bytes;
        const double half = samples[i].sample.completion[0] % 2 != 0 ? 0 : 0.25;
        if (samples[i].sample.reward != 2 * half - 0.5 * size) fail_msg("%g: %g", size, samples[i].sample.reward);
        sum[1] += half;
        sum[2] += size;
        n_half += half > 0;
    }
    assert_true(n_half > 0 && n_half < 16);
    assert_true(measure(&h, "rewards/exact/mean") == 0);
    assert_true(measure(&h, "rewards/half/mean") == sum[1] / (double)n_half); /* of those that it gave */
    assert_true(measure(&h, "rewards/size/mean") == sum[2] / 16);
    ls_history_samples_free(samples, n);
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* One of weight 1 beside one of weight 0 is what it is alone; and nothing from all of them is a failure. */
static void sums_are_what_they_are_alone(void **state) {
    const uint64_t want = python_digest("reward", "of_group", 1, NULL);
    char text[1400];
    job j = job_make("python");
    ls_error err;
    (void)state;
    need_python();
    snprintf(text, sizeof text, "reward=task,python:%s:of_group", script);
    job_set(&j, text);
    job_set(&j, "reward_weights=0,1");
    job_set(&j, "steps=3");
    job_must_run(&j);
    assert_true(j.result.digest == want);
    remove_tree(j.o->train.run);
    write_file(scratch, "none.py", "def a(completion): return None\ndef b(completion): return None\n");
    snprintf(text, sizeof text, "reward=python:%s/none.py:a,python:%s/none.py:b", scratch, scratch);
    job_set(&j, text);
    check_failed(job_run(&j, &err), &err, "all 16 rewards failed: reverse-text/train/0#0: no reward was given");
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void runs_tell_what_went_wrong(void **state) {
    job j;
    ls_error err;
    char *told = NULL;
    size_t bytes;
    FILE *progress;
    (void)state;
    need_python();
    refuse_run("environment", "Wrong", "length=160",
               "environment: all 16 episodes failed: environment/train/0#0: Wrong.step() returned 'x', expected "
               "(messages, reward, done)");
    refuse_run("environment", "Late", "reward_timeout=0.2", "no answer for 0.2 s (reward_timeout)");
    refuse_run("reward", "short", "length=40", "all 16 rewards failed: ");
    j = python_job("reward", "odd", 1);
    job_set(&j, "steps=1");
    progress = open_memstream(&told, &bytes);
    assert_ok(ls_grpo_run(j.o, &j.config, progress, &j.result, &err), err);
    assert_int_equal(fclose(progress), 0);
    assert_non_null(strstr(told, "step 1: reverse-text/train/"));
    assert_non_null(strstr(told, "#0: it printed \"a word\" to standard output"));
    free(told);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void options_that_do_not_go_together(void **state) {
    static const struct {
        const char *sets[2], *says;
    } bad[] = {
        {{"reward=python:x", "steps=1"}, "reward: 'python:x' is not one of auto, task, "},
        {{"reward=jury", "steps=1"}, "reward: 'jury' is not one of auto, task, "},
        {{"environment=calc.py:C", "steps=1"}, "environment: 'calc.py:C' is neither python:MODULE:CLASS nor"},
        {{"environment=python:a:C", "environment_command=true"}, "environment: there is an environment_command, too"},
        {{"environment=python:a:C", "environment_url=http://localhost:1/"}, "there is an environment_url, too"},
        {{"reward=python:a:f", "reward_command=true"}, "reward_command: it is given, and reward is python"},
        {{"reward=task,jury", "steps=1"}, "reward: 'jury' is not one of auto, task, "},
        {{"reward=task,", "steps=1"}, "reward: '' is not one of auto, task, "},
        {{"reward=task,auto", "steps=1"}, "reward: auto stands alone"},
        {{"reward=task,task", "steps=1"}, "reward: 'task' is there twice"},
        {{"reward=task,command", "steps=1"}, "reward_command: it is missing, and reward is task,command"},
        {{"reward=task,exact", "reward_weights=1"}, "reward_weights: 1 numbers for 2 rewards"},
        {{"reward=task,exact", "reward_weights=1,x"}, "reward_weights: 'x' is no number"},
        {{"reward_weights=1,2", "steps=1"}, "reward_weights: 2 numbers for 1 rewards"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ls_error err;
        job j = job_make("none");
        for (int k = 0; k < 2; k++) job_set(&j, bad[i].sets[k]);
        check_failed(ls_grpo_options_check(j.o, &err), &err, bad[i].says);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_of_both_forms),
        cmocka_unit_test(groups_of_asks_stay_apart),
        cmocka_unit_test(tokens_are_there),
        cmocka_unit_test(conversations_are_messages),
        cmocka_unit_test(what_goes_wrong_is_told),
        cmocka_unit_test(words_are_told_with_the_sample),
        cmocka_unit_test(groups_of_a_wrong_length_fail),
        cmocka_unit_test(what_cannot_be_used_is_refused),
        cmocka_unit_test(odd_messages_are_answered),
        cmocka_unit_test(runs_do_not_depend_on_workers),
        cmocka_unit_test(environments_do_not_depend_on_workers),
        cmocka_unit_test(several_rewards_are_added),
        cmocka_unit_test(sums_are_what_they_are_alone),
        cmocka_unit_test(environments_take_data),
        cmocka_unit_test(runs_tell_what_went_wrong),
        cmocka_unit_test(columns_are_looked_for_first),
        cmocka_unit_test(options_that_do_not_go_together),
    };
    return cmocka_run_group_tests(tests, begin, scratch_remove);
}
