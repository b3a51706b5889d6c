/* Linear maps of few rows, with weights in panels; and the most likely symbols of an output layer,
without storing all logits. README.md has the reasons and figures. */

#include "kernels/linear/product.h"

/* Pack W into panels, the last one padded with zeros.    N K -> panels_of(N) K 16 */
struct packing {
    int64_t weight, row, packed, N, K;
};

static void pack_panels(void *context, struct heed_turns *turns)
{
    const struct packing *a = context;
    for (int64_t panel; heed_turn(turns, &panel);) {
        float *to = (float *)a->packed + panel * a->K * PANEL;
        int64_t first = panel * PANEL, many = a->N - first < PANEL ? a->N - first : PANEL;
        const float *from = (const float *)a->weight + first * a->row;
        if (many < PANEL)
            memset(to, 0, sizeof(float) * (size_t)(a->K * PANEL));
        for (int64_t k = 0; k < a->K; k += PANEL) {
            int64_t stop = k + PANEL < a->K ? k + PANEL : a->K;
            for (int64_t i = 0; i < many; i++)
                for (int64_t j = k; j < stop; j++)
                    to[j * PANEL + i] = from[i * a->row + j];
        }
    }
}

HEED_EXPORT int HEED(heed_linear_pack)(const struct packing *a, int threads)
{
    heed_share(pack_panels, (void *)a, panels_of(a->N), threads);
    return 0;
}

/* Pack the transpose of W into panels: 16 consecutive numbers of a row of W are already adjacent. N
K -> panels_of(K) N 16 */
static void turn_panels(void *context, struct heed_turns *turns)
{
    const struct packing *a = context;
    for (int64_t panel; heed_turn(turns, &panel);) {
        float *to = (float *)a->packed + panel * a->N * PANEL;
        int64_t first = panel * PANEL, many = a->K - first < PANEL ? a->K - first : PANEL;
        const float *from = (const float *)a->weight + first;
        if (many < PANEL)
            memset(to, 0, sizeof(float) * (size_t)(a->N * PANEL));
        for (int64_t n = 0; n < a->N; n++)
            memcpy(to + n * PANEL, from + n * a->row, sizeof(float) * (size_t)many);
    }
}

HEED_EXPORT int HEED(heed_linear_turn)(const struct packing *a, int threads)
{
    heed_share(turn_panels, (void *)a, panels_of(a->K), threads);
    return 0;
}

/* A fingerprint of W: 32 hashes, each over every 32nd number. Every step is invertible, so a single
changed number always changes the fingerprint. Multiplication carries changes towards higher bits
only, and changes of the sign or exponent would soon be lost at the top: so the upper bits are first
mixed into the lower ones. */
enum { MARKS = 32 };
typedef uint32_t marks __attribute__((vector_size(sizeof(ivec))));

HEED_INLINE marks marked(marks mark, marks bits)
{
    mark ^= bits;
    mark ^= mark >> 15;
    return mark * 0x9e3779b1u;
}

struct marking {
    int64_t weight, row, mark, N, K;
};

/* Rows are hashed in parts, whose limits depend on the number of rows alone; then the hashes of the
parts in order. */
enum { MARKED = 16 };

struct marking_parts {
    const struct marking *asked;
    marks mark[MARKED][MARKS / LANES];
};

static void mark_part(void *context, struct heed_turns *turns)
{
    struct marking_parts *parts = context;
    const struct marking *a = parts->asked;
    for (int64_t part; heed_turn(turns, &part);) {
        marks mark[MARKS / LANES] = {{0}};
        for (int64_t n = a->N * part / MARKED; n < a->N * (part + 1) / MARKED; n++) {
            const float *row = (const float *)a->weight + n * a->row;
            int64_t k = 0;
            for (; k + MARKS <= a->K; k += MARKS)
                for (int i = 0; i < MARKS / LANES; i++)
                    mark[i] = marked(mark[i], (marks)load(row + k + i * LANES));
            if (k < a->K) {
                marks rest[MARKS / LANES] = {{0}};
                memcpy(rest, row + k, sizeof(float) * (size_t)(a->K - k));
                for (int i = 0; i < MARKS / LANES; i++)
                    mark[i] = marked(mark[i], rest[i]);
            }
        }
        memcpy(parts->mark[part], mark, sizeof mark);
    }
}

