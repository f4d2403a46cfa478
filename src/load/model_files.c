/* The table of names. */
#include "load/model_files.h"

const char *const ls_model_files[LS_MODEL_FILES] = {
    "config.json",     "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",      "chat_template.jinja"};
