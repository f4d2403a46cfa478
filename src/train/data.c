/* Files of problems. Owns their lines. */
#define _POSIX_C_SOURCE 200809L
#include "train/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "base/rng.h"
#include "template/chat.h"
#include "train/order.h"

enum { FILES_MAX = 64, N_SPLITS = 2 };

#define FILE_STREAM 0x66696C65u /* keeps these draws apart from others of the seed */

typedef struct data_file {
    char *path;
    double weight;
    bool held_out; /* as a whole */
    bool *is_out;  /* [n], by the hash */
    ls_data_line *lines;
    int64_t n, n_left_out;                           /* lines that count; behind them those that do not */
    int64_t *members[N_SPLITS], n_members[N_SPLITS]; /* indices of lines */
    ls_order *orders[N_SPLITS];
} data_file;

struct ls_data {
    data_file files[FILES_MAX];
    int64_t n_files;
    uint64_t seed;
    /* How many of the first `at` problems of a split are of each file. */
    int64_t at[N_SPLITS], taken[N_SPLITS][FILES_MAX];
    uint64_t digest;
};

/* ---- reading ---- */

/* "PATH:WEIGHT" to its parts; what is behind the last colon is a weight if it is a number. */
static ls_status parse_file(data_file *file, const char *text, int64_t bytes, const char *option, ls_error *err) {
    char *colon, *end;
    LS_TRY(ls_text_copy(&file->path, text, bytes, err));
    file->weight = 1.0;
    colon = strrchr(file->path, ':');
    if (colon != NULL && colon[1] != '\0') {
        const double weight = strtod(colon + 1, &end);
        if (*end == '\0') {
            if (!(weight > 0.0 && isfinite(weight)))
                return LS_FAIL(err, LS_ERR_ARG, "%s: '%.100s': the weight is not above 0", option, file->path);
            file->weight = weight;
            *colon = '\0';
        }
    }
    if (file->path[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "%s: a file without a name", option);
    return LS_OK;
}

/* The template with the prompt in it. */
static ls_status fill_template(ls_data_line *line, const char *template, ls_error *err) {
    static const char place[] = "{prompt}";
    const char *at = strstr(template, place);
    const int64_t before = at - template, behind = (int64_t)strlen(at + sizeof place - 1);
    int64_t bytes = before + behind;
    char *text;
    if (!ls_add_i64(bytes, line->prompt_bytes, &bytes)) return LS_FAIL(err, LS_ERR_NOMEM, "prompt");
    LS_TRY(ls_array_alloc((void **)&text, bytes + 1, 1, "prompt", err));
    memcpy(text, template, (size_t)before);
    memcpy(text + before, line->prompt, (size_t)line->prompt_bytes);
    memcpy(text + before + line->prompt_bytes, at + sizeof place - 1, (size_t)behind);
    free(line->prompt);
    line->prompt = text;
    line->prompt_bytes = bytes;
    return LS_OK;
}

/* Conversations of a file become the texts of prompts. */
static ls_status render_chats(const data_file *file, const ls_data_options *o, ls_error *err) {
    ls_chat *chat = NULL;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < file->n; i++) {
        ls_data_line *line = &file->lines[i];
        ls_template_output text;
        char place[1200];
        if (!line->is_chat) continue;
        snprintf(place, sizeof place, "%.1100s: line %lld", file->path, (long long)line->line);
        if (o->template != NULL && o->template[0] != '\0') {
            status = LS_FAIL(err, LS_ERR_ARG, "%s: data_template stands around texts, not around messages", place);
            goto done;
        }
        if (o->chat == NULL) continue;
        if (line->is_answered) {
            status =
                LS_FAIL(err, LS_ERR_FORMAT,
                        "%s: messages: the last one is the assistant's, and a prompt ends before its answer: leave "
                        "it out, or give it as 'answer'",
                        place);
            goto done;
        }
        if (chat == NULL) LS_TRY_DONE(ls_chat_open(&chat, o->chat, NULL, err));
        status = ls_chat_render_text(chat, line->prompt, line->prompt_bytes, place, true, &text, err);
        if (status == LS_OK && text.bytes == 0) status = LS_FAIL(err, LS_ERR_FORMAT, "its messages render to nothing");
        if (status != LS_OK) {
            if (strncmp(err->text, place, strlen(place)) != 0) ls_error_prefix(err, "%s", place);
            goto done;
        }
        line->chat = line->prompt;
        line->prompt = text.text;
        line->prompt_bytes = text.bytes;
        free(text.spans);
    }
done:
    ls_chat_free(chat);
    return status;
}

