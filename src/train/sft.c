/* A supervised run: data, batches, steps, checkpoints. */
#define _POSIX_C_SOURCE 200809L
#include "train/sft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/durable.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "op/memory.h"
#include "op/planned.h"
#include "record/pair_lines.h"
#include "run/run.h"
#include "run/run_db.h"
#include "template/chat.h"
#include "train/order.h"
#include "train/run_checkpoint.h"
#include "train/stopping.h"

#define AT(field) offsetof(ls_sft_options, field)
#define PROGRESS_SECONDS 0.5

static const ls_option own_options[] = {
    {"batch", LS_OPTION_INT, true, AT(batch), 1, 1048576, NULL, "Sequences of a step"},
    {"append_eos", LS_OPTION_SWITCH, true, AT(append_eos), 0, 0, NULL,
     "Completions that are texts end with the end-of-sequence token"},
    {"epochs", LS_OPTION_INT, false, AT(epochs), 1, 1e6, NULL, "Where steps is 0: how often the data are taken"},
    {"length", LS_OPTION_INT, false, AT(length), 0, 1 << 30, NULL,
     "Longest sequence in tokens; a longer one is an error (0: no limit)"},
    {"eval_every", LS_OPTION_INT, false, AT(eval_every), 0, 1e12, NULL,
     "Steps between measures of the loss on held-out lines (0: none)"},
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
    ls_config_add(config, ls_data_option_table(&o->data));
}

typedef struct sft {
    ls_sft_options *o;                   /* whose leaf and profile are chosen */
    FILE *progress;                      /* NULL: none */
    char checkpoints[LS_SAVES_PATH_MAX]; /* RUN/checkpoints */
    ls_saves *run;
    char begin[LS_SAVES_PATH_MAX]; /* directory that the model is opened from */
    int64_t begin_step;            /* 0, or the checkpoint's */
    ls_device *device;
    ls_device_choice choice; /* which one it is */
    ls_model *model;
    ls_comm *comm;
    ls_trainer *trainer;
    int64_t rows_max;         /* of a forward */
    ls_memory_state memory;   /* before the model was opened */
    ls_train_planned planned; /* of a device whose memory is limited, with card and wish */
    const ls_card *card;
    ls_train_wish wish;
    ls_train_plan plan;
    bool on_paper; /* only to see what it takes: there are no other processes */
    ls_order *order;
    ls_run *records; /* NULL but on rank 0 */
    bool stopped;
    ls_data *data;        /* NULL: pairs */
    bool *is_held_out;    /* [n] */
    int64_t n_train;      /* sequences that are learnt from */
    float *held_logprobs; /* rows of the held-out sequences' forward */
    /* Data: sequence i is tokens [offsets[i], offsets[i + 1]); those that are not given are learnt. */
    int32_t *tokens;
    uint8_t *learnt; /* as tokens: 0 or 1 */
    int64_t *offsets;
    int64_t n, tokens_cap, learnt_cap, longest;
    uint64_t digest;
    /* A batch: its rows are the sequences' tokens but their last. */
    int32_t *batch_tokens;
    int64_t *batch_offsets, *batch_targets;
    int64_t *drawn, *drawn_lengths,
        *drawn_order; /* [batch]: its sequences, their rows, which of them is at each place */
} sft;

static bool is_first(const sft *s) { return s->o->train.own_rank.rank == 0; }
static const char *weights_of(const sft *s) { return ls_train_options_weights(&s->o->train, s->begin); }

/* ---- data ---- */

static ls_status check_ids(const sft *s, const ls_pair *p, const char *path, const char *field, const int32_t *ids,
                           int64_t n, ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= s->model->config.vocab)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: %s[%lld]: %d is not in 0..%d", path, (long long)p->line,
                           field, (long long)i, ids[i], s->model->config.vocab - 1);
    return LS_OK;
}

/* Fills in the ids of a pair of texts. */
static ls_status encode_pair(const sft *s, const ls_tokenizer *tokenizer, ls_pair *p, const char *path, ls_error *err) {
    const ls_model_config *c = &s->model->config;
    int64_t cap;
    ls_status status;
    LS_TRY_DONE(ls_tokenizer_encode(tokenizer, p->prompt, p->prompt_bytes, true, &p->prompt_ids, &p->n_prompt, err));
    LS_TRY_DONE(ls_tokenizer_encode(tokenizer, p->completion, p->completion_bytes, false, &p->completion_ids,
                                    &p->n_completion, err));
    cap = p->n_completion;
    if (s->o->append_eos && c->n_eos > 0) {
        LS_TRY_DONE(ls_array_grow((void **)&p->completion_ids, &cap, p->n_completion + 1, sizeof(int32_t), "ids", err));
        p->completion_ids[p->n_completion++] = c->eos[0];
    }
    if (p->n_prompt == 0 || p->n_completion == 0)
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s is no token", p->n_prompt == 0 ? "prompt" : "completion");
done:
    if (status != LS_OK) ls_error_prefix(err, "%s: line %lld", path, (long long)p->line);
    return status;
}

