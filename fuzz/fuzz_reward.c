/* Any bytes as what a reward program or server says. What is taken for a reward must be a finite number, and an answer
 * that is written again from what was read must read as the same. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json_out.h"
#include "record/reward_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { ANSWERS_MAX = 16 };

static void check(const ls_reward_answer *answer) {
    char text[256] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    ls_reward_answer again;
    ls_json_out json;
    if (answer->text != NULL && (!answer->is_turn && answer->error[0] == '\0')) abort();
    if (answer->text != NULL && answer->text[answer->text_bytes] != '\0') abort();
    if (answer->are_messages && (answer->text == NULL || strncmp(answer->text, "{\"messages\":[{", 14) != 0)) abort();
    if (answer->is_broken != (answer->broken != NULL)) abort();
    if (memchr(answer->note, '\0', sizeof answer->note) == NULL || strchr(answer->note, '\n') != NULL) abort();
    if (answer->id < -1 || !isfinite(answer->reward)) abort();
    if (answer->ok != (answer->error[0] == '\0') || (!answer->ok && answer->reward != 0)) abort();
    if (memchr(answer->error, '\0', sizeof answer->error) == NULL || strchr(answer->error, '\n') != NULL) abort();
    if (!answer->ok || file == NULL) {
        if (file != NULL) fclose(file);
        return;
    }
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    if (answer->id >= 0) ls_json_int(&json, "id", answer->id);
    ls_json_double(&json, "reward", answer->reward);
    ls_json_end_object(&json);
    if (fclose(file) != 0) abort();
    if (ls_reward_answer_parse(&again, text, (int64_t)strlen(text), "again", NULL) != LS_OK) abort();
    if (again.id != answer->id || !again.ok || again.reward != answer->reward) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static ls_reward_answer answers[ANSWERS_MAX];
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    int64_t n;
    ls_error err;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    if (ls_reward_answer_parse(answers, copy, (int64_t)n_bytes, "input", &err) == LS_OK) {
        check(answers);
        free(answers[0].text);
    } else if (strncmp(err.text, "input", 5) != 0) {
        abort();
    }
    if (ls_reward_answers_parse(answers, &n, ANSWERS_MAX, copy, (int64_t)n_bytes, "input", &err) == LS_OK) {
        for (int64_t i = 0; i < n; i++) {
            check(&answers[i]);
            free(answers[i].text);
            if (answers[i].id < 0) abort();
        }
    } else if (strncmp(err.text, "input", 5) != 0) {
        abort();
    }
    free(copy);
    return 0;
}