/* Lines that count keep their order, those that do not come behind them. */
static ls_status leave_out(data_file *file, const ls_data_options *o, ls_error *err) {
    ls_data_line *out = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&out, file->n, sizeof *out, "data", err));
    for (int64_t i = 0; i < file->n; i++) {
        bool keeps = true;
        status = o->keeps(o->context, &keeps, &file->lines[i], err);
        if (status != LS_OK) {
            ls_error_prefix(err, "%s: line %lld", file->path, (long long)file->lines[i].line);
            goto done;
        }
        out[keeps ? n++ : file->n - 1 - (i - n)] = file->lines[i];
    }
    memcpy(file->lines, out, (size_t)file->n * sizeof *out);
    file->n_left_out = file->n - n;
    file->n = n;
    if (n == 0)
        status = LS_FAIL(err, LS_ERR_ARG, "%s: all %lld lines are left out", file->path, (long long)file->n_left_out);
done:
    free(out);
    return status;
}

static ls_status read_file(ls_data *d, data_file *file, const ls_data_options *o, ls_error *err) {
    LS_TRY(ls_data_lines_read(&file->lines, &file->n, file->path, &o->fields, err));
    LS_TRY(render_chats(file, o, err));
    for (int64_t i = 0; i < file->n && o->template != NULL && o->template[0] != '\0'; i++)
        LS_TRY(fill_template(&file->lines[i], o->template, err));
    if (o->keeps != NULL) LS_TRY(leave_out(file, o, err));
    for (int64_t i = 0; i < file->n; i++) {
        ls_data_line *line = &file->lines[i];
        d->digest = ls_fnv_mix(d->digest, line->id, (int64_t)strlen(line->id) + 1);
        d->digest = ls_fnv_mix(d->digest, line->prompt, line->prompt_bytes + 1);
        if (line->answer != NULL) d->digest = ls_fnv_mix(d->digest, line->answer, line->answer_bytes + 1);
        if (line->max_tokens > 0)
            d->digest = ls_fnv_mix(d->digest, &line->max_tokens, (int64_t)sizeof line->max_tokens);
    }
    d->digest = ls_fnv_mix(d->digest, &file->weight, (int64_t)sizeof file->weight);
    d->digest = ls_fnv_mix(d->digest, &file->n, (int64_t)sizeof file->n);
    return LS_OK;
}

static ls_status read_files(ls_data *d, const char *list, bool held_out, const ls_data_options *o, ls_error *err) {
    const char *option = held_out ? "eval_data" : "data";
    for (const char *at = list; at != NULL && *at != '\0';) {
        const char *comma = strchr(at, ',');
        const int64_t bytes = comma != NULL ? comma - at : (int64_t)strlen(at);
        data_file *file;
        if (d->n_files == FILES_MAX) return LS_FAIL(err, LS_ERR_ARG, "%s: more than %d files", option, FILES_MAX);
        file = &d->files[d->n_files++];
        file->held_out = held_out;
        LS_TRY(parse_file(file, at, bytes, option, err));
        LS_TRY(read_file(d, file, o, err));
        at = comma != NULL ? comma + 1 : NULL;
    }
    return LS_OK;
}

/* ---- splits ---- */

