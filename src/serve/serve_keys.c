/* Keys of clients. Owns their texts. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/serve_state.h"

/* "KEY" or "KEY priority=N"; the line is cut in place. */
static ls_status read_priority(char *line, const char *path, int64_t *out, ls_error *err) {
    static const char word[] = " priority=";
    char *at = strstr(line, word), *end;
    long long value;
    if (at == NULL) return LS_OK;
    value = strtoll(at + sizeof word - 1, &end, 10);
    if (end == at + sizeof word - 1 || *end != '\0' || value < INT32_MIN || value > INT32_MAX)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: '%.40s' is no priority", path, at + 1);
    *at = '\0';
    *out = value;
    return LS_OK;
}

static ls_status add_key(ls_server *s, char *line, const char *path, bool is_admin, ls_error *err) {
    ls_client *c = &s->keys[s->n_keys];
    *c = (ls_client){.is_admin = is_admin, .least_priority = is_admin ? INT32_MIN : s->anonymous.least_priority};
    LS_TRY(read_priority(line, path, &c->least_priority, err));
    LS_TRY(ls_text_copy(&c->key, line, (int64_t)strlen(line), err));
    s->n_keys++;
    return LS_OK;
}

/* Empty lines do not count, but a file without any key does. */
ls_status ls_keys_read(ls_server *s, const char *path, bool is_admin, ls_error *err) {
    char *text, *line, *rest;
    int64_t bytes, cap = s->n_keys;
    const int64_t before = s->n_keys;
    ls_status status = LS_OK;
    LS_TRY(ls_file_read(&text, &bytes, path, 1 << 20, err));
    for (line = strtok_r(text + ls_utf8_mark(text, bytes), "\r\n", &rest); line != NULL && status == LS_OK;
         line = strtok_r(NULL, "\r\n", &rest)) {
        status = ls_array_grow((void **)&s->keys, &cap, s->n_keys + 1, sizeof *s->keys, "API keys", err);
        if (status == LS_OK) status = add_key(s, line, path, is_admin, err);
    }
    free(text);
    if (status == LS_OK && s->n_keys == before) status = LS_FAIL(err, LS_ERR_FORMAT, "%s: holds no key", path);
    return status;
}

void ls_keys_free(ls_server *s) {
    for (int64_t i = 0; i < s->n_keys; i++) free(s->keys[i].key);
    free(s->keys);
}

/* In a time that does not tell how much of a key is right. An admin's key that stands in both files is an admin's. */
static ls_client *find_key(ls_server *s, const char *text) {
    const size_t n = strlen(text);
    ls_client *found = NULL;
    for (int64_t k = 0; k < s->n_keys; k++) {
        const char *key = s->keys[k].key;
        const size_t length = strlen(key);
        unsigned differs = n != length;
        for (size_t i = 0; i < n; i++) differs |= (unsigned char)(text[i] ^ key[length == 0 ? 0 : i % length]);
        if (differs == 0 && (found == NULL || !found->is_admin)) found = &s->keys[k];
    }
    return found;
}

int ls_keys_check(ls_server *s, const ls_route *route, const char *header, ls_client **client) {
    const bool changes = route->kind == LS_ROUTE_CONTROL || route->kind == LS_ROUTE_STEER;
    const bool needs = changes ? s->asks_key || s->asks_admin : s->asks_key;
    ls_client *found = NULL;
    if (header != NULL && strncasecmp(header, "Bearer ", 7) == 0) found = find_key(s, header + 7);
    *client = found != NULL ? found : &s->anonymous;
    if (route->is_open || !needs) return 200;
    if (found == NULL) return 401;
    return changes && s->asks_admin && !found->is_admin ? 403 : 200;
}
