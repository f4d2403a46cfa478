/* Processes that share a batch's leaves: the bits of one process, whatever their number; peers that are lost, silent,
 * strangers or failing are one clear error on every side. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/training.h"

enum { STEPS = 4 };

static char address[64];

/* A port that was free a moment ago. */
static void choose_address(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    snprintf(address, sizeof address, "127.0.0.1:%d", (int)ntohs(a.sin_port));
}

static ls_status open_rank(ls_comm **out, int32_t rank, int32_t n_ranks, double timeout_s, uint64_t identity,
                           ls_error *err) {
    const ls_comm_opts opts = {rank, n_ranks, address, timeout_s, LS_TRANSPORT_TCP, NULL};
    return ls_comm_open(out, &opts, identity, err);
}

/* Runs `work` as a process that exits with its result. */
static pid_t spawn(int (*work)(int32_t rank), int32_t rank) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(work(rank));
    return child;
}

static void must_end_well(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("a rank ended with status %x", (unsigned)status);
}

/* ---- bits ---- */

static int32_t n_ranks;
static ls_trainer_opts options;
static int results[2];

static uint64_t rank_bits(int32_t rank) {
    training t;
    uint64_t bits;
    ls_error err;
    if (n_ranks > 1) assert_ok(open_rank(&options.comm, rank, n_ranks, 60, 1, &err), err);
    training_open(&t, fixture_path("jamba-odd"), &options, 1, ls_isa_best());
    (void)train(&t, 1, STEPS + 1);
    assert_ok(ls_train_state_digest(t.state, &bits, &err), err);
    bits = mix_bytes(bits, (const uint64_t[]){weight_digest(t.state->parameters)}, 8);
    training_close(&t);
    ls_comm_close(options.comm);
    options.comm = NULL;
    return bits;
}

static int send_bits(int32_t rank) {
    const uint64_t bits = rank_bits(rank);
    return write(results[1], &bits, sizeof bits) == (ssize_t)sizeof bits ? 0 : 1;
}

static void processes_have_the_bits_of_one(void **state) {
    /* 8, 15 and 4 leaves: with 3, 5 and 8 ranks some have less, or none. */
    static const int64_t leaves[] = {2, 1, 4};
    static const int32_t ranks[][2] = {{2, 3}, {4, 8}, {2, 5}};
    (void)state;
    assert_int_equal(pipe(results), 0);
    for (size_t l = 0; l < sizeof leaves / sizeof leaves[0]; l++) {
        uint64_t alone;
        options = usual_opts();
        options.leaf = leaves[l];
        if (l > 0) options.moments = LS_BF16; /* rounded by their numbers over all parameters */
        n_ranks = 1;
        alone = rank_bits(0);
        for (int i = 0; i < 2; i++) {
            pid_t children[8];
            n_ranks = ranks[l][i];
            choose_address();
            options.microbatch = n_ranks;
            for (int32_t r = 1; r < n_ranks; r++) children[r] = spawn(send_bits, r);
            assert_true(rank_bits(0) == alone);
            for (int32_t r = 1; r < n_ranks; r++) {
                uint64_t bits;
                must_end_well(children[r]);
                assert_int_equal(read(results[0], &bits, sizeof bits), (ssize_t)sizeof bits);
                if (bits != alone) fail_msg("%d ranks: a rank has other bits", n_ranks);
            }
        }
    }
    close(results[0]);
    close(results[1]);
}

/* ---- failures: the child tells by its exit code whether it saw what it should ---- */

static int says(ls_status status, const ls_error *err, const char *words) {
    if (status != LS_OK && strstr(err->text, words) != NULL) return 0;
    fprintf(stderr, "expected '%s', found '%s'\n", words, status == LS_OK ? "success" : err->text);
    return 1;
}

static const int64_t begins[] = {0, 8, 16};

static ls_status exchange(ls_comm *comm, int n, ls_error *err) {
    ls_status status = LS_OK;
    for (int i = 0; i < n && status == LS_OK; i++) {
        int64_t values[2] = {i, i};
        values[1 - ls_comm_rank(comm)] = -1;
        status = ls_comm_share(comm, values, begins, "the losses", err);
        if (status == LS_OK && (values[0] != i || values[1] != i)) abort();
    }
    return status;
}

static int child_leaves(int32_t rank) {
    ls_comm *comm;
    ls_error err;
    if (open_rank(&comm, rank, 2, 20, 1, &err) != LS_OK || exchange(comm, 3, &err) != LS_OK) return 1;
    _exit(0);
}

static int child_sleeps(int32_t rank) {
    ls_comm *comm;
    ls_error err;
    int code;
    if (open_rank(&comm, rank, 2, 20, 1, &err) != LS_OK) return 1;
    usleep(3000000); /* a busy machine may keep rank 0 from looking for a while */
    /* What rank 0 had sent before it gave up is still there. */
    code = says(exchange(comm, 3, &err), &err, "rank 1 lost the connection to rank 0 at the losses");
    ls_comm_close(comm);
    return code;
}

static int child_fails(int32_t rank) {
    const ls_error reason = {LS_ERR_ARG, "step 7: no such reward"};
    ls_comm *comm;
    ls_error err;
    if (open_rank(&comm, rank, 2, 20, 1, &err) != LS_OK || exchange(comm, 1, &err) != LS_OK) return 1;
    ls_comm_abort(comm, &reason);
    ls_comm_close(comm);
    return 0;
}

