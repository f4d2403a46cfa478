/* Python functions as a command: what the shell is told, and whether the module can be used. Owns nothing. */
#define _POSIX_C_SOURCE 200809L
#include "rl/reward_python.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rl/reward_source.h"

enum { WORKERS_MAX = 256 };

/* An import may take ten seconds whatever the time limit is. A group is tried twice and then one by one, each after an
 * import: only a dispatcher that hangs is silent for longer. */
static double longest_silence(double timeout_s) {
    const double start = timeout_s > 10 ? timeout_s : 10;
    return 3 * (timeout_s + start) + 30;
}

/* A word of a shell's command. */
static void write_word(FILE *out, const char *word) {
    fputs(" '", out);
    for (; *word != '\0'; word++)
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    fputc('\'', out);
}

/* The interpreter reads its program from its input, before the items: no file has to be found, and the list of
 * processes does not show it. Sets of texts have one order in all runs, unless the user says otherwise. */
static ls_status make_command(char **out, const ls_reward_python_options *o, ls_error *err) {
    size_t bytes = 0;
    FILE *stream = open_memstream(out, &bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "command");
    fputs("PYTHONHASHSEED=${PYTHONHASHSEED:-0} exec", stream);
    write_word(stream, o->python != NULL && o->python[0] != '\0' ? o->python : "python3");
    fprintf(stream,
            " -u -c 'import os\nn, text = %lld, b\"\"\nwhile len(text) < n:\n    more = os.read(0, n - len(text))\n"
            "    if not more:\n        raise SystemExit(1)\n    text += more\n"
            "exec(compile(text, \"lockstep/_worker.py\", \"exec\"))'",
            (long long)ls_python_worker_bytes);
    write_word(stream, o->spec);
    fprintf(stream, " %s %lld %.17g",
            o->is_environment ? "environment"
            : o->takes_none   ? "part"
                              : "reward",
            (long long)o->workers, o->timeout_s);
    return fclose(stream) == 0 ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "command");
}

static ls_status check(ls_reward *reward, const ls_reward_python_options *o, ls_error *err) {
    const ls_reward_item item = {.problem = "start", .op = "check"};
    ls_reward_result result;
    LS_TRY(ls_reward_ask(reward, &result, &item, 1, err));
    free(result.text);
    if (result.ok) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: %.200s: %s", o->option, o->spec, result.error);
}

ls_status ls_reward_python_open(ls_reward **out, const ls_reward_python_options *o, ls_error *err) {
    ls_reward_command_options c;
    ls_reward *reward = NULL;
    char *command = NULL;
    ls_status status;
    *out = NULL;
    if (o->workers < 1 || o->workers > WORKERS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "reward_workers: %lld is not in 1..%d", (long long)o->workers, WORKERS_MAX);
    ls_reward_command_init(&c);
    LS_TRY_DONE(make_command(&command, o, err));
    c.command = command;
    c.window = INT64_MAX;
    c.silence_s = longest_silence(o->timeout_s);
    c.preamble = (const char *)ls_python_worker;
    c.preamble_bytes = ls_python_worker_bytes;
    c.is_together = true;
    LS_TRY_DONE(ls_reward_command_open(&reward, &c, err));
    reward->wants_groups = !o->is_environment;
    reward->wants_resets = o->is_environment;
    reward->takes_none = o->takes_none;
    LS_TRY_DONE(check(reward, o, err));
    *out = reward;
    reward = NULL;
done:
    ls_reward_close(reward);
    free(command);
    return status;
}
