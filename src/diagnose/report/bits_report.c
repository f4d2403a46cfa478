/* A sweep for people at a terminal, and as JSON for programs. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/report/report_parts.h"
#include "diagnose/rounding/inquiry.h"

static const char *tensor_unit(const ls_wrap *w) { return w->in_bytes ? "bytes" : "elements"; }

static void print_experiments(FILE *file, const ls_sweep *s) {
    fprintf(file, "%s, %s activations%s\n\n", s->opts.model, ls_dtype_name(s->opts.dtype),
            s->opts.dtype != LS_F32 && s->opts.profile == LS_PROFILE_MMA16 ? ", profile mma16" : "");
    fprintf(file, "%-20s %-13s %s\n", "experiment", "verdict", "what is moved: what is seen");
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        char text[LS_NOTE_BYTES + 64];
        ls_observation_describe(text, sizeof text, &s->seen[i]);
        fprintf(file, "%-20s %-13s %s%s%s\n", ls_experiment_name((ls_experiment)i), ls_verdict_name(s->seen[i].verdict),
                ls_experiment_text((ls_experiment)i), text[0] != '\0' ? ": " : "", text);
    }
}

static void print_set(FILE *file, const char *name, uint64_t set) {
    bool first = true;
    if (set == 0) return;
    fprintf(file, "%-12s ", name);
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        if (!(set >> i & 1)) continue;
        fprintf(file, "%s%s", first ? "" : ", ", ls_experiment_name((ls_experiment)i));
        first = false;
    }
    fputc('\n', file);
}

static uint64_t set_of(const ls_sweep *s, ls_verdict verdict) {
    uint64_t set = 0;
    for (int i = 0; i < LS_EXPERIMENTS; i++) set |= (uint64_t)(s->seen[i].verdict == verdict) << i;
    return set;
}

static void print_causes(FILE *file, const ls_sweep *s) {
    const ls_ranked *named = ls_sweep_cause(s);
    const ls_bits_pattern *pattern;
    char text[LS_NOTE_BYTES + 64];
    fprintf(file, "\ncauses, best first\n");
    for (int64_t i = 0; i < s->n_ranked && i < 4; i++) {
        const ls_ranked *r = &s->ranked[i];
        if (r->score == 0.0) break;
        fprintf(file, "  %5.3f %s %s\n", r->score, r->fits ? "fits" : "    ", ls_cause_name(r->cause));
    }
    if (named == NULL) {
        fprintf(file, "\nno known cause fits all that was seen; what differs and what does not stands above\n");
        return;
    }
    fprintf(file, "\nCAUSE: %s\n  %s\n  look at    %s\n", ls_cause_name(named->cause), ls_cause_bits_text(named->cause),
            ls_cause_bits_look(named->cause));
    pattern = &ls_cause_of(named->cause)->bits;
    print_set(file, "  differs in", named->met & (pattern->large | pattern->small | pattern->moved));
    fprintf(file, "  clean in   %d experiments\n", __builtin_popcountll(set_of(s, LS_CLEAN)));
    print_set(file, "  not tried", set_of(s, LS_UNTRIED));
    ls_observation_describe(text, sizeof text, &s->seen[s->repro_of]);
    fprintf(file, "  seen       %s: %s\n", ls_experiment_name(s->repro_of), text);
}

static void print_wraps(FILE *file, const ls_sweep *s) {
    const int64_t most = s->n_wraps < 8 ? s->n_wraps : 8;
    if (s->n_wraps == 0) return;
    fprintf(file, "\n32-bit expressions over the pooled tensors, nearest first\n");
    fprintf(file, "  %-38s %-12s %-9s %12s %12s %8s\n", "tensor", "expression", "unit", "stride", "first bad", "share");
    for (int64_t i = 0; i < most; i++) {
        const ls_wrap *w = &s->wraps[i];
        fprintf(file, "  %-38s %-12s %-9s %12" PRId64 " %12" PRId64 " %7.1f%%%s\n", w->tensor->name,
                w->is_signed ? "int32" : "uint32", tensor_unit(w), w->stride, w->first_bad, 100.0 * w->share,
                w->fits ? "  <- fits" : "");
    }
    for (int64_t i = 0; i < s->n_wraps; i++) {
        const ls_wrap *w = &s->wraps[i];
        char text[64];
        if (!w->fits) continue;
        ls_wrap_describe(text, sizeof text, w);
        fprintf(file, "\n  %s, 32-bit product (%s): first bad %s %" PRId64 ", %.1f %% of %" PRId64 " %ss\n",
                w->tensor->name, text, ls_bounded_name(w->tensor->id), w->first_bad, 100.0 * w->share, w->tensor->n,
                ls_bounded_name(w->tensor->id));
    }
    if (s->seen[LS_TRY_FAR_HALF].verdict == LS_CLEAN) fprintf(file, "  vanishes with half the memory\n");
    if (s->seen[LS_TRY_FAR_ATTENTION].verdict == LS_CLEAN) fprintf(file, "  vanishes with attention layers only\n");
    if (s->seen[LS_TRY_FAR_CHUNK1].verdict == LS_CLEAN) fprintf(file, "  vanishes with chunks of one token\n");
}

/* The levers that a trial moves away from their defaults, as options; those of the machine are the reader's. */
static void print_levers(FILE *file, const ls_trial *trial) {
    ls_levers defaults;
    ls_levers_init(&defaults);
    defaults.threads = trial->levers.threads;
    defaults.isa = trial->levers.isa;
    ls_report_levers(file, trial, &defaults);
    fprintf(file, " --ignore-eos --max-tokens %" PRId64, trial->max_tokens);
    if (trial->sampling.seed != 0) fprintf(file, " --seed %" PRIu64, trial->sampling.seed);
    if (trial->dtype != LS_F32) fprintf(file, " --dtype %s", ls_dtype_name(trial->dtype));
    if (trial->dtype != LS_F32) fprintf(file, " --profile %s", ls_profile_name(trial->profile));
    if (trial->sampling.temperature != 1.0f) {
        char text[LS_DOUBLE_TEXT_MAX];
        ls_double_show(text, ls_float_plain(trial->sampling.temperature));
        fprintf(file, " --temperature %s", text);
    }
    if (trial->logprob_of == LS_LOGPROB_PROCESSED) fprintf(file, " --logprobs processed");
}

