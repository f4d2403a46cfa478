/* Drawing a sequence again under watch. Owns engine, tape and the copy of the residual stream for its duration. */
#include "rl/replay.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "model/tape.h"
#include "op/choice.h"

/* Surroundings: which sequences, how often, and what lies between. */
typedef struct surroundings {
    const char *name;
    enum { THE_SEQUENCE, ITS_GROUP, ITS_STEP } who;
    int passes;
    bool is_cold, has_new_weights;
} surroundings;

static const surroundings companies[] = {
    {"alone", THE_SEQUENCE, 1, false, false}, {"again", THE_SEQUENCE, 2, false, false},
    {"cold", THE_SEQUENCE, 2, true, false},   {"new-weights", THE_SEQUENCE, 2, false, true},
    {"group", ITS_GROUP, 1, false, false},    {"step", ITS_STEP, 1, false, false},
};

enum { CANDIDATES_MAX = 64 };

/* State of a row of the stream. */
enum { UNSEEN, BEGUN, SEEN };

typedef struct replay {
    const ls_bundle *b;
    const ls_bundle_sequence *target;
    int64_t target_i;
    const ls_replay_opts *opts;
    ls_device *device;
    ls_device_choice choice; /* which one it is */
    ls_model *model, *other; /* other: with other weights, or NULL until needed */
    ls_parameters *parameters;
    ls_tape *tape;
    ls_supports *supports;
    int64_t n_sublayers, hidden;
    /* All sequences, drawn again: where they were drawn, [n][length]. */
    int32_t *tokens;
    float *logprobs;
    ls_request *requests;
    int64_t *owners;
    /* The target's residual stream in the engine, [n_sublayers + 1][target->n][hidden]; room for the longest. */
    float *stream;
    float *trained; /* [n][hidden]: the stream behind one sublayer in the tape */
    uint8_t *seen;  /* [target->n] */
    /* The trainer's side. */
    int64_t *targets;
    float *trainer;
} replay;

/* ---- the engine's side ---- */

static uint32_t prompt_of(const replay *r, int64_t i) { return r->b->first_prompt + (uint32_t)(i / r->b->samples); }
static uint32_t sample_of(const replay *r, int64_t i) { return (uint32_t)(i % r->b->samples); }

/* Keeps each row as it was when it was first computed: what comes of it is of that time. */
static void watch_stream(void *context, const ls_request *request, int64_t pos, int64_t n_rows, int64_t sublayer,
                         const float *h) {
    replay *r = context;
    if (request->prompt_i != prompt_of(r, r->target_i) || request->sample_i != sample_of(r, r->target_i)) return;
    for (int64_t i = 0; i < n_rows && pos + i < r->target->n; i++) {
        uint8_t *seen = &r->seen[pos + i];
        if (*seen == SEEN) continue;
        memcpy(r->stream + (sublayer * r->target->n + pos + i) * r->hidden, h + i * r->hidden,
               (size_t)r->hidden * sizeof(float));
        *seen = sublayer == r->n_sublayers ? SEEN : BEGUN;
    }
}

/* The drawn tokens [*begin, *end) of a sequence's turn; false: it has none. */
static bool find_turn(const ls_bundle_sequence *s, int64_t turn, int64_t *begin, int64_t *end) {
    int64_t i = s->n_prompt;
    for (;; turn--) {
        while (i < s->n && s->mask[i - 1] == 0) i++;
        if (i == s->n) return false;
        *begin = i;
        while (i < s->n && s->mask[i - 1] != 0) i++;
        *end = i;
        if (turn == 0) return true;
    }
}

static ls_status draw_turn(replay *r, ls_engine *engine, int64_t first, int64_t end, int64_t turn, bool *any,
                           ls_replay_finding *out, ls_error *err) {
    int64_t n = 0;
    for (int64_t i = first; i < end; i++) {
        const ls_bundle_sequence *s = &r->b->sequences[i];
        const int64_t at = i * r->b->length;
        int64_t from, to;
        if (!find_turn(s, turn, &from, &to)) continue;
        r->owners[n] = i;
        r->requests[n++] = (ls_request){.prompt = s->tokens,
                                        .n_prompt = from,
                                        .prompt_i = prompt_of(r, i),
                                        .sample_i = sample_of(r, i),
                                        .max_tokens = to - from,
                                        .completion = r->tokens + at + from,
                                        .logprob = r->logprobs + at + from};
    }
    *any = n > 0;
    if (n > 0) LS_TRY(ls_engine_run(engine, r->requests, n, NULL, NULL, err));
    for (int64_t k = 0; k < n; k++)
        if (r->owners[k] == r->target_i && r->requests[k].finish == LS_FINISH_ERROR)
            snprintf(out->failure, sizeof out->failure, "%.255s", r->requests[k].error.text);
    return LS_OK;
}

