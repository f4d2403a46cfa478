/* See the header. Owns the lines. */
#include "cli/partial.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_out.h"
#include "load/adapter_chain.h"

#define LINE_BYTES_MAX (INT64_C(1) << 30)
#define DIGEST_BYTES 17

struct ls_partial {
    const ls_job *job;
    char *path, digest[DIGEST_BYTES];
    char **lines; /* [n_requests], NULL where there is none */
};

/* ---- which generation it is ---- */

static uint64_t mix_text(uint64_t hash, const char *text) { return ls_fnv_mix(hash, text, (int64_t)strlen(text) + 1); }

static uint64_t mix_int(uint64_t hash, int64_t value) { return ls_fnv_mix(hash, &value, (int64_t)sizeof value); }

static bool is_of_model(const char *name) {
    const size_t n = strlen(name);
    return strcmp(name, "config.json") == 0 || strncmp(name, "tokenizer", 9) == 0 ||
           strcmp(name, "adapter_config.json") == 0 || (n > 12 && strcmp(name + n - 12, ".safetensors") == 0);
}

/* Names, sizes and times of the files that the model is read from. */
static ls_status mix_directory(uint64_t *hash, const char *directory, ls_error *err) {
    char **names = NULL, path[4096];
    int64_t n = 0;
    ls_file_id id;
    ls_status status;
    LS_TRY_DONE(ls_directory_list(&names, &n, directory, err));
    for (int64_t i = 0; i < n; i++) {
        if (!is_of_model(names[i])) continue;
        if (snprintf(path, sizeof path, "%s/%s", directory, names[i]) >= (int)sizeof path) {
            status = LS_FAIL(err, LS_ERR_IO, "%.200s: the path is too long", directory);
            goto done;
        }
        LS_TRY_DONE(ls_file_identify(&id, path, err));
        *hash = mix_text(*hash, names[i]);
        *hash = mix_int(mix_int(mix_int(*hash, id.bytes), id.changed_s), id.changed_ns);
    }
done:
    ls_names_free(names, n);
    return status;
}

/* Of an adapter, those of its bases, too. */
static ls_status mix_model(uint64_t *hash, const char *directory, ls_error *err) {
    ls_adapter_chain chain = {0};
    ls_status status;
    LS_TRY_DONE(ls_adapter_chain_open(&chain, directory, err));
    for (int64_t i = 0; i < chain.n; i++) LS_TRY_DONE(mix_directory(hash, chain.directory[i], err));
    status = mix_directory(hash, chain.home, err);
done:
    ls_adapter_chain_deinit(&chain);
    return status;
}

static ls_status make_digest(char out[DIGEST_BYTES], const ls_job *job, const ls_run_options *o, ls_error *err) {
    const double numbers[] = {(double)o->sampling.temperature, (double)o->sampling.top_p,
                              (double)o->sampling.min_p,       (double)o->penalties.presence,
                              (double)o->penalties.frequency,  (double)o->penalties.repetition};
    char numerics[LS_NUMERICS_BYTES];
    uint64_t hash = LS_FNV_START;
    LS_TRY(mix_model(&hash, o->model, err));
    ls_numerics_text(numerics, o->profile, o->dtype);
    hash = mix_text(hash, numerics);
    hash = ls_fnv_mix(hash, numbers, (int64_t)sizeof numbers);
    hash = mix_int(mix_int(hash, o->sampling.top_k), (int64_t)o->sampling.seed);
    hash = mix_int(mix_int(mix_int(hash, o->logprob_of), job->top), o->ignore_eos);
    hash = mix_int(hash, o->levers.ablation);
    for (int64_t i = 0; i < o->n_stop; i++) hash = mix_text(hash, o->stop[i]);
    for (int64_t i = 0; i < o->n_stop_ids; i++) hash = mix_int(hash, o->stop_ids[i]);
    for (int64_t i = 0; i < job->n_requests; i++) {
        const ls_request *r = &job->requests[i];
        hash = mix_text(hash, job->prompts[r->prompt_i].id);
        hash = mix_int(mix_int(mix_int(hash, r->sample_i), r->max_tokens), r->n_prompt);
        hash = ls_fnv_mix(hash, r->prompt, r->n_prompt * (int64_t)sizeof *r->prompt);
    }
    snprintf(out, DIGEST_BYTES, "%016llx", (unsigned long long)hash);
    return LS_OK;
}

/* ---- reading ---- */

/* Which requests the lines are of. */
static ls_status read_head(const ls_partial *p, const char *line, int64_t bytes, int64_t **done, int64_t *n,
                           ls_error *err) {
    static const char *const keys[] = {"lockstep_partial", "done", NULL};
    ls_json_doc *doc = NULL;
    ls_node root, node;
    const char *digest;
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, line, bytes, p->path, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_only(&root, keys, err));
    LS_TRY_DONE(ls_node_need(&root, "lockstep_partial", &node, err));
    LS_TRY_DONE(ls_node_string(&node, &digest, err));
    if (strcmp(digest, p->digest) != 0) {
        status = LS_FAIL(err, LS_ERR_ARG,
                         "%s: it is of another generation: model, prompts and options must be those that were stopped; "
                         "without --resume all is generated again",
                         p->path);
        goto done;
    }
    LS_TRY_DONE(ls_node_need_kind(&root, "done", LS_NODE_ARRAY, &node, err));
    *n = ls_node_count(&node);
    LS_TRY_DONE(ls_array_alloc((void **)done, *n, sizeof **done, "records", err));
    for (int64_t i = 0; i < *n; i++) {
        const ls_node item = ls_node_at(&node, i);
        LS_TRY_DONE(ls_node_int(&item, i == 0 ? 0 : (*done)[i - 1] + 1, p->job->n_requests - 1, &(*done)[i], err));
    }
