/* Rules of a probe on a server that is a function, with a fault and without. The laboratory of real servers is
 * script/probe-table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faulty_server.h"

typedef ls_status (*rule)(ls_inquiry *q, bool *found, ls_error *err);

static ls_status previous(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_decide_previous_request(q, LS_STACK_CACHED_ORDER, true, found, err);
}

static ls_status numbers(ls_inquiry *q, bool *found, ls_error *err) {
    (void)err;
    *found = ls_probe_decide_records(q);
    return LS_OK;
}

static ls_status multiples(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_decide_multiples(q, 1e-4, 0.05, found, err);
}

static ls_status handed(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_probe_decide_handed(q, LS_STACK_BATCH, found, err);
}

static ls_status filled_up(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_probe_decide_filled_up(q, LS_STACK_BATCH, found, err);
}

static ls_status number(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_probe_decide_number(q, LS_STACK_BATCH, found, err);
}

/* Where some experiments have been tried. */
static ls_status periods(ls_inquiry *q, bool *found, ls_error *err) {
    LS_TRY(ls_foreign_run_experiment(q, LS_STACK_SEQUENCE, err));
    LS_TRY(ls_foreign_run_experiment(q, LS_STACK_STAGGERED, err));
    LS_TRY(ls_foreign_run_experiment(q, LS_STACK_LONG, err));
    return ls_probe_decide_periods(q, found, err);
}

static ls_status long_rows(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_probe_decide_long_rows(q, LS_STACK_PRESSED, found, err);
}

static ls_status row_of_other(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_probe_decide_row_of_other(q, LS_STACK_BATCH, found, err);
}

static ls_status readers(ls_inquiry *q, bool *found, ls_error *err) {
    return ls_probe_decide_readers(q, LS_STACK_LOAD, found, err);
}

/* All that is looked for where requests alone are within 1e-3. */
static ls_status below_patterns(ls_inquiry *q, bool *found, ls_error *err) {
    q->f->floor_max = 5e-4;
    LS_TRY(ls_probe_decide_pattern(q, err));
    *found = q->f->found.n > 0;
    return LS_OK;
}

