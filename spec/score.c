/* The law, read once more: log-probabilities of given tokens, one token after the other, in plain C.
 *
 * This program was written from NUMERICS.md and the comments on top of the headers that it names, and shares no line
 * with what it is compared with. It is slow and has no options; each part stands below the name of the law that it
 * follows. Read it beside them: numbers.h, products.h, then attention.h, mamba.h, delta.h, experts.h and logprob.h.
 * model.h and read.h say what a checkpoint's files mean.
 *
 *   cc -std=c11 -O2 -ffp-contract=off -o score spec/score.c -lm
 *   score DIRECTORY f32|bf16 exact|mma16 < sequences
 *
 * DIRECTORY holds config.json and safetensors of a model that the engine reads. A line of the input is the tokens of a
 * sequence, as numbers; a line of the output has the bits of the log-probability of each but the first, in hexadecimal.
 *
 * A model that the engine would refuse is no subject here: it is expected to be sound. */
#include "attention.h"
#include "delta.h"
#include "experts.h"
#include "logprob.h"
#include "mamba.h"

static void add(float *h, const float *y) {
    for (int64_t c = 0; c < m.hidden; c++) h[c] = h[c] + y[c] * m.added_factor;
}

/* The input of a sublayer, or of the head. */
static void normalise(float *x, const float *h, const float *w) {
    rmsnorm(x, h, w, m.hidden, m.eps);
    round_all(x, m.hidden);
}

/* False where the layer is a feed-forward alone. */
static bool mix(float *y, layer *l, const float *x, int64_t position) {
    if (l->attention.q.w != NULL)
        attention(y, &l->attention, x, position);
    else if (l->mamba.in.w != NULL)
        mamba(y, &l->mamba, x);
    else if (l->mamba2.in.w != NULL)
        mamba2(y, &l->mamba2, x);
    else if (l->delta.out.w != NULL)
        delta(y, &l->delta, x);
    else
        return false;
    return true;
}

/* Logits of what follows the token at this position. */
static void step(float *logits, int64_t token, int64_t position) {
    pool_used = 0;
    float *h = scratch(m.hidden), *x = scratch(m.hidden), *y = scratch(m.hidden);
    for (int64_t c = 0; c < m.hidden; c++) h[c] = m.embed[token * m.hidden + c] * m.embed_factor;
    for (layer *l = m.layers; l < m.layers + m.n_layers; l++) {
        normalise(x, h, l->input_norm);
        if (mix(y, l, x, position)) add(h, y);
        if (l->ffn.n_experts == 0) continue;
        normalise(x, h, l->ffn_norm);
        feed(y, &l->ffn, x);
        add(h, y);
    }
    normalise(x, h, m.final_norm);
    product(logits, x, &m.head, NULL);
    for (int64_t i = 0; i < m.vocab; i++) logits[i] = logits[i] * m.logit_factor;
}

int main(int argc, char **argv) {
    static char line[1 << 20];
    float *logits;
    if (argc != 4) fail("usage", "score DIRECTORY f32|bf16 exact|mma16 < sequences");
    is_bf16 = strcmp(argv[2], "bf16") == 0;
    is_mma16 = strcmp(argv[3], "mma16") == 0;
    read_model(argv[1]);
    logits = floats((size_t)m.vocab);
    while (fgets(line, sizeof line, stdin) != NULL) {
        int64_t position = 0;
        begin_sequence();
        for (char *at = line, *after;; at = after) {
            const int64_t token = strtoll(at, &after, 10);
            if (after == at) break;
            if (token < 0 || token >= m.vocab || position == POSITIONS) fail("no such token or position", at);
            if (position > 0)
                printf("%s%08x", position > 1 ? " " : "", (unsigned)bits(logprob(logits, m.vocab, token)));
            step(logits, token, position++);
        }
        printf("\n");
    }
    return 0;
}
