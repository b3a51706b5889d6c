/* Additive attention on the CPU: softmax_s(sum_d w_d tanh(q_td + k_sd)) v_s, and its gradients.

Both ways of writing tanh(q + k) as a fraction need nothing but numbers of each row by itself, so
that one product of the rows is left per (t, s, d); and fractions share a division:

    exponential  (x - 1) / (x + 1)              x = e^{2q} e^{2k}
    addition     (a + c) / (1 + a c)            a = tanh q, c = tanh k
    together     n1/d1 + n2/d2 = (n1 d2 + n2 d1) / (d1 d2)

Addition keeps the digits of small numbers, where x - 1 would lose them; it is for small keys in
float32. The exponential is for all others as long as the products of the denominators stay in
range; beyond, tanh is computed element by element. Each key decides for itself (and for the largest
query of a few rows), so that what nobody may see changes no bit of what is seen.

Vectors run along D. A prepared key is D numbers (e^{2k} or tanh k) filled up with zeros to a
multiple of 16, then its largest magnitude and its form; README.md has the derivation. */

#include "kernels/native.h"

enum { ROWS = 8, KEYS = 32, PAD = 16 };
enum form { EXACT, EXPONENTIAL, ADDITION };
enum kind { UNSEEN, TANH, BY_TWO, BY_FOUR, SMALL }; /* how a key is compared with some rows */

struct places { /* strides in elements; along the last axis there are no gaps */
    int64_t b, h, t;
};

