/* Operators of templates on two values, and on one. */
#ifndef LS_TEMPLATE_TEMPLATE_OPERATORS_H
#define LS_TEMPLATE_TEMPLATE_OPERATORS_H

#include "template/template_value.h"

/* + - * / // % ** */
ls_status ls_tpl_binary(ls_tpl_run *run, ls_tpl_op op, const ls_tpl_value *a, const ls_tpl_value *b, ls_tpl_value *out);
/* == != < <= > >= in, not in */
ls_status ls_tpl_operand(ls_tpl_run *run, ls_tpl_op op, const ls_tpl_value *a, const ls_tpl_value *b, bool *out);
ls_status ls_tpl_sign(ls_tpl_run *run, bool negative, const ls_tpl_value *a, ls_tpl_value *out);

#endif
