/* One step of a plain Transformer decoder: all layers, for several hypotheses, in one call.

Hypotheses are independent, so each worker takes some of them through all layers, without waiting.
If the weights are large or the hypotheses few, reading the weights takes most of the time: then the
workers share every linear map instead. README.md has the reasons and figures. */

#include <sched.h>

#include "kernels/linear/product.h"

struct norm {
    int64_t weight, bias;
    double eps;
};

struct layer {
    int64_t look, look_bias;     /* M -> 3M: query, key and value */
    int64_t join, join_bias;     /* M -> M */
    int64_t ask, ask_bias;       /* M -> M: the query of the cross-attention; 0: none */
    int64_t answer, answer_bias; /* M -> M */
    int64_t widen, widen_bias;   /* M -> F */
    int64_t narrow, narrow_bias; /* F -> M */
    int64_t source_k;            /* B H D P; P is S rounded up to whole panels */
    int64_t source_v;            /* B H S D */
    struct norm around[3];       /* attention, feed-forward, cross-attention */
};

struct step {
    int64_t symbols;   /* N, int64 */
    int64_t table;     /* V M */
    int64_t place;     /* the position vector: M; or N M, one for each */
    int64_t layers;    /* L */
    int64_t pasts;     /* T + 1 pointers: the keys and values of each position, rows L 2 M */
    int64_t origins;   /* N T, int64: the row of each position that a hypothesis descends from */
    int64_t sentences; /* N, int64: which source each reads */
    int64_t hidden;    /* B P: 0, or -inf where there is no key; null: all exist */
    int64_t x;         /* N M: the output */
    int64_t weights;   /* N S: weights of layer `aligns` */
    int64_t L, N, T, M, H, F, S, P, pre_norm, bends, aligns; /* bends: by an `enum bend` */
    double scale;
    struct norm last;    /* weight 0: none */
    int64_t first;       /* N, int64: the position where each text begins; null: all at the first */
    int64_t place_row;   /* from one row of `place` to the next: 0 or M */
    int64_t as_it_is;    /* weights are row-major, not in panels */
};

enum { FAR = 1 << 20 }; /* weights of a layer that no core's own cache holds */

enum bend { BY_RELU, BY_GELU, BY_TANH };

/* A shared phase of a step: tasks that any worker may take. */
struct phase {
    _Atomic int64_t next, done;
};

enum { PHASES = 16 }; /* per layer, at most */

/* A worker's position in the phases; phases 0: it works alone. */
struct walk {
    struct phase *phases;
    int workers;
};

typedef void work(const void *context, int64_t task, int64_t tasks);

