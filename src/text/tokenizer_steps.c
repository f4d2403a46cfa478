/* Reads the steps of tokenizer.json: what is built, what fields each has, and which values they take. Everything else
 * is refused here, with its path. Owns nothing. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_reader.h"
#include "text/unicode.h"

#define STEPS_MAX 64 /* of one kind, so that rules cannot multiply without bound */
#define DEPTH_MAX 16 /* Sequences in Sequences */
#define TEMPLATE_MAX 256

/* A component's "type", which selects a row of `names` (ends with NULL): its index, or LS_ERR_UNSUPPORTED. */
static ls_status read_step_type(const ls_node *node, const char *const *names, const char *what, int *index,
                                ls_error *err) {
    ls_node type;
    const char *text = NULL;
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_need(node, "type", &type, err));
    LS_TRY(ls_node_string(&type, &text, err));
    for (*index = 0; names[*index] != NULL; (*index)++)
        if (strcmp(names[*index], text) == 0) return LS_OK;
    return ls_node_fail(&type, LS_ERR_UNSUPPORTED, err, "the %s '%.60s' is not supported", what, text);
}

static ls_status read_choice(const ls_node *node, const char *const *names, int *index, ls_error *err) {
    const char *text = NULL;
    const ls_status status = ls_node_string(node, &text, err);
    if (status != LS_OK) return status;
    for (*index = 0; names[*index] != NULL; (*index)++)
        if (strcmp(names[*index], text) == 0) return LS_OK;
    return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "'%.60s' is not a value this field takes", text);
}

static ls_status need_bool(const ls_node *node, const char *key, bool *out, ls_error *err) {
    ls_node child;
    const ls_status status = ls_node_need(node, key, &child, err);
    return status != LS_OK ? status : ls_node_bool(&child, out, err);
}

/* Keeps *out when the field is absent. */
static ls_status maybe_bool(const ls_node *node, const char *key, bool *out, ls_error *err) {
    ls_node child;
    return ls_node_get(node, key, &child) ? ls_node_bool(&child, out, err) : LS_OK;
}

static ls_status need_text(const ls_node *node, const char *key, char **out, int64_t *bytes, ls_error *err) {
    ls_node child;
    const char *text = NULL;
    LS_TRY(ls_node_need(node, key, &child, err));
    LS_TRY(ls_node_text(&child, &text, bytes, err));
    return ls_text_copy(out, text, *bytes, err);
}

/* A field that holds exactly one character. */
static ls_status need_char(const ls_node *node, const char *key, ls_pattern *out, ls_error *err) {
    ls_node child;
    int32_t code;
    const ls_status status = need_text(node, key, &out->text, &out->bytes, err);
    if (status != LS_OK) return status;
    if (out->bytes > 0 && ls_utf8_decode((const uint8_t *)out->text, out->bytes, &code) == out->bytes) return LS_OK;
    ls_node_get(node, key, &child);
    return ls_node_fail(&child, LS_ERR_FORMAT, err, "'%.60s' is not one character", out->text);
}

/* {"String": ..} or {"Regex": ..} */
static ls_status need_pattern(const ls_node *node, ls_pattern *out, ls_error *err) {
    ls_node pattern, regex;
    const char *text = NULL;
    int64_t bytes = 0;
    ls_status status;
    LS_TRY_DONE(ls_node_need_kind(node, "pattern", LS_NODE_OBJECT, &pattern, err));
    if (ls_node_count(&pattern) != 1)
        return ls_node_fail(&pattern, LS_ERR_FORMAT, err, "exactly one of 'String' and 'Regex' is required");
    if (!ls_node_get(&pattern, "Regex", &regex)) return need_text(&pattern, "String", &out->text, &out->bytes, err);
    LS_TRY_DONE(ls_node_text(&regex, &text, &bytes, err));
    status = ls_regex_compile(&out->regex, text, bytes, err);
    if (status != LS_OK) ls_node_blame(&regex, err);
done:
    return status;
}

typedef ls_status (*reader)(ls_tokenizer *tokenizer, const ls_node *node, int depth, ls_error *err);

