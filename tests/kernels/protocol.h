/* What both drivers share: cases come from one file and results go to another, in little-endian numbers of 8 bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *cases, *results;

static void stop(const char *why) {
    fprintf(stderr, "driver: %s\n", why);
    exit(3);
}

static void take(void *to, size_t size) {
    if (size && fread(to, 1, size, cases) != size) stop("the cases end too early");
}

static int64_t take_number(void) {
    int64_t number;
    take(&number, sizeof number);
    return number;
}

static void give(const void *from, size_t size) {
    if (size && fwrite(from, 1, size, results) != size) stop("the results cannot be written");
}

static void give_number(int64_t number) { give(&number, sizeof number); }

static void give_text(const char *text) {
    give_number((int64_t)strlen(text));
    give(text, strlen(text));
}

/* Memory of exactly so many bytes, so that the sanitizer sees the first byte beyond; it begins `offset` bytes behind a
 * multiple of 64. */
static uint8_t *exact(size_t size, size_t offset, void **whole) {
    if (posix_memalign(whole, 64, size + offset ? size + offset : 1)) stop("no memory");
    return (uint8_t *)*whole + offset;
}

static void begin(int count, char **names) {
    if (count != 3 || !(cases = fopen(names[1], "rb")) || !(results = fopen(names[2], "wb"))) stop("CASES RESULTS");
}