/* What is asked. Python packs it: 64-bit numbers in this order, pointers to nothing as zero. Where
there are no values (R is zero), the energies are the answer, and the gradients are theirs. */
struct call {
    const float *q, *k, *v, *w;
    int64_t B, H, G, T, S, D, R;
    struct places at_q, at_k, at_v;
    int64_t at_w;
    const float *prepared; /* keys, or else room for them */
    float *keys;
    int64_t fine; /* float32 inputs, whose last digits count */
    const int64_t *seed;
    double dropout;
    const int32_t *stop; /* who may look where, as plan.py has it */
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
    float *part_dk, *part_dv, *part_dw;   /* of each chunk of queries, to be added in order */
    int64_t chunks;
    int64_t more;                         /* the parts have what earlier queries brought */
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

/* The largest magnitude of a row; NaN where there is one. As whole numbers, NaN is the largest. */
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

/* A row filled up with zeros, changed number by number; what fills up stays zero. */
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

/* Where the addition form is the better one: its denominator 1 + a c must not come near zero. */
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

struct block { /* some queries of a head, and the keys that any of them sees */
    int64_t b, h, g, t, rows, from, to;
    int64_t low[ROWS], high[ROWS];
};

/* The keys that places alone leave to a query: from `low` to before `high`. */
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
            low = high = 0; /* out of sight; so is NaN */
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

/* Which of the keys from `s` on each row sees, and which any of them does. */
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

struct queries { /* rows of a block, each filled up to a multiple of PAD */
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

/* The form of the queries that a kind compares with, made when it is first needed. */
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

/* A product of denominators stays below 2^110, which leaves room for w. */
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

/* tanh(q + k) = n / d of the numbers that a kind compares. */
HEED_INLINE void fraction(enum kind kind, vec a, vec c, vec *n, vec *d)
{
    *d = a * c + 1.0f;
    *n = kind == SMALL ? a + c : *d - 2.0f;
}

/* w·tanh of one query with J keys whose kind is the same. */
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

/* The same with keys as they are, D of them. */
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

/* The next such keys from j on, of n, each `width` apart. */
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

/* The energies of a block's rows with the n keys from s on, where any row sees them. */
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

static float gain_centre(const struct call *c, const struct block *at, int64_t i)
{
    return c->gain[at->b * c->at_gain.b + at->h * c->at_gain.h + (at->t + i) * c->at_gain.t];
}

/* exp(-(s - centre)² / 2 sigma²) of n keys from s on. */
static void gains(float centre, double sigma, int64_t s, int64_t n, float *gain)
{
    vec by = fill((float)(1 / sigma)), lane;
    for (int i = 0; i < LANES; i++)
        lane[i] = (float)i;
    for (int64_t j = 0; j < n; j += LANES) {
        vec away = (lane + (float)(s + j) - centre) * by;
        store(gain + j, exp_of(-0.5f * away * away));
    }
}

static uint32_t stirred(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    x ^= x >> 15;
    return x;
}

/* What a weight is multiplied with: zero, or 1 / (1 - dropout). A number by seed, row and key
decides, so that forward and backward, and any cut of the work, agree. */
static void kept(const struct call *c, int64_t row, int64_t s, int64_t n, float *keep)
{
    uint64_t seed = (uint64_t)*c->seed, place = (uint64_t)row;
    uint32_t one = stirred((uint32_t)seed ^ stirred((uint32_t)place + 0x9e3779b9u));
    uint32_t two = stirred((uint32_t)(seed >> 32) + stirred((uint32_t)(place >> 32) + one));
    uint32_t limit = (uint32_t)(c->dropout * 0x1p24 + 0.5);
    float scale = c->dropout < 1 ? (float)(1 / (1 - c->dropout)) : 0;
    for (int64_t j = 0; j < n; j++) {
        uint32_t drawn = stirred(stirred((uint32_t)(s + j) * 0x9e3779b9u + one) + two);
        keep[j] = drawn >> 8 >= limit ? scale : 0;
    }
}

static int64_t row_number(const struct call *c, const struct block *at, int64_t i)
{
    return (at->b * c->H + at->h) * c->T + at->t + i;
}

struct room { /* what one worker needs */
    float *memory;
    struct queries q;
    float *energy, *other, *third;
    float *values; /* rows of weights side by side, or rows of the gradient */
    float *dq, *dw, *dw_block;
    int64_t *index;
    uint8_t *sees, *any;
    int64_t width; /* of the rows of energies */
};

/* Room for n keys at a time, with rows that vectors may overrun. */
static int make_room(const struct call *c, int64_t n, struct room *room)
{
    int64_t D = padded(c->D), R = padded(c->R);
    room->width = padded(n) + PAD;
    int64_t count = ROWS * D * 4 + 3 * D + 3 * ROWS * room->width + ROWS * at_least(R, n) + PAD;
    size_t bytes = (size_t)count * sizeof(float) + (size_t)n * sizeof(int64_t);
    bytes += (size_t)((ROWS + 1) * room->width);
    float *x = room->memory = malloc(bytes + 64);
    if (!x)
        return 0;
    x = (float *)(((uintptr_t)x + 63) / 64 * 64);
    room->index = (int64_t *)x;
    x += 2 * n;
    room->q.plain = x;
    room->q.exponential = x += ROWS * D;
    room->q.addition = x += ROWS * D;
    room->dq = x += ROWS * D;
    room->q.w = x += ROWS * D;
    room->dw = x += D;
    room->dw_block = x += D;
    room->energy = x += D;
    room->other = x += ROWS * room->width;
    room->third = x += ROWS * room->width;
    room->values = x += ROWS * room->width;
    room->sees = (uint8_t *)(x + ROWS * at_least(R, n));
    room->any = room->sees + ROWS * room->width;
    return 1;
}

/* e^{energy - most} of a row where it is seen, zero elsewhere; the sum of them and the largest. */
static float exponentials(float *energy, const uint8_t *ok, int64_t n, float *most)
{
    for (int64_t j = 0; j < n; j++)
        energy[j] = ok[j] ? energy[j] : -INFINITY;
    for (int64_t j = n; j < n + LANES; j++)
        energy[j] = -INFINITY;
    vec top = fill(-INFINITY), odd = {0};
    for (int64_t j = 0; j < n; j += LANES) {
        vec e = load(energy + j);
        top = larger(top, e);
        odd += pick(e == e, fill(0), e); /* a comparison loses NaN: a row that has one is no blind row */
    }
    *most = max_of(top) + sum_of(odd);
    vec sum = {0};
    for (int64_t j = 0; j < n; j += LANES) {
        vec p = exp_of(load(energy + j) - *most);
        sum += p;
        store(energy + j, p);
    }
    return sum_of(sum);
}

/* Weights of one row, not yet divided by their sum: gain and dropout. */
static void weigh(const struct call *c, const struct block *at, int64_t i, int64_t n, float *p,
                  float *factor)
{
    if (c->gain) {
        gains(gain_centre(c, at, i), c->sigma, at->from, n, factor);
        for (int64_t j = 0; j < n; j++)
            p[j] = p[j] == 0 ? 0 : p[j] * factor[j];
    }
    if (c->dropout > 0) {
        kept(c, row_number(c, at, i), at->from, n, factor);
        for (int64_t j = 0; j < n; j++)
            p[j] *= factor[j];
    }
}

/* sum_j p_j v_j of `rows` rows for U vectors of values; p has the rows side by side. */
HEED_INLINE void gather(int rows, int U, const float *p, const float *v, const int64_t *index,
                        int64_t n, const float *scale, float *to, int64_t stride)
{
    vec sum[8] = {{0}};
    for (int64_t j = 0; j < n; j++)
        for (int u = 0; u < U; u++) {
            vec x = load(v + index[j] + u * LANES);
            for (int i = 0; i < rows; i++)
                sum[i * U + u] += p[j * rows + i] * x;
        }
    for (int i = 0; i < rows; i++)
        for (int u = 0; u < U; u++)
            store(to + i * stride + u * LANES, sum[i * U + u] * scale[i]);
}

/* The same for fewer values than a vector holds. */
static void gather_few(int64_t rows, const float *p, const float *v, const int64_t *index, int64_t n,
                       const float *scale, float *to, int64_t stride, int64_t R)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t r = 0; r < R; r++) {
            float sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += p[j * rows + i] * v[index[j] + r];
            to[i * stride + r] = sum * scale[i];
        }
}