/* Bits of FNV depend too little on the last bytes: they are mixed once more. */
static uint64_t hash_id(const char *id) {
    uint64_t hash = ls_fnv_mix(LS_FNV_START, id, (int64_t)strlen(id));
    hash = (hash ^ hash >> 33) * UINT64_C(0xFF51AFD7ED558CCD);
    hash = (hash ^ hash >> 33) * UINT64_C(0xC4CEB9FE1A85EC53);
    return hash ^ hash >> 33;
}

/* A line and where it is. */
typedef struct place {
    const ls_data_line *line;
    const data_file *file;
} place;

static int compare_prompts(const void *a, const void *b) {
    const place *x = a, *y = b;
    const int64_t n = x->line->prompt_bytes < y->line->prompt_bytes ? x->line->prompt_bytes : y->line->prompt_bytes;
    const int order = memcmp(x->line->prompt, y->line->prompt, (size_t)n);
    if (order != 0) return order;
    return x->line->prompt_bytes < y->line->prompt_bytes ? -1 : x->line->prompt_bytes > y->line->prompt_bytes;
}

/* Equal prompts in the order of files and lines. */
static int compare_places(const void *a, const void *b) {
    const place *x = a, *y = b;
    const int order = compare_prompts(a, b);
    if (order != 0) return order;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

/* All lines, sorted; released with free(). */
static ls_status sort_places(place **out, int64_t *n, const ls_data *d, int (*compare)(const void *, const void *),
                             ls_error *err) {
    int64_t total = 0;
    *n = 0;
    for (int64_t f = 0; f < d->n_files; f++) total += d->files[f].n;
    LS_TRY(ls_array_alloc((void **)out, total, sizeof **out, "lines", err));
    for (int64_t f = 0; f < d->n_files; f++)
        for (int64_t i = 0; i < d->files[f].n; i++) (*out)[(*n)++] = (place){&d->files[f].lines[i], &d->files[f]};
    qsort(*out, (size_t)*n, sizeof **out, compare);
    return LS_OK;
}

static bool is_out(const ls_data_line *line, int64_t held_out) {
    return held_out > 0 && hash_id(line->id) % (uint64_t)held_out == 0;
}

/* Which lines the hash of an id holds out. Equal prompts are all where the first of them is: one that is trained on
 * tells nothing when it is held out, too. */
static ls_status hold_out(ls_data *d, int64_t held_out, ls_error *err) {
    place *places = NULL;
    int64_t n = 0;
    bool moved = false;
    ls_status status;
    LS_TRY_DONE(sort_places(&places, &n, d, compare_places, err));
    for (int64_t i = 0, first = 0; i < n; i++) {
        if (compare_prompts(&places[first], &places[i]) != 0) first = i;
        const bool out = is_out(places[first].line, held_out);
        data_file *file = &d->files[places[i].file - d->files];
        moved = moved || out != is_out(places[i].line, held_out);
        file->is_out[places[i].line - file->lines] = out;
    }
    if (moved) d->digest = ls_fnv_mix(d->digest, &moved, (int64_t)sizeof moved); /* other problems than by ids alone */
done:
    free(places);
    return status;
}

static ls_status split_file(const ls_data *d, data_file *file, bool by_files, ls_error *err) {
    const int64_t f = file - d->files;
    for (int k = 0; k < N_SPLITS; k++)
        LS_TRY(ls_array_alloc((void **)&file->members[k], file->n, sizeof(int64_t), "lines", err));
    for (int64_t i = 0; i < file->n; i++) {
        const bool out = by_files ? file->held_out : file->is_out[i];
        const int k = out ? LS_DATA_HELD_OUT : LS_DATA_TRAIN;
        file->members[k][file->n_members[k]++] = i;
    }
    for (int k = 0; k < N_SPLITS; k++) {
        const uint64_t seed = (k == LS_DATA_HELD_OUT ? 0 : d->seed) ^ ((uint64_t)f << 56);
        if (file->n_members[k] > 0) LS_TRY(ls_order_create(&file->orders[k], file->n_members[k], seed, err));
    }
    return LS_OK;
}

/* A prompt that is trained on tells nothing when it is held out, too. */
static ls_status check_leaks(const ls_data *d, ls_error *err) {
    place *places = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(sort_places(&places, &n, d, compare_prompts, err));
    for (int64_t i = 1; i < n && status == LS_OK; i++) {
        const place *x = &places[i - 1], *y = &places[i];
        if (compare_prompts(x, y) != 0 || x->file->held_out == y->file->held_out) continue;
        if (!x->file->held_out) {
            const place *swap = x;
            x = y;
            y = swap;
        }
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: the prompt of line %lld of %s, which is trained on",
                         x->file->path, (long long)x->line->line, (long long)y->line->line, y->file->path);
    }
done:
    free(places);
    return status;
}

