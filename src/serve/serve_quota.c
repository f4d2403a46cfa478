/* Counts of what requests hold. */
#include "serve/serve_quota.h"

void ls_quota_init(ls_quota *l, int64_t request_max, int64_t client_max, int64_t total_max) {
    *l = (ls_quota){.request_max = request_max, .client_max = client_max, .total_max = total_max};
    pthread_mutex_init(&l->lock, NULL);
}

void ls_quota_deinit(ls_quota *l) { pthread_mutex_destroy(&l->lock); }

int64_t ls_quota_total(ls_quota *l) {
    int64_t total;
    pthread_mutex_lock(&l->lock);
    total = l->total;
    pthread_mutex_unlock(&l->lock);
    return total;
}

/* With the lock. */
static void add_held(ls_holding *h, int64_t bytes) {
    h->bytes += bytes;
    h->quota->total += bytes;
    if (h->client != NULL) h->client->bytes += bytes;
}

static ls_status check_held(const ls_holding *h, int64_t bytes, bool *is_own, ls_error *err) {
    const ls_quota *l = h->quota;
    *is_own = bytes > l->request_max - h->bytes;
    if (*is_own)
        return LS_FAIL(err, LS_ERR_CAPACITY, "the request and its answer take more than %lld bytes (--request-bytes)",
                       (long long)l->request_max);
    if (h->bytes + bytes <= LS_QUOTA_FLOOR) return LS_OK;
    if (h->client != NULL && bytes > l->client_max - h->client->bytes)
        return LS_FAIL(err, LS_ERR_CAPACITY, "this key's requests hold %lld bytes; %lld are the most (--key-bytes)",
                       (long long)h->client->bytes, (long long)l->client_max);
    if (bytes > l->total_max - l->total)
        return LS_FAIL(err, LS_ERR_CAPACITY, "all requests hold %lld bytes; %lld are the most (--held-bytes)",
                       (long long)l->total, (long long)l->total_max);
    return LS_OK;
}

ls_status ls_holding_take(ls_holding *h, int64_t bytes, bool *is_own, ls_error *err) {
    ls_status status;
    pthread_mutex_lock(&h->quota->lock);
    status = check_held(h, bytes, is_own, err);
    if (status == LS_OK) add_held(h, bytes);
    pthread_mutex_unlock(&h->quota->lock);
    return status;
}

void ls_holding_give(ls_holding *h, int64_t bytes) {
    pthread_mutex_lock(&h->quota->lock);
    LS_ASSERT(bytes <= h->bytes, "%lld bytes of %lld", (long long)bytes, (long long)h->bytes);
    add_held(h, -bytes);
    pthread_mutex_unlock(&h->quota->lock);
}

void ls_holding_add(ls_holding *h, int64_t bytes) {
    pthread_mutex_lock(&h->quota->lock);
    add_held(h, bytes);
    pthread_mutex_unlock(&h->quota->lock);
}
