/* Checkpoints of the interface's trainer: the same directories as those of training runs. */
#include <stddef.h>
#include <string.h>

#include "api/api_state.h"
#include "base/durable.h"
#include "rl/advantage.h"

#define AT(field) offsetof(lockstep_trainer_options, field)
#define BITS_INT(name) \
    { #name, LS_OPTION_INT, true, AT(name), 0, 0, NULL, "" }
#define BITS_NUMBER(name) \
    { #name, LS_OPTION_NUMBER, true, AT(name), 0, 0, NULL, "" }
#define BITS_CHOICE(name, choices) \
    { #name, LS_OPTION_CHOICE, true, AT(name), 0, 0, choices, "" }

static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const switches[] = {"false", "true", NULL};
static const char *const moments[] = {[LS_F32] = "f32", [LS_BF16] = "bf16", NULL};
/* Checkpoints may be older than the option; what their tensors are is compared. */
static const char *const reported[] = {"moments", NULL};

/* What carries bits, as checkpoints write it. They are set as members of a struct, never read as text. */
static const ls_option *options_table(int64_t *n) {
    static const ls_option rows[] = {BITS_INT(leaf),
                                     BITS_NUMBER(temperature),
                                     BITS_CHOICE(schedule, schedules),
                                     BITS_NUMBER(rate),
                                     BITS_NUMBER(rate_floor),
                                     BITS_INT(warmup),
                                     BITS_INT(schedule_steps),
                                     BITS_NUMBER(beta1),
                                     BITS_NUMBER(beta2),
                                     BITS_NUMBER(eps),
                                     BITS_NUMBER(decay),
                                     BITS_NUMBER(clip),
                                     BITS_CHOICE(loss, ls_policy_names),
                                     BITS_CHOICE(norm, ls_loss_norm_names),
                                     BITS_CHOICE(kl, ls_kl_names),
                                     BITS_NUMBER(eps_low),
                                     BITS_NUMBER(eps_high),
                                     BITS_NUMBER(dual_clip),
                                     BITS_NUMBER(kl_weight),
                                     BITS_NUMBER(entropy_weight),
                                     BITS_NUMBER(norm_length),
                                     BITS_CHOICE(mask_overlong, switches),
                                     BITS_CHOICE(moments, moments)};
    *n = (int64_t)(sizeof rows / sizeof rows[0]);
    return rows;
}

ls_config ls_api_trainer_config(lockstep_trainer_options *options) {
    ls_option_table table = {.values = options};
    ls_config config = {.n = 0};
    table.options = options_table(&table.n);
    ls_config_add(&config, table);
    return config;
}

static ls_saves_description describe_save(const lockstep_trainer *t, const ls_config *config) {
    return (ls_saves_description){
        .kind = "embedded", .numerics = t->model->numerics, .config = config, .free = reported};
}

static ls_status save_trainer(lockstep_trainer *t, const char *run, int64_t keep, ls_error *err) {
    ls_saves *saves = NULL;
    ls_status status;
    LS_TRY(ls_api_check_trainer(t, err));
    if (run == NULL || keep < 0)
        return LS_FAIL(err, LS_ERR_ARG, "save: run is NULL, or %lld checkpoints are to stay", (long long)keep);
    const ls_config config = ls_api_trainer_config(&t->options);
    const ls_saves_description d = describe_save(t, &config);
    LS_TRY_DONE(ls_saves_open(&saves, run, true, err));
    LS_TRY_DONE(ls_saves_keep_files(saves, t->model->directory, err));
    LS_TRY_DONE(ls_saves_save(saves, ls_trainer_state(t->trainer), &d, keep, err));
done:
    ls_saves_close(saves);
    return status;
}

ls_status lockstep_trainer_save(lockstep_trainer *trainer, const char *run, int64_t keep, ls_error *err) {
    LS_API_RETURN(save_trainer(trainer, run, keep, err));
}

static ls_status export_model(lockstep_trainer *t, const char *directory, ls_error *err) {
    LS_TRY(ls_api_check_trainer(t, err));
    if (directory == NULL) return LS_FAIL(err, LS_ERR_ARG, "export: directory is NULL");
    LS_TRY(ls_directory_make(directory, err));
    LS_TRY(ls_saves_save_model(t->files, directory, ls_trainer_state(t->trainer)->parameters, err));
    return ls_directory_sync(directory, err);
}

ls_status lockstep_trainer_export(lockstep_trainer *trainer, const char *directory, ls_error *err) {
    LS_API_RETURN(export_model(trainer, directory, err));
}

static ls_status resume(lockstep_trainer *t, ls_error *err) {
    ls_train_state *state;
    ls_status status;
    LS_TRY(ls_api_check_trainer(t, err));
    state = ls_trainer_state(t->trainer);
    if (state->step != 0)
        return LS_FAIL(err, LS_ERR_ARG, "resume: the trainer has done %lld steps already", (long long)state->step);
    const ls_config config = ls_api_trainer_config(&t->options);
    const ls_saves_description d = describe_save(t, &config);
    status = ls_saves_load(t->model->directory, state, &d, err);
    t->is_spoiled = status != LS_OK;
    if (status == LS_OK) t->model->version = (uint64_t)state->step;
    return status;
}

ls_status lockstep_trainer_resume(lockstep_trainer *trainer, ls_error *err) { LS_API_RETURN(resume(trainer, err)); }
