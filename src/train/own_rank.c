/* The launchers as a table of their variables. */
#include "train/own_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX 1000000000
/* Ports that are made of a job's number. */
#define PORT_BASE 61440
#define PORTS 4096

const char *const ls_launcher_names[] = {"auto", "none", "torchrun", "mpirun", "srun", NULL};

static const struct launcher {
    ls_launcher kind;
    const char *rank, *ranks, *local;
} launchers[] = {
    {LS_LAUNCHER_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {LS_LAUNCHER_MPIRUN, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {LS_LAUNCHER_SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};
#define N_LAUNCHERS (sizeof launchers / sizeof launchers[0])

typedef struct reader {
    ls_own_rank_variable variable;
    void *context;
} reader;

static const char *look_up(const reader *r, const char *name) {
    const char *text = r->variable(r->context, name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* Digits alone, below COUNT_MAX. */
static ls_status number(const reader *r, const char *name, int64_t *out, ls_error *err) {
    const char *text = look_up(r, name);
    const size_t n = text == NULL ? 0 : strspn(text, "0123456789");
    if (text == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: missing, while its launcher's other variables are there", name);
    if (n == 0 || n > 9 || text[n] != '\0')
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%.40s' is not a number in 0..%d", name, text, COUNT_MAX - 1);
    *out = strtoll(text, NULL, 10);
    return LS_OK;
}

/* ---- where rank 0 is ---- */

static ls_status copy_address(ls_own_rank *p, const char *host, size_t host_n, int64_t port, ls_error *err) {
    const bool is_six = memchr(host, ':', host_n) != NULL;
    const int n = snprintf(p->address, sizeof p->address, is_six ? "[%.*s]:%lld" : "%.*s:%lld", (int)host_n, host,
                           (long long)port);
    if (host_n == 0 || host_n > 255 || n >= (int)sizeof p->address)
        return LS_FAIL(err, LS_ERR_ARG, "the address of rank 0: '%.60s' is no host", host);
    return LS_OK;
}

/* MASTER_ADDR and MASTER_PORT; *found where they are there. */
static ls_status master(ls_own_rank *p, const reader *r, bool *found, ls_error *err) {
    const char *host = look_up(r, "MASTER_ADDR");
    int64_t port;
    *found = host != NULL || look_up(r, "MASTER_PORT") != NULL;
    if (!*found) return LS_OK;
    if (host == NULL) return LS_FAIL(err, LS_ERR_ARG, "MASTER_ADDR: missing, while MASTER_PORT is there");
    LS_TRY(number(r, "MASTER_PORT", &port, err));
    if (port < 1 || port > 65535)
        return LS_FAIL(err, LS_ERR_ARG, "MASTER_PORT: %lld is not in 1..65535", (long long)port);
    return copy_address(p, host, strlen(host), port, err);
}

/* The first host of a list as Slurm writes it: "gpu[03-07,9],login" begins with gpu03. */
static ls_status first_host(const char *list, char *out, size_t bytes, ls_error *err) {
    const size_t stem = strcspn(list, "[,"), room = bytes - 1;
    const char *digits = list[stem] == '[' ? list + stem + 1 : "";
    const size_t n = strspn(digits, "0123456789");
    const size_t close = strcspn(digits, "]");
    const char *rest = digits[0] != '\0' && digits[close] == ']' ? digits + close + 1 : "";
    const size_t n_rest = strcspn(rest, ",[");
    if (stem + n + n_rest == 0 || stem + n + n_rest > room || (list[stem] == '[' && (n == 0 || digits[close] != ']')))
        return LS_FAIL(err, LS_ERR_ARG, "SLURM_STEP_NODELIST: '%.100s' names no host", list);
    snprintf(out, bytes, "%.*s%.*s%.*s", (int)stem, list, (int)n, digits, (int)n_rest, rest);
    return LS_OK;
}

static ls_status slurm_address(ls_own_rank *p, const reader *r, ls_error *err) {
    const char *list = look_up(r, "SLURM_STEP_NODELIST");
    char host[256];
    int64_t job, step = 0;
    if (list == NULL || look_up(r, "SLURM_JOB_ID") == NULL) return LS_OK;
    LS_TRY(first_host(list, host, sizeof host, err));
    LS_TRY(number(r, "SLURM_JOB_ID", &job, err));
    if (look_up(r, "SLURM_STEP_ID") != NULL) LS_TRY(number(r, "SLURM_STEP_ID", &step, err));
    return copy_address(p, host, strlen(host), PORT_BASE + (job * 16 + step) % PORTS, err);
}

/* An address of the options stays. */
static ls_status find_address(ls_own_rank *p, const reader *r, ls_error *err) {
    bool found;
    if (p->address[0] != '\0' || p->ranks < 2) return LS_OK;
    LS_TRY(master(p, r, &found, err));
    return found || p->launcher != LS_LAUNCHER_SRUN ? LS_OK : slurm_address(p, r, err);
}

/* ---- launchers ---- */

static bool is_there(const struct launcher *l, const reader *r) {
    /* Every process of a Slurm job has SLURM_PROCID; only those of a step have been started as one of several. */
    if (l->kind == LS_LAUNCHER_SRUN) return look_up(r, l->ranks) != NULL;
    return look_up(r, l->rank) != NULL || look_up(r, l->ranks) != NULL;
}

static ls_status read_launcher(const struct launcher *l, const reader *r, int64_t ranks_max, ls_own_rank *out,
                               ls_error *err) {
    LS_TRY(number(r, l->rank, &out->rank, err));
    LS_TRY(number(r, l->ranks, &out->ranks, err));
    out->local = out->rank;
    if (look_up(r, l->local) != NULL) LS_TRY(number(r, l->local, &out->local, err));
    out->launcher = l->kind;
    if (out->ranks < 1 || out->ranks > ranks_max)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld is not in 1..%lld", l->ranks, (long long)out->ranks,
                       (long long)ranks_max);
    if (out->rank >= out->ranks)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld of %lld (%s)", l->rank, (long long)out->rank, (long long)out->ranks,
                       l->ranks);
    return LS_OK;
}

static ls_status check_equal(const struct launcher *a, const ls_own_rank *x, const struct launcher *b,
                             const ls_own_rank *y, ls_error *err) {
    static const char hint[] = "launcher= says which one counts";
    if (x->ranks != y->ranks)
        return LS_FAIL(err, LS_ERR_ARG, "%s is %lld and %s is %lld; %s", a->ranks, (long long)x->ranks, b->ranks,
                       (long long)y->ranks, hint);
    if (x->rank != y->rank)
        return LS_FAIL(err, LS_ERR_ARG, "%s is %lld and %s is %lld; %s", a->rank, (long long)x->rank, b->rank,
                       (long long)y->rank, hint);
    return LS_OK;
}

static ls_status check_options(const ls_own_rank *o, const struct launcher *l, const ls_own_rank *x, ls_error *err) {
    static const char hint[] = "launcher=none leaves the environment out";
    if (o->ranks > 1 && o->ranks != x->ranks)
        return LS_FAIL(err, LS_ERR_ARG, "ranks is %lld and %s is %lld; %s", (long long)o->ranks, l->ranks,
                       (long long)x->ranks, hint);
    if (o->ranks > 1 && o->rank != x->rank)
        return LS_FAIL(err, LS_ERR_ARG, "rank is %lld and %s is %lld; %s", (long long)o->rank, l->rank,
                       (long long)x->rank, hint);
    return LS_OK;
}

ls_status ls_own_rank_read(ls_own_rank *own, ls_launcher wanted, int64_t ranks_max, ls_own_rank_variable variable,
                           void *context, ls_error *err) {
    const reader r = {variable, context};
    const struct launcher *first = NULL;
    ls_own_rank found = *own;
    own->local = own->rank;
    own->launcher = LS_LAUNCHER_NONE;
    if (wanted == LS_LAUNCHER_NONE) return LS_OK;
    for (size_t i = 0; i < N_LAUNCHERS; i++) {
        const struct launcher *l = &launchers[i];
        ls_own_rank one = *own;
        if (wanted == l->kind ? false : wanted != LS_LAUNCHER_AUTO || !is_there(l, &r)) continue;
        LS_TRY(read_launcher(l, &r, ranks_max, &one, err));
        if (first != NULL) LS_TRY(check_equal(first, &found, l, &one, err));
        if (first != NULL) continue;
        first = l;
        found = one;
    }
    if (first == NULL) return LS_OK;
    LS_TRY(check_options(own, first, &found, err));
    LS_TRY(find_address(&found, &r, err));
    *own = found;
    return LS_OK;
}

static const char *from_environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

ls_status ls_own_rank_find(ls_own_rank *own, ls_launcher launcher, int64_t ranks_max, ls_error *err) {
    return ls_own_rank_read(own, launcher, ranks_max, from_environment, NULL, err);
}
