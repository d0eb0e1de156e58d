/* Inner products of blocks of rows of 4, 2 or 1 bits with tokens, by table look-ups: four bits of a row index a table of
   12-bit partial sums per token (pshufb or tbl). */

#if defined(__SSSE3__) || defined(__aarch64__)
#define HAS_TABLES 1

enum {
    TABLE_BYTES = 256, /* code bytes per row and table block: 512 sums of 6 bits fit into 15 bits */
    VECTORS = TABLE_ROWS / BYTES,
    PRODUCTS = TABLE_ROWS / LANES,
    TOGETHER = 16, /* tokens whose products are kept in the L1 cache */
};

/* Maximum tokens for which look-ups are faster than multiplication, by bits. */
#if BYTES == 64
enum { TABLE_TOKENS_1 = 40, TABLE_TOKENS_2 = 12, TABLE_TOKENS_4 = 0 };
#else
enum { TABLE_TOKENS_1 = 1 << 30, TABLE_TOKENS_2 = 1 << 30, TABLE_TOKENS_4 = 8 };
#endif

typedef uint8_t bytes __attribute__((vector_size(BYTES)));
typedef uint16_t words __attribute__((vector_size(BYTES)));

static inline bytes look_up(const uint8_t *table, bytes indexes) {
#if BYTES == 64
    return (bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const void *)table)), (__m512i)indexes);
#elif BYTES == 32
    return (bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const void *)table)), (__m256i)indexes);
#elif defined(__aarch64__)
    return (bytes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)indexes);
#else
    return (bytes)_mm_shuffle_epi8(_mm_load_si128((const void *)table), (__m128i)indexes);
#endif
}

/* Interleave the lower or upper halves of all 16-byte lanes. */
#if BYTES == 64
#define INTERLEAVE(NAME, TYPE, X86, ARM, ARM_TYPE) \
    static inline TYPE NAME(TYPE a, TYPE b) { return (TYPE)_mm512_##X86((__m512i)a, (__m512i)b); }
#elif BYTES == 32
#define INTERLEAVE(NAME, TYPE, X86, ARM, ARM_TYPE) \
    static inline TYPE NAME(TYPE a, TYPE b) { return (TYPE)_mm256_##X86((__m256i)a, (__m256i)b); }
#elif defined(__aarch64__)
#define INTERLEAVE(NAME, TYPE, X86, ARM, ARM_TYPE) \
    static inline TYPE NAME(TYPE a, TYPE b) { return (TYPE)ARM((ARM_TYPE)a, (ARM_TYPE)b); }
#else
#define INTERLEAVE(NAME, TYPE, X86, ARM, ARM_TYPE) \
    static inline TYPE NAME(TYPE a, TYPE b) { return (TYPE)_mm_##X86((__m128i)a, (__m128i)b); }
#endif
INTERLEAVE(interleave_low, bytes, unpacklo_epi8, vzip1q_u8, uint8x16_t)
INTERLEAVE(interleave_high, bytes, unpackhi_epi8, vzip2q_u8, uint8x16_t)
INTERLEAVE(interleave_low_words, words, unpacklo_epi16, vzip1q_u16, uint16x8_t)
INTERLEAVE(interleave_high_words, words, unpackhi_epi16, vzip2q_u16, uint16x8_t)

/* Tables of the sums of each group of 4 bits: 16 entries of 12 bits, the lower and the upper 6 bits in turn. */
static int make_tables(Scan *scan) {
    const Request *r = scan->request;
    long size = 4 / r->bits, levels = 1 << r->bits;
    float *sums = malloc(sizeof(float) * 16 * scan->groups);
    if (sums == NULL) return -1;
    for (long t = 0; t < r->token_count; t++) {
        float largest = 1e-30f, base = 0;
        for (long g = 0; g < scan->groups; g++) {
            float *entry = sums + 16 * g, least = INFINITY, most = -INFINITY;
            memset(entry, 0, 16 * sizeof(float));
            for (long k = 0; k < size; k++) {
                long component = g * size + k;
                float value = component < r->components ? r->tokens[t * r->components + component] : 0;
                for (long n = 0; n < 16; n++)
                    entry[n] += value * (float)(2 * (n >> k * r->bits & (levels - 1)) + 1 - levels);
            }
            for (long n = 0; n < 16; n++) {
                least = fminf(least, entry[n]);
                most = fmaxf(most, entry[n]);
            }
            for (long n = 0; n < 16; n++) entry[n] -= least;
            base += least;
            largest = fmaxf(largest, most - least);
        }
        float step = largest / 4095, factor = 4095 / largest;
        uint8_t *tables = (uint8_t *)scan->packed + t * scan->groups * 32;
        for (long g = 0; g < scan->groups; g++)
            for (long n = 0; n < 16; n++) {
                long value = (long)(sums[16 * g + n] * factor + 0.5f);
                tables[32 * g + n] = value & 63;
                tables[32 * g + 16 + n] = (uint8_t)(value >> 6);
            }
        scan->steps[t] = step;
        scan->bases[t] = base;
        scan->errors[t] = 0.51f * step * scan->groups;
    }
    free(sums);
    return 0;
}

/* Load 16 bytes at `offset` of one row per 16-byte lane: row `first` and every fourth row after it. */
static inline bytes load_lanes(const uint8_t *const *codes, long first, long offset) {
    codes += first;
#if BYTES == 64
    __m512i rows = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(codes[0] + offset)));
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const void *)(codes[4] + offset)), 1);
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const void *)(codes[8] + offset)), 2);
    return (bytes)_mm512_inserti32x4(rows, _mm_loadu_si128((const void *)(codes[12] + offset)), 3);
