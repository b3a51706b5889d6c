/* The arguments of a call; keys, prepared once; and which keys each query sees. */

#ifndef HEED_ADDITIVE_CALL_H
#define HEED_ADDITIVE_CALL_H

#include "kernels/native.h"

enum { ROWS = 8, KEYS = 32, PAD = 16 };
enum form { EXACT, EXPONENTIAL, ADDITION };
enum kind { UNSEEN, TANH, BY_TWO, BY_FOUR, SMALL }; /* how a key is compared with some rows */

struct places { /* strides in elements; the last axis is contiguous */
    int64_t b, h, t;
};

/* The arguments. Python packs them: 64-bit numbers in this order. A null pointer is an argument that
was not given; empty arrays have an address. */
struct call {
    const float *q, *k, *v, *w;
    int64_t B, H, G, T, S, D, R;
    int64_t bare; /* there are no values: energies and their gradients alone, and R is 0 */
    struct places at_q, at_k, at_v;
    int64_t at_w;
    const float *prepared; /* prepared keys; null: prepare them into `keys` */
    float *keys;
    int64_t fine; /* inputs are float32, so small keys need the addition form */
    const int64_t *seed;
    double dropout;
    const int32_t *stop; /* visibility, as plan.py lays it out */
    int64_t at_stop;
    const uint8_t *exists;
    int64_t at_exists;
    const uint8_t *table;
    int64_t at_table[4];
    const float *centre;
    struct places at_centre;
    const float *gain; /* the centres of the Gaussian */
    struct places at_gain;
    int64_t first, causal, half, radius;
    double sigma;
};

struct forward {
    struct call call;
    float *context, *log_sum; /* B H T R, or the energies, B H T S; B H T */
};

struct backward {
    struct call call;
    const float *grad, *log_sum; /* of the context, or of the energies */
    struct places at_grad;
    float *dq, *dk, *dv, *dw, *dgain;     /* dgain: of the Gaussian's centres */
    float *part_dk, *part_dv, *part_dw;   /* one for each chunk of queries, summed in order */
    int64_t chunks;
    int64_t more;                         /* the parts already hold gradients of earlier queries */
};

struct job {
    const struct call *call;
    const float *keys; /* prepared */
    const struct forward *forward;
    const struct backward *backward;
    atomic_int failed;
};

static int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }
static int64_t key_width(const struct call *c) { return padded(c->D) + PAD; }
static int64_t at_least(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t at_most(int64_t x, int64_t y) { return x < y ? x : y; }

/* The largest magnitude of a row, or NaN if it has one: as an integer, NaN is the largest. */
static float largest(const float *x, int64_t n)
{
    ivec most = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        ivec m = (ivec)magnitude(load(x + i));
        most = ((m > most) & m) | (~(m > most) & most);
    }
    if (i < n) {
        ivec m = (ivec)magnitude(load_some(x + i, (int)(n - i), 0));
        most = ((m > most) & m) | (~(m > most) & most);
    }
    int32_t best = 0;
    for (int lane = 0; lane < LANES; lane++)
        best = most[lane] > best ? most[lane] : best;
    float result;
    memcpy(&result, &best, sizeof result);
    return result;
}

static float mean_square(const float *x, int64_t n)
{
    vec sum = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum += load(x + i) * load(x + i);
    if (i < n) {
        vec rest = load_some(x + i, (int)(n - i), 0);
        sum += rest * rest;
    }
    return sum_of(sum) / (float)n;
}

enum change { AS_IT_IS, EXPONENTIALS, TANHS };

/* A row transformed element by element and padded with zeros. */
HEED_INLINE void changed_by(enum change change, const float *x, float *to, int64_t n, int64_t room)
{
    int64_t i = 0;
    for (; i < n; i += LANES) {
        int some = n - i < LANES ? (int)(n - i) : LANES;
        vec y = some == LANES ? load(x + i) : load_some(x + i, some, 0);
        if (change == EXPONENTIALS)
            y = exp_within(y + y);
        if (change == TANHS)
            y = tanh_of(y);
        if (some == LANES) {
            store(to + i, y);
        } else {
            store(to + i, fill(0));
            store_some(to + i, y, some);
        }
    }
    for (; i < room; i++)
        to[i] = 0;
}

static void changed(enum change change, const float *x, float *to, int64_t n, int64_t room)
{
    if (change == EXPONENTIALS)
        changed_by(EXPONENTIALS, x, to, n, room);
    else if (change == TANHS)
        changed_by(TANHS, x, to, n, room);
    else
        changed_by(AS_IT_IS, x, to, n, room);
}

/* The addition form is more accurate here: its denominator 1 + a c must stay away from zero. */
static int is_small(float most, const float *k, int64_t D)
{
    return most <= 2.0f && mean_square(k, D) <= 0.25f;
}

