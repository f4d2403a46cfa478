/* A supervised run: data, batches, steps, checkpoints. */
#define _POSIX_C_SOURCE 200809L
#include "train/sft.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "load/pair_lines.h"
#include "num/contract.h"
#include "text/tokenizer.h"
#include "train/metrics_log.h"
#include "train/order.h"
#include "train/run_checkpoint.h"

#define AT(field) offsetof(ls_sft_options, field)
#define PROGRESS_SECONDS 0.5

static const ls_option own_options[] = {
    {"data", LS_OPTION_TEXT, false, AT(data), 0, 0, NULL,
     "Lines {\"prompt\",\"completion\"} or {\"prompt_ids\",\"completion_ids\"}"},
    {"batch", LS_OPTION_INT, true, AT(batch), 1, 1048576, NULL, "Sequences of a step"},
    {"append_eos", LS_OPTION_SWITCH, true, AT(append_eos), 0, 0, NULL,
     "Completions that are texts end with the end-of-sequence token"},
    {"epochs", LS_OPTION_INT, false, AT(epochs), 1, 1e6, NULL, "Where steps is 0: how often the data are taken"},
    {"length", LS_OPTION_INT, false, AT(length), 0, 1 << 30, NULL,
     "Longest sequence in tokens; a longer one is an error (0: no limit)"},
};

void ls_sft_options_init(ls_sft_options *o, ls_config *config) {
    const ls_option_table table = {own_options, (int64_t)(sizeof own_options / sizeof own_options[0]), o};
    memset(o, 0, sizeof *o);
    ls_train_options_init(&o->train);
    o->batch = 16;
    o->append_eos = true;
    o->epochs = 1;
    config->n = 0;
    ls_config_add(config, ls_train_option_table(&o->train));
    ls_config_add(config, table);
}

typedef struct sft {
    const ls_sft_options *o;
    FILE *progress; /* NULL: none */
    ls_saves *run;
    char begin[LS_SAVES_PATH_MAX]; /* directory that the model is opened from */
    int64_t begin_step;            /* 0, or the checkpoint's */
    ls_queue *queue;
    ls_jamba *model;
    ls_comm *comm;
    ls_trainer *trainer;
    int64_t rows_max; /* of a forward */
    ls_order *order;
    ls_metrics_log *log;
    /* Data: sequence i is tokens [offsets[i], offsets[i + 1]), its first prompts[i] the prompt. */
    int32_t *tokens;
    int64_t *offsets, *prompts;
    int64_t n, tokens_cap, longest;
    uint64_t digest;
    /* A batch: its rows are the sequences' tokens but their last. */
    int32_t *batch_tokens;
    int64_t *batch_offsets, *batch_targets;
} sft;

static double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool is_first(const sft *s) { return s->o->train.rank == 0; }

/* ---- data ---- */

static ls_status check_ids(const sft *s, const ls_pair *p, const char *field, const int32_t *ids, int64_t n,
                           ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= s->model->config.vocab)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: %s[%lld]: %d is not in 0..%d", s->o->data,
                           (long long)p->line, field, (long long)i, ids[i], s->model->config.vocab - 1);
    return LS_OK;
}

/* Fills in the ids of a pair of texts. */
static ls_status encode_pair(const sft *s, const ls_tokenizer *tokenizer, ls_pair *p, ls_error *err) {
    const ls_jamba_config *c = &s->model->config;
    int64_t cap;
    ls_status status;
    LS_TRY(ls_tokenizer_encode(tokenizer, p->prompt, p->prompt_bytes, true, &p->prompt_ids, &p->n_prompt, err));
    LS_TRY(ls_tokenizer_encode(tokenizer, p->completion, p->completion_bytes, false, &p->completion_ids,
                               &p->n_completion, err));
    cap = p->n_completion;
    if (s->o->append_eos && c->n_eos > 0) {
        LS_TRY(ls_array_grow((void **)&p->completion_ids, &cap, p->n_completion + 1, sizeof(int32_t), "ids", err));
        p->completion_ids[p->n_completion++] = c->eos[0];
    }
    if (p->n_prompt == 0 || p->n_completion == 0)
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s is no token", p->n_prompt == 0 ? "prompt" : "completion");
done:
    if (status != LS_OK) ls_error_prefix(err, "%s: line %lld", s->o->data, (long long)p->line);
    return status;
}