HEED_EXPORT int HEED(heed_linear_mark)(const struct marking *a, int threads)
{
    struct marking_parts parts = {.asked = a};
    marks mark[MARKS / LANES] = {{0}};
    heed_share(mark_part, &parts, MARKED, a->N * a->K < 100000 ? 1 : threads);
    for (int part = 0; part < MARKED; part++)
        for (int i = 0; i < MARKS / LANES; i++)
            mark[i] = marked(mark[i], parts.mark[part][i]);
    memcpy((void *)a->mark, mark, sizeof mark);
    return 0;
}

/* y = x Wᵀ + b.    M K -> M N */
struct forward {
    int64_t x, x_row, w, w_row, bias, y, y_row, M, K, N, relu;
};

static void map_part(void *context, struct heed_turns *turns)
{
    const struct mapping *a = context;
    int64_t parts = turns->tasks, panels = panels_of(a->N);
    for (int64_t part; heed_turn(turns, &part);)
        map_panels(a, panels * part / parts, panels * (part + 1) / parts);
}

HEED_EXPORT int HEED(heed_linear_forward)(const struct forward *a, int threads)
{
    struct mapping map = {(const float *)a->x, (const float *)a->w, (const float *)a->bias,
                          (float *)a->y, a->x_row, a->w_row, a->y_row, a->M, a->K, a->N,
                          a->relu ? RELU : STORE};
    int64_t work = a->M * a->K * a->N;
    heed_share(map_part, &map, work < 200000 ? 1 : threads, threads);
    return 0;
}

/* The `many` most likely symbols of each row with their log-probabilities, in the order of their
ids.

The symbols are cut into chunks, whose limits depend on their number alone. For each row a chunk
keeps its largest logit, Σ exp(logit - largest), and its best few. The worst of those few is a
floor: symbols of later chunks below it cannot be among the best. */
struct choosing {
    int64_t x, x_row, w, w_row, bias, M, K, N, many, end, forbidden, forbids;
    int64_t log_prob, symbol, ending, chunks, scratch, floor;
};

enum { CHUNK = 80 }; /* panels */

struct found {
    float value;
    int32_t symbol;
};

/* Of one row in one chunk; `many` entries of struct found follow, best first. */
struct part {
    float largest, sum;
};

HEED_INLINE size_t part_size(int64_t many)
{
    return sizeof(struct part) + sizeof(struct found) * (size_t)many;
}

HEED_INLINE struct part *part_at(const struct choosing *a, int64_t chunk, int64_t row)
{
    return (struct part *)((char *)a->scratch + (size_t)(chunk * a->M + row) * part_size(a->many));
}

HEED_INLINE struct found *found_in(struct part *part) { return (struct found *)(part + 1); }

/* Symbols come in the order of their ids, so among equals the lower id stays ahead. */
HEED_INLINE void insert(struct found *found, int64_t many, float value, int32_t symbol)
{
    int64_t i = many - 1;
    for (; i > 0 && found[i - 1].value < value; i--)
        found[i] = found[i - 1];
    found[i] = (struct found){value, symbol};
}

/* Insert the logits that are among the best. */
static void look_through(const struct choosing *a, struct found *found, const float *logit,
                         int64_t count, int64_t first)
{
    float least = found[a->many - 1].value;
    for (int64_t i = 0; i < count; i++)
        if (logit[i] > least) {
            insert(found, a->many, logit[i], (int32_t)(first + i));
            least = found[a->many - 1].value;
        }
}

/* BLOCK panels of logits from symbol `first` on, -inf beyond the last; they are overwritten. */
enum { BLOCK = 16, GROUP = 4 * PANEL, GROUPS = BLOCK * PANEL / GROUP };

static void hear(const struct choosing *a, struct part *part, float *logit, int64_t first)
{
    float top[GROUPS], block = -INFINITY;
    for (int g = 0; g < GROUPS; g++) {
        vec largest = fill(-INFINITY);
        for (int i = 0; i < GROUP; i += LANES)
            largest = larger(load(logit + g * GROUP + i), largest);
        top[g] = max_of(largest);
        block = top[g] > block ? top[g] : block;
    }
    if (block > part->largest) {
        part->sum *= part->largest == -INFINITY ? 0 : expf(part->largest - block);
        part->largest = block;
    }
    /* If all logits are -inf, subtract 0: exp(-inf - 0) is 0, but exp(-inf + inf) is NaN. */
    vec by = fill(part->largest == -INFINITY ? 0 : part->largest), sum = fill(0);
    for (int i = 0; i < BLOCK * PANEL; i += LANES)
        sum += exp_of(load(logit + i) - by);
    part->sum += sum_of(sum);
    const int64_t *forbidden = (const int64_t *)a->forbidden;
    for (int64_t i = 0; i < a->forbids; i++)
        if (forbidden[i] >= first && forbidden[i] < first + BLOCK * PANEL)
            logit[forbidden[i] - first] = -INFINITY;
    struct found *found = found_in(part);
    for (int g = 0; g < GROUPS; g++)
        if (top[g] > found[a->many - 1].value)
            look_through(a, found, logit + g * GROUP, GROUP, first + g * GROUP);
}

