/* What tests of the laboratory share: the library with hooks, and a fault that is armed for one call. */
#ifndef LS_TESTS_FAULTS_H
#define LS_TESTS_FAULTS_H

#include "base/inject.h"
#include "base/status.h"
#include "op/backend.h"

#ifndef LS_FAULTS
#error "tests of faults are linked to the library that has them"
#endif

static inline ls_status faults_disarmed(ls_status status) {
    ls_inject_arm(LS_INJECT_NONE);
    return status;
}

/* The call's status, once what it put on the device has run: some devices run a call later than it is made. */
static inline ls_status faults_waited(ls_device *device, ls_status status, ls_error *err) {
    return status == LS_OK ? ls_device_wait(device, err) : status;
}

/* The status of a call that ran on the device with the fault armed, of which `err` tells. The engine arms its own,
 * ls_engine_opts.inject. */
#define FAULTS_CALL(fault, device, call, err) \
    (ls_inject_arm(fault), faults_disarmed(faults_waited((device), (call), (err))))

#endif