static ls_status draw_target(replay *r, ls_engine *engine, int64_t first, int64_t end, ls_replay_finding *out,
                             ls_error *err) {
    bool any = true;
    memset(r->seen, UNSEEN, (size_t)r->target->n);
    out->failure[0] = '\0';
    for (int64_t turn = 0; any && out->failure[0] == '\0'; turn++)
        LS_TRY(draw_turn(r, engine, first, end, turn, &any, out, err));
    return LS_OK;
}

/* Weights that leave other states behind. */
static ls_status open_other(replay *r, const char *directory, ls_error *err) {
    if (r->other != NULL) return LS_OK;
    LS_TRY(ls_model_open(&r->other, r->device, directory, err));
    LS_TRY(ls_model_set_profile(r->other, r->b->profile, r->b->dtype, err));
    return ls_model_scale_inputs(r->other, 2.0f, err);
}

static ls_engine_opts engine_opts(const replay *r, const surroundings *around) {
    const ls_bundle *b = r->b;
    const int64_t slot = r->target->slot < 0 ? 0 : r->target->slot;
    ls_engine_opts opts = {.dtype = b->dtype,
                           .levers = b->levers,
                           .length_max = b->length,
                           .logprob_of = ls_logprob_of_drawn(&b->sampling),
                           .sampling = b->sampling,
                           .weights = 1,
                           .inject = r->opts->inject};
    if (r->opts->threads > 0) opts.levers.threads = r->opts->threads;
    if (!ls_isa_available(opts.levers.isa)) opts.levers.isa = ls_isa_best();
    if (around->is_cold && opts.levers.prefix != LS_PREFIX_OFF) opts.levers.prefix = LS_PREFIX_COLD;
    if (around->who != THE_SEQUENCE) return opts;
    opts.levers.slots = b->slots > slot ? b->slots : slot + 1;
    opts.levers.pool_share = 1.0;
    opts.levers.slot_base = slot;
    opts.levers.slot_permutation = 0;
    opts.levers.policy = LS_POLICY_LOWEST;
    return opts;
}

static ls_status draw_again(replay *r, const char *directory, const surroundings *around, ls_replay_finding *out,
                            ls_error *err) {
    const int64_t group = r->target_i - r->target_i % r->b->samples;
    const int64_t first = around->who == THE_SEQUENCE ? r->target_i : around->who == ITS_GROUP ? group : 0;
    const int64_t end = around->who == THE_SEQUENCE ? first + 1
                        : around->who == ITS_GROUP ? (group + r->b->samples < r->b->n ? group + r->b->samples : r->b->n)
                                                   : r->b->n;
    ls_engine_opts opts = engine_opts(r, around);
    ls_engine *engine = NULL;
    ls_status status;
    if (around->has_new_weights) {
        LS_TRY_DONE(open_other(r, directory, err));
        opts.weights = 0;
    }
    LS_TRY_DONE(ls_engine_create(&engine, around->has_new_weights ? r->other : r->model, r->device, &opts, err));
    LS_TRY_DONE(ls_engine_observe(engine, watch_stream, r, err));
    for (int pass = 0; pass < around->passes; pass++) {
        if (pass > 0 && around->has_new_weights) LS_TRY_DONE(ls_engine_set_weights(engine, r->model, 1, err));
        LS_TRY_DONE(draw_target(r, engine, first, end, out, err));
    }
done:
    ls_engine_free(engine);
    return status;
}

/* ---- the trainer's side ---- */

/* The sequence to look at: as recorded, or to the end of the first turn that has become another one. */
static int64_t keep_tokens(replay *r, int32_t *tokens, bool *same) {
    const ls_bundle_sequence *s = r->target;
    const int32_t *drawn = r->tokens + r->target_i * r->b->length;
    memcpy(tokens, s->tokens, (size_t)s->n * sizeof *tokens);
    *same = true;
    for (int64_t i = s->n_prompt; i < s->n; i++) {
        if (s->mask[i - 1] == 0) {
            if (!*same) return i;
            continue;
        }
        *same = *same && drawn[i] == s->tokens[i];
        tokens[i] = drawn[i];
    }
    return s->n;
}