/* Takes n tokens as the next sequence, with what of them is learnt. */
static ls_status add_tokens(sft *s, int64_t i, const int32_t *ids, const uint8_t *learnt, int64_t n, const char *path,
                            int64_t line, ls_error *err) {
    const int64_t at = s->offsets[i];
    if (s->o->length > 0 && n > s->o->length) {
        return LS_FAIL(err, LS_ERR_CAPACITY, "%s: line %lld: %lld tokens; the limit is %lld (length)", path,
                       (long long)line, (long long)n, (long long)s->o->length);
    }
    LS_TRY(ls_array_grow((void **)&s->tokens, &s->tokens_cap, at + n, sizeof *s->tokens, "tokens", err));
    LS_TRY(ls_array_grow((void **)&s->learnt, &s->learnt_cap, at + n, 1, "tokens", err));
    memcpy(s->tokens + at, ids, (size_t)n * sizeof *ids);
    memcpy(s->learnt + at, learnt, (size_t)n);
    s->offsets[i + 1] = at + n;
    if (n > s->longest) s->longest = n;
    return LS_OK;
}

static ls_status add_trained_sequence(sft *s, int64_t i, const ls_pair *p, const char *path, ls_error *err) {
    const int64_t n = p->n_prompt + p->n_completion;
    int32_t *ids = NULL;
    uint8_t *learnt = NULL;
    ls_status status;
    LS_TRY_DONE(check_ids(s, p, path, "prompt_ids", p->prompt_ids, p->n_prompt, err));
    LS_TRY_DONE(check_ids(s, p, path, "completion_ids", p->completion_ids, p->n_completion, err));
    LS_TRY_DONE(ls_array_alloc((void **)&ids, n, sizeof *ids, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&learnt, n, 1, "tokens", err));
    memcpy(ids, p->prompt_ids, (size_t)p->n_prompt * sizeof *ids);
    memcpy(ids + p->n_prompt, p->completion_ids, (size_t)p->n_completion * sizeof *ids);
    memset(learnt + p->n_prompt, 1, (size_t)p->n_completion);
    status = add_tokens(s, i, ids, learnt, n, path, p->line, err);
done:
    free(ids);
    free(learnt);
    return status;
}

static ls_status reserve_rows(sft *s, int64_t n, ls_error *err) {
    s->n = n;
    LS_TRY(ls_array_alloc((void **)&s->offsets, n + 1, sizeof *s->offsets, "sequences", err));
    return ls_array_alloc((void **)&s->is_held_out, n, sizeof *s->is_held_out, "sequences", err);
}

static ls_status read_pairs(sft *s, ls_error *err) {
    const char *path = s->o->data.data;
    ls_pair *pairs = NULL;
    ls_tokenizer *tokenizer = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_pairs_read(&pairs, &n, path, err));
    LS_TRY_DONE(reserve_rows(s, n, err));
    for (int64_t i = 0; i < n; i++) {
        if (pairs[i].prompt != NULL) {
            if (tokenizer == NULL) LS_TRY_DONE(ls_tokenizer_open(&tokenizer, weights_of(s), err));
            LS_TRY_DONE(encode_pair(s, tokenizer, &pairs[i], path, err));
        }
        LS_TRY_DONE(add_trained_sequence(s, i, &pairs[i], path, err));
        ls_pair_deinit(&pairs[i]);
    }
    s->n_train = n;
done:
    ls_tokenizer_free(tokenizer);
    ls_pairs_free(pairs, pairs == NULL ? 0 : n);
    return status;
}

/* A conversation, of which the assistant's part is learnt. */
static ls_status add_chat(sft *s, int64_t i, const ls_tokenizer *tokenizer, const ls_chat *chat,
                          const ls_data_line *line, const char *path, ls_error *err) {
    ls_template_output text = {0};
    int32_t *ids = NULL;
    uint8_t *learnt = NULL;
    int64_t n = 0, any = 0;
    char place[1200];
    ls_status status;
    snprintf(place, sizeof place, "%.1100s: line %lld", path, (long long)line->line);
    LS_TRY_DONE(ls_chat_render_learnt(chat, line->prompt, line->prompt_bytes, place, &text, err));
    LS_TRY_DONE(ls_chat_encode(tokenizer, &text, &ids, &learnt, &n, err));
    for (int64_t k = 1; k < n; k++) any += learnt[k];
    for (int64_t k = 0; k < n && status == LS_OK; k++)
        if (ids[k] >= s->model->config.vocab)
            status =
                LS_FAIL(err, LS_ERR_FORMAT, "messages: token %d is not in 0..%d", ids[k], s->model->config.vocab - 1);
    if (status == LS_OK && any == 0)
        status = LS_FAIL(err, LS_ERR_FORMAT, "messages: no token of the assistant is left to learn");
    if (status == LS_OK) status = add_tokens(s, i, ids, learnt, n, path, line->line, err);
done:
    if (status != LS_OK && strncmp(err->text, place, strlen(place)) != 0) ls_error_prefix(err, "%s", place);
    ls_template_output_deinit(&text);
    free(ids);
    free(learnt);
    return status;
}

