/* lockstep sweep: moves levers one at a time and names the cause of a mismatch. */
#define _POSIX_C_SOURCE 200809L
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/job.h"
#include "cli/progress.h"
#include "cli/sweep_reports.h"

enum {
    OPT_MODEL = 256,
    OPT_PROMPTS,
    OPT_SAMPLES,
    OPT_MAX_TOKENS,
    OPT_SEED,
    OPT_DTYPE,
    OPT_DEVICE,
    OPT_PROFILE,
    OPT_THREADS,
    OPT_ISA,
    OPT_SLOTS,
    OPT_SLOT_WORDS,
    OPT_SUSPECT,
    OPT_SUSPECT_ARG,
    OPT_TRAINER,
    OPT_TRAINER_ARG,
    OPT_RESIDENT,
    OPT_TIMEOUT,
    OPT_SECONDS,
    OPT_STORY,
    OPT_HTML,
    OPT_REPRO,
    OPT_OUT,
    OPT_INJECT,
    OPT_JSON
};

enum { SUSPECT_ARGS_MAX = 64 };

typedef struct sweep_options {
    ls_run_options run; /* what opens the model and the prompts */
    int64_t slots, slot_words;
    const char *suspect, *trainer;
    ls_report_paths paths;
    char *suspect_args[SUSPECT_ARGS_MAX], *trainer_args[SUSPECT_ARGS_MAX];
    int64_t n_suspect_args, n_trainer_args;
    int64_t timeout, seconds;
    bool story, resident;
} sweep_options;

typedef struct parse_context {
    sweep_options *o;
    ls_error *err;
    ls_status status;
} parse_context;

static const struct argp_option options_known[] = {
    {"model", OPT_MODEL, "DIR", 0, "Checkpoint directory: config.json, safetensors, tokenizer.json", 0},
    {"prompts", OPT_PROMPTS, "FILE", 0, "Lines {\"id\",\"prompt\"} or {\"id\",\"prompt_ids\"}; made up when absent", 0},
    {"samples", OPT_SAMPLES, "N", 0, "Completions for each prompt as given (2)", 0},
    {"max-tokens", OPT_MAX_TOKENS, "N", 0, "Tokens of each completion of the prompts as given (16)", 0},
    {"seed", OPT_SEED, "N", 0, "Seed of all random draws (0)", 0},
    {"dtype", OPT_DTYPE, "TYPE", 0, "Type of activations: f32 or bf16 (f32)", 0},
    {"device", OPT_DEVICE, "NAME", 0, LS_DEVICE_HELP, 0},
    {"profile", OPT_PROFILE, "NAME", 0, LS_PROFILE_HELP, 0},
    {"threads", OPT_THREADS, "N", 0, "Threads (all processors)", 0},
    {"isa", OPT_ISA, "NAME", 0, "Instruction set: generic, avx2, avx512 (the best there is)", 0},
    {"slots", OPT_SLOTS, "N", 0, "Slots of the pool in which far slots are tried (69776); backed where touched", 0},
    {"slot-words", OPT_SLOT_WORDS, "N", 0, "Distance of its slots in 4-byte words (89600)", 0},
    {"suspect", OPT_SUSPECT, "PROGRAM", 0, "Run PROGRAM generate in place of this engine", 0},
    {"suspect-arg", OPT_SUSPECT_ARG, "WORD", 0, "A further word of its command line; may be given again", 0},
    {"trainer", OPT_TRAINER, "PROGRAM", 0,
     "Run PROGRAM score in place of this program's training forward; the model may have any architecture then", 0},
    {"trainer-arg", OPT_TRAINER_ARG, "WORD", 0, "A further word of its command line; may be given again", 0},
    {"resident", OPT_RESIDENT, NULL, 0, "Start PROGRAM serve once, and send it every trial as a line of JSON", 0},
    {"timeout", OPT_TIMEOUT, "S", 0, "Seconds after which a trial of the suspect is ended (60)", 0},
    {"seconds", OPT_SECONDS, "S", 0,
     "Begin nothing new after so many seconds with a suspect that promises no bits; 0: no limit (150)", 0},
    {"story", OPT_STORY, NULL, 0, "Also run series of steps with 8 to 128 rollouts per prompt over that pool", 0},
    {"html", OPT_HTML, "FILE", 0, "Write the report with its plots as one HTML page", 0},
    {"repro", OPT_REPRO, "FILE", 0, "Write the smallest requests that still fail as a prompt file", 0},
    {"out", OPT_OUT, "FILE", 0, "Where the table goes; standard output when absent", 0},
#ifdef LS_FAULTS
    {"inject", OPT_INJECT, "NAME", 0, "Run this engine with this fault", 0},
#endif
    {"json", OPT_JSON, NULL, 0, "Write one JSON object instead of the table", 0},
    {0},
};