#define GATHER(rows, U)                                                                            \
    for (; r + (U) * LANES <= R; r += (U) * LANES)                                                 \
    gather(rows, U, p, v + r, index, n, scale, to + r, stride)

/* The last vector may overlap the one before it. */
static void gather_all(int64_t rows, const float *p, const float *v, const int64_t *index, int64_t n,
                       const float *scale, float *to, int64_t stride, int64_t R)
{
    int64_t r = 0;
    if (R < LANES) {
        gather_few(rows, p, v, index, n, scale, to, stride, R);
    } else if (rows == 1) {
        GATHER(1, 8);
        GATHER(1, 1);
        r = R - LANES;
        GATHER(1, 1);
    } else {
        GATHER(4, 2);
        GATHER(4, 1);
        r = R - LANES;
        GATHER(4, 1);
    }
}

/* The contexts of a block from its weights: four rows at a time, and only keys that have weight. */
static void read_values(const struct job *job, const struct block *at, struct room *room,
                        const float *scale)
{
    const struct call *c = job->call;
    int64_t n = at->to - at->from, together = at->rows == 1 ? 1 : 4;
    const float *v = c->v + at->b * c->at_v.b + at->g * c->at_v.h + at->from * c->at_v.t;
    float *context = job->forward->context + row_number(c, at, 0) * c->R;
    float aside[4 * 64];
    for (int64_t i = 0; i < at->rows; i += together) {
        int64_t rows = at_most(together, at->rows - i), count = 0;
        float by[4] = {0};
        memcpy(by, scale + i, sizeof(float) * (size_t)rows);
        for (int64_t j = 0; j < n; j++) {
            int some = 0;
            float *p = room->values + count * together;
            for (int64_t x = 0; x < together; x++) {
                p[x] = x < rows ? room->energy[(i + x) * room->width + j] : 0;
                some |= p[x] != 0;
            }
            room->index[count] = j * c->at_v.t;
            count += some;
        }
        if (rows == together) {
            gather_all(together, room->values, v, room->index, count, by, context + i * c->R, c->R,
                       c->R);
            continue;
        }
        for (int64_t r = 0; r < c->R; r += 64) { /* rows that are not there must not be written */
            int64_t R = at_most(64, c->R - r);
            gather_all(together, room->values, v + r, room->index, count, by, aside, 64, R);
            for (int64_t x = 0; x < rows; x++)
                memcpy(context + (i + x) * c->R + r, aside + x * 64, sizeof(float) * (size_t)R);
        }
    }
}

static struct block block_of(const struct call *c, int64_t task)
{
    int64_t blocks = (c->T + ROWS - 1) / ROWS, head = task / blocks;
    struct block at = {.b = head / c->H, .h = head % c->H, .t = task % blocks * ROWS};
    at.g = at.h / (c->H / c->G);
    at.rows = at_most(ROWS, c->T - at.t);
    look(c, &at);
    return at;
}

