/* The table of levers. A row is all there is to one: name, help, place in ls_levers, range. Options, records and sweeps
 * read it here. */
#include "rollout/levers.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json_out.h"
#include "rollout/engine.h"

typedef enum lever_kind {
    KIND_INT,   /* low..high */
    KIND_SEED,  /* 0..2^64-1 */
    KIND_BYTES, /* an integer with or without K, M, G */
    KIND_SHARE, /* 0..1; where low is 1, without 0 itself */
    KIND_SWITCH,
    KIND_CHOICE /* 0..high, by name */
} lever_kind;

typedef struct lever_row {
    const char *name, *help;
    lever_kind kind;
    size_t offset, bytes; /* of the field */
    int64_t low, high;
    const char *zero;               /* of an integer or a share: what 0 is called, or NULL */
    const char *(*choice)(int64_t); /* of a choice: its names */
    const char *value;              /* what stands for the value in a list of options */
} lever_row;

static const char *policy_name(int64_t i) { return ls_policy_name((ls_policy)i); }
static const char *isa_name(int64_t i) { return ls_isa_name((ls_isa)i); }
static const char *ablation_name(int64_t i) { return ls_ablation_name((ls_ablation)i); }

static const char *prefix_name(int64_t i) {
    static const char *const names[] = {"off", "on", "cold", "warm"};
    return names[i];
}

static const char *preempt_name(int64_t i) {
    static const char *const names[] = {"recompute", "swap", "alternate"};
    return names[i];
}

#define FIELD(field) offsetof(ls_levers, field), sizeof((ls_levers *)0)->field
#define INT(name, field, low, high, help) \
    { name, help, KIND_INT, FIELD(field), low, high, NULL, NULL, "N" }
#define SEED(name, field, help) \
    { name, help, KIND_SEED, FIELD(field), 0, 0, NULL, NULL, "N" }
#define BYTES(name, field, help) \
    { name, help, KIND_BYTES, FIELD(field), 0, INT64_MAX, NULL, NULL, "BYTES" }
#define SWITCH(name, field, help) \
    { name, help, KIND_SWITCH, FIELD(field), 0, 1, NULL, NULL, "on|off" }
#define CHOICE(name, field, high, choice, value, help) \
    { name, help, KIND_CHOICE, FIELD(field), 0, high, NULL, choice, value }

#define TOKENS_MAX (1 << 24)
#define WORDS_EACH 16 /* slots stand 64 bytes apart, or a multiple */

