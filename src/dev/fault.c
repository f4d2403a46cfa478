/* A fault record in words. */
#include <string.h>

#include "dev/device.h"

ls_status ls_fault_status(const char *op, const ls_fault *fault, ls_error *err) {
    const long long index = (long long)fault->index, value = (long long)fault->value, limit = (long long)fault->limit;
    float temperature;
    uint32_t bits;
    switch (fault->code) {
        case LS_FAULT_NONE: return LS_OK;
        case LS_FAULT_TARGET:
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: target %lld is not in 0..%lld", op, index, value, limit - 1);
        case LS_FAULT_TEMPERATURE:
            bits = (uint32_t)fault->value;
            memcpy(&temperature, &bits, sizeof temperature);
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: temperature %g is not finite and positive", op, index,
                           (double)temperature);
        case LS_FAULT_SPAN_ROWS:
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: row or count %lld does not fit %lld rows", op, index, value,
                           limit);
        case LS_FAULT_SPAN_ORDER:
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: row %lld before row %lld, the end of the span before it",
                           op, index, value, limit);
        case LS_FAULT_SPAN_POS:
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: position %lld is not in 0..%lld", op, index, value, limit);
        case LS_FAULT_SLOT:
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: slot %lld is not in a pool of %lld", op, index, value,
                           limit);
        case LS_FAULT_OFFSET:
            return LS_FAIL(err, LS_ERR_ARG, "%s: sequence %lld: offset %lld does not fit %lld rows", op, index, value,
                           limit);
        case LS_FAULT_TOKEN:
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: token %lld is not in 0..%lld", op, index, value, limit - 1);
        case LS_FAULT_ROW:
            return LS_FAIL(err, LS_ERR_ARG, "%s: entry %lld: row %lld is not in 0..%lld", op, index, value, limit - 1);
        case LS_FAULT_ROW_ORDER:
            return LS_FAIL(err, LS_ERR_ARG, "%s: entry %lld: row %lld after row %lld, rows ascend", op, index, value,
                           limit);
        case LS_FAULT_EXPERT:
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: expert %lld is not in 0..%lld", op, index, value, limit - 1);
        case LS_FAULT_TABLE:
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: pages from %lld on do not fit tables with %lld", op, index,
                           value, limit);
        case LS_FAULT_PAGE:
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: page %lld is not in a pool of %lld", op, index, value,
                           limit);
        case LS_FAULT_EXPERT_ORDER:
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: expert %lld after expert %lld, experts ascend", op, index,
                           value, limit);
        case LS_FAULT_RANGE: return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld to %lld of %lld", op, index, value, limit);
        default: return LS_FAIL(err, LS_ERR_DEVICE, "%s: the fault record holds code %lld", op, (long long)fault->code);
    }
}
