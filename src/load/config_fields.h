/* Reading config.json by tables, for architectures (src/model). An architecture lists its fields; what every file of
 * Hugging Face may carry besides (bookkeeping, eos_token_id, dtype) is listed here. Errors start with the field. */
#ifndef LS_LOAD_CONFIG_FIELDS_H
#define LS_LOAD_CONFIG_FIELDS_H

#include "load/model_config.h"

/* Value of an integer that is not given and has no default: it is derived from others. */
#define LS_FIELD_ABSENT (-1)

/* An honoured integer: int64_t at this offset of the architecture's struct of raw fields. */
typedef struct ls_field_integer {
    const char *name;
    size_t offset;
    int64_t value; /* default */
    int64_t low, high;
    bool null_is_absent; /* null reads as LS_FIELD_ABSENT */
} ls_field_integer;

/* An honoured switch: int64_t 0 or 1. */
typedef struct ls_field_switch {
    const char *name;
    size_t offset;
    bool value; /* default */
} ls_field_switch;

/* A field that would change the arithmetic if it had another value than this one, which is JSON. Rows of one name are
 * values that mean the same. */
typedef struct ls_field_fixed {
    const char *name, *json;
} ls_field_fixed;

/* All fields of an architecture beside the shared ones. Each list ends with a NULL (name). */
typedef struct ls_field_tables {
    const ls_field_integer *integers;
    const ls_field_switch *switches;
    const ls_field_fixed *fixed;
    const char *const *special; /* honoured, each read by a call of its own */
    const char *const *inert;   /* accepted with any value: none reaches a logit */
} ls_field_tables;

/* Refuses fields that are in no table and fixed ones with another value, then fills the integers and switches of
 * *raw. */
ls_status ls_field_read_tables(void *raw, struct json_t *config, const ls_field_tables *fields, ls_error *err);

/* A number above 0 and at most 1, that float32 can hold. */
ls_status ls_field_read_eps(float *out, const struct json_t *config, const char *field, float by_default,
                            ls_error *err);
/* A number above 0 and at most 1e6, that float32 can hold. */
ls_status ls_field_read_factor(float *out, const struct json_t *config, const char *field, float by_default,
                               ls_error *err);
/* A positive integer of 31 bits; "auto" and nothing at all stand for by_default. */
ls_status ls_field_read_auto(int64_t *out, const struct json_t *config, const char *field, int64_t by_default,
                             ls_error *err);
/* A positive integer of 31 bits; nothing at all stands for by_default, null for LS_FIELD_ABSENT. */
ls_status ls_field_read_optional(int64_t *out, const struct json_t *config, const char *field, int64_t by_default,
                                 ls_error *err);
/* An empty list, null, or nothing at all; anything else is refused. */
ls_status ls_field_expect_empty(const struct json_t *config, const char *field, ls_error *err);
/* A list of n words, each one of two: out[i] becomes 0 or 1. Nothing at all and null leave out as it is. */
ls_status ls_field_read_pairs(uint8_t *out, int64_t n, const struct json_t *config, const char *field,
                              const char *const words[2], ls_error *err);
/* One of these words, which end with NULL, as its number; nothing at all and null stand for by_default. */
ls_status ls_field_read_word(int64_t *out, const struct json_t *config, const char *field, const char *const *words,
                             int64_t by_default, ls_error *err);
/* The kinds of layers, a letter each: from `field`, a list of words of which kinds[k], which ends with NULL, has those
 * for letters[k], or from the text of letters under `old`, NULL where there is none. Both together must agree; one must
 * be there, with 1 to n_max layers. out has n_max + 1 bytes. */
ls_status ls_field_read_kinds(char *out, int64_t n_max, const struct json_t *config, const char *field, const char *old,
                              const char *letters, const char *const kinds[][3], ls_error *err);
/* A list of numbers below n: out[i] becomes 1 for each. Nothing at all and null leave out as it is. */
ls_status ls_field_read_marks(uint8_t *out, int64_t n, const struct json_t *config, const char *field, ls_error *err);
/* [low, high] of what is clamped: numbers, 0 <= low <= high and high above 0, that float32 can hold. high may be
 * Infinity, as the word or as {"__float__": "Infinity"}. Nothing at all leaves both as they are. */
ls_status ls_field_read_limits(float *low, float *high, const struct json_t *config, const char *field, ls_error *err);
/* stored_dtype, by "dtype" or its older name "torch_dtype". */
ls_status ls_field_read_dtype(ls_model_config *out, const struct json_t *config, ls_error *err);
/* Into n_eos and eos: an id, or a list of them; null and an empty list mean that there is no end token. Nothing at all
 * leaves *out as it is. out->vocab is set. */
ls_status ls_field_read_eos(ls_model_config *out, const struct json_t *config, ls_error *err);
/* bos, pad (ids that are read already, LS_FIELD_ABSENT for none; so may eos_by_default be) and eos; out->vocab is
 * set. */
ls_status ls_field_read_tokens(ls_model_config *out, const struct json_t *config, int64_t bos, int64_t pad,
                               int64_t eos_by_default, ls_error *err);

/* Where *n_kv_heads is absent it is n_heads, which it divides; where *head_dim is absent, hidden over n_heads. */
ls_status ls_field_derive_heads(int64_t *n_kv_heads, int64_t *head_dim, int64_t n_heads, int64_t hidden, ls_error *err);

/* Rows of a matrix must fit 32 bits. */
typedef struct ls_field_rows {
    const char *name;
    int64_t rows;
} ls_field_rows;
ls_status ls_field_check_rows(const ls_field_rows *rows, int64_t n, ls_error *err);

/* The bytes of a float32 tensor must fit 64 bits. */
typedef struct ls_field_product {
    const char *name;
    int64_t factors[4];
} ls_field_product;
ls_status ls_field_check_products(const ls_field_product *products, int64_t n, ls_error *err);

#endif