static void a_rule_names_its_fault_and_no_other(void **state) {
    static const struct {
        rule rule;
        fault fault;
        ls_cause cause;
    } rows[] = {{ls_probe_decide_turns, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_turns, NOISE, LS_CAUSE_NOT_REPEATABLE},
                {ls_probe_decide_turns, ORDERS, LS_CAUSE_NONE},
                {ls_probe_decide_masked, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_masked, MASKED, LS_CAUSE_EOS_MASKED},
                {ls_probe_decide_masked, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_masked, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_slope, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_slope, WARM, LS_CAUSE_TEMPERATURE},
                {ls_probe_decide_slope, SCALED, LS_CAUSE_NONE},
                {ls_probe_decide_slope, TWICE_AS_WARM, LS_CAUSE_TEMPERATURE},
                {ls_probe_decide_slope, MASKED, LS_CAUSE_NONE},
                {previous, SOUND, LS_CAUSE_NONE},
                {previous, PIECES_MOVED, LS_CAUSE_CACHE_CROSSED},
                {previous, PIECE_KEYS, LS_CAUSE_CACHE_CROSSED},
                {ls_probe_decide_rows, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_rows, ROWS, LS_CAUSE_WEIGHTS},
                {ls_probe_decide_rows, OTHER_IDS, LS_CAUSE_NONE},
                {ls_probe_decide_rows, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_signs, PRESENCE, LS_CAUSE_PENALTY},
                {ls_probe_decide_signs, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_signs, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_borders, AT_16, LS_CAUSE_PAGE_SIZE},
                {ls_probe_decide_borders, AT_32, LS_CAUSE_PAGE_SIZE},
                {ls_probe_decide_borders, FROM_32, LS_CAUSE_NONE},
                {ls_probe_decide_borders, LATE_IN_ALL, LS_CAUSE_FROM_A_LENGTH},
                {ls_probe_decide_borders, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_threshold, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_threshold, ORDERS, LS_CAUSE_NONE},
                {ls_probe_decide_head, F16_LOGITS, LS_CAUSE_COARSE_HEAD},
                {ls_probe_decide_head, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_head, WARM, LS_CAUSE_NONE},
                {numbers, THOUSANDTHS, LS_CAUSE_COARSE_RECORDS},
                {numbers, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_places, THREE_EARLY, LS_CAUSE_SHIFTED},
                {ls_probe_decide_places, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_places, WARM, LS_CAUSE_NONE},
                {ls_probe_decide_places, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_places, NEIGHBOURS_PLACE, LS_CAUSE_OTHER_RECORDS},
                {ls_probe_decide_places, BACKWARDS, LS_CAUSE_OTHER_RECORDS},
                {numbers, BF16_AGAIN, LS_CAUSE_COARSE_RECORDS},
                {numbers, PER_MILLE, LS_CAUSE_COARSE_RECORDS},
                {ls_probe_decide_head, F16_SMALL_LOGITS, LS_CAUSE_COARSE_HEAD},
                {below_patterns, FINE, LS_CAUSE_NONE},
                {below_patterns, NARROW, LS_CAUSE_COARSE_HEAD},
                {ls_probe_decide_misread, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_misread, WARM, LS_CAUSE_NONE},
                {ls_probe_decide_misread, TWO_IN_FRONT, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, LAST_TWO_LOST, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, FIRST_LOST_AGAIN, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_misread, TURNED_ROUND, LS_CAUSE_OTHER_TOKENS},
                {previous, BLOCK_SETS, LS_CAUSE_CACHE_CROSSED},
                {ls_probe_decide_talk, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_talk, WHAT_DECODE_LEFT, LS_CAUSE_CACHE_HITS},
                {ls_probe_decide_talk, BLOCK_ENDS, LS_CAUSE_NONE},
                {previous, LAST_BITS, LS_CAUSE_CACHE_CROSSED},
                {previous, FIRST_BITS, LS_CAUSE_CACHE_CROSSED},
                {previous, KEY_UNWRITTEN, LS_CAUSE_SNAPSHOT_SHIFTED},
                {previous, HEAD_KEY, LS_CAUSE_CACHE_CROSSED},
                {previous, ANSWERS_KEPT, LS_CAUSE_CACHE_CROSSED},
                {previous, SCORES_KEPT, LS_CAUSE_CACHE_HITS},
                {multiples, SOUND, LS_CAUSE_NONE},
                {multiples, BORDER_ZERO, LS_CAUSE_NONE},
                {multiples, AT_16, LS_CAUSE_NONE},
                {multiples, PADDED_BEHIND, LS_CAUSE_PADDING},
                {multiples, TO_POWERS, LS_CAUSE_PADDING},
                {multiples, LONGER_32, LS_CAUSE_NONE},
                {ls_probe_decide_borders, BORDER_ZERO, LS_CAUSE_PAGE_SIZE},
                {ls_probe_decide_borders, PADDED_BEHIND, LS_CAUSE_NONE},
                {ls_probe_decide_places, FOURS_TURNED, LS_CAUSE_OTHER_RECORDS},
                {ls_probe_decide_places, NEXT_ID, LS_CAUSE_NONE},
                {ls_probe_decide_other_ids, NEXT_ID, LS_CAUSE_OTHER_RECORDS},
                {ls_probe_decide_other_ids, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_other_ids, SECOND_BEST, LS_CAUSE_NONE},
                {ls_probe_decide_other_ids, WARM, LS_CAUSE_NONE},
                {ls_probe_decide_draws, SECOND_BEST, LS_CAUSE_OTHER_RECORDS},
                {ls_probe_decide_draws, TENTH_AT_LEAST, LS_CAUSE_CLAMPED},
                {ls_probe_decide_draws, FIRST_IDS_LOST, LS_CAUSE_CUT},
                {ls_probe_decide_draws, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_draws, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_draws, FIRST_ALONE, LS_CAUSE_NONE},
                {ls_probe_decide_draws, NEXT_ID, LS_CAUSE_NONE},
                {ls_probe_decide_draws, WARM, LS_CAUSE_NONE},
                {ls_probe_decide_function, LOG_PLUS, LS_CAUSE_CLAMPED},
                {ls_probe_decide_function, TO_A_POWER, LS_CAUSE_SCALED},
                {ls_probe_decide_function, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_function, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_function, SCALED, LS_CAUSE_NONE},
                {ls_probe_decide_function, WARM, LS_CAUSE_NONE},
                {ls_probe_decide_function, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_function, MASKED, LS_CAUSE_NONE},
                {ls_probe_decide_function, LIKELIEST, LS_CAUSE_NONE},
                {ls_probe_decide_function, TENTH_AT_LEAST, LS_CAUSE_NONE},
                {numbers, FIVE_PLACES, LS_CAUSE_COARSE_RECORDS},
                {ls_probe_decide_slope, HIDDEN_CUT, LS_CAUSE_CUT},
                {ls_probe_decide_misread, TWO_BEHIND, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, IN_ORDER, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, THROUGH_TEXT, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, NEXT_ID, LS_CAUSE_NONE},
                {ls_probe_decide_turns, ONE_STEP, LS_CAUSE_NOT_REPEATABLE},
                {handed, SOUND, LS_CAUSE_NONE},
                {handed, HANDED_OVER, LS_CAUSE_STALE_SLOT},
                {handed, ROWS_FAR, LS_CAUSE_NONE},
                {handed, NOISE, LS_CAUSE_NONE},
                {filled_up, SOUND, LS_CAUSE_NONE},
                {filled_up, FILLED_UP, LS_CAUSE_PADDING},
                {filled_up, ROWS_FAR, LS_CAUSE_NONE},
                {filled_up, LAST_ROW, LS_CAUSE_NONE},
                {filled_up, NOISE, LS_CAUSE_NONE},
                {filled_up, ROOM_OF_PADS, LS_CAUSE_PADDING},
                {filled_up, BEHIND_FOUR, LS_CAUSE_NONE},
                {filled_up, FROM_FOUR, LS_CAUSE_NONE},
                {row_of_other, ROW_OF_NEXT, LS_CAUSE_OTHERS_STATE},
                {row_of_other, ROWS_OF_SOME, LS_CAUSE_NONE},
                {row_of_other, LATE_ROW, LS_CAUSE_OTHERS_STATE},
                {row_of_other, OTHER_DRAWS, LS_CAUSE_OTHERS_STATE},
                {row_of_other, ROWS_FAR, LS_CAUSE_NONE},
                {row_of_other, NOISE, LS_CAUSE_NONE},
                {readers, SOUND, LS_CAUSE_NONE},
                {readers, READERS, LS_CAUSE_OTHERS_STATE},
                {readers, TEXTS_IN, LS_CAUSE_NONE}, /* no other row's values */
                {readers, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_flushed, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_flushed, FEW_BITS, LS_CAUSE_CACHE_CROSSED},
                {ls_probe_decide_flushed, KEY_UNWRITTEN, LS_CAUSE_NONE},
                {ls_probe_decide_flushed, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_evicted, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_evicted, EVICTED, LS_CAUSE_CACHE_CROSSED},
                {ls_probe_decide_evicted, AGED, LS_CAUSE_SNAPSHOT_SHIFTED},
                {ls_probe_decide_evicted, KEY_UNWRITTEN, LS_CAUSE_NONE}, /* at once as well */
                {ls_probe_decide_evicted, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_left, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_left, LEFT, LS_CAUSE_STALE_SLOT},
                {ls_probe_decide_left, LEFT_MARKS, LS_CAUSE_STALE_SLOT},
                {ls_probe_decide_left, LEFT_TWICE, LS_CAUSE_OTHERS_STATE},
                {ls_probe_decide_left, LEFT_ONCE, LS_CAUSE_OTHERS_STATE},
                {ls_probe_decide_left, FOURTH_SLOT, LS_CAUSE_NONE}, /* behind nobody as well */
                {ls_probe_decide_left, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_continued, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_continued, HALF_BLOCK, LS_CAUSE_SNAPSHOT_SHIFTED},
                {ls_probe_decide_continued, FEW_BITS, LS_CAUSE_NONE}, /* behind another text as well */
                {ls_probe_decide_continued, BLOCK_ENDS, LS_CAUSE_NONE},
                {ls_probe_decide_slope, TWICE_SUMMED, LS_CAUSE_CUT},
                {ls_probe_decide_slope, PRESENCE, LS_CAUSE_NONE},
                {ls_probe_decide_slope, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_leavers, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_leavers, LEFT, LS_CAUSE_STALE_SLOT},
                {ls_probe_decide_leavers, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_windows, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_windows, WINDOWS_64, LS_CAUSE_STATE_BETWEEN_CHUNKS},
                {ls_probe_decide_windows, ROW_BEHIND_64, LS_CAUSE_NONE},
                {ls_probe_decide_windows, PADDED_BEHIND, LS_CAUSE_NONE},
                {ls_probe_decide_windows, LONGER_32, LS_CAUSE_NONE},
                {ls_probe_decide_threshold, WINDOWS_64, LS_CAUSE_STATE_BETWEEN_CHUNKS},
                {ls_probe_decide_positions, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_positions, FROM_32, LS_CAUSE_FROM_A_LENGTH},
                {ls_probe_decide_positions, LATE_IN_ALL, LS_CAUSE_NONE},
                {ls_probe_decide_positions, LONGER_32, LS_CAUSE_NONE},
                {ls_probe_decide_positions, AT_32, LS_CAUSE_NONE},
                {ls_probe_decide_two_records, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_two_records, DRAFTED, LS_CAUSE_WEIGHTS},
                {ls_probe_decide_two_records, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_two_records, ONE_STEP, LS_CAUSE_NONE},
                {ls_probe_decide_two_records, ZEROS, LS_CAUSE_NONE},
                {ls_probe_decide_two_records, ROWS, LS_CAUSE_NONE},
                {number, SOUND, LS_CAUSE_NONE},
                {number, FROM_FOUR, LS_CAUSE_ORDER_BY_BATCH},
                {number, FOURTH_SLOT, LS_CAUSE_NONE},
                {number, NOISE, LS_CAUSE_NONE},
                {number, FILLED_UP, LS_CAUSE_NONE},
                {number, BEHIND_FOUR, LS_CAUSE_ORDER_BY_BATCH},
                {number, ROOM_OF_PADS, LS_CAUSE_NONE},
                {number, JOINED, LS_CAUSE_NONE},
                {ls_probe_decide_fewer, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_fewer, JOINED_IDS, LS_CAUSE_OTHER_RECORDS},
                {ls_probe_decide_fewer, ENDS_OFF, LS_CAUSE_NONE}, /* at its last token alone */
                {ls_probe_decide_fewer, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_fewer, THREE_EARLY, LS_CAUSE_NONE},
                {periods, SOUND, LS_CAUSE_NONE},
                {periods, AT_16, LS_CAUSE_PAGE_SIZE},
                {periods, AT_32, LS_CAUSE_PAGE_SIZE},
                {periods, FROM_32, LS_CAUSE_NONE},
                {periods, LATE_IN_ALL, LS_CAUSE_NONE},   /* by how many stand behind the prompt */
                {periods, PADDED_BEHIND, LS_CAUSE_NONE}, /* by where the prompt ends */
                {periods, NOISE, LS_CAUSE_NONE},
                {long_rows, SOUND, LS_CAUSE_NONE},
                {long_rows, LONG_FIRST, LS_CAUSE_OTHERS_STATE},
                {long_rows, LONG_ROWS, LS_CAUSE_NONE}, /* copies as well */
                {long_rows, PREEMPTED, LS_CAUSE_NONE},
                {long_rows, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_content, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_content, MERGED, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_content, OTHER_IDS, LS_CAUSE_NONE}, /* by one token alone */
                {ls_probe_decide_content, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_threshold, MERGED, LS_CAUSE_NONE},
                {ls_probe_decide_own_cut, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_own_cut, HIDDEN_CUT, LS_CAUSE_CUT},
                {ls_probe_decide_own_cut, ONE_LEFT, LS_CAUSE_CUT},
                {ls_probe_decide_own_cut, ZEROS, LS_CAUSE_NONE},
                {ls_probe_decide_own_cut, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_own_cut, MASKED, LS_CAUSE_NONE},
                {ls_probe_decide_own_cut, PRESENCE, LS_CAUSE_NONE},
                {ls_probe_decide_turns, REPLICAS, LS_CAUSE_NOT_REPEATABLE},
                {ls_probe_decide_grown, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_grown, GROWN, LS_CAUSE_FROM_A_LENGTH},
                {ls_probe_decide_grown, FROM_32, LS_CAUSE_NONE}, /* at any length that is tried */
                {ls_probe_decide_grown, LATE_IN_ALL, LS_CAUSE_NONE},
                {ls_probe_decide_grown, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_kept, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_kept, KEPT_TWENTY, LS_CAUSE_CUT},
                {ls_probe_decide_kept, RAISED, LS_CAUSE_NONE},
                {ls_probe_decide_kept, RAISED_MUCH, LS_CAUSE_NONE},
                {ls_probe_decide_kept, LIKELIEST, LS_CAUSE_NONE},
                {ls_probe_decide_kept, MASKED, LS_CAUSE_NONE},
                {ls_probe_decide_predecessors, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_predecessors, READS_AHEAD, LS_CAUSE_STALE_SLOT},
                {ls_probe_decide_predecessors, LONGER_32, LS_CAUSE_NONE}, /* by something else each time */
                {ls_probe_decide_predecessors, LONGEST, LS_CAUSE_NONE},   /* by how long it is, and not by its text */
                {ls_probe_decide_outgrown, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_outgrown, EVER_LONGEST, LS_CAUSE_POSITIONS},
                {ls_probe_decide_outgrown, LONGEST, LS_CAUSE_NONE}, /* a short one takes it back */
                {ls_probe_decide_outgrown, STAYS, LS_CAUSE_NONE},
                {ls_probe_decide_outgrown, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_unsalted, SOUND, LS_CAUSE_NONE},
                {ls_probe_decide_unsalted, UNSALTED_STALE, LS_CAUSE_SNAPSHOT_SHIFTED},
                {ls_probe_decide_unsalted, STAYS, LS_CAUSE_NONE}, /* with a salt as well */
                {ls_probe_decide_unsalted, NOISE, LS_CAUSE_NONE},
                {ls_probe_decide_threshold, FEW_ROWS, LS_CAUSE_ORDER_BY_BATCH},
                {ls_probe_decide_turns, STEP_NOISE, LS_CAUSE_NONE}, /* of a type that is not known to be float32 */
                {ls_probe_decide_misread, BYTES_LOST, LS_CAUSE_OTHER_TOKENS},
                {ls_probe_decide_misread, OTHER_IDS, LS_CAUSE_NONE},
                {ls_probe_decide_misread, SECOND_BEST, LS_CAUSE_NONE}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        server *s = start(rows[i].fault);
        bool found = false;
        ls_error err;
        run_alone(s);
        assert_ok(rows[i].rule(&s->inquiry, &found, &err), err);
        check_cause(s, found, rows[i].cause);
        stop(s);
    }
}

