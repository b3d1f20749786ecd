/* Attention of a pass over the keys and values of its rows, with rotary position embedding. */

/* Rotary position embedding of one head: x * cos + x with its halves swapped * sin. */
static void turn(const float *x, const float *cos, const float *sin, long dim, float *to)
{
    const long half = dim / 2;
    for (long i = 0; i < half; i++) {
        to[i] = x[i] * cos[i] + x[i + half] * sin[i];
        to[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
    }
}

/* The sum of each of 16 vectors, side by side. */
static inline __m512 sums(const __m512 *of)
{
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(of[2 * i], of[2 * i + 1]),
                             _mm512_unpackhi_ps(of[2 * i], of[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xEE));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xDD));
}

/* The exponentials of n scores less their largest, in place; what is behind them to the next multiple of 16 becomes 0.
Returns their sum. */
static float exponentials(float *scores, long n)
{
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (long c = 0; c < n; c += 16) {
        const __mmask16 there = n - c < 16 ? (1 << (n - c)) - 1 : 0xffff;
        most = _mm512_mask_max_ps(most, there, most, _mm512_loadu_ps(scores + c));
    }
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long c = 0; c < n; c += 16) {
        const __mmask16 there = n - c < 16 ? (1 << (n - c)) - 1 : 0xffff;
        const __m512 x = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + c), most));
        const __m512 kept = _mm512_maskz_mov_ps(there, x);
        sum = _mm512_add_ps(sum, kept);
        _mm512_storeu_ps(scores + c, kept);
    }
    return _mm512_reduce_add_ps(sum);
}

enum { QUERIES = 8, COLUMNS = 16 };

/* Queries of one head and one row of the cache: of `count` <= QUERIES tokens one after another, `stride` numbers apart
like what comes out. keys, values [last_seen rounded up to COLUMNS, dim]: COLUMNS at a time they are read for all.
scores: room for [count, capacity]. */
static inline __attribute__((always_inline)) void mix(
    const float *queries, long count, long stride, long dim, const int64_t *last_seen, const float *keys,
    const float *values, float *scores, long capacity, float *out)
{
    const __m512 scale = _mm512_set1_ps(1 / sqrtf((float)dim));
    float whole[QUERIES];
    long longest = 0;
    for (long t = 0; t < count; t++) longest = last_seen[t] + 1 > longest ? last_seen[t] + 1 : longest;
    for (long c = 0; c < longest; c += COLUMNS)
        for (long t = 0; t < count; t++) {
            if (c > last_seen[t]) continue;
            const float *query = queries + t * stride;
            __m512 products[COLUMNS];
#pragma GCC unroll 16
            for (int k = 0; k < COLUMNS; k++) {
                const float *key = keys + (c + k) * dim;
                products[k] = _mm512_mul_ps(_mm512_loadu_ps(query), _mm512_loadu_ps(key));
                for (long i = 16; i < dim; i += 16)
                    products[k] = _mm512_fmadd_ps(_mm512_loadu_ps(query + i), _mm512_loadu_ps(key + i), products[k]);
            }
            _mm512_storeu_ps(scores + t * capacity + c, _mm512_mul_ps(sums(products), scale));
        }
    for (long t = 0; t < count; t++) {
        whole[t] = exponentials(scores + t * capacity, last_seen[t] + 1);
        memset(out + t * stride, 0, dim * sizeof(float));
    }
    for (long c = 0; c < longest; c += COLUMNS)
        for (long t = 0; t < count; t++) {
            const long some = last_seen[t] + 1 - c < COLUMNS ? last_seen[t] + 1 - c : COLUMNS;
            const float *score = scores + t * capacity + c;
            for (long i = 0; i < dim && some > 0; i += 64) {
                float *to = out + t * stride + i;
                __m512 even[4], odd[4]; /* columns: two chains of sums */
                for (int j = 0; j < 4; j++) even[j] = _mm512_loadu_ps(to + 16 * j), odd[j] = _mm512_setzero_ps();
                for (long k = 0; k < some; k += 2) {
                    const float *at = values + (c + k) * dim + i;
                    for (int j = 0; j < 4; j++)
                        even[j] = _mm512_fmadd_ps(_mm512_set1_ps(score[k]), _mm512_loadu_ps(at + 16 * j), even[j]);
                    for (int j = 0; j < 4 && k + 1 < some; j++)
                        odd[j] = _mm512_fmadd_ps(_mm512_set1_ps(score[k + 1]), _mm512_loadu_ps(at + dim + 16 * j),
                                                 odd[j]);
                }
                for (int j = 0; j < 4; j++) _mm512_storeu_ps(to + 16 * j, _mm512_add_ps(even[j], odd[j]));
            }
        }
    for (long t = 0; t < count; t++)
        for (long i = 0; i < dim; i += 16) {
            float *to = out + t * stride + i;
            _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(1 / whole[t])));
        }
}

