/* config.json and generation_config.json as files: which architecture, which text. The architecture reads the rest. */
#define _POSIX_C_SOURCE 200809L
#include "load/model_config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/other_forms.h"
#include "json/json_read.h"
#include "json/json_words.h"
#include "load/adapter_chain.h"
#include "load/config_fields.h"
#include "load/tokenizer_eos.h"

#define LS_CONFIG_BYTES_MAX 16000000
#define TYPES_BYTES 512

/* The types that there are, for an error: "a", "b" or "c". */
static const char *list_types(char out[TYPES_BYTES], const ls_architecture *const *list) {
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; list[i] != NULL && used < TYPES_BYTES; i++) {
        const char *between = i == 0 ? "" : list[i + 1] == NULL ? " or " : ", ";
        used += (size_t)snprintf(out + used, TYPES_BYTES - used, "%s\"%s\"", between, list[i]->model_type);
    }
    return out;
}

static ls_status find_type(const ls_architecture **out, const ls_architecture *const *list, const json_t *config,
                           ls_error *err) {
    const json_t *type = json_object_get(config, "model_type");
    char types[TYPES_BYTES], shown[LS_JSON_SHOW_MAX];
    if (type == NULL && json_object_get(config, "d_model") != NULL && json_object_get(config, "n_layer") != NULL)
        return LS_FAIL(
            err, LS_ERR_UNSUPPORTED,
            "model_type: missing; d_model and n_layer are of mamba_ssm's own format: what is read is Hugging "
            "Face's, published beside it with -hf (state-spaces/mamba-130m-hf) or made by transformers 4: "
            "python3 -m transformers.models.mamba.convert_mamba_ssm_checkpoint_to_pytorch "
            "--mamba_ssm_checkpoint_directory DIRECTORY --output_dir OUT");
    if (json_is_string(type) && json_object_get(config, "text_config") != NULL)
        return LS_FAIL(
            err, LS_ERR_UNSUPPORTED,
            "model_type: %s has layers for images, which are not built; transformers writes the language "
            "model alone: AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype=\"auto\").save_pretrained(OUT)",
            ls_json_show(type, shown));
    if (type == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "model_type: missing, expected %s", list_types(types, list));
    for (int64_t i = 0; json_is_string(type) && list[i] != NULL; i++)
        if (strcmp(json_string_value(type), list[i]->model_type) == 0) {
            *out = list[i];
            return LS_OK;
        }
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "model_type: %s, expected %s", ls_json_show(type, shown),
                   list_types(types, list));
}

/* A file may name several classes, of which one must be the language model. */
static ls_status check_class(const ls_architecture *architecture, const json_t *config, ls_error *err) {
    const json_t *names = json_object_get(config, "architectures");
    char shown[LS_JSON_SHOW_MAX];
    if (names == NULL || json_is_null(names)) return LS_OK;
    if (!json_is_array(names))
        return LS_FAIL(err, LS_ERR_FORMAT, "architectures: %s, expected a list", ls_json_show(names, shown));
    for (size_t i = 0; i < json_array_size(names); i++) {
        const json_t *name = json_array_get(names, i);
        if (json_is_string(name) && strcmp(json_string_value(name), architecture->class_name) == 0) return LS_OK;
    }
    if (json_array_size(names) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "architectures: an empty list, expected \"%s\"",
                       architecture->class_name);
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "architectures: %s, expected \"%s\"",
                   ls_json_show(json_array_get(names, 0), shown), architecture->class_name);
}

static ls_status read_model_config(ls_model_config *out, const ls_architecture *const *list, json_t *config,
                                   ls_error *err) {
    const ls_architecture *architecture = NULL;
    /* The kind goes first: fields of another model would otherwise be reported one by one. */
    LS_TRY(find_type(&architecture, list, config, err));
    LS_TRY(check_class(architecture, config, err));
    return architecture->read(out, config, err);
}

ls_status ls_architectures_parse(ls_model_config *out, const ls_architecture *const *list, const char *json,
                                 int64_t bytes, const char *name, ls_error *err) {
    ls_status status;
    json_t *config = NULL;
    char *plain = NULL;
    ls_model_config read = {0};
    if (ls_json_has_words(json, bytes)) { /* a time step's limit is Infinity in published files */
        LS_TRY_DONE(ls_json_quoted(&plain, &bytes, json, bytes, err));
        json = plain;
    }
    LS_TRY_DONE(ls_json_parse(&config, json, bytes, name, err));
    if ((status = read_model_config(&read, list, config, err)) != LS_OK) {
        ls_error_prefix(err, "%s", name);
        goto done;
    }
    *out = read;
done:
    ls_json_release(config);
    free(plain);
    return status;
}

ls_status ls_model_config_parse_generation(ls_model_config *config, const char *json, int64_t bytes, const char *name,
                                           ls_error *err) {
    ls_status status;
    json_t *generation = NULL;
    ls_model_config read = *config;
    LS_TRY_DONE(ls_json_parse(&generation, json, bytes, name, err));
    if ((status = ls_field_read_eos(&read, generation, err)) != LS_OK) {
        ls_error_prefix(err, "%s", name);
        goto done;
    }
    *config = read;
done:
    ls_json_release(generation);
    return status;
}

ls_status ls_architectures_open(ls_model_config *out, const ls_architecture *const *list, const char *dir,
                                ls_error *err) {
    ls_status status;
    ls_model_config read;
    char *path = NULL, *text = NULL, *home = NULL;
    int64_t bytes;
    size_t path_bytes;
    LS_TRY_DONE(ls_adapter_home(&home, dir, err)); /* of an adapter, the model that it is of */
    dir = home;
    path_bytes = strlen(dir) + sizeof "/generation_config.json";
    LS_TRY_DONE(ls_array_alloc((void **)&path, (int64_t)path_bytes, 1, "path", err));
    snprintf(path, path_bytes, "%s/config.json", dir);
    if (!ls_file_exists(path)) LS_TRY_DONE(ls_foreign_directory(dir, LS_WANT_CONFIG, err));
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, LS_CONFIG_BYTES_MAX, err));
    LS_TRY_DONE(ls_architectures_parse(&read, list, text, bytes, path, err));
    snprintf(path, path_bytes, "%s/generation_config.json", dir);
    if (ls_file_exists(path)) {
        free(text);
        LS_TRY_DONE(ls_file_read(&text, &bytes, path, LS_CONFIG_BYTES_MAX, err));
        LS_TRY_DONE(ls_model_config_parse_generation(&read, text, bytes, path, err));
    }
    if (!read.has_eos) LS_TRY_DONE(ls_tokenizer_eos(&read, dir, err));
    *out = read;
done:
    free(text);
    free(path);
    free(home);
    return status;
}
