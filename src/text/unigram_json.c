/* Reads the model of a tokenizer.json of type Unigram. */
#include <math.h>

#include "base/mem.h"
#include "text/tokenizer_reader.h"

static ls_status read_piece(ls_tokenizer *t, const ls_node *item, int64_t id, ls_error *err) {
    ls_node part, number;
    const char *text;
    int64_t bytes;
    bool added;
    LS_TRY(ls_node_expect(item, LS_NODE_ARRAY, err));
    if (ls_node_count(item) != 2) return ls_node_fail(item, LS_ERR_FORMAT, err, "a piece and its score are required");
    part = ls_node_at(item, 0);
    number = ls_node_at(item, 1);
    LS_TRY(ls_node_text(&part, &text, &bytes, err));
    if (bytes == 0) return ls_node_fail(&part, LS_ERR_UNSUPPORTED, err, "an empty piece");
    if (ls_node_kind_of(&number) != LS_NODE_INT && ls_node_kind_of(&number) != LS_NODE_REAL)
        return ls_node_fail(&number, LS_ERR_FORMAT, err, "a number is required");
    LS_TRY(ls_array_grow((void **)&t->texts, &t->texts_cap, t->n_texts + 1, sizeof *t->texts, "vocabulary", err));
    LS_TRY(ls_text_copy(&t->texts[t->n_texts], text, bytes, err));
    t->n_texts++;
    LS_TRY(ls_unigram_add(&t->unigram, t->texts[id], bytes, ls_node_number(&number), &added, err));
    if (!added) return ls_node_fail(&part, LS_ERR_UNSUPPORTED, err, "'%.60s' stands here a second time", text);
    return ls_read_token(t, item, id, t->texts[id], bytes, err);
}

ls_status ls_read_unigram(ls_tokenizer *t, const ls_node *model, ls_error *err) {
    static const char *const keys[] = {"type", "unk_id", "vocab", "byte_fallback", NULL};
    ls_node vocab, child;
    int64_t unk = -1;
    LS_TRY(ls_node_only(model, keys, err));
    LS_TRY(ls_node_need_kind(model, "vocab", LS_NODE_ARRAY, &vocab, err));
    if (ls_node_count(&vocab) == 0 || ls_node_count(&vocab) >= INT32_MAX)
        return ls_node_fail(&vocab, LS_ERR_FORMAT, err, "%lld pieces", (long long)ls_node_count(&vocab));
    if (ls_node_get_some(model, "unk_id", &child)) LS_TRY(ls_node_int(&child, 0, ls_node_count(&vocab) - 1, &unk, err));
    if (ls_node_get(model, "byte_fallback", &child)) LS_TRY(ls_node_bool(&child, &t->unigram.byte_fallback, err));
    for (int64_t i = 0; i < ls_node_count(&vocab); i++) {
        const ls_node item = ls_node_at(&vocab, i);
        LS_TRY(read_piece(t, &item, i, err));
    }
    t->unigram.unk_id = (int32_t)unk;
    ls_unigram_finish(&t->unigram);
    t->has_unigram = true;
    return LS_OK;
}