/* A line's prompt and answer as a pair that is encoded; its texts stay the line's. */
static ls_status add_data_line(sft *s, int64_t i, const ls_tokenizer *tokenizer, const ls_data_line *line,
                               const char *path, ls_error *err) {
    ls_pair pair = {.line = line->line,
                    .prompt = line->prompt,
                    .prompt_bytes = line->prompt_bytes,
                    .completion = line->answer,
                    .completion_bytes = line->answer_bytes};
    ls_status status;
    if (line->answer_bytes == 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: %s: missing or empty", path, (long long)line->line,
                       s->o->data.answer[0] != '\0' ? s->o->data.answer : "answer");
    LS_TRY_DONE(encode_pair(s, tokenizer, &pair, path, err));
    LS_TRY_DONE(add_trained_sequence(s, i, &pair, path, err));
done:
    free(pair.prompt_ids);
    free(pair.completion_ids);
    return status;
}

static ls_status read_lines(sft *s, ls_error *err) {
    const ls_data_options options = ls_data_options_of(&s->o->data, s->o->train.seed);
    const ls_data_line *line;
    const char *path;
    ls_tokenizer *tokenizer = NULL;
    ls_chat *chat = NULL;
    ls_status status;
    LS_TRY_DONE(ls_data_open(&s->data, &options, err));
    s->n_train = ls_data_count(s->data, LS_DATA_TRAIN);
    LS_TRY_DONE(reserve_rows(s, s->n_train + ls_data_count(s->data, LS_DATA_HELD_OUT), err));
    LS_TRY_DONE(ls_tokenizer_open(&tokenizer, weights_of(s), err));
    for (int64_t i = 0; ls_data_each(s->data, i, &line, &path); i++) {
        if (line->is_chat && chat == NULL) LS_TRY_DONE(ls_chat_open(&chat, weights_of(s), NULL, err));
        LS_TRY_DONE(line->is_chat ? add_chat(s, i, tokenizer, chat, line, path, err)
                                  : add_data_line(s, i, tokenizer, line, path, err));
    }
    for (int64_t i = 0; i < s->n - s->n_train; i++) s->is_held_out[ls_data_index(s->data, LS_DATA_HELD_OUT, i)] = true;
    s->digest = ls_data_digest(s->data);
done:
    ls_chat_free(chat);
    ls_tokenizer_free(tokenizer);
    return status;
}

/* Whether the data are one file of pairs, with nothing said of its fields. */
static ls_status are_pairs(bool *out, const sft *s, ls_error *err) {
    const ls_data_config *d = &s->o->data;
    *out = false;
    if (strchr(d->data, ',') != NULL || d->eval_data[0] != '\0' || d->prompt[0] != '\0' || d->answer[0] != '\0' ||
        d->id[0] != '\0' || d->template[0] != '\0' || d->held_out > 0)
        return LS_OK;
    if (!ls_file_exists(d->data) && strchr(d->data, ':') != NULL) return LS_OK; /* a weight behind it */
    return ls_pairs_detect(out, d->data, err);
}

/* Of where loss lies. Sequences whose given tokens all come first are mixed by their number, as they always were, so
 * that runs which were begun before go on. */
static uint64_t mix_prompts(const sft *s, uint64_t digest) {
    for (int64_t i = 0; i < s->n; i++) {
        const uint8_t *learnt = s->learnt + s->offsets[i];
        const int64_t n = s->offsets[i + 1] - s->offsets[i];
        int64_t given = 0, after;
        while (given < n && learnt[given] == 0) given++;
        for (after = given; after < n && learnt[after] != 0;) after++;
        digest = ls_fnv_mix(digest, &given, (int64_t)sizeof given);
        if (after < n) digest = ls_fnv_mix(digest, learnt, n);
    }
    return digest;
}

