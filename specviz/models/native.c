/* What a decode step spends its time on, for processors with AVX-512: products with weights of 4 bits, and attention.
   A row's result does not depend on how many rows there are. */

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>

/* ---- products: out[r, n] = sum over k of x[r, k] * w[n, k]

A weight is cut into blocks of 16 outputs, a block into groups of 32 inputs. A group is 320 bytes:
  16 float16   scale of each output
  16 float16   lowest weight of each output
  256 bytes    levels 0 to 15: byte 32 p + 2 n + i holds those of inputs 4 p + i (its low half) and 4 p + 2 + i (its
               high half) of output n, i being 0 or 1
and w = scale * level + lowest. The 32 inputs of a group are rounded to 16 bits of their largest; their sums with the
levels are whole numbers, and exact. */

enum { OUTPUTS = 16, INPUTS = 32, PARTS = INPUTS / 4, GROUP_BYTES = 320, TILE = 8 };

/* A group of a row of x. */
typedef struct {
    int16_t inputs[INPUTS];
    float unit; /* of inputs */
    float sum;  /* of what they stand for */
} Group;

/* Twice the levels, less 8: vpermw looks at five bits of an index. */
static const int16_t LEVELS[32] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7,
                                   -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

/* 32 numbers as a Group. */
static void narrow(__m512 first, __m512 second, Group *to)
{
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 32767 / most : 0);
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
    const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
    _mm256_storeu_si256((__m256i *)to->inputs, _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256((__m256i *)(to->inputs + 16), _mm512_cvtepi32_epi16(b));
    to->unit = most / 32767;
    to->sum = to->unit * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

/* 1 / root mean square of n numbers, n a multiple of 16. */
static float root(const float *x, long n, float eps)
{
    __m512 sum = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i), sum);
    return 1 / sqrtf(_mm512_reduce_add_ps(sum) / (float)n + eps);
}

/* Powers of e: a power of two times the first terms of a series. */
static __m512 exponential(__m512 x)
{
    static const float SERIES[] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f,
                                   6.9314718e-1f, 1};
    const __m512 power = _mm512_max_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _mm512_set1_ps(-126));
    const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 part = _mm512_sub_ps(power, whole);
    __m512 sum = _mm512_set1_ps(0);
    for (int i = 0; i < 7; i++) sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(SERIES[i]));
    return _mm512_scalef_ps(sum, whole);
}

/* gate / (1 + exp(-gate)) * up */
static __m512 gated(const float *gate, const float *up)
{
    const __m512 x = _mm512_loadu_ps(gate);
    const __m512 below = _mm512_add_ps(_mm512_set1_ps(1), exponential(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_mul_ps(_mm512_div_ps(x, below), _mm512_loadu_ps(up));
}

/* One block of outputs for `rows` <= TILE rows of x [rows, groups]. */
static inline __attribute__((always_inline)) void tile(
    int rows, long groups, const Group *x, const uint8_t *w, const float *add, float *out, long stride)
{
    const __m512i levels = _mm512_loadu_si512(LEVELS);
    __m512 total[TILE];
    for (int r = 0; r < rows; r++) total[r] = _mm512_setzero_ps();
    for (long g = 0; g < groups; g++, w += GROUP_BYTES, x++) {
        __m512i sum[TILE];
        for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) {
            const __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(w + 64 + 32 * p)));
            const __m512i low = _mm512_permutexvar_epi16(both, levels);
            const __m512i high = _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), levels);
            for (int r = 0; r < rows; r++) {
                const int *pairs = (const int *)x[r * groups].inputs + 2 * p;
                sum[r] = _mm512_dpwssd_epi32(sum[r], low, _mm512_set1_epi32(pairs[0]));
                sum[r] = _mm512_dpwssd_epi32(sum[r], high, _mm512_set1_epi32(pairs[1]));
            }
        }
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        const __m512 lowest = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + 32)));
        const __m512 middle = _mm512_fmadd_ps(scale, _mm512_set1_ps(8), lowest);
        for (int r = 0; r < rows; r++) {
            const __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(x[r * groups].unit));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), unit, total[r]);
            total[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r * groups].sum), middle, total[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        if (add) total[r] = _mm512_add_ps(total[r], _mm512_loadu_ps(add + r * stride));
        _mm512_storeu_ps(out + r * stride, total[r]);
    }
}

static void tile_of(
    int rows, long groups, const Group *x, const uint8_t *w, const float *add, float *out, long stride)
{
    switch (rows) {
    case 1: tile(1, groups, x, w, add, out, stride); break;
    case 2: tile(2, groups, x, w, add, out, stride); break;
    case 3: tile(3, groups, x, w, add, out, stride); break;
    case 4: tile(4, groups, x, w, add, out, stride); break;
    case 5: tile(5, groups, x, w, add, out, stride); break;
    case 6: tile(6, groups, x, w, add, out, stride); break;
    case 7: tile(7, groups, x, w, add, out, stride); break;
    default: tile(8, groups, x, w, add, out, stride);
    }
}