static ls_status add_sequence(sft *s, int64_t i, const ls_pair *p, ls_error *err) {
    const int64_t at = s->offsets[i], n = p->n_prompt + p->n_completion;
    ls_status status;
    LS_TRY(check_ids(s, p, "prompt_ids", p->prompt_ids, p->n_prompt, err));
    LS_TRY(check_ids(s, p, "completion_ids", p->completion_ids, p->n_completion, err));
    if (s->o->length > 0 && n > s->o->length) {
        status = LS_FAIL(err, LS_ERR_CAPACITY, "%s: line %lld: %lld tokens; the limit is %lld (length)", s->o->data,
                         (long long)p->line, (long long)n, (long long)s->o->length);
        goto done;
    }
    LS_TRY(ls_array_grow((void **)&s->tokens, &s->tokens_cap, at + n, sizeof *s->tokens, "tokens", err));
    memcpy(s->tokens + at, p->prompt_ids, (size_t)p->n_prompt * sizeof *s->tokens);
    memcpy(s->tokens + at + p->n_prompt, p->completion_ids, (size_t)p->n_completion * sizeof *s->tokens);
    s->prompts[i] = p->n_prompt;
    s->offsets[i + 1] = at + n;
    if (n > s->longest) s->longest = n;
done:
    return status;
}

static ls_status read_data(sft *s, ls_error *err) {
    ls_pair *pairs = NULL;
    ls_tokenizer *tokenizer = NULL;
    ls_status status;
    LS_TRY(ls_pairs_read(&pairs, &s->n, s->o->data, err));
    LS_TRY(ls_array_alloc((void **)&s->offsets, s->n + 1, sizeof *s->offsets, "sequences", err));
    LS_TRY(ls_array_alloc((void **)&s->prompts, s->n, sizeof *s->prompts, "sequences", err));
    for (int64_t i = 0; i < s->n; i++) {
        if (pairs[i].prompt != NULL) {
            if (tokenizer == NULL) LS_TRY(ls_tokenizer_open(&tokenizer, s->begin, err));
            LS_TRY(encode_pair(s, tokenizer, &pairs[i], err));
        }
        LS_TRY(add_sequence(s, i, &pairs[i], err));
        ls_pair_deinit(&pairs[i]);
    }
    s->digest = ls_fnv_mix(LS_FNV_START, s->tokens, s->offsets[s->n] * (int64_t)sizeof *s->tokens);
    s->digest = ls_fnv_mix(s->digest, s->offsets, (s->n + 1) * (int64_t)sizeof *s->offsets);
    s->digest = ls_fnv_mix(s->digest, s->prompts, s->n * (int64_t)sizeof *s->prompts);
done:
    ls_tokenizer_free(tokenizer);
    ls_pairs_free(pairs, pairs == NULL ? 0 : s->n);
    return status;
}

/* ---- steps ---- */

static ls_status completion_loss(void *context, const ls_train_rows *rows, ls_error *err) {
    (void)context;
    (void)err;
    for (int64_t i = 0; i < rows->n_sequences; i++)
        for (int64_t r = rows->offsets[i]; r < rows->offsets[i + 1]; r++) {
            if (rows->targets[r] < 0) continue;
            rows->d_logprob[r] = -1.0f;
            rows->metrics[i] -= (double)rows->logprob[r];
        }
    return LS_OK;
}

/* The batch of a step; its count is the number of completion tokens. */
static ls_train_batch draw_batch(sft *s, int64_t step) {
    const int64_t n = s->o->batch;
    int64_t row = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = ls_order_at(s->order, (step - 1) * n + i);
        const int32_t *tokens = s->tokens + s->offsets[k];
        const int64_t n_rows = s->offsets[k + 1] - s->offsets[k] - 1;
        for (int64_t r = 0; r < n_rows; r++) {
            const bool counts = r + 1 >= s->prompts[k];
            s->batch_tokens[row + r] = tokens[r];
            s->batch_targets[row + r] = counts ? tokens[r + 1] : -1;
            count += counts;
        }
        row += n_rows;
        s->batch_offsets[i + 1] = row;
    }
    return (ls_train_batch){s->batch_tokens, s->batch_offsets, s->batch_targets, n, (double)count};
}

static ls_status log_step(sft *s, const ls_train_batch *b, const ls_train_stats *stats, double seconds, ls_error *err) {
    ls_json_out *json = ls_metrics_log_begin(s->log, stats->step);
    ls_json_double(json, "epoch", (double)(stats->step * s->o->batch) / (double)s->n);
    ls_json_double(json, "loss", stats->totals[0] / b->count);
    ls_json_int(json, "tokens", (int64_t)b->count);
    ls_json_int(json, "rows", b->offsets[b->n]);
    ls_json_double(json, "norm", stats->norm);
    ls_json_bool(json, "clipped", stats->clipped);
    ls_json_double(json, "rate", stats->rate);
    ls_json_double(json, "seconds", seconds);
    return ls_metrics_log_end(s->log, err);
}

