/* The backward pass: from the gradients of contexts (or energies) to those of q, k, v and w. */

#ifndef HEED_ADDITIVE_RETRACE_H
#define HEED_ADDITIVE_RETRACE_H

#include "kernels/additive/weight.h"

/* The gradients of all rows with n keys of one kind, for U vectors along D. With y = tanh(q + k)
and the gradient g of an energy: dw += g y; dq and dk += w g (1 - y²), where dq is multiplied by w
at the end. `a` and `k` point at the operands in the form that `kind` compares; `some` is how many
of a vector's numbers exist. */
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

/* The same with unprepared keys, whose rows end after `exact` numbers. */
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

/* From the energies' gradients for the n keys from s on to dq, dk (rows of D) and dw. */
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

/* x·y, where x is padded with zeros and y ends after `exact` numbers. */
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

/* The same for all rows and n keys; keys that no row sees are skipped. */
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

/* Add to dv of one key the gradient of every row times its weight, for U vectors. */
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

/* One row. In: energies in `p`, gradients of the final weights in `slopes`. Out: the final weights
in `p`, the energies' gradients in `slopes`; returns the gradient of the gain's centre. The weights
are normalised anew instead of by the stored log-sum-exp, so that they sum to one and the energies'
gradients to zero: where all tanh of a row are alike, dq is a small difference. */
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

/* The gradients of a block's contexts, padded with zeros; zero for rows that saw nothing. */
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

/* From the gradients of a block's contexts to those of its energies (in `other`) and its weights
(in `energy`). */
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

/* All gradients of a block of queries. They are added to dk and dv of its group's keys; if `fresh`,
these are overwritten, and zero for keys that no query sees. */
static void retrace(const struct job *job, struct block *at, struct room *room, int fresh, float *dk,
                    float *dv)
{
    const struct call *c = job->call;
    int64_t D = padded(c->D), R = padded(c->R), width = room->width, all = at->to - at->from;
    read_queries(c, at, &room->q);
    memset(room->dq, 0, sizeof(float) * (size_t)(at->rows * D));
    memset(room->dw_block, 0, sizeof(float) * (size_t)D);
    see(c, at, at->from, all, room->sees, width, room->any);
    if (c->bare)
        for (int64_t i = 0; i < at->rows; i++)
            memcpy(room->other + i * width, grad_of(job, at, i), sizeof(float) * (size_t)all);
    else
        find_slopes(job, at, room);
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
            if (!c->bare && room->any[j])
                spread(room->values, R, room->energy + j, width, at->rows, dv + (at->from + j) * R);
        descend_all(job, at, room, s, n, dk + s * D);
    }
    write_slopes(job, at, room);
}

/* A task is one chunk of the queries of all heads that share keys. */
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

/* Sum the chunks in order, without the padding. */
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

#endif
