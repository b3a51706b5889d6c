/* Cross entropy of rows of logits; the gradient overwrites them. README.md says why.

A task is ROWS rows. Each sums its share of the bias's gradient in a row of its own, so that results
do not depend on which worker took which task. */

#include "kernels/native.h"

enum { ROWS = 16 };

struct call {
    float *logits;        /* n V: without the bias; afterwards their gradient, if wanted */
    const float *bias;    /* V, or null */
    const int64_t *right; /* n */
    float *nll;           /* n: -log p of the right symbol */
    float *even;          /* n: the mean of -log p over all symbols, or null */
    float *d_bias;        /* a row of V for each task; null: no gradient is wanted */
    int64_t n, V;
    double smoothing;
};

/* Add the bias in place; returns the largest logit, and their sum. */
HEED_INLINE float lift(float *x, const float *bias, int64_t V, float *sum)
{
    vec most = fill(-INFINITY), total = fill(0);
    int64_t v = 0;
    for (; v + LANES <= V; v += LANES) {
        vec y = load(x + v);
        if (bias) {
            y += load(bias + v);
            store(x + v, y);
        }
        most = larger(most, y);
        total += y;
    }
    float largest = max_of(most), rest = sum_of(total);
    for (; v < V; v++) {
        x[v] += bias ? bias[v] : 0;
        largest = largest < x[v] ? x[v] : largest;
        rest += x[v];
    }
    *sum = rest;
    return largest;
}

/* e^(x - most) in place; returns their sum. */
HEED_INLINE float exponentials(float *x, float most, int64_t V)
{
    vec part[4] = {fill(0), fill(0), fill(0), fill(0)};
    int64_t v = 0;
    for (; v + 4 * LANES <= V; v += 4 * LANES)
        for (int i = 0; i < 4; i++) {
            vec e = exp_of(load(x + v + i * LANES) - most);
            part[i] += e;
            store(x + v + i * LANES, e);
        }
    for (; v < V; v += LANES) {
        int count = V - v < LANES ? (int)(V - v) : LANES;
        vec e = exp_of(load_some(x + v, count, -INFINITY) - most);
        part[0] += e; /* lanes beyond the end add nothing */
        store_some(x + v, e, count);
    }
    return sum_of((part[0] + part[1]) + (part[2] + part[3]));
}

/* p - less in place, also added to the bias's gradient. */
HEED_INLINE void lower(float *x, float *d_bias, float factor, float less, int64_t V)
{
    int64_t v = 0;
    for (; v + LANES <= V; v += LANES) {
        vec p = load(x + v) * factor - less;
        store(x + v, p);
        store(d_bias + v, load(d_bias + v) + p);
    }
    for (; v < V; v++) {
        x[v] = x[v] * factor - less;
        d_bias[v] += x[v];
    }
}

static void work(void *context, struct heed_turns *turns)
{
    const struct call *c = context;
    const int64_t V = c->V;
    const float kept = (float)(1 - c->smoothing), less = (float)(c->smoothing / (double)V);
    for (int64_t task; heed_turn(turns, &task);) {
        float *d_bias = c->d_bias ? c->d_bias + task * V : NULL;
        if (d_bias)
            memset(d_bias, 0, sizeof(float) * (size_t)V);
        int64_t stop = (task + 1) * ROWS < c->n ? (task + 1) * ROWS : c->n;
        for (int64_t i = task * ROWS; i < stop; i++) {
            float *x = c->logits + i * V, sum;
            float most = lift(x, c->bias, V, &sum), right = x[c->right[i]];
            float total = exponentials(x, most, V), norm = most + logf(total);
            c->nll[i] = norm - right;
            if (c->even)
                c->even[i] = norm - sum / (float)V;
            if (!d_bias)
                continue;
            lower(x, d_bias, 1 / total, less, V);
            x[c->right[i]] -= kept;
            d_bias[c->right[i]] -= kept;
        }
    }
}

HEED_EXPORT int HEED(heed_surprise)(const struct call *call, int threads)
{
    heed_share(work, (void *)call, (call->n + ROWS - 1) / ROWS, threads);
    return 0;
}
