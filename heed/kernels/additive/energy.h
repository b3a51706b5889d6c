/* The energies of a few queries with keys; each key is compared in the form that suits it. */

#ifndef HEED_ADDITIVE_ENERGY_H
#define HEED_ADDITIVE_ENERGY_H

#include "kernels/additive/call.h"

struct queries { /* rows of a block, each padded to a multiple of PAD */
    float *plain, *exponential, *addition, *w;
    float most, most_w;
    int has_exponential, has_addition;
};

static void read_queries(const struct call *c, const struct block *at, struct queries *q)
{
    int64_t D = padded(c->D);
    q->most = 0;
    for (int64_t i = 0; i < at->rows; i++) {
        const float *row = c->q + at->b * c->at_q.b + at->h * c->at_q.h + (at->t + i) * c->at_q.t;
        changed(AS_IT_IS, row, q->plain + i * D, c->D, D);
        float most = largest(row, c->D);
        q->most = most <= q->most ? q->most : most; /* NaN wins */
    }
    changed(AS_IT_IS, c->w + at->h * c->at_w, q->w, c->D, D);
    q->most_w = largest(q->w, c->D);
    q->has_exponential = q->has_addition = 0;
}

/* The queries in the form that a kind compares, computed when first needed. */
static const float *as_compared(struct queries *q, enum kind kind, int64_t rows, int64_t D)
{
    if (kind == TANH)
        return q->plain;
    if (kind == SMALL) {
        if (!q->has_addition++)
            changed(TANHS, q->plain, q->addition, rows * D, rows * D);
        return q->addition;
    }
    if (!q->has_exponential++)
        changed(EXPONENTIALS, q->plain, q->exponential, rows * D, rows * D);
    return q->exponential;
}

/* The product of the denominators stays below 2^110, which leaves room for w. */
static enum kind kind_of(const struct queries *q, const float *facts)
{
    float reach = q->most + facts[0];
    enum form form = (enum form)facts[1];
    if (form == ADDITION)
        return SMALL;
    if (form == EXACT || !(q->most_w <= 1e4f))
        return TANH;
    return reach <= 9.5f ? BY_FOUR : reach <= 19.0f ? BY_TWO : TANH;
}

/* The numerator and denominator of tanh(q + k), from operands in the form of `kind`. */
HEED_INLINE void fraction(enum kind kind, vec a, vec c, vec *n, vec *d)
{
    *d = a * c + 1.0f;
    *n = kind == SMALL ? a + c : *d - 2.0f;
}

/* w·tanh(q + k) of one query with J keys of one kind. */
HEED_INLINE void compare(enum kind kind, int J, const float *a, const float *w, const float *k,
                         int64_t width, int64_t D, float *energy)
{
    vec sum[4] = {{0}};
    int64_t i = 0;
    for (; kind != TANH && i + 4 * LANES <= D; i += 4 * LANES)
        for (int j = 0; j < J; j++) {
            vec n[4], d[4];
            for (int u = 0; u < 4; u++) {
                int64_t at = i + u * LANES;
                fraction(kind, load(a + at), load(k + j * width + at), &n[u], &d[u]);
                n[u] *= load(w + at);
            }
            vec n0 = n[0] * d[1] + n[1] * d[0], d0 = d[0] * d[1];
            vec n1 = n[2] * d[3] + n[3] * d[2], d1 = d[2] * d[3];
            if (kind == BY_TWO)
                sum[j] += n0 / d0 + n1 / d1;
            else
                sum[j] += (n0 * d1 + n1 * d0) / (d0 * d1);
        }
    for (; i < D; i += LANES)
        for (int j = 0; j < J; j++) {
            vec n, d;
            fraction(kind, load(a + i), load(k + j * width + i), &n, &d);
            sum[j] += load(w + i) * n / d;
        }
    for (int j = 0; j < J; j++)
        energy[j] = sum_of(sum[j]);
}

/* The same with an unprepared key of D numbers. */
static void compare_exactly(const float *q, const float *w, const float *k, int64_t D, float *energy)
{
    vec sum = {0};
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES)
        sum += load(w + i) * tanh_of(load(q + i) + load(k + i));
    if (i < D)
        sum += load(w + i) * tanh_of(load(q + i) + load_some(k + i, (int)(D - i), 0));
    *energy = sum_of(sum);
}

HEED_INLINE void compare_run(enum kind kind, const float *a, const float *w, const float *k,
                             int64_t width, int64_t D, int64_t rows, int64_t run, float *energy,
                             int64_t room)
{
    int64_t j = 0;
    for (; j + 4 <= run; j += 4)
        for (int64_t i = 0; i < rows; i++)
            compare(kind, 4, a + i * D, w, k + j * width, width, D, energy + i * room + j);
    for (; j < run; j++)
        for (int64_t i = 0; i < rows; i++)
            compare(kind, 1, a + i * D, w, k + j * width, width, D, energy + i * room + j);
}

struct span { /* consecutive keys of one kind */
    enum kind kind;
    int64_t start, length;
};

/* The next such run from key j on, among n keys that are `width` apart. */
static struct span next_span(const struct queries *q, const float *keys, int64_t width,
                             const uint8_t *any, int64_t j, int64_t n)
{
    struct span span = {UNSEEN, j, 0};
    for (; j < n; j++) {
        const float *facts = keys + j * width + width - PAD;
        enum kind kind = any[j] ? kind_of(q, facts) : UNSEEN;
        if (span.length && kind != span.kind)
            break;
        span.kind = kind;
        span.length++;
    }
    return span;
}

static const float *key_at(const struct call *c, const struct block *at, int64_t s)
{
    return c->k + at->b * c->at_k.b + at->g * c->at_k.h + s * c->at_k.t;
}

/* The energies of a block's rows with the n keys from s on; keys that no row sees are skipped. */
static void energies(const struct job *job, const struct block *at, struct queries *q, int64_t s,
                     int64_t n, const uint8_t *any, float *energy, int64_t room)
{
    const struct call *c = job->call;
    int64_t D = padded(c->D), width = key_width(c);
    const float *keys = job->keys + ((at->b * c->G + at->g) * c->S + s) * width;
    for (int64_t j = 0; j < n;) {
        struct span run = next_span(q, keys, width, any, j, n);
        const float *k = keys + j * width;
        float *to = energy + j;
        if (run.kind == TANH) {
            for (int64_t x = 0; x < run.length; x++)
                for (int64_t i = 0; i < at->rows; i++)
                    compare_exactly(q->plain + i * D, q->w, key_at(c, at, s + j + x), c->D,
                                    to + i * room + x);
        } else if (run.kind != UNSEEN) {
            const float *a = as_compared(q, run.kind, at->rows, D);
            if (run.kind == SMALL)
                compare_run(SMALL, a, q->w, k, width, D, at->rows, run.length, to, room);
            else if (run.kind == BY_TWO)
                compare_run(BY_TWO, a, q->w, k, width, D, at->rows, run.length, to, room);
            else
                compare_run(BY_FOUR, a, q->w, k, width, D, at->rows, run.length, to, room);
        }
        j += run.length;
    }
}

#endif