/* Blocks of 128 tokens are met by no shorter prompts. */
static void a_cache_of_long_blocks_is_tried(void **state) {
    static const fault faults[] = {SOUND, BLOCK_ENDS};
    (void)state;
    for (int k = 0; k < 2; k++) {
        server *s = start(faults[k]);
        ls_error err;
        assert_ok(ls_foreign_run_experiment(&s->inquiry, LS_STACK_CACHED_SHARED, &err), err);
        assert_ok(ls_foreign_run_experiment(&s->inquiry, LS_STACK_CACHED_LONG, &err), err);
        assert_int_equal(s->foreign.seen[LS_STACK_CACHED_SHARED].n_sequences_off, 0);
        assert_int_equal(s->foreign.seen[LS_STACK_CACHED_LONG].n_sequences_off, k == 0 ? 0 : UNSEEN);
        stop(s);
    }
}

/* Blocks whose tokens have another bit each: of ten prompts four are hits of others. */
static void a_cache_that_leaves_out_bits_is_tried(void **state) {
    static const fault faults[] = {SOUND, LAST_BITS, FIRST_BITS};
    (void)state;
    for (int k = 0; k < 3; k++) {
        server *s = start(faults[k]);
        ls_error err;
        assert_ok(ls_foreign_run_experiment(&s->inquiry, LS_STACK_CACHED_BITS, &err), err);
        assert_int_equal(s->foreign.seen[LS_STACK_CACHED_BITS].n_sequences_off, k == 0 ? 0 : 4);
        stop(s);
    }
}