static ls_status run_tape(replay *r, const int32_t *tokens, int64_t n, ls_error *err) {
    const int64_t offsets[2] = {0, n - 1};
    for (int64_t i = 0; i + 1 < n; i++) r->targets[i] = r->target->mask[i] != 0 ? tokens[i + 1] : -1;
    LS_TRY(ls_tape_forward(r->tape, tokens, offsets, 1, err));
    ls_supports_clear(r->supports);
    ls_tape_support(r->tape, r->supports, 0, NULL);
    return ls_tape_logprob(r->tape, r->targets, r->trainer, NULL, err);
}

static void compare_logprobs(const replay *r, int64_t n, ls_replay_finding *out) {
    const float *logprob = r->logprobs + r->target_i * r->b->length;
    out->n_tokens = out->n_differing = 0;
    for (int64_t i = 0; i + 1 < n; i++) {
        if (r->target->mask[i] == 0) continue;
        out->n_tokens++;
        if (ls_float_bits(logprob[i + 1]) == ls_float_bits(r->trainer[i])) continue;
        if (out->n_differing++ > 0) continue;
        out->row = i;
        out->rollout = logprob[i + 1];
        out->trainer = r->trainer[i];
    }
}

static void name_sublayer(const replay *r, int64_t sublayer, ls_replay_finding *out) {
    out->layer = sublayer == 0 ? -1 : (sublayer - 1) / 2;
    out->sublayer = sublayer == 0                                    ? "embedding"
                    : sublayer % 2 == 0                              ? "feed-forward"
                    : r->model->config.is_attention[out->layer] != 0 ? "mixer (attention)"
                                                                     : "mixer (mamba)";
}

/* The first row whose stream differs behind a sublayer, below `limit`; limit where there is none. */
static int64_t first_difference(const replay *r, int64_t sublayer, int64_t limit) {
    const size_t row_bytes = (size_t)r->hidden * sizeof(float);
    const float *e = r->stream + sublayer * r->target->n * r->hidden;
    int64_t p = 0;
    while (p < limit && (r->seen[p] != SEEN || memcmp(e + p * r->hidden, r->trained + p * r->hidden, row_bytes) == 0))
        p++;
    return p;
}

/* The first row that differs anywhere, and in it the first sublayer. */
static ls_status find_difference(const replay *r, int64_t n, ls_replay_finding *out, ls_error *err) {
    int64_t row = n - 1;
    for (int64_t sublayer = 0; sublayer <= r->n_sublayers; sublayer++) {
        const float *e, *t;
        int64_t p, k = 0;
        LS_TRY(ls_tape_residual(r->tape, sublayer, 0, n - 1, r->trained, err));
        p = first_difference(r, sublayer, row);
        if (p == row) continue;
        row = p;
        e = r->stream + (sublayer * r->target->n + p) * r->hidden;
        t = r->trained + p * r->hidden;
        while (ls_float_bits(e[k]) == ls_float_bits(t[k])) k++;
        out->has_place = true;
        out->position = p;
        out->element = k;
        out->engine_value = e[k];
        out->trainer_value = t[k];
        out->ulps = ls_float_ulps(e[k], t[k]);
        name_sublayer(r, sublayer, out);
    }
    return LS_OK;
}

static ls_status look_for_difference(replay *r, const surroundings *around, ls_replay_finding *out, ls_error *err) {
    int32_t *tokens = NULL;
    int64_t n = r->target->n;
    const bool failed = out->failure[0] != '\0';
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&tokens, n, sizeof *tokens, "replay", err));
    if (failed)
        memcpy(tokens, r->target->tokens, (size_t)n * sizeof *tokens);
    else
        n = keep_tokens(r, tokens, &out->same_tokens);
    LS_TRY_DONE(run_tape(r, tokens, n, err));
    out->row = -1;
    if (!failed) compare_logprobs(r, n, out);
    out->differs = failed || out->n_differing > 0;
    if (!out->differs) goto done;
    out->surroundings = around->name;
    LS_TRY_DONE(find_difference(r, n, out, err));
done:
    free(tokens);
    return status;
}

/* ---- all of it ---- */

static void aim(replay *r, int64_t sequence) {
    r->target_i = sequence;
    r->target = &r->b->sequences[sequence];
}

/* Whether the run saw a difference in this sequence. */
static bool did_differ(const ls_bundle_sequence *s) {
    for (int64_t i = 0; i + 1 < s->n; i++)
        if (s->mask[i] != 0 && ls_float_bits(s->rollout[i]) != ls_float_bits(s->trainer[i])) return true;
    return false;
}

