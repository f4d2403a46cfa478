/* The OpenAPI document, made from the table of paths and the limits of this server. */
#include "json/json_out.h"
#include "serve/serve_state.h"

static void reference(ls_json_out *json, const char *key, const char *to) {
    char text[96];
    snprintf(text, sizeof text, "#/components/%s", to);
    ls_json_begin_object(json, key);
    ls_json_string(json, "$ref", text);
    ls_json_end_object(json);
}

static void type_of(ls_json_out *json, const char *key, const char *type) {
    ls_json_begin_object(json, key);
    ls_json_string(json, "type", type);
    ls_json_end_object(json);
}

static bool needs_body(const ls_route *r) {
    return r->kind == LS_ROUTE_ASK || r->handler == ls_text_tokenize || r->handler == ls_text_detokenize;
}

static const char *body_of(const ls_route *r) {
    if (r->handler == ls_text_tokenize) return "schemas/Tokenize";
    if (r->handler == ls_text_detokenize) return "schemas/Detokenize";
    if (r->kind != LS_ROUTE_ASK) return "schemas/Control";
    switch (r->ask) {
        case LS_ASK_COMPLETION: return "schemas/Completion";
        case LS_ASK_CHAT: return "schemas/Chat";
        case LS_ASK_TOKENS: return "schemas/Tokens";
        case LS_ASK_SGLANG: return "schemas/SGLang";
        case LS_ASK_SCORE:
        case LS_ASK_TOKENIZE: break;
    }
    return "schemas/Score";
}

static void write_responses(ls_json_out *json, const ls_route *r) {
    static const char *const errors[] = {"400", "401", "403", "404", "405", "409", "413", "429", "500", "503"};
    ls_json_begin_object(json, "responses");
    ls_json_begin_object(json, "200");
    ls_json_string(json, "description", "The answer");
    ls_json_begin_object(json, "content");
    ls_json_begin_object(json, r->type != NULL ? "text/plain" : "application/json");
    ls_json_begin_object(json, "schema");
    if (r->type != NULL) ls_json_string(json, "type", "string");
    ls_json_end_object(json);
    ls_json_end_object(json);
    if (r->kind == LS_ROUTE_ASK) {
        ls_json_begin_object(json, "text/event-stream");
        type_of(json, "schema", "string");
        ls_json_end_object(json);
    }
    ls_json_end_object(json);
    ls_json_end_object(json);
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) reference(json, errors[i], "responses/Error");
    ls_json_end_object(json);
}

static void write_operation(ls_json_out *json, const ls_route *r, bool post) {
    ls_json_begin_object(json, post ? "post" : "get");
    if (post) {
        ls_json_begin_object(json, "requestBody");
        ls_json_bool(json, "required", needs_body(r));
        ls_json_begin_object(json, "content");
        ls_json_begin_object(json, "application/json");
        reference(json, "schema", body_of(r));
        ls_json_end_object(json);
        ls_json_end_object(json);
        ls_json_end_object(json);
    }
    write_responses(json, r);
    if (r->is_open) {
        ls_json_begin_array(json, "security");
        ls_json_end_array(json);
    }
    ls_json_end_object(json);
}

static void write_ids_schema(ls_json_out *json, const char *key, int32_t vocab) {
    ls_json_begin_object(json, key);
    ls_json_string(json, "type", "array");
    ls_json_int(json, "minItems", 1);
    ls_json_begin_object(json, "items");
    ls_json_string(json, "type", "integer");
    ls_json_int(json, "minimum", 0);
    ls_json_int(json, "maximum", vocab - 1);
    ls_json_end_object(json);
    ls_json_end_object(json);
}

/* A body whose one required member is described; what else it may have, docs/reference/http.md tells. */
static void begin_schema(ls_json_out *json, const char *name, const char *required) {
    ls_json_begin_object(json, name);
    ls_json_string(json, "type", "object");
    if (required != NULL) {
        ls_json_begin_array(json, "required");
        ls_json_string(json, NULL, required);
        ls_json_end_array(json);
    }
    ls_json_begin_object(json, "properties");
}

static void end_schema(ls_json_out *json) {
    ls_json_end_object(json);
    ls_json_end_object(json);
}