static ls_status read_data(sft *s, ls_error *err) {
    bool pairs;
    s->digest = LS_FNV_START;
    LS_TRY(are_pairs(&pairs, s, err));
    LS_TRY(pairs ? read_pairs(s, err) : read_lines(s, err));
    s->digest = ls_fnv_mix(s->digest, s->tokens, s->offsets[s->n] * (int64_t)sizeof *s->tokens);
    s->digest = ls_fnv_mix(s->digest, s->offsets, (s->n + 1) * (int64_t)sizeof *s->offsets);
    s->digest = mix_prompts(s, s->digest);
    if (s->o->eval_every > 0 && s->n == s->n_train)
        return LS_FAIL(err, LS_ERR_ARG, "eval_every: no line of data is held out; set held_out or eval_data");
    return LS_OK;
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

/* Sequence k at the batch's row `row`; returns how many completion tokens it adds, and moves row on. */
static int64_t lay_out_batch(sft *s, int64_t k, int64_t *row) {
    const int32_t *tokens = s->tokens + s->offsets[k];
    const int64_t n_rows = s->offsets[k + 1] - s->offsets[k] - 1;
    int64_t count = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        const bool counts = s->learnt[s->offsets[k] + r + 1] != 0;
        s->batch_tokens[*row + r] = tokens[r];
        s->batch_targets[*row + r] = counts ? tokens[r + 1] : -1;
        count += counts;
    }
    *row += n_rows;
    return count;
}

/* The batch of a step; its count is the number of completion tokens. */
static ls_status draw_batch(ls_train_batch *out, sft *s, int64_t step, ls_error *err) {
    const int64_t n = s->o->batch;
    int64_t row = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (step - 1) * n + i;
        const int64_t k = s->data != NULL ? ls_data_index(s->data, LS_DATA_TRAIN, at) : ls_order_at(s->order, at);
        s->drawn[i] = k;
        s->drawn_lengths[i] = s->offsets[k + 1] - s->offsets[k] - 1;
    }
    LS_TRY(ls_train_options_order(s->drawn_order, s->drawn_lengths, n, &s->o->train, err));
    for (int64_t i = 0; i < n; i++) {
        count += lay_out_batch(s, s->drawn[s->drawn_order[i]], &row);
        s->batch_offsets[i + 1] = row;
    }
    *out = (ls_train_batch){s->batch_tokens, s->batch_offsets, s->batch_targets, n, (double)count, NULL};
    return LS_OK;
}

/* The mean of -log-probability over the completion tokens of all held-out sequences, in their order. */
static ls_status measure_held_out(sft *s, double *loss, ls_error *err) {
    double sum = 0.0;
    int64_t total = 0;
    for (int64_t k = 0; k < s->n;) {
        int64_t n = 0, row = 0;
        for (; k < s->n && n < s->o->batch; k++) {
            if (!s->is_held_out[k]) continue;
            total += lay_out_batch(s, k, &row);
            s->batch_offsets[++n] = row;
        }
        if (n == 0) break;
        const ls_train_batch batch = {s->batch_tokens, s->batch_offsets, s->batch_targets, n, 1.0, NULL};
        LS_TRY(ls_trainer_score(s->trainer, &batch, s->held_logprobs, err));
        for (int64_t r = 0; r < row; r++)
            if (s->batch_targets[r] >= 0) sum -= (double)s->held_logprobs[r];
    }
    *loss = sum / (double)total;
    return LS_OK;
}

static ls_status log_step(sft *s, const ls_train_batch *b, const ls_train_stats *stats, double seconds, double held_out,
                          ls_error *err) {
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"epoch", (double)(stats->step * s->o->batch) / (double)s->n_train},
                   {LS_METRIC_LOSS, stats->totals[0] / b->count},
                   {"tokens", b->count},
                   {"rows", (double)b->offsets[b->n]},
                   {"gradient_norm", stats->norm},
                   {"gradient_clipped", stats->clipped ? 1 : 0},
                   {"learning_rate", stats->rate}};
    LS_TRY(ls_run_step_begin(s->records, stats->step, err));
    ls_run_step_seconds(s->records, seconds);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        ls_run_metric(s->records, numbers[i].name, numbers[i].value);
    if (!isnan(held_out)) ls_run_metric(s->records, LS_METRIC_HELD_OUT_LOSS, held_out);
    ls_run_metric(s->records, LS_METRIC_SPEED, (double)b->offsets[b->n] / seconds);
    return ls_run_step_commit(s->records, err);
}

static ls_status save_step(sft *s, const ls_config *config, ls_error *err);

static bool is_due(int64_t every, int64_t step, int64_t last) {
    return every > 0 && (step % every == 0 || step == last);
}

static void show_step_of(sft *s, const ls_train_stats *stats, const ls_train_batch *batch, double seconds,
                         double held_out, double *shown) {
    const int64_t steps = s->o->train.steps;
    char rate[LS_DOUBLE_TEXT_MAX];
    if (s->progress == NULL ||
        (isnan(held_out) && ls_clock_seconds() - *shown <= PROGRESS_SECONDS && stats->step < steps))
        return;
    ls_double_round(rate, stats->rate, 4);
    fprintf(s->progress, "step %lld/%lld  loss %.5f  norm %.4f  rate %s  %.0f tokens/s", (long long)stats->step,
            (long long)steps, stats->totals[0] / batch->count, stats->norm, rate,
            (double)batch->offsets[batch->n] / seconds);
    if (!isnan(held_out)) fprintf(s->progress, "  held-out loss %.5f", held_out);
    if (ls_run_seconds_left(s->records) > 0) {
        char left[LS_DURATION_TEXT_MAX];
        ls_duration_text(left, ls_run_seconds_left(s->records));
        fprintf(s->progress, "  %s left", left);
    }
    fputc('\n', s->progress);
    *shown = ls_clock_seconds();
}

