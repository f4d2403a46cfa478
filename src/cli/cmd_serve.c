/* lockstep serve: a model over HTTP. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/interrupt.h"
#include "cli/device_option.h"
#include "cli/options.h"
#include "serve/serve.h"

/* What a model that tells no limit is served with. */
#define LENGTH_DEFAULT 32768

typedef struct served {
    ls_device *device, *load_device;
    ls_device_choice choice, load_choice;
    ls_server *server;
    char path[LS_SERVE_PATH_MAX];
} served;

/* Weights of the state file, on the device that loads. */
static ls_status open_served_model(served *x, ls_run_options *o, ls_model **model, ls_error *err) {
    uint64_t version;
    ls_levers one = o->levers;
    ls_status status;
    one.threads = 1;
    LS_TRY(ls_serve_first_weights(&o->serve, x->path, &version, err));
    LS_TRY(ls_cli_device_open(&x->device, &x->choice, o->device, &o->levers, err));
    LS_TRY(ls_cli_device_open(&x->load_device, &x->load_choice, x->choice.name, &one, err));
    LS_TRY(ls_serve_open_weights(model, x->load_device, x->path, o->model, err));
    status = ls_cli_profile_choose(o, *model, err);
    if (status == LS_OK) status = ls_device_wait(x->load_device, err);
    if (status != LS_OK) ls_model_close(*model);
    if (status == LS_OK) (*model)->ablation = o->levers.ablation;
    return status;
}

static ls_status start_server(served *x, ls_run_options *o, ls_error *err) {
    ls_serve_engine engine = {0};
    const int64_t most = o->max_length;
    LS_TRY(open_served_model(x, o, &engine.model, err));
    ls_cli_device_tell("device", &x->choice, o->profile);
    engine.device = x->device;
    engine.load_device = x->load_device;
    engine.opts = (ls_engine_opts){.dtype = o->dtype,
                                   .levers = o->levers,
                                   .length_max = most > 0 ? most : engine.model->config.positions_max,
                                   .logprob_of = o->logprob_of,
                                   .sampling = o->sampling,
                                   .inject = o->inject};
    if (engine.opts.length_max > INT32_MAX) engine.opts.length_max = LENGTH_DEFAULT;
    return ls_lever_as_option(ls_server_start(&x->server, &o->serve, &engine, err), err);
}

int ls_cmd_serve(int argc, char **argv) {
    ls_run_options o;
    served x = {0};
    ls_error err;
    ls_status status;
    LS_TRY_DONE(ls_run_options_parse(&o, LS_COMMAND_SERVE, argc, argv, &err));
    o.serve.model_dir = o.model;
    if (o.adapter != NULL && o.serve.name == NULL) o.serve.name = o.base; /* --model as it was given */
    o.serve.seed = o.sampling.seed;
    ls_interrupt_defer(true);
    LS_TRY_DONE(start_server(&x, &o, &err));
    printf("lockstep: listening on %s\n", ls_server_url(x.server));
    ls_server_tell(x.server, stdout);
    if (fflush(stdout) != 0) status = LS_FAIL(&err, LS_ERR_IO, "standard output: cannot write");
    while (status == LS_OK && ls_interrupt_pending() == 0) {
        const struct timespec nap = {.tv_nsec = 20 * 1000 * 1000};
        nanosleep(&nap, NULL); /* a signal ends it early */
    }
    if (status == LS_OK) fprintf(stderr, "lockstep: stopping\n");
done:
    ls_server_stop(x.server);
    ls_device_close(x.load_device);
    ls_device_close(x.device);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
