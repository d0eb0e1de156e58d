/* The request of a caller, and the blocks of rows that a thread takes from its pages. */

enum {
    CHUNK = 128,           /* components per block: a block of rows and of tokens fit into the L1 cache */
    ROWS = 24,             /* rows per block of floats or int16 */
    TABLE_ROWS = 2 * BYTES,
    PAGES = 16,            /* pages that a thread takes at a time */
};

/* The layout of this structure is repeated in kernels.py. */
typedef struct {
    const uint8_t *codes;        /* (rows, row_bytes) */
    const uint16_t *scales;      /* (rows,) float16; NULL for floats */
    const int64_t *starts;       /* first row of each page, and the end */
    const int64_t *pages;        /* (page_count,) */
    int64_t page_count, bits, row_bytes;
    const float *tokens;         /* (token_count, components), rotated and padded like the codes */
    int64_t token_count, components;
    const int64_t *query_starts; /* (query_count + 1,) first token of each query */
    int64_t query_count;
    float *scores;               /* (query_count, score_stride) */
    int64_t score_stride;
    float *errors;               /* (query_count,) */
    int64_t threads;
} Request;

typedef struct {
    const Request *request;
    int tables;           /* whether table look-ups are used */
    int integer;          /* whether rows and tokens are multiplied as int16 */
    long padded;          /* tokens, padded to tiles */
    long groups;          /* look-ups per row, a multiple of 4 */
    void *packed;         /* tokens as tiles (chunk, tile, component, token), or tables (token, group, 2, 16) */
    float *steps, *bases; /* (padded,) product = (integer * step + base) * scale */
    float *errors;        /* (padded,) bound of the error for a scale of 1 */
    int64_t page_count;
    int64_t next;         /* first page that no thread has taken */
    int64_t users;        /* threads that may still use this structure */
    int64_t running;      /* threads that work on pages */
    int failed;
    float largest_scale;
    pthread_mutex_t mutex;
    pthread_cond_t idle;
} Scan;

/* Rows of one or more pages, which need not be neighbours. */
typedef struct {
    float scales[TABLE_ROWS > ROWS ? TABLE_ROWS : ROWS] __attribute__((aligned(64)));
    const uint8_t *codes[TABLE_ROWS > ROWS ? TABLE_ROWS : ROWS];
    long count, size;
    long segment_count; /* runs of rows of the same page */
    struct {
        long end;          /* first row after the segment */
        int64_t position;  /* of the page in the request if the segment ends it, or -1 */
    } segments[TABLE_ROWS > ROWS ? TABLE_ROWS : ROWS];
} Block;

/* Where a thread is in its pages. */
typedef struct {
    int64_t position, to; /* next page and end of the pages that the thread has taken */
    int64_t row, end;     /* next row and end of the current page */
} Cursor;

/* Fill a block with the next rows; it stays empty if no page is left. */
static void fill(Scan *scan, Cursor *cursor, Block *block) {
    const Request *r = scan->request;
    block->count = block->segment_count = 0;
    while (block->count < block->size) {
        if (cursor->row == cursor->end) {
            if (cursor->position == cursor->to) {
                cursor->position = __atomic_fetch_add(&scan->next, PAGES, __ATOMIC_RELAXED);
                cursor->to = cursor->position + PAGES < r->page_count ? cursor->position + PAGES : r->page_count;
                if (cursor->position >= r->page_count) {
                    cursor->position = cursor->to;
                    break;
                }
            }
            int64_t page = r->pages[cursor->position++];
            cursor->row = r->starts[page];
            cursor->end = r->starts[page + 1];
            if (cursor->row == cursor->end) {
                for (long q = 0; q < r->query_count; q++)
                    r->scores[q * r->score_stride + cursor->position - 1] =
                        r->query_starts[q + 1] > r->query_starts[q] ? -INFINITY : 0;
                continue;
            }
        }
        long count = block->size - block->count, at = block->count;
        if (cursor->end - cursor->row < count) count = (long)(cursor->end - cursor->row);
        const uint8_t *codes = r->codes + cursor->row * r->row_bytes;
        for (long i = 0; i < count; i++) block->codes[at + i] = codes + i * r->row_bytes;
        if (r->scales) halves_to_floats(r->scales + cursor->row, block->scales + at, count);
        cursor->row += count;
        block->count += count;
        block->segments[block->segment_count].end = block->count;
        block->segments[block->segment_count++].position = cursor->row == cursor->end ? cursor->position - 1 : -1;
    }
    for (long i = block->count; i < block->size; i++) {
        block->codes[i] = block->count ? block->codes[block->count - 1] : r->codes;
        block->scales[i] = 0;
    }
}