ls_status ls_data_open(ls_data **out, const ls_data_options *o, ls_error *err) {
    const bool by_files = o->held_out_files != NULL && o->held_out_files[0] != '\0';
    ls_data *d = NULL;
    ls_status status;
    *out = NULL;
    if (o->template != NULL && o->template[0] != '\0' && strstr(o->template, "{prompt}") == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "data_template: '%.100s' has no {prompt}", o->template);
    LS_TRY_DONE(ls_array_alloc((void **)&d, 1, sizeof *d, "data", err));
    d->seed = o->seed;
    d->digest = LS_FNV_START;
    LS_TRY_DONE(read_files(d, o->files, false, o, err));
    LS_TRY_DONE(read_files(d, o->held_out_files, true, o, err));
    d->digest = ls_fnv_mix(d->digest, &by_files, (int64_t)sizeof by_files);
    for (int64_t f = 0; f < d->n_files; f++)
        LS_TRY_DONE(ls_array_alloc((void **)&d->files[f].is_out, d->files[f].n, sizeof(bool), "lines", err));
    if (!by_files) LS_TRY_DONE(hold_out(d, o->held_out, err));
    for (int64_t f = 0; f < d->n_files; f++) LS_TRY_DONE(split_file(d, &d->files[f], by_files, err));
    if (by_files) LS_TRY_DONE(check_leaks(d, err));
    if (ls_data_count(d, LS_DATA_TRAIN) == 0) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "data: no line is left to train on; one in %lld is held out",
                         (long long)o->held_out);
        goto done;
    }
    *out = d;
    d = NULL;
done:
    ls_data_close(d);
    return status;
}

void ls_data_close(ls_data *d) {
    if (d == NULL) return;
    for (int64_t f = 0; f < d->n_files; f++) {
        ls_data_lines_free(d->files[f].lines, d->files[f].n + d->files[f].n_left_out);
        free(d->files[f].path);
        free(d->files[f].is_out);
        for (int k = 0; k < N_SPLITS; k++) {
            free(d->files[f].members[k]);
            ls_order_free(d->files[f].orders[k]);
        }
    }
    free(d);
}

/* ---- problems ---- */

int64_t ls_data_count(const ls_data *d, ls_data_split split) {
    int64_t n = 0;
    for (int64_t f = 0; f < d->n_files; f++) n += d->files[f].n_members[split];
    return n;
}

uint64_t ls_data_digest(const ls_data *d) { return d->digest; }

/* The file of problem i: the first whose share of the weights, added up, is above the draw. */
static int64_t file_of(const ls_data *d, ls_data_split split, int64_t i) {
    const uint64_t seed = split == LS_DATA_HELD_OUT ? 0 : d->seed;
    const ls_philox draw =
        ls_philox_draw(seed, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), FILE_STREAM, (uint32_t)split);
    const double u = (double)draw.word[0] * 0x1p-32;
    double total = 0.0, sum = 0.0;
    int64_t last = -1;
    for (int64_t f = 0; f < d->n_files; f++)
        if (d->files[f].n_members[split] > 0) total += d->files[f].weight;
    for (int64_t f = 0; f < d->n_files; f++) {
        if (d->files[f].n_members[split] == 0) continue;
        last = f;
        sum += d->files[f].weight;
        if (u * total < sum) break;
    }
    LS_ASSERT(last >= 0, "split %d is empty", (int)split);
    return last;
}