/* The rest of a prompt stood elsewhere: of five pairs four have the longer one first. */
static void a_cache_that_moves_pieces_is_tried(void **state) {
    static const fault faults[] = {SOUND, PIECES_MOVED};
    (void)state;
    for (int k = 0; k < 2; k++) {
        server *s = start(faults[k]);
        ls_error err;
        assert_ok(ls_foreign_run_experiment(&s->inquiry, LS_STACK_CACHED_MOVED, &err), err);
        assert_int_equal(s->foreign.seen[LS_STACK_CACHED_MOVED].n_sequences_off, k == 0 ? 0 : 4);
        stop(s);
    }
}

/* What is never right looks the same, whether a state is cleared behind some requests or behind none. */
static void a_state_that_a_stop_clears_is_told(void **state) {
    static const struct {
        fault fault;
        ls_cause cause;
    } rows[] = {{STAYS_AT_LENGTH, LS_CAUSE_STALE_SLOT}, {STAYS, LS_CAUSE_NONE}, {NOISE, LS_CAUSE_NOT_REPEATABLE}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        const ls_finding *named;
        bool found = false;
        ls_error err;
        s->subject.does |= LS_OUTSIDE_STOPS;
        run_alone(s);
        assert_ok(ls_probe_decide_repeats(&s->inquiry, &found, &err), err);
        named = ls_foreign_named(&s->foreign);
        assert_true(found);
        assert_int_equal(named != NULL ? named->cause : LS_CAUSE_NONE, rows[k].cause);
        stop(s);
    }
}