static ls_status parse_lever(ls_levers *levers, const char *name, const char *text, ls_error *err) {
    const ls_status status = ls_lever_parse(levers, ls_lever_find(name), text, err);
    if (status != LS_OK) {
        const ls_error lever = *err;
        LS_FAIL(err, status, "--%s", lever.text);
    }
    return status;
}

static ls_status parse_sweep_option(sweep_options *o, int key, char *text, ls_error *err) {
    int64_t number = 0;
    ls_status status = LS_OK;
    switch (key) {
        case OPT_MODEL: o->run.model = text; break;
        case OPT_PROMPTS: o->run.prompts = text; break;
        case OPT_SAMPLES: status = parse_lever(&o->run.levers, "samples", text, err); break;
        case OPT_MAX_TOKENS: status = ls_cli_int(&o->run.max_tokens, "--max-tokens", text, 1, 1 << 20, err); break;
        case OPT_SEED:
            status = ls_cli_int(&number, "--seed", text, 0, INT64_MAX, err);
            o->run.sampling.seed = (uint64_t)number;
            break;
        case OPT_DTYPE:
            if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0)
                return LS_FAIL(err, LS_ERR_ARG, "--dtype: '%s' is not f32 or bf16", text);
            o->run.dtype = strcmp(text, "bf16") == 0 ? LS_BF16 : LS_F32;
            break;
        case OPT_DEVICE: status = ls_cli_device_name(&o->run.device, "--device", text, err); break;
        case OPT_PROFILE: return ls_cli_profile(&o->run, text, err);
        case OPT_THREADS: status = parse_lever(&o->run.levers, "threads", text, err); break;
        case OPT_ISA: status = parse_lever(&o->run.levers, "isa", text, err); break;
        case OPT_SLOTS: status = ls_cli_int(&o->slots, "--slots", text, 2, INT32_MAX, err); break;
        case OPT_SLOT_WORDS:
            status = ls_cli_int(&o->slot_words, "--slot-words", text, 16, (int64_t)1 << 40, err);
            if (status == LS_OK && o->slot_words % 16 != 0)
                return LS_FAIL(err, LS_ERR_ARG, "--slot-words: %s is not a multiple of 16", text);
            break;
        case OPT_SUSPECT: o->suspect = text; break;
        case OPT_SUSPECT_ARG:
            if (o->n_suspect_args == SUSPECT_ARGS_MAX)
                return LS_FAIL(err, LS_ERR_ARG, "--suspect-arg: more than %d words", SUSPECT_ARGS_MAX);
            o->suspect_args[o->n_suspect_args++] = text;
            break;
        case OPT_TRAINER: o->trainer = text; break;
        case OPT_TRAINER_ARG:
            if (o->n_trainer_args == SUSPECT_ARGS_MAX)
                return LS_FAIL(err, LS_ERR_ARG, "--trainer-arg: more than %d words", SUSPECT_ARGS_MAX);
            o->trainer_args[o->n_trainer_args++] = text;
            break;
        case OPT_RESIDENT: o->resident = true; break;
        case OPT_TIMEOUT: status = ls_cli_int(&o->timeout, "--timeout", text, 1, 1 << 20, err); break;
        case OPT_SECONDS: status = ls_cli_int(&o->seconds, "--seconds", text, 0, 1 << 20, err); break;
        case OPT_STORY: o->story = true; break;
        case OPT_HTML: o->paths.html = text; break;
        case OPT_REPRO: o->paths.repro = text; break;
        case OPT_OUT: o->paths.out = text; break;
#ifdef LS_FAULTS
        case OPT_INJECT:
            if (!ls_inject_parse(&o->run.inject, text))
                return LS_FAIL(err, LS_ERR_ARG, "--inject: '%s' is no fault", text);
            break;
#endif
        case OPT_JSON: o->paths.json = true; break;
        default: break;
    }
    return status;
}