static void attend(const struct job *job, struct block *at, struct room *room)
{
    const struct call *c = job->call;
    int64_t n = at->to - at->from;
    float scale[ROWS];
    read_queries(c, at, &room->q);
    see(c, at, at->from, n, room->sees, room->width, room->any);
    energies(job, at, &room->q, at->from, n, room->any, room->energy, room->width);
    if (!c->v) {
        for (int64_t i = 0; i < at->rows; i++)
            memcpy(job->forward->context + row_number(c, at, i) * n, room->energy + i * room->width,
                   sizeof(float) * (size_t)n);
        return;
    }
    for (int64_t i = 0; i < at->rows; i++) {
        float most, *p = room->energy + i * room->width;
        float sum = exponentials(p, room->sees + i * room->width, n, &most);
        int blind = most == -INFINITY;
        if (blind)
            memset(p, 0, sizeof(float) * (size_t)n);
        else
            weigh(c, at, i, n, p, room->other);
        scale[i] = blind ? 0 : 1 / sum;
        job->forward->log_sum[row_number(c, at, i)] = blind ? -INFINITY : most + logf(sum);
    }
    read_values(job, at, room, scale);
}

static void attend_some(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    struct room room = {0};
    if (!make_room(job->call, job->call->S, &room)) {
        job->failed = 1;
        return;
    }
    for (int64_t task; heed_turn(turns, &task);) {
        struct block at = block_of(job->call, task);
        attend(job, &at, &room);
    }
    free(room.memory);
}

HEED_EXPORT int HEED(heed_additive_forward)(const struct forward *forward, int threads)
{
    const struct call *c = &forward->call;
    struct job job = {.call = c, .forward = forward};
    job.keys = prepared_keys(c, &job, threads);
    int64_t tasks = c->B * c->H * ((c->T + ROWS - 1) / ROWS);
    heed_share(attend_some, &job, tasks, workers(c, c->T, threads));
    return job.failed;
}

/* The gradients of n keys of one kind and all rows, for U vectors along D. With y = tanh(q + k) and
the gradient g of an energy: dw gains g y; dq and dk gain w g (1 - y²), the w of which dq gets last.
What is compared, a and k, is where the vectors start; exact ones are `some` numbers long. */
HEED_INLINE void descend(enum kind kind, int U, const float *a, const float *w, const float *k,
                         int64_t width, int64_t D, int64_t rows, int64_t n, const float *g,
                         int64_t room, int some, float *dq, float *dk, float *dw)
{
    vec along[2] = {{0}};
    for (int64_t j = 0; j < n; j++) {
        vec key[2], sum[2] = {{0}};
        for (int u = 0; u < U; u++)
            key[u] = some == LANES ? load(k + j * width + u * LANES)
                                   : load_some(k + j * width, some, 0);
        for (int64_t i = 0; i < rows; i++) {
            vec y[2], d[2], here = fill(g[i * room + j]);
            for (int u = 0; u < U; u++) {
                vec query = load(a + i * D + u * LANES);
                if (kind == TANH)
                    y[u] = tanh_of(query + key[u]);
                else
                    fraction(kind, query, key[u], &y[u], &d[u]);
            }
            if (kind != TANH && U == 2) { /* one division for both */
                vec both = 1.0f / (d[0] * d[1]);
                y[0] *= both * d[1];
                y[1] *= both * d[0];
            } else if (kind != TANH) {
                y[0] /= d[0];
            }
            for (int u = 0; u < U; u++) {
                vec z = here * y[u];
                along[u] += z;
                z = here - z * y[u];
                sum[u] += z;
                store(dq + i * D + u * LANES, load(dq + i * D + u * LANES) + z);
            }
        }
        for (int u = 0; u < U; u++) {
            float *to = dk + j * D + u * LANES;
            store(to, load(to) + sum[u] * load(w + u * LANES));
        }
    }
    for (int u = 0; u < U; u++)
        store(dw + u * LANES, load(dw + u * LANES) + along[u]);
}