/* Where no seed is sent and one sample is given, draws of one text are yet of several tokens. */
static void a_line_is_measured_without_seeds(void **state) {
    server *s = start(ONE_DRAW);
    ls_slope line;
    ls_error err;
    (void)state;
    s->subject.records_processed = s->inquiry.refuses_samples = true;
    assert_ok(ls_probe_measure_slope(&s->inquiry, &line, &err), err);
    assert_true(line.n >= 12 && fabs(line.slope - 1.0 / LS_SLOPE_AT) < 0.02);
    stop(s);
}

/* One of each kind comes first then. */
static void be_slow(server *s) {
    s->door.seconds = 1e-9;
    s->door.limits.end = (double)INFINITY;
}

/* Rules in their order, on all that a probe asks; of some servers in the order of slow ones. */
static void an_inquiry_names_what_is_wrong_and_nothing_else(void **state) {
    static const struct {
        fault fault;
        bool different;
        ls_cause cause;
    } rows[] = {{SOUND, false, LS_CAUSE_NONE},
                {COARSE, false, LS_CAUSE_NONE},
                {ORDERS, false, LS_CAUSE_NONE}, /* of a coarse type: one rounding makes as much */
                {NOISE, true, LS_CAUSE_NOT_REPEATABLE},
                {AT_16, true, LS_CAUSE_PAGE_SIZE},
                {ODD_LENGTHS, true, LS_CAUSE_PADDING},
                {F16_LOGITS, true, LS_CAUSE_COARSE_HEAD},
                {F16_SMALL_LOGITS, true, LS_CAUSE_COARSE_HEAD},
                {THOUSANDTHS, true, LS_CAUSE_COARSE_RECORDS}, /* which are as far apart as logits of few bits */
                {ENTROPIES, true, LS_CAUSE_NONE},
                {LIKELIEST, true, LS_CAUSE_CUT},
                {LIKELIER, true, LS_CAUSE_CUT},
                {FIRST_ALONE, true, LS_CAUSE_FIRST_TOKENS},
                {LAST_ALONE, true, LS_CAUSE_NONE},
                {WHAT_DECODE_LEFT, true, LS_CAUSE_CACHE_HITS},
                {KEY_UNWRITTEN, true, LS_CAUSE_SNAPSHOT_SHIFTED},
                {HEAD_KEY, true, LS_CAUSE_CACHE_CROSSED},
                {ONCE_AND_KEYS, true, LS_CAUSE_CACHE_CROSSED}, /* what was off alone once is not what is wrong */
                {ANSWERS_KEPT, true, LS_CAUSE_CACHE_CROSSED},
                {SCORES_KEPT, true, LS_CAUSE_CACHE_HITS},
                {BORDER_ZERO, true, LS_CAUSE_PAGE_SIZE},
                {PADDED_BEHIND, true, LS_CAUSE_PADDING},
                {NEXT_ID, true, LS_CAUSE_OTHER_RECORDS},
                {SECOND_BEST, true, LS_CAUSE_OTHER_RECORDS},
                {TENTH_AT_LEAST, true, LS_CAUSE_CLAMPED},
                {FIRST_IDS_LOST, true, LS_CAUSE_CUT},
                {LOG_PLUS, true, LS_CAUSE_CLAMPED},
                {TO_A_POWER, true, LS_CAUSE_SCALED},
                {ON_A_CURVE, true, LS_CAUSE_NONE}, /* which is said, and has no name */
                {FIVE_PLACES, true, LS_CAUSE_COARSE_RECORDS},
                {HIDDEN_CUT, true, LS_CAUSE_CUT},
                {TWO_BEHIND, true, LS_CAUSE_OTHER_TOKENS},
                {IN_ORDER, true, LS_CAUSE_OTHER_TOKENS},
                {THROUGH_TEXT, true, LS_CAUSE_OTHER_TOKENS},
                {LAST_ROW, true, LS_CAUSE_OTHERS_STATE},
                {LAST_ROW_SELDOM, true, LS_CAUSE_OTHERS_STATE},
                {ROWS_OF_SOME, true, LS_CAUSE_NONE}, /* no row reads another one's state */
                {TO_POWERS, true, LS_CAUSE_PADDING},
                {ONE_STEP, true, LS_CAUSE_NOT_REPEATABLE},
                {PREEMPTED, true, LS_CAUSE_PREEMPTED},
                {LONG_ROWS, true, LS_CAUSE_NONE}, /* two at a time are off as well */
                {HANDED_OVER, true, LS_CAUSE_STALE_SLOT},
                {FILLED_UP, true, LS_CAUSE_PADDING},
                {UNLIKE, true, LS_CAUSE_PADDING},
                {ROW_OF_NEXT, true, LS_CAUSE_OTHERS_STATE},
                {FEW_BITS, true, LS_CAUSE_CACHE_CROSSED},
                {HALF_BLOCK, true, LS_CAUSE_SNAPSHOT_SHIFTED},
                {TWICE_SUMMED, true, LS_CAUSE_CUT},
                {FROM_FOUR, true, LS_CAUSE_ORDER_BY_BATCH},
                {FOURTH_SLOT, true, LS_CAUSE_NONE},
                {FROM_32, true, LS_CAUSE_FROM_A_LENGTH},
                {PADS_IN, true, LS_CAUSE_PADDING},
                {TEXTS_IN, true, LS_CAUSE_OTHERS_STATE},
                {ROOM_TAKEN, true, LS_CAUSE_PADDING}, /* rows of one length are off as well */
                {MERGED, true, LS_CAUSE_OTHER_TOKENS},
                {ONE_LEFT, true, LS_CAUSE_CUT},
                {ZEROS, true, LS_CAUSE_MISSING},
                {LATE_ROW, true, LS_CAUSE_OTHERS_STATE},
                {PIECE_KEYS, true, LS_CAUSE_CACHE_CROSSED},
                {GROWN, true, LS_CAUSE_FROM_A_LENGTH},
                {TIES, false, LS_CAUSE_NONE},
                {NEAR_TAIL, false, LS_CAUSE_NONE},
                {KEY_FLIPS, false, LS_CAUSE_NONE},
                {FAR_FLIPS, true, LS_CAUSE_NONE},
                {KEPT_TWENTY, true, LS_CAUSE_CUT}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        const ls_finding *named;
        ls_error err;
        if (k % 4 == 0) be_slow(s);
        assert_ok(ls_probe_inquire(&s->inquiry, &err), err);
        named = ls_foreign_named(&s->foreign);
        assert_int_equal(s->sweep.different, rows[k].different);
        assert_int_equal(named != NULL ? named->cause : LS_CAUSE_NONE, rows[k].cause);
        stop(s);
    }
}

