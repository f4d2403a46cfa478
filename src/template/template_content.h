/* How a template takes the content of messages. */
#ifndef LS_TEMPLATE_TEMPLATE_CONTENT_H
#define LS_TEMPLATE_TEMPLATE_CONTENT_H

#include "template/template_tree.h"

/* Whether it goes over a message's content, so that content may be a list of parts. */
bool ls_tpl_reads_parts(const ls_tpl_node *body);

#endif
