/* What stands behind a dot or in square brackets, and methods of texts, lists and dicts. */
#ifndef LS_TEMPLATE_TEMPLATE_METHODS_H
#define LS_TEMPLATE_TEMPLATE_METHODS_H

#include "template/template_args.h"

/* value.name: a method or member, else the entry of a dict, else undefined. */
ls_status ls_tpl_attribute(ls_tpl_run *run, const ls_tpl_value *value, const ls_tpl_value *name, ls_tpl_value *out);
/* value[index]: the item, else a method, else undefined. */
ls_status ls_tpl_item(ls_tpl_run *run, const ls_tpl_value *value, const ls_tpl_value *index, ls_tpl_value *out);
/* value[begin:end:step]; NULL: left out. */
ls_status ls_tpl_slice(ls_tpl_run *run, const ls_tpl_value *value, const ls_tpl_value *begin, const ls_tpl_value *end,
                       const ls_tpl_value *step, ls_tpl_value *out);
/* Calls a LS_TPL_METHOD. */
ls_status ls_tpl_call_method(ls_tpl_run *run, const ls_tpl_value *method, const ls_tpl_args *args, ls_tpl_value *out);

#endif