static ls_status read_sequence(ls_tokenizer *tokenizer, const ls_node *node, const char *key, reader read, int depth,
                               ls_error *err) {
    const char *const keys[] = {"type", key, NULL};
    ls_node list;
    LS_TRY(ls_node_only(node, keys, err));
    LS_TRY(ls_node_need_kind(node, key, LS_NODE_ARRAY, &list, err));
    if (depth >= DEPTH_MAX) return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "sequences nested this deep");
    for (int64_t i = 0; i < ls_node_count(&list); i++) {
        const ls_node item = ls_node_at(&list, i);
        LS_TRY(read(tokenizer, &item, depth + 1, err));
    }
    return LS_OK;
}

/* One more element, zeroed, in a list of steps. */
static ls_status add_step(const ls_node *node, void **list, int64_t *n, int64_t *cap, int64_t step_bytes, void **step,
                          ls_error *err) {
    ls_status status;
    if (*n >= STEPS_MAX) return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "more than %d steps", STEPS_MAX);
    status = ls_array_grow(list, cap, *n + 1, step_bytes, "tokenizer steps", err);
    if (status != LS_OK) return status;
    *step = (char *)*list + *n * step_bytes;
    memset(*step, 0, (size_t)step_bytes);
    (*n)++;
    return LS_OK;
}

static ls_status need_charsmap(const ls_node *node, ls_charsmap *out, ls_error *err) {
    ls_node child;
    const char *text;
    int64_t bytes;
    ls_status status;
    LS_TRY_DONE(ls_node_need(node, "precompiled_charsmap", &child, err));
    LS_TRY_DONE(ls_node_text(&child, &text, &bytes, err));
    if ((status = ls_charsmap_parse(out, text, bytes, err)) != LS_OK) ls_node_blame(&child, err);
done:
    return status;
}

static ls_status read_normalizer(ls_tokenizer *tokenizer, const ls_node *node, int depth, ls_error *err) {
    enum { NFC, NFD, NFKC, NFKD, SEQUENCE, PREPEND, REPLACE, LOWERCASE, STRIP, STRIP_ACCENTS, PRECOMPILED, NMT };
    static const char *const names[] = {"NFC",         "NFD",     "NFKC",      "NFKD",  "Sequence",
                                        "Prepend",     "Replace", "Lowercase", "Strip", "StripAccents",
                                        "Precompiled", "Nmt",     NULL};
    static const char *const keys[][5] = {[PREPEND] = {"type", "prepend"},
                                          [REPLACE] = {"type", "pattern", "content"},
                                          [STRIP] = {"type", "strip_left", "strip_right"},
                                          [STRIP_ACCENTS] = {"type"},
                                          [PRECOMPILED] = {"type", "precompiled_charsmap"},
                                          [NMT] = {"type"}};
    void *added = NULL;
    ls_norm_step *step;
    int type;
    ls_status status;
    LS_TRY_DONE(read_step_type(node, names, "normalizer", &type, err));
    if (type == SEQUENCE) return read_sequence(tokenizer, node, "normalizers", read_normalizer, depth, err);
    LS_TRY_DONE(ls_node_only(node, keys[type][0] != NULL ? keys[type] : keys[STRIP_ACCENTS], err));
    LS_TRY_DONE(
        add_step(node, (void **)&tokenizer->norm, &tokenizer->n_norm, &tokenizer->norm_cap, sizeof *step, &added, err));
    step = added;
    switch (type) {
        case PREPEND:
            step->kind = LS_NORM_PREPEND;
            status = need_text(node, "prepend", &step->content, &step->content_bytes, err);
            break;
        case REPLACE:
            step->kind = LS_NORM_REPLACE;
            LS_TRY_DONE(need_text(node, "content", &step->content, &step->content_bytes, err));
            status = need_pattern(node, &step->pattern, err);
            break;
        case LOWERCASE: step->kind = LS_NORM_LOWERCASE; break;
        case STRIP:
            step->kind = LS_NORM_STRIP;
            LS_TRY_DONE(need_bool(node, "strip_left", &step->left, err));
            status = need_bool(node, "strip_right", &step->right, err);
            break;
        case NMT: step->kind = LS_NORM_NMT; break;
        case STRIP_ACCENTS: step->kind = LS_NORM_STRIP_ACCENTS; break;
        case PRECOMPILED:
            step->kind = LS_NORM_CHARSMAP;
            status = need_charsmap(node, &step->charsmap, err);
            break;
        default:
            step->kind = LS_NORM_FORM;
            step->form = (type == NFC || type == NFKC ? LS_FORM_COMPOSE : 0) |
                         (type == NFKC || type == NFKD ? LS_FORM_COMPAT : 0);
            break;
    }
done:
    return status;
}