#define DESCEND(kind, U, some)                                                                     \
    descend(kind, U, a + i, w + i, k + i, width, D, rows, n, g, room, some, dq + i, dk + i, dw + i)

HEED_INLINE void descend_by(enum kind kind, const float *a, const float *w, const float *k,
                            int64_t width, int64_t D, int64_t rows, int64_t n, const float *g,
                            int64_t room, float *dq, float *dk, float *dw)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= D; i += 2 * LANES)
        DESCEND(kind, 2, LANES);
    for (; i < D; i += LANES)
        DESCEND(kind, 1, LANES);
}

/* The same with keys as they are, whose rows end after `exact` numbers. */
static void descend_exactly(const float *a, const float *w, const float *k, int64_t width, int64_t D,
                            int64_t exact, int64_t rows, int64_t n, const float *g, int64_t room,
                            float *dq, float *dk, float *dw)
{
    int64_t i = 0;
    for (; i + LANES <= exact; i += LANES)
        DESCEND(TANH, 1, LANES);
    if (i < exact)
        DESCEND(TANH, 1, (int)(exact - i));
}

/* From the gradients g of the energies of n keys from s on to dq, dk (rows of D) and dw. */
static void descend_all(const struct job *job, const struct block *at, struct room *room, int64_t s,
                        int64_t n, float *dk)
{
    const struct call *c = job->call;
    struct queries *q = &room->q;
    int64_t D = padded(c->D), width = key_width(c), wide = room->width, rows = at->rows;
    const uint8_t *any = room->any + s - at->from;
    const float *keys = job->keys + ((at->b * c->G + at->g) * c->S + s) * width;
    for (int64_t j = 0; j < n;) {
        struct span run = next_span(q, keys, width, any, j, n);
        const float *k = keys + j * width, *x = room->other + s - at->from + j;
        float *to = dk + j * D;
        int64_t length = run.length;
        j += length;
        if (run.kind == UNSEEN)
            continue;
        const float *a = as_compared(q, run.kind, rows, D);
        if (run.kind == TANH)
            descend_exactly(a, q->w, key_at(c, at, s + run.start), c->at_k.t, D, c->D, rows, length,
                            x, wide, room->dq, to, room->dw_block);
        else if (run.kind == SMALL)
            descend_by(SMALL, a, q->w, k, width, D, rows, length, x, wide, room->dq, to,
                       room->dw_block);
        else if (run.kind == BY_TWO)
            descend_by(BY_TWO, a, q->w, k, width, D, rows, length, x, wide, room->dq, to,
                       room->dw_block);
        else
            descend_by(BY_FOUR, a, q->w, k, width, D, rows, length, x, wide, room->dq, to,
                       room->dw_block);
    }
}