/* Requests at once may have a kernel of their own, which moves values by no more than one rounding does. */
static void a_kernel_that_rows_choose_is_no_fault(void **state) {
    static const struct {
        fault fault;
        ls_cause cause;
    } rows[] = {{ROWS_KERNEL, LS_CAUSE_NONE}, {ROWS_FAR, LS_CAUSE_ORDER_BY_BATCH}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        ls_error err;
        assert_ok(ls_probe_inquire(&s->inquiry, &err), err);
        check_cause(s, s->sweep.different, rows[k].cause);
        stop(s);
    }
}

/* Who begins while others run is no number of rows: it is listed, and says so. */
static void a_row_that_others_join_is_no_number_of_rows(void **state) {
    static const struct {
        fault fault;
        bool found;
    } rows[] = {{SOUND, false}, {JOINED, true}, {FROM_FOUR, false}, {ROWS_FAR, false}, {NOISE, false}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        bool found = false;
        ls_error err;
        assert_ok(ls_probe_decide_joined(&s->inquiry, LS_STACK_BATCH, &found, &err), err);
        assert_int_equal(found, rows[k].found);
        assert_int_equal(s->foreign.found.n, found ? 1 : 0);
        if (found) assert_int_equal(s->foreign.found.of[0].cause, LS_CAUSE_UNLISTED);
        stop(s);
    }
}

/* Rows that are off whatever their lengths are, beside such as are so where they are unlike. */
static void unlike_lengths_are_told_among_rows_that_are_off(void **state) {
    static const struct {
        fault fault;
        bool matter;
    } rows[] = {{SOUND, false}, {ROOM_TAKEN, true}, {PADS_IN, true}, {ROWS_FAR, false}, {NOISE, false}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        double chance;
        ls_error err;
        assert_ok(ls_probe_unlike_matter(&s->inquiry, &chance, &err), err);
        assert_int_equal(ls_probe_sure(chance, 0.0) >= LS_NAMED, rows[k].matter);
        stop(s);
    }
}

