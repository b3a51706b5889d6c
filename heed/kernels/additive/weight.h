/* From energies to weights: softmax, the Gaussian gain and dropout; and the scratch memory of a
worker. */

#ifndef HEED_ADDITIVE_WEIGHT_H
#define HEED_ADDITIVE_WEIGHT_H

#include "kernels/additive/energy.h"

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

/* Dropout's factor for each weight: zero, or 1 / (1 - dropout). It is drawn by hashing seed, row
and key, so that forward, backward and any split of the work draw the same. */
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

struct room { /* scratch memory of one worker */
    float *memory;
    struct queries q;
    float *energy, *other, *third;
    float *values; /* weights of several rows interleaved, or rows of the gradient */
    float *dq, *dw, *dw_block;
    int64_t *index;
    uint8_t *sees, *any;
    int64_t width; /* length of a row of energies */
};

/* Scratch for n keys at a time; rows are padded, since vectors may write past their end. */
static int make_room(const struct call *c, int64_t n, struct room *room)
{
    int64_t D = padded(c->D), R = padded(c->R);
    room->width = padded(n) + PAD;
    int64_t count = ROWS * D * 4 + 3 * D + 3 * ROWS * room->width + ROWS * at_least(R, n) + PAD;
    size_t bytes = (size_t)count * sizeof(float) + (size_t)n * sizeof(int64_t);
    bytes += (size_t)((ROWS + 1) * room->width);
    float *x = room->memory = heed_room(bytes + 64);
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

/* exp(energy - most) where the row sees a key, zero elsewhere. Returns their sum; `most` is the
largest. */
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
        odd += pick(e == e, fill(0), e); /* larger() drops NaN; a row of NaN is not blind */
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

/* Gaussian gain and dropout, applied to the exponentials of one row before normalisation. */
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

#endif
