/* Attention of a packed pass over the KV cache, with rotary position embedding (RoPE). */

/* The tokens of a pass, their RoPE tables, and where keys and values of their rows are. */
typedef struct {
    long tokens, heads, kv_heads, head_dim;       /* head_dim: a multiple of 64 */
    const float *cos, *sin;                       /* [tokens, head_dim], the first half of sin negated */
    const int64_t *slots, *positions, *last_seen; /* [tokens]; last_seen: the last position that each attends to */
    long capacity;                                /* of keys and values [slots, kv_heads, capacity, head_dim]: 16 n */
    float *queries;                               /* scratch [tokens, heads, head_dim] */
    float *scores;                                /* scratch [threads, QUERY_TILE, capacity] */
} AttentionMetadata;

/* QUERY_TILE: consecutive tokens of a row that attend together; KEY_TILE: keys that are read at a time. */
enum { QUERY_TILE = 8, KEY_TILE = 16 };

/* RoPE of one head x [dim] -> to [dim], halves layout: x * cos + rotate_half(x) * sin. */
static void apply_rope(const float *x, const float *cos, const float *sin, long dim, float *to)
{
    const long half = dim / 2;
    for (long i = 0; i < half; i++) {
        to[i] = x[i] * cos[i] + x[i + half] * sin[i];
        to[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
    }
}

/* Horizontal sums of 16 vectors: lane i of the result is the sum of vectors[i]. */
static inline __m512 horizontal_sums(const __m512 *vectors)
{
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(vectors[2 * i], vectors[2 * i + 1]),
                             _mm512_unpackhi_ps(vectors[2 * i], vectors[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xEE));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xDD));
}

/* The lanes of a vector at `at` that lie before n. */
static inline __mmask16 lanes_before(long n, long at) { return n - at < 16 ? (1 << (n - at)) - 1 : 0xffff; }

/* Softmax without its division: scores [n] become exp(score - max) in place, padded with 0 to a multiple of 16.
Returns their sum. */
static float exp_scores(float *scores, long n)
{
    __m512 max = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (long c = 0; c < n; c += 16)
        max = _mm512_mask_max_ps(max, lanes_before(n, c), max, _mm512_loadu_ps(scores + c));
    max = _mm512_set1_ps(_mm512_reduce_max_ps(max));
    for (long c = 0; c < n; c += 16) {
        const __m512 x = exp_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + c), max));
        const __m512 valid = _mm512_maskz_mov_ps(lanes_before(n, c), x);
        sum = _mm512_add_ps(sum, valid);
        _mm512_storeu_ps(scores + c, valid);
    }
    return _mm512_reduce_add_ps(sum);
}

/* scores [count, capacity]: scaled dot products of the queries with the keys that each token attends to, a tile of keys
at a time for all queries. Other arguments as attend_tile's. */
INLINE void tile_scores(const float *queries, long count, long stride, long dim, const int64_t *last_seen, long columns,
                        const float *keys, float *scores, long capacity)
{
    const __m512 scale = _mm512_set1_ps(1 / sqrtf((float)dim));
    for (long c = 0; c < columns; c += KEY_TILE)
        for (long t = 0; t < count; t++) {
            if (c > last_seen[t]) continue;
            const float *query = queries + t * stride;
            __m512 products[KEY_TILE];
#pragma GCC unroll 16
            for (int k = 0; k < KEY_TILE; k++) {
                const float *key = keys + (c + k) * dim;
                products[k] = _mm512_mul_ps(_mm512_loadu_ps(query), _mm512_loadu_ps(key));
                for (long i = 16; i < dim; i += 16)
                    products[k] = _mm512_fmadd_ps(_mm512_loadu_ps(query + i), _mm512_loadu_ps(key + i), products[k]);
            }
            _mm512_storeu_ps(scores + t * capacity + c, _mm512_mul_ps(horizontal_sums(products), scale));
        }
}

/* out [64] += the sum over n <= KEY_TILE keys of score[k] * values[k], values [n, dim]; even and odd keys apart. */
INLINE void add_values(const float *score, const float *values, long n, long dim, float *out)
{
    __m512 even[4], odd[4];
    for (int j = 0; j < 4; j++) even[j] = _mm512_loadu_ps(out + 16 * j), odd[j] = _mm512_setzero_ps();
    for (long k = 0; k < n; k += 2) {
        const float *at = values + k * dim;
        for (int j = 0; j < 4; j++)
            even[j] = _mm512_fmadd_ps(_mm512_set1_ps(score[k]), _mm512_loadu_ps(at + 16 * j), even[j]);
        for (int j = 0; j < 4 && k + 1 < n; j++)
            odd[j] = _mm512_fmadd_ps(_mm512_set1_ps(score[k + 1]), _mm512_loadu_ps(at + dim + 16 * j), odd[j]);
    }
    for (int j = 0; j < 4; j++) _mm512_storeu_ps(out + 16 * j, _mm512_add_ps(even[j], odd[j]));
}