static ls_status save(sft *s, const ls_config *config, ls_error *err);

static ls_status run_steps(sft *s, const ls_config *config, ls_error *err) {
    const ls_train_options *t = &s->o->train;
    const ls_train_state *state = ls_trainer_state(s->trainer);
    double shown = 0;
    ls_status status = LS_OK;
    for (int64_t step = state->step + 1; step <= t->steps; step++) {
        const ls_train_batch batch = draw_batch(s, step);
        const double start = clock_now();
        ls_train_stats stats;
        double seconds;
        LS_TRY(ls_trainer_step(s->trainer, &batch, &stats, err));
        seconds = clock_now() - start;
        if (!is_first(s)) continue;
        LS_TRY(log_step(s, &batch, &stats, seconds, err));
        if (s->progress != NULL && (clock_now() - shown > PROGRESS_SECONDS || step == t->steps)) {
            fprintf(s->progress, "step %lld/%lld  loss %.5f  norm %.4f  rate %.3e  %.0f tokens/s\n", (long long)step,
                    (long long)t->steps, stats.totals[0] / batch.count, stats.norm, stats.rate,
                    (double)batch.offsets[batch.n] / seconds);
            shown = clock_now();
        }
        if (step == t->steps || (t->save_every > 0 && step % t->save_every == 0)) LS_TRY(save(s, config, err));
    }
done:
    return status;
}

/* ---- the run ---- */

static ls_saves_description describe(const sft *s, const ls_config *config, char numerics[64],
                                     ls_saves_position *position) {
    snprintf(numerics, 64, "%s/%d/%s", LS_NUMERICS_PROFILE, LS_NUMERICS_VERSION,
             ls_dtype_name((ls_dtype)s->o->train.dtype));
    return (ls_saves_description){"sft", numerics, s->digest, config, position, 1};
}

static ls_status save(sft *s, const ls_config *config, ls_error *err) {
    const ls_train_state *state = ls_trainer_state(s->trainer);
    char numerics[64];
    ls_saves_position position = {"drawn", state->step * s->o->batch};
    const ls_saves_description d = describe(s, config, numerics, &position);
    return ls_saves_save(s->run, state, &d, s->o->train.keep, err);
}

/* Where the run begins: at its newest checkpoint, or with the model. */
static ls_status find_beginning(sft *s, ls_error *err) {
    const ls_train_options *t = &s->o->train;
    int64_t step;
    ls_status status;
    LS_TRY(ls_saves_open(&s->run, t->run, is_first(s), err));
    snprintf(s->begin, sizeof s->begin, "%s", t->model);
    /* Without resume only rank 0 looks at the directory, which it has just made. */
    if (is_first(s) || t->resume) {
        LS_TRY(ls_saves_newest(s->run, &step, s->begin, err));
        if (step >= 0 && !t->resume) {
            status = LS_FAIL(err, LS_ERR_ARG,
                             "%s: the run has checkpoints, the newest of step %lld; set resume=true "
                             "to go on, or choose another run",
                             t->run, (long long)step);
            goto done;
        }
        if (step >= 0)
            s->begin_step = step;
        else
            snprintf(s->begin, sizeof s->begin, "%s", t->model);
    }
    if (is_first(s)) LS_TRY(ls_saves_keep_files(s->run, s->begin, err));
done:
    return status;
}

static ls_status make_trainer(sft *s, const ls_config *config, ls_error *err) {
    const ls_sft_options *o = s->o;
    const int64_t spans =
        o->train.microbatch < o->batch / o->train.leaf ? o->train.microbatch * o->train.leaf : o->batch;
    ls_trainer_opts opts = {.temperature = 1.0f, .sequences_max = o->batch, .n_metrics = 1, .loss = completion_loss};
    uint64_t identity = ls_config_digest(config);
    ls_status status = LS_OK;
    ls_train_options_trainer(&opts, &o->train);
    if (opts.rows_max == 0 && !ls_mul_i64(spans, s->longest, &opts.rows_max))
        return LS_FAIL(err, LS_ERR_NOMEM, "a forward of %lld sequences of %lld tokens", (long long)spans,
                       (long long)s->longest);
    identity = ls_fnv_mix(identity, &s->digest, (int64_t)sizeof s->digest);
    identity = ls_fnv_mix(identity, &o->train.steps, (int64_t)sizeof o->train.steps);
    if (o->train.ranks > 1) {
        const ls_comm_opts comm = {(int32_t)o->train.rank, (int32_t)o->train.ranks, o->train.address, o->train.timeout};
        LS_TRY(ls_comm_open(&s->comm, &comm, identity, err));
        opts.comm = s->comm;
    }
    s->rows_max = opts.rows_max;
    LS_TRY(ls_trainer_create(&s->trainer, s->model, s->begin, s->queue, &opts, err));
done:
    return status;
}

