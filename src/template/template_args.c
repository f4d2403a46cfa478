/* Arguments; owns nothing. */
#include "template/template_args.h"

#include <string.h>

/* The place of a name in the list, or -1. */
static int64_t place_of(const char *names, const char *name, int64_t bytes) {
    int64_t place = 0;
    for (const char *at = names; *at != '\0'; place++) {
        const size_t n = strcspn(at, " ");
        if ((int64_t)n == bytes && memcmp(at, name, n) == 0) return place;
        at += n + (at[n] == ' ');
    }
    return -1;
}

static int64_t count_names(const char *names) {
    int64_t n = names[0] != '\0';
    for (const char *at = names; *at != '\0'; at++) n += *at == ' ';
    return n;
}

ls_status ls_tpl_bind(ls_tpl_run *run, const char *what, const ls_tpl_args *args, const char *names, int64_t least,
                      const ls_tpl_value *out[LS_TPL_PARAMETERS_MAX]) {
    const int64_t n = count_names(names);
    memset((void *)out, 0, LS_TPL_PARAMETERS_MAX * sizeof *out);
    if (args->n > n)
        return ls_tpl_fail(run, LS_ERR_ARG, "%.60s takes %lld arguments, not %lld", what, (long long)n,
                           (long long)args->n);
    for (int64_t i = 0; i < args->n; i++) out[i] = &args->list[i];
    for (int64_t i = 0; i < args->n_named; i++) {
        const int64_t place = place_of(names, args->named[i].name, args->named[i].bytes);
        if (place < 0 || out[place] != NULL)
            return ls_tpl_fail(run, LS_ERR_ARG, "%.60s: the argument '%.*s' is %s", what,
                               args->named[i].bytes < 60 ? (int)args->named[i].bytes : 60, args->named[i].name,
                               place < 0 ? "not one of its own" : "given twice");
        out[place] = &args->named[i].value;
    }
    for (int64_t i = 0; i < least; i++)
        if (out[i] == NULL)
            return ls_tpl_fail(run, LS_ERR_ARG, "%.60s: argument %lld is missing", what, (long long)i + 1);
    return LS_OK;
}

ls_status ls_tpl_want_text(ls_tpl_run *run, const char *what, const ls_tpl_value *v) {
    if (v->kind != LS_TPL_TEXT)
        return ls_tpl_fail(run, LS_ERR_ARG, "%.60s needs a text, not %s", what, ls_tpl_kind_name(v));
    if (v->markup) return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "%.60s of a text that is safe is not supported", what);
    return LS_OK;
}

ls_status ls_tpl_want_int(ls_tpl_run *run, const char *what, const ls_tpl_value *v, int64_t *out) {
    if (v->kind != LS_TPL_INT && v->kind != LS_TPL_BOOL)
        return ls_tpl_fail(run, LS_ERR_ARG, "%.60s needs an integer, not %s", what, ls_tpl_kind_name(v));
    *out = v->integer;
    return LS_OK;
}