/* The tokens of a pass, the tables of their positions, and where their rows' keys and values are. */
typedef struct {
    long tokens, heads, kv_heads, dim; /* dim: a multiple of 64 */
    const float *cos, *sin;            /* [tokens, dim], the first half of sin negated */
    const int64_t *slots, *positions, *last_seen; /* [tokens]; last_seen: the last position that each sees */
    long capacity;                     /* a multiple of 16, of keys and values [slots, kv_heads, capacity, dim] */
    float *queries;                    /* room for [tokens, heads, dim] */
    float *scores;                     /* room for [threads, QUERIES, capacity] */
} Pass;

/* A pass's queries, keys and values [tokens, heads + 2 * kv_heads, dim]: turned, stored at the slots and positions of
their tokens in keys and values, and attended to, by every thread of a team. out [tokens, heads, dim]. */
static void attend_shared(const Pass *p, const float *packed, float *keys, float *values, float *out)
{
    const long dim = p->dim, heads = p->heads, kv_heads = p->kv_heads, shared = heads / kv_heads;
#pragma omp for schedule(static)
    for (long i = 0; i < p->tokens * (heads + kv_heads); i++) {
        const long t = i / (heads + kv_heads), h = i % (heads + kv_heads);
        const float *mine = packed + (t * (heads + 2 * kv_heads) + h) * dim;
        if (h < heads) {
            turn(mine, p->cos + t * dim, p->sin + t * dim, dim, p->queries + (t * heads + h) * dim);
            continue;
        }
        const long at = ((p->slots[t] * kv_heads + h - heads) * p->capacity + p->positions[t]) * dim;
        turn(mine, p->cos + t * dim, p->sin + t * dim, dim, keys + at);
        memcpy(values + at, mine + kv_heads * dim, dim * sizeof(float));
    }
    const long chunks = (p->tokens + QUERIES - 1) / QUERIES;
    float *scores = p->scores + omp_get_thread_num() * QUERIES * p->capacity;
#pragma omp for schedule(dynamic)
    for (long i = 0; i < chunks * heads; i++) {
        const long h = i % heads, kv = h / shared, end = (i / heads + 1) * QUERIES;
        for (long t = end - QUERIES, some; t < end && t < p->tokens; t += some) {
            for (some = 1; t + some < end && t + some < p->tokens && p->slots[t + some] == p->slots[t]; some++);
            const long at = (p->slots[t] * kv_heads + kv) * p->capacity * dim, to = (t * heads + h) * dim;
            if (dim == 64)
                mix(p->queries + to, some, heads * dim, 64, p->last_seen + t, keys + at, values + at, scores,
                    p->capacity, out + to);
            else
                mix(p->queries + to, some, heads * dim, dim, p->last_seen + t, keys + at, values + at, scores,
                    p->capacity, out + to);
        }
    }
}

/* As attend_shared, with a team of its own. */
void attend(const Pass *pass, const float *packed, float *keys, float *values, float *out, int threads)
{
#pragma omp parallel num_threads(threads)
    attend_shared(pass, packed, keys, values, out);
}