static ls_status run_steps(sft *s, const ls_config *config, ls_error *err) {
    const ls_train_options *t = &s->o->train;
    const ls_train_state *state = ls_trainer_state(s->trainer);
    double shown = 0;
    for (int64_t step = state->step + 1; step <= t->steps && !s->stopped; step++) {
        ls_train_batch batch;
        LS_TRY(draw_batch(&batch, s, step, err));
        const int64_t n_rows = batch.offsets[batch.n];
        const double start = ls_clock_seconds();
        double seconds, held_out = (double)NAN;
        ls_train_stats stats;
        LS_TRY(ls_trainer_step(s->trainer, &batch, &stats, err));
        seconds = ls_clock_seconds() - start;
        const double loss[1] = {stats.totals[0]};
        stats.totals = loss; /* the trainer's own are gone with what it scores */
        if (is_due(s->o->eval_every, step, t->steps)) LS_TRY(measure_held_out(s, &held_out, err));
        if (is_first(s)) {
            int64_t begins[2] = {0, n_rows};
            const ls_train_batch reported = {NULL, begins, NULL, 1, batch.count, NULL};
            LS_TRY(log_step(s, &reported, &stats, seconds, held_out, err));
            show_step_of(s, &stats, &reported, seconds, held_out, &shown);
        }
        LS_TRY(ls_stop_asked(&s->stopped, s->comm, err));
        s->stopped = s->stopped && step < t->steps;
        if (s->stopped || step == t->steps || is_due(t->save_every, step, t->steps))
            LS_TRY(save_step(s, config, err));
        else
            LS_TRY(ls_saves_look(s->run, state, err));
        if (s->stopped) LS_TRY(ls_saves_wait(s->run, state, err));
        if (s->stopped) ls_stop_tell(s->progress, step, t->run);
    }
    return ls_saves_wait(s->run, state, err);
}

/* ---- the run ---- */

static ls_saves_description describe_saves(const sft *s, const ls_config *config, char numerics[LS_NUMERICS_BYTES],
                                           ls_saves_position *position) {
    ls_train_options_numerics(numerics, &s->o->train);
    return (ls_saves_description){"sft", numerics, s->digest, config, ls_train_options_free(&s->o->train), position, 1};
}

static ls_status save_step(sft *s, const ls_config *config, ls_error *err) {
    const ls_train_state *state = ls_trainer_state(s->trainer);
    char numerics[LS_NUMERICS_BYTES];
    ls_saves_position position = {"drawn", state->step * s->o->batch};
    const ls_saves_description d = describe_saves(s, config, numerics, &position);
    return ls_saves_save(s->run, state, &d, s->o->train.keep, err);
}

/* Where the run begins: at its newest checkpoint, or with the model. */
static ls_status find_beginning(sft *s, ls_error *err) {
    const ls_train_options *t = &s->o->train;
    int64_t step;
    snprintf(s->checkpoints, sizeof s->checkpoints, "%s/checkpoints", t->run);
    if (is_first(s)) LS_TRY(ls_directory_make(t->run, err));
    LS_TRY(ls_saves_open(&s->run, s->checkpoints, is_first(s), err));
    snprintf(s->begin, sizeof s->begin, "%s", t->model);
    /* Without resume only rank 0 looks at the directory, which it has just made. */
    if (is_first(s) || t->resume) {
        LS_TRY(ls_saves_newest(s->run, &step, s->begin, err));
        if (step >= 0 && !t->resume) {
            return LS_FAIL(err, LS_ERR_ARG,
                           "%s: the run has checkpoints, the newest of step %lld; set resume=true "
                           "to go on, or choose another run",
                           t->run, (long long)step);
        }
        if (step >= 0)
            s->begin_step = step;
        else
            snprintf(s->begin, sizeof s->begin, "%s", t->model);
    }
    if (is_first(s)) LS_TRY(ls_saves_keep_files(s->run, weights_of(s), err));
    return LS_OK;
}

