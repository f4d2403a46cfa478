/* Stop texts: for every token its text as the decoder's steps on single tokens leave it, which stop texts share, and
 * the automaton of all texts of one request. */
#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_parts.h"

struct ls_stop_tokens {
    const ls_tokenizer *tokenizer;
    bool first_differs, last_differs; /* the first token's text is another than elsewhere; the last one's */
    ls_pieces text[2][2];             /* [first][last], by the index of the token; filled where it differs */
    bool byte_level, byte_fallback;
    const ls_dec_step *strip; /* of the whole text, or NULL */
};

/* A state of the automaton: the longest beginning of a text that ends here. */
typedef struct stop_node {
    int32_t child, sibling; /* 0: none; siblings have one parent */
    int32_t fallback;       /* the node of the next shorter beginning */
    uint8_t byte;           /* that leads here from the parent */
    bool ends;              /* a text ends here */
} stop_node;

struct ls_stop {
    const ls_stop_tokens *tokens;
    ls_stop_tokens *own; /* the same where they are this object's, or NULL */
    stop_node *nodes;    /* node 0 is the start */
    int64_t n_nodes;
};

/* Reading the decoder. */

static bool is_of_single_tokens(ls_dec_kind kind) {
    return kind == LS_DEC_REPLACE || kind == LS_DEC_STRIP || kind == LS_DEC_METASPACE || kind == LS_DEC_BPE;
}

/* Sorts the steps into those on single tokens, whose number it returns, and the members of the object. */
static ls_status read_steps(ls_stop_tokens *t, int64_t *n_single, ls_error *err) {
    const ls_dec_step *steps = t->tokenizer->dec;
    const int64_t n = t->tokenizer->n_dec;
    int64_t i = 0;
    bool one;
    t->first_differs = !t->tokenizer->has_decoder;
    for (; i < n && is_of_single_tokens(steps[i].kind); i++) {
        t->first_differs |= steps[i].kind == LS_DEC_METASPACE && steps[i].drop_first;
        t->last_differs |= steps[i].kind == LS_DEC_BPE;
    }
    *n_single = i;
    if (i < n && steps[i].kind == LS_DEC_BYTE_LEVEL) t->byte_level = true;
    if (i < n && steps[i].kind == LS_DEC_BYTE_FALLBACK) t->byte_fallback = true;
    if (t->byte_level || t->byte_fallback) i++;
    for (one = t->byte_level; i < n && steps[i].kind == LS_DEC_FUSE; i++) one = true;
    if (i < n && one && steps[i].kind == LS_DEC_STRIP) t->strip = &steps[i++];
    if (i < n)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "stop texts: step %lld of the tokenizer's decoder cannot be followed token by token",
                       (long long)i);
    return LS_OK;
}

/* Every token's text in one place of a sequence. Steps that look at the place become replacements. */
static ls_status fill_texts(ls_stop_tokens *t, int first, int last, int64_t n_single, ls_error *err) {
    const ls_tokenizer *of = t->tokenizer;
    ls_pieces *texts = &t->text[first][last], raw = {0};
    ls_dec_step *steps = NULL;
    char space[] = " ";
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&steps, n_single, sizeof *steps, "decoder steps", err));
    for (int64_t i = 0; i < n_single; i++) {
        const ls_dec_kind kind = of->dec[i].kind;
        steps[i] = of->dec[i];
        if (kind != LS_DEC_METASPACE && kind != LS_DEC_BPE) continue;
        steps[i].kind = LS_DEC_REPLACE;
        steps[i].content = space;
        steps[i].content_bytes = kind == LS_DEC_METASPACE ? !(first && steps[i].drop_first) : !last;
    }
    for (int64_t i = 0; i < of->n_tokens; i++) {
        const int64_t begin = texts->text.bytes;
        if (!of->has_decoder && !first) LS_TRY_DONE(ls_text_append(&texts->text, " ", 1, err));
        LS_TRY_DONE(ls_text_append(&texts->text, of->tokens[i].text, of->tokens[i].bytes, err));
        LS_TRY_DONE(ls_pieces_close(texts, begin, false, err));
    }
    LS_TRY_DONE(ls_detokenize(steps, n_single, texts, err));
    if (!t->byte_level) goto done;
    for (int64_t i = 0; i < texts->n; i++) {
        const int64_t begin = raw.text.bytes;
        LS_TRY_DONE(
            ls_byte_level_append(&raw.text, texts->text.data + texts->items[i].begin, texts->items[i].bytes, err));
        LS_TRY_DONE(ls_pieces_close(&raw, begin, false, err));
    }
    ls_pieces_deinit(texts);
    *texts = raw;
    raw = (ls_pieces){0};