static int child_is_killed(int32_t rank) {
    ls_comm *comm;
    ls_error err;
    if (open_rank(&comm, rank, 2, 20, 1, &err) != LS_OK || exchange(comm, 1, &err) != LS_OK) return 1;
    (void)kill(getpid(), SIGKILL);
    return 1;
}

static void lost_peers_are_named(void **state) {
    static const struct {
        int (*child)(int32_t);
        double timeout_s;
        const char *words;
    } cases[] = {{child_leaves, 20, "rank 0 lost the connection to rank 1 at the losses"},
                 {child_is_killed, 20, "rank 0 lost the connection to rank 1 at the losses"},
                 {child_fails, 20, "rank 1 failed: step 7: no such reward"},
                 {child_sleeps, 0.2, "rank 1 was silent for 0.2 s while rank 0 waited for the losses"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t child;
        ls_comm *comm;
        ls_error err;
        int status;
        choose_address();
        child = spawn(cases[i].child, 1);
        for (;;) { /* the child may be late for a short timeout */
            if (open_rank(&comm, 0, 2, cases[i].timeout_s, 1, &err) == LS_OK) break;
            assert_non_null(strstr(err.text, "1 of 2 ranks came"));
        }
        check_failed(exchange(comm, 100, &err), &err, cases[i].words);
        check_failed(exchange(comm, 1, &err), &err, "rank 0 lost the connection");
        ls_comm_close(comm);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, cases[i].child == child_is_killed ? SIGKILL : 0);
    }
}

/* ---- meeting ---- */

static int child_has_another_identity(int32_t rank) {
    ls_comm *comm;
    ls_error err;
    return says(open_rank(&comm, rank, 2, 20, 2, &err), &err,
                "rank 0 failed: rank 1 was started with other options, data or weights than rank 0");
}

static int child_has_other_ranks(int32_t rank) {
    ls_comm *comm;
    ls_error err;
    return says(open_rank(&comm, rank, 3, 20, 1, &err), &err, "rank 1 of 3 came to rank 0 of 2");
}

static int child_is_no_rank_first(int32_t rank) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ls_comm *comm;
    ls_error err;
    int code;
    a.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1));
    for (int i = 0; i < 3; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        while (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) usleep(10000);
        if (i < 2 && write(fd, "GET / HTTP/1.1\r\nHost: somebody\r\nAccept: all of it\r\n\r\n", i == 0 ? 5 : 52) < 0)
            return 1;
        close(fd);
    }
    if (open_rank(&comm, rank, 2, 20, 1, &err) != LS_OK) return 1;
    code = exchange(comm, 5, &err) != LS_OK;
    ls_comm_close(comm);
    return code;
}

static void only_ranks_of_the_run_meet(void **state) {
    pid_t child;
    ls_comm *comm;
    ls_error err;
    (void)state;
    choose_address();
    child = spawn(child_has_another_identity, 1);
    check_failed(open_rank(&comm, 0, 2, 20, 1, &err), &err, "started with other options, data or weights");
    assert_null(comm);
    must_end_well(child);
    choose_address();
    child = spawn(child_has_other_ranks, 1);
    check_failed(open_rank(&comm, 0, 2, 20, 1, &err), &err, "rank 1 of 3 came to rank 0 of 2");
    must_end_well(child);
    choose_address();
    child = spawn(child_is_no_rank_first, 1);
    assert_ok(open_rank(&comm, 0, 2, 20, 1, &err), err);
    assert_ok(exchange(comm, 5, &err), err);
    must_end_well(child);
    ls_comm_close(comm);
}

static void bad_addresses_and_absent_ranks_are_errors(void **state) {
    static const char *const bad[] = {"nowhere", ":80", "127.0.0.1:", "127.0.0.1:no-such-service"};
    ls_comm *comm;
    ls_error err;
    (void)state;
    for (int32_t rank = 0; rank < 2; rank++)
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            snprintf(address, sizeof address, "%s", bad[i]);
            check_failed(open_rank(&comm, rank, 2, 1, 1, &err), &err, bad[i]);
        }
    choose_address();
    check_failed(open_rank(&comm, 0, 3, 0.1, 1, &err), &err, "1 of 3 ranks came within 0.1 s");
    check_failed(open_rank(&comm, 1, 2, 0.1, 1, &err), &err, "rank 1 found nobody at 127.0.0.1:");
    check_failed(open_rank(&comm, 2, 2, 1, 1, &err), &err, "rank 2 of 2");
    check_failed(open_rank(&comm, 0, 1, 1, 1, &err), &err, "rank 0 of 1");
    check_failed(open_rank(&comm, 0, 2, 0, 1, &err), &err, "timeout of 0 s");
    snprintf(address, sizeof address, "192.0.2.1:4000"); /* not an address of this machine */
    check_failed(open_rank(&comm, 0, 2, 1, 1, &err), &err, "rank 0 cannot listen at 192.0.2.1:4000");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(lost_peers_are_named),
        cmocka_unit_test(only_ranks_of_the_run_meet),
        cmocka_unit_test(bad_addresses_and_absent_ranks_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
