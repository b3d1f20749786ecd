/* A block drafter (drafters/parallel.py) from the target's taps to logits: new context, block pass and head. */

/* What it is made of beside its layers. Weights of 4 bits, the head's of 8. */
typedef struct {
    long hidden, inner, taps, layers, outputs; /* taps: layers of the target that it hears; outputs: of the head */
    float eps;
    int embedding_bits;    /* 16 (bfloat16) or 32 */
    const void *embedding; /* [tokens, hidden], the target's */
    const float *fuse_gain, *gain, *ones, *masks; /* [hidden], masks [slots, hidden] */
    const uint8_t *fuse, *context, *inputs, *head;
} Block;

/* x divided by its root mean square, times gain (or null). */
static void normed(const float *x, long n, const float *gain, float eps, float *to)
{
    const float scale = root(x, n, eps);
    for (long i = 0; i < n; i++) to[i] = gain ? x[i] * scale * gain[i] : x[i] * scale;
}

/* n numbers of 16 (bfloat16) or 32 bits. */
static void widen(const char *from, long n, int bits, float *to)
{
    if (bits == 32) memcpy(to, from, n * sizeof(float));
    for (long i = 0; i < n && bits == 16; i++) {
        const uint32_t wide = (uint32_t)((const uint16_t *)from)[i] << 16;
        memcpy(to + i, &wide, sizeof wide);
    }
}

/* The taps [tokens, taps, hidden] of new context become states [tokens, hidden], and keys and values in every layer. */
static void read_context(const Block *b, const Layer *layers, const Pass *context, const float *taps, float *states,
                         float *numbers, char *room)
{
    const long n = context->tokens, hidden = b->hidden, dim = context->dim, kv_heads = context->kv_heads;
    const long both = 2 * kv_heads * dim, width = b->taps * hidden;
    float *parts = numbers, *fused = parts + n * width, *made = fused + n * hidden;
#pragma omp for schedule(static)
    for (long i = 0; i < n * b->taps; i++) normed(taps + i * hidden, hidden, 0, b->eps, parts + i * hidden);
    product_shared(parts, n, width, 0, 0, 0, 4, b->fuse, hidden, 0, fused, room);
#pragma omp for schedule(static)
    for (long t = 0; t < n; t++) normed(fused + t * hidden, hidden, b->fuse_gain, b->eps, states + t * hidden);
    product_shared(states, n, hidden, b->ones, b->eps, 0, 4, b->context, b->layers * both, 0, made, room);
#pragma omp for schedule(static)
    for (long i = 0; i < n * b->layers * kv_heads; i++) {
        const long t = i / (b->layers * kv_heads), l = i / kv_heads % b->layers, h = i % kv_heads;
        const float *key = made + (t * b->layers + l) * both + h * dim;
        const long at = ((context->slots[t] * kv_heads + h) * context->capacity + context->positions[t]) * dim;
        turn(key, context->cos + t * dim, context->sin + t * dim, dim, layers[l].keys + at);
        memcpy(layers[l].values + at, key + kv_heads * dim, dim * sizeof(float));
    }
}

/* context: its tokens, none or more; ends [rows]: which of them is the last of each row, or -1. last [rows, hidden]: the
states of the rows' last context tokens, brought up to date. anchors [rows]. pass: the block's slots; row_of, slot_of
[tokens]: each slot's row, and its number within the row. x [tokens, hidden]: final-normed states; logits [tokens,
outputs]. numbers: room for context->tokens * (taps * hidden + 2 * hidden + layers * 2 * kv_heads * dim) numbers, for
rows * 4 * hidden, and for decode_layers'; room: of the product with the most inputs. */
void draft_block(const Block *b, const Layer *layers, const Pass *context, const float *taps, const int64_t *ends,
                 long rows, float *last, const int64_t *anchors, const Pass *pass, const int64_t *row_of,
                 const int64_t *slot_of, float *x, float *logits, float *numbers, char *room, int threads)
{
    const long hidden = b->hidden, n = context->tokens;
    float *states = numbers, *given = states + n * hidden, *made = given + 2 * rows * hidden;
    float *rest = made + 2 * rows * hidden;
#pragma omp parallel num_threads(threads)
    {
        if (n) read_context(b, layers, context, taps, states, rest, room);
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            float embedded[hidden];
            widen((const char *)b->embedding + anchors[r] * hidden * b->embedding_bits / 8, hidden, b->embedding_bits,
                  embedded);
            if (ends[r] >= 0) memcpy(last + r * hidden, states + ends[r] * hidden, hidden * sizeof(float));
            normed(embedded, hidden, 0, b->eps, given + 2 * r * hidden);
            memcpy(given + (2 * r + 1) * hidden, last + r * hidden, hidden * sizeof(float));
        }
        product_shared(given, rows, 2 * hidden, 0, 0, 0, 4, b->inputs, 2 * hidden, 0, made, room);
#pragma omp for schedule(static)
        for (long t = 0; t < pass->tokens; t++) {
            const float *from = made + (2 * row_of[t] + (slot_of[t] > 0)) * hidden, *mask = b->masks + slot_of[t] * hidden;
            for (long i = 0; i < hidden; i++) x[t * hidden + i] = from[i] + mask[i];
        }
        layers_shared(layers, b->layers, pass, x, hidden, b->inner, b->eps, 4, rest, room);
#pragma omp for schedule(static)
        for (long t = 0; t < pass->tokens; t++) normed(x + t * hidden, hidden, b->gain, b->eps, x + t * hidden);
        product_shared(x, pass->tokens, hidden, 0, 0, 0, 8, b->head, b->outputs, 0, logits, room);
    }
}

/* The serial head of a hybrid drafter (drafters/hybrid.py). Weights of 4 bits, the head's of 8. */
typedef struct {
    long hidden, inner, outputs;
    float eps;
    int embedding_bits;
    const void *embedding;
    const float *gain;
    const uint8_t *of_tokens, *outer, *head;
} Serial;

/* One slot of `rows` rows. prepared [rows, hidden + inner]: the states' part; previous, before [rows]: the two tokens
just before the slot. states [rows, hidden]: mended and normed; logits [rows, outputs]. numbers: room for rows * (3 *
hidden + 2 * inner) numbers; room: of the product with the most inputs. */
void mend(const Serial *s, long rows, const float *prepared, const int64_t *previous, const int64_t *before,
          float *states, float *logits, float *numbers, char *room, int threads)
{
    const long hidden = s->hidden, inner = s->inner, both = hidden + inner;
    float *tokens = numbers, *made = tokens + rows * 2 * hidden, *inside = made + rows * both;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < 2 * rows; i++) {
            const long token = i % 2 ? before[i / 2] : previous[i / 2];
            widen((const char *)s->embedding + token * hidden * s->embedding_bits / 8, hidden, s->embedding_bits,
                  tokens + i * hidden);
            normed(tokens + i * hidden, hidden, 0, s->eps, tokens + i * hidden);
        }
        product_shared(tokens, rows, 2 * hidden, 0, 0, 0, 4, s->of_tokens, both, prepared, made, room);
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            memcpy(states + r * hidden, made + r * both, hidden * sizeof(float));
            for (long i = 0; i < inner; i++) {
                const float x = made[r * both + hidden + i];
                inside[r * inner + i] = x / (1 + expf(-x));
            }
        }
        product_shared(inside, rows, inner, 0, 0, 0, 4, s->outer, hidden, states, states, room);
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) normed(states + r * hidden, hidden, s->gain, s->eps, states + r * hidden);
        product_shared(states, rows, hidden, 0, 0, 0, 8, s->head, s->outputs, 0, logits, room);
    }
}