done:
    ls_pieces_deinit(&raw);
    free(steps); /* what they point to is the tokenizer's */
    return status;
}

/* The automaton (Aho and Corasick 1975). A node's ways onward are its children's and, where none fits, those of its
 * fallback: that takes a few bytes for each byte of the texts, where a table of all ways would take a thousand. */

static ls_status check_text(const char *text, int64_t text_i, ls_error *err) {
    if (text[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "stop text %lld: is empty", (long long)text_i);
    if (!ls_utf8_valid((const uint8_t *)text, (int64_t)strlen(text)))
        return LS_FAIL(err, LS_ERR_ARG, "stop text %lld: is not UTF-8", (long long)text_i);
    return LS_OK;
}

static int32_t child_by(const stop_node *nodes, int32_t node, uint8_t byte) {
    int32_t child = nodes[node].child;
    while (child != 0 && nodes[child].byte != byte) child = nodes[child].sibling;
    return child;
}

static int32_t next_node(const stop_node *nodes, int32_t node, uint8_t byte) {
    int32_t child;
    while ((child = child_by(nodes, node, byte)) == 0 && node != 0) node = nodes[node].fallback;
    return child;
}

static void add_stop_text(ls_stop *stop, const char *text) {
    int32_t node = 0;
    for (const char *c = text; *c != '\0'; c++) {
        int32_t child = child_by(stop->nodes, node, (uint8_t)*c);
        if (child == 0) {
            child = (int32_t)stop->n_nodes++;
            stop->nodes[child].byte = (uint8_t)*c;
            stop->nodes[child].sibling = stop->nodes[node].child;
            stop->nodes[node].child = child;
        }
        node = child;
    }
    stop->nodes[node].ends = true;
}

/* Goes through the nodes by depth: a fallback is less deep, and known by then. */
static void resolve(ls_stop *stop, int32_t *queue) {
    stop_node *nodes = stop->nodes;
    int64_t n = 1;
    queue[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t parent = queue[i];
        for (int32_t child = nodes[parent].child; child != 0; child = nodes[child].sibling) {
            nodes[child].fallback = parent == 0 ? 0 : next_node(nodes, nodes[parent].fallback, nodes[child].byte);
            nodes[child].ends |= nodes[nodes[child].fallback].ends;
            queue[n++] = child;
        }
    }
}

static ls_status build_automaton(ls_stop *stop, const char *const *texts, int64_t n_texts, ls_error *err) {
    int32_t *queue = NULL;
    int64_t nodes_max = 1;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < n_texts; i++) {
        LS_TRY_DONE(check_text(texts[i], i, err));
        nodes_max += (int64_t)strlen(texts[i]);
    }
    if (nodes_max > INT32_MAX) return LS_FAIL(err, LS_ERR_CAPACITY, "stop texts: %lld bytes", (long long)nodes_max - 1);
    LS_TRY_DONE(ls_array_alloc((void **)&stop->nodes, nodes_max, sizeof *stop->nodes, "stop texts", err));
    LS_TRY_DONE(ls_array_alloc((void **)&queue, nodes_max, sizeof *queue, "stop texts", err));
    stop->n_nodes = 1;
    for (int64_t i = 0; i < n_texts; i++) add_stop_text(stop, texts[i]);
    resolve(stop, queue);
done:
    free(queue);
    return status;
}

ls_status ls_stop_tokens_create(ls_stop_tokens **out, const ls_tokenizer *tokenizer, ls_error *err) {
    ls_stop_tokens *t = NULL;
    int64_t n_single;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "stop texts", err));
    t->tokenizer = tokenizer;
    LS_TRY_DONE(read_steps(t, &n_single, err));
    for (int first = 0; first <= t->first_differs; first++)
        for (int last = 0; last <= t->last_differs; last++) LS_TRY_DONE(fill_texts(t, first, last, n_single, err));
    *out = t;
    t = NULL;