static void print_plan(const sft *s) {
    const ls_sft_options *o = s->o;
    if (s->progress == NULL) return;
    if (s->begin_step > 0) fprintf(s->progress, "going on from %s\n", s->begin);
    fprintf(s->progress,
            "%lld sequences, %lld tokens, the longest %lld; %lld steps of %lld sequences\n"
            "%lld parameters; weights, moments and gradients %.1f MB, forwards of at most %lld tokens\n",
            (long long)s->n, (long long)s->offsets[s->n], (long long)s->longest, (long long)o->train.steps,
            (long long)o->batch, (long long)ls_trainer_state(s->trainer)->parameters->n_elements,
            (double)ls_trainer_bytes(s->trainer) * 1e-6, (long long)s->rows_max);
}

static ls_status make_batch(sft *s, ls_error *err) {
    const int64_t n = s->o->batch;
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&s->batch_tokens, n, s->longest * (int64_t)sizeof *s->batch_tokens, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->batch_targets, n, s->longest * (int64_t)sizeof *s->batch_targets, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->batch_offsets, n + 1, sizeof *s->batch_offsets, "batch", err));
    LS_TRY(ls_order_create(&s->order, s->n, s->o->train.seed, err));
done:
    return status;
}

static ls_status go_on(sft *s, const ls_config *config, ls_error *err) {
    char numerics[64];
    ls_saves_position position = {"drawn", 0};
    const ls_saves_description d = describe(s, config, numerics, &position);
    ls_train_state *state = ls_trainer_state(s->trainer);
    ls_status status;
    LS_TRY(ls_saves_load(s->begin, state, &d, err));
    if (state->step != s->begin_step || position.value != state->step * s->o->batch)
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s/state.json: step %lld with %lld sequences drawn", s->begin,
                         (long long)state->step, (long long)position.value);
done:
    return status;
}

static ls_status open_log(sft *s, ls_error *err) {
    char path[LS_SAVES_PATH_MAX + 16];
    if (!is_first(s)) return LS_OK;
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->o->train.run);
    return ls_metrics_log_open(&s->log, path, s->begin_step, err);
}

ls_status ls_sft_run(ls_sft_options *o, const ls_config *config, FILE *progress, ls_error *err) {
    sft s = {.o = o, .progress = o->train.rank == 0 ? progress : NULL};
    int32_t threads;
    ls_status status;
    if (o->data[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "data: missing; it names a file of pairs");
    LS_TRY(ls_train_options_check(&o->train, err));
    threads = o->train.threads == 0 ? ls_cpu_count() : (int32_t)o->train.threads;
    LS_TRY(find_beginning(&s, err));
    LS_TRY(ls_jamba_open(&s.model, s.begin, err));
    LS_TRY(read_data(&s, err));
    if (o->train.steps == 0) {
        int64_t taken;
        if (!ls_mul_i64(o->epochs, s.n, &taken)) taken = INT64_MAX;
        o->train.steps = (taken - 1) / o->batch + 1;
        LS_TRY(ls_train_options_check(&o->train, err));
    }
    LS_TRY(ls_queue_create(&s.queue, threads, ls_train_options_isa(&o->train), err));
    LS_TRY(make_batch(&s, err));
    LS_TRY(make_trainer(&s, config, err));
    if (s.begin_step > 0) LS_TRY(go_on(&s, config, err));
    LS_TRY(ls_trainer_agree(s.trainer, err));
    LS_TRY(open_log(&s, err));
    print_plan(&s);
    LS_TRY(run_steps(&s, config, err));
done:
    ls_metrics_log_close(s.log);
    ls_order_free(s.order);
    ls_trainer_free(s.trainer);
    ls_comm_close(s.comm);
    ls_jamba_close(s.model);
    ls_queue_free(s.queue);
    ls_saves_close(s.run);
    free(s.tokens);
    free(s.offsets);
    free(s.prompts);
    free(s.batch_tokens);
    free(s.batch_targets);
    free(s.batch_offsets);
    return status;
}