/* Where problem i is. */
static int64_t find_problem(ls_data *d, ls_data_split split, int64_t i, data_file **file) {
    const int64_t f = file_of(d, split, i);
    if (i < d->at[split]) {
        d->at[split] = 0;
        memset(d->taken[split], 0, sizeof d->taken[split]);
    }
    for (; d->at[split] < i; d->at[split]++) d->taken[split][file_of(d, split, d->at[split])]++;
    *file = &d->files[f];
    return (*file)->members[split][ls_order_at((*file)->orders[split], d->taken[split][f])];
}

const ls_data_line *ls_data_at(ls_data *d, ls_data_split split, int64_t i) {
    data_file *file;
    const int64_t k = find_problem(d, split, i, &file);
    return &file->lines[k];
}

int64_t ls_data_index(ls_data *d, ls_data_split split, int64_t i) {
    data_file *file;
    int64_t k = find_problem(d, split, i, &file);
    for (int64_t f = 0; &d->files[f] != file; f++) k += d->files[f].n;
    return k;
}

int64_t ls_data_left_out(const ls_data *d) {
    int64_t n = 0;
    for (int64_t f = 0; f < d->n_files; f++) n += d->files[f].n_left_out;
    return n;
}

bool ls_data_each(const ls_data *d, int64_t i, const ls_data_line **line, const char **path) {
    for (int64_t f = 0; f < d->n_files; i -= d->files[f++].n) {
        if (i >= d->files[f].n) continue;
        *line = &d->files[f].lines[i];
        *path = d->files[f].path;
        return true;
    }
    return false;
}

/* ---- options ---- */

#define AT(field) offsetof(ls_data_config, field)

static const ls_option rows[] = {
    {"data", LS_OPTION_TEXT, false, AT(data), 0, 0, NULL,
     "Files of JSON lines: FILE,FILE:WEIGHT,.. (docs/guide/data.md)"},
    {"eval_data", LS_OPTION_TEXT, false, AT(eval_data), 0, 0, NULL,
     "The same, held out; then all of data is trained on"},
    {"held_out", LS_OPTION_INT, true, AT(held_out), 0, 1 << 30, NULL,
     "One line of data in so many is held out, by the hash of its id, equal prompts together (0: none)"},
    {"data_prompt", LS_OPTION_TEXT, true, AT(prompt), 0, 0, NULL, "Field of the prompt (empty: prompt, question, ..)"},
    {"data_answer", LS_OPTION_TEXT, true, AT(answer), 0, 0, NULL,
     "Field of the answer (empty: answer, completion, ..)"},
    {"data_id", LS_OPTION_TEXT, true, AT(id), 0, 0, NULL, "Field of the id (empty: id, task_id, unique_id)"},
    {"data_template", LS_OPTION_TEXT, true, AT(template), 0, 0, NULL,
     "Text around a prompt, which stands in the place of {prompt} (empty: none)"},
};

ls_option_table ls_data_option_table(ls_data_config *config) {
    return (ls_option_table){rows, (int64_t)(sizeof rows / sizeof rows[0]), config};
}

ls_data_options ls_data_options_of(const ls_data_config *c, uint64_t seed) {
    return (ls_data_options){.files = c->data,
                             .held_out_files = c->eval_data,
                             .fields = {.prompt = c->prompt, .answer = c->answer, .id = c->id},
                             .template = c->template,
                             .held_out = c->held_out,
                             .seed = seed};
}