#else
    bytes rows;
    for (long lane = 0; lane < BYTES / 16; lane++) memcpy((char *)&rows + 16 * lane, codes[4 * lane] + offset, 16);
    return rows;
#endif
}

/* Split `length` code bytes from `first` on of the rows of a block into nibbles (2 * length, TABLE_ROWS).

   The order of rows in a vector is such that look_up_token() receives products in the order of the rows: byte i of lane l
   belongs to row LANES * (2 * (i % 2) + i / 8) + 4 * l + i / 2 % 4. */
static void split_nibbles(const Block *block, const Block *next, long first, long length, uint8_t *restrict nibbles) {
    uint8_t padded[TABLE_ROWS][16];
    const uint8_t *tails[TABLE_ROWS];
    long step = length < 64 ? 64 / length : 1;
    for (long i = 0; i < block->size; i += step) prefetch(next->codes[i] + first, length);
    for (long at = 0; at < length; at += 16) {
        const uint8_t *const *codes = block->codes;
        long offset = first + at;
        if (at + 16 > length) { /* do not read beyond the end of a row */
            for (long i = 0; i < TABLE_ROWS; i++) {
                memset(padded[i], 0, 16);
                memcpy(padded[i], codes[i] + offset, length - at);
                tails[i] = padded[i];
            }
            codes = tails;
            offset = 0;
        }
        long columns = length - at < 16 ? length - at : 16;
        for (long v = 0; v < VECTORS && v * BYTES < block->count; v++) {
            bytes rows[16];
#pragma GCC unroll 16
            for (long i = 0; i < 16; i++)
                rows[i] = load_lanes(codes, v * BYTES + LANES * (2 * (i & 1) + (i >> 3)) + (i >> 1 & 3), offset);
#pragma GCC unroll 4
            for (int stage = 0; stage < 4; stage++) { /* transpose 16 rows of 16 bytes in each lane */
                bytes turned[16];
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    turned[2 * i] = interleave_low(rows[i], rows[i + 8]);
                    turned[2 * i + 1] = interleave_high(rows[i], rows[i + 8]);
                }
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) rows[i] = turned[i];
            }
            uint8_t *target = nibbles + 2 * at * TABLE_ROWS + v * BYTES;
#pragma GCC unroll 16
            for (long j = 0; j < columns; j++, target += 2 * TABLE_ROWS) {
                *(bytes *)target = rows[j] & 15;
                *(bytes *)(target + TABLE_ROWS) = rows[j] >> 4;
            }
        }
    }
}

/* Products of `count` vectors of rows with one token. */
static inline __attribute__((always_inline)) void look_up_token(
    const uint8_t *tables, const uint8_t *nibbles, long groups, int count, float step, float base,
    const float *scales, floats *products, int add) {
    words whole[2][VECTORS] = {{{0}}}, upper[2][VECTORS] = {{{0}}};
    for (long g = 0; g < groups; g += 4)
        for (int plane = 0; plane < 2; plane++)
            for (int v = 0; v < count; v++) {
                const uint8_t *table = tables + 32 * g + 16 * plane, *indexes = nibbles + g * TABLE_ROWS + v * BYTES;
                bytes sum = look_up(table, *(const bytes *)indexes);
                for (int i = 1; i < 4; i++) sum += look_up(table + 32 * i, *(const bytes *)(indexes + i * TABLE_ROWS));
                whole[plane][v] += (words)sum;
                upper[plane][v] += (words)sum >> 8;
            }
    const ints weights = (ints){0} + (64 << 16 | 1);
    for (int v = 0; v < count; v++)
        for (int odd = 0; odd < 2; odd++) {
            words sums[2];
            for (int plane = 0; plane < 2; plane++)
                sums[plane] = odd ? upper[plane][v] : whole[plane][v] - (upper[plane][v] << 8);
            for (int high = 0; high < 2; high++, products++, scales += LANES) {
                words pairs = high ? interleave_high_words(sums[0], sums[1]) : interleave_low_words(sums[0], sums[1]);
                ints sum = multiply_pairs((ints){0}, (ints)pairs, weights);
                floats product = (__builtin_convertvector(sum, floats) * step + base) * *(const floats *)scales;
                *products = add ? *products + product : product;
            }
        }
}