static void print_repro(FILE *file, const ls_sweep *s) {
    if (s->n_repro == 0) return;
    fprintf(file, "\nsmallest requests that still fail (%" PRId64 " of %" PRId64 " prompts, %" PRId64 " trials)\n",
            s->n_repro, s->repro_from, s->repro_trials);
    ls_sweep_repro(file, s);
    fprintf(file, "  check --model %s --prompts FILE", s->opts.model);
    print_levers(file, &s->repro_trial);
    if (s->repro_trial.rounds > 1)
        fprintf(file, "\n  %" PRId64 " rounds in one engine%s", s->repro_trial.rounds,
                s->repro_trial.update ? ", new weights between them" : "");
    fputc('\n', file);
}

static void print_number(FILE *file, double value) {
    if (isnan(value))
        fprintf(file, " %8s", "-");
    else
        fprintf(file, " %8.2f", value);
}

static void print_series(FILE *file, const ls_sweep *s) {
    if (s->n_series == 0) return;
    fprintf(file,
            "\nseries: steps of %" PRId64 " prompts, one engine, %" PRId64 " slots of %" PRId64 " words in rotation\n",
            s->series[0].n_prompts, s->opts.far_slots, s->opts.far_words);
    fprintf(file, "  %8s %6s %10s %10s %12s %8s %8s %10s\n", "rollouts", "steps", "sequences", "differ", "first bad",
            "onset", "period", "bits");
    for (int64_t i = 0; i < s->n_series; i++) {
        const ls_series *x = &s->series[i];
        fprintf(file, "  %8" PRId64 " %6" PRId64 " %10" PRId64 " %10" PRId64, x->rollouts, x->n_steps, x->n_sequences,
                x->n_sequences_different);
        if (x->first_bad >= 0)
            fprintf(file, " %12" PRId64, x->first_bad);
        else
            fprintf(file, " %12s", "-");
        print_number(file, x->onset);
        print_number(file, x->period);
        fprintf(file, " %10" PRId64 "\n", x->n_bits);
    }
    if (isnan(s->onset_slope)) return;
    fprintf(file, "  log onset on log rollouts: slope %.3f; log period: slope %.3f\n", s->onset_slope, s->period_slope);
    if (fabs(s->onset_slope + 1.0) < 0.1)
        fprintf(
            file,
            "  slope -1: what counts is the number of sequences, a resource that fills up, not the training step\n");
}