/* What moves with the length of the request in front is no hit, which hangs on what that said. */
static void a_scale_of_the_longest_is_no_hit(void **state) {
    static const struct {
        fault fault;
        bool hangs;
    } rows[] = {{SOUND, false}, {LONGEST, true}, {READS_AHEAD, false}, {STAYS, false}, {NOISE, false}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        ls_longest longest;
        ls_error err;
        assert_ok(ls_probe_measure_longest(&s->inquiry, 64, &longest, &err), err);
        assert_int_equal(longest.hangs, rows[k].hangs);
        stop(s);
    }
}

/* Where values of a coarse type agree to the bit, the first rounding is far beyond all before it, and no length. */
static void a_length_is_told_from_a_first_rounding(void **state) {
    server *s = start(LONGER_32);
    bool found = false;
    ls_error err;
    (void)state;
    run_alone(s);
    assert_ok(ls_probe_decide_threshold(&s->inquiry, &found, &err), err);
    check_cause(s, found, LS_CAUSE_FROM_A_LENGTH);
    assert_non_null(strstr(s->foreign.found.of[0].evidence, "fewer than 33 tokens"));
    stop(s);
}

/* Chance and what does not fit are taken from what no rule is surer than. */
static void a_rule_is_as_sure_as_its_evidence(void **state) {
    (void)state;
    assert_true(fabs(ls_probe_sure(0.0, 0.0) - 0.97) < 1e-9);
    assert_true(ls_probe_sure(1e-3, 0.0) < 0.9 && ls_probe_sure(1e-3, 0.0) > LS_NAMED);
    assert_true(ls_probe_sure(0.0, 0.4) < 0.9);
    assert_true(ls_probe_sure(0.01, 0.0) < LS_NAMED);
}

static void two_tokens_in_front_are_found_on_either_side(void **state) {
    static const fault faults[] = {BOS_TWICE, BOS_TWICE_AGAIN};
    (void)state;
    for (int k = 0; k < 2; k++) {
        server *s = start(faults[k]);
        ls_error err;
        run_alone(s);
        s->foreign.constant = true;
        s->foreign.floor = 1.0;
        assert_ok(ls_probe_decide_solo(&s->inquiry, &err), err);
        check_cause(s, true, LS_CAUSE_OTHER_TOKENS);
        stop(s);
    }
}

/* All texts together look like another temperature. */
static void a_cut_is_no_temperature(void **state) {
    static const fault faults[] = {LIKELIEST, LIKELIER};
    (void)state;
    for (int k = 0; k < 2; k++) {
        server *s = start(faults[k]);
        const ls_finding *named;
        ls_error err;
        run_alone(s);
        s->foreign.constant = true;
        s->foreign.floor = 0.5;
        assert_ok(ls_probe_decide_solo(&s->inquiry, &err), err);
        named = ls_foreign_named(&s->foreign);
        assert_true(named != NULL && named->cause == LS_CAUSE_CUT);
        stop(s);
    }
}

static void a_rule_of_all_names_what_requests_alone_show(void **state) {
    static const struct {
        fault fault;
        double floor;
        ls_cause cause;
    } rows[] = {{NEGATED, 4.0, LS_CAUSE_SCALED},
                {RAISED, 0.1, LS_CAUSE_NONE},
                {MEANS_SO_FAR, 0.5, LS_CAUSE_NONE},
                {MOST_SO_FAR, 0.5, LS_CAUSE_NONE}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        const ls_finding *named;
        ls_error err;
        run_alone(s);
        s->foreign.constant = true;
        s->foreign.floor = rows[k].floor;
        assert_ok(ls_probe_decide(&s->inquiry, &err), err);
        named = ls_foreign_named(&s->foreign);
        assert_int_equal(named != NULL ? named->cause : LS_CAUSE_NONE, rows[k].cause);
        stop(s);
    }
}

/* Of a text alone and in front of more, which are forwards of other sizes. */
static void the_type_of_prefill_is_told(void **state) {
    static const fault faults[] = {FINE, COARSE, SOUND};
    (void)state;
    for (int k = 0; k < 3; k++) {
        server *s = start(faults[k]);
        bool fine;
        ls_error err;
        assert_ok(ls_probe_prefill_is_fine(&s->inquiry, &fine, &err), err);
        assert_int_equal(fine, k == 0); /* equal bits say nothing */
        stop(s);
    }
}

/* A hit may choose another kernel, which moves all values by no more than bf16 does. In float32 that is none, and
 * neither is it of a lever that is no cache. */
static void a_kernel_that_a_hit_chooses_is_no_fault(void **state) {
    static const struct {
        fault fault;
        bool fine;
        ls_look look;
    } rows[] = {{HIT_KERNEL, false, LS_LOOK_CLEAN}, {HIT_KERNEL, true, LS_LOOK_OFF}, {SOUND, true, LS_LOOK_CLEAN}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        ls_error err;
        s->foreign.fine = rows[k].fine;
        assert_ok(ls_foreign_run_experiment(&s->inquiry, LS_STACK_CACHED_SHARED, &err), err);
        assert_int_equal(s->foreign.seen[LS_STACK_CACHED_SHARED].look, rows[k].look);
        stop(s);
    }
    assert_false(ls_probe_is_tail(&(ls_foreign){.is_server = true, .deepest = 4.0}, 90, 100, 0.03));
}

