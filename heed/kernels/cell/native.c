/* What recurrent cells do between their products, number by number. README.md has the formulas. */

#include "kernels/native.h"

enum { AT_ONCE = 16 }; /* rows of a task */

HEED_INLINE vec sigmoid_of(vec x) { return 1.0f / (1.0f + exp_of(-x)); }

struct rows {
    int64_t B, H;
    const float *x;               /* B G, G = 3 H: the input's part of r, z and n */
    float *gates;                 /* B G: the state's part; ahead, r and z take its places */
    const float *h;               /* B H */
    float *new;                   /* B H: n, what the state might become */
    float *after;                 /* B H: the next state; back, what reaches h past its part */
    const float *by;              /* back: the gradient of the next state, B H */
    float *by_x, *by_gates;       /* back: those of both parts, B G */
    int64_t x_row, h_row, by_row; /* how far it is to the next row; the others are dense */
};

HEED_INLINE void gru_ahead_at(const struct rows *c, int64_t b, int64_t i, int count)
{
    const int64_t H = c->H;
    const float *x = c->x + b * c->x_row + i, *h = c->h + b * c->h_row + i;
    float *gates = c->gates + b * 3 * H + i;
    vec r = sigmoid_of(load_some(gates, count, 0) + load_some(x, count, 0));
    vec z = sigmoid_of(load_some(gates + H, count, 0) + load_some(x + H, count, 0));
    vec n = tanh_of(load_some(x + 2 * H, count, 0) + r * load_some(gates + 2 * H, count, 0));
    vec after = n + z * (load_some(h, count, 0) - n);
    store_some(gates, r, count);
    store_some(gates + H, z, count);
    store_some(c->new + b * H + i, n, count);
    store_some(c->after + b * H + i, after, count);
}

HEED_INLINE void gru_back_at(const struct rows *c, int64_t b, int64_t i, int count)
{
    const int64_t H = c->H;
    const float *gates = c->gates + b * 3 * H + i;
    vec d = load_some(c->by + b * c->by_row + i, count, 0);
    vec r = load_some(gates, count, 0), z = load_some(gates + H, count, 0);
    vec n = load_some(c->new + b * H + i, count, 0);
    vec h = load_some(c->h + b * c->h_row + i, count, 0);
    vec direct = d * z, by_new = (d - direct) * (1.0f - n * n);
    vec by_r = by_new * load_some(gates + 2 * H, count, 0) * (r * (1.0f - r));
    vec by_z = d * (h - n) * (z * (1.0f - z));
    float *by_x = c->by_x + b * 3 * H + i, *by_gates = c->by_gates + b * 3 * H + i;
    store_some(by_x, by_r, count);
    store_some(by_x + H, by_z, count);
    store_some(by_x + 2 * H, by_new, count);
    store_some(by_gates, by_r, count);
    store_some(by_gates + H, by_z, count);
    store_some(by_gates + 2 * H, by_new * r, count);
    store_some(c->after + b * H + i, direct, count);
}

typedef void at(const struct rows *c, int64_t b, int64_t i, int count);

HEED_INLINE void through(const struct rows *c, struct heed_turns *turns, at *each)
{
    for (int64_t task; heed_turn(turns, &task);) {
        int64_t stop = (task + 1) * AT_ONCE < c->B ? (task + 1) * AT_ONCE : c->B;
        for (int64_t b = task * AT_ONCE; b < stop; b++) {
            int64_t i = 0;
            for (; i + LANES <= c->H; i += LANES)
                each(c, b, i, LANES);
            if (i < c->H)
                each(c, b, i, (int)(c->H - i));
        }
    }
}

static void gru_ahead(void *c, struct heed_turns *turns) { through(c, turns, gru_ahead_at); }
static void gru_back(void *c, struct heed_turns *turns) { through(c, turns, gru_back_at); }

HEED_EXPORT int HEED(heed_gru_ahead)(const struct rows *c, int threads)
{
    heed_share(gru_ahead, (void *)c, (c->B + AT_ONCE - 1) / AT_ONCE, threads);
    return 0;
}

HEED_EXPORT int HEED(heed_gru_back)(const struct rows *c, int threads)
{
    heed_share(gru_back, (void *)c, (c->B + AT_ONCE - 1) / AT_ONCE, threads);
    return 0;
}
