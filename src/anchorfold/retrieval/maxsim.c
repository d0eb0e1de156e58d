/* MaxSim of query tokens over packed codes, for ragged pages and lists of pages, on several threads.

   hatch_build.py compiles this file once per instruction set, with LEVEL as the suffix of its functions. Products of
   rows and tokens are computed by multiplication (tiles.h) or table look-ups (tables.h). Rounding is bounded: `errors`
   receives an upper bound of the absolute error of the scores of each query. */

#include <pthread.h>
#include <stdlib.h>

#include "vectors.h"
#include "blocks.h"
#include "tiles.h"
#include "tables.h"

enum { MAX_THREADS = 64 };
#define THREAD_WORK 1e7    /* multiplications per thread below which another thread is not worth its start */
#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define EXPORT(name) __attribute__((visibility("default"))) CONCAT(name, LEVEL)

/* Sum the maxima of each query's tokens and reset them. */
static void finish_page(const Scan *scan, int64_t position, float *best) {
    const Request *r = scan->request;
    for (long q = 0; q < r->query_count; q++) {
        float sum = 0;
        for (long t = r->query_starts[q]; t < r->query_starts[q + 1]; t++)
            sum += scan->integer && !scan->tables ? best[t] * scan->steps[t] : best[t];
        r->scores[q * r->score_stride + position] = sum;
    }
    for (long t = 0; t < scan->padded; t++) best[t] = -INFINITY;
}

/* Memory of a thread. */
typedef struct {
    Block blocks[2];
    float *best;      /* (padded,) maxima of the current page */
    float *products;  /* (ROWS, padded), or (tokens, TABLE_ROWS) for table look-ups */
    float *maxima;    /* (TABLE_ROWS, padded) for table look-ups */
    char *buffer;     /* unpacked rows */
} Space;

static void *aligned(size_t size) { return aligned_alloc(64, (size + 63) / 64 * 64); }

static void free_space(Space *space) {
    if (space == NULL) return;
    free(space->best);
    free(space->products);
    free(space->maxima);
    free(space->buffer);
    free(space);
}

static Space *make_space(const Scan *scan) {
    size_t size = sizeof(float) * ROWS * CHUNK;
    long products = ROWS;
    Space *space = aligned(sizeof *space);
    if (space == NULL) return NULL;
    memset(space, 0, sizeof *space);
    space->blocks[0].size = space->blocks[1].size = ROWS;
#ifdef HAS_TABLES
    if (scan->tables) {
        space->blocks[0].size = space->blocks[1].size = products = TABLE_ROWS;
        size = 2 * TABLE_BYTES * TABLE_ROWS;
        space->maxima = aligned(sizeof(float) * TABLE_ROWS * scan->padded);
    }
#endif
    space->best = aligned(sizeof(float) * scan->padded);
    space->products = aligned(sizeof(float) * scan->padded * products);
    space->buffer = aligned(size);
    if (!space->best || !space->products || !space->buffer || (scan->tables && !space->maxima)) {
        free_space(space);
        return NULL;
    }
    memset(space->buffer, 0, size);
    for (long t = 0; t < scan->padded; t++) space->best[t] = -INFINITY;
    return space;
}

/* Score pages until none are left. */
static void work(Scan *scan) {
    Space *space = make_space(scan);
    floats largest_scale = {0};
    float largest_length = 0;
    Cursor cursor = {0};
    if (space != NULL) fill(scan, &cursor, &space->blocks[0]);
    for (long current = 0; space != NULL && space->blocks[current].count > 0; current = !current) {
        const Block *block = &space->blocks[current], *next = &space->blocks[!current];
        float *best = space->best;
        fill(scan, &cursor, &space->blocks[!current]);
        for (long i = 0; i < block->count; i += LANES)
            largest_scale = maximum(*(const floats_at *)(block->scales + i), largest_scale);
#ifdef HAS_TABLES
        if (scan->tables)
            look_up_maxima(scan, block, next, (uint8_t *)space->buffer, (floats *)space->products, space->maxima);
        else
#endif
            largest_length = fmaxf(largest_length, multiply(scan, block, next, space->products, space->buffer));
        for (long s = 0, from = 0; s < block->segment_count; from = block->segments[s++].end) {
            if (scan->tables)
                update_maxima(space->maxima + s * scan->padded, 1, scan->padded, best);
            else
                update_maxima(space->products + from * scan->padded, block->segments[s].end - from, scan->padded, best);
            if (block->segments[s].position >= 0) finish_page(scan, block->segments[s].position, best);
        }
    }
    pthread_mutex_lock(&scan->mutex);
    scan->failed |= space == NULL;
    scan->largest_scale = fmaxf(scan->largest_scale, fmaxf(largest_lane(largest_scale), largest_length));
    pthread_mutex_unlock(&scan->mutex);
    free_space(space);
}

static void release(Scan *scan) {
    pthread_mutex_lock(&scan->mutex);
    int last = --scan->users == 0;
    pthread_mutex_unlock(&scan->mutex);
    if (!last) return;
    pthread_mutex_destroy(&scan->mutex);
    pthread_cond_destroy(&scan->idle);
    free(scan->packed);
    free(scan->steps);
    free(scan);
}

/* A further thread. If it starts when no page is left, the caller may have returned, and the request is not read. */
static void *help(void *argument) {
    Scan *scan = argument;
    pthread_mutex_lock(&scan->mutex);
    int late = __atomic_load_n(&scan->next, __ATOMIC_RELAXED) >= scan->page_count;
    scan->running += !late;
    pthread_mutex_unlock(&scan->mutex);
    if (!late) {
        work(scan);
        pthread_mutex_lock(&scan->mutex);
        if (--scan->running == 0) pthread_cond_signal(&scan->idle);
        pthread_mutex_unlock(&scan->mutex);
    }
    release(scan);
    return NULL;
}

