/* Filters of templates: what stands behind |. */
#ifndef LS_TEMPLATE_TEMPLATE_FILTERS_H
#define LS_TEMPLATE_TEMPLATE_FILTERS_H

#include "template/template_args.h"

/* `value | NAME(args)`; a filter that is not in the table is refused by its name. */
ls_status ls_tpl_filter(ls_tpl_run *run, const char *name, int64_t bytes, const ls_tpl_value *value,
                        const ls_tpl_args *args, ls_tpl_value *out);

#endif