/* x·y of numbers that are filled up to R with zeros in x; y ends after `exact`. */
HEED_INLINE float dot_of(const float *x, const float *y, int64_t exact)
{
    vec sum[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= exact; i += 4 * LANES)
        for (int u = 0; u < 4; u++)
            sum[u] += load(x + i + u * LANES) * load(y + i + u * LANES);
    for (; i + LANES <= exact; i += LANES)
        sum[0] += load(x + i) * load(y + i);
    if (i < exact)
        sum[0] += load(x + i) * load_some(y + i, (int)(exact - i), 0);
    return sum_of((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The gradients of the weights of four rows for J keys: grad·v. */
HEED_INLINE void project_by(int J, const float *grad, int64_t R, const float *v, int64_t stride,
                            int64_t exact, float *to, int64_t room)
{
    vec sum[2][4] = {{{0}}};
    int64_t i = 0;
    for (; i + LANES <= exact; i += LANES)
        for (int j = 0; j < J; j++)
            for (int u = 0; u < 4; u++)
                sum[j][u] += load(grad + u * R + i) * load(v + j * stride + i);
    if (i < exact)
        for (int j = 0; j < J; j++) {
            vec rest = load_some(v + j * stride + i, (int)(exact - i), 0);
            for (int u = 0; u < 4; u++)
                sum[j][u] += load(grad + u * R + i) * rest;
        }
    for (int j = 0; j < J; j++)
        for (int u = 0; u < 4; u++)
            to[u * room + j] = sum_of(sum[j][u]);
}

/* The same for all rows and n keys, where any row sees them. */
static void project(const float *grad, int64_t R, const float *v, int64_t stride, int64_t exact,
                    int64_t rows, int64_t n, const uint8_t *any, float *to, int64_t room)
{
    for (int64_t j = 0; j < n; j++) {
        const float *here = v + j * stride;
        int64_t row = 0;
        if (!any[j])
            continue;
        int two = j + 1 < n && any[j + 1];
        for (; row + 4 <= rows; row += 4) {
            if (two)
                project_by(2, grad + row * R, R, here, stride, exact, to + row * room + j, room);
            else
                project_by(1, grad + row * R, R, here, stride, exact, to + row * room + j, room);
        }
        for (; row < rows; row++)
            for (int x = 0; x <= two; x++)
                to[row * room + j + x] = dot_of(grad + row * R, here + x * stride, exact);
        j += two;
    }
}

/* dv of one key gains the gradient of every row by its weight: U vectors of it. */
HEED_INLINE void spread_by(int U, const float *grad, int64_t R, const float *p, int64_t room,
                           int64_t rows, float *dv)
{
    vec sum[4];
    for (int u = 0; u < U; u++)
        sum[u] = load(dv + u * LANES);
    for (int64_t row = 0; row < rows; row++) {
        vec weight = fill(p[row * room]);
        for (int u = 0; u < U; u++)
            sum[u] += weight * load(grad + row * R + u * LANES);
    }
    for (int u = 0; u < U; u++)
        store(dv + u * LANES, sum[u]);
}

static void spread(const float *grad, int64_t R, const float *p, int64_t room, int64_t rows,
                   float *dv)
{
    int64_t i = 0;
    for (; i + 4 * LANES <= R; i += 4 * LANES)
        spread_by(4, grad + i, R, p, room, rows, dv + i);
    for (; i < R; i += LANES)
        spread_by(1, grad + i, R, p, room, rows, dv + i);
}

/* One row: from energies and the gradients of the weights as they were used (in `slopes`) to those
weights (in `p`) and the gradients of the energies (in `slopes`); the gradient of the gain's centre.
The weights are normalised afresh, so that they and the gradients sum to what they should: where all
of a row's tanh are alike, dq is the difference. */
static double slopes_of(const struct call *c, const struct block *at, int64_t i, struct room *room,
                        float *p, float *slopes)
{
    int64_t n = at->to - at->from;
    const uint8_t *ok = room->sees + i * room->width;
    float most, *factor = room->third, *keep = room->third + room->width;
    float scale = 1 / exponentials(p, ok, n, &most);
    if (most == -INFINITY) {
        memset(p, 0, sizeof(float) * (size_t)n);
        memset(slopes, 0, sizeof(float) * (size_t)n);
        return 0;
    }
    for (int64_t j = 0; j < n; j++)
        factor[j] = 1;
    if (c->gain)
        gains(gain_centre(c, at, i), c->sigma, at->from, n, factor);
    if (c->dropout > 0) {
        kept(c, row_number(c, at, i), at->from, n, keep);
        for (int64_t j = 0; j < n; j++)
            factor[j] *= keep[j];
    }
    double delta = 0, centre = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] *= scale;
        slopes[j] = ok[j] ? factor[j] * slopes[j] : 0;
        delta += p[j] * slopes[j];
    }
    if (c->gain)
        for (int64_t j = 0; j < n; j++)
            centre += p[j] * slopes[j] * ((float)(at->from + j) - gain_centre(c, at, i));
    for (int64_t j = 0; j < n; j++) {
        slopes[j] = ok[j] ? p[j] * (slopes[j] - (float)delta) : 0;
        p[j] = ok[j] ? p[j] * factor[j] : 0;
    }
    return centre / (c->sigma * c->sigma);
}

static const float *grad_of(const struct job *job, const struct block *at, int64_t i)
{
    const struct places *by = &job->backward->at_grad;
    return job->backward->grad + at->b * by->b + at->h * by->h + (at->t + i) * by->t;
}

/* Gradients of a block's rows, filled up with zeros; a row that saw nothing answers for nothing. */
static void read_slopes(const struct job *job, const struct block *at, struct room *room)
{
    const struct call *c = job->call;
    const struct backward *back = job->backward;
    int64_t R = padded(c->R), D = padded(c->D);
    for (int64_t i = 0; i < at->rows; i++) {
        changed(AS_IT_IS, grad_of(job, at, i), room->values + i * R, c->R, R);
        if (back->log_sum[row_number(c, at, i)] == -INFINITY) {
            memset(room->q.plain + i * D, 0, sizeof(float) * (size_t)D);
            memset(room->values + i * R, 0, sizeof(float) * (size_t)R);
        }
    }
}

static void write_slopes(const struct job *job, const struct block *at, struct room *room)
{
    const struct call *c = job->call;
    int64_t D = padded(c->D);
    for (int64_t i = 0; i < at->rows; i++) {
        float *dq = job->backward->dq + row_number(c, at, i) * c->D;
        for (int64_t d = 0; d < c->D; d++)
            dq[d] = room->q.w[d] * room->dq[i * D + d];
    }
    for (int64_t d = 0; d < D; d++)
        room->dw[d] += room->dw_block[d];
}

static void clear(float *rows, int64_t from, int64_t to, int64_t width)
{
    if (from < to)
        memset(rows + from * width, 0, sizeof(float) * (size_t)((to - from) * width));
}

/* The gradients of a block's energies, from those of its contexts (in `other`); its weights (in
`energy`). */
static void find_slopes(const struct job *job, const struct block *at, struct room *room)
{
    const struct call *c = job->call;
    int64_t R = padded(c->R), width = room->width, all = at->to - at->from;
    const float *v = c->v + at->b * c->at_v.b + at->g * c->at_v.h + at->from * c->at_v.t;
    read_slopes(job, at, room);
    energies(job, at, &room->q, at->from, all, room->any, room->energy, width);
    project(room->values, R, v, c->at_v.t, c->R, at->rows, all, room->any, room->other, width);
    for (int64_t i = 0; i < at->rows; i++) {
        double centre = slopes_of(c, at, i, room, room->energy + i * width, room->other + i * width);
        if (c->gain)
            job->backward->dgain[row_number(c, at, i)] = (float)centre;
    }
}

/* All the gradients of a block of queries, added to dk and dv of its group's keys; or where these
are fresh, they become that: what is not seen is zero. */
static void retrace(const struct job *job, struct block *at, struct room *room, int fresh, float *dk,
                    float *dv)
{
    const struct call *c = job->call;
    int64_t D = padded(c->D), R = padded(c->R), width = room->width, all = at->to - at->from;
    read_queries(c, at, &room->q);
    memset(room->dq, 0, sizeof(float) * (size_t)(at->rows * D));
    memset(room->dw_block, 0, sizeof(float) * (size_t)D);
    see(c, at, at->from, all, room->sees, width, room->any);
    if (c->v)
        find_slopes(job, at, room);
    else
        for (int64_t i = 0; i < at->rows; i++)
            memcpy(room->other + i * width, grad_of(job, at, i), sizeof(float) * (size_t)all);
    if (fresh) {
        clear(dk, 0, at->from, D);
        clear(dv, 0, at->from, R);
        clear(dk, at->to, c->S, D);
        clear(dv, at->to, c->S, R);
    }
    for (int64_t s = at->from; s < at->to; s += KEYS) {
        int64_t n = at_most(KEYS, at->to - s);
        if (fresh) {
            clear(dk, s, s + n, D);
            clear(dv, s, s + n, R);
        }
        for (int64_t j = s - at->from; j < s - at->from + n; j++)
            if (c->v && room->any[j])
                spread(room->values, R, room->energy + j, width, at->rows, dv + (at->from + j) * R);
        descend_all(job, at, room, s, n, dk + s * D);
    }
    write_slopes(job, at, room);
}

/* A task is a chunk of the queries of all the heads that share keys. */
static void retrace_some(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct call *c = job->call;
    const struct backward *back = job->backward;
    int64_t D = padded(c->D), R = padded(c->R), heads = c->H / c->G;
    int64_t blocks = (c->T + ROWS - 1) / ROWS, each = (blocks + back->chunks - 1) / back->chunks;
    struct room room = {0};
    if (!make_room(c, c->S, &room)) {
        job->failed = 1;
        return;
    }
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t row = task % (c->B * c->G), chunk = task / (c->B * c->G);
        int64_t b = row / c->G, g = row % c->G;
        float *dk = back->part_dk + task * c->S * D, *dv = back->part_dv + task * c->S * R;
        int fresh = !back->more;
        for (int64_t head = g * heads; head < (g + 1) * heads; head++) {
            memset(room.dw, 0, sizeof(float) * (size_t)D);
            for (int64_t x = chunk * each; x < at_most((chunk + 1) * each, blocks); x++) {
                struct block at = block_of(c, (b * c->H + head) * blocks + x);
                retrace(job, &at, &room, fresh, dk, dv);
                fresh = 0;
            }
            float *dw = back->part_dw + ((chunk * c->B + b) * c->H + head) * c->D;
            memcpy(dw, room.dw, sizeof(float) * (size_t)c->D);
        }
        if (fresh) { /* a chunk without queries */
            clear(dk, 0, c->S, D);
            clear(dv, 0, c->S, R);
        }
    }
    free(room.memory);
}