static void prepare_key(const struct call *c, const float *k, float *to)
{
    float most = largest(k, c->D);
    enum form form = EXACT;
    if (most <= 38.0f)
        form = c->fine && is_small(most, k, c->D) ? ADDITION : EXPONENTIAL;
    if (form == EXACT)
        memset(to, 0, sizeof(float) * (size_t)padded(c->D));
    else
        changed(form == ADDITION ? TANHS : EXPONENTIALS, k, to, c->D, padded(c->D));
    float *facts = to + padded(c->D);
    memset(facts, 0, sizeof(float) * PAD);
    facts[0] = most;
    facts[1] = (float)form;
}

static void prepare_some(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct call *c = job->call;
    int64_t blocks = (c->S + KEYS - 1) / KEYS;
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t row = task / blocks, b = row / c->G, g = row % c->G;
        int64_t s = task % blocks * KEYS, end = at_most(s + KEYS, c->S);
        if (c->stop)
            end = at_most(end, c->stop[b * c->at_stop]);
        for (; s < end; s++) {
            if (c->exists && !c->exists[b * c->at_exists + s])
                continue;
            const float *k = c->k + b * c->at_k.b + g * c->at_k.h + s * c->at_k.t;
            prepare_key(c, k, c->keys + (row * c->S + s) * key_width(c));
        }
    }
}

/* A thread is worth waking for about twenty microseconds of work. */
static int workers(const struct call *c, int64_t queries, int threads)
{
    return c->B * c->H * queries * c->S * c->D < 200000 ? 1 : threads;
}

static const float *prepared_keys(const struct call *c, struct job *job, int threads)
{
    if (c->prepared)
        return c->prepared;
    int64_t tasks = c->B * c->G * ((c->S + KEYS - 1) / KEYS);
    heed_share(prepare_some, job, tasks, workers(c, 2, threads));
    return c->keys;
}

struct block { /* some queries of a head, and the range of keys that any of them sees */
    int64_t b, h, g, t, rows, from, to;
    int64_t low[ROWS], high[ROWS];
};

/* The keys that a query may see by position alone: from `low` to before `high`. */
static void reach(const struct call *c, struct block *at, int64_t i)
{
    int64_t t = at->t + i, low = 0, high = c->S, place = c->first + t;
    if (c->stop)
        high = at_most(high, c->stop[at->b * c->at_stop]);
    if (c->causal)
        high = at_most(high, place + 1);
    if (c->half >= 0) {
        low = at_least(low, place - c->half);
        high = at_most(high, place + c->half + 1);
    }
    if (c->centre) {
        float p = c->centre[at->b * c->at_centre.b + at->h * c->at_centre.h + t * c->at_centre.t];
        float radius = (float)c->radius;
        if (!(p - radius < (float)c->S && p + radius >= 0)) {
            low = high = 0; /* out of range, or NaN */
        } else {
            int64_t first = (int64_t)(p - radius) - 2, last = (int64_t)(p + radius) + 2;
            low = at_least(low, first);
            high = at_most(high, last + 1);
            while (low < high && !(fabsf((float)low - p) <= radius))
                low++;
            while (low < high && !(fabsf((float)(high - 1) - p) <= radius))
                high--;
        }
    }
    at->low[i] = low;
    at->high[i] = high > low ? high : low;
}

static void look(const struct call *c, struct block *at)
{
    at->from = INT64_MAX;
    at->to = 0;
    for (int64_t i = 0; i < at->rows; i++) {
        reach(c, at, i);
        if (at->low[i] < at->high[i]) {
            at->from = at_most(at->from, at->low[i]);
            at->to = at_least(at->to, at->high[i]);
        }
    }
    at->from = at_most(at->from, at->to);
}

/* Which of the n keys from `s` on each row sees, and which of them any row sees. */
static void see(const struct call *c, const struct block *at, int64_t s, int64_t n, uint8_t *sees,
                int64_t room, uint8_t *any)
{
    memset(any, 0, (size_t)n);
    for (int64_t i = 0; i < at->rows; i++) {
        uint8_t *ok = sees + i * room;
        int64_t low = at_least(at->low[i] - s, 0), high = at_most(at->high[i] - s, n);
        memset(ok, 0, (size_t)n);
        if (low >= high)
            continue;
        memset(ok + low, 1, (size_t)(high - low));
        if (c->exists) {
            const uint8_t *exists = c->exists + at->b * c->at_exists + s;
            for (int64_t j = low; j < high; j++)
                ok[j] &= exists[j];
        }
        if (c->table) {
            const int64_t *by = c->at_table;
            const uint8_t *table = c->table + at->b * by[0] + at->h * by[1] + (at->t + i) * by[2];
            for (int64_t j = low; j < high; j++)
                ok[j] &= table[(s + j) * by[3]];
        }
        for (int64_t j = low; j < high; j++)
            any[j] |= ok[j];
    }
}

#endif
