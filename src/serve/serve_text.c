/* Text to ids and back for clients that have no tokenizer, in vLLM's form. */
#include <stdlib.h>

#include "json/json_out.h"
#include "serve/serve_state.h"

static void write_token_strs(ls_json_out *json, const ls_server *s, const ls_ask_prompt *p) {
    ls_json_begin_array(json, "token_strs");
    for (int64_t i = 0; i < p->n; i++) {
        int64_t bytes;
        const char *text = ls_tokenizer_token(s->tokenizer, p->ids[i], &bytes);
        ls_json_text(json, NULL, text != NULL ? text : "", text != NULL ? bytes : 0);
    }
    ls_json_end_array(json);
}

int ls_text_tokenize(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_out json;
    ls_ask *ask;
    const ls_ask_prompt *p;
    if (ls_ask_parse(&ask, LS_ASK_TOKENIZE, &s->limits, c->body, c->body_bytes, err) != LS_OK)
        return ls_reply_status(err);
    p = &ask->prompts[0];
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "count", p->n);
    ls_json_int(&json, "max_model_len", s->limits.length_max);
    ls_json_begin_array(&json, "tokens");
    for (int64_t i = 0; i < p->n; i++) ls_json_int(&json, NULL, p->ids[i]);
    ls_json_end_array(&json);
    if (ask->token_strs)
        write_token_strs(&json, s, p);
    else
        ls_json_null(&json, "token_strs");
    ls_json_end_object(&json);
    ls_ask_free(ask);
    return 200;
}

int ls_text_detokenize(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_out json;
    int32_t *ids = NULL;
    int64_t n, bytes;
    char *text = NULL;
    ls_status status;
    if (s->tokenizer == NULL) {
        LS_FAIL(err, LS_ERR_UNSUPPORTED, "request: tokens: the model has no tokenizer");
        return ls_reply_status(err);
    }
    LS_TRY_DONE(ls_ask_parse_ids(&ids, &n, &s->limits, c->body, c->body_bytes, err));
    LS_TRY_DONE(ls_tokenizer_decode_known(s->tokenizer, ids, n, false, &text, &bytes, err));
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_text(&json, "prompt", text, bytes);
    ls_json_end_object(&json);
done:
    free(ids);
    free(text);
    return status == LS_OK ? 200 : ls_reply_status(err);
}
