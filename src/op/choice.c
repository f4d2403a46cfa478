/* From the name of a device to the device. */
#include "op/choice.h"

#include <stdio.h>
#include <string.h>

#include "dev/gpu.h"

/* Digits of a GPU's number, at most. */
#define DIGITS_MAX 4

typedef enum device_kind { KIND_AUTO, KIND_CPU, KIND_CUDA } device_kind;

/* A name, taken apart. */
typedef struct wanted {
    device_kind kind;
    int32_t ordinal; /* of a GPU; -1: any */
} wanted;

static ls_device_opener opener_of_runs; /* NULL: none but the CPU's */

void ls_device_open_by(ls_device_opener opener) { opener_of_runs = opener; }

ls_status ls_device_open(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    return opener_of_runs != NULL ? opener_of_runs(out, n_threads, isa, err)
                                  : ls_device_open_cpu(out, n_threads, isa, err);
}

/* ---- names ---- */

/* The number behind "cuda:", or -1. */
static int32_t parse_ordinal(const char *text) {
    const size_t n = strspn(text, "0123456789");
    int32_t ordinal = 0;
    if (n == 0 || n > DIGITS_MAX || text[n] != '\0' || (n > 1 && text[0] == '0')) return -1;
    for (size_t i = 0; i < n; i++) ordinal = 10 * ordinal + (text[i] - '0');
    return ordinal;
}

static ls_status parse_wish(wanted *out, const char *name, ls_error *err) {
    *out = (wanted){KIND_CUDA, -1};
    if (strcmp(name, "cuda") == 0) return LS_OK;
    if (strncmp(name, "cuda:", 5) == 0 && (out->ordinal = parse_ordinal(name + 5)) >= 0) return LS_OK;
    out->kind = KIND_CPU;
    if (strcmp(name, "cpu") == 0) return LS_OK;
    out->kind = KIND_AUTO;
    if (strcmp(name, LS_DEVICE_AUTO) == 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "'%.60s' is none of auto, cpu, cuda and cuda:N", name);
}

ls_status ls_device_name_check(const char *name, ls_error *err) {
    wanted w;
    return parse_wish(&w, name, err);
}

ls_status ls_device_check(const char *name, ls_error *err) {
    wanted w;
    LS_TRY(parse_wish(&w, name, err));
    if (w.kind == KIND_CUDA) LS_TRY(ls_cuda_device_check(w.ordinal < 0 ? 0 : w.ordinal, err));
    return LS_OK;
}

/* ---- opening ---- */

static void tell_choice(ls_device_choice *choice, const ls_device *device, const ls_device_wish *wish,
                        const char *more) {
    char text[LS_DEVICE_TEXT_MAX], rank[64] = "";
    ls_device_describe(device, text, sizeof text);
    if (wish->ranks > 1)
        snprintf(rank, sizeof rank, "; rank %lld of %lld", (long long)wish->rank, (long long)wish->ranks);
    snprintf(choice->text, sizeof choice->text, "%s%s%s", text, rank, more);
}

/* why: why `auto` is not a GPU, "" where nobody would ask. */
static ls_status open_cpu(ls_device **out, ls_device_choice *choice, const ls_device_wish *wish, const char *why,
                          ls_error *err) {
    LS_TRY(ls_device_open(out, wish->n_threads, wish->isa, err));
    snprintf(choice->name, sizeof choice->name, "cpu");
    tell_choice(choice, *out, wish, why);
    return LS_OK;
}

/* share: the number of GPUs among which the process's rank chose, 0 where it did not. */
static ls_status open_gpu(ls_device **out, ls_device_choice *choice, const ls_device_wish *wish, int32_t ordinal,
                          int32_t share, ls_error *err) {
    char more[64] = "";
    LS_TRY(ls_device_open_cuda(out, ordinal, err));
    snprintf(choice->name, sizeof choice->name, "cuda:%d", ordinal);
    if (wish->ranks > 1 && share > 0) snprintf(more, sizeof more, " takes GPU %d of %d", ordinal, share);
    tell_choice(choice, *out, wish, more);
    return LS_OK;
}

ls_status ls_device_open_wished(ls_device **out, ls_device_choice *choice, const ls_device_wish *wish, ls_error *err) {
    char more[LS_DEVICE_LINE_MAX / 2] = "";
    ls_gpus gpus;
    ls_error why;
    wanted w;
    ls_status status;
    *out = NULL;
    memset(choice, 0, sizeof *choice);
    LS_TRY_DONE(parse_wish(&w, wish->name, err));
    if (w.kind == KIND_CPU || (w.kind == KIND_AUTO && opener_of_runs != NULL))
        return open_cpu(out, choice, wish, "", err);
    ls_cuda_gpus(&gpus);
    if (w.ordinal >= 0) return open_gpu(out, choice, wish, w.ordinal, 0, err);
    status = open_gpu(out, choice, wish, gpus.count > 0 ? (int32_t)(wish->local % gpus.count) : 0, gpus.count, &why);
    if (w.kind == KIND_AUTO && status == LS_ERR_UNSUPPORTED) {
        if (!ls_gpus_is_none(&gpus)) snprintf(more, sizeof more, "; no GPU: %.200s", why.text);
        return open_cpu(out, choice, wish, more, err);
    }
    if (status != LS_OK && err != NULL) *err = why;
done:
    return status;
}

ls_status ls_device_open_named(ls_device **out, const char *name, int32_t n_threads, ls_isa isa, ls_error *err) {
    const ls_device_wish wish = {.name = name, .n_threads = n_threads, .isa = isa};
    ls_device_choice choice;
    return ls_device_open_wished(out, &choice, &wish, err);
}