/* The chunks in order; rows lose what filled them up. */
static void add_chunks(const float *part, int64_t chunks, int64_t each, int64_t rows, int64_t room,
                       int64_t width, float *to)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const float *from = part + chunk * each + row * room;
            for (int64_t i = 0; i < width; i++)
                to[row * width + i] = chunk ? to[row * width + i] + from[i] : from[i];
        }
}

static void add_some(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct call *c = job->call;
    const struct backward *back = job->backward;
    int64_t D = padded(c->D), R = padded(c->R), groups = c->B * c->G;
    for (int64_t row; heed_turn(turns, &row);) {
        if (back->part_dk != back->dk)
            add_chunks(back->part_dk + row * c->S * D, back->chunks, groups * c->S * D, c->S, D, c->D,
                       back->dk + row * c->S * c->D);
        if (back->part_dv != back->dv)
            add_chunks(back->part_dv + row * c->S * R, back->chunks, groups * c->S * R, c->S, R, c->R,
                       back->dv + row * c->S * c->R);
    }
}

static void add_scores(const struct backward *back)
{
    const struct call *c = &back->call;
    int64_t n = c->H * c->D;
    for (int64_t i = 0; i < n; i += PAD) {
        double sum[PAD] = {0};
        int64_t some = at_most(PAD, n - i);
        for (int64_t row = 0; row < back->chunks * c->B; row++)
            for (int64_t x = 0; x < some; x++)
                sum[x] += back->part_dw[row * n + i + x];
        for (int64_t x = 0; x < some; x++)
            back->dw[i + x] = (float)sum[x];
    }
}

