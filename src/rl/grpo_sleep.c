/* Engine and trainer that sleep in turn: what one of them alone needs of the device's memory is there while it is
 * awake; of the engine its pools and the model's tiles, of the trainer its tape and gradients. */
#include "rl/grpo_state.h"

static ls_status wake_engine(grpo *g, ls_error *err) {
    LS_TRY(ls_trainer_sleep(g->trainer, err));
    LS_TRY(ls_model_tiles(g->model, true, err));
    return ls_engine_wake(g->engine, err);
}

static ls_status wake_trainer(grpo *g, ls_error *err) {
    LS_TRY(ls_engine_sleep(g->engine, err));
    LS_TRY(ls_model_tiles(g->model, false, err));
    return g->trainer == NULL ? LS_OK : ls_trainer_wake(g->trainer, err);
}

ls_status ls_grpo_wake(grpo *g, grpo_awake who, ls_error *err) {
    if (!g->plan.sleeps || g->engine == NULL || g->awake == who) return LS_OK;
    g->awake = who;
    return who == GRPO_ENGINE ? wake_engine(g, err) : wake_trainer(g, err);
}