static error_t on_sweep_option(int key, char *text, struct argp_state *state) {
    parse_context *context = state->input;
    if (key == ARGP_KEY_ARG) ls_cli_wrong(state, "unexpected argument '%s'", text);
    if (key < OPT_MODEL || key > OPT_JSON) return ARGP_ERR_UNKNOWN;
    if (context->status == LS_OK) context->status = parse_sweep_option(context->o, key, text, context->err);
    return 0;
}

static const struct argp parser = {
    options_known,
    on_sweep_option,
    NULL,
    "Find out why rollout and trainer disagree: run small experiments, each with one lever moved, compare every bit "
    "with the "
    "training forward of this program or, with --trainer, of another, and name the cause whose pattern fits.\v"
    "What is tried is this program's engine or, with --suspect, another build of it. Levers with a threshold are "
    "bisected to "
    "the exact value, a threshold in slots is traced to the 32-bit expression that has it, and the requests are shrunk "
    "to "
    "the fewest and shortest that still fail.\n\n"
    "Exit status: 0 if no experiment shows a difference, 3 if one does, 2 if the sweep cannot be done, 1 for wrong "
    "usage.",
    NULL,
    NULL,
    NULL,
};

static ls_status parse_options(sweep_options *o, int argc, char **argv, ls_error *err) {
    parse_context context = {o, err, LS_OK};
    memset(o, 0, sizeof *o);
    ls_levers_init(&o->run.levers);
    o->run.levers.samples = 2;
    o->run.max_tokens = 16;
    o->run.device = LS_DEVICE_AUTO;
    o->run.sampling.temperature = o->run.sampling.top_p = 1.0f;
    o->slots = 69776;
    o->timeout = 60;
    o->seconds = 150;
    o->slot_words = 89600;
    ls_cli_parse(&parser, argc, argv, &context);
    if (context.status != LS_OK) return context.status;
    if (o->run.model == NULL) ls_cli_usage(argv[0], "--model is missing; it names the checkpoint directory");
    if (o->suspect == NULL && o->n_suspect_args > 0)
        ls_cli_usage(argv[0], "--suspect-arg is of use with --suspect only");
    if (o->trainer == NULL && o->n_trainer_args > 0)
        ls_cli_usage(argv[0], "--trainer-arg is of use with --trainer only");
    if (o->trainer != NULL && o->suspect == NULL) ls_cli_usage(argv[0], "--trainer is of use with --suspect only");
    if (o->trainer != NULL && (o->run.prompts != NULL || o->story))
        ls_cli_usage(argv[0], "--prompts and --story are of no use with --trainer: requests are made up");
    if (o->suspect != NULL && o->run.inject != LS_INJECT_NONE)
        ls_cli_usage(argv[0], "--inject is for this engine; give a suspect its own by --suspect-arg");
    return LS_OK;
}