/* x [rows, inputs] -> out [rows, outputs], which may be `add`.

gain [inputs], or null: x is divided by its root mean square (eps added to the square) and multiplied by gain first.
is_gated: x is [rows, 2 * inputs], gates and what they let through. add [rows, outputs], or null, is added to out.
room: for [rows, inputs / 32] Groups and [rows] numbers. */
void int4_product(const float *x, long rows, long inputs, const float *gain, float eps, int is_gated, const uint8_t *w,
                  long outputs, const float *add, float *out, Group *room, int threads)
{
    const long groups = inputs / INPUTS, blocks = outputs / OUTPUTS;
    float *roots = (float *)(room + rows * groups);
    if (gain)
        for (long r = 0; r < rows; r++) roots[r] = root(x + r * inputs, inputs, eps);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < rows * groups; i++) {
            const long r = i / groups, at = i % groups * INPUTS;
            __m512 first, second;
            if (is_gated) {
                const float *gate = x + 2 * r * inputs + at;
                first = gated(gate, gate + inputs), second = gated(gate + 16, gate + inputs + 16);
            } else
                first = _mm512_loadu_ps(x + r * inputs + at), second = _mm512_loadu_ps(x + r * inputs + at + 16);
            if (gain) {
                const __m512 scale = _mm512_set1_ps(roots[r]);
                first = _mm512_mul_ps(_mm512_mul_ps(first, scale), _mm512_loadu_ps(gain + at));
                second = _mm512_mul_ps(_mm512_mul_ps(second, scale), _mm512_loadu_ps(gain + at + 16));
            }
            narrow(first, second, room + i);
        }
#pragma omp for schedule(static)
        for (long b = 0; b < blocks; b++)
            for (long r = 0; r < rows; r += TILE) {
                const long at = r * outputs + b * OUTPUTS;
                tile_of(rows - r < TILE ? (int)(rows - r) : TILE, groups, room + r * groups,
                        w + b * groups * GROUP_BYTES, add ? add + at : 0, out + at, outputs);
            }
    }
}

/* ---- attention */

/* Rotary position embedding of one head: x * cos + x with its halves swapped * sin. */
static void turn(const float *x, const float *cos, const float *sin, long dim, float *to)
{
    const long half = dim / 2;
    for (long i = 0; i < half; i++) {
        to[i] = x[i] * cos[i] + x[i + half] * sin[i];
        to[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
    }
}

/* Softmax of query [dim] with the first n keys [n, dim], times the values. scores: room for n numbers and 16. */
static void mix(const float *query, const float *keys, const float *values, long n, long dim, float *scores, float *out)
{
    const float scale = 1 / sqrtf((float)dim);
    float most = -INFINITY;
    for (long c = 0; c < n; c++) {
        __m512 sum = _mm512_setzero_ps();
        for (long i = 0; i < dim; i += 16)
            sum = _mm512_fmadd_ps(_mm512_loadu_ps(query + i), _mm512_loadu_ps(keys + c * dim + i), sum);
        scores[c] = scale * _mm512_reduce_add_ps(sum);
        most = scores[c] > most ? scores[c] : most;
    }
    for (long c = n; c < n + 16; c++) scores[c] = -INFINITY;
    __m512 whole = _mm512_setzero_ps();
    for (long c = 0; c < n; c += 16) {
        const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + c), _mm512_set1_ps(most)));
        const __m512 kept = _mm512_maskz_mov_ps(n - c < 16 ? (1 << (n - c)) - 1 : 0xffff, weight);
        whole = _mm512_add_ps(whole, kept);
        _mm512_storeu_ps(scores + c, kept);
    }
    const __m512 share = _mm512_set1_ps(1 / _mm512_reduce_add_ps(whole));
    for (long i = 0; i < dim; i += 64) {
        __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (long c = 0; c < n; c++)
            for (int j = 0; j < 4; j++)
                sum[j] = _mm512_fmadd_ps(_mm512_set1_ps(scores[c]), _mm512_loadu_ps(values + c * dim + i + 16 * j),
                                         sum[j]);
        for (int j = 0; j < 4; j++) _mm512_storeu_ps(out + i + 16 * j, _mm512_mul_ps(sum[j], share));
    }
}

/* A pass's queries, keys and values [tokens, heads + 2 * kv_heads, dim], dim a multiple of 64: turned, stored at the
slots and positions of their tokens in keys and values [slots, kv_heads, capacity, dim], and attended to.

cos, sin [tokens, dim], the first half of sin negated. last_seen: the last position that each token sees. out [tokens,
heads, dim]. room: for [tokens, heads, dim] turned queries and, for each thread, room_of_thread numbers: 16 more than a
row has positions. */
void attend(const float *packed, long tokens, long heads, long kv_heads, long dim, const float *cos, const float *sin,
            const int64_t *slots, const int64_t *positions, const int64_t *last_seen, float *keys, float *values,
            long capacity, float *out, float *room, long room_of_thread, int threads)
{
    float *scores = room + tokens * heads * dim;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long t = 0; t < tokens; t++) {
            const float *mine = packed + t * (heads + 2 * kv_heads) * dim, *c = cos + t * dim, *s = sin + t * dim;
            for (long h = 0; h < heads; h++) turn(mine + h * dim, c, s, dim, room + (t * heads + h) * dim);
            for (long h = 0; h < kv_heads; h++) {
                const long at = ((slots[t] * kv_heads + h) * capacity + positions[t]) * dim;
                turn(mine + (heads + h) * dim, c, s, dim, keys + at);
                for (long i = 0; i < dim; i++) values[at + i] = mine[(heads + kv_heads + h) * dim + i];
            }
        }
#pragma omp for schedule(dynamic)
        for (long i = 0; i < tokens * heads; i++) {
            const long t = i / heads, h = i % heads / (heads / kv_heads);
            const long at = (slots[t] * kv_heads + h) * capacity * dim;
            mix(room + i * dim, keys + at, values + at, last_seen[t] + 1, dim,
                scores + omp_get_thread_num() * room_of_thread, out + i * dim);
        }
    }
}
