/* Text only: nothing is resolved and nothing is opened. */
#define _GNU_SOURCE
#include "base/url.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MARK "REDACTED"

typedef struct sink {
    char *out;
    size_t room, n;
} sink;

static void put_text(sink *s, const char *text, size_t n) {
    if (n > s->room - 1 - s->n) n = s->room - 1 - s->n;
    memcpy(s->out + s->n, text, n);
    s->n += n;
    s->out[s->n] = '\0';
}

static bool is_of_scheme(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '-' ||
           c == '.';
}

/* Bytes of the authority, and of these user and password with their @; 0: there are none. */
static size_t authority_of(const char *text, size_t *user) {
    size_t n = strcspn(text, "/?# \t\r\n\"'<>");
    const char *end;
    if (n > 0 && strncmp(text + n - 1, "://", 3) == 0) { /* the next one of a list */
        n--;
        while (n > 0 && is_of_scheme(text[n - 1])) n--;
    }
    end = memrchr(text, '@', n);
    *user = end == NULL ? 0 : (size_t)(end - text) + 1;
    return n;
}

static bool is_secret(const char *name, size_t n) {
    static const char *const words[] = {"key", "token", "secret", "passw", "pwd", "auth", "sig", "credential"};
    char copy[64];
    if (n >= sizeof copy) n = sizeof copy - 1;
    memcpy(copy, name, n);
    copy[n] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasestr(copy, words[i]) != NULL) return true;
    return false;
}

/* A query from its ? on; returns what is behind it. */
static const char *put_query(sink *s, const char *at) {
    while (*at == '?' || *at == '&') {
        const size_t name = strcspn(at + 1, "=&# \t\r\n\"'<>,");
        if (memmem(at, name + 1, "://", 3) != NULL) return at; /* another URL */
        put_text(s, at, name + 1);
        at += name + 1;
        if (*at != '=') continue;
        const size_t value = strcspn(at + 1, "&# \t\r\n\"'<>,");
        const bool secret = is_secret(at - name, name) && value > 0;
        if (!secret && memmem(at, value + 1, "://", 3) != NULL) return at;
        put_text(s, "=", 1);
        if (secret)
            put_text(s, MARK, strlen(MARK));
        else
            put_text(s, at + 1, value);
        at += value + 1;
    }
    return at;
}

void ls_url_redact(char *out, size_t room, const char *text) {
    sink s = {out, room, 0};
    const char *at = text, *found;
    out[0] = '\0';
    while ((found = strstr(at, "://")) != NULL) {
        size_t user, n;
        put_text(&s, at, (size_t)(found - at) + 3);
        at = found + 3;
        n = authority_of(at, &user);
        if (user > 0) put_text(&s, MARK "@", strlen(MARK) + 1);
        put_text(&s, at + user, n - user);
        at += n;
        n = strcspn(at, "?, \t\r\n\"'<>"); /* the path */
        if (memmem(at, n, "://", 3) != NULL) continue;
        put_text(&s, at, n);
        at += n;
        if (*at == '?') at = put_query(&s, at);
    }
    put_text(&s, at, strlen(at));
}

ls_status ls_url_complete(char *out, size_t room, const char *url, const char *name, ls_error *err) {
    static const char mark[] = "://" MARK "@";
    const char *found = strstr(url, mark), *own = getenv(LS_URL_VARIABLE);
    int n;
    if (found != NULL && (own == NULL || own[0] == '\0'))
        return LS_FAIL(
            err, LS_ERR_ARG,
            "%s: user and password of %.200s are not kept: give the URL again (--set %s=..), or user:password "
            "in the environment variable " LS_URL_VARIABLE,
            name, url, name);
    if (strstr(url, "=" MARK) != NULL)
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: a key in the query of %.200s is not kept: give the URL again (--set %s=..)", name, url,
                       name);
    n = found == NULL ? snprintf(out, room, "%s", url)
                      : snprintf(out, room, "%.*s://%s@%s", (int)(found - url), url, own, found + strlen(mark));
    if (n < 0 || (size_t)n >= room) return LS_FAIL(err, LS_ERR_ARG, "%s: the URL is too long", name);
    return LS_OK;
}
