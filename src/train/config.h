/* The options of a run as tables. A row is all there is to one: name, help, kind, range, place of its value. A
 * configuration is a list of tables, so that kinds of training share some and add their own. Values come from one JSON
 * object, which may have comments (json/json_comments.h), and from texts key=value; a key that no table has, a value of
 * another type and one out of its range are errors that name key and value. */
#ifndef LS_TRAIN_CONFIG_H
#define LS_TRAIN_CONFIG_H

#include <stdio.h>

#include "json/json_node.h"
#include "json/json_out.h"

#define LS_OPTION_TEXT_MAX 1024
#define LS_CONFIG_TABLES_MAX 6

typedef enum ls_option_kind {
    LS_OPTION_INT,    /* int64_t in [low, high] */
    LS_OPTION_SEED,   /* uint64_t; in JSON an integer or its decimal text */
    LS_OPTION_NUMBER, /* double in [low, high] */
    LS_OPTION_SWITCH, /* bool; true or false */
    LS_OPTION_CHOICE, /* int32_t, by name */
    LS_OPTION_TEXT,   /* char[LS_OPTION_TEXT_MAX], UTF-8 */
    LS_OPTION_VALUE   /* the same; in JSON also a number, whose text it becomes */
} ls_option_kind;

typedef struct ls_option {
    const char *name;
    ls_option_kind kind;
    bool carries_bits; /* another value is another result: it must be the same when a run is resumed */
    size_t offset;     /* of the value in the table's struct */
    double low, high;
    const char *const *choices; /* ends with NULL */
    const char *help;
} ls_option;

typedef struct ls_option_table {
    const ls_option *options;
    int64_t n;
    void *values;
} ls_option_table;

typedef struct ls_config {
    ls_option_table tables[LS_CONFIG_TABLES_MAX];
    int64_t n;
} ls_config;

void ls_config_add(ls_config *config, ls_option_table table);
/* The file's members replace the values they name. `name` stands for the file in errors. */
ls_status ls_config_read(const ls_config *config, const char *path, ls_error *err);
ls_status ls_config_parse(const ls_config *config, const char *json, int64_t bytes, const char *name, ls_error *err);
/* "key=value" */
ls_status ls_config_set(const ls_config *config, const char *assignment, ls_error *err);

/* Every option as a member of an open object. */
void ls_config_write(ls_json_out *json, const ls_config *config);
/* The same as one object's text, released with free(). */
ls_status ls_config_text(char **out, int64_t *bytes, const ls_config *config, ls_error *err);
/* Name, value and help of the table's option i, for people. */
void ls_config_print(FILE *file, const ls_option_table *table, int64_t i);
/* Whether the options that carry bits are those that ls_config_write put into `options`; the error names the first that
 * is not. Those named in `except` (up to NULL, or NULL) may differ. One that `options` lacks is younger than they
 * are: the first of a choice, false and 0 are what was done before there was one. */
ls_status ls_config_agree(const ls_config *config, const ls_node *options, const char *const *except, ls_error *err);
/* Of names and values of the options that carry bits. */
uint64_t ls_config_digest(const ls_config *config);

#endif
