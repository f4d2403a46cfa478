/* Tests of templates: what stands behind `is`. */
#ifndef LS_TEMPLATE_TEMPLATE_TESTS_H
#define LS_TEMPLATE_TEMPLATE_TESTS_H

#include "template/template_args.h"

/* `value is NAME(args)`; a test that is not in the table is refused by its name. */
ls_status ls_tpl_test(ls_tpl_run *run, const char *name, int64_t bytes, const ls_tpl_value *value,
                      const ls_tpl_args *args, bool *out);

#endif
