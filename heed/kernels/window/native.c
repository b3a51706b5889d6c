/* Attention within windows on the CPU, four queries at a time.

The keys that at least one of four queries sees are listed once; products then run over that list.
So each key and value is loaded once for four queries, and hidden ones are never read. The four are
neighbours in the order of their windows. Their numbers are interleaved key by key, so that a vector
holds those of all four for as many keys as fit. Gradients of keys and values are summed by one
worker per group of heads, in a fixed order: results do not depend on the number of threads. */

#include "kernels/native.h"

enum { QUERIES = 4, TASK = 64 };

struct arguments {
    int64_t q, k, v, out, lse;           /* float */
    int64_t grad, dq, dk, dv, dpeak;     /* float, for backward only */
    int64_t order;                       /* int64 or null */
    int64_t centre, peak;                /* float or null */
    int64_t stop, opens;                 /* int32 or null */
    int64_t exists;                      /* bytes or null */
    int64_t logs;                        /* float or null */
    int64_t B, H, G, T, S, N, D, R;
    int64_t q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, g_b, g_h, g_t;
    int64_t c_b, c_h, p_b, p_h, e_b, s_b, o_b;
    int64_t first, half, radius, block, causal, seed, threshold;
    double scale, sigma, boost;
};

/* What four queries see, and scratch for what is computed from it. */
struct scene {
    const struct arguments *a;
    int64_t b, h, task_row; /* task_row: of this head's first query, among all B·H·T */
    int64_t t[QUERIES];
    int count;              /* how many of the four queries exist */
    int64_t n;              /* columns */
    int64_t *column;        /* rows of k and v */
    float *less;            /* added to energies: -inf where the key is hidden  n QUERIES */
    float *place;           /* of each column, for each query  n QUERIES */
    float *energy, *pull;   /* n QUERIES */
    float *query, *gradient, *sum; /* QUERIES D or R */
};

typedef float quad __attribute__((vector_size(16)));
typedef float quad_loose __attribute__((vector_size(16), aligned(4), may_alias));
enum { KEYS = LANES / QUERIES }; /* keys per vector */

/* Four numbers, repeated for each key of a vector. */
HEED_INLINE vec tiled(const float *four)
{
    float all[LANES];
    for (int i = 0; i < LANES; i++)
        all[i] = four[i % QUERIES];
    return load(all);
}

/* The quarters of a vector (halves, or the whole) added up to four lanes. */
HEED_INLINE quad narrowed(vec x)
{
#if HEED_LANES == 4
    return x;
#elif HEED_LANES == 8
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    quad a = __builtin_shufflevector(x, x, 0, 1, 2, 3), b = __builtin_shufflevector(x, x, 4, 5, 6, 7);
    quad c = __builtin_shufflevector(x, x, 8, 9, 10, 11);
    return (a + b) + (c + __builtin_shufflevector(x, x, 12, 13, 14, 15));
#endif
}