static ls_status make_trainer(sft *s, const ls_config *config, ls_error *err) {
    const ls_sft_options *o = s->o;
    ls_trainer_opts opts = {.temperature = 1.0f, .sequences_max = o->batch, .n_metrics = 1, .loss = completion_loss};
    uint64_t identity = ls_config_digest(config);
    ls_train_options_trainer(&opts, &o->train, &s->plan);
    if (!ls_mul_i64(o->train.leaf < o->batch ? o->train.leaf : o->batch, s->longest, &opts.leaf_rows_max))
        return LS_FAIL(err, LS_ERR_NOMEM, "a leaf of %lld sequences of %lld tokens", (long long)o->train.leaf,
                       (long long)s->longest);
    identity = ls_fnv_mix(identity, &s->digest, (int64_t)sizeof s->digest);
    identity = ls_fnv_mix(identity, &o->train.steps, (int64_t)sizeof o->train.steps);
    if (s->on_paper)
        LS_TRY(ls_comm_open_on_paper(&s->comm, (int32_t)o->train.own_rank.rank, (int32_t)o->train.own_rank.ranks, err));
    else
        LS_TRY(ls_train_options_comm(&s->comm, &o->train, s->device, identity, err));
    opts.comm = s->comm;
    s->rows_max = opts.rows_max;
    return ls_trainer_create(&s->trainer, s->model, weights_of(s), s->device, &opts, err);
}

/* ---- the plan ---- */

static ls_status open_sft_model(sft *s, ls_error *err) {
    return ls_train_options_open(&s->model, s->device, weights_of(s), (ls_weights_kind)s->o->train.weights, false,
                                 &s->o->train, err);
}

static void close_memory(sft *s) {
    ls_trainer_free(s->trainer);
    ls_comm_close(s->comm);
    ls_model_close(s->model);
}

typedef struct rehearsal {
    const sft *run;
    const ls_config *config;
} rehearsal;

/* As ls_sft_run does it, on paper. */
static ls_status rehearse(void *context, ls_device *device, ls_train_plan *plan, ls_train_outlook *out,
                          void (*look)(void *looker, const ls_device *device), void *looker, ls_error *err) {
    const rehearsal *r = context;
    ls_sft_options *o = NULL;
    sft s = *r->run;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&o, 1, sizeof *o, "plan", err));
    *o = *r->run->o; /* whose profile the model chooses */
    s.o = o;
    s.device = device;
    s.plan = *plan;
    s.on_paper = true;
    s.model = NULL;
    LS_TRY_DONE(open_sft_model(&s, err));
    LS_TRY_DONE(make_trainer(&s, r->config, err));
    LS_TRY_DONE(ls_trainer_rehearse(s.trainer, s.longest, err));
    plan->workspace = device->exec.workspace_bytes;
    plan->gradients = ls_trainer_device_gradients(s.trainer);
    *out = ls_trainer_outlook(s.trainer);
    look(looker, device);
done:
    close_memory(&s);
    free(o);
    return status;
}

static ls_train_wish wish_of(const sft *s) {
    ls_train_wish wish = {0};
    ls_train_options_wish(&wish, &s->o->train);
    wish.sequences = (s->o->batch - 1) / s->o->train.own_rank.ranks + 1;
    wish.longest = s->longest;
    return wish;
}

/* A run on paper of options that are changed, and the memory that it has. */
typedef struct variant {
    sft s;
    ls_sft_options o;
    const ls_config *config;
    int64_t total, taken;
} variant;

static bool variant_fits(void *context) {
    variant *v = context;
    rehearsal r = {&v->s, v->config};
    v->s.wish = wish_of(&v->s);
    return ls_train_plan_fits(v->s.card, v->total, v->taken, &v->s.wish, rehearse, &r);
}

static void suggest(const sft *s, const ls_config *config, int64_t total, int64_t taken, ls_error *err) {
    variant *v = calloc(1, sizeof *v);
    if (v == NULL || err == NULL) return;
    *v = (variant){*s, *s->o, config, total, taken};
    v->s.o = &v->o;
    ls_train_plan_suggest(err, &v->o.train, NULL, variant_fits, v);
    free(v);
}

static ls_status plan_for(sft *s, const ls_config *config, const ls_card *card, int64_t total, int64_t taken,
                          ls_error *err) {
    rehearsal r = {s, config};
    ls_status status;
    s->card = card;
    s->wish = wish_of(s);
    if (s->memory.is_limited) s->wish.host_bytes = ls_train_options_host_bytes(&s->o->train);
    status = ls_train_plan_make(&s->planned, card, total, taken, &s->wish, rehearse, &r, err);
    if (status == LS_ERR_CAPACITY) suggest(s, config, total, taken, err);
    s->plan = s->planned.plan;
    return status;
}

/* What carries no bit; the data is read, and the model is open, which the plan has as well. */
static ls_status make_plan(sft *s, const ls_config *config, ls_error *err) {
    const ls_train_options *t = &s->o->train;
    const ls_memory_state *memory = &s->memory;
    const ls_train_wish wish = wish_of(s);
    int64_t rows;
    if (memory->is_limited) {
        LS_TRY(plan_for(s, config, ls_card_like(s->device, memory->total), memory->total, memory->total - memory->free,
                        err));
        return ls_device_prepare(s->device, s->plan.workspace, err);
    }
    rows = t->microbatch < s->o->batch / t->leaf ? t->microbatch * t->leaf : s->o->batch;
    if (!ls_mul_i64(rows, s->longest, &rows))
        return LS_FAIL(err, LS_ERR_NOMEM, "a forward of sequences of %lld tokens", (long long)s->longest);
    s->plan = ls_train_plan_plain(&wish, rows);
    return LS_OK;
}