done:
    ls_stop_tokens_free(t);
    return status;
}

void ls_stop_tokens_free(ls_stop_tokens *t) {
    if (t == NULL) return;
    for (int first = 0; first < 2; first++)
        for (int last = 0; last < 2; last++) ls_pieces_deinit(&t->text[first][last]);
    free(t);
}

ls_status ls_stop_create_with(ls_stop **out, const ls_stop_tokens *tokens, const char *const *texts, int64_t n_texts,
                              ls_error *err) {
    ls_stop *stop = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&stop, 1, sizeof *stop, "stop texts", err));
    stop->tokens = tokens;
    LS_TRY_DONE(build_automaton(stop, texts, n_texts, err));
    *out = stop;
    stop = NULL;
done:
    ls_stop_free(stop);
    return status;
}

ls_status ls_stop_create(ls_stop **out, const ls_tokenizer *tokenizer, const char *const *texts, int64_t n_texts,
                         ls_error *err) {
    ls_stop_tokens *tokens;
    ls_status status;
    *out = NULL;
    LS_TRY(ls_stop_tokens_create(&tokens, tokenizer, err));
    status = ls_stop_create_with(out, tokens, texts, n_texts, err);
    if (status == LS_OK)
        (*out)->own = tokens;
    else
        ls_stop_tokens_free(tokens);
    return status;
}

void ls_stop_free(ls_stop *stop) {
    if (stop == NULL) return;
    ls_stop_tokens_free(stop->own);
    free(stop->nodes);
    free(stop);
}

/* Following a completion. */

static void put_bytes(const ls_stop *stop, ls_stop_text *text, const char *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        text->node = next_node(stop->nodes, text->node, (uint8_t)bytes[i]);
        text->found |= stop->nodes[text->node].ends;
    }
}

/* One character of the text before the last Strip. That many of its character as may be the end are held back; when one
 * more of them comes, the oldest of them is sure. */
static void put_char(const ls_stop *stop, ls_stop_text *text, const char *bytes, int64_t n) {
    const ls_dec_step *strip = stop->tokens->strip;
    if (strip != NULL) {
        const bool same = n == strip->pattern.bytes && memcmp(bytes, strip->pattern.text, (size_t)n) == 0;
        if (!text->begun && same && text->n_stripped < strip->start) {
            text->n_stripped++;
            return;
        }
        text->begun = true;
        if (same && text->n_held < strip->stop) {
            text->n_held++;
            return;
        }
        for (; !same && text->n_held > 0; text->n_held--)
            put_bytes(stop, text, strip->pattern.text, strip->pattern.bytes);
    }
    put_bytes(stop, text, bytes, n);
}

static void put_chars(const ls_stop *stop, ls_stop_text *text, const char *bytes, int64_t n) {
    if (stop->tokens->strip == NULL) {
        put_bytes(stop, text, bytes, n);
        return;
    }
    for (int64_t at = 0, used; at < n; at += used) {
        int32_t code;
        used = ls_utf8_decode((const uint8_t *)bytes + at, n - at, &code);
        put_char(stop, text, bytes + at, used);
    }
}

static void put_replacement(const ls_stop *stop, ls_stop_text *text) { put_char(stop, text, "\xEF\xBF\xBD", 3); }

typedef enum next_char { CHAR_NONE, CHAR_PART, CHAR_WHOLE, CHAR_ILL_FORMED } next_char;

/* What stands at the front of pending, and how many bytes it takes. */
static next_char look_at_front(const ls_stop_flow *flow, int32_t *used) {
    const int32_t n = flow->n_pending;
    const uint8_t lead = flow->pending[0];
    const int32_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
    int32_t code;
    if (n == 0) return CHAR_NONE;
    *used = (int32_t)ls_utf8_decode(flow->pending, n, &code);
    if (code >= 0) return CHAR_WHOLE;
    /* Ill-formed only for want of bytes: what is there goes together so far. */
    return *used == n && n < whole && lead <= 0xF4 ? CHAR_PART : CHAR_ILL_FORMED;
}

static void drop(ls_stop_flow *flow, int32_t used) {
    flow->n_pending -= used;
    memmove(flow->pending, flow->pending + used, (size_t)flow->n_pending);
}

