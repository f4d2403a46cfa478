/* Problems of one's own as a run takes them: one or several files, with weights, a split and an order by seed.
 *
 * Split: a line is held out when the hash of its id is 0 modulo held_out (0: none is), whatever the file, order and
 * seed. Files of their own may be held out instead; then every line of the others is trained on, and a prompt that is
 * in both is an error. Order: each split of each file has an order of its own (train/order.h), epoch after epoch. With
 * several files, problem i is of file f with the probability weight_f / sum; the draw is addressed by (seed, split, i),
 * and file f then gives the next of its order. So problem i depends on files, options and seed alone. The held-out
 * problems of an evaluation come in the order of seed 0, always the same. */
#ifndef LS_TRAIN_DATA_H
#define LS_TRAIN_DATA_H

#include "record/data_lines.h"
#include "train/config.h"

typedef enum ls_data_split { LS_DATA_TRAIN = 0, LS_DATA_HELD_OUT = 1 } ls_data_split;

typedef struct ls_data_options {
    const char *files;          /* "PATH,PATH:WEIGHT,.."; a weight is a number above 0, 1 where there is none */
    const char *held_out_files; /* the same, or NULL or "" */
    ls_data_fields fields;
    const char *template; /* the prompt stands in the place of {prompt}; NULL or "": the prompt alone */
    int64_t held_out;     /* one line in so many */
    uint64_t seed;
    /* Whether a line counts, once its prompt is what the model is given; NULL: all do. */
    ls_status (*keeps)(void *context, bool *keeps, const ls_data_line *line, ls_error *err);
    void *context;
    const char *chat; /* directory whose chat template renders conversations, with what begins the answer; NULL: they
                         stay JSON */
} ls_data_options;

typedef struct ls_data ls_data;

ls_status ls_data_open(ls_data **out, const ls_data_options *options, ls_error *err);
void ls_data_close(ls_data *data); /* accepts NULL */

int64_t ls_data_count(const ls_data *data, ls_data_split split);
/* Problem i >= 0 of a split that is not empty. Asking in ascending order is quick. */
const ls_data_line *ls_data_at(ls_data *data, ls_data_split split, int64_t i);
/* The same as the line's number among all (ls_data_each). */
int64_t ls_data_index(ls_data *data, ls_data_split split, int64_t i);
/* Lines that `keeps` left out; they have no number. */
int64_t ls_data_left_out(const ls_data *data);
/* Of all that problems depend on. */
uint64_t ls_data_digest(const ls_data *data);

/* Every line, file by file; *path and *line say where it is. False behind the last. */
bool ls_data_each(const ls_data *data, int64_t i, const ls_data_line **line, const char **path);

/* What a run's configuration says of its data, as a table of it. */
typedef struct ls_data_config {
    char data[LS_OPTION_TEXT_MAX], eval_data[LS_OPTION_TEXT_MAX];
    char prompt[LS_OPTION_TEXT_MAX], answer[LS_OPTION_TEXT_MAX], id[LS_OPTION_TEXT_MAX], template[LS_OPTION_TEXT_MAX];
    int64_t held_out;
} ls_data_config;

ls_option_table ls_data_option_table(ls_data_config *config);
ls_data_options ls_data_options_of(const ls_data_config *config, uint64_t seed);

#endif
