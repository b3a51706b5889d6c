/* GRU steps: matrix products and elementwise gates. README.md has the formulas.

Rows are independent: a task takes some rows through all steps. */

#include "kernels/linear/product.h"

enum { MOST = 32 }; /* rows per task: enough to make use of each weight that is read */

HEED_INLINE vec sigmoid_of(vec x) { return 1.0f / (1.0f + exp_of(-x)); }

/* N directions, each with weights of its own. G = 3 H: r, z and n, in this order. */
struct steps {
    int64_t T, N, B, H;
    int64_t F;                /* width of the input feed; 0: none. Otherwise T and N are 1 */
    const float *weight;      /* N: W in panels; backward, its transpose */
    const float *bias;        /* N G */
    const float *feed;        /* of the input feed, in panels */
    const float *x;           /* T N B G: the input's part of the gates */
    const float *fed;         /* the input feed, B F */
    const float *h;           /* T N B H: state before each step */
    float *after;             /* T N B H: state after each step; may overlap h */
    float *gates;             /* T N B G: r, z, and the state's part of n */
    float *new;               /* T N B H: n, the candidate state */
    const float *by;          /* backward: the gradients of all states, T N B H */
    float *by_x, *by_gates;   /* backward: of the input's and the state's part of the gates */
    float *by_h, *by_fed;     /* backward: of the first states, N B H, and of the input feed, B F */
    int64_t x_row, fed_row, h_row, by_row; /* strides of rows; the rest is contiguous */
};

/* The operands of one step of one row. */
struct place {
    const float *x, *h, *by;
    float *gates, *new, *after, *by_x, *by_gates;
    int more; /* backward: `after` holds the gradient from later steps */
};

HEED_INLINE void ahead_at(const struct place *p, int64_t H, int64_t i, int count)
{
    vec r = sigmoid_of(load_some(p->gates + i, count, 0) + load_some(p->x + i, count, 0));
    vec z = sigmoid_of(load_some(p->gates + H + i, count, 0) + load_some(p->x + H + i, count, 0));
    vec n = load_some(p->x + 2 * H + i, count, 0);
    n = tanh_of(n + r * load_some(p->gates + 2 * H + i, count, 0));
    vec after = n + z * (load_some(p->h + i, count, 0) - n);
    store_some(p->gates + i, r, count);
    store_some(p->gates + H + i, z, count);
    store_some(p->new + i, n, count);
    store_some(p->after + i, after, count);
}

HEED_INLINE void back_at(const struct place *p, int64_t H, int64_t i, int count)
{
    vec d = load_some(p->by + i, count, 0);
    if (p->more)
        d += load_some(p->after + i, count, 0);
    vec r = load_some(p->gates + i, count, 0), z = load_some(p->gates + H + i, count, 0);
    vec n = load_some(p->new + i, count, 0), h = load_some(p->h + i, count, 0);
    vec direct = d * z, by_new = (d - direct) * (1.0f - n * n);
    vec by_r = by_new * load_some(p->gates + 2 * H + i, count, 0) * (r * (1.0f - r));
    vec by_z = d * (h - n) * (z * (1.0f - z));
    store_some(p->by_x + i, by_r, count);
    store_some(p->by_x + H + i, by_z, count);
    store_some(p->by_x + 2 * H + i, by_new, count);
    store_some(p->by_gates + i, by_r, count);
    store_some(p->by_gates + H + i, by_z, count);
    store_some(p->by_gates + 2 * H + i, by_new * r, count);
    store_some(p->after + i, direct, count);
}

typedef void at(const struct place *p, int64_t H, int64_t i, int count);

HEED_INLINE void along(const struct place *p, int64_t H, at *each)
{
    int64_t i = 0;
    for (; i + LANES <= H; i += LANES)
        each(p, H, i, LANES);
    if (i < H)
        each(p, H, i, (int)(H - i));
}