static const lever_row rows[] = {
    INT("samples", samples, 1, 1 << 20, "Completions for each prompt (1; check without prompts: 4)"),
    INT("batch", batch, 1, LS_BATCH_MAX, "Sequences in one forward (16)"),
    {"chunk", "Tokens of a sequence in one forward, or 'whole' (256; score: whole)", KIND_INT, FIELD(chunk), 0,
     TOKENS_MAX, "whole", NULL, "N"},
    INT("tick-tokens", tick_tokens, 0, INT32_MAX, "Tokens of all sequences in one forward (0: batch + drafts + chunk)"),
    INT("page", page_tokens, 1, 64, "Tokens in a KV page: 1, 2, 4, ... 64 (16)"),
    INT("slots", slots, 0, INT32_MAX, "State slots (0: what memory holds, or what is needed)"),
    INT("pages", pages, 0, INT32_MAX, "KV pages (0: what memory holds, or what is needed)"),
    BYTES("memory", memory_bytes, "Budget of all that the engine allocates in bytes, K, M or G (0: none)"),
    {"memory-fraction",
     "Share of the device's memory that may be full, above 0, or 'auto' (auto: 0.9 of a GPU, no limit on the CPU)",
     KIND_SHARE, FIELD(memory_fraction), 1, 1, "auto", NULL, "X"},
    {"pool-share", "Share of the slots and pages that is really made, above 0 (1)", KIND_SHARE, FIELD(pool_share), 1, 1,
     NULL, NULL, "X"},
    INT("slot-words", slot_words, 0, (int64_t)1 << 40, "Distance of state slots in 4-byte words (0: the least)"),
    CHOICE("policy", policy, LS_POLICY_COUNT - 1, policy_name, "NAME",
           "Which free slot or page is taken: fifo, lowest, highest, random (fifo)"),
    INT("slot-base", slot_base, 0, INT32_MAX, "Slot that comes first in the order of slots (0)"),
    SEED("slot-permutation", slot_permutation, "Order slots by a permutation of this seed (0: by number)"),
    SEED("policy-seed", policy_seed, "Seed of the random policy (0)"),
    CHOICE("prefix", prefix, LS_PREFIX_WARM, prefix_name, "MODE",
           "Prefix cache: off, on, cold (emptied before each run) or warm (each run fills it first) (on)"),
    INT("snapshot-every", snapshot_every, 0, TOKENS_MAX,
        "Tokens between snapshots inside a prompt (0: at its end and where prompts part)"),
    BYTES("prefix-memory", prefix_bytes, "Memory of snapshots in bytes, K, M or G (0: four for each running sequence)"),
    {"verify", "Share of prefix hits that is computed again and compared (0)", KIND_SHARE, FIELD(verify), 0, 1, NULL,
     NULL, "X"},
    SWITCH("fork", fork, "Samples of a prompt share the computation of it (on)"),
    INT("preempt-every", preempt_every, 0, TOKENS_MAX,
        "Take a sequence out every so many forwards (0: only when memory runs out)"),
    CHOICE("preempt-by", preempt_by, LS_PREEMPT_ALTERNATE, preempt_name, "HOW",
           "How a sequence is taken out: recompute, swap or alternate (recompute)"),
    BYTES("swap-memory", swap_bytes,
          "Memory of swapped sequences in bytes, K, M or G, of a GPU's host (0: of all that run at once)"),
    INT("sleep-every", sleep_every, 0, TOKENS_MAX,
        "Give the memory of all pools back every so many forwards, and take it again (0: never)"),
    INT("drafts", drafts, 0, LS_DRAFTS_MAX,
        "Tokens of a sequence that are looked up in what it has had and verified in one forward (0)"),
    INT("state-every", state_every, 0, LS_STATE_EVERY_MAX,
        "Tokens of decode that write a state of Mamba-2 or of the delta rule once (0: on a GPU 8, else, and with "
        "slot-words, 1)"),
    SEED("shuffle", shuffle, "Admit requests in the order that this seed gives (0: file order)"),
    INT("threads", threads, 1, LS_THREADS_MAX, "Threads (all processors)"),
    CHOICE("isa", isa, LS_ISA_COUNT - 1, isa_name, "NAME",
           "Instruction set: generic, avx2, avx512 (the best there is)"),
    CHOICE("ablation", ablation, LS_ABLATION_COUNT - 1, ablation_name, "NAME",
           "Ablation of mixers: none, attention-only, mamba-only; the one lever that changes results (none)"),
    SWITCH("poison", poison, "Fill free slots and pages with NaN (off)"),
    SWITCH("guards", guards, "Check a known pattern behind every slot and page after every forward (off)"),
    SWITCH("graphs", graphs, "Record decoding forwards once for each size and replay them, where the device can (on)"),
};
#define N_ROWS ((int64_t)(sizeof rows / sizeof rows[0]))

void ls_levers_init(ls_levers *levers) {
    const ls_levers defaults = {.samples = 1,
                                .batch = 16,
                                .chunk = 256,
                                .page_tokens = 16,
                                .pool_share = 1.0,
                                .prefix = LS_PREFIX_ON,
                                .fork = true,
                                .threads = ls_cpu_count(),
                                .isa = ls_isa_best(),
                                .graphs = true};
    *levers = defaults;
}

/* Of 2, 4, 8, 12 and 16 the fastest for both (docs/lab/ssd.md, delta.md): a step also reads what states lack, and the
 * more the fewer are written. */
#define GPU_STATE_EVERY 8

int64_t ls_levers_state_every(const ls_levers *levers, const ls_model_config *config, const ls_device *device) {
    if (ls_config_recurrence(config) == LS_RECURRENCE_SCAN) return 1;
    if (levers->state_every > 0) return levers->state_every;
    if (device->exec.backend != LS_BACKEND_CUDA || levers->slot_words > 0) return 1;
    return GPU_STATE_EVERY;
}

static const lever_row *row_at(int64_t lever_i) {
    LS_ASSERT(lever_i >= 0 && lever_i < N_ROWS, "lever %lld of %lld", (long long)lever_i, (long long)N_ROWS);
    return &rows[lever_i];
}

/* Every field but a share is an integer of 1, 4 or 8 bytes; a seed is kept as its bits. */
static int64_t load(const ls_levers *levers, const lever_row *row) {
    const uint8_t *field = (const uint8_t *)levers + row->offset;
    int64_t value = 0;
    int32_t narrow;
    if (row->bytes == sizeof(bool)) return *field;
    if (row->bytes == sizeof narrow) {
        memcpy(&narrow, field, sizeof narrow);
        return narrow;
    }
    memcpy(&value, field, sizeof value);
    return value;
}