/* Attention of one head for `count` <= QUERY_TILE consecutive tokens of one row.

queries, out [count, dim] with `stride` floats from token to token. last_seen [count]. keys, values [columns, dim], the
columns rounded up to KEY_TILE. scores: scratch [count, capacity]. */
INLINE void attend_tile(const float *queries, long count, long stride, long dim, const int64_t *last_seen,
                        const float *keys, const float *values, float *scores, long capacity, float *out)
{
    float sums[QUERY_TILE];
    long columns = 0;
    for (long t = 0; t < count; t++) columns = last_seen[t] + 1 > columns ? last_seen[t] + 1 : columns;
    tile_scores(queries, count, stride, dim, last_seen, columns, keys, scores, capacity);
    for (long t = 0; t < count; t++) {
        sums[t] = exp_scores(scores + t * capacity, last_seen[t] + 1);
        memset(out + t * stride, 0, dim * sizeof(float));
    }
    for (long c = 0; c < columns; c += KEY_TILE)
        for (long t = 0; t < count; t++) {
            const long n = last_seen[t] + 1 - c < KEY_TILE ? last_seen[t] + 1 - c : KEY_TILE;
            for (long i = 0; i < dim && n > 0; i += 64)
                add_values(scores + t * capacity + c, values + c * dim + i, n, dim, out + t * stride + i);
        }
    for (long t = 0; t < count; t++)
        for (long i = 0; i < dim; i += 16) {
            float *to = out + t * stride + i;
            _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(1 / sums[t])));
        }
}

/* Writes keys with RoPE, and values, of qkv [tokens, heads + 2 kv_heads, head_dim] to the cache; queries with RoPE to
p->queries; by a team. */
static void store_qkv_team(const AttentionMetadata *p, const float *qkv, float *keys, float *values)
{
    const long dim = p->head_dim, heads = p->heads, kv_heads = p->kv_heads;
#pragma omp for schedule(static)
    for (long i = 0; i < p->tokens * (heads + kv_heads); i++) {
        const long t = i / (heads + kv_heads), h = i % (heads + kv_heads);
        const float *head = qkv + (t * (heads + 2 * kv_heads) + h) * dim;
        if (h < heads) {
            apply_rope(head, p->cos + t * dim, p->sin + t * dim, dim, p->queries + (t * heads + h) * dim);
            continue;
        }
        const long at = ((p->slots[t] * kv_heads + h - heads) * p->capacity + p->positions[t]) * dim;
        apply_rope(head, p->cos + t * dim, p->sin + t * dim, dim, keys + at);
        memcpy(values + at, head + kv_heads * dim, dim * sizeof(float));
    }
}

/* Stores the keys and values of a pass in the cache and attends; by a team. qkv [tokens, heads + 2 kv_heads, head_dim];
keys, values [slots, kv_heads, capacity, head_dim]; out [tokens, heads, head_dim]. */
static void attend_team(const AttentionMetadata *p, const float *qkv, float *keys, float *values, float *out)
{
    const long dim = p->head_dim, heads = p->heads, kv_heads = p->kv_heads, queries_per_kv = heads / kv_heads;
    store_qkv_team(p, qkv, keys, values);
    const long chunks = (p->tokens + QUERY_TILE - 1) / QUERY_TILE;
    float *scores = p->scores + omp_get_thread_num() * QUERY_TILE * p->capacity;
#pragma omp for schedule(dynamic)
    for (long i = 0; i < chunks * heads; i++) {
        const long h = i % heads, kv = h / queries_per_kv, end = (i / heads + 1) * QUERY_TILE;
        for (long t = end - QUERY_TILE, n; t < end && t < p->tokens; t += n) {
            for (n = 1; t + n < end && t + n < p->tokens && p->slots[t + n] == p->slots[t]; n++) {}
            const long at = (p->slots[t] * kv_heads + kv) * p->capacity * dim, to = (t * heads + h) * dim;
            if (dim == 64) /* the common head: its loops are unrolled */
                attend_tile(p->queries + to, n, heads * dim, 64, p->last_seen + t, keys + at, values + at, scores,
                            p->capacity, out + to);
            else
                attend_tile(p->queries + to, n, heads * dim, dim, p->last_seen + t, keys + at, values + at, scores,
                            p->capacity, out + to);
        }
    }
}

/* As attend_team, by a team of its own. */
void attend(const AttentionMetadata *pass, const float *qkv, float *keys, float *values, float *out, int threads)
{
#pragma omp parallel num_threads(threads)
    attend_team(pass, qkv, keys, values, out);
}