static ls_status try(replay *r, const char *directory, const surroundings *around, ls_replay_finding *out,
                     ls_error *err) {
    LS_TRY(draw_again(r, directory, around, out, err));
    LS_TRY(look_for_difference(r, around, out, err));
    out->sequence = r->target_i;
    snprintf(out->id, sizeof out->id, "%s", r->target->id);
    return LS_OK;
}

/* The first sequence may be a victim of others; any of those that differ will do if it differs alone. */
static ls_status climb(replay *r, const char *directory, ls_replay_finding *out, ls_error *err) {
    int64_t n_tried = 0;
    for (int64_t i = r->b->sequence; i < r->b->n && n_tried < CANDIDATES_MAX && !out->differs; i++) {
        aim(r, i);
        if (!did_differ(r->target)) continue;
        n_tried++;
        LS_TRY(try(r, directory, &companies[0], out, err));
    }
    if (out->differs) return LS_OK;
    aim(r, r->b->sequence);
    for (size_t i = 1; i < sizeof companies / sizeof companies[0] && !out->differs; i++)
        LS_TRY(try(r, directory, &companies[i], out, err));
    return LS_OK;
}

static int64_t longest(const ls_bundle *b) {
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        if (b->sequences[i].n > n) n = b->sequences[i].n;
    return n;
}

static ls_status open_replay(replay *r, const char *directory, ls_error *err) {
    const ls_bundle *b = r->b;
    const int64_t rows = longest(b);
    const ls_tape_opts tape = {.dtype = b->dtype,
                               .rows_max = rows,
                               .spans_max = 1,
                               .recompute = LS_RECOMPUTE_ALL,
                               .temperature = b->sampling.temperature,
                               .truncation = ls_sampling_truncates(&b->sampling) ? &b->sampling : NULL};
    const ls_levers levers = engine_opts(r, &companies[0]).levers;
    const ls_device_wish wish = {.name = r->opts->device != NULL ? r->opts->device : LS_DEVICE_AUTO,
                                 .n_threads = levers.threads,
                                 .isa = levers.isa};
    uint64_t weights;
    LS_TRY(ls_device_open_wished(&r->device, &r->choice, &wish, err));
    LS_TRY(ls_model_open(&r->model, r->device, directory, err));
    LS_TRY(ls_model_set_profile(r->model, b->profile, b->dtype, err));
    r->n_sublayers = 2 * (int64_t)r->model->config.n_layers;
    r->hidden = r->model->config.hidden;
    LS_TRY(ls_parameters_open(&r->parameters, r->model, r->device, directory, err));
    LS_TRY(ls_parameters_digest(r->parameters, &weights, err));
    if (weights != b->weights) {
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: the weights are not those of the bundle", directory);
    }
    LS_TRY(ls_tape_create(&r->tape, r->parameters, r->device, &tape, err));
    LS_TRY(ls_supports_create(&r->supports, rows, r->model->config.vocab, err));
    LS_TRY(ls_array_alloc((void **)&r->tokens, b->n, b->length * (int64_t)sizeof *r->tokens, "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->logprobs, b->n, b->length * (int64_t)sizeof *r->logprobs, "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->requests, b->n, sizeof *r->requests, "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->owners, b->n, sizeof *r->owners, "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->stream, (r->n_sublayers + 1) * rows, r->hidden * (int64_t)sizeof *r->stream,
                          "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->trained, rows, r->hidden * (int64_t)sizeof *r->trained, "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->seen, rows, 1, "replay", err));
    LS_TRY(ls_array_alloc((void **)&r->targets, rows, sizeof *r->targets, "replay", err));
    return ls_array_alloc((void **)&r->trainer, rows, sizeof *r->trainer, "replay", err);
}

static void close_replay(replay *r) {
    ls_tape_free(r->tape);
    ls_supports_free(r->supports);
    ls_parameters_free(r->parameters);
    ls_model_close(r->other);
    ls_model_close(r->model);
    ls_device_close(r->device);
    free(r->tokens);
    free(r->logprobs);
    free(r->requests);
    free(r->owners);
    free(r->stream);
    free(r->trained);
    free(r->seen);
    free(r->targets);
    free(r->trainer);
}

