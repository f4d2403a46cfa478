/* Changes: what of weights differs from weights that somebody else has, as a directory (docs/reference/changes.md).
 *
 *   changes.json         {"format": 1, "tensors": {NAME: {"dtype", "shape", "base", "digest"}}}: every tensor of the
 *                        result, changed or not. Digests are FNV-1a, 64 bits, of a tensor's bytes, as 16 hexadecimal
 *                        digits: base is what the changes begin with, digest what they make of it
 *   changes.safetensors  of each tensor that changed gaps.NAME, U8, and values.NAME, in the tensor's type
 *
 * A gap g below 255 means that g elements stay and the next one is the next value; 255 means that 255 elements stay.
 * So positions only increase, a gap takes a byte, and a tensor may have any number of elements. Elements are compared
 * as bytes: zeros of two signs differ, and a NaN keeps its payload.
 *
 * Memory: a writer holds the changes, which stay below the size of the weights; a reader the changes of one tensor, at
 * most its elements and a byte for each. */
#ifndef LS_LOAD_CHANGES_H
#define LS_LOAD_CHANGES_H

#include "load/safetensors_write.h"

/* ---- writing ---- */

typedef struct ls_changes_out ls_changes_out;

/* The tensors are borrowed until the end. */
ls_status ls_changes_begin(ls_changes_out **out, const ls_tensor_out *tensors, int64_t n, ls_error *err);
void ls_changes_end(ls_changes_out *out); /* accepts NULL */
/* A piece of tensor i, before and after. Pieces of a tensor are whole elements and follow each other; all of all
 * tensors are added before the changes are written. base NULL: there is none to compare with, and nothing to write. */
ls_status ls_changes_add(ls_changes_out *out, int64_t i, const void *base, const void *next, int64_t bytes,
                         ls_error *err);
/* Of tensor i as it is afterwards. */
uint64_t ls_changes_digest(const ls_changes_out *out, int64_t i);
/* Both files into a directory that is there, for weights of these digests, [n]. *bytes is their size; 0 where they
 * would be no smaller than the weights, and nothing is written. */
ls_status ls_changes_write(const ls_changes_out *out, const char *directory, const uint64_t *base, int64_t *bytes,
                           ls_error *err);

/* The changes that lead from the weights of one directory to those of another one, which have the same tensors, into a
 * third one, which is there. */
ls_status ls_changes_between(const char *base, const char *next, const char *directory, int64_t *bytes, ls_error *err);

/* ---- reading ---- */

typedef struct ls_changes ls_changes;

/* Whether a directory has changes in the place of weights. */
bool ls_changes_are_in(const char *directory);
/* Reads and checks all that can be known without the weights; whole weights beside the changes are refused. */
ls_status ls_changes_open(ls_changes **out, const char *directory, ls_error *err);
/* The same over the text of changes.json and the bytes of changes.safetensors, aligned to 8 and the caller's until
 * close. */
ls_status ls_changes_parse(ls_changes **out, const char *text, int64_t text_bytes, const uint8_t *bytes,
                           int64_t n_bytes, const char *name, ls_error *err);
void ls_changes_close(ls_changes *changes);          /* accepts NULL */
int64_t ls_changes_count(const ls_changes *changes); /* tensors of the result */
/* Of a tensor of the result; false: there is none of that name. */
bool ls_changes_result(const ls_changes *changes, const char *name, uint64_t *digest);

/* Writes the result as one safetensors file, which must not exist yet: the weights of a directory, with the changes.
 * made: the changes that made those weights, whose digests are then not computed again, or NULL. Every tensor of the
 * result has its digest, or the first that has not is named, and the file is of no use. *is_other: the changes begin
 * with other weights than the directory has. */
ls_status ls_changes_apply(const ls_changes *changes, const char *directory, const ls_changes *made, const char *path,
                           bool *is_other, ls_error *err);

#endif
