/* Attention of one query per row, and its gradients. README.md has the formulas. */

#include "kernels/native.h"

enum { AT_ONCE = 4 }; /* rows per task */

struct look {
    const float *q, *k, *v;       /* N D, N S D, N S R */
    const unsigned char *hidden;  /* N S, or none */
    float *context, *weight;      /* N R, N S */
    const float *by;              /* backward: N R */
    float *by_energy, *by_q;      /* backward: N S, N D */
    int64_t N, S, D, R;
    int64_t q_row, k_row, k_key, v_row, v_key, by_row; /* strides of rows and keys */
    double scale;
};

/* x·y in four partial sums, added in a fixed order. */
HEED_INLINE float dot(const float *x, const float *y, int64_t count)
{
    vec part[4] = {fill(0), fill(0), fill(0), fill(0)};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int j = 0; j < 4; j++)
            part[j] += load(x + i + j * LANES) * load(y + i + j * LANES);
    for (; i < count; i += LANES) {
        int some = count - i < LANES ? (int)(count - i) : LANES;
        part[0] += load_some(x + i, some, 0) * load_some(y + i, some, 0);
    }
    return sum_of((part[0] + part[1]) + (part[2] + part[3]));
}

/* Σ_s a_s x_s for `vectors` vectors; the last has `count` numbers. */
HEED_INLINE void gather_at(const int vectors, const float *a, const float *x, int64_t key, int64_t S,
                           float *to, int count)
{
    vec sum[4] = {fill(0), fill(0), fill(0), fill(0)};
    for (int64_t s = 0; s < S; s++)
        for (int j = 0; j < vectors; j++)
            sum[j] += a[s] * load_some(x + s * key + j * LANES, count, 0);
    for (int j = 0; j < vectors; j++)
        store_some(to + j * LANES, sum[j], count);
}

HEED_INLINE void gather(const float *a, const float *x, int64_t key, int64_t S, float *to, int64_t R)
{
    int64_t r = 0;
    for (; r + 4 * LANES <= R; r += 4 * LANES)
        gather_at(4, a, x + r, key, S, to + r, LANES);
    for (; r + LANES <= R; r += LANES)
        gather_at(1, a, x + r, key, S, to + r, LANES);
    if (r < R)
        gather_at(1, a, x + r, key, S, to + r, (int)(R - r));
}

/* Softmax in place; all zero if every key is hidden. */
HEED_INLINE void align(float *a, int64_t S)
{
    float most = -INFINITY, total = 0;
    for (int64_t s = 0; s < S; s++)
        most = most != most || a[s] <= most ? most : a[s]; /* NaN stays NaN */
    if (most == -INFINITY) {
        memset(a, 0, sizeof(float) * (size_t)S);
        return;
    }
    for (int64_t s = 0; s < S; s += LANES) {
        int some = S - s < LANES ? (int)(S - s) : LANES;
        vec e = exp_of(load_some(a + s, some, -INFINITY) - most);
        total += sum_of(e);
        store_some(a + s, e, some);
    }
    for (int64_t s = 0; s < S; s++)
        a[s] /= total;
}

static void ahead(const struct look *c, int64_t n)
{
    const float *q = c->q + n * c->q_row, *k = c->k + n * c->k_row, *v = c->v + n * c->v_row;
    float *a = c->weight + n * c->S;
    for (int64_t s = 0; s < c->S; s++) {
        int unseen = c->hidden && c->hidden[n * c->S + s];
        a[s] = unseen ? -INFINITY : (float)c->scale * dot(q, k + s * c->k_key, c->D);
    }
    align(a, c->S);
    for (int64_t s = 0; c->hidden && s < c->S; s++)
        a[s] = c->hidden[n * c->S + s] ? 0 : a[s]; /* zero even in a row with NaN */
    gather(a, v, c->v_key, c->S, c->context + n * c->R, c->R);
}

static void back(const struct look *c, int64_t n)
{
    const float *by = c->by + n * c->by_row, *k = c->k + n * c->k_row, *v = c->v + n * c->v_row;
    const float *a = c->weight + n * c->S;
    float *d = c->by_energy + n * c->S, mean = 0;
    for (int64_t s = 0; s < c->S; s++) {
        d[s] = dot(by, v + s * c->v_key, c->R);
        mean += a[s] * d[s];
    }
    for (int64_t s = 0; s < c->S; s++)
        d[s] = (float)c->scale * a[s] * (d[s] - mean);
    gather(d, k, c->k_key, c->S, c->by_q + n * c->D, c->D);
}

static void ahead_some(void *context, struct heed_turns *turns)
{
    const struct look *c = context;
    for (int64_t task; heed_turn(turns, &task);)
        for (int64_t n = task * AT_ONCE; n < (task + 1) * AT_ONCE && n < c->N; n++)
            ahead(c, n);
}

static void back_some(void *context, struct heed_turns *turns)
{
    const struct look *c = context;
    for (int64_t task; heed_turn(turns, &task);)
        for (int64_t n = task * AT_ONCE; n < (task + 1) * AT_ONCE && n < c->N; n++)
            back(c, n);
}

HEED_EXPORT int HEED(heed_look_ahead)(const struct look *c, int threads)
{
    heed_share(ahead_some, (void *)c, (c->N + AT_ONCE - 1) / AT_ONCE, threads);
    return 0;
}

HEED_EXPORT int HEED(heed_look_back)(const struct look *c, int threads)
{
    heed_share(back_some, (void *)c, (c->N + AT_ONCE - 1) / AT_ONCE, threads);
    return 0;
}
