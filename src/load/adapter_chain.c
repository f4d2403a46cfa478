/* From adapter to base. */
#define _GNU_SOURCE
#include "load/adapter_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hub.h"
#include "base/mem.h"

enum { PATH_BYTES = 4096 };

static const char *known_directory, *known_base;

void ls_adapter_base_is(const char *directory, const char *base) {
    known_directory = directory;
    known_base = base;
}

static bool has_file(const char *directory, const char *name) {
    char path[PATH_BYTES];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path && ls_file_exists(path);
}

/* Weights of the base that lie beside the adapter. */
static bool same_directory(const char *a, const char *b) {
    char *x = realpath(a, NULL), *y = realpath(b, NULL);
    const bool same = x != NULL && y != NULL && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

/* The base of the adapter in a directory. */
static ls_status find_base(const char **out, const char *directory, const ls_adapter_config *config, ls_error *err) {
    char hint[LS_HUB_HINT_MAX];
    *out = config->base;
    if (known_base != NULL && same_directory(known_directory, directory)) {
        *out = known_base;
        return LS_OK;
    }
    if (*out != NULL && (has_file(*out, "config.json") || has_file(*out, "adapter_config.json"))) return LS_OK;
    if (known_base != NULL) { /* a copy of the same adapter, as a server keeps one */
        *out = known_base;
        return LS_OK;
    }
    if (*out == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s/adapter_config.json: names no base_model_name_or_path; --base names one",
                       directory);
    return LS_FAIL(err, LS_ERR_IO,
                   "%s/adapter_config.json: base_model_name_or_path: '%.200s' is no directory of a model here; --base "
                   "names it%s",
                   directory, *out, ls_hub_hint(hint, *out));
}

ls_status ls_adapter_chain_open(ls_adapter_chain *c, const char *directory, ls_error *err) {
    const char *at = directory;
    while (has_file(at, "adapter_config.json")) {
        const char *base;
        if (c->n == LS_ADAPTERS_MAX)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: an adapter of more than %d adapters, one on the other",
                           directory, LS_ADAPTERS_MAX - 1);
        LS_TRY(ls_text_copy(&c->directory[c->n], at, (int64_t)strlen(at), err));
        LS_TRY(ls_adapter_config_open(&c->config[c->n], at, err));
        c->n++;
        LS_TRY(find_base(&base, at, &c->config[c->n - 1], err));
        if (same_directory(at, base)) break;
        at = base;
    }
    return ls_text_copy(&c->home, at, (int64_t)strlen(at), err);
}

void ls_adapter_chain_deinit(ls_adapter_chain *c) {
    for (int64_t i = 0; i < LS_ADAPTERS_MAX; i++) {
        free(c->directory[i]);
        free(c->config[i].base);
    }
    free(c->home);
    *c = (ls_adapter_chain){0};
}

ls_status ls_adapter_home(char **out, const char *directory, ls_error *err) {
    ls_adapter_chain chain = {0};
    const ls_status status = ls_adapter_chain_open(&chain, directory, err);
    *out = chain.home;
    chain.home = NULL;
    ls_adapter_chain_deinit(&chain);
    return status;
}