/* Lanes of a vector of consecutive rows from `first` on that are in the segment from `from` to `to`. */
#if defined(__AVX512F__)
typedef __mmask16 Mask;
static inline Mask segment_mask(long first, long from, long to) {
    const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    Mask above = _mm512_cmpge_epi32_mask(rows, _mm512_set1_epi32((int)(from - first)));
    return _mm512_mask_cmplt_epi32_mask(above, rows, _mm512_set1_epi32((int)(to - first)));
}
static inline floats masked_maximum(Mask mask, floats values, floats most) {
    return (floats)_mm512_mask_max_ps((__m512)most, mask, (__m512)values, (__m512)most);
}
#else
typedef ints Mask;
static inline Mask segment_mask(long first, long from, long to) {
    ints rows;
    for (int lane = 0; lane < LANES; lane++) rows[lane] = lane;
    return (rows >= (int)(from - first)) & (rows < (int)(to - first));
}
static inline floats masked_maximum(Mask mask, floats values, floats most) {
    return maximum((floats)(((ints)values & mask) | ((ints)((floats){0} - INFINITY) & ~mask)), most);
}
#endif

/* Maxima of the products (count, PRODUCTS) of tokens in each segment of a block: maxima (segments, stride). */
static void segment_maxima(
    const Block *block, const floats *restrict products, long count, float *restrict maxima, long stride) {
    for (long s = 0, from = 0; s < block->segment_count; from = block->segments[s++].end, maxima += stride) {
        Mask masks[PRODUCTS];
        for (long v = 0; v < PRODUCTS; v++) masks[v] = segment_mask(v * LANES, from, block->segments[s].end);
        for (long t = 0; t < count; t++) {
            floats even = (floats){0} - INFINITY, odd = even;
            for (long v = 0; v < PRODUCTS; v += 2) {
                even = masked_maximum(masks[v], products[t * PRODUCTS + v], even);
                odd = masked_maximum(masks[v + 1], products[t * PRODUCTS + v + 1], odd);
            }
            maxima[t] = largest_lane(maximum(even, odd));
        }
    }
}

/* Maxima of each segment of a block for all tokens: maxima (segments, padded). `products` has PRODUCTS vectors for each
   token. */
static void look_up_maxima(const Scan *scan, const Block *block, const Block *next, uint8_t *nibbles,
                           floats *restrict products, float *restrict maxima) {
    const Request *r = scan->request;
    for (long first = 0; first < r->row_bytes; first += TABLE_BYTES) {
        long length = r->row_bytes - first < TABLE_BYTES ? r->row_bytes - first : TABLE_BYTES;
        split_nibbles(block, next, first, length, nibbles);
        long groups = (2 * length + 3) / 4 * 4;
        if (groups > 2 * length) memset(nibbles + 2 * length * TABLE_ROWS, 0, (groups - 2 * length) * TABLE_ROWS);
        for (long from = 0; from < r->token_count; from += TOGETHER) {
            long to = from + TOGETHER < r->token_count ? from + TOGETHER : r->token_count;
            for (long t = from; t < to; t++) {
                const uint8_t *tables = (const uint8_t *)scan->packed + (t * scan->groups + 2 * first) * 32;
                float base = first == 0 ? scan->bases[t] : 0;
                floats *target = products + t * PRODUCTS;
                if (block->count <= BYTES)
                    look_up_token(tables, nibbles, groups, 1, scan->steps[t], base, block->scales, target, first > 0);
                else
                    look_up_token(tables, nibbles, groups, 2, scan->steps[t], base, block->scales, target, first > 0);
            }
            if (first + length == r->row_bytes)
                segment_maxima(block, products + from * PRODUCTS, to - from, maxima + from, scan->padded);
        }
    }
}

#endif
