/* What several reports have: findings, thresholds, levers, the smallest requests. */
#ifndef LS_DIAGNOSE_REPORT_REPORT_PARTS_H
#define LS_DIAGNOSE_REPORT_REPORT_PARTS_H

#include "diagnose/bits/bits_run.h"
#include "diagnose/finding.h"

#define LS_REPORT_UNNAMED "a difference that no cause explains well enough to be named"
#define LS_REPORT_STOPPED "stopped early, too few experiments were run"
#define LS_REPORT_BROKEN "records of one digest differ"
#define LS_REPORT_ROUNDING "ordinary rounding, no structure"
#define LS_REPORT_KERNELS "decode and prefill are different kernels, nothing else found"

/* Nothing of an empty list. */
void ls_report_findings(FILE *file, const ls_findings *findings);
void ls_report_findings_html(FILE *file, const ls_findings *findings);
void ls_report_bounds(FILE *file, const ls_sweep *sweep);
/* The levers that differ from these, as options. */
void ls_report_levers(FILE *file, const ls_trial *trial, const ls_levers *from);
/* "ranked": [..], the best first; weighed: with whether each is sure enough to be named, and what its control left. */
void ls_report_ranked_json(ls_json_out *json, const ls_findings *findings, bool weighed);
/* How many sequences and tokens an experiment has, and how many of them are off. */
void ls_report_counts_json(ls_json_out *json, int64_t sequences, int64_t sequences_off, int64_t tokens,
                           int64_t tokens_off);
/* "bounds": [..] and "repro": [..] */
void ls_report_bounds_json(ls_json_out *json, const ls_sweep *sweep);
void ls_report_repro_json(ls_json_out *json, const ls_sweep *sweep);

#endif
