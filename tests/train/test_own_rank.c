/* Which process this one is, from made-up environments: what each launcher says, what is missing, who disagrees. */
#include <stdlib.h>

#include "harness.h"
#include "train/own_rank.h"

typedef struct variables {
    const char *const *list; /* NAME, value, .., NULL */
} variables;

static const char *look(void *context, const char *name) {
    const variables *v = context;
    for (const char *const *at = v->list; *at != NULL; at += 2)
        if (strcmp(*at, name) == 0) return at[1];
    return NULL;
}

static ls_status read_rank(ls_own_rank *p, const char *const *list, ls_launcher launcher, ls_error *err) {
    variables v = {list};
    return ls_own_rank_read(p, launcher, 256, look, &v, err);
}

static const char *const torchrun[] = {"RANK",        "5",           "WORLD_SIZE",  "8",     "LOCAL_RANK", "1",
                                       "MASTER_ADDR", "host-a.site", "MASTER_PORT", "29500", NULL};
static const char *const mpirun[] = {
    "OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "0", NULL};
static const char *const srun[] = {"SLURM_PROCID",
                                   "3",
                                   "SLURM_STEP_NUM_TASKS",
                                   "16",
                                   "SLURM_LOCALID",
                                   "3",
                                   "SLURM_STEP_NODELIST",
                                   "gpu[03-07,9],login",
                                   "SLURM_JOB_ID",
                                   "70",
                                   "SLURM_STEP_ID",
                                   "2",
                                   NULL};

static void must_be(const char *const *list, ls_launcher launcher, int64_t rank, int64_t ranks, int64_t local,
                    const char *address) {
    ls_own_rank p = {.ranks = 1};
    ls_error err;
    assert_ok(read_rank(&p, list, launcher, &err), err);
    assert_int_equal(p.rank, rank);
    assert_int_equal(p.ranks, ranks);
    assert_int_equal(p.local, local);
    assert_string_equal(p.address, address);
}

static void launchers_are_understood(void **state) {
    static const char *const six[] = {"RANK",    "0",           "WORLD_SIZE", "2", "MASTER_ADDR",
                                      "fe80::1", "MASTER_PORT", "1",          NULL};
    static const char *const alone[] = {"RANK", "0", "WORLD_SIZE", "1", NULL};
    static const char *const batch[] = {"SLURM_PROCID", "0", "SLURM_NTASKS", "16", "SLURM_JOB_ID", "7", NULL};
    static const char *const both[] = {"RANK",
                                       "1",
                                       "WORLD_SIZE",
                                       "2",
                                       "OMPI_COMM_WORLD_RANK",
                                       "1",
                                       "OMPI_COMM_WORLD_SIZE",
                                       "2",
                                       "MASTER_ADDR",
                                       "a",
                                       "MASTER_PORT",
                                       "9",
                                       NULL};
    static const char *const nothing[] = {NULL};
    (void)state;
    must_be(torchrun, LS_LAUNCHER_AUTO, 5, 8, 1, "host-a.site:29500");
    must_be(mpirun, LS_LAUNCHER_AUTO, 2, 4, 0, "");
    must_be(srun, LS_LAUNCHER_AUTO, 3, 16, 3, "gpu03:62562");
    must_be(srun, LS_LAUNCHER_NONE, 0, 1, 0, "");
    must_be(six, LS_LAUNCHER_TORCHRUN, 0, 2, 0, "[fe80::1]:1");
    must_be(alone, LS_LAUNCHER_AUTO, 0, 1, 0, "");
    must_be(batch, LS_LAUNCHER_AUTO, 0, 1, 0, "");
    must_be(both, LS_LAUNCHER_AUTO, 1, 2, 1, "a:9");
    must_be(nothing, LS_LAUNCHER_AUTO, 0, 1, 0, "");
}

static void must_fail(const char *const *list, ls_launcher launcher, const ls_own_rank *options, const char *words) {
    ls_own_rank p = *options;
    ls_error err;
    check_failed(read_rank(&p, list, launcher, &err), &err, words);
}

static void what_disagrees_is_named(void **state) {
    static const ls_own_rank plain = {.ranks = 1}, four = {.rank = 1, .ranks = 4}, eight = {.rank = 1, .ranks = 8};
    static const struct {
        const char *list[16];
        const ls_own_rank *options;
        const char *words;
    } cases[] = {
        {{"RANK", "1"}, &plain, "WORLD_SIZE: missing"},
        {{"WORLD_SIZE", "2"}, &plain, "RANK: missing"},
        {{"RANK", "one", "WORLD_SIZE", "2"}, &plain, "RANK: 'one' is not a number"},
        {{"RANK", "1", "WORLD_SIZE", "-2"}, &plain, "WORLD_SIZE: '-2' is not a number"},
        {{"RANK", "2", "WORLD_SIZE", "2"}, &plain, "RANK: 2 of 2 (WORLD_SIZE)"},
        {{"RANK", "2", "WORLD_SIZE", "257"}, &plain, "WORLD_SIZE: 257 is not in 1..256"},
        {{"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a"}, &plain, "MASTER_PORT: missing"},
        {{"RANK", "0", "WORLD_SIZE", "2", "MASTER_PORT", "5"}, &plain, "MASTER_ADDR: missing"},
        {{"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "70000"}, &plain, "MASTER_PORT: 70000"},
        {{"RANK", "1", "WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4"},
         &plain,
         "WORLD_SIZE is 2 and OMPI_COMM_WORLD_SIZE is 4"},
        {{"RANK", "1", "WORLD_SIZE", "2", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"},
         &plain,
         "RANK is 1 and SLURM_PROCID is 0"},
        {{"RANK", "1", "WORLD_SIZE", "8"}, &four, "ranks is 4 and WORLD_SIZE is 8"},
        {{"RANK", "2", "WORLD_SIZE", "8"}, &eight, "rank is 1 and RANK is 2"},
        {{"SLURM_STEP_NUM_TASKS", "2"}, &plain, "SLURM_PROCID: missing"},
        {{"SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2", "SLURM_STEP_NODELIST", "[", "SLURM_JOB_ID", "1"},
         &plain,
         "SLURM_STEP_NODELIST: '['"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        must_fail(cases[i].list, LS_LAUNCHER_AUTO, cases[i].options, cases[i].words);
    must_fail(mpirun, LS_LAUNCHER_TORCHRUN, &plain, "RANK: missing");
    /* The options' own address stays, and a launcher that is named stands alone. */
    {
        static const char *const two[] = {"RANK", "1", "WORLD_SIZE", "2", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS",
                                          "1",    NULL};
        ls_own_rank p = {.ranks = 1, .address = "here:7"};
        ls_error err;
        assert_ok(read_rank(&p, two, LS_LAUNCHER_TORCHRUN, &err), err);
        assert_int_equal(p.rank, 1);
        assert_string_equal(p.address, "here:7");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(launchers_are_understood),
                                       cmocka_unit_test(what_disagrees_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