static void print_plan(const sft *s) {
    const ls_sft_options *o = s->o;
    int64_t learnt = 0;
    char memory[400];
    if (s->progress == NULL) return;
    for (int64_t i = 0; i < s->offsets[s->n]; i++) learnt += s->learnt[i];
    if (s->begin_step > 0) fprintf(s->progress, "going on from %s\n", s->begin);
    fprintf(s->progress,
            "%lld sequences, %lld tokens of which %lld are learnt, the longest %lld; %lld steps of %lld sequences\n"
            "%lld parameters; weights, moments and gradients %.1f MB, forwards of at most %lld tokens\n",
            (long long)s->n_train, (long long)s->offsets[s->n], (long long)learnt, (long long)s->longest,
            (long long)o->train.steps, (long long)o->batch,
            (long long)ls_trainer_state(s->trainer)->parameters->n_elements,
            (double)ls_trainer_bytes(s->trainer) * 1e-6, (long long)s->rows_max);
    if (ls_trainer_host_bytes(s->trainer) > 0)
        fprintf(s->progress, "%.1f MB of gradients and moments wait in the host's memory\n",
                (double)ls_trainer_host_bytes(s->trainer) * 1e-6);
    if (s->planned.n_fit > 0) ls_train_plan_tell(s->progress, &s->planned, s->card, &s->wish);
    ls_saves_tell(s->progress, s->run);
    ls_train_options_tell_weights(s->progress, ls_trainer_state(s->trainer)->weights);
    ls_memory_tell(s->device, memory, sizeof memory);
    fprintf(s->progress, "%s\n", memory);
    if (s->model->config.positions_max > 0 && s->longest > s->model->config.positions_max)
        fprintf(s->progress,
                "the longest sequence has %lld tokens, and the model is made for %lld (max_position_embeddings); "
                "length refuses longer ones\n",
                (long long)s->longest, (long long)s->model->config.positions_max);
    if (s->begin_step >= o->train.steps) ls_stop_tell_done(s->progress, s->begin_step, o->train.steps);
    ls_train_options_tell_adapters(s->progress, ls_trainer_state(s->trainer)->parameters);
    ls_train_options_tell_rate(s->progress, &o->train, s->begin_step, o->train.steps);
}

/* Where the model is that the run leaves. */
static ls_status tell_model(const sft *s, ls_error *err) {
    char path[LS_SAVES_PATH_MAX];
    int64_t step;
    if (s->progress == NULL || s->stopped) return LS_OK;
    LS_TRY(ls_saves_newest(s->run, &step, path, err));
    if (step >= 0) fprintf(s->progress, "the model is in %s\n", path);
    return LS_OK;
}

static ls_status make_batch(sft *s, ls_error *err) {
    const int64_t n = s->o->batch;
    LS_TRY(ls_array_alloc((void **)&s->batch_tokens, n, s->longest * (int64_t)sizeof *s->batch_tokens, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->batch_targets, n, s->longest * (int64_t)sizeof *s->batch_targets, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->batch_offsets, n + 1, sizeof *s->batch_offsets, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->drawn, n, sizeof *s->drawn, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->drawn_lengths, n, sizeof *s->drawn_lengths, "batch", err));
    LS_TRY(ls_array_alloc((void **)&s->drawn_order, n, sizeof *s->drawn_order, "batch", err));
    if (s->data == NULL) LS_TRY(ls_order_create(&s->order, s->n, s->o->train.seed, err));
    if (s->o->eval_every > 0)
        LS_TRY(ls_array_alloc((void **)&s->held_logprobs, n, s->longest * (int64_t)sizeof *s->held_logprobs, "batch",
                              err));
    return LS_OK;
}

static ls_status resume_run(sft *s, const ls_config *config, ls_error *err) {
    char numerics[LS_NUMERICS_BYTES];
    ls_saves_position position = {"drawn", 0};
    const ls_saves_description d = describe_saves(s, config, numerics, &position);
    ls_train_state *state = ls_trainer_state(s->trainer);
    LS_TRY(ls_saves_load(s->begin, state, &d, err));
    if (state->step != s->begin_step || position.value != state->step * s->o->batch)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s/state.json: step %lld with %lld sequences drawn", s->begin,
                       (long long)state->step, (long long)position.value);
    return LS_OK;
}

static ls_status open_records(sft *s, const ls_config *config, ls_error *err) {
    const ls_train_options *t = &s->o->train;
    char *text = NULL;
    int64_t bytes = 0;
    ls_run_setup setup = {.kind = "sft", .keep = s->begin_step, .n_steps = t->steps};
    ls_status status;
    if (!is_first(s)) return LS_OK;
    LS_TRY_DONE(ls_config_text(&text, &bytes, config, err));
    setup.config = text;
    setup.config_bytes = bytes;
    status = ls_run_open_or_resume(&s->records, t->run, &setup, t->resume, err);
done:
    free(text);
    return status;
}