HEED_EXPORT int HEED(heed_additive_backward)(const struct backward *back, int threads)
{
    const struct call *c = &back->call;
    struct job job = {.call = c, .backward = back};
    job.keys = prepared_keys(c, &job, threads);
    threads = workers(c, c->T, threads);
    heed_share(retrace_some, &job, c->B * c->G * back->chunks, threads);
    if (job.failed)
        return 1;
    if (back->part_dk != back->dk || back->part_dv != back->dv)
        heed_share(add_some, &job, c->B * c->G, threads);
    add_scores(back);
    return 0;
}

struct preparing {
    const float *k;
    float *keys;
    int64_t B, G, S, D;
    struct places at_k;
    int64_t fine;
};

HEED_EXPORT int HEED(heed_additive_prepare)(const struct preparing *p, int threads)
{
    struct call c = {.k = p->k, .keys = p->keys, .at_k = p->at_k, .fine = p->fine};
    c.B = p->B, c.H = c.G = p->G, c.S = p->S, c.D = p->D;
    struct job job = {.call = &c};
    prepared_keys(&c, &job, threads);
    return 0;
}

struct keeping {
    float *factor;
    int64_t rows, S;
    const int64_t *seed;
    double dropout;
};

/* What dropout does to the weights of every row.    B H T S */
HEED_EXPORT int HEED(heed_additive_kept)(const struct keeping *k, int threads)
{
    struct call c = {.seed = k->seed, .dropout = k->dropout};
    (void)threads;
    for (int64_t row = 0; row < k->rows; row++)
        kept(&c, row, 0, k->S, k->factor + row * k->S);
    return 0;
}