done:
    ls_json_doc_free(doc);
    return status;
}

/* The line is the record of this request. */
static ls_status check_line(const ls_partial *p, const char *line, int64_t bytes, int64_t i, ls_error *err) {
    const ls_request *r = &p->job->requests[i];
    char *want = NULL;
    const size_t room = strlen(p->job->prompts[r->prompt_i].id) + 16;
    ls_json_doc *doc = NULL;
    ls_node root, node;
    const char *id;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&want, (int64_t)room, 1, "id", err));
    snprintf(want, room, "%s/%u", p->job->prompts[r->prompt_i].id, r->sample_i);
    LS_TRY_DONE(ls_json_doc_open(&doc, line, bytes, p->path, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need(&root, "id", &node, err));
    LS_TRY_DONE(ls_node_string(&node, &id, err));
    if (strcmp(id, want) != 0)
        status = ls_node_fail(&node, LS_ERR_FORMAT, err, "'%.100s' stands where '%.100s' belongs", id, want);
done:
    ls_json_doc_free(doc);
    free(want);
    return status;
}

static ls_status read_lines(ls_partial *p, int64_t *n_done, ls_error *err) {
    FILE *file = NULL;
    char *line = NULL;
    int64_t cap = 0, bytes, *done = NULL, n = 0;
    bool more;
    ls_status status;
    LS_TRY_DONE(ls_file_stream(&file, p->path, err));
    LS_TRY_DONE(ls_line_read(file, &line, &cap, &bytes, LINE_BYTES_MAX, &more, err));
    LS_TRY_DONE(read_head(p, more ? line : "", more ? bytes : 0, &done, &n, err));
    for (int64_t i = 0; i < n; i++) {
        LS_TRY_DONE(ls_line_read(file, &line, &cap, &bytes, LINE_BYTES_MAX, &more, err));
        if (!more) {
            status = LS_FAIL(err, LS_ERR_FORMAT, "%s: it ends after %lld of %lld records", p->path, (long long)i,
                             (long long)n);
            goto done;
        }
        LS_TRY_DONE(check_line(p, line, bytes, done[i], err));
        LS_TRY_DONE(ls_text_copy(&p->lines[done[i]], line, bytes, err));
    }
    *n_done = n;
done:
    if (file != NULL) fclose(file);
    free(done);
    free(line);
    return status;
}

ls_status ls_partial_open(ls_partial **out, int64_t *n_done, const ls_job *job, const ls_run_options *o,
                          ls_error *err) {
    const size_t room = strlen(o->out) + sizeof ".partial";
    ls_partial *p = NULL;
    ls_status status;
    *out = NULL;
    *n_done = -1;
    LS_TRY_DONE(ls_array_alloc((void **)&p, 1, sizeof *p, "records", err));
    p->job = job;
    LS_TRY_DONE(ls_array_alloc((void **)&p->path, (int64_t)room, 1, "records", err));
    snprintf(p->path, room, "%s.partial", o->out);
    LS_TRY_DONE(ls_array_alloc((void **)&p->lines, job->n_requests, sizeof *p->lines, "records", err));
    LS_TRY_DONE(make_digest(p->digest, job, o, err));
    if (o->resume && ls_file_exists(p->path)) LS_TRY_DONE(read_lines(p, n_done, err));
    *out = p;
    p = NULL;
done:
    ls_partial_free(p);
    return status;
}

void ls_partial_free(ls_partial *p) {
    if (p == NULL) return;
    for (int64_t i = 0; p->lines != NULL && i < p->job->n_requests; i++) free(p->lines[i]);
    free(p->lines);
    free(p->path);
    free(p);
}

const char *ls_partial_path(const ls_partial *p) { return p->path; }
const char *ls_partial_line(const ls_partial *p, int64_t i) { return p->lines[i]; }

/* ---- writing ---- */

ls_status ls_partial_save(const ls_partial *p, const bool *done, ls_partial_writer write, void *context,
                          ls_error *err) {
    ls_output *output = NULL;
    ls_json_out json;
    ls_status status;
    LS_TRY_DONE(ls_output_open(&output, p->path, err));
    ls_json_init(&json, ls_output_stream(output));
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "lockstep_partial", p->digest);
    ls_json_begin_array(&json, "done");
    for (int64_t i = 0; i < p->job->n_requests; i++)
        if (p->lines[i] != NULL || done[i]) ls_json_int(&json, NULL, i);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
    for (int64_t i = 0; i < p->job->n_requests; i++) {
        if (p->lines[i] != NULL)
            fprintf(ls_output_stream(output), "%s\n", p->lines[i]);
        else if (done[i])
            LS_TRY_DONE(write(context, ls_output_stream(output), i, err));
    }
    status = ls_output_commit(output, err);
    output = NULL;
done:
    ls_output_abandon(output);
    return status;
}