/* `rows` rows, the first at index `first` of T N B; `room` is scratch of G numbers for each. */
static void ahead(const struct steps *c, int64_t n, int64_t first, int64_t b, int64_t rows, float *room)
{
    const int64_t H = c->H, G = 3 * H;
    product(c->h + first * c->h_row, c->h_row, c->weight + n * panels_of(G) * PANEL * H, 0,
            c->bias + n * G, c->gates + first * G, G, rows, H, G, STORE);
    const float *x = c->x + first * c->x_row;
    int64_t x_row = c->x_row;
    if (c->F) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(room + i * G, x + i * x_row, sizeof(float) * (size_t)G);
        product(c->fed + b * c->fed_row, c->fed_row, c->feed, 0, 0, room, G, rows, c->F, G, ADD);
        x = room, x_row = G;
    }
    for (int64_t i = 0; i < rows; i++) {
        struct place p = {.x = x + i * x_row, .h = c->h + (first + i) * c->h_row};
        p.gates = c->gates + (first + i) * G;
        p.new = c->new + (first + i) * H;
        p.after = c->after + (first + i) * H;
        along(&p, H, ahead_at);
    }
}

static void back(const struct steps *c, int64_t n, int64_t first, int64_t b, int64_t rows, int more)
{
    const int64_t H = c->H, G = 3 * H;
    float *by_h = c->by_h + (n * c->B + b) * H;
    for (int64_t i = 0; i < rows; i++) {
        struct place p = {.h = c->h + (first + i) * c->h_row, .more = more};
        p.by = c->by + (first + i) * c->by_row;
        p.gates = c->gates + (first + i) * G;
        p.new = c->new + (first + i) * H;
        p.by_x = c->by_x + (first + i) * G;
        p.by_gates = c->by_gates + (first + i) * G;
        p.after = by_h + i * H;
        along(&p, H, back_at);
    }
    product(c->by_gates + first * G, G, c->weight + n * panels_of(H) * PANEL * G, 0, 0, by_h, H, rows,
            G, H, ADD);
    if (c->F)
        product(c->by_x + first * G, G, c->feed, 0, 0, c->by_fed + b * c->F, c->F, rows, G, c->F, STORE);
}

struct team {
    const struct steps *c;
    int64_t rows;   /* per task */
    int64_t blocks; /* tasks per direction */
    int backwards;
    _Atomic int failed;
};

static void work(void *context, struct heed_turns *turns)
{
    struct team *team = context;
    const struct steps *c = team->c;
    float *room = 0;
    if (c->F && !team->backwards) {
        room = heed_room(sizeof(float) * (size_t)(team->rows * 3 * c->H));
        if (!room) {
            team->failed = 1;
            return;
        }
    }
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t n = task / team->blocks, b = task % team->blocks * team->rows;
        int64_t rows = b + team->rows < c->B ? team->rows : c->B - b;
        for (int64_t t = 0; t < c->T; t++) {
            int64_t at = team->backwards ? c->T - 1 - t : t, first = (at * c->N + n) * c->B + b;
            if (team->backwards)
                back(c, n, first, b, rows, t > 0);
            else
                ahead(c, n, first, b, rows, room);
        }
    }
    free(room);
}

/* Every row is computed the same in any task, so results do not depend on the number of threads. */
static int go(const struct steps *c, int threads, int backwards)
{
    int64_t rows = (c->N * c->B + threads - 1) / threads;
    rows = rows < ROWS ? ROWS : rows > MOST ? MOST : rows;
    struct team team = {c, rows, (c->B + rows - 1) / rows, backwards, 0};
    heed_share(work, &team, c->N * team.blocks, threads);
    return team.failed;
}

HEED_EXPORT int HEED(heed_gru_ahead)(const struct steps *c, int threads) { return go(c, threads, 0); }
HEED_EXPORT int HEED(heed_gru_back)(const struct steps *c, int threads) { return go(c, threads, 1); }
