/* Additive attention on the CPU: softmax_s(sum_d w_d tanh(q_td + k_sd)) v_s, and its gradients.

tanh(q + k) can be written as a fraction in two ways. In both, the expensive functions are applied
to each row alone, which leaves one product per (t, s, d); and several fractions share one division:

    exponential  (x - 1) / (x + 1)              x = e^{2q} e^{2k}
    addition     (a + c) / (1 + a c)            a = tanh q, c = tanh k
    together     n1/d1 + n2/d2 = (n1 d2 + n2 d1) / (d1 d2)

The addition form keeps the digits of small numbers, which x - 1 would lose; it is used for small
keys in float32. The exponential form is used for all other keys while the product of the
denominators stays in range. Beyond that range, tanh is computed element by element. The form is
chosen for each key alone (and for the largest query of a few rows), so hidden keys cannot change a
bit of the result.

Vectors run along D. A prepared key is D numbers (e^{2k} or tanh k), padded with zeros to a multiple
of 16, then its largest magnitude and its form; README.md has the derivation. */

#include "kernels/additive/attend.h"
#include "kernels/additive/retrace.h"

HEED_EXPORT int HEED(heed_additive_forward)(const struct forward *forward, int threads)
{
    const struct call *c = &forward->call;
    struct job job = {.call = c, .forward = forward};
    job.keys = prepared_keys(c, &job, threads);
    int64_t tasks = c->B * c->H * ((c->T + ROWS - 1) / ROWS);
    heed_share(attend_some, &job, tasks, workers(c, c->T, threads));
    return job.failed;
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

/* The dropout factor of every weight.    B H T S */
HEED_EXPORT int HEED(heed_additive_kept)(const struct keeping *k, int threads)
{
    struct call c = {.seed = k->seed, .dropout = k->dropout};
    (void)threads;
    for (int64_t row = 0; row < k->rows; row++)
        kept(&c, row, 0, k->S, k->factor + row * k->S);
    return 0;
}