/* A byte of a byte-level text. */
static void add_byte(const ls_stop *stop, ls_stop_flow *flow, uint8_t byte) {
    next_char next;
    int32_t used;
    flow->pending[flow->n_pending++] = byte;
    while ((next = look_at_front(flow, &used)) == CHAR_WHOLE || next == CHAR_ILL_FORMED) {
        if (next == CHAR_WHOLE)
            put_char(stop, &flow->text, (const char *)flow->pending, used);
        else
            put_replacement(stop, &flow->text);
        drop(flow, used);
    }
}

/* A byte of a run of ByteFallback. The run is one text if it is valid as a whole, else nothing but U+FFFD. */
static void add_run_byte(const ls_stop *stop, ls_stop_flow *flow, uint8_t byte) {
    int32_t used;
    if (flow->n_run++ == 0) {
        flow->valid = flow->invalid = flow->text;
        flow->run_valid = true;
        flow->n_pending = 0;
    }
    put_replacement(stop, &flow->invalid);
    if (!flow->run_valid) return;
    flow->pending[flow->n_pending++] = byte;
    switch (look_at_front(flow, &used)) {
        case CHAR_WHOLE:
            put_char(stop, &flow->valid, (const char *)flow->pending, used);
            flow->n_pending = 0;
            return;
        case CHAR_ILL_FORMED: flow->run_valid = false; return;
        default: return;
    }
}

static ls_stop_text run_end(const ls_stop_flow *flow) {
    if (flow->n_run == 0) return flow->text;
    return flow->run_valid && flow->n_pending == 0 ? flow->valid : flow->invalid;
}

static void add_token(const ls_stop *stop, ls_stop_flow *flow, int64_t token_i, bool first, bool last) {
    const ls_pieces *texts =
        &stop->tokens->text[first && stop->tokens->first_differs][last && stop->tokens->last_differs];
    const char *text = texts->text.data + texts->items[token_i].begin;
    const int64_t bytes = texts->items[token_i].bytes;
    const int byte = stop->tokens->byte_fallback ? ls_token_byte(text, bytes) : -1;
    if (stop->tokens->byte_level) {
        for (int64_t i = 0; i < bytes; i++) add_byte(stop, flow, (uint8_t)text[i]);
    } else if (byte >= 0) {
        add_run_byte(stop, flow, (uint8_t)byte);
    } else {
        flow->text = run_end(flow);
        flow->n_run = 0;
        put_chars(stop, &flow->text, text, bytes);
    }
}

/* Whether the text that ends here contains one of the texts. */
static bool is_found(const ls_stop *stop, const ls_stop_flow *flow) {
    ls_stop_text text = run_end(flow);
    if (stop->tokens->byte_level && flow->n_pending > 0) put_replacement(stop, &text);
    return text.found;
}

void ls_stop_begin(ls_stop_state *state, const ls_stop *stop) {
    memset(state, 0, sizeof *state);
    state->stop = stop;
    state->held = -1;
}

bool ls_stop_reached(void *context, const int32_t *completion, int64_t n) {
    ls_stop_state *state = context;
    const ls_stop *stop = state->stop;
    const ls_tokenizer *t = stop->tokens->tokenizer;
    if (n <= state->n_seen) ls_stop_begin(state, stop);
    for (; state->n_seen < n && !state->reached; state->n_seen++) {
        const int32_t id = completion[state->n_seen];
        const ls_pair_slot *slot = id < 0 ? NULL : ls_pair_map_find(&t->token_of_id, (uint64_t)id);
        const bool first = state->n_texts == 0;
        if (slot == NULL || t->tokens[slot->first].special) continue;
        state->n_texts++;
        if (stop->tokens->last_differs) {
            ls_stop_flow ended;
            if (state->held >= 0) add_token(stop, &state->flow, state->held, state->held_first, false);
            state->held = slot->first;
            state->held_first = first;
            ended = state->flow;
            add_token(stop, &ended, state->held, first, true);
            state->reached = is_found(stop, &ended);
        } else {
            add_token(stop, &state->flow, slot->first, first, true);
            state->reached = is_found(stop, &state->flow);
        }
    }
    state->n_seen = n;
    return state->reached;
}