static void store(ls_levers *levers, const lever_row *row, int64_t value) {
    uint8_t *field = (uint8_t *)levers + row->offset;
    const int32_t narrow = (int32_t)value;
    if (row->bytes == sizeof(bool))
        *field = value != 0;
    else if (row->bytes == sizeof narrow)
        memcpy(field, &narrow, sizeof narrow);
    else
        memcpy(field, &value, sizeof value);
}

static double load_share(const ls_levers *levers, const lever_row *row) {
    double value;
    memcpy(&value, (const uint8_t *)levers + row->offset, sizeof value);
    return value;
}

/* Whether the value may stand in the field; `shown` is how the sentence calls it. */
static ls_status check_int(const lever_row *row, int64_t value, const char *shown, ls_error *err) {
    if (value < row->low || value > row->high)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not an integer in %lld..%lld", row->name, shown,
                       (long long)row->low, (long long)row->high);
    if (row->offset == offsetof(ls_levers, page_tokens) && 64 % value != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s does not divide 64", row->name, shown);
    if (row->offset == offsetof(ls_levers, slot_words) && value % WORDS_EACH != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s is not a multiple of %d words", row->name, shown, WORDS_EACH);
    return LS_OK;
}

static ls_status check_share(const lever_row *row, double value, const char *shown, ls_error *err) {
    if (!(row->low == 0 ? value >= 0 : value > 0) || value > 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not a number %s", row->name, shown,
                       row->low == 0 ? "in 0..1" : "above 0, at most 1");
    return LS_OK;
}

static ls_status fail_choice(const lever_row *row, const char *shown, ls_error *err) {
    char list[128] = "";
    size_t used = 0;
    for (int64_t i = 0; i <= row->high && used < sizeof list; i++) {
        const char *before = i == 0 ? "" : i < row->high ? ", " : " or ";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", before, row->choice(i));
    }
    return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not %s", row->name, shown, list);
}

ls_status ls_levers_check(const ls_levers *levers, ls_error *err) {
    for (int64_t i = 0; i < N_ROWS; i++) {
        const lever_row *row = &rows[i];
        char shown[40];
        if (row->kind == KIND_SHARE && row->zero != NULL && load_share(levers, row) == 0) continue;
        if (row->kind == KIND_SHARE) {
            snprintf(shown, sizeof shown, "%g", load_share(levers, row));
            LS_TRY(check_share(row, load_share(levers, row), shown, err));
            continue;
        }
        snprintf(shown, sizeof shown, "%lld", (long long)load(levers, row));
        if (row->kind == KIND_INT || row->kind == KIND_BYTES) LS_TRY(check_int(row, load(levers, row), shown, err));
        if (row->kind == KIND_CHOICE && (load(levers, row) < 0 || load(levers, row) > row->high))
            return fail_choice(row, shown, err);
    }
    if (levers->slots > 0 && levers->slot_base >= levers->slots)
        return LS_FAIL(err, LS_ERR_ARG, "slot-base: %lld is none of the %lld slots", (long long)levers->slot_base,
                       (long long)levers->slots);
    return LS_OK;
}

int64_t ls_levers_count(void) { return N_ROWS; }
const char *ls_lever_name(int64_t lever_i) { return row_at(lever_i)->name; }
const char *ls_lever_help(int64_t lever_i) { return row_at(lever_i)->help; }
const char *ls_lever_value(int64_t lever_i) { return row_at(lever_i)->value; }

bool ls_lever_is_number(const ls_levers *levers, int64_t lever_i) {
    const lever_row *row = row_at(lever_i);
    switch (row->kind) {
        case KIND_INT: return row->zero == NULL || load(levers, row) != 0;
        case KIND_SHARE: return row->zero == NULL || load_share(levers, row) != 0;
        case KIND_BYTES: return true;
        case KIND_SEED: return load(levers, row) >= 0; /* few readers of JSON have the 64th bit */
        case KIND_SWITCH:
        case KIND_CHOICE: return false;
    }
    return false;
}

int64_t ls_lever_find(const char *name) {
    for (int64_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return i;
    return -1;
}

void ls_lever_format(char *text, size_t bytes, const ls_levers *levers, int64_t lever_i) {
    const lever_row *row = row_at(lever_i);
    const int64_t value = row->kind == KIND_SHARE ? 0 : load(levers, row);
    char share[LS_DOUBLE_TEXT_MAX];
    switch (row->kind) {
        case KIND_INT:
        case KIND_BYTES:
            if (value == 0 && row->zero != NULL)
                snprintf(text, bytes, "%s", row->zero);
            else
                snprintf(text, bytes, "%lld", (long long)value);
            return;
        case KIND_SEED: snprintf(text, bytes, "%llu", (unsigned long long)value); return;
        case KIND_SHARE:
            ls_double_text(share, load_share(levers, row));
            if (row->zero != NULL && load_share(levers, row) == 0) snprintf(share, sizeof share, "%s", row->zero);
            snprintf(text, bytes, "%s", share);
            return;
        case KIND_SWITCH: snprintf(text, bytes, "%s", value != 0 ? "on" : "off"); return;
        case KIND_CHOICE: snprintf(text, bytes, "%s", row->choice(value)); return;
    }
}

bool ls_lever_is_same(const ls_levers *a, const ls_levers *b, int64_t lever_i) {
    char of_a[64], of_b[64];
    ls_lever_format(of_a, sizeof of_a, a, lever_i);
    ls_lever_format(of_b, sizeof of_b, b, lever_i);
    return strcmp(of_a, of_b) == 0;
}

static ls_status parse_int(int64_t *out, const lever_row *row, const char *text, ls_error *err) {
    char *end;
    long long value;
    if (row->zero != NULL && strcmp(text, row->zero) == 0) {
        *out = 0;
        return LS_OK;
    }
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not an integer in %lld..%lld", row->name, text,
                       (long long)row->low, (long long)row->high);
    *out = value;
    return check_int(row, value, text, err);
}

static ls_status parse_seed(int64_t *out, const lever_row *row, const char *text, ls_error *err) {
    char *end;
    unsigned long long value;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || strchr(text, '-') != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not an integer in 0..2^64-1", row->name, text);
    *out = (int64_t)value;
    return LS_OK;
}

static ls_status parse_bytes(int64_t *out, const lever_row *row, const char *text, ls_error *err) {
    static const char units[] = "KMG";
    char *end;
    const char *unit;
    long long value;
    int shift = 0;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end != text && *end != '\0' && (unit = strchr(units, *end)) != NULL) {
        shift = 10 * (int)(unit - units + 1);
        end++;
    }
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > INT64_MAX >> shift)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not a number of bytes, as 1048576, 1024K, 1M or 1G", row->name,
                       text);
    *out = (int64_t)value << shift;
    return LS_OK;
}

