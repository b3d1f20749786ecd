/* A block drafter (drafters/parallel.py): from the target's hidden states to draft logits; and its serial head. */

/* The drafter's weights beside its layers: packed, of 4 bits, the head's of 8. taps: layers of the target whose hidden
states it reads; outputs: tokens of the draft vocabulary. */
typedef struct {
    long hidden, inner, taps, layers, outputs;
    float eps;
    int embedding_bits;                           /* 16 (bfloat16) or 32 */
    const void *embedding;                        /* [tokens, hidden], the target's */
    const float *fuse_gain, *gain, *ones, *masks; /* [hidden]; masks [slots, hidden] */
    const uint8_t *fuse;                          /* [hidden, taps * hidden] */
    const uint8_t *context;                       /* [layers * 2 kv_heads head_dim, hidden]: keys and values */
    const uint8_t *inputs;                        /* [2 * hidden, 2 * hidden]: of slot 0, of every later slot */
    const uint8_t *head;                          /* [outputs, hidden] */
} BlockDrafter;

/* RMS norm of x [n], which may be `to`; gain [n] or null. */
static void rms_norm(const float *x, long n, const float *gain, float eps, float *to)
{
    const float scale = inv_rms(x, n, eps);
    for (long i = 0; i < n; i++) to[i] = gain ? x[i] * scale * gain[i] : x[i] * scale;
}

/* Row `token` [n] of an embedding in bfloat16 (bits 16) or float32 (32), as float32. */
static void load_embedding(const void *embedding, int64_t token, long n, int bits, float *to)
{
    const char *from = (const char *)embedding + token * n * bits / 8;
    if (bits == 32) memcpy(to, from, n * sizeof(float));
    for (long i = 0; i < n && bits == 16; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        const uint32_t wide = (uint32_t)half << 16;
        memcpy(to + i, &wide, sizeof wide);
    }
}

/* Fuses the taps [tokens, taps, hidden] of new context tokens to states [tokens, hidden], and writes their keys and
values to the cache of every layer; by a team. scratch: tokens * (taps * hidden + hidden + layers * 2 kv_heads head_dim)
floats. */
static void store_context_team(const BlockDrafter *b, const DecoderLayer *layers, const AttentionMetadata *context,
                               const float *taps, float *states, float *scratch, char *input_scratch)
{
    const long n = context->tokens, hidden = b->hidden, dim = context->head_dim, kv_heads = context->kv_heads;
    const long kv_size = 2 * kv_heads * dim, width = b->taps * hidden;
    float *normed = scratch, *fused = normed + n * width, *kv = fused + n * hidden;
#pragma omp for schedule(static)
    for (long i = 0; i < n * b->taps; i++) rms_norm(taps + i * hidden, hidden, 0, b->eps, normed + i * hidden);
    product_team(normed, n, width, 0, 0, 0, 4, b->fuse, hidden, 0, fused, input_scratch);
#pragma omp for schedule(static)
    for (long t = 0; t < n; t++) rms_norm(fused + t * hidden, hidden, b->fuse_gain, b->eps, states + t * hidden);
    product_team(states, n, hidden, b->ones, b->eps, 0, 4, b->context, b->layers * kv_size, 0, kv, input_scratch);
#pragma omp for schedule(static)
    for (long i = 0; i < n * b->layers * kv_heads; i++) {
        const long t = i / (b->layers * kv_heads), l = i / kv_heads % b->layers, h = i % kv_heads;
        const float *key = kv + (t * b->layers + l) * kv_size + h * dim;
        const long at = ((context->slots[t] * kv_heads + h) * context->capacity + context->positions[t]) * dim;
        apply_rope(key, context->cos + t * dim, context->sin + t * dim, dim, layers[l].keys + at);
        memcpy(layers[l].values + at, key + kv_heads * dim, dim * sizeof(float));
    }
}

