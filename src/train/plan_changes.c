/* What would fit where nothing does: a change at a time, each tried on paper. */
#include <stdio.h>
#include <string.h>

#include "train/train_options.h"

#define LORA_RANK 16
#define RANKS_MOST 8
#define LENGTH_LEAST 64

/* Changes that fit, in words. */
typedef struct listing {
    char text[160];
    size_t used;
} listing;

static void list_change(listing *l, const char *text) {
    if (l->used < sizeof l->text)
        l->used +=
            (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s%s", l->used > 0 ? ", or " : "", text);
}

/* Adapters need neither masters nor moments of the weights; one process trains them. */
static void try_adapters(listing *l, ls_train_options *o, ls_train_fits *fits, void *context) {
    const ls_train_options kept = *o;
    char text[40];
    if (o->lora_rank > 0 || o->own_rank.ranks > 1) return;
    o->lora_rank = LORA_RANK;
    snprintf(text, sizeof text, "lora_rank=%d", LORA_RANK);
    if (fits(context)) list_change(l, text);
    *o = kept;
}

/* Each process has its share of masters and moments and, by layer, of the weights. */
static void try_ranks(listing *l, ls_train_options *o, ls_train_fits *fits, void *context) {
    const ls_train_options kept = *o;
    bool found = false;
    for (int64_t ranks = o->own_rank.ranks; ranks <= RANKS_MOST && o->lora_rank == 0 && !found; ranks *= 2)
        for (int kind = LS_WEIGHTS_WHOLE; kind <= LS_WEIGHTS_BY_LAYER && !found; kind++) {
            char text[80];
            if (ranks == 1 || (ranks == kept.own_rank.ranks && kind <= kept.weights)) continue;
            o->own_rank.ranks = ranks;
            o->weights = kind;
            found = fits(context);
            snprintf(text, sizeof text, "%lld processes, a GPU each%s", (long long)ranks,
                     kind == LS_WEIGHTS_BY_LAYER ? ", with weights=by_layer" : "");
            if (found) list_change(l, text);
        }
    *o = kept;
}

static void try_length(listing *l, int64_t *length, ls_train_fits *fits, void *context) {
    const int64_t kept = length == NULL ? 0 : *length;
    char text[40];
    for (int64_t n = kept / 2; n >= LENGTH_LEAST; n /= 2) {
        *length = n;
        if (!fits(context)) continue;
        snprintf(text, sizeof text, "length=%lld", (long long)n);
        list_change(l, text);
        break;
    }
    if (length != NULL) *length = kept;
}

void ls_train_plan_suggest(ls_error *err, ls_train_options *o, int64_t *length, ls_train_fits *fits, void *context) {
    listing l = {"", 0};
    char text[sizeof err->text];
    try_adapters(&l, o, fits, context);
    try_ranks(&l, o, fits, context);
    try_length(&l, length, fits, context);
    snprintf(text, sizeof text, "%s", err->text);
    if (l.used > 0)
        snprintf(err->text, sizeof err->text, "%.*s. It fits with %s", (int)(sizeof text - sizeof l.text - 20), text,
                 l.text);
}
