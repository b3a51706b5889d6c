/* Statistics of softmax(q·k) on the CPU, with never more than a few rows of weights in memory.

A task is a few rows of one head. It computes their energies with the keys in panels of 16; for each
row the largest energy, then in one sweep the sums that all statistics are made from; then what the
rows contribute to keys and to cells of the map. Each task writes its contribution to memory of its
own, and these are added in the order of the rows: results do not depend on the number of threads.
README.md says more. */

#include "kernels/native.h"

enum { PANEL = 16, VECTORS = PANEL / LANES, TILE = 12 / VECTORS }; /* 12 accumulator registers */
enum { GROUPS = 2 * LANES, MOST = 8, BLOCK = 512, BAND = 32 };
static const float SMALLEST = 0x1p-126f, LEAST = -87.0f; /* the smallest normal float; its log */

/* Python packs it: 64-bit numbers in this order; a null pointer is an argument not given. */
struct call {
    const float *q, *k;
    float *packed; /* B G panels D 16 */
    int64_t B, H, G, T, S, N, D;
    int64_t q_b, q_h, q_t, k_b, k_g, k_s;
    const int32_t *stop;
    const uint8_t *exists;
    const float *centre;
    const uint8_t *table;
    const float *bias, *gain;
    int64_t stop_b, exists_b, centre_b, centre_h, table_b, table_h, table_t;
    int64_t bias_b, bias_h, bias_t, bias_s, gain_b, gain_h;
    int64_t first, half, radius, causal, top, rows, columns;
    float *log_sum, *facts; /* B H T, 5 B H T */
    int64_t *place;         /* B H T */
    float *received;        /* B H N */
    int64_t *best;          /* B H T top */
    float *share, *map;     /* B H T top, B H rows columns */
    float *parts;           /* a row for each task: contributions to keys, then to cells */
    int64_t *spans;         /* of each task: its first key, and one past its last */
    int64_t part, chunk, begin, end; /* numbers in a part, rows per task, range of tasks */
    double scale, sigma;
};

struct job {
    const struct call *call;
    atomic_int failed;
};

/* Some rows of a head, and scratch for them. */
struct scene {
    const struct call *c;
    int64_t b, h, t, n, pitch; /* n rows from t on */
    int64_t from, to;          /* the range of keys that any row sees, rounded up to panels */
    float *energy;             /* n pitch; later weights, before each row's factor */
    float *factor;             /* n */
    int64_t *border;           /* the first key of each column of the map  columns + 1 */
};

/* The largest entries of a row so far, descending; among equals the first stays ahead. */
struct leaders {
    float value[MOST];
    int64_t at[MOST];
    int many, wanted;
    float bar; /* entries below it cannot be among the largest */
};

/* Σ p, Σ p y, Σ p d and Σ p d² of a row; p = e^y, d the distance of a key from the largest. Blocks
are summed in float, their sums in double. */
struct sums {
    double total, energy, away, square;
};