/* The sums of four vectors, side by side. */
HEED_INLINE void four_sums(const vec x[QUERIES], float *to)
{
    quad a = narrowed(x[0]), b = narrowed(x[1]), c = narrowed(x[2]), d = narrowed(x[3]);
    quad ab = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
    quad cd = __builtin_shufflevector(c, d, 0, 4, 2, 6) + __builtin_shufflevector(c, d, 1, 5, 3, 7);
    *(quad_loose *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
                        __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

static float *at(int64_t pointer) { return (float *)(intptr_t)pointer; }

static uint32_t mixed(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

/* Whether dropout keeps a weight (row among all B·H·T): the same hash as in the Triton kernel. */
static int kept(const struct arguments *a, int64_t row, int64_t column)
{
    uint32_t of_row = mixed((uint32_t)row ^ (uint32_t)a->seed);
    of_row = mixed(of_row + (uint32_t)((uint64_t)a->seed >> 32));
    uint32_t drawn = mixed(of_row + (uint32_t)column * 0x9E3779B9u);
    return (int64_t)(drawn >> 1) >= a->threshold;
}

static int64_t larger_of(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t smaller_of(int64_t x, int64_t y) { return x < y ? x : y; }

/* The keys of all blocks that the window around a position touches. */
static void touched(const struct arguments *a, int64_t place, int64_t *low, int64_t *high)
{
    *low = larger_of(place - a->half, 0) / a->block * a->block;
    *high = place + a->half < 0 ? 0 : ((place + a->half) / a->block + 1) * a->block;
}

/* The range of keys that a query sees one by one. */
static void interval(const struct scene *x, int64_t t, int64_t *low, int64_t *high)
{
    const struct arguments *a = x->a;
    int64_t place = a->first + t;
    *low = 0;
    *high = a->S;
    if (a->stop)
        *high = smaller_of(*high, ((const int32_t *)(intptr_t)a->stop)[x->b * a->s_b]);
    if (a->block) {
        int64_t from, to;
        touched(a, place, &from, &to);
        *low = larger_of(*low, from), *high = smaller_of(*high, to);
    } else if (a->half >= 0) {
        *low = larger_of(*low, place - a->half);
        *high = smaller_of(*high, place + a->half + 1);
    }
    if (a->centre) { /* in float32, as the definition: rounding can move an edge by one */
        float centre = at(a->centre)[x->b * a->c_b + x->h * a->c_h + t], wide = (float)a->radius;
        float inside = fminf(fmaxf(centre, -wide - 2), (float)a->S + wide + 2);
        int64_t from = (int64_t)floorf(inside - wide) - 1, to = (int64_t)floorf(inside + wide) + 2;
        while (inside - (float)from > wide)
            from++;
        while ((float)(to - 1) - inside > wide)
            to--;
        *low = larger_of(*low, from), *high = smaller_of(*high, to);
        if (centre != centre)
            *high = *low;
    }
    if (a->causal)
        *high = smaller_of(*high, place + 1);
    if (*high < *low)
        *high = *low;
}

/* Append a column; `bits` says which of the four queries see it. */
HEED_INLINE void list(struct scene *x, int64_t column, int bits, float more)
{
    float *less = x->less + x->n * QUERIES;
    for (int i = 0; i < QUERIES; i++)
        less[i] = bits >> i & 1 ? more : -INFINITY;
    x->column[x->n++] = column;
}

/* List what the queries of a scene see: first single keys, then blocks as one column each. */
static void look(struct scene *x)
{
    const struct arguments *a = x->a;
    int64_t low[QUERIES], high[QUERIES], begin = INT64_MAX, end = 0;
    const uint8_t *exists = (const uint8_t *)(intptr_t)a->exists;
    for (int i = 0; i < x->count; i++) {
        interval(x, x->t[i], &low[i], &high[i]);
        if (low[i] < high[i])
            begin = smaller_of(begin, low[i]), end = larger_of(end, high[i]);
    }
    x->n = 0;
    for (int64_t s = begin; s < end; s++) {
        int bits = 0;
        int64_t next = end;
        for (int i = 0; i < x->count; i++) {
            bits |= (s >= low[i] && s < high[i]) << i;
            if (low[i] > s && low[i] < high[i])
                next = smaller_of(next, low[i]);
        }
        if (!bits) /* a gap between windows: skip it */
            s = next - 1;
        else if (!exists || exists[x->b * a->e_b + s])
            list(x, s, bits, 0);
    }
    const int32_t *opens = (const int32_t *)(intptr_t)a->opens + x->b * a->o_b;
    for (int i = 0; i < x->count && a->N; i++)
        touched(a, a->first + x->t[i], &low[i], &high[i]);
    for (int64_t j = 0; j < a->N; j++) {
        int bits = 0;
        for (int i = 0; i < x->count; i++)
            bits |= ((j * a->block >= high[i] || (j + 1) * a->block <= low[i]) &&
                     opens[j] <= a->first + x->t[i])
                    << i;
        if (bits)
            list(x, a->S + j, bits, at(a->logs)[x->b * a->o_b + j]);
    }
    for (int64_t c = x->n; c % KEYS; c++) /* pad the last vector with keys that no query sees */
        for (int i = 0; i < QUERIES; i++)
            x->less[c * QUERIES + i] = -INFINITY;
    for (int64_t c = 0; (c < x->n || c % KEYS) && a->peak; c++)
        for (int i = 0; i < QUERIES; i++)
            x->place[c * QUERIES + i] = c < x->n ? (float)x->column[c] : 0;
}

/* out[c][i] = rows[i] · table[column[c]] */
static void products(const struct scene *x, const float *rows, const float *table, int64_t stride,
                     int64_t width, float *out)
{
    int64_t whole = width / LANES * LANES;
    int rest = (int)(width - whole);
    for (int64_t c = 0; c < x->n; c += 2) {
        const float *one = table + x->column[c] * stride;
        const float *two = c + 1 < x->n ? table + x->column[c + 1] * stride : one;
        vec first[QUERIES] = {{0}}, second[QUERIES] = {{0}};
        for (int64_t d = 0; d < whole; d += LANES) {
            vec a = load(one + d), b = load(two + d);
            for (int i = 0; i < QUERIES; i++) {
                vec q = load(rows + i * width + d);
                first[i] += q * a, second[i] += q * b;
            }
        }
        if (rest) {
            vec a = load_some(one + whole, rest, 0), b = load_some(two + whole, rest, 0);
            for (int i = 0; i < QUERIES; i++) {
                vec q = load_some(rows + i * width + whole, rest, 0);
                first[i] += q * a, second[i] += q * b;
            }
        }
        four_sums(first, out + c * QUERIES);
        four_sums(second, out + (c + 1) * QUERIES);
    }
}

/* out[i] = Σ_c weight[c][i] table[column[c]] */
static void gathered(const struct scene *x, const float *weight, const float *table, int64_t stride,
                     int64_t width, float *out)
{
    int64_t d = 0;
    for (; d + 2 * LANES <= width; d += 2 * LANES) {
        vec sum[QUERIES][2] = {{{0}}};
        for (int64_t c = 0; c < x->n; c++) {
            const float *row = table + x->column[c] * stride + d;
            vec a = load(row), b = load(row + LANES);
            for (int i = 0; i < QUERIES; i++) {
                float w = weight[c * QUERIES + i];
                sum[i][0] += w * a, sum[i][1] += w * b;
            }
        }
        for (int i = 0; i < QUERIES; i++)
            store(out + i * width + d, sum[i][0]), store(out + i * width + d + LANES, sum[i][1]);
    }
    for (; d < width; d += LANES) {
        int some = (int)smaller_of(LANES, width - d);
        vec sum[QUERIES] = {{0}};
        for (int64_t c = 0; c < x->n; c++) {
            vec a = load_some(table + x->column[c] * stride + d, some, 0);
            for (int i = 0; i < QUERIES; i++)
                sum[i] += weight[c * QUERIES + i] * a;
        }
        for (int i = 0; i < QUERIES; i++)
            store_some(out + i * width + d, sum[i], some);
    }
}

/* table[column[c]] += Σ_i weight[c][i] rows[i] */
static void scattered(const struct scene *x, const float *weight, const float *rows, int64_t width,
                      float *table)
{
    int64_t whole = width / LANES * LANES;
    int rest = (int)(width - whole);
    for (int64_t c = 0; c < x->n; c++) {
        float *row = table + x->column[c] * width, w[QUERIES];
        for (int i = 0; i < QUERIES; i++)
            w[i] = weight[c * QUERIES + i];
        for (int64_t d = 0; d < whole; d += LANES) {
            vec sum = load(row + d);
            for (int i = 0; i < QUERIES; i++)
                sum += w[i] * load(rows + i * width + d);
            store(row + d, sum);
        }
        if (rest) {
            vec sum = load_some(row + whole, rest, 0);
            for (int i = 0; i < QUERIES; i++)
                sum += w[i] * load_some(rows + i * width + whole, rest, 0);
            store_some(row + whole, sum, rest);
        }
    }
}

/* The rows of four queries, contiguous; zeros for queries that do not exist. */
static void take(const struct scene *x, const float *from, int64_t stride, int64_t width, float *to)
{
    for (int i = 0; i < QUERIES; i++)
        if (i < x->count)
            memcpy(to + i * width, from + x->t[i] * stride, sizeof(float) * (size_t)width);
        else
            memset(to + i * width, 0, sizeof(float) * (size_t)width);
}

/* Scaled energies, plus the log-size of blocks; minus infinity where the key is hidden. */
static void energies(struct scene *x, const float *k)
{
    const struct arguments *a = x->a;
    products(x, x->query, k, a->k_s, a->D, x->energy);
    for (int64_t c = 0; c < x->n * QUERIES; c += LANES) {
        vec less = load(x->less + c), e = load(x->energy + c) * (float)a->scale + less;
        store(x->energy + c, pick(less == -INFINITY, less, e));
    }
}

/* For each query, the largest or the sum over all its keys. */
HEED_INLINE void over_keys(vec x, int largest, float *to)
{
    float lane[LANES];
    store(lane, x);
    for (int i = 0; i < QUERIES; i++)
        to[i] = lane[i];
    for (int i = QUERIES; i < LANES; i++)
        to[i % QUERIES] = !largest                    ? to[i % QUERIES] + lane[i]
                          : lane[i] > to[i % QUERIES] ? lane[i]
                                                      : to[i % QUERIES];
}

/* The Gaussian gain on the columns of a vector; `away` is their distance from the peak. */
HEED_INLINE vec gain(const struct scene *x, int64_t c, vec peak, vec *away)
{
    *away = load(x->place + c) - peak;
    vec far = *away / (float)x->a->sigma;
    return exp_of(far * far * -0.5f);
}

/* Dropout: zero some weights, scale the others up. */
static void dropped(const struct scene *x, float *weight)
{
    for (int64_t c = 0; c < x->n; c++)
        for (int i = 0; i < x->count; i++) {
            float *w = weight + c * QUERIES + i;
            *w = kept(x->a, x->task_row + x->t[i], x->column[c]) ? *w * (float)x->a->boost : 0;
        }
}

/* The centres of the four queries' Gaussian gains. */
static vec peaks(const struct scene *x)
{
    const struct arguments *a = x->a;
    float peak[QUERIES] = {0};
    for (int i = 0; i < x->count && a->peak; i++)
        peak[i] = at(a->peak)[x->b * a->p_b + x->h * a->p_h + x->t[i]];
    return tiled(peak);
}

static int begin_scene(struct scene *x, const struct arguments *a)
{
    size_t room = (size_t)(a->S + a->N + 2 * LANES), width = (size_t)larger_of(a->D, a->R);
    size_t numbers = QUERIES * room * sizeof(float), rows = QUERIES * width * sizeof(float);
    x->a = a;
    x->column = heed_room(room * sizeof(int64_t));
    x->less = heed_room(numbers), x->place = heed_room(numbers);
    x->energy = heed_room(numbers), x->pull = heed_room(numbers);
    x->query = heed_room(rows), x->gradient = heed_room(rows), x->sum = heed_room(rows);
    return x->column && x->less && x->place && x->energy && x->pull && x->query && x->gradient &&
           x->sum;
}

static void end_scene(struct scene *x)
{
    free(x->column), free(x->less), free(x->place), free(x->energy), free(x->pull);
    free(x->query), free(x->gradient), free(x->sum);
}

/* Set up the four queries from `rank` on, in the order of their windows. */
static void set_scene(struct scene *x, int64_t b, int64_t h, int64_t rank)
{
    const struct arguments *a = x->a;
    x->b = b, x->h = h, x->task_row = (b * a->H + h) * a->T;
    x->count = (int)smaller_of(QUERIES, a->T - rank);
    const int64_t *order = (const int64_t *)(intptr_t)a->order;
    for (int i = 0; i < x->count; i++)
        x->t[i] = order ? order[b * a->c_b + h * a->c_h + rank + i] : rank + i;
    look(x);
    take(x, at(a->q) + b * a->q_b + h * a->q_h, a->q_t, a->D, x->query);
}

static void attend(struct scene *x)
{
    const struct arguments *a = x->a;
    int64_t group = x->h / (a->H / a->G), n = x->n * QUERIES;
    float top[QUERIES], safe[QUERIES], total[QUERIES];
    vec most = fill(-INFINITY), sum = {0}, peak = peaks(x), away;
    energies(x, at(a->k) + x->b * a->k_b + group * a->k_g);
    for (int64_t c = 0; c < n; c += LANES)
        most = larger(load(x->energy + c), most);
    over_keys(most, 1, top);
    for (int i = 0; i < QUERIES; i++)
        safe[i] = top[i] > -INFINITY ? top[i] : 0;
    most = tiled(safe);
    for (int64_t c = 0; c < n; c += LANES) {
        vec w = exp_of(load(x->energy + c) - most);
        sum += w;
        store(x->energy + c, a->peak ? w * gain(x, c, peak, &away) : w);
    }
    over_keys(sum, 0, total);
    if (a->threshold >= 0)
        dropped(x, x->energy);
    gathered(x, x->energy, at(a->v) + x->b * a->v_b + group * a->v_g, a->v_s, a->R, x->sum);
    for (int i = 0; i < x->count; i++) {
        int64_t row = x->task_row + x->t[i];
        float inverse = total[i] != 0 ? 1 / total[i] : 0;
        at(a->lse)[row] = total[i] != 0 ? top[i] + logf(total[i]) : -INFINITY;
        for (int64_t r = 0; r < a->R; r++)
            at(a->out)[row * a->R + r] = x->sum[i * a->R + r] * inverse;
    }
}

struct job {
    const struct arguments *a;
    _Atomic int failed;
};

static void forward(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct arguments *a = job->a;
    struct scene x = {0};
    if (begin_scene(&x, a)) {
        int64_t pieces = (a->T + TASK - 1) / TASK;
        for (int64_t task; heed_turn(turns, &task);) {
            int64_t head = task / pieces, from = task % pieces * TASK;
            int64_t to = smaller_of(a->T, from + TASK);
            for (int64_t rank = from; rank < to; rank += QUERIES) {
                set_scene(&x, head / a->H, head % a->H, rank);
                attend(&x);
            }
        }
    } else
        job->failed = 1;
    end_scene(&x);
}

HEED_EXPORT int HEED(heed_window_forward)(const struct arguments *a, int threads)
{
    struct job job = {a, 0};
    int64_t tasks = a->B * a->H * ((a->T + TASK - 1) / TASK);
    heed_share(forward, &job, tasks, threads);
    return job.failed;
}

/* The gradients of four queries, and their contributions to those of keys and values. */
static void answer(struct scene *x)
{
    const struct arguments *a = x->a;
    int64_t group = x->h / (a->H / a->G), pair = x->b * a->G + group, n = x->n * QUERIES;
    const float *k = at(a->k) + x->b * a->k_b + group * a->k_g;
    const float *v = at(a->v) + x->b * a->v_b + group * a->v_g;
    float mean[QUERIES], total[QUERIES], norm[QUERIES] = {0}, moved[QUERIES];
    take(x, at(a->grad) + x->b * a->g_b + x->h * a->g_h, a->g_t, a->R, x->gradient);
    for (int i = 0; i < x->count; i++) {
        float sum = at(a->lse)[x->task_row + x->t[i]];
        norm[i] = sum > -INFINITY ? sum : 0;
    }
    energies(x, k);
    products(x, x->gradient, v, a->v_s, a->R, x->pull);
    if (a->threshold >= 0)
        dropped(x, x->pull);
    vec less = tiled(norm), peak = peaks(x), sum = {0}, mass = {0}, move = {0}, away;
    for (int64_t c = 0; c < n; c += LANES) {
        vec w = exp_of(load(x->energy + c) - less);
        vec da = pick(w == 0, fill(0), load(x->pull + c)); /* hidden, or the weight underflowed */
        if (a->peak) {
            da *= gain(x, c, peak, &away);
            move += pick(w == 0, fill(0), w * da * away);
        }
        store(x->energy + c, w);
        store(x->pull + c, da);
        sum += w, mass += w * da;
    }
    over_keys(mass, 0, mean), over_keys(sum, 0, total), over_keys(move, 0, moved);
    for (int i = 0; i < QUERIES; i++) { /* a large log-sum-exp was rounded: sum to one */
        total[i] = total[i] != 0 ? 1 / total[i] : 0;
        mean[i] *= total[i], moved[i] *= total[i];
    }
    vec pull = tiled(mean), inverse = tiled(total);
    for (int64_t c = 0; c < n; c += LANES) {
        vec w = load(x->energy + c) * inverse, da = load(x->pull + c);
        store(x->energy + c, a->peak ? w * gain(x, c, peak, &away) : w);
        store(x->pull + c, w * (da - pull) * (float)a->scale);
    }
    if (a->threshold >= 0)
        dropped(x, x->energy);
    gathered(x, x->pull, k, a->k_s, a->D, x->sum);
    for (int i = 0; i < x->count; i++) {
        int64_t row = x->task_row + x->t[i];
        memcpy(at(a->dq) + row * a->D, x->sum + i * a->D, sizeof(float) * (size_t)a->D);
        if (a->peak)
            at(a->dpeak)[row] = moved[i] / ((float)a->sigma * (float)a->sigma);
    }
    scattered(x, x->pull, x->query, a->D, at(a->dk) + pair * (a->S + a->N) * a->D);
    scattered(x, x->energy, x->gradient, a->R, at(a->dv) + pair * (a->S + a->N) * a->R);
}

static void backward(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct arguments *a = job->a;
    struct scene x = {0};
    if (begin_scene(&x, a)) {
        int64_t heads = a->H / a->G;
        for (int64_t task; heed_turn(turns, &task);)
            for (int64_t h = task % a->G * heads; h < (task % a->G + 1) * heads; h++)
                for (int64_t rank = 0; rank < a->T; rank += QUERIES) {
                    set_scene(&x, task / a->G, h, rank);
                    answer(&x);
                }
    } else
        job->failed = 1;
    end_scene(&x);
}

HEED_EXPORT int HEED(heed_window_backward)(const struct arguments *a, int threads)
{
    struct job job = {a, 0};
    heed_share(backward, &job, a->B * a->G, threads);
    return job.failed;
}
