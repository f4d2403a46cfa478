/* What tests of the laboratory share: the library with hooks, and a fault that is armed for one call. */
#ifndef LS_TESTS_FAULTS_H
#define LS_TESTS_FAULTS_H

#include "base/inject.h"
#include "base/status.h"

#ifndef LS_FAULTS
#error "tests of faults are linked to the library that has them"
#endif

static inline ls_status faults_disarmed(ls_status status) {
    ls_inject_arm(LS_INJECT_NONE);
    return status;
}

/* The status of a call that ran with the fault armed. The engine arms its own, ls_engine_opts.inject. */
#define FAULTS_CALL(fault, call) (ls_inject_arm(fault), faults_disarmed(call))

#endif
