/* Weights of layers that are on the device only while they are used: a buffer of two places, layer i in place i % 2,
 * so that a layer's addresses never change. Embedding, last norm and head stay.
 *
 * A pass is one forward, one backward, one walk over all weights: it begins with ls_model_pass, behind which the buffer
 * holds nothing, and every layer is needed before a call reads one of its weights. So a recorded pass has all of its
 * layers' ways in the recording, and what it leaves behind is nobody's. Calls run in their order: a layer is brought
 * behind the last call that read the one whose place it takes.
 *
 * A sublayer reads, besides its own weights, the norm of the next one: two layers are there at once. */
#ifndef LS_MODEL_LAYER_BUFFER_H
#define LS_MODEL_LAYER_BUFFER_H

#include "model/slots.h"

typedef struct ls_layer_buffer ls_layer_buffer;

/* Puts all weights of a layer where the model has them: rows as stored, and what the model computes with. */
typedef ls_status (*ls_layer_source)(void *context, int64_t layer_i, ls_error *err);

/* A buffer for a model that is being opened: every slot of a layer is added, then all get their places. A matrix gets
 * its layout with the first call and its memory with the second. */
ls_status ls_layer_buffer_add(ls_model *model, const ls_weight_slot *slot, ls_dtype dtype, ls_error *err);
ls_status ls_layer_buffer_place(ls_model *model, ls_error *err);
void ls_layer_buffer_free(ls_model *model); /* accepts a model without one */
/* From whom layers come. */
void ls_layer_buffer_connect(ls_model *model, ls_layer_source source, void *context);
/* The rows of a slot that was added, as stored, device memory. */
void *ls_layer_buffer_value(const ls_model *model, const ls_weight_slot *slot);
/* Bytes of one of its two places, and calls that bring a layer, at most. 0 without a buffer. */
int64_t ls_layer_buffer_bytes(const ls_model *model);
int64_t ls_layer_buffer_calls(const ls_model *model);

/* Both do nothing for a model without buffer. */
void ls_model_pass(const ls_model *model);
ls_status ls_model_need(const ls_model *model, int64_t layer_i, ls_error *err);

#endif