static int64_t lesser(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t greater(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t panels_of(int64_t N) { return (N + PANEL - 1) / PANEL; }
/* Rows of a map whose cells are sums; zero if it has a cell for every pair, as that map is the
weights. */
static int64_t pooled(const struct call *c)
{
    return c->rows == c->T && c->columns == c->N ? 0 : c->rows;
}
static int64_t tasks_of(const struct call *c) { return (c->T + c->chunk - 1) / c->chunk; }

/* The result of a comparison with a bit for each lane. */
HEED_INLINE unsigned bits_of(ivec x)
{
#if HEED_LANES == 16 && defined(__AVX512DQ__)
    return (unsigned)__builtin_ia32_cvtd2mask512(x);
#elif HEED_LANES == 8 && defined(__AVX2__)
    return (unsigned)__builtin_ia32_movmskps256((vec)x);
#elif HEED_LANES == 4 && defined(__SSE__)
    return (unsigned)__builtin_ia32_movmskps((vec)x);
#else
    unsigned bits = 0;
    for (int i = 0; i < LANES; i++)
        bits |= (unsigned)(x[i] & 1) << i;
    return bits;
#endif
}

/* 0, 1, 2 ... */
HEED_INLINE vec counted(void)
{
    vec x = {0};
    for (int i = 0; i < LANES; i++)
        x[i] = (float)i;
    return x;
}

/* Pack keys into panels, the last one padded with zeros. */
static void pack(void *context, struct heed_turns *turns)
{
    const struct call *c = context;
    int64_t panels = panels_of(c->N);
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t pair = task / panels, s = task % panels * PANEL, many = lesser(PANEL, c->N - s);
        const float *from = c->k + pair / c->G * c->k_b + pair % c->G * c->k_g + s * c->k_s;
        float *to = c->packed + task * c->D * PANEL;
        for (int64_t d = 0; d < c->D; d++)
            for (int64_t i = 0; i < PANEL; i++)
                to[d * PANEL + i] = i < many ? from[i * c->k_s + d] : 0;
    }
}

/* Some queries with a panel of keys. The compiler knows how many queries. Each energy is one chain
of products along D, the same in any tile. */
HEED_INLINE void tile(const int queries, const float *q, int64_t q_t, const float *panel, int64_t D,
                      float *e, int64_t pitch)
{
    vec sum[TILE][VECTORS];
    for (int i = 0; i < queries; i++)
        for (int j = 0; j < VECTORS; j++)
            sum[i][j] = fill(0);
    for (int64_t d = 0; d < D; d++)
        for (int i = 0; i < queries; i++)
            for (int j = 0; j < VECTORS; j++)
                sum[i][j] += q[i * q_t + d] * load(panel + d * PANEL + j * LANES);
    for (int i = 0; i < queries; i++)
        for (int j = 0; j < VECTORS; j++)
            store(e + i * pitch + j * LANES, sum[i][j]);
}

/* The energies of all rows. Rows pass over one panel after another: both fit into the first-level
cache. */
static void compare(const struct scene *x)
{
    const struct call *c = x->c;
    int64_t pair = x->b * c->G + x->h / (c->H / c->G), D = c->D, step = c->q_t;
    const float *q = c->q + x->b * c->q_b + x->h * c->q_h + x->t * step;
    for (int64_t p = x->from / PANEL; p < panels_of(x->to); p++) {
        const float *panel = c->packed + (pair * panels_of(c->N) + p) * D * PANEL;
        float *e = x->energy + p * PANEL;
        int64_t i = 0;
        for (; i + TILE <= x->n; i += TILE)
            tile(TILE, q + i * step, step, panel, D, e + i * x->pitch, x->pitch);
        for (; i + 3 <= x->n; i += 3)
            tile(3, q + i * step, step, panel, D, e + i * x->pitch, x->pitch);
        for (; i < x->n; i++)
            tile(1, q + i * step, step, panel, D, e + i * x->pitch, x->pitch);
    }
}

/* The keys that query t may see by position; around a centre, slightly more. Sinks are always
added. */
static void interval(const struct scene *x, int64_t t, int64_t *low, int64_t *high)
{
    const struct call *c = x->c;
    int64_t place = c->first + t, from = 0, to = c->S;
    if (c->stop)
        to = lesser(to, c->stop[x->b * c->stop_b]);
    if (c->causal)
        to = lesser(to, place + 1);
    if (c->half >= 0)
        from = greater(from, place - c->half), to = lesser(to, place + c->half + 1);
    if (c->centre) {
        float wide = (float)c->radius, far = (float)c->S + wide + 2;
        float centre = c->centre[x->b * c->centre_b + x->h * c->centre_h + t];
        centre = fminf(fmaxf(centre, -far), far);
        from = greater(from, (int64_t)(centre - wide) - 2);
        to = lesser(to, (int64_t)(centre + wide) + 3);
    }
    *low = lesser(greater(from, 0), c->S), *high = greater(*low, to);
}

/* Finish the energies of a row: scale, bias, and minus infinity for keys that masks hide. */
static void prepare(const struct scene *x, float *e, int64_t t, int64_t low, int64_t high)
{
    const struct call *c = x->c;
    const float scale = (float)c->scale;
    const int64_t end = c->N > c->S ? c->N : high;
    if (c->bias) {
        const float *bias = c->bias + x->b * c->bias_b + x->h * c->bias_h + t * c->bias_t;
        for (int64_t s = low; s < end; s++)
            e[s] = e[s] * scale + bias[s * c->bias_s];
    } else
        for (int64_t s = low; s < end; s++)
            e[s] *= scale;
    if (c->exists) {
        const uint8_t *exists = c->exists + x->b * c->exists_b;
        for (int64_t s = low; s < high; s++)
            e[s] = exists[s] ? e[s] : -INFINITY;
    }
    if (c->table) {
        const uint8_t *table = c->table + x->b * c->table_b + x->h * c->table_h + t * c->table_t;
        for (int64_t s = low; s < high; s++)
            e[s] = table[s] ? e[s] : -INFINITY;
    }
    if (c->centre) {
        float centre = c->centre[x->b * c->centre_b + x->h * c->centre_h + t], wide = (float)c->radius;
        for (int64_t s = low; s < high; s++)
            e[s] = fabsf((float)s - centre) <= wide ? e[s] : -INFINITY;
    }
    for (int64_t s = high; s < c->S && end > high; s++)
        e[s] = -INFINITY;
}

/* The largest of each of GROUPS interleaved groups. */
HEED_INLINE void largest(const float *e, int64_t n, float *groups)
{
    vec one = fill(-INFINITY), two = one;
    int64_t s = 0;
    for (; s + 2 * LANES <= n; s += 2 * LANES)
        one = larger(one, load(e + s)), two = larger(two, load(e + s + LANES));
    if (s + LANES <= n)
        one = larger(one, load(e + s)), s += LANES;
    if (s < n)
        two = larger(two, load_some(e + s, (int)(n - s), -INFINITY));
    store(groups, one), store(groups + LANES, two);
}

/* The largest of a row; NaN if there is a NaN and no number above minus infinity. */
static float most_of(const float *e, int64_t n, const float *groups)
{
    float most = -INFINITY;
    for (int i = 0; i < GROUPS; i++)
        most = groups[i] > most ? groups[i] : most;
    for (int64_t s = 0; s < n && most == -INFINITY; s++)
        if (e[s] != e[s])
            most = NAN;
    return most;
}

/* A bound that at least `wanted` entries of a row reach: the `wanted`-th largest of the groups'
maxima. */
HEED_INLINE float bar_of(const float *groups, int wanted)
{
    vec one = load(groups), two = load(groups + LANES);
    ivec above_one = {0}, above_two = {0};
    for (int i = 0; i < GROUPS; i++)
        above_one -= groups[i] > one, above_two -= groups[i] > two;
    one = pick(above_one < wanted, one, fill(INFINITY));
    two = pick(above_two < wanted, two, fill(INFINITY));
    return larger(fill(-max_of(-smaller(one, two))), fill(-0x1.fffffep127f))[0];
}

static int64_t first_of(const float *e, int64_t n, float x)
{
    int64_t s = 0;
    while (s + 2 * LANES <= n && !bits_of((load(e + s) == x) | (load(e + s + LANES) == x)))
        s += 2 * LANES;
    while (s < n && e[s] != x)
        s++;
    return s < n ? s : 0;
}

/* Offer to the leaders those entries from place s on that reached the bar; it rises on the way. */
static __attribute__((noinline)) void consider(struct leaders *l, const float *e, int64_t s, unsigned bits)
{
    for (; bits; bits &= bits - 1) {
        int lane = __builtin_ctz(bits);
        float x = e[lane];
        if (!(x >= l->bar) || (l->many == l->wanted && x == l->bar)) /* of equals the first stays */
            continue;
        int i = l->many < l->wanted ? l->many++ : l->wanted - 1;
        for (; i && l->value[i - 1] < x; i--)
            l->value[i] = l->value[i - 1], l->at[i] = l->at[i - 1];
        l->value[i] = x, l->at[i] = s + lane;
        if (l->many == l->wanted)
            l->bar = l->value[l->wanted - 1];
    }
}

HEED_INLINE vec add_up(vec e, vec d, float most, float scale, vec part[4])
{
    vec y = (e - most) * scale;
    ivec none = y < LEAST; /* NaN is kept and makes Σ p y NaN */
    y = pick(none, fill(LEAST), y);
    vec p = (vec)(~none & (ivec)exp_within(y)), pd = p * d;
    part[0] += p, part[1] += p * y, part[2] += pd, part[3] += pd * d;
    return p;
}

/* Replace e by p, and return the sums. */
HEED_INLINE struct sums sweep(const int leading, float *e, int64_t n, float most, float scale,
                              int64_t place, struct leaders *l)
{
    double sums[4] = {0};
    vec d = counted() - (float)place;
    for (int64_t s = 0; s < n;) {
        vec one[4] = {{0}}, two[4] = {{0}};
        int64_t stop = lesser(n, s + BLOCK);
        for (; s + 2 * LANES <= stop; s += 2 * LANES, d += 2.0f * LANES) {
            vec x = load(e + s), y = load(e + s + LANES);
            if (leading) {
                unsigned bits = bits_of(x >= l->bar) | bits_of(y >= l->bar) << LANES;
                if (__builtin_expect(bits != 0, 0))
                    consider(l, e + s, s, bits);
            }
            store(e + s, add_up(x, d, most, scale, one));
            store(e + s + LANES, add_up(y, d + (float)LANES, most, scale, two));
        }
        for (; s < stop; s += LANES, d += (float)LANES) {
            int count = (int)lesser(LANES, stop - s);
            vec x = load_some(e + s, count, -INFINITY);
            if (leading)
                consider(l, e + s, s, bits_of(x >= l->bar));
            store_some(e + s, add_up(x, d, most, scale, one), count);
        }
        for (int i = 0; i < 4; i++)
            sums[i] += sum_of(one[i] + two[i]);
    }
    return (struct sums){sums[0], sums[1], sums[2], sums[3]};
}

/* Σ p (d - mean)², for rows whose mean is so far from the largest entry that the difference of
squares would lose digits. */
static double squares(const float *p, int64_t n, double mean)
{
    vec sum = {0}, d = counted() - (float)mean;
    for (int64_t s = 0; s < n; s += LANES, d += (float)LANES)
        sum += load_some(p + s, (int)lesser(LANES, n - s), 0) * d * d;
    return sum_of(sum);
}

/* Multiply by the Gaussian: its exponent is subtracted after the largest scaled energy, as a large
energy would absorb it. Sinks have no position and no gain. */
static void lower(const struct scene *x, float *e, int64_t t, int64_t low, int64_t high, float most)
{
    const struct call *c = x->c;
    float centre = c->gain[x->b * c->gain_b + x->h * c->gain_h + t], sigma = (float)c->sigma;
    for (int64_t s = low; s < high; s++) {
        float away = ((float)s - centre) / sigma;
        e[s] = e[s] - most - 0.5f * away * away;
    }
    for (int64_t s = c->S; s < c->N; s++)
        e[s] -= most;
}

/* The leaders of a row and their weights, with positions counted from `low`. If fewer than `top`
keys have weight, the first of the others follow. */
static void name(const struct call *c, const struct leaders *l, int64_t row, int64_t low,
                 const float *p, float factor)
{
    int64_t *best = c->best + row * c->top, other = 0;
    for (int i = 0; i < c->top; i++)
        if (i < l->many) {
            best[i] = low + l->at[i];
            c->share[row * c->top + i] = p[l->at[i]] * factor;
        } else {
            for (int j = 0; j < i; j++)
                if (best[j] == other)
                    other++, j = -1;
            best[i] = other;
            c->share[row * c->top + i] = 0 * factor;
        }
}

/* All statistics of row i; its energies become weights, before the row's factor. */
static void say(const struct scene *x, int64_t i)
{
    const struct call *c = x->c;
    int64_t t = x->t + i, row = (x->b * c->H + x->h) * c->T + t, rows = c->B * c->H * c->T, low, high;
    float *e = x->energy + i * x->pitch, *facts = c->facts + row, scale = (float)c->scale;
    interval(x, t, &low, &high);
    int sinks = c->N > c->S;
    int64_t end = sinks ? c->N : high, n = end - low, place = 0;
    if (c->exists || c->table || c->centre || c->bias || c->gain || !(scale > 0) ||
        (sinks && high < c->S)) {
        prepare(x, e, t, low, high);
        scale = 1;
    }
    float groups[GROUPS];
    double outside = 1, mean = 0, inverse = 0, variance = 0;
    largest(e + low, n, groups);
    float most = most_of(e + low, n, groups), log_sum = most * scale;
    struct leaders l = {.wanted = (int)c->top};
    struct sums sums = {0};
    if (c->gain && most != -INFINITY) {
        float before = most;
        double total = 0;
        for (int64_t s = low; s < end; s += LANES)
            total += sum_of(exp_of(load_some(e + s, (int)lesser(LANES, end - s), -INFINITY) - before));
        lower(x, e, t, low, high, before);
        largest(e + low, n, groups);
        most = most_of(e + low, n, groups);
        log_sum += logf((float)total);
        outside = expf(most) / total;
    }
    if (most != -INFINITY) {
        place = first_of(e + low, n, most);
        if (c->top) {
            l.bar = bar_of(groups, (int)c->top);
            sums = sweep(1, e + low, n, most, scale, place, &l);
        } else
            sums = sweep(0, e + low, n, most, scale, place, &l);
        if (sums.energy != sums.energy)
            sums.total = NAN;
        inverse = 1 / sums.total;
        if (!c->gain) {
            log_sum = isinf(most) ? most : log_sum + logf((float)sums.total);
            outside = inverse;
        }
    }
    float mass = (float)(sums.total * outside);
    int blind = most == -INFINITY || mass < SMALLEST;
    c->log_sum[row] = log_sum;
    x->factor[i] = blind ? 0 : (float)outside;
    if (blind)
        place = -low, l.many = 0, memset(e + low, 0, sizeof(float) * (size_t)n);
    else {
        mean = sums.away * inverse, variance = sums.square * inverse - mean * mean;
        if (variance * 16 < mean * mean)
            variance = squares(e + low, n, (double)place + mean) * inverse;
    }
    facts[0] = blind ? 0 : mass;
    facts[rows] = blind ? 0 : (float)(log(sums.total) - sums.energy * inverse);
    facts[2 * rows] = blind ? 0 : (float)inverse;
    facts[3 * rows] = (float)((double)(low + place) + mean);
    facts[4 * rows] = (float)sqrt(variance);
    c->place[row] = low + place;
    if (c->top)
        name(c, &l, row, low, e + low, blind ? 0 : (float)inverse);
    if (low > x->from)
        memset(e + x->from, 0, sizeof(float) * (size_t)(low - x->from));
    if (end < x->to)
        memset(e + end, 0, sizeof(float) * (size_t)(x->to - end));
}

/* Add a strip of keys, from position `from` on, to a row of the map. */
static void pool(const struct scene *x, const float *strip, int64_t from, int64_t to, float factor,
                 float *cells)
{
    const int64_t *border = x->border;
    for (int64_t cell = from * x->c->columns / x->c->N, s = from; s < to; cell++) {
        int64_t stop = lesser(border[cell + 1], to);
        float sum = 0;
        for (; s < stop; s++)
            sum += strip[s - from];
        cells[cell] += sum * factor;
    }
}

/* The weighted sum of some rows (the compiler knows how many), added to the strip if begun. Rows
are padded to whole vectors. */
HEED_INLINE void join(const int rows, int begun, const float *p, int64_t pitch, const float *factor,
                      float *strip, int64_t width)
{
    for (int64_t s = 0; s < width; s += LANES) {
        vec sum = begun ? load(strip + s) : fill(0);
        for (int i = 0; i < rows; i++)
            sum += load(p + i * pitch + s) * factor[i];
        store(strip + s, sum);
    }
}

/* A map with a cell for every pair: the weights of each row. */
static void copy(const struct scene *x)
{
    const struct call *c = x->c;
    for (int64_t i = 0; i < x->n; i++) {
        float *cells = c->map + ((x->b * c->H + x->h) * c->T + x->t + i) * c->N;
        const float *p = x->energy + i * x->pitch, factor = x->factor[i];
        for (int64_t s = x->from; s < x->to; s++)
            cells[s] = p[s] * factor;
    }
}

/* Contributions of the rows to keys and cells: in bands of rows within one row of cells, and strips
of keys. */
static void bring(const struct scene *x, float *part)
{
    const struct call *c = x->c;
    int64_t rows = pooled(c), first = rows ? x->t * rows / c->T : 0;
    memset(part, 0, sizeof(float) * (size_t)c->part);
    for (int64_t from = x->from, to; from < x->to; from = to) {
        to = lesser(from + BLOCK, x->to);
        int64_t width = to - from;
        for (int64_t i = 0, stop; i < x->n; i = stop) {
            int64_t row = 0, queries = 1;
            stop = lesser(i + BAND, x->n);
            if (rows) {
                row = (x->t + i) * rows / c->T;
                int64_t begin = (row * c->T + rows - 1) / rows;
                int64_t next = ((row + 1) * c->T + rows - 1) / rows;
                queries = next - begin, stop = lesser(stop, next - x->t);
            }
            float strip[BLOCK];
            int begun = 0;
            for (; i + 4 <= stop; i += 4, begun = 1)
                join(4, begun, x->energy + i * x->pitch + from, x->pitch, x->factor + i, strip, width);
            for (; i < stop; i++, begun = 1)
                join(1, begun, x->energy + i * x->pitch + from, x->pitch, x->factor + i, strip, width);
            for (int64_t s = 0; s < width; s++)
                part[from + s] += strip[s];
            if (rows)
                pool(x, strip, from, to, 1 / (float)queries,
                     part + c->N + (row - first) * c->columns);
        }
    }
}

static int begin_scene(struct scene *x, const struct call *c)
{
    x->c = c;
    x->pitch = panels_of(c->N) * PANEL + PANEL; /* a power of two would share cache sets */
    x->energy = heed_room(sizeof(float) * (size_t)(x->pitch * c->chunk));
    x->factor = heed_room(sizeof(float) * (size_t)c->chunk);
    x->border = heed_room(sizeof(int64_t) * (size_t)(c->columns + 1));
    if (!x->energy || !x->factor || !x->border)
        return 0;
    for (int64_t cell = 0; cell <= c->columns && c->columns; cell++)
        x->border[cell] = (cell * c->N + c->columns - 1) / c->columns;
    return 1;
}

static void end_scene(struct scene *x) { free(x->energy), free(x->factor), free(x->border); }

static void look(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct call *c = job->call;
    struct scene x;
    if (begin_scene(&x, c)) {
        int64_t each = tasks_of(c);
        for (int64_t task; heed_turn(turns, &task);) {
            int64_t head = (c->begin + task) / each;
            x.b = head / c->H, x.h = head % c->H;
            x.t = (c->begin + task) % each * c->chunk, x.n = lesser(c->chunk, c->T - x.t);
            int64_t from = c->N, to = 0, low, high;
            for (int64_t i = 0; i < x.n; i++) {
                interval(&x, x.t + i, &low, &high);
                high = c->N > c->S ? c->N : high;
                if (low < high)
                    from = lesser(from, low), to = greater(to, high);
            }
            x.from = lesser(from, to), x.to = to;
            compare(&x);
            for (int64_t i = 0; i < x.n; i++)
                say(&x, i);
            bring(&x, c->parts + task * c->part);
            if (c->rows && !pooled(c))
                copy(&x);
            c->spans[2 * task] = x.from, c->spans[2 * task + 1] = x.to;
        }
    } else
        atomic_store(&job->failed, 1);
    end_scene(&x);
}

/* Sum the parts of each head's tasks, in the order of its rows. */
static void gather(void *context, struct heed_turns *turns)
{
    const struct call *c = context;
    int64_t each = tasks_of(c), first = c->begin / each;
    for (int64_t turn; heed_turn(turns, &turn);) {
        int64_t head = first + turn, stop = lesser(c->end, (head + 1) * each);
        float *received = c->received + head * c->N, *map = c->map + head * c->rows * c->columns;
        for (int64_t from = 0; from < c->N; from += BLOCK) {
            int64_t to = lesser(from + BLOCK, c->N);
            double sum[BLOCK] = {0};
            for (int64_t task = greater(c->begin, head * each); task < stop; task++) {
                const float *part = c->parts + (task - c->begin) * c->part;
                const int64_t *span = c->spans + 2 * (task - c->begin);
                for (int64_t s = greater(from, span[0]); s < lesser(to, span[1]); s++)
                    sum[s - from] += part[s];
            }
            for (int64_t s = from; s < to; s++)
                received[s] += (float)sum[s - from];
        }
        for (int64_t task = greater(c->begin, head * each); pooled(c) && task < stop; task++) {
            const float *part = c->parts + (task - c->begin) * c->part;
            int64_t t = task % each * c->chunk, last = lesser(t + c->chunk, c->T) - 1;
            int64_t row = t * c->rows / c->T, count = last * c->rows / c->T - row + 1;
            for (int64_t cell = 0; cell < count * c->columns; cell++)
                map[row * c->columns + cell] += part[c->N + cell];
        }
    }
}

HEED_EXPORT int HEED(heed_statistics)(const struct call *c, int threads)
{
    struct job job = {.call = c};
    int64_t each = tasks_of(c), tasks = c->end - c->begin;
    if (c->begin == 0)
        heed_share(pack, (void *)c, c->B * c->G * panels_of(c->N), threads);
    heed_share(look, &job, tasks, threads);
    if (!job.failed)
        heed_share(gather, (void *)c, (c->end - 1) / each - c->begin / each + 1, threads);
    return job.failed;
}