ls_status ls_replay(ls_replay_finding *out, const char *directory, const ls_replay_opts *opts, ls_error *err) {
    ls_bundle *bundle = NULL;
    replay r = {.opts = opts};
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(ls_bundle_read(&bundle, directory, err));
    r.b = bundle;
    aim(&r, bundle->sequence);
    LS_TRY_DONE(open_replay(&r, directory, err));
    if (opts->notes != NULL)
        fprintf(opts->notes, "device: %s; profile %s\n", r.choice.text, ls_profile_name(r.b->profile));
    LS_TRY_DONE(climb(&r, directory, out, err));
done:
    if (status != LS_OK) ls_error_prefix(err, "replay");
    close_replay(&r);
    ls_bundle_free(bundle);
    return status;
}

/* ---- telling ---- */

void ls_finding_print(FILE *file, const ls_replay_finding *f) {
    if (!f->differs) {
        fprintf(file, "replay: no difference in any surroundings; %lld tokens agree\n", (long long)f->n_tokens);
        return;
    }
    if (f->failure[0] != '\0')
        fprintf(file, "replay of %s, '%s': the rollout fails: %s\n", f->id, f->surroundings, f->failure);
    else
        fprintf(
            file,
            "replay of %s, '%s': %lld of %lld tokens differ%s; the first is token %lld: rollout %.9g (%08x), trainer "
            "%.9g (%08x), %lld ulps\n",
            f->id, f->surroundings, (long long)f->n_differing, (long long)f->n_tokens,
            f->same_tokens ? "" : " (and other tokens are drawn)", (long long)f->row + 1, (double)f->rollout,
            ls_float_bits(f->rollout), (double)f->trainer, ls_float_bits(f->trainer),
            (long long)ls_float_ulps(f->rollout, f->trainer));
    if (!f->has_place) {
        fprintf(file,
                "place: the residual stream agrees wherever the engine computed it; what differs lies behind it "
                "(head, recording)\n");
        return;
    }
    fprintf(file, "place: position %lld, ", (long long)f->position);
    if (f->layer >= 0) fprintf(file, "layer %lld, ", (long long)f->layer);
    fprintf(file, "%s, element %lld: engine %.9g (%08x), trainer %.9g (%08x), %lld ulps\n", f->sublayer,
            (long long)f->element, (double)f->engine_value, ls_float_bits(f->engine_value), (double)f->trainer_value,
            ls_float_bits(f->trainer_value), (long long)f->ulps);
}

static void write_float(ls_json_out *json, const char *key, const char *bits_key, float value) {
    char bits[16];
    snprintf(bits, sizeof bits, "%08x", ls_float_bits(value));
    ls_json_float(json, key, value);
    ls_json_string(json, bits_key, bits);
}

void ls_finding_write(ls_json_out *json, const ls_replay_finding *f) {
    ls_json_bool(json, "differs", f->differs);
    ls_json_int(json, "tokens", f->n_tokens);
    ls_json_int(json, "differing", f->n_differing);
    if (!f->differs) return;
    ls_json_int(json, "sequence", f->sequence);
    ls_json_string(json, "id", f->id);
    ls_json_string(json, "surroundings", f->surroundings);
    if (f->failure[0] != '\0') {
        ls_json_string(json, "failure", f->failure);
    } else {
        ls_json_bool(json, "same_tokens", f->same_tokens);
        ls_json_int(json, "row", f->row);
        write_float(json, "rollout", "rollout_bits", f->rollout);
        write_float(json, "trainer", "trainer_bits", f->trainer);
        ls_json_int(json, "ulps", ls_float_ulps(f->rollout, f->trainer));
    }
    if (!f->has_place) return;
    ls_json_begin_object(json, "place");
    ls_json_int(json, "position", f->position);
    ls_json_int(json, "layer", f->layer);
    ls_json_string(json, "half", f->sublayer);
    ls_json_int(json, "element", f->element);
    write_float(json, "engine", "engine_bits", f->engine_value);
    write_float(json, "trainer", "trainer_bits", f->trainer_value);
    ls_json_int(json, "ulps", f->ulps);
    ls_json_end_object(json);
}

static ls_status fill_finding(ls_json_out *json, const void *context, ls_error *err) {
    (void)err;
    ls_json_begin_object(json, NULL);
    ls_finding_write(json, context);
    ls_json_end_object(json);
    ls_json_newline(json);
    return LS_OK;
}

ls_status ls_finding_save(const char *directory, const ls_replay_finding *finding, ls_error *err) {
    char path[LS_SAVES_PATH_MAX + 96];
    snprintf(path, sizeof path, "%s/finding.json", directory);
    return ls_json_save(path, fill_finding, finding, err);
}
