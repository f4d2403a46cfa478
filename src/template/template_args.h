/* Arguments of calls, filters and tests: by place and by name. */
#ifndef LS_TEMPLATE_TEMPLATE_ARGS_H
#define LS_TEMPLATE_TEMPLATE_ARGS_H

#include "template/template_value.h"

typedef struct ls_tpl_named {
    const char *name;
    int64_t bytes;
    ls_tpl_value value;
} ls_tpl_named;

typedef struct ls_tpl_args {
    const ls_tpl_value *list; /* [n] */
    int64_t n;
    const ls_tpl_named *named; /* [n_named] */
    int64_t n_named;
} ls_tpl_args;

#define LS_TPL_PARAMETERS_MAX 8

/* out[i] is the argument of the i-th name of `names`, which are separated by spaces, or NULL; the first `least` must be
 * there. `what` is who takes them. */
ls_status ls_tpl_bind(ls_tpl_run *run, const char *what, const ls_tpl_args *args, const char *names, int64_t least,
                      const ls_tpl_value *out[LS_TPL_PARAMETERS_MAX]);

/* An argument of a kind; another one is an error. A text that is safe is refused: Jinja would escape what it meets. */
ls_status ls_tpl_want_text(ls_tpl_run *run, const char *what, const ls_tpl_value *value);
ls_status ls_tpl_want_int(ls_tpl_run *run, const char *what, const ls_tpl_value *value, int64_t *out);

#endif
