/* The forward pass: contexts of rows of queries, or their energies where there are no values. */

#ifndef HEED_ADDITIVE_ATTEND_H
#define HEED_ADDITIVE_ATTEND_H

#include "kernels/additive/weight.h"

/* sum_j p_j v_j of `rows` rows, for U vectors of values; the rows of p are interleaved. */
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

/* The contexts of a block from its weights: four rows at a time, skipping keys whose weights are
zero. */
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
        for (int64_t r = 0; r < c->R; r += 64) { /* via `aside`: there are fewer than four rows */
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
    if (c->bare) {
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

#endif