/* Chunks may raise the floor in any order. A logit equal to the floor still counts: its id may be
lower. */
static void open_chunk(const struct choosing *a, int64_t chunk)
{
    for (int64_t m = 0; m < a->M; m++) {
        struct part *part = part_at(a, chunk, m);
        float floor = atomic_load_explicit((_Atomic float *)a->floor + m, memory_order_relaxed);
        *part = (struct part){-INFINITY, 0};
        for (int64_t i = 0; i < a->many; i++)
            found_in(part)[i] = (struct found){nextafterf(floor, -INFINITY), 0};
    }
}

static void close_chunk(const struct choosing *a, int64_t chunk)
{
    for (int64_t m = 0; m < a->M; m++) {
        _Atomic float *floor = (_Atomic float *)a->floor + m;
        float least = found_in(part_at(a, chunk, m))[a->many - 1].value;
        if (least > atomic_load_explicit(floor, memory_order_relaxed))
            atomic_store_explicit(floor, least, memory_order_relaxed);
    }
}

/* Compute the logits of some rows, a few panels at a time, and update what their chunk keeps. */
static void choose_rows(const struct choosing *a, int64_t chunk, int64_t from, int64_t to,
                        int64_t m, int64_t rows)
{
    enum { WIDE = BLOCK * PANEL };
    float logit[ROWS * WIDE];
    int64_t first = from * PANEL, count = a->N - first < WIDE ? a->N - first : WIDE;
    if (to - from < BLOCK || count < WIDE)
        for (int64_t i = 0; i < rows * WIDE; i++)
            logit[i] = -INFINITY;
    rows_by_panels(rows, m == 0, (const float *)a->x + m * a->x_row, a->x_row, (const float *)a->w,
                   a->w_row, (const float *)a->bias, logit, WIDE, a->K, a->N, from, to, STORE);
    for (int64_t i = 0; i < rows; i++) {
        if (a->end >= first && a->end < to * PANEL)
            ((float *)a->ending)[m + i] = logit[i * WIDE + a->end - first];
        hear(a, part_at(a, chunk, m + i), logit + i * WIDE, first);
    }
}

static void choose_chunk(void *context, struct heed_turns *turns)
{
    const struct choosing *a = context;
    int64_t panels = panels_of(a->N);
    for (int64_t chunk; heed_turn(turns, &chunk);) {
        int64_t begin = chunk * CHUNK, stop = begin + CHUNK < panels ? begin + CHUNK : panels;
        open_chunk(a, chunk);
        for (int64_t from = begin; from < stop; from += BLOCK)
            for (int64_t m = 0, rows; m < a->M; m += rows) {
                rows = next_rows(a->M - m);
                choose_rows(a, chunk, from, from + BLOCK < stop ? from + BLOCK : stop, m, rows);
            }
        close_chunk(a, chunk);
    }
}

static void by_symbol(struct found *found, int64_t many)
{
    for (int64_t i = 1; i < many; i++)
        for (int64_t j = i; j && found[j].symbol < found[j - 1].symbol; j--) {
            struct found other = found[j];
            found[j] = found[j - 1];
            found[j - 1] = other;
        }
}

/* Merge the chunks of a row in order. */
static void conclude(const struct choosing *a, int64_t m)
{
    struct part *whole = part_at(a, 0, m);
    struct found *found = found_in(whole);
    for (int64_t chunk = 1; chunk < a->chunks; chunk++) {
        struct part *part = part_at(a, chunk, m);
        float top = part->largest > whole->largest ? part->largest : whole->largest;
        float by = top == -INFINITY ? 0 : top;
        whole->sum = whole->sum * expf(whole->largest - by) + part->sum * expf(part->largest - by);
        whole->largest = top;
        struct found *more = found_in(part);
        for (int64_t i = 0; i < a->many && more[i].value > found[a->many - 1].value; i++)
            insert(found, a->many, more[i].value, more[i].symbol);
    }
    float sum = logf(whole->sum);
    float *log_prob = (float *)a->log_prob + m * a->many, *ending = (float *)a->ending + m;
    int64_t *symbol = (int64_t *)a->symbol + m * a->many;
    by_symbol(found, a->many);
    for (int64_t i = 0; i < a->many; i++) {
        log_prob[i] = found[i].value - whole->largest - sum;
        symbol[i] = found[i].symbol;
    }
    *ending = *ending - whole->largest - sum;
}

