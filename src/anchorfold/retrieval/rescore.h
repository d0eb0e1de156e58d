/* Scores in float32 with a fixed order of operations, for the best pages of a scan. */

/* Convert the components of a row to floats. `levels` has the levels of each byte, of 1, 2 or 4 bits. */
static void floats_of_row(const Request *r, const uint8_t *row, const float *levels, float *restrict values) {
    if (r->bits == 32) {
        memcpy(values, row, sizeof(float) * r->components);
    } else if (r->bits == 16) {
        halves_to_floats((const uint16_t *)row, values, r->components);
    } else if (r->bits == 8) {
        for (long i = 0; i < r->row_bytes; i++) values[i] = (int8_t)row[i];
    } else if (r->bits == 4) {
        for (long i = 0; i < r->row_bytes; i++) memcpy(values + 2 * i, levels + 2 * row[i], 8);
    } else if (r->bits == 2) {
        for (long i = 0; i < r->row_bytes; i++) memcpy(values + 4 * i, levels + 4 * row[i], 16);
    } else {
        for (long i = 0; i < r->row_bytes; i++) memcpy(values + 8 * i, levels + 8 * row[i], 32);
    }
}

enum { SUMS = 16, BLOCK = BYTES == 64 ? 4 : 2 };

/* Products of BLOCK rows and BLOCK tokens of `length` components, as SUMS partial sums each. */
static void partial_sums(const float *rows, const float *tokens, long length, float sums[BLOCK][BLOCK][SUMS]) {
    floats parts[BLOCK][BLOCK][SUMS / LANES] = {{{{0}}}};
    for (long i = 0; i < length; i += SUMS)
        for (long v = 0; v < SUMS / LANES; v++)
            for (long a = 0; a < BLOCK; a++) {
                floats row = *(const floats_at *)(rows + a * length + i + v * LANES);
                for (long b = 0; b < BLOCK; b++)
                    parts[a][b][v] += row * *(const floats_at *)(tokens + b * length + i + v * LANES);
            }
    memcpy(sums, parts, sizeof parts);
}

/* Score pages for one query with float32 arithmetic in a fixed order, so that every processor returns the same bits:
   16 sums of every 16th product, added in halves, times the scale. `_numpy_rescore` in kernels.py does the same. */
int EXPORT(rescore)(const Request *r) {
    long length = (r->components + SUMS - 1) / SUMS * SUMS, count = r->token_count;
    long padded = (count + BLOCK - 1) / BLOCK * BLOCK, per_byte = r->bits < 8 ? 8 / r->bits : 0;
    float *rows = calloc((padded + BLOCK) * length + padded + 256 * per_byte, sizeof(float));
    if (rows == NULL) return -1;
    float *tokens = rows + BLOCK * length, *best = tokens + padded * length, *levels = best + padded;
    for (long t = 0; t < count; t++)
        memcpy(tokens + t * length, r->tokens + t * r->components, sizeof(float) * r->components);
    for (long i = 0; i < 256 * per_byte; i++) {
        long code = i / per_byte >> i % per_byte * r->bits & ((1 << r->bits) - 1);
        levels[i] = (float)(2 * code + 1 - (1 << r->bits));
    }
    for (int64_t page = 0; page < r->page_count; page++) {
        int64_t row = r->starts[r->pages[page]], end = r->starts[r->pages[page] + 1];
        for (long t = 0; t < padded; t++) best[t] = -INFINITY;
        for (; row < end; row += BLOCK) {
            long used = end - row < BLOCK ? (long)(end - row) : BLOCK;
            for (long a = 0; a < used; a++)
                floats_of_row(r, r->codes + (row + a) * r->row_bytes, levels, rows + a * length);
            for (long t = 0; t < padded; t += BLOCK) {
                float sums[BLOCK][BLOCK][SUMS];
                partial_sums(rows, tokens + t * length, length, sums);
                for (long a = 0; a < used; a++)
                    for (long b = 0; b < BLOCK; b++) {
                        float *parts = sums[a][b];
                        for (long half = SUMS / 2; half > 0; half /= 2)
                            for (long i = 0; i < half; i++) parts[i] += parts[i + half];
                        float product = r->scales ? parts[0] * half_to_float(r->scales[row + a]) : parts[0];
                        best[t + b] = product > best[t + b] ? product : best[t + b];
                    }
            }
        }
        float score = 0;
        for (long t = 0; t < count; t++) score += best[t];
        r->scores[page] = score;
    }
    free(rows);
    return 0;
}
