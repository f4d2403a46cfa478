/* The weights of layers as the processes of one machine hold them together: each has the rounded values of the elements
 * that it owns, in memory that the others map, and a layer comes into a model's layer buffer by copies from all of
 * them. It is one-sided: nobody waits for anybody, and processes may need layers in any order and at any time.
 *
 * Who may write when. Values are written by their owner alone (ls_parameter_own): while they are opened, before the
 * names are told; and then only where no process runs a pass, between two meetings of all of them. Before the first
 * each has waited for its device, so that nobody reads any more; before the second again, so that all has been written.
 */
#ifndef LS_MODEL_SHARED_WEIGHTS_H
#define LS_MODEL_SHARED_WEIGHTS_H

#include "model/params.h"

typedef struct ls_shared_weights ls_shared_weights;

/* For share `share` of n_shares, whose range `parameters` has already: memory for its values, to be filled by the
 * caller. Gives the parameters of layers their `part`. */
ls_status ls_shared_weights_open(ls_shared_weights **out, ls_parameters *parameters, int64_t share, int64_t n_shares,
                                 ls_error *err);
void ls_shared_weights_free(ls_shared_weights *shared); /* accepts NULL */
/* The name of the own memory, for the others. */
const ls_shared_name *ls_shared_weights_name(const ls_shared_weights *shared);
/* [n_shares] names, by share: from here on the model's layer buffer has a source. What was written into the own memory
 * must be there. */
ls_status ls_shared_weights_connect(ls_shared_weights *shared, const ls_shared_name *names, ls_error *err);
/* Bytes of the own memory. */
int64_t ls_shared_weights_bytes(const ls_shared_weights *shared);

#endif
