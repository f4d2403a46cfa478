/* The device of a command: its name is checked with the options, it is opened before the model, and told. */
#include "cli/device_option.h"

#include <stdio.h>

#include "cli/commands.h"

ls_status ls_cli_device_name(const char **out, const char *option, const char *text, ls_error *err) {
    const ls_status status = ls_device_name_check(text, err);
    if (status == LS_OK)
        *out = text;
    else
        ls_error_prefix(err, "%s", option);
    return status;
}

ls_status ls_cli_device_open(ls_device **out, ls_device_choice *choice, const char *name, const ls_levers *levers,
                             ls_error *err) {
    const ls_device_wish wish = {.name = name, .n_threads = levers->threads, .isa = levers->isa};
    return ls_device_open_wished(out, choice, &wish, err);
}

void ls_cli_device_tell(const char *what, const ls_device_choice *choice, ls_profile profile) {
    ls_device_choice shown = *choice;
    ls_cli_clean(shown.text);
    fprintf(stderr, "%s: %s; profile %s\n", what, shown.text, ls_profile_name(profile));
}