/* The words of ls_sweep_opts from the job's. */
static ls_status run_sweep(ls_sweep *sweep, const sweep_options *o, ls_job *job, const char *directory, ls_error *err) {
    ls_sweep_opts opts = {.model = o->run.model,
                          .n_prompts = job->n_prompts,
                          .samples = o->run.levers.samples,
                          .max_tokens = o->run.max_tokens,
                          .dtype = o->run.dtype,
                          .profile = o->run.profile,
                          .seed = o->run.sampling.seed,
                          .threads = o->run.levers.threads,
                          .isa = o->run.levers.isa,
                          .far_slots = o->slots,
                          .far_words = o->slot_words,
                          .story = o->story,
                          .progress = ls_show_trial};
    ls_prompt *prompts = NULL;
    ls_engine_subject engine = {
        .device = job->device, .inject = o->run.inject, .threads = o->run.levers.threads, .isa = o->run.levers.isa};
    ls_program_subject program = {.program = o->suspect,
                                  .model = o->run.model,
                                  .directory = directory,
                                  .more = o->suspect_args,
                                  .n_more = o->n_suspect_args,
                                  .resident = o->resident};
    ls_program_subject scorer = {.program = o->trainer,
                                 .model = o->run.model,
                                 .directory = directory,
                                 .more = o->trainer_args,
                                 .n_more = o->n_trainer_args,
                                 .patience = 10.0,
                                 .resident = o->resident};
    ls_subject subject;
    ls_door door;
    ls_status status;
    ls_door_open(&door, (double)o->seconds, (double)o->timeout);
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, job->n_prompts, sizeof *prompts, "prompts", err));
    for (int64_t i = 0; i < job->n_prompts; i++)
        prompts[i] = (ls_prompt){job->prompts[i].prompt_ids, job->prompts[i].n_prompt};
    opts.prompts = prompts;
    LS_TRY_DONE(o->trainer != NULL ? ls_sweep_trainer_create_by(&door.trainer, ls_scorer_program(&scorer), err)
                                   : ls_sweep_trainer_create(&door.trainer, o->run.model, job->device, err));
    engine.trainer = door.trainer;
    subject = o->suspect != NULL ? ls_subject_program(&program) : ls_subject_engine(&engine);
    door.subject = &subject;
    if (o->trainer == NULL) ls_job_tell(job, &o->run);
    LS_TRY_DONE(ls_sweep_run(sweep, &opts, &door, err));
    ls_progress_end();
    sweep->opts.prompts = NULL; /* they end here */
done:
    ls_program_subject_end(&program);
    ls_program_subject_end(&scorer);
    ls_sweep_trainer_free(door.trainer);
    free(prompts);
    return status;
}

int ls_cmd_sweep(int argc, char **argv) {
    sweep_options o;
    ls_job job = {0};
    ls_sweep *sweep = calloc(1, sizeof *sweep);
    ls_reports reports = {0};
    char directory[] = "/tmp/lockstep-sweep-XXXXXX";
    bool has_directory = false, different = false;
    ls_error err;
    ls_status status;
    if (sweep == NULL) {
        status = LS_FAIL(&err, LS_ERR_NOMEM, "sweep");
        goto done;
    }
    LS_TRY_DONE(parse_options(&o, argc, argv, &err));
    LS_TRY_DONE(ls_reports_open(&reports, &o.paths, &err));
    if (o.suspect != NULL && !(has_directory = mkdtemp(directory) != NULL)) {
        status = LS_FAIL(&err, LS_ERR_IO, "%s: cannot create it", directory);
        goto done;
    }
    if (o.trainer == NULL) LS_TRY_DONE(ls_job_init(&job, &o.run, &err)); /* else no model of ours is needed */
    ls_model_close(job.model); /* the trainer opens its own, in two versions */
    job.model = NULL;
    LS_TRY_DONE(run_sweep(sweep, &o, &job, directory, &err));
    different = sweep->different;
    LS_TRY_DONE(ls_reports_write(&reports, &o.paths, sweep, &err));
    LS_TRY_DONE(ls_sweep_check_complete(sweep, &err));
done:
    ls_reports_abandon(&reports);
    if (has_directory) rmdir(directory);
    ls_job_deinit(&job);
    if (sweep != NULL) ls_sweep_deinit(sweep);
    free(sweep);
    if (status != LS_OK) return ls_cli_fail(&err);
    return different ? LS_EXIT_DIFFERENT : LS_EXIT_OK;
}