void ls_sweep_print(FILE *file, const ls_sweep *s) {
    if (s->foreign != NULL) {
        ls_foreign_print(file, s);
        return;
    }
    print_experiments(file, s);
    print_series(file, s);
    if (!s->different) {
        fputc('\n', file);
        print_set(file, "not tried:", set_of(s, LS_UNTRIED));
        fprintf(file, "no difference: %" PRId64 " trials, %" PRId64 " sequences, %" PRId64 " differing bits (%.1f s)\n",
                s->n_trials, s->n_sequences, s->n_bits, s->seconds);
        return;
    }
    print_causes(file, s);
    ls_report_bounds(file, s);
    print_wraps(file, s);
    print_repro(file, s);
    fprintf(file, "\n%" PRId64 " trials, %" PRId64 " sequences, %" PRId64 " differing bits (%.1f s)\n", s->n_trials,
            s->n_sequences, s->n_bits, s->seconds);
}

/* ---- JSON ---- */

static void write_experiments(ls_json_out *json, const ls_sweep *s) {
    ls_json_begin_array(json, "experiments");
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const ls_observation *o = &s->seen[i];
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "name", ls_experiment_name((ls_experiment)i));
        ls_json_string(json, "verdict", ls_verdict_name(o->verdict));
        ls_report_counts_json(json, o->n_sequences, o->n_sequences_different, o->n_tokens, o->n_different);
        ls_json_int(json, "differing_bits", o->n_bits);
        ls_json_double(json, "mean_abs", o->abs_mean);
        ls_json_double(json, "max_abs", o->abs_max);
        if (o->failures.whole != LS_FAILURE_NONE) ls_json_string(json, "note", o->failures.first);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

static void write_series(ls_json_out *json, const ls_sweep *s) {
    ls_json_begin_array(json, "series");
    for (int64_t i = 0; i < s->n_series; i++) {
        const ls_series *x = &s->series[i];
        ls_json_begin_object(json, NULL);
        ls_json_int(json, "rollouts", x->rollouts);
        ls_json_int(json, "sequences", x->n_sequences);
        ls_json_int(json, "sequences_different", x->n_sequences_different);
        ls_json_int(json, "differing_bits", x->n_bits);
        ls_json_int(json, "first_bad", x->first_bad);
        ls_json_double(json, "onset", x->onset);
        ls_json_double(json, "period", x->period);
        ls_json_begin_array(json, "step_mean_abs");
        for (int64_t t = 0; t < x->n_steps; t++) ls_json_double(json, NULL, x->step_abs[t]);
        ls_json_end_array(json);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

static void write_threshold(ls_json_out *json, const ls_sweep *s) {
    ls_report_bounds_json(json, s);
    ls_json_begin_array(json, "expressions");
    for (int64_t i = 0; i < s->n_wraps; i++) {
        const ls_wrap *w = &s->wraps[i];
        if (!w->fits) continue;
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "tensor", w->tensor->name);
        ls_json_string(json, "type", w->is_signed ? "int32" : "uint32");
        ls_json_string(json, "unit", tensor_unit(w));
        ls_json_int(json, "stride", w->stride);
        ls_json_int(json, "first_bad", w->first_bad);
        ls_json_double(json, "share", w->share);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

void ls_sweep_write(ls_json_out *json, const ls_sweep *s) {
    const ls_ranked *named;
    if (s->foreign != NULL) {
        ls_foreign_write(json, s);
        return;
    }
    named = ls_sweep_cause(s);
    ls_json_begin_object(json, NULL);
    ls_json_bool(json, "different", s->different);
    ls_json_string(json, "dtype", ls_dtype_name(s->opts.dtype));
    ls_json_string(json, "profile", ls_profile_name(s->opts.dtype == LS_F32 ? LS_PROFILE_EXACT : s->opts.profile));
    ls_json_string_or_null(json, "cause", named != NULL ? ls_cause_name(named->cause) : NULL);
    ls_json_begin_array(json, "ranked");
    for (int64_t i = 0; s->different && i < s->n_ranked; i++) {
        if (s->ranked[i].score == 0.0) break;
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "cause", ls_cause_name(s->ranked[i].cause));
        ls_json_double(json, "score", s->ranked[i].score);
        ls_json_bool(json, "fits", s->ranked[i].fits);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    write_experiments(json, s);
    write_threshold(json, s);
    write_series(json, s);
    ls_json_double(json, "onset_slope", s->onset_slope);
    ls_json_double(json, "period_slope", s->period_slope);
    ls_report_repro_json(json, s);
    ls_json_int(json, "trials", s->n_trials);
    ls_json_int(json, "sequences", s->n_sequences);
    ls_json_int(json, "differing_bits", s->n_bits);
    ls_json_double(json, "seconds", s->seconds);
    ls_json_end_object(json);
    ls_json_newline(json);
}
