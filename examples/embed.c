/* Lockstep in a C program: draws completions, scores them, compares every bit, and takes a GRPO step on them.
 * cc -o embed embed.c $(pkg-config --cflags --libs lockstep) && ./embed MODEL_DIRECTORY */
#include <lockstep/train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 8, NEW = 8, PROMPT = 3, LENGTH = PROMPT + NEW };
static ls_error err;
static void must(ls_status status) {
    if (status == LS_OK) return;
    fprintf(stderr, "%s: %s\n", ls_status_name(status), err.text);
    exit(1);
}

int main(int argc, char **argv) {
    const int32_t prompt[PROMPT] = {1, 2, 3};
    int32_t tokens[SAMPLES * LENGTH];
    int64_t offsets[SAMPLES + 1] = {0}, differing = 0;
    uint8_t mask[SAMPLES * LENGTH] = {0};
    float recorded[SAMPLES * LENGTH] = {0}, scored[SAMPLES * LENGTH], rewards[SAMPLES], advantages[SAMPLES];
    lockstep_model *model;
    lockstep_engine *engine;
    lockstep_trainer *trainer;
    lockstep_request request;
    lockstep_batch batch;
    lockstep_step_stats stats = {.size = sizeof stats};
    must(lockstep_model_open(&model, argc > 1 ? argv[1] : ".", NULL, &err));
    must(lockstep_engine_open(&engine, model, NULL, &err));
    lockstep_request_init(&request, sizeof request);
    request.tokens = prompt, request.n_tokens = PROMPT, request.max_tokens = NEW;
    for (; request.sample < SAMPLES; request.sample++) must(lockstep_engine_submit(engine, &request, NULL, &err));
    must(lockstep_engine_run(engine, &err));
    for (int i = 0; i < SAMPLES; i++) { /* the reward of a completion: how many of its tokens are even */
        lockstep_result result = {.size = sizeof result};
        bool taken;
        must(lockstep_engine_take(engine, &result, &taken, &err));
        const int64_t at = offsets[i], from = at + PROMPT, n = result.n_tokens;
        memcpy(tokens + at, prompt, sizeof prompt);
        memcpy(tokens + from, result.tokens, (size_t)n * sizeof *tokens);
        memcpy(recorded + from, result.logprob, (size_t)n * sizeof *recorded);
        memset(mask + from, 1, (size_t)n);
        offsets[i + 1] = from + n;
        for (int64_t t = rewards[i] = 0; t < n; t++) rewards[i] += result.tokens[t] % 2 == 0;
    }
    must(lockstep_score(model, tokens, offsets, SAMPLES, NULL, scored, &err));
    for (int64_t t = 0; t < offsets[SAMPLES]; t++)
        differing += mask[t] && memcmp(&recorded[t], &scored[t], sizeof *scored) != 0;
    must(lockstep_advantages(advantages, rewards, SAMPLES, SAMPLES, LOCKSTEP_ADVANTAGE_STD, &err));
    must(lockstep_trainer_open(&trainer, model, NULL, &err));
    lockstep_batch_init(&batch, sizeof batch);
    batch.n = SAMPLES, batch.offsets = offsets, batch.tokens = tokens, batch.mask = mask;
    batch.advantages = advantages, batch.recorded = recorded;
    must(lockstep_trainer_policy(trainer, &batch, &stats, &err));
    must(lockstep_engine_update(engine, &err)); /* which goes on with the new weights */
    printf("%lld tokens, %lld differing bits, loss %g\n", (long long)stats.tokens, (long long)differing, stats.loss);
    lockstep_trainer_close(trainer), lockstep_engine_close(engine), lockstep_model_close(model);
    return differing != 0;
}