static void start_threads(Scan *scan) {
    const Request *r = scan->request;
    double products = 0, row = (double)r->components * r->token_count;
    for (int64_t i = 0; i < r->page_count && products < r->threads * THREAD_WORK; i++)
        products += row * (double)(r->starts[r->pages[i] + 1] - r->starts[r->pages[i]]);
    long threads = (long)fmin((double)r->threads, 1 + products / THREAD_WORK);
    for (long i = 1; i < threads && i < MAX_THREADS; i++) {
        pthread_t thread;
        pthread_mutex_lock(&scan->mutex);
        scan->users++;
        pthread_mutex_unlock(&scan->mutex);
        if (pthread_create(&thread, NULL, help, scan) != 0) {
            release(scan);
            return;
        }
        pthread_detach(thread);
    }
}

/* Score pages; returns 0, or -1 if there is too little memory. */
int EXPORT(maxsim)(const Request *request) {
    Scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL) return -1;
    long tokens = request->token_count, chunks = (request->components + CHUNK - 1) / CHUNK;
    scan->request = request;
    scan->page_count = request->page_count;
    scan->users = 1;
    pthread_mutex_init(&scan->mutex, NULL);
    pthread_cond_init(&scan->idle, NULL);
#ifdef HAS_TABLES
    /* With many components, tables exceed the L1 cache and the bound of their rounding exceeds that of int16. */
    scan->tables = (request->bits == 1 && tokens <= TABLE_TOKENS_1) ||
                   (request->bits == 2 && tokens <= TABLE_TOKENS_2 && request->components <= 1024) ||
                   (request->bits == 4 && tokens <= TABLE_TOKENS_4 && request->components <= 256);
#endif
    scan->integer = request->bits <= 8;
#ifdef ROUNDS_HALVES
    scan->integer |= request->bits == 16 && tokens > ROUNDED_TOKENS;
#endif
    scan->padded = padded_tokens(tokens);
    scan->groups = (request->row_bytes * 2 + 3) / 4 * 4;
    size_t packed = scan->tables ? (size_t)tokens * scan->groups * 32 : sizeof(float) * scan->padded * chunks * CHUNK;
    packed = (packed + 63) / 64 * 64;
    scan->packed = aligned_alloc(64, packed);
    scan->steps = calloc(3 * scan->padded + 1, sizeof(float));
    int failed = scan->packed == NULL || scan->steps == NULL;
    if (!failed) {
        scan->bases = scan->steps + scan->padded;
        scan->errors = scan->steps + 2 * scan->padded;
        memset(scan->packed, 0, packed);
#ifdef HAS_TABLES
        if (scan->tables)
            failed = make_tables(scan);
        else
#endif
            failed = pack_tokens(scan);
    }
    if (!failed) {
        start_threads(scan);
        work(scan);
        pthread_mutex_lock(&scan->mutex);
        while (scan->running > 0) pthread_cond_wait(&scan->idle, &scan->mutex);
        failed = scan->failed && scan->next < request->page_count; /* or other threads did the work */
        __atomic_store_n(&scan->next, INT64_MAX / 2, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&scan->mutex);
        for (long q = 0; q < request->query_count; q++) {
            float error = 0;
            for (long t = request->query_starts[q]; t < request->query_starts[q + 1]; t++) error += scan->errors[t];
            request->errors[q] = error * scan->largest_scale;
        }
    }
    release(scan);
    return failed ? -1 : 0;
}

#include "rescore.h"

#ifdef DISPATCH

#define ADD_GAINS(NAME, PAGE)                                                                                      \
    static void NAME(const int64_t *bounds, const PAGE *pages, const int64_t *lists, const float *values,          \
                     int64_t count, uint8_t stamp, uint8_t *restrict seen, float *restrict totals) {               \
        for (int64_t i = count - 1; i >= 0; i--)                                                                   \
            for (int64_t j = bounds[lists[i]]; j < bounds[lists[i] + 1]; j++) {                                    \
                totals[pages[j]] += seen[pages[j]] == stamp ? 0 : values[i];                                       \
                seen[pages[j]] = stamp;                                                                            \
            }                                                                                                      \
    }
ADD_GAINS(add_gains_16, uint16_t)
ADD_GAINS(add_gains_32, uint32_t)

/* Sum the gains of the pages in the probed posting lists of one vector file.

   bounds (lists + 1,) and pages: posting lists; probed, values (token_count, probe_count): lists per token, ascending by
   value; seen (rows,): zeros; totals (rows,): zeros, receives the result. */
__attribute__((visibility("default"))) void sum_list_gains(
    const int64_t *bounds, const void *pages, int64_t page_bytes, const int64_t *probed, const float *values,
    int64_t token_count, int64_t probe_count, int64_t rows, uint8_t *seen, float *totals) {
    for (int64_t t = 0; t < token_count; t++, probed += probe_count, values += probe_count) {
        uint8_t stamp = (uint8_t)(t % 255 + 1);
        if (t > 0 && stamp == 1) memset(seen, 0, rows);
        if (page_bytes == 2)
            add_gains_16(bounds, pages, probed, values, probe_count, stamp, seen, totals);
        else
            add_gains_32(bounds, pages, probed, values, probe_count, stamp, seen, totals);
    }
}

/* Name of the fastest instruction set that this processor and operating system support. */
__attribute__((visibility("default"))) const char *instruction_set(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512vnni") ? "avx512vnni" : "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
    return "baseline";
}

#endif
