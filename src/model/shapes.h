/* Configurations of published models by name, for models with fresh weights: what measures need of a model that cannot
 * be had is its shape. */
#ifndef LS_MODEL_SHAPES_H
#define LS_MODEL_SHAPES_H

#include <stdint.h>

typedef struct ls_shape {
    const char *name;
    const char *about;
    const char *config; /* the text of its config.json, as Hugging Face reads it too; weights are stored in bf16 */
} ls_shape;

int64_t ls_shape_count(void);
const ls_shape *ls_shape_at(int64_t shape_i);
/* NULL when there is none of that name. */
const ls_shape *ls_shape_find(const char *name);

#endif