/* One round of a block drafter: new context into the cache, then the block pass and its logits.

context: its n >= 0 new tokens, of which taps [n, taps, hidden]; context_ends [rows]: which of them is the last of each
row, or -1. last_states [rows, hidden]: of the rows' last context tokens, updated in place. anchors [rows]: tokens.
pass: the block's slots; row_of, slot_of [tokens]: each slot's row, and its number within the row. x [tokens, hidden]:
final-normed states; logits [tokens, outputs]. scratch: n * hidden + rows * 4 * hidden floats, and the larger of
store_context_team's and layers_team's. input_scratch: of the product with the most inputs. */
void draft_block(const BlockDrafter *b, const DecoderLayer *layers, const AttentionMetadata *context, const float *taps,
                 const int64_t *context_ends, long rows, float *last_states, const int64_t *anchors,
                 const AttentionMetadata *pass, const int64_t *row_of, const int64_t *slot_of, float *x, float *logits,
                 float *scratch, char *input_scratch, int threads)
{
    const long hidden = b->hidden, n = context->tokens;
    float *states = scratch, *conditions = states + n * hidden, *inputs = conditions + 2 * rows * hidden;
    float *rest = inputs + 2 * rows * hidden;
#pragma omp parallel num_threads(threads)
    {
        if (n) store_context_team(b, layers, context, taps, states, rest, input_scratch);
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) { /* conditions [rows, 2, hidden]: the anchor's embedding, the last state */
            float *anchor = conditions + 2 * r * hidden, *last = last_states + r * hidden;
            load_embedding(b->embedding, anchors[r], hidden, b->embedding_bits, anchor);
            rms_norm(anchor, hidden, 0, b->eps, anchor);
            if (context_ends[r] >= 0) memcpy(last, states + context_ends[r] * hidden, hidden * sizeof(float));
            memcpy(anchor + hidden, last, hidden * sizeof(float));
        }
        product_team(conditions, rows, 2 * hidden, 0, 0, 0, 4, b->inputs, 2 * hidden, 0, inputs, input_scratch);
#pragma omp for schedule(static)
        for (long t = 0; t < pass->tokens; t++) {
            const float *from = inputs + (2 * row_of[t] + (slot_of[t] > 0)) * hidden;
            const float *mask = b->masks + slot_of[t] * hidden;
            for (long i = 0; i < hidden; i++) x[t * hidden + i] = from[i] + mask[i];
        }
        layers_team(layers, b->layers, pass, x, hidden, b->inner, b->eps, 4, rest, input_scratch);
#pragma omp for schedule(static)
        for (long t = 0; t < pass->tokens; t++) rms_norm(x + t * hidden, hidden, b->gain, b->eps, x + t * hidden);
        product_team(x, pass->tokens, hidden, 0, 0, 0, 8, b->head, b->outputs, 0, logits, input_scratch);
    }
}

/* Weights of a hybrid drafter's serial head (drafters/hybrid.py): packed, of 4 bits, the head's of 8. */
typedef struct {
    long hidden, inner, outputs;
    float eps;
    int embedding_bits;       /* 16 (bfloat16) or 32 */
    const void *embedding;    /* [tokens, hidden], the target's */
    const float *gain;        /* [hidden] */
    const uint8_t *of_tokens; /* [hidden + inner, 2 * hidden] */
    const uint8_t *outer;     /* [hidden, inner] */
    const uint8_t *head;      /* [outputs, hidden] */
} SerialHead;

/* Refines one slot of each of `rows` rows by the two tokens before it, and gives its logits.

prepared [rows, hidden + inner]: the states' part; previous, before [rows]: the token before the slot, and the one
before that. states [rows, hidden]: refined and normed; logits [rows, outputs]. scratch: rows * (3 * hidden + 2 * inner)
floats; input_scratch: of the product with the most inputs. */
void refine(const SerialHead *s, long rows, const float *prepared, const int64_t *previous, const int64_t *before,
            float *states, float *logits, float *scratch, char *input_scratch, int threads)
{
    const long hidden = s->hidden, inner = s->inner, both = hidden + inner;
    float *tokens = scratch, *sums = tokens + rows * 2 * hidden, *activated = sums + rows * both;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < 2 * rows; i++) {
            float *to = tokens + i * hidden;
            load_embedding(s->embedding, i % 2 ? before[i / 2] : previous[i / 2], hidden, s->embedding_bits, to);
            rms_norm(to, hidden, 0, s->eps, to);
        }
        product_team(tokens, rows, 2 * hidden, 0, 0, 0, 4, s->of_tokens, both, prepared, sums, input_scratch);
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            memcpy(states + r * hidden, sums + r * both, hidden * sizeof(float));
            for (long i = 0; i < inner; i++) {
                const float x = sums[r * both + hidden + i];
                activated[r * inner + i] = x / (1 + expf(-x));
            }
        }
        product_team(activated, rows, inner, 0, 0, 0, 4, s->outer, hidden, states, states, input_scratch);
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) rms_norm(states + r * hidden, hidden, s->gain, s->eps, states + r * hidden);
        product_team(states, rows, hidden, 0, 0, 0, 8, s->head, s->outputs, 0, logits, input_scratch);
    }
}
