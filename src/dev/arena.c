/* Memory that the host cannot touch. Buffers are kept in the order of their addresses; a new one takes the first gap
 * that it fits. */
#define _DEFAULT_SOURCE
#include "dev/arena.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

#define LARGE_PAGE ((int64_t)2 << 20)
#define RESERVED_MOST ((int64_t)1 << 38)
#define RESERVED_LEAST ((int64_t)1 << 30)
#define NAME_BYTES 48

typedef struct buffer {
    uint8_t *begin;
    int64_t bytes;  /* as asked for */
    int64_t mapped; /* whole pages, at least one */
    bool released;  /* to be taken back */
    char what[NAME_BYTES];
} buffer;

struct ls_arena {
    uint8_t *base;
    int64_t reserved, page;
    buffer *buffers; /* [n], ascending */
    int64_t n, cap, n_released;
    int64_t open; /* bytes from base that are accessible */
    ls_arena_witness *witness;
    const void *owner;
    ls_arena *next; /* of all arenas of the program */
};

static pthread_mutex_t arenas_lock = PTHREAD_MUTEX_INITIALIZER;
static ls_arena *arenas;
static struct sigaction previous;

/* ---- the handler: write(2) and plain reads only ---- */

void ls_arena_say(const char *text) {
    const ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written; /* nobody is left to tell */
}

void ls_arena_say_number(int64_t number) {
    char text[24], *at = text + sizeof text - 1;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    *at = '\0';
    do *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (number < 0) *--at = '-';
    ls_arena_say(at);
}

static const ls_arena *arena_of(const uint8_t *address) {
    for (const ls_arena *a = arenas; a != NULL; a = a->next)
        if (address >= a->base && address < a->base + a->reserved) return a;
    return NULL;
}

static void report(const ls_arena *arena, const uint8_t *address) {
    const buffer *b = NULL;
    for (int64_t i = 0; i < arena->n && b == NULL; i++)
        if (address < arena->buffers[i].begin + arena->buffers[i].mapped) b = &arena->buffers[i];
    ls_arena_say(arena->open > 0 ? "lockstep: a call reached beyond memory of the device: "
                                 : "lockstep: the host touched memory of the device: ");
    if (b == NULL || address < b->begin) {
        ls_arena_say("byte ");
        ls_arena_say_number(address - arena->base);
        ls_arena_say(" of the arena, which is in no buffer\n");
        return;
    }
    ls_arena_say("'");
    ls_arena_say(b->what);
    ls_arena_say("', byte ");
    ls_arena_say_number(address - b->begin);
    ls_arena_say(" of ");
    ls_arena_say_number(b->bytes);
    if (b->released) ls_arena_say(", which has been released");
    arena->witness(arena->owner, b->begin, b->begin + b->mapped);
    ls_arena_say("\n");
}

/* What would have happened without us. */
static void pass_on(int signal_number, siginfo_t *info, void *context) {
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal_number, info, context);
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
        /* Waits until this handler has returned; a fault cannot be ignored. */
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    } else {
        previous.sa_handler(signal_number);
    }
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    /* si_addr means something when the kernel sent the signal. */
    const ls_arena *arena = info->si_code > 0 ? arena_of(info->si_addr) : NULL;
    if (arena == NULL) {
        pass_on(signal_number, info, context);
        return;
    }
    report(arena, info->si_addr);
    abort();
}

void ls_arena_watch(void) {
    struct sigaction now, ours;
    LS_ASSERT(sigaction(SIGSEGV, NULL, &now) == 0, "SIGSEGV");
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
    pthread_mutex_lock(&arenas_lock);
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    /* Ours without its flags, put back by a framework that saved it with signal(), has nobody new behind it. */
    if (now.sa_sigaction != on_fault) previous = now;
    LS_ASSERT(sigaction(SIGSEGV, &ours, NULL) == 0, "SIGSEGV");
    pthread_mutex_unlock(&arenas_lock);
}

/* ---- arenas ---- */