static void write_schemas(ls_json_out *json, const ls_server *s) {
    ls_json_begin_object(json, "schemas");
    begin_schema(json, "Completion", "prompt");
    ls_json_begin_object(json, "prompt");
    ls_json_begin_array(json, "anyOf");
    type_of(json, NULL, "string");
    write_ids_schema(json, NULL, s->limits.vocab);
    ls_json_end_array(json);
    ls_json_end_object(json);
    type_of(json, "max_tokens", "integer");
    type_of(json, "n", "integer");
    type_of(json, "temperature", "number");
    type_of(json, "top_p", "number");
    type_of(json, "top_k", "integer");
    type_of(json, "min_p", "number");
    type_of(json, "seed", "integer");
    type_of(json, "logprobs", "integer");
    type_of(json, "prompt_logprobs", "integer");
    type_of(json, "stream", "boolean");
    end_schema(json);
    begin_schema(json, "Chat", "messages");
    ls_json_begin_object(json, "messages");
    ls_json_string(json, "type", "array");
    type_of(json, "items", "object");
    ls_json_end_object(json);
    type_of(json, "max_tokens", "integer");
    type_of(json, "stream", "boolean");
    end_schema(json);
    begin_schema(json, "Tokens", "token_ids");
    write_ids_schema(json, "token_ids", s->limits.vocab);
    type_of(json, "sampling_params", "object");
    end_schema(json);
    begin_schema(json, "SGLang", NULL);
    write_ids_schema(json, "input_ids", s->limits.vocab);
    type_of(json, "text", "string");
    type_of(json, "sampling_params", "object");
    type_of(json, "return_logprob", "boolean");
    end_schema(json);
    begin_schema(json, "Score", "sequences");
    ls_json_begin_object(json, "sequences");
    ls_json_string(json, "type", "array");
    write_ids_schema(json, "items", s->limits.vocab);
    ls_json_end_object(json);
    end_schema(json);
    begin_schema(json, "Tokenize", NULL);
    type_of(json, "prompt", "string");
    ls_json_begin_object(json, "messages");
    ls_json_string(json, "type", "array");
    type_of(json, "items", "object");
    ls_json_end_object(json);
    type_of(json, "add_special_tokens", "boolean");
    type_of(json, "add_generation_prompt", "boolean");
    type_of(json, "return_token_strs", "boolean");
    end_schema(json);
    begin_schema(json, "Detokenize", "tokens");
    write_ids_schema(json, "tokens", s->limits.vocab);
    end_schema(json);
    begin_schema(json, "Control", NULL);
    end_schema(json);
    begin_schema(json, "Error", "error");
    type_of(json, "error", "object");
    end_schema(json);
    ls_json_end_object(json);
}

static void write_components(ls_json_out *json, const ls_server *s) {
    ls_json_begin_object(json, "components");
    write_schemas(json, s);
    ls_json_begin_object(json, "responses");
    ls_json_begin_object(json, "Error");
    ls_json_string(json, "description", "Why not: error.message names the field and the value");
    ls_json_begin_object(json, "content");
    ls_json_begin_object(json, "application/json");
    reference(json, "schema", "schemas/Error");
    ls_json_end_object(json);
    ls_json_end_object(json);
    ls_json_end_object(json);
    ls_json_end_object(json);
    ls_json_begin_object(json, "securitySchemes");
    ls_json_begin_object(json, "key");
    ls_json_string(json, "type", "http");
    ls_json_string(json, "scheme", "bearer");
    ls_json_end_object(json);
    ls_json_end_object(json);
    ls_json_end_object(json);
}

int ls_openapi(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_out json;
    (void)c, (void)err;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "openapi", "3.1.0");
    ls_json_begin_object(&json, "info");
    ls_json_string(&json, "title", "Lockstep");
    ls_json_string(&json, "version", LS_VERSION);
    ls_json_end_object(&json);
    if (s->n_keys > 0) {
        ls_json_begin_array(&json, "security");
        ls_json_begin_object(&json, NULL);
        ls_json_begin_array(&json, "key");
        ls_json_end_array(&json);
        ls_json_end_object(&json);
        ls_json_end_array(&json);
    }
    ls_json_begin_object(&json, "paths");
    for (int64_t i = 0; i < s->n_routes; i++) {
        ls_json_begin_object(&json, s->routes[i].path);
        if (s->routes[i].get) write_operation(&json, &s->routes[i], false);
        if (s->routes[i].post) write_operation(&json, &s->routes[i], true);
        ls_json_end_object(&json);
    }
    ls_json_end_object(&json);
    write_components(&json, s);
    ls_json_end_object(&json);
    return 200;
}