ls_status ls_read_normalizer(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err) {
    return read_normalizer(tokenizer, node, 0, err);
}

static ls_status read_behavior(const ls_node *node, bool required, ls_split_behavior *out, ls_error *err) {
    static const char *const names[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous", NULL};
    static const ls_split_behavior values[] = {LS_SPLIT_REMOVED, LS_SPLIT_ISOLATED, LS_SPLIT_MERGED_PREVIOUS,
                                               LS_SPLIT_MERGED_NEXT, LS_SPLIT_CONTIGUOUS};
    ls_node child;
    int index;
    *out = LS_SPLIT_ISOLATED;
    if (!ls_node_get(node, "behavior", &child)) return required ? ls_node_need(node, "behavior", &child, err) : LS_OK;
    LS_TRY(read_choice(&child, names, &index, err));
    *out = values[index];
    return LS_OK;
}

static ls_status read_scheme(const ls_node *node, ls_prepend_scheme *out, ls_error *err) {
    static const char *const names[] = {"always", "never", "first", NULL};
    static const ls_prepend_scheme values[] = {LS_PREPEND_ALWAYS, LS_PREPEND_NEVER, LS_PREPEND_FIRST};
    ls_node child;
    int index;
    bool add = true;
    ls_status status = LS_OK;
    *out = LS_PREPEND_ALWAYS;
    if (ls_node_get(node, "prepend_scheme", &child)) {
        LS_TRY_DONE(read_choice(&child, names, &index, err));
        *out = values[index];
    }
    /* The older field, which newer files may repeat. */
    if (ls_node_get_some(node, "add_prefix_space", &child)) {
        LS_TRY_DONE(ls_node_bool(&child, &add, err));
        if (!add && *out != LS_PREPEND_NEVER)
            status = ls_node_fail(&child, LS_ERR_FORMAT, err, "false contradicts the prepend_scheme");
    }
done:
    return status;
}

/* The Whitespace step splits by \w+|[^\w\s]+ with word characters of its own, and keeps the matches. */
static ls_status whitespace_pattern(ls_regex **out, ls_error *err) {
    static const char spaces[] =
        "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
    ls_text text = {0};
    ls_status status;
    LS_TRY_DONE(ls_text_append(&text, "[", 1, err));
    LS_TRY_DONE(ls_regex_append_plain_word(&text, err));
    LS_TRY_DONE(ls_text_append(&text, "]+|[^", 5, err));
    LS_TRY_DONE(ls_regex_append_plain_word(&text, err));
    LS_TRY_DONE(ls_text_append(&text, spaces, (int64_t)sizeof spaces - 1, err));
    LS_TRY_DONE(ls_text_append(&text, "]+\0", 4, err));
    status = ls_regex_compile_plain(out, text.data, text.bytes - 2, err);
done:
    ls_text_deinit(&text);
    return status;
}

static const char *const byte_level_keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
static const char *const metaspace_keys[] = {"type",    "replacement", "add_prefix_space", "prepend_scheme", "split",
                                             "str_rep", NULL};

static ls_status read_pre_tokenizer(ls_tokenizer *tokenizer, const ls_node *node, int depth, ls_error *err) {
    enum { SEQUENCE, BYTE_LEVEL, SPLIT, METASPACE, DIGITS, PUNCTUATION, WHITESPACE, WHITESPACE_SPLIT };
    static const char *const names[] = {"Sequence",    "ByteLevel",  "Split",           "Metaspace", "Digits",
                                        "Punctuation", "Whitespace", "WhitespaceSplit", NULL};
    static const char *const split_keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const digits_keys[] = {"type", "individual_digits", NULL};
    static const char *const punctuation_keys[] = {"type", "behavior", NULL};
    static const char *const type_only[] = {"type", NULL};
    static const char *const *const keys[] = {[BYTE_LEVEL] = byte_level_keys,   [SPLIT] = split_keys,
                                              [METASPACE] = metaspace_keys,     [DIGITS] = digits_keys,
                                              [PUNCTUATION] = punctuation_keys, [WHITESPACE] = type_only,
                                              [WHITESPACE_SPLIT] = type_only};
    void *added = NULL;
    ls_pre_step *step;
    int type;
    bool flag = false;
    ls_status status;
    LS_TRY_DONE(read_step_type(node, names, "pre-tokenizer", &type, err));
    if (type == SEQUENCE) return read_sequence(tokenizer, node, "pretokenizers", read_pre_tokenizer, depth, err);
    LS_TRY_DONE(ls_node_only(node, keys[type], err));
    LS_TRY_DONE(
        add_step(node, (void **)&tokenizer->pre, &tokenizer->n_pre, &tokenizer->pre_cap, sizeof *step, &added, err));
    step = added;
    switch (type) {
        case BYTE_LEVEL:
            step->kind = LS_PRE_BYTE_LEVEL;
            step->split = true;
            LS_TRY_DONE(need_bool(node, "add_prefix_space", &step->add_prefix_space, err));
            LS_TRY_DONE(maybe_bool(node, "trim_offsets", &flag, err)); /* about offsets, which are not computed here */
            LS_TRY_DONE(maybe_bool(node, "use_regex", &step->split, err));
            if (step->split)
                status = ls_regex_compile(&step->pattern.regex, ls_byte_level_pattern,
                                          (int64_t)strlen(ls_byte_level_pattern), err);
            break;
        case SPLIT:
            step->kind = LS_PRE_SPLIT;
            LS_TRY_DONE(need_pattern(node, &step->pattern, err));
            LS_TRY_DONE(read_behavior(node, true, &step->behavior, err));
            status = need_bool(node, "invert", &step->invert, err);
            break;
        case METASPACE:
            step->kind = LS_PRE_METASPACE;
            step->split = true;
            LS_TRY_DONE(need_char(node, "replacement", &step->pattern, err));
            LS_TRY_DONE(read_scheme(node, &step->scheme, err));
            status = maybe_bool(node, "split", &step->split, err);
            break;
        case DIGITS:
            step->kind = LS_PRE_DIGITS;
            LS_TRY_DONE(need_bool(node, "individual_digits", &flag, err));
            step->behavior = flag ? LS_SPLIT_ISOLATED : LS_SPLIT_CONTIGUOUS;
            break;
        case PUNCTUATION:
            step->kind = LS_PRE_PUNCTUATION;
            status = read_behavior(node, false, &step->behavior, err);
            break;
        case WHITESPACE:
            step->kind = LS_PRE_SPLIT;
            step->invert = true;
            step->behavior = LS_SPLIT_REMOVED;
            status = whitespace_pattern(&step->pattern.regex, err);
            break;
        default:
            step->kind = LS_PRE_WHITESPACE_SPLIT;
            step->behavior = LS_SPLIT_REMOVED;
            break;
    }
done:
    return status;
}

ls_status ls_read_pre_tokenizer(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err) {
    return read_pre_tokenizer(tokenizer, node, 0, err);
}

static ls_status add_post(ls_tokenizer *tokenizer, const ls_node *node, int32_t id, ls_error *err) {
    ls_status status;
    if (tokenizer->n_post >= TEMPLATE_MAX)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "a template of more than %d parts", TEMPLATE_MAX);
    status = ls_array_grow((void **)&tokenizer->post, &tokenizer->post_cap, tokenizer->n_post + 1,
                           sizeof *tokenizer->post, "template", err);
    if (status == LS_OK) tokenizer->post[tokenizer->n_post++] = id;
    return status;
}