ls_status ls_arena_make(ls_arena **out, ls_arena_witness *witness, const void *owner, ls_error *err) {
    ls_arena *a = calloc(1, sizeof *a);
    void *base = MAP_FAILED;
    *out = NULL;
    if (a == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "arena");
    for (a->reserved = RESERVED_MOST; a->reserved >= RESERVED_LEAST; a->reserved /= 2) {
        base = mmap(NULL, (size_t)a->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base != MAP_FAILED) break;
    }
    if (base == MAP_FAILED) {
        free(a);
        return LS_FAIL(err, LS_ERR_NOMEM, "arena: cannot reserve %lld bytes of addresses", (long long)RESERVED_LEAST);
    }
    /* Access changes page by page at every wait: large pages, where the system has them, make that cheap. */
    (void)madvise(base, (size_t)a->reserved, MADV_HUGEPAGE);
    a->base = base;
    a->page = sysconf(_SC_PAGESIZE);
    a->witness = witness;
    a->owner = owner;
    pthread_mutex_lock(&arenas_lock);
    a->next = arenas;
    arenas = a;
    pthread_mutex_unlock(&arenas_lock);
    ls_arena_watch();
    *out = a;
    return LS_OK;
}

void ls_arena_free(ls_arena *arena) {
    ls_arena **link = &arenas;
    if (arena == NULL) return;
    pthread_mutex_lock(&arenas_lock);
    while (*link != arena) link = &(*link)->next;
    *link = arena->next;
    pthread_mutex_unlock(&arenas_lock);
    LS_ASSERT(munmap(arena->base, (size_t)arena->reserved) == 0, "%lld bytes", (long long)arena->reserved);
    free(arena->buffers);
    free(arena);
}

ls_status ls_arena_alloc(ls_arena *a, void **out, int64_t bytes, const char *what, ls_error *err) {
    int64_t mapped, gap, i;
    uint8_t *at = a->base;
    *out = NULL;
    if (!ls_add_i64(bytes, 2 * a->page, &mapped) || mapped > a->reserved)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld bytes in an arena of %lld", what, (long long)bytes,
                       (long long)a->reserved);
    mapped = bytes == 0 ? a->page : (bytes + a->page - 1) / a->page * a->page;
    LS_TRY(ls_array_grow((void **)&a->buffers, &a->cap, a->n + 1, (int64_t)sizeof *a->buffers, "arena", err));
    for (i = 0;; i++) {
        gap = (i < a->n ? a->buffers[i].begin : a->base + a->reserved) - at;
        if (gap > mapped || i == a->n) break;
        at = a->buffers[i].begin + a->buffers[i].mapped + a->page;
    }
    if (gap <= mapped)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: no %lld bytes are left in an arena of %lld", what, (long long)bytes,
                       (long long)a->reserved);
    memmove(&a->buffers[i + 1], &a->buffers[i], (size_t)(a->n - i) * sizeof *a->buffers);
    a->buffers[i] = (buffer){at, bytes, mapped, false, ""};
    strncpy(a->buffers[i].what, what, NAME_BYTES - 1);
    a->n++;
    *out = at;
    return LS_OK;
}

void ls_arena_release(ls_arena *a, void *memory) {
    int64_t i = 0;
    while (i < a->n && a->buffers[i].begin != memory) i++;
    LS_ASSERT(i < a->n && !a->buffers[i].released, "%p is no buffer of this device", memory);
    a->buffers[i].released = true;
    a->n_released++;
}

/* Protection of every buffer and of what lies between them: one call, however many there are. */
ls_status ls_arena_open(ls_arena *a, ls_error *err) {
    if (a->n == 0) return LS_OK;
    a->open = a->buffers[a->n - 1].begin + a->buffers[a->n - 1].mapped - a->base;
    a->open =
        ls_min_i64((a->open + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE, a->reserved); /* a part would split one */
    if (mprotect(a->base, (size_t)a->open, PROT_READ | PROT_WRITE) == 0) return LS_OK;
    a->open = 0;
    return LS_FAIL(err, LS_ERR_NOMEM, "arena: the system does not give access to it");
}

void ls_arena_close(ls_arena *a) {
    int64_t kept = 0;
    for (int64_t i = 0; i < a->n && a->n_released > 0; i++) {
        const buffer *b = &a->buffers[i];
        if (!b->released)
            a->buffers[kept++] = *b;
        else
            LS_ASSERT(madvise(b->begin, (size_t)b->mapped, MADV_DONTNEED) == 0, "%lld bytes", (long long)b->mapped);
    }
    if (a->n_released > 0) a->n = kept;
    a->n_released = 0;
    if (a->open > 0) LS_ASSERT(mprotect(a->base, (size_t)a->open, PROT_NONE) == 0, "%lld bytes", (long long)a->open);
    a->open = 0;
    ls_arena_watch();
}
