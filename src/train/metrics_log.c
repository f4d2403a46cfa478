/* Owns the open file. */
#include "train/metrics_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "load/json_node.h"

#define LINE_BYTES_MAX (1 << 24)

struct ls_metrics_log {
    FILE *file;
    char *path;
    ls_json_out json;
};

/* Whether the line is whole and of a step up to this one. */
static bool is_kept(const char *line, int64_t bytes, int64_t step) {
    ls_json_doc *doc;
    ls_node root, child;
    int64_t found;
    bool kept;
    if (ls_json_doc_open(&doc, line, bytes, "metrics", NULL) != LS_OK) return false;
    root = ls_json_root(doc);
    kept = ls_node_get(&root, "step", &child) && ls_node_int(&child, 0, step, &found, NULL) == LS_OK;
    ls_json_doc_free(doc);
    return kept;
}

static ls_status drop_later_lines(const char *path, int64_t step, ls_error *err) {
    FILE *file = fopen(path, "rb");
    ls_output *output = NULL;
    char *line = NULL;
    int64_t cap = 0, bytes;
    bool more;
    ls_status status = LS_OK;
    if (file == NULL && errno == ENOENT) return LS_OK;
    if (file == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    LS_TRY(ls_output_open(&output, path, err));
    for (;;) {
        if ((status = ls_line_read(file, &line, &cap, &bytes, LINE_BYTES_MAX, &more, err)) != LS_OK) {
            ls_error_prefix(err, "%s", path);
            goto done;
        }
        if (!more) break;
        if (is_kept(line, bytes, step)) fprintf(ls_output_stream(output), "%s\n", line);
    }
    status = ls_output_commit(output, err);
    output = NULL;
done:
    ls_output_abandon(output);
    free(line);
    fclose(file);
    return status;
}

ls_status ls_metrics_log_open(ls_metrics_log **out, const char *path, int64_t step, ls_error *err) {
    ls_metrics_log *log = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY(drop_later_lines(path, step, err));
    LS_TRY(ls_array_alloc((void **)&log, 1, sizeof *log, "metrics", err));
    LS_TRY(ls_text_copy(&log->path, path, (int64_t)strlen(path), err));
    log->file = fopen(path, "ab");
    if (log->file == NULL) {
        status = LS_FAIL(err, LS_ERR_IO, "%s: cannot open for writing: %s", path, strerror(errno));
        goto done;
    }
    *out = log;
    log = NULL;
done:
    ls_metrics_log_close(log);
    return status;
}

void ls_metrics_log_close(ls_metrics_log *log) {
    if (log == NULL) return;
    if (log->file != NULL) fclose(log->file);
    free(log->path);
    free(log);
}

ls_json_out *ls_metrics_log_begin(ls_metrics_log *log, int64_t step) {
    ls_json_init(&log->json, log->file);
    ls_json_begin_object(&log->json, NULL);
    ls_json_int(&log->json, "step", step);
    return &log->json;
}

ls_status ls_metrics_log_end(ls_metrics_log *log, ls_error *err) {
    ls_json_end_object(&log->json);
    ls_json_newline(&log->json);
    if (fflush(log->file) != 0 || ferror(log->file) != 0)
        return LS_FAIL(err, LS_ERR_IO, "%s: cannot write: %s", log->path, strerror(errno));
    return LS_OK;
}
