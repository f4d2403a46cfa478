/* See the header. */
#define _GNU_SOURCE
#include "serve/serve_changes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "load/changes.h"
#include "serve/serve_kept.h"
#include "serve/serve_transfer.h"

struct ls_remade {
    char directory[LS_TRANSFER_PATH_MAX]; /* "": there is none */
    ls_changes *changes;
};

static ls_status check_served(const char *served, bool *is_other, ls_error *err) {
    char path[4096];
    LS_TRY(ls_path_join(path, sizeof path, served, "adapter_config.json", err));
    *is_other = ls_file_exists(path);
    return *is_other ? LS_FAIL(err, LS_ERR_UNSUPPORTED, "an adapter is served, and changes begin with whole weights")
                     : LS_OK;
}

static ls_status fill_remade(ls_remade *r, const char *served, const ls_remade *made, bool *is_other, ls_error *err) {
    char path[LS_TRANSFER_PATH_MAX + 32];
    LS_TRY(ls_transfer_directory(r->directory, err));
    snprintf(path, sizeof path, "%s/model.safetensors", r->directory);
    LS_TRY(ls_changes_apply(r->changes, served, made != NULL ? made->changes : NULL, path, is_other, err));
    return ls_kept_others(r->directory, served, err);
}

ls_status ls_remade_make(ls_remade **out, const char *directory, const char *served, const ls_remade *made,
                         bool *is_other, ls_error *err) {
    ls_remade *r = NULL;
    ls_status status;
    *out = NULL;
    *is_other = false;
    LS_TRY_DONE(check_served(served, is_other, err));
    LS_TRY_DONE(ls_array_alloc((void **)&r, 1, sizeof *r, "weights", err));
    LS_TRY_DONE(ls_changes_open(&r->changes, directory, err));
    LS_TRY_DONE(fill_remade(r, served, made, is_other, err));
    *out = r;
    r = NULL;
done:
    ls_remade_free(r);
    return status;
}

const char *ls_remade_directory(const ls_remade *r) { return r->directory; }

void ls_remade_drop_files(ls_remade *r) {
    if (r->directory[0] != '\0') (void)ls_directory_remove(r->directory, NULL);
    r->directory[0] = '\0';
}

void ls_remade_free(ls_remade *r) {
    if (r == NULL) return;
    ls_remade_drop_files(r);
    ls_changes_close(r->changes);
    free(r);
}