HEED_INLINE void breathe(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Take tasks of the next phase until none is left, then wait until all of them are done. It waits
for tasks, not for workers: a worker that the system has not scheduled delays the others only by the
task it holds. After many turns, a waiting worker yields the processor. */
static void through(struct walk *walk, work *work, const void *context, int64_t tasks)
{
    enum { SPINS = 1000 };
    if (!walk->phases) {
        for (int64_t task = 0; task < tasks; task++)
            work(context, task, tasks);
        return;
    }
    struct phase *phase = walk->phases++;
    for (int64_t task; (task = atomic_fetch_add(&phase->next, 1)) < tasks;) {
        work(context, task, tasks);
        atomic_fetch_add_explicit(&phase->done, 1, memory_order_release);
    }
    for (int turns = 0; atomic_load_explicit(&phase->done, memory_order_acquire) < tasks;)
        if (turns < SPINS) {
            turns++;
            breathe();
        } else {
            sched_yield();
        }
}

/* The scratch memory of one worker. */
struct desk {
    float *h, *wide, *energy, *sight;
    const float **row;
};

static void normalise(const float *x, float *y, int64_t M, const struct norm *norm)
{
    const float *weight = (const float *)norm->weight, *bias = (const float *)norm->bias;
    int64_t whole = M / LANES * LANES;
    vec sum = fill(0), square = fill(0);
    for (int64_t i = 0; i < whole; i += LANES)
        sum += load(x + i);
    float mean = sum_of(sum), variance;
    for (int64_t i = whole; i < M; i++)
        mean += x[i];
    mean /= (float)M;
    for (int64_t i = 0; i < whole; i += LANES) {
        vec away = load(x + i) - mean;
        square += away * away;
    }
    variance = sum_of(square);
    for (int64_t i = whole; i < M; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    float by = 1 / sqrtf(variance / (float)M + (float)norm->eps);
    for (int64_t i = 0; i < whole; i += LANES)
        store(y + i, (load(x + i) - mean) * by * load(weight + i) + load(bias + i));
    for (int64_t i = whole; i < M; i++)
        y[i] = (x[i] - mean) * by * weight[i] + bias[i];
}

/* Layer normalisation of several rows. */
struct normalising {
    const float *x;
    float *y;
    int64_t rows, M;
    const struct norm *norm;
};

static void normalise_some(const void *context, int64_t task, int64_t tasks)
{
    const struct normalising *a = context;
    for (int64_t n = a->rows * task / tasks; n < a->rows * (task + 1) / tasks; n++)
        normalise(a->x + n * a->M, a->y + n * a->M, a->M, a->norm);
}

static void normalise_rows(struct walk *walk, const float *x, float *y, int64_t rows, int64_t M,
                           const struct norm *norm)
{
    struct normalising all = {x, y, rows, M, norm};
    through(walk, normalise_some, &all, walk->workers);
}

/* The input of a sublayer: with pre-norm, x normalised. */
static const float *enter(struct walk *walk, const struct step *a, const struct norm *norm,
                          const float *x, float *h, int64_t rows)
{
    if (!a->pre_norm)
        return x;
    normalise_rows(walk, x, h, rows, a->M, norm);
    return h;
}

static void leave(struct walk *walk, const struct step *a, const struct norm *norm, float *x,
                  int64_t rows)
{
    if (!a->pre_norm)
        normalise_rows(walk, x, x, rows, a->M, norm);
}

/* GELU: x Φ(x) = x erfc(-x / √2) / 2, with erfc(z) = t exp(-z²) p(t) and t = 1 / (1 + z / 2) for
z >= 0; the polynomial p is fitted to a relative error of 2e-7. */
HEED_INLINE vec gelu(vec x)
{
    vec z = magnitude(x) * 0x1.6a09e6p-1f;
    vec t = 1.0f / (z * 0.5f + 1.0f);
    vec p = fill(-0x1.e3eac4p-5f) * t + 0x1.236b46p-2f;
    p = p * t - 0x1.f2ebd4p-2f;
    p = p * t + 0x1.1cc5a4p-2f;
    p = p * t - 0x1.b49020p-6f;
    p = p * t + 0x1.9f1e7cp-3f;
    p = p * t + 0x1.f1df66p-3f;
    p = p * t + 0x1.21270ep-2f;
    p = p * t + 0x1.20db42p-2f;
    vec tail = t * p * exp_of(-z * z);
    return x * 0.5f * pick(x < 0, tail, 2.0f - tail);
}

/* GELU by tanh: x (1 + tanh u) / 2 = x / (1 + e^{-2u}), u = √(2/π) (x + 0.044715 x³). */
HEED_INLINE vec gelu_by_tanh(vec x)
{
    vec twice = x * (x * x * 0x1.2444f2p-4f + 0x1.988454p+0f);
    return x / (1.0f + exp_of(-twice));
}

HEED_INLINE vec bent(vec x, int64_t bends) { return bends == BY_TANH ? gelu_by_tanh(x) : gelu(x); }

struct bending {
    float *x;
    int64_t rows, F, bends;
};

static void bend_some(const void *context, int64_t task, int64_t tasks)
{
    const struct bending *a = context;
    int64_t i = a->rows * task / tasks * a->F, stop = a->rows * (task + 1) / tasks * a->F;
    for (; i + LANES <= stop; i += LANES)
        store(a->x + i, bent(load(a->x + i), a->bends));
    if (i < stop) {
        int rest = (int)(stop - i);
        store_some(a->x + i, bent(load_some(a->x + i, rest, 0), a->bends), rest);
    }
}

/* Softmax in whole vectors; numbers beyond `count` are ignored. */
static void softmax(float *energy, int64_t count, float scale)
{
    int64_t wide = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < wide; i++)
        energy[i] = -INFINITY;
    vec top = fill(-INFINITY), sum = fill(0);
    for (int64_t i = 0; i < wide; i += LANES)
        top = larger(load(energy + i), top);
    float largest = max_of(top);
    for (int64_t i = 0; i < wide; i += LANES) {
        vec each = exp_of((load(energy + i) - largest) * scale);
        store(energy + i, each);
        sum += each;
    }
    float by = 1 / sum_of(sum);
    for (int64_t i = 0; i < wide; i += LANES)
        store(energy + i, load(energy + i) * by);
}

HEED_INLINE float dot(const float *x, const float *y, int64_t D)
{
    vec sum = fill(0);
    int64_t d = 0;
    for (; d + LANES <= D; d += LANES)
        sum += load(x + d) * load(y + d);
    float rest = sum_of(sum);
    for (; d < D; d++)
        rest += x[d] * y[d];
    return rest;
}

/* Σ weight value, D wide; a value begins `beyond` numbers into its row. */
static void read_rows(float *y, int64_t D, const float *weight, const float *const *row,
                      int64_t beyond, int64_t count)
{
    int64_t d = 0;
    for (; d + 4 * LANES <= D; d += 4 * LANES) {
        vec sum[4] = {{0}};
        for (int64_t i = 0; i < count; i++)
            for (int j = 0; j < 4; j++)
                sum[j] += weight[i] * load(row[i] + beyond + d + j * LANES);
        for (int j = 0; j < 4; j++)
            store(y + d + j * LANES, sum[j]);
    }
    for (; d + LANES <= D; d += LANES) {
        vec sum = fill(0);
        for (int64_t i = 0; i < count; i++)
            sum += weight[i] * load(row[i] + beyond + d);
        store(y + d, sum);
    }
    for (; d < D; d++) {
        float sum = 0;
        for (int64_t i = 0; i < count; i++)
            sum += weight[i] * row[i][beyond + d];
        y[d] = sum;
    }
}

/* Self-attention of hypothesis n: h holds query, key and value; the context replaces the query. */
static void look_back(const struct step *a, int64_t layer, int64_t n, float *h,
                      const struct desk *desk)
{
    int64_t M = a->M, D = M / a->H, T = a->T, room = (T + LANES) / LANES * LANES;
    const int64_t *pasts = (const int64_t *)a->pasts;
    const int64_t *origins = (const int64_t *)a->origins + n * T;
    int64_t first = a->first ? ((const int64_t *)a->first)[n] : 0, seen = T + 1 - first;
    float *own = (float *)pasts[T] + (n * a->L + layer) * 2 * M;
    memcpy(own, h + M, sizeof(float) * 2 * (size_t)M);
    for (int64_t t = first; t < T; t++)
        desk->row[t - first] = (const float *)pasts[t] + (origins[t] * a->L + layer) * 2 * M;
    desk->row[T - first] = own;
    float scale = 1 / sqrtf((float)D);
    for (int64_t t = 0; t < seen; t++)
        for (int64_t head = 0; head < a->H; head++)
            desk->energy[head * room + t] = dot(h + head * D, desk->row[t] + head * D, D);
    for (int64_t head = 0; head < a->H; head++) {
        float *energy = desk->energy + head * room;
        softmax(energy, seen, scale);
        read_rows(h + head * D, D, energy, desk->row, M + head * D, seen);
    }
}

/* Cross-attention of hypothesis n: the context replaces the query. */
static void read_source(const struct step *a, const struct layer *layer, int64_t n, float *q,
                        const struct desk *desk, int aligns)
{
    int64_t M = a->M, H = a->H, D = M / H, S = a->S, P = a->P;
    int64_t b = ((const int64_t *)a->sentences)[n];
    const float *hidden = a->hidden ? (const float *)a->hidden + b * P : 0;
    float scale = 1 / sqrtf((float)D), *energy = desk->energy;
    for (int64_t head = 0; head < H; head++) {
        const float *k = (const float *)layer->source_k + (b * H + head) * D * P;
        const float *v = (const float *)layer->source_v + (b * H + head) * S * D;
        for (int64_t s = 0; s < P; s += PANEL) {
            vec sum[VECTORS];
            for (int j = 0; j < VECTORS; j++)
                sum[j] = fill(0);
            for (int64_t d = 0; d < D; d++)
                for (int j = 0; j < VECTORS; j++)
                    sum[j] += q[head * D + d] * load(k + d * P + s + j * LANES);
            for (int j = 0; j < VECTORS; j++) {
                vec far = hidden ? load(hidden + s + j * LANES) : fill(0);
                store(energy + s + j * LANES, pick(far < 0, far, sum[j]));
            }
        }
        softmax(energy, S, scale);
        for (int64_t s = 0; s < S; s++)
            desk->row[s] = v + s * D;
        read_rows(q + head * D, D, energy, desk->row, 0, S);
        for (int64_t s = 0; aligns && s < S; s++)
            desk->sight[s] = (head ? desk->sight[s] : 0) + energy[s];
    }
    for (int64_t s = 0; aligns && s < S; s++)
        ((float *)a->weights)[n * S + s] = desk->sight[s] / (float)H;
}

/* y = x Wᵀ + b, some of the columns. */
static void map_some(const void *context, int64_t task, int64_t tasks)
{
    const struct mapping *a = context;
    int64_t panels = panels_of(a->N), from = panels * task / tasks, to = panels * (task + 1) / tasks;
    map_panels(a, from, to);
}

/* The attention of each hypothesis in one layer: to the text so far, or to the source. */
struct looking {
    const struct step *step;
    int64_t l, from, to;
    float *q;
    const struct desk *desk;
    int at_source;
};

static void look_some(const void *context, int64_t task, int64_t tasks)
{
    const struct looking *a = context;
    const struct layer *layer = (const struct layer *)a->step->layers + a->l;
    int64_t N = a->to - a->from, M = a->step->M;
    for (int64_t n = N * task / tasks; n < N * (task + 1) / tasks; n++)
        if (a->at_source)
            read_source(a->step, layer, a->from + n, a->q + n * M, a->desk + task,
                        a->l == a->step->aligns);
        else
            look_back(a->step, a->l, a->from + n, a->q + n * 3 * M, a->desk + task);
}

/* Hypotheses `from` to `to` on their way through the layers; each worker has a desk. */
struct passing {
    const struct step *step;
    int64_t from, to;
    float *x; /* to - from, M */
    const struct desk *desk;
    struct phase *phases;
    int workers;
};

static void pass_layer(const struct passing *passing, int64_t l, struct walk *walk)
{
    const struct step *a = passing->step;
    const struct layer *layer = (const struct layer *)a->layers + l;
    int64_t from = passing->from, to = passing->to, M = a->M, F = a->F, N = to - from;
    int64_t looks = walk->workers < N ? walk->workers : N;
    int64_t maps = walk->workers > 1 ? 4 * walk->workers : 1;
    float *x = passing->x, *h = passing->desk->h, *wide = passing->desk->wide;
#define MAP(x, x_row, part, y, y_row, K, columns, finish)                                         \
    through(walk, map_some,                                                                       \
            &(struct mapping){x, (const float *)layer->part, (const float *)layer->part##_bias,   \
                              y, x_row, a->as_it_is ? K : 0, y_row, N, K, columns, finish},       \
            maps)
#define LOOK(at_source)                                                                           \
    through(walk, look_some,                                                                      \
            &(struct looking){a, l, from, to, wide, passing->desk, at_source}, looks)
    const float *in = enter(walk, a, &layer->around[0], x, h, N);
    MAP(in, M, look, wide, 3 * M, M, 3 * M, STORE);
    LOOK(0);
    MAP(wide, 3 * M, join, x, M, M, M, ADD);
    leave(walk, a, &layer->around[0], x, N);
    if (layer->ask) {
        in = enter(walk, a, &layer->around[2], x, h, N);
        MAP(in, M, ask, wide, M, M, M, STORE);
        LOOK(1);
        MAP(wide, M, answer, x, M, M, M, ADD);
        leave(walk, a, &layer->around[2], x, N);
    }
    in = enter(walk, a, &layer->around[1], x, h, N);
    MAP(in, M, widen, wide, F, M, F, a->bends ? STORE : RELU);
    if (a->bends)
        through(walk, bend_some, &(struct bending){wide, N, F, a->bends}, walk->workers);
    MAP(wide, F, narrow, x, M, F, M, ADD);
    leave(walk, a, &layer->around[1], x, N);
#undef LOOK
#undef MAP
}

/* One worker's pass. All run the same code and share the tasks of each phase. */
static void pass(void *context, struct heed_turns *turns)
{
    const struct passing *passing = context;
    const struct step *a = passing->step;
    struct walk walk = {passing->phases, passing->workers};
    (void)turns;
    for (int64_t l = 0; l < a->L; l++)
        pass_layer(passing, l, &walk);
    if (a->last.weight)
        normalise_rows(&walk, passing->x, passing->x, passing->to - passing->from, a->M, &a->last);
}

/* Hypotheses `from` to `to`: from symbols to the decoder's final states. */
static int write(const struct step *a, int64_t from, int64_t to, int threads)
{
    int64_t M = a->M, N = to - from, most = 3 * M > a->F ? 3 * M : a->F;
    int64_t room = (a->T + LANES) / LANES * LANES * a->H;
    room = room > a->P ? room : a->P;
    int64_t rows = a->T + 1 > a->S ? a->T + 1 : a->S, desks = threads < N ? threads : N;
    size_t shared = threads > 1 ? sizeof(struct phase) * (size_t)(a->L * PHASES + 1) : 0;
    size_t each = sizeof(struct desk) + sizeof(float *) * (size_t)rows +
                  sizeof(float) * (size_t)(room + a->P);
    char *memory = heed_room(shared + each * (size_t)desks + sizeof(float) * (size_t)(N * (M + most)));
    if (!memory)
        return 1;
    memset(memory, 0, shared);
    struct desk *desk = (struct desk *)(memory + shared);
    const float **row = (const float **)(desk + desks);
    float *h = (float *)(row + desks * rows), *scratch = h + N * (M + most);
    for (int64_t i = 0; i < desks; i++, row += rows, scratch += room + a->P)
        desk[i] = (struct desk){h, h + N * M, scratch, scratch + room, row};
    float *x = (float *)a->x + from * M;
    for (int64_t n = 0; n < N; n++) {
        const float *place = (const float *)a->place + (from + n) * a->place_row;
        const float *vector = (const float *)a->table + ((const int64_t *)a->symbols)[from + n] * M;
        for (int64_t i = 0; i < M; i++)
            x[n * M + i] = place[i] + (float)a->scale * vector[i];
    }
    struct passing passing = {a, from, to, x, desk, shared ? (struct phase *)memory : 0, threads};
    heed_share(pass, &passing, threads, threads);
    free(memory);
    return 0;
}

struct sharing {
    const struct step *step;
    _Atomic int failed;
};

static void take_part(void *context, struct heed_turns *turns)
{
    struct sharing *sharing = context;
    for (int64_t part, N = sharing->step->N; heed_turn(turns, &part);)
        if (write(sharing->step, N * part / turns->tasks, N * (part + 1) / turns->tasks, 1))
            atomic_store(&sharing->failed, 1);
}

HEED_EXPORT int HEED(heed_decoder_step)(const struct step *a, int threads)
{
    if (!a->N)
        return 0;
    int64_t weights = 4 * a->M * a->M + 2 * a->M * a->F;
    if (threads > 1 && (weights > FAR || a->N < ROWS * threads / 2))
        return write(a, 0, a->N, threads);
    struct sharing sharing = {a, 0};
    heed_share(take_part, &sharing, threads < a->N ? threads : a->N, threads);
    return sharing.failed;
}