HEED_EXPORT int HEED(heed_linear_likeliest)(const struct choosing *asked, int threads)
{
    struct choosing a = *asked;
    a.chunks = (panels_of(a.N) + CHUNK - 1) / CHUNK;
    size_t parts = (size_t)(a.chunks * a.M) * part_size(a.many);
    char *scratch = heed_room(parts + sizeof(float) * (size_t)a.M);
    if (!scratch)
        return 1;
    a.scratch = (int64_t)scratch;
    a.floor = (int64_t)(scratch + parts);
    for (int64_t m = 0; m < a.M; m++)
        ((float *)a.floor)[m] = -INFINITY;
    heed_share(choose_chunk, &a, a.chunks, threads);
    for (int64_t m = 0; m < a.M; m++)
        conclude(&a, m);
    free(scratch);
    return 0;
}

/* A linear map inside a loop, with one or two inputs, with or without tanh. For backward, the
panels hold the transposed weights.    y = f(Σ x_i W_iᵀ); d = by f'(y), by_i = d W_i */
struct stepping {
    const float *x[2], *w[2]; /* B K_i, the columns of the weight for it in panels */
    float *y;                 /* B N */
    const float *by;          /* backward: B N */
    float *d, *by_x[2];       /* backward: B N, B K_i */
    int64_t x_row[2], by_row, K[2], B, N, bends; /* the second K is 0 if there is one input */
};

enum { TOGETHER = 32 }; /* the most rows per task */

HEED_INLINE void bend(float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(y + i, tanh_of(load(y + i)));
    if (i < count)
        store_some(y + i, tanh_of(load_some(y + i, (int)(count - i), 0)), (int)(count - i));
}

HEED_INLINE void unbend(const float *by, const float *y, float *d, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        d[i] = by[i] * (1 - y[i] * y[i]);
}

struct stepping_team {
    const struct stepping *a;
    int64_t rows;
};

static void step_ahead(void *context, struct heed_turns *turns)
{
    const struct stepping_team *team = context;
    const struct stepping *a = team->a;
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t b = task * team->rows, rows = b + team->rows < a->B ? team->rows : a->B - b;
        float *y = a->y + b * a->N;
        for (int i = 0; i < (a->K[1] ? 2 : 1); i++)
            product(a->x[i] + b * a->x_row[i], a->x_row[i], a->w[i], 0, 0, y, a->N, rows, a->K[i],
                    a->N, i ? ADD : STORE);
        if (a->bends)
            bend(y, rows * a->N);
    }
}

static void step_back(void *context, struct heed_turns *turns)
{
    const struct stepping_team *team = context;
    const struct stepping *a = team->a;
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t b = task * team->rows, rows = b + team->rows < a->B ? team->rows : a->B - b;
        const float *d = a->by + b * a->by_row;
        int64_t d_row = a->by_row;
        if (a->bends) {
            for (int64_t i = b; i < b + rows; i++)
                unbend(a->by + i * a->by_row, a->y + i * a->N, a->d + i * a->N, a->N);
            d = a->d + b * a->N, d_row = a->N;
        }
        for (int i = 0; i < (a->K[1] ? 2 : 1); i++)
            product(d, d_row, a->w[i], 0, 0, a->by_x[i] + b * a->K[i], a->K[i], rows, a->N, a->K[i],
                    STORE);
    }
}

/* Every row is computed the same in any task, so results do not depend on the number of threads. */
static int step(heed_worker *worker, const struct stepping *a, int threads)
{
    int64_t rows = (a->B + threads - 1) / threads;
    rows = rows < ROWS ? ROWS : rows > TOGETHER ? TOGETHER : rows;
    struct stepping_team team = {a, rows};
    heed_share(worker, &team, (a->B + rows - 1) / rows, threads);
    return 0;
}

HEED_EXPORT int HEED(heed_linear_ahead)(const struct stepping *a, int threads)
{
    return step(step_ahead, a, threads);
}

HEED_EXPORT int HEED(heed_linear_back)(const struct stepping *a, int threads)
{
    return step(step_back, a, threads);
}