/* Where first tokens are of float32 and equal in all copies, what decode makes is no order of sums. */
static void noise_of_every_step_is_told(void **state) {
    static const struct {
        fault fault;
        double first;
        ls_cause cause;
    } rows[] = {{STEP_NOISE, 1e-6, LS_CAUSE_NOT_REPEATABLE},
                {STEP_NOISE, 1e-2, LS_CAUSE_NONE},
                {STAYS, 1e-6, LS_CAUSE_NONE}, /* first tokens move as well */
                {LATER_OFF, 1e-6, LS_CAUSE_NONE},
                {SOUND, 1e-6, LS_CAUSE_NONE}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        bool found = false;
        ls_error err;
        s->foreign.paths[LS_PATH_PREFILL] = (ls_path_floor){.n = 40, .most = rows[k].first};
        assert_ok(ls_probe_decide_turns(&s->inquiry, &found, &err), err);
        check_cause(s, found, rows[k].cause);
        stop(s);
    }
}

/* What dies away with each token was handed to decode, and what draws alone show is what they leave: neither is named.
 */
static void what_is_not_the_same_at_every_step_is_no_arithmetic(void **state) {
    static const struct {
        fault fault;
        ls_cause cause;
        bool named;
    } rows[] = {{FADES, LS_CAUSE_STATE_INTO_DECODE, false},
                {DRAWN_OFF, LS_CAUSE_UNLISTED, false},
                {LATER_OFF, LS_CAUSE_DECODE_ARITHMETIC, true}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(rows[k].fault);
        ls_error err;
        run_alone(s);
        s->foreign.constant = true;
        s->foreign.floor = 0.1;
        s->foreign.limit = 0.02;
        assert_ok(ls_probe_decide_solo(&s->inquiry, &err), err);
        assert_int_equal(s->foreign.found.n, 1);
        assert_int_equal(s->foreign.found.of[0].cause, rows[k].cause);
        assert_int_equal(ls_foreign_named(&s->foreign) != NULL, rows[k].named);
        stop(s);
    }
}

/* Of a model that is sure of most tokens rounding takes some first ones far. They are prefill's floor where decoded
 * ones are many times farther in the middle, and not else. */
static void prefill_has_a_floor_of_its_own(void **state) {
    static const struct {
        double decoded; /* in the middle */
        ls_cause cause;
    } rows[] = {{0.8, LS_CAUSE_DECODE_ARITHMETIC}, {0.2, LS_CAUSE_WEIGHTS}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(SURE_LATER_OFF);
        ls_error err;
        run_alone(s);
        s->foreign.constant = true;
        s->foreign.floor = 0.1;
        s->foreign.limit = 0.02;
        s->foreign.paths[LS_PATH_PREFILL].most = 0.1;
        s->foreign.paths[LS_PATH_DECODE].median = rows[k].decoded;
        assert_ok(ls_probe_decide_solo(&s->inquiry, &err), err);
        assert_int_equal(s->foreign.found.n, 1);
        assert_int_equal(s->foreign.found.of[0].cause, rows[k].cause);
        stop(s);
    }
}

/* A floor is of values. Where the first seed draws none, the next one is taken. */
static void a_seed_without_values_is_followed_by_the_next(void **state) {
    server *s = start(NO_VALUES);
    ls_error err;
    (void)state;
    assert_ok(ls_probe_inquire(&s->inquiry, &err), err);
    assert_true(s->foreign.floor_tokens > 0);
    assert_false(s->sweep.different);
    assert_null(ls_foreign_named(&s->foreign));
    stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rule_names_its_fault_and_no_other),
                                       cmocka_unit_test(a_cache_of_long_blocks_is_tried),
                                       cmocka_unit_test(a_cache_that_leaves_out_bits_is_tried),
                                       cmocka_unit_test(a_cache_that_moves_pieces_is_tried),
                                       cmocka_unit_test(a_state_that_a_stop_clears_is_told),
                                       cmocka_unit_test(a_line_is_measured_without_seeds),
                                       cmocka_unit_test(an_inquiry_names_what_is_wrong_and_nothing_else),
                                       cmocka_unit_test(a_kernel_that_rows_choose_is_no_fault),
                                       cmocka_unit_test(a_row_that_others_join_is_no_number_of_rows),
                                       cmocka_unit_test(a_scale_of_the_longest_is_no_hit),
                                       cmocka_unit_test(unlike_lengths_are_told_among_rows_that_are_off),
                                       cmocka_unit_test(a_length_is_told_from_a_first_rounding),
                                       cmocka_unit_test(a_rule_is_as_sure_as_its_evidence),
                                       cmocka_unit_test(two_tokens_in_front_are_found_on_either_side),
                                       cmocka_unit_test(a_cut_is_no_temperature),
                                       cmocka_unit_test(a_rule_of_all_names_what_requests_alone_show),
                                       cmocka_unit_test(the_type_of_prefill_is_told),
                                       cmocka_unit_test(what_is_not_the_same_at_every_step_is_no_arithmetic),
                                       cmocka_unit_test(prefill_has_a_floor_of_its_own),
                                       cmocka_unit_test(noise_of_every_step_is_told),
                                       cmocka_unit_test(a_kernel_that_a_hit_chooses_is_no_fault),
                                       cmocka_unit_test(a_seed_without_values_is_followed_by_the_next)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