static void close_all(sft *s) {
    ls_run_close(s->records);
    ls_order_free(s->order);
    ls_saves_close(s->run); /* which may be writing what the trainer has */
    close_memory(s);
    ls_device_close(s->device);
    ls_data_close(s->data);
    free(s->is_held_out);
    free(s->held_logprobs);
    free(s->tokens);
    free(s->offsets);
    free(s->learnt);
    free(s->batch_tokens);
    free(s->batch_targets);
    free(s->batch_offsets);
    free(s->drawn);
    free(s->drawn_lengths);
    free(s->drawn_order);
}

ls_status ls_sft_run(ls_sft_options *o, const ls_config *config, FILE *progress, bool *stopped, ls_error *err) {
    sft s = {.o = o};
    ls_error reason = {LS_OK, ""};
    ls_status status;
    if (o->data.data[0] == '\0')
        return LS_FAIL(err, LS_ERR_ARG, "data: missing; it names a file of pairs, or of lines with prompt and answer");
    ls_interrupt_defer(true);
    LS_TRY_DONE(ls_train_options_check(&o->train, &reason));
    s.progress = is_first(&s) ? progress : NULL;
    LS_TRY_DONE(find_beginning(&s, &reason));
    LS_TRY_DONE(ls_train_options_device(&s.device, &s.choice, &o->train, &reason));
    LS_TRY_DONE(ls_train_options_choose_leaf(&o->train, o->batch, weights_of(&s), &reason));
    LS_TRY_DONE(ls_device_memory(s.device, &s.memory, &reason));
    LS_TRY_DONE(open_sft_model(&s, &reason));
    LS_TRY_DONE(read_data(&s, &reason));
    if (o->train.steps == 0) {
        int64_t taken;
        if (!ls_mul_i64(o->epochs, s.n_train, &taken)) taken = INT64_MAX;
        o->train.steps = (taken - 1) / o->batch + 1;
        LS_TRY_DONE(ls_train_options_check(&o->train, &reason));
    }
    LS_TRY_DONE(make_plan(&s, config, &reason));
    LS_TRY_DONE(make_batch(&s, &reason));
    LS_TRY_DONE(make_trainer(&s, config, &reason));
    if (s.begin_step > 0) LS_TRY_DONE(resume_run(&s, config, &reason));
    LS_TRY_DONE(ls_trainer_agree(s.trainer, &reason));
    if (o->train.save_behind) LS_TRY_DONE(ls_saves_start_writer(s.run, ls_trainer_state(s.trainer), &reason));
    LS_TRY_DONE(open_records(&s, config, &reason));
    ls_train_options_tell(progress, &s.choice, &o->train); /* of every process */
    print_plan(&s);
    LS_TRY_DONE(run_steps(&s, config, &reason));
    LS_TRY_DONE(ls_trainer_end(s.trainer, &reason));
    LS_TRY_DONE(tell_model(&s, &reason));
done:
    ls_interrupt_defer(false);
    if (status != LS_OK && s.comm != NULL) ls_comm_abort(s.comm, &reason);
    if (status != LS_OK && err != NULL) *err = reason;
    if (stopped != NULL) *stopped = s.stopped;
    close_all(&s);
    return status;
}

ls_status ls_sft_plan(ls_sft_options *o, const ls_config *config, const ls_train_target *target, FILE *out,
                      ls_error *err) {
    const ls_planned_opts paper = {.title = "paper"};
    sft s = {.o = o};
    const ls_card *card;
    int64_t total, taken;
    ls_status status;
    if (o->data.data[0] == '\0')
        return LS_FAIL(err, LS_ERR_ARG, "data: missing; it names a file of pairs, or of lines with prompt and answer");
    if (o->train.run[0] == '\0') snprintf(o->train.run, sizeof o->train.run, "plan"); /* nothing is made there */
    ls_train_options_cards(&o->train, target);
    LS_TRY_DONE(ls_train_options_check(&o->train, err));
    LS_TRY_DONE(ls_train_options_target(&card, &total, &taken, &o->train, target, err));
    snprintf(s.begin, sizeof s.begin, "%s", o->train.model);
    LS_TRY_DONE(ls_device_open_planned(&s.device, &paper, err));
    LS_TRY_DONE(ls_train_options_choose_leaf(&o->train, o->batch, weights_of(&s), err));
    LS_TRY_DONE(open_sft_model(&s, err));
    LS_TRY_DONE(read_data(&s, err));
    LS_TRY_DONE(plan_for(&s, config, card, total, taken, err));
    ls_train_plan_tell(out, &s.planned, s.card, &s.wish);
done:
    close_all(&s);
    return status;
}
