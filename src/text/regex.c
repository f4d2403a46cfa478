/* Compiling and running translated patterns; the only file that includes PCRE2. Owns the compiled code.
 * The interpreter is used, not the just-in-time compiler: it needs no writable code pages and behaves alike
 * everywhere. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

#define LS_REGEX_STEPS_BASE 100000 /* backtracking allowed for any match, plus a linear part below */
#define LS_REGEX_STEPS_PER_BYTE 64
#define LS_REGEX_HEAP_KIB 524288

struct ls_regex {
    pcre2_code *code;
};

struct ls_regex_search {
    const ls_regex *regex;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

static void error_words(int code, char *words, size_t size) {
    if (pcre2_get_error_message(code, (PCRE2_UCHAR *)words, size) < 0) snprintf(words, size, "error %d", code);
}

ls_status ls_regex_compile_plain(ls_regex **out, const char *pattern, int64_t bytes, ls_error *err) {
    ls_regex *regex = calloc(1, sizeof *regex);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    int code = 0;
    PCRE2_SIZE at = 0;
    ls_status status = LS_OK;
    *out = NULL;
    if (regex == NULL || context == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "regular expression");
        goto done;
    }
    /* Not the library's build-time defaults: both decide what a pattern matches. */
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
    regex->code = pcre2_compile((PCRE2_SPTR)pattern, (PCRE2_SIZE)bytes, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                &code, &at, context);
    if (regex->code == NULL) {
        char words[160];
        error_words(code, words, sizeof words);
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "the pattern does not compile: %s (offset %lld of '%.200s')", words,
                         (long long)at, pattern);
        goto done;
    }
    *out = regex;
    regex = NULL;
done:
    pcre2_compile_context_free(context);
    ls_regex_free(regex);
    return status;
}

ls_status ls_regex_compile(ls_regex **out, const char *pattern, int64_t bytes, ls_error *err) {
    ls_text text = {0};
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_regex_translate(&text, pattern, bytes, err));
    LS_TRY_DONE(ls_text_append(&text, "", 1, err)); /* messages print it */
    status = ls_regex_compile_plain(out, text.data, text.bytes - 1, err);
done:
    ls_text_deinit(&text);
    return status;
}

void ls_regex_free(ls_regex *regex) {
    if (regex == NULL) return;
    pcre2_code_free(regex->code);
    free(regex);
}

ls_status ls_regex_search_create(ls_regex_search **out, const ls_regex *regex, ls_error *err) {
    ls_regex_search *search = calloc(1, sizeof *search);
    *out = NULL;
    if (search != NULL) {
        search->regex = regex;
        search->data = pcre2_match_data_create_from_pattern(regex->code, NULL);
        search->context = pcre2_match_context_create(NULL);
    }
    if (search == NULL || search->data == NULL || search->context == NULL) {
        ls_regex_search_free(search);
        return LS_FAIL(err, LS_ERR_NOMEM, "regular expression search");
    }
    pcre2_set_heap_limit(search->context, LS_REGEX_HEAP_KIB);
    *out = search;
    return LS_OK;
}

void ls_regex_search_free(ls_regex_search *search) {
    if (search == NULL) return;
    pcre2_match_data_free(search->data);
    pcre2_match_context_free(search->context);
    free(search);
}

ls_status ls_regex_find(ls_regex_search *search, const char *text, int64_t bytes, int64_t from, bool *found,
                        int64_t *begin, int64_t *end, ls_error *err) {
    const int64_t steps =
        LS_REGEX_STEPS_BASE + LS_REGEX_STEPS_PER_BYTE * (bytes < INT32_MAX / 128 ? bytes : INT32_MAX / 128);
    int rc;
    *found = false;
    pcre2_set_match_limit(search->context, (uint32_t)steps);
    rc = pcre2_match(search->regex->code, (PCRE2_SPTR)text, (PCRE2_SIZE)bytes, (PCRE2_SIZE)from, PCRE2_NO_UTF_CHECK,
                     search->data, search->context);
    if (rc == PCRE2_ERROR_NOMATCH) return LS_OK;
    if (rc < 0) {
        char words[160];
        error_words(rc, words, sizeof words);
        return LS_FAIL(err, LS_ERR_CAPACITY, "a pattern gave up at byte %lld of %lld: %s", (long long)from,
                       (long long)bytes, words);
    }
    *found = true;
    *begin = (int64_t)pcre2_get_ovector_pointer(search->data)[0];
    *end = (int64_t)pcre2_get_ovector_pointer(search->data)[1];
    return LS_OK;
}

bool ls_regex_group(const ls_regex_search *search, int64_t group, int64_t *begin, int64_t *end) {
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(search->data);
    if (group >= (int64_t)pcre2_get_ovector_count(search->data) || at[2 * group] == PCRE2_UNSET) return false;
    *begin = (int64_t)at[2 * group];
    *end = (int64_t)at[2 * group + 1];
    return true;
}