static ls_status parse_share(ls_levers *levers, const lever_row *row, const char *text, ls_error *err) {
    const bool is_zero = row->zero != NULL && strcmp(text, row->zero) == 0;
    char *end;
    const double value = is_zero ? 0 : strtod(text, &end);
    const ls_status status = is_zero ? LS_OK : check_share(row, end == text || *end != '\0' ? -1 : value, text, err);
    if (status == LS_OK) memcpy((uint8_t *)levers + row->offset, &value, sizeof value);
    return status;
}

static ls_status parse_switch(int64_t *out, const lever_row *row, const char *text, ls_error *err) {
    *out = strcmp(text, "on") == 0;
    if (*out == 0 && strcmp(text, "off") != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not on or off", row->name, text);
    return LS_OK;
}

static ls_status parse_choice(int64_t *out, const lever_row *row, const char *text, ls_error *err) {
    for (*out = 0; *out <= row->high; ++*out)
        if (strcmp(row->choice(*out), text) == 0) return LS_OK;
    return fail_choice(row, text, err);
}

ls_status ls_lever_parse(ls_levers *levers, int64_t lever_i, const char *text, ls_error *err) {
    const lever_row *row = row_at(lever_i);
    int64_t value = 0;
    ls_status status = LS_ERR_ARG;
    switch (row->kind) {
        case KIND_INT: status = parse_int(&value, row, text, err); break;
        case KIND_SEED: status = parse_seed(&value, row, text, err); break;
        case KIND_BYTES: status = parse_bytes(&value, row, text, err); break;
        case KIND_SHARE: return parse_share(levers, row, text, err);
        case KIND_SWITCH: status = parse_switch(&value, row, text, err); break;
        case KIND_CHOICE: status = parse_choice(&value, row, text, err); break;
    }
    if (status == LS_OK) store(levers, row, value);
    return status;
}