static ls_status add_post_id(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err) {
    int64_t id = 0;
    ls_status status = ls_node_int(node, 0, INT32_MAX, &id, err);
    if (status != LS_OK) return status;
    if (ls_pair_map_find(&tokenizer->token_of_id, (uint64_t)id) == NULL)
        return ls_node_fail(node, LS_ERR_FORMAT, err, "no token has the id %lld", (long long)id);
    return add_post(tokenizer, node, (int32_t)id, err);
}

/* One part of a template: {"SpecialToken": {"id": NAME, ..}} or {"Sequence": {"id": "A", ..}}. */
static ls_status read_template_part(ls_tokenizer *tokenizer, const ls_node *part, const ls_node *special,
                                    ls_error *err) {
    static const char *const part_keys[] = {"SpecialToken", "Sequence", NULL};
    static const char *const inner_keys[] = {"id", "type_id", NULL};
    ls_node inner, id, entry, ids;
    const char *name = NULL;
    bool is_special;
    LS_TRY(ls_node_expect(part, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_only(part, part_keys, err));
    if (ls_node_count(part) != 1)
        return ls_node_fail(part, LS_ERR_FORMAT, err, "exactly one of 'SpecialToken' and 'Sequence' is required");
    is_special = ls_node_get(part, "SpecialToken", &inner);
    if (!is_special) LS_TRY(ls_node_need(part, "Sequence", &inner, err));
    LS_TRY(ls_node_expect(&inner, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_only(&inner, inner_keys, err));
    LS_TRY(ls_node_need(&inner, "id", &id, err));
    LS_TRY(ls_node_string(&id, &name, err));
    if (!is_special) {
        if (strcmp(name, "A") != 0)
            return ls_node_fail(&id, LS_ERR_UNSUPPORTED, err, "the sequence '%.60s' in a template for one text", name);
        return add_post(tokenizer, part, LS_TEMPLATE_TEXT, err);
    }
    if (!ls_node_get(special, name, &entry))
        return ls_node_fail(&id, LS_ERR_FORMAT, err, "'%.60s' is not in special_tokens", name);
    LS_TRY(ls_node_expect(&entry, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_need_kind(&entry, "ids", LS_NODE_ARRAY, &ids, err));
    for (int64_t i = 0; i < ls_node_count(&ids); i++) {
        const ls_node item = ls_node_at(&ids, i);
        LS_TRY(add_post_id(tokenizer, &item, err));
    }
    return LS_OK;
}

static ls_status read_template(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err) {
    /* "pair" is about two texts at once, which nothing here encodes */
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    ls_node single, special;
    LS_TRY(ls_node_only(node, keys, err));
    LS_TRY(ls_node_need_kind(node, "single", LS_NODE_ARRAY, &single, err));
    LS_TRY(ls_node_need_kind(node, "special_tokens", LS_NODE_OBJECT, &special, err));
    for (int64_t i = 0; i < ls_node_count(&single); i++) {
        const ls_node part = ls_node_at(&single, i);
        LS_TRY(read_template_part(tokenizer, &part, &special, err));
    }
    return LS_OK;
}

/* ["token", id] */
static ls_status read_post_pair(ls_tokenizer *tokenizer, const ls_node *node, const char *key, ls_error *err) {
    ls_node pair, id;
    LS_TRY(ls_node_need_kind(node, key, LS_NODE_ARRAY, &pair, err));
    if (ls_node_count(&pair) != 2) return ls_node_fail(&pair, LS_ERR_FORMAT, err, "a token and its id are required");
    id = ls_node_at(&pair, 1);
    return add_post_id(tokenizer, &id, err);
}

static ls_status read_post_processor(ls_tokenizer *tokenizer, const ls_node *node, int depth, ls_error *err) {
    enum { SEQUENCE, BYTE_LEVEL, TEMPLATE, BERT, ROBERTA };
    static const char *const names[] = {"Sequence",       "ByteLevel",         "TemplateProcessing",
                                        "BertProcessing", "RobertaProcessing", NULL};
    static const char *const surround_keys[] = {"type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL};
    int type;
    LS_TRY(read_step_type(node, names, "post-processor", &type, err));
    if (type == SEQUENCE) return read_sequence(tokenizer, node, "processors", read_post_processor, depth, err);
    if (type == BYTE_LEVEL) return ls_node_only(node, byte_level_keys, err); /* about offsets only */
    if (tokenizer->has_post)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "a second post-processor that adds tokens");
    tokenizer->has_post = true;
    if (type == TEMPLATE) return read_template(tokenizer, node, err);
    LS_TRY(ls_node_only(node, surround_keys, err));
    LS_TRY(read_post_pair(tokenizer, node, "cls", err));
    LS_TRY(add_post(tokenizer, node, LS_TEMPLATE_TEXT, err));
    return read_post_pair(tokenizer, node, "sep", err);
}

ls_status ls_read_post_processor(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err) {
    return read_post_processor(tokenizer, node, 0, err);
}

static ls_status need_count(const ls_node *node, const char *key, int64_t *out, ls_error *err) {
    ls_node child;
    const ls_status status = ls_node_need(node, key, &child, err);
    return status != LS_OK ? status : ls_node_int(&child, 0, INT32_MAX, out, err);
}

static ls_status read_decoder(ls_tokenizer *tokenizer, const ls_node *node, int depth, ls_error *err) {
    enum { SEQUENCE, BYTE_LEVEL, REPLACE, BYTE_FALLBACK, FUSE, STRIP, METASPACE, BPE };
    static const char *const names[] = {"Sequence",  "ByteLevel",  "Replace", "ByteFallback", "Fuse", "Strip",
                                        "Metaspace", "BPEDecoder", NULL};
    static const char *const replace_keys[] = {"type", "pattern", "content", NULL};
    static const char *const strip_keys[] = {"type", "content", "start", "stop", NULL};
    static const char *const bpe_keys[] = {"type", "suffix", NULL};
    static const char *const type_only[] = {"type", NULL};
    static const char *const *const keys[] = {[BYTE_LEVEL] = byte_level_keys,
                                              [REPLACE] = replace_keys,
                                              [BYTE_FALLBACK] = type_only,
                                              [FUSE] = type_only,
                                              [STRIP] = strip_keys,
                                              [METASPACE] = metaspace_keys,
                                              [BPE] = bpe_keys};
    void *added = NULL;
    ls_dec_step *step;
    ls_prepend_scheme scheme;
    int type;
    ls_status status;
    LS_TRY_DONE(read_step_type(node, names, "decoder", &type, err));
    if (type == SEQUENCE) return read_sequence(tokenizer, node, "decoders", read_decoder, depth, err);
    LS_TRY_DONE(ls_node_only(node, keys[type], err));
    LS_TRY_DONE(
        add_step(node, (void **)&tokenizer->dec, &tokenizer->n_dec, &tokenizer->dec_cap, sizeof *step, &added, err));
    step = added;
    switch (type) {
        case BYTE_LEVEL: step->kind = LS_DEC_BYTE_LEVEL; break;
        case REPLACE:
            step->kind = LS_DEC_REPLACE;
            LS_TRY_DONE(need_text(node, "content", &step->content, &step->content_bytes, err));
            status = need_pattern(node, &step->pattern, err);
            break;
        case BYTE_FALLBACK: step->kind = LS_DEC_BYTE_FALLBACK; break;
        case FUSE: step->kind = LS_DEC_FUSE; break;
        case STRIP:
            step->kind = LS_DEC_STRIP;
            LS_TRY_DONE(need_char(node, "content", &step->pattern, err));
            LS_TRY_DONE(need_count(node, "start", &step->start, err));
            status = need_count(node, "stop", &step->stop, err);
            break;
        case METASPACE:
            step->kind = LS_DEC_METASPACE;
            LS_TRY_DONE(need_char(node, "replacement", &step->pattern, err));
            LS_TRY_DONE(read_scheme(node, &scheme, err));
            step->drop_first = scheme != LS_PREPEND_NEVER;
            break;
        default:
            step->kind = LS_DEC_BPE;
            LS_TRY_DONE(need_text(node, "suffix", &step->pattern.text, &step->pattern.bytes, err));
            if (step->pattern.bytes == 0) status = ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "an empty suffix");
            break;
    }
done:
    return status;
}

ls_status ls_read_decoder(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err) {
    tokenizer->has_decoder = true;
    return read_decoder(tokenizer, node, 0, err);
}
