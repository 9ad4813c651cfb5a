/* Checks framed records, and copies images and labels out of them to rows: pipeline/read/frames.py and rows_reader.py
 * describe it, and do the same in NumPy. For beam_jobs it also works on the pixels of raw images.
 *
 * It runs without the interpreter's lock. A CRC is one long chain of instructions that wait for each other. So those of
 * several records are computed abreast, as far as the shortest of them goes; else those of three parts of a record,
 * which are then joined. Pixels are written past the cache: a window does not fit there, and a line that is written
 * whole need not be read first. */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "_planes.h"

/* What depends on the processor: two instructions for CRC32C, a store past the cache, and a fence behind such stores. */
#if defined __x86_64__
#include <nmmintrin.h>
#ifdef __clang__ /* from 14 on, a feature of its own */
#define TARGET __attribute__((target("sse4.2,crc32")))
#else
#define TARGET __attribute__((target("sse4.2")))
#endif
typedef __m128i Line;
TARGET static inline uint64_t crc_of_word(uint64_t crc, uint64_t word) { return _mm_crc32_u64(crc, word); }
TARGET static inline uint64_t crc_of_byte(uint64_t crc, uint8_t byte) { return _mm_crc32_u8((uint32_t)crc, byte); }
static inline void store_past_cache(uint8_t *to, const uint8_t *from) {
    _mm_stream_si128((Line *)to, _mm_loadu_si128((const Line *)from));
}
static inline void fence(void) { _mm_sfence(); }
static int has_instructions(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined __aarch64__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && (defined __linux__ || defined __APPLE__)
#ifdef __clang__ /* before 16, its arm_acle.h has them only where all code may use them */
#define TARGET __attribute__((target("crc")))
#define CRC_OF_WORD __builtin_arm_crc32cd
#define CRC_OF_BYTE __builtin_arm_crc32cb
#else
#include <arm_acle.h>
#define TARGET __attribute__((target("+crc")))
#define CRC_OF_WORD __crc32cd
#define CRC_OF_BYTE __crc32cb
#endif
typedef struct {
    uint8_t bytes[16];
} Line;
TARGET static inline uint64_t crc_of_word(uint64_t crc, uint64_t word) { return CRC_OF_WORD((uint32_t)crc, word); }
TARGET static inline uint64_t crc_of_byte(uint64_t crc, uint8_t byte) { return CRC_OF_BYTE((uint32_t)crc, byte); }
static inline void store_past_cache(uint8_t *to, const uint8_t *from) { memcpy(to, from, sizeof(Line)); }
static inline void fence(void) {} /* of ordinary stores the interpreter's lock takes care */
#ifdef __APPLE__
static int has_instructions(void) { return 1; } /* every processor of a 64-bit ARM Mac has them */
#else
#include <sys/auxv.h>
enum { HAS_CRC32 = 1 << 7 }; /* HWCAP_CRC32 in asm/hwcap.h */
static int has_instructions(void) { return (getauxval(AT_HWCAP) & HAS_CRC32) != 0; }
#endif
#else
#error "written for x86-64, and for 64-bit ARM with Linux or macOS: elsewhere NumPy does the same"
#endif

enum { HEADER = 12, FOOTER = 4 };                          /* bytes of a record's frame */
enum { LINE = 64 };                                        /* bytes of a line of the cache */
enum { ABREAST = 4 };                                      /* CRCs: a step takes 3 cycles, each cycle begins one */
enum { MORE = 0x80, VALUE_BITS = 7 };                      /* in a varint's byte: another one follows; its other bits */
enum { MOST_BYTES = 9 };                                   /* of a varint that is neither negative nor over 63 bits */
enum { BAD_LENGTH = 1, BAD_RECORD = 2, OTHER_LAYOUT = 4 }; /* as in frames.py */
enum { PARTS = 3 };                                        /* of a record, whose CRCs are computed abreast */
enum { CRC_BITS = 32, BYTE_VALUES = 256, CRC_BYTES = 4 };
enum { LARGE_PART = 4096, SMALL_PART = 256 };              /* bytes */
enum { TOGETHER = 1 << 18 };                               /* bytes that are read at once, if a frame is not longer */
/* Fields of the messages of tensorflow/core/example/{example,feature}.proto, each with the type "bytes with a length". */
enum { FIRST_FIELD = 0x0A, SECOND_FIELD = 0x12, INTEGERS = 0x1A, BYTES = 0x0A };

/* What a CRC becomes where zeros follow, as many as a part has bytes: by each byte of it. */
typedef uint32_t Zeros[CRC_BYTES][BYTE_VALUES];
static Zeros large_zeros, small_zeros;

static uint32_t times(const uint32_t *matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (; vector; vector >>= 1, matrix++)
        if (vector & 1) sum ^= *matrix;
    return sum;
}

/* A zero byte more is a linear map of the bits of a CRC; `bytes` of them, a power of two, are that map squared again and
 * again (Mark Adler's crc32_combine in zlib, before version 1.2.12). */
static void make_zeros(Zeros zeros, size_t bytes) {
    const uint32_t polynomial = UINT32_C(0x82F63B78); /* Castagnoli's, reversed */
    uint32_t map[CRC_BITS], squared[CRC_BITS];
    map[0] = polynomial; /* of one bit */
    for (int i = 1; i < CRC_BITS; i++) map[i] = UINT32_C(1) << (i - 1);
    for (size_t bits = 1; bits < 8 * bytes; bits *= 2) {
        for (int i = 0; i < CRC_BITS; i++) squared[i] = times(map, map[i]);
        memcpy(map, squared, sizeof map);
    }
    for (int i = 0; i < CRC_BYTES; i++)
        for (uint32_t value = 0; value < BYTE_VALUES; value++) zeros[i][value] = times(map, value << (8 * i));
}

static uint32_t after_zeros(Zeros zeros, uint32_t crc) {
    return zeros[0][crc & 0xFF] ^ zeros[1][crc >> 8 & 0xFF] ^ zeros[2][crc >> 16 & 0xFF] ^ zeros[3][crc >> 24];
}

TARGET static uint64_t crc_of_parts(uint64_t crc, const uint8_t **data, size_t *size, Zeros zeros, size_t part) {
    for (; *size >= PARTS * part; *data += PARTS * part, *size -= PARTS * part) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < part; i += sizeof(uint64_t)) {
            uint64_t words[PARTS];
            for (int j = 0; j < PARTS; j++) memcpy(words + j, *data + (size_t)j * part + i, sizeof words[j]);
            crc = crc_of_word(crc, words[0]);
            second = crc_of_word(second, words[1]);
            third = crc_of_word(third, words[2]);
        }
        crc = after_zeros(zeros, (uint32_t)crc) ^ second;
        crc = after_zeros(zeros, (uint32_t)crc) ^ third;
    }
    return crc;
}

/* The mask is that of tensorflow/core/lib/hash/crc32c.h. */
static uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8); }

/* What a CRC becomes where some data follows. */
TARGET static uint64_t crc_after(uint64_t crc, const uint8_t *data, size_t size) {
    crc = crc_of_parts(crc, &data, &size, large_zeros, LARGE_PART);
    crc = crc_of_parts(crc, &data, &size, small_zeros, SMALL_PART);
    for (; size >= sizeof(uint64_t); data += sizeof(uint64_t), size -= sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        crc = crc_of_word(crc, word);
    }
    for (; size; data++, size--) crc = crc_of_byte(crc, *data);
    return crc;
}

static uint32_t masked_crc(const uint8_t *data, size_t size) {
    return masked(~(uint32_t)crc_after(UINT32_MAX, data, size));
}

/* The masked CRC32C of each of some records. */
TARGET static void masked_crcs(const uint8_t *const *records, const size_t *sizes, uint32_t *crcs) {
    uint64_t found[ABREAST];
    size_t done = 0, shortest = sizes[0];
    for (int j = 0; j < ABREAST; j++) {
        found[j] = UINT32_MAX;
        if (sizes[j] < shortest) shortest = sizes[j];
    }
    for (; shortest - done >= sizeof(uint64_t); done += sizeof(uint64_t))
        for (int j = 0; j < ABREAST; j++) {
            uint64_t word;
            memcpy(&word, records[j] + done, sizeof word);
            found[j] = crc_of_word(found[j], word);
        }
    for (; done < shortest; done++)
        for (int j = 0; j < ABREAST; j++) found[j] = crc_of_byte(found[j], records[j][done]);
    for (int j = 0; j < ABREAST; j++) {
        if (sizes[j] > done) found[j] = crc_after(found[j], records[j] + done, sizes[j] - done);
        crcs[j] = masked(~(uint32_t)found[j]);
    }
}

static void copy(uint8_t *to, const uint8_t *from, size_t size) {
    size_t head = -(uintptr_t)to & (LINE - 1);
    if (head < size) {
        memcpy(to, from, head);
        to += head, from += head, size -= head;
        for (; size >= LINE; to += LINE, from += LINE, size -= LINE)
            for (size_t i = 0; i < LINE; i += sizeof(Line)) store_past_cache(to + i, from + i);
    }
    memcpy(to, from, size);
}

/* ---- the tf.train.Example in a record ---- */

/* Compiled for each name and kind where it is called, which saves some 10 of 250 ns per record of 3 KB. */
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    const uint8_t *begin, *end;
} Bytes;

/* Takes a varint of the fewest bytes from the beginning of some; returns whether it is the number of the rest. */
INLINE int takes_length(Bytes *from, size_t *length) {
    *length = 0;
    for (int bits = 0; from->begin < from->end && bits < MOST_BYTES * VALUE_BITS; bits += VALUE_BITS) {
        uint8_t byte = *from->begin++;
        *length |= (size_t)(byte & ~MORE) << bits;
        if (!(byte & MORE)) return byte || !bits;
    }
    return 0;
}

/* Takes a field; returns whether it is the one that is expected, and lies in these bytes. */
INLINE int takes_field(Bytes *from, uint8_t field, Bytes *content) {
    size_t length;
    if (from->begin == from->end || *from->begin++ != field || !takes_length(from, &length)) return 0;
    if (length > (size_t)(from->end - from->begin)) return 0;
    content->begin = from->begin;
    content->end = from->begin += length;
    return 1;
}

/* The same; the field is all that there is. */
INLINE int is_field(Bytes *from, uint8_t field) {
    Bytes content;
    if (!takes_field(from, field, &content) || content.end != from->end) return 0;
    *from = content;
    return 1;
}

/* Takes a feature of a name and a kind, with one list; returns whether it is that. */
INLINE int takes_feature(Bytes *from, const char *name, uint8_t kind, Bytes *list) {
    Bytes found;
    size_t size = strlen(name);
    if (!takes_field(from, FIRST_FIELD, list) || !takes_field(list, FIRST_FIELD, &found)) return 0;
    if ((size_t)(found.end - found.begin) != size || memcmp(found.begin, name, size)) return 0;
    return is_field(list, SECOND_FIELD) && is_field(list, kind) && is_field(list, FIRST_FIELD);
}

typedef struct {
    Bytes image, key;
    int64_t label;
} Example;

/* Whether a record is an Example as tf_example.encode writes it: image, key and label, each with one value, in this
 * order, and lengths of the fewest bytes. */
static int is_example(Bytes record, Example *found) {
    Bytes label;
    if (!is_field(&record, FIRST_FIELD)) return 0;
    if (!takes_feature(&record, "image", BYTES, &found->image) || !takes_feature(&record, "key", BYTES, &found->key) ||
        !takes_feature(&record, "label", INTEGERS, &label) || record.begin != record.end)
        return 0;
    Py_ssize_t size = label.end - label.begin;
    if (size < 1 || size > MOST_BYTES) return 0;
    found->label = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (!(label.begin[i] & MORE) != (i == size - 1)) return 0;
        found->label |= (int64_t)(label.begin[i] & ~MORE) << (i * VALUE_BITS);
    }
    return 1;
}

/* ---- records to rows ---- */

typedef struct {
    const uint8_t *block;
    const int64_t *begins, *row_of;
    uint8_t *images, *problems;
    int64_t *labels, *keys;
    uint32_t *crcs;
    Py_ssize_t records, rows, pixels;
} Work;

TARGET static uint8_t problems_of_header(const uint8_t *frame, size_t size) {
    uint64_t length;
    uint32_t crc;
    memcpy(&length, frame, sizeof length);
    memcpy(&crc, frame + sizeof length, sizeof crc);
    return length != size || crc != masked(~(uint32_t)crc_of_word(UINT32_MAX, length)) ? BAD_LENGTH : 0;
}

/* Copies a record to its row; returns whether it has the layout. Else it leaves the row as it is. */
static int place(const Work *w, Py_ssize_t i, const uint8_t *record, size_t size) {
    Example found;
    if (!is_example((Bytes){record, record + size}, &found) || found.image.end - found.image.begin != w->pixels) return 0;
    int64_t row = w->row_of[i];
    copy(w->images + row * w->pixels, found.image.begin, (size_t)w->pixels);
    w->labels[row] = found.label;
    w->keys[2 * i] = found.key.begin - w->block;
    w->keys[2 * i + 1] = found.key.end - w->block;
    return 1;
}

static void unpack(const Work *w) {
    const uint8_t *frames[ABREAST], *records[ABREAST];
    uint32_t crcs[ABREAST];
    size_t sizes[ABREAST];
    for (Py_ssize_t first = 0; first < w->records; first += ABREAST) {
        Py_ssize_t count = w->records - first < ABREAST ? w->records - first : ABREAST;
        for (Py_ssize_t j = 0; j < ABREAST; j++) {
            Py_ssize_t i = first + (j < count ? j : 0);
            size_t size = (size_t)(w->begins[i + 1] - w->begins[i]);
            frames[j] = w->block + (w->begins[i] - w->begins[0]);
            sizes[j] = size < HEADER + FOOTER ? 0 : size - HEADER - FOOTER;
            records[j] = size < HEADER + FOOTER ? frames[j] : frames[j] + HEADER;
        }
        masked_crcs(records, sizes, crcs);
        for (Py_ssize_t j = 0; j < count; j++) {
            Py_ssize_t i = first + j;
            if (records[j] == frames[j]) { /* too short for a frame */
                w->problems[i] = BAD_LENGTH;
                continue;
            }
            memcpy(w->crcs + i, records[j] + sizes[j], FOOTER);
            w->problems[i] = problems_of_header(frames[j], sizes[j]) | (crcs[j] != w->crcs[i] ? BAD_RECORD : 0) |
                             (place(w, i, records[j], sizes[j]) ? 0 : OTHER_LAYOUT);
        }
    }
    fence();
}

/* ---- arguments ---- */

static int is_apart(const Py_buffer *one, const Py_buffer *other) {
    uintptr_t a = (uintptr_t)one->buf, b = (uintptr_t)other->buf;
    return !one->len || !other->len || (a < b ? b - a >= (uintptr_t)one->len : a - b >= (uintptr_t)other->len);
}

/* Returns what is wrong with the places of buffers, or NULL: numbers of so many bytes must be aligned; and a buffer that is
 * written to, those from `results` on, must overlap no other one, whose numbers were checked before. */
static const char *misplaced(const Py_buffer *of, const uint8_t *sizes, int results, int count) {
    for (int i = 0; i < count; i++) {
        if ((uintptr_t)of[i].buf % sizes[i]) return "an array is not aligned";
        for (int j = 0; j < i; j++)
            if (i >= results && !is_apart(&of[i], &of[j])) return "arrays overlap";
    }
    return NULL;
}

/* Releases buffers, and raises ValueError if something is wrong; returns whether it did. */
static int released(Py_buffer *of, int count, const char *wrong) {
    for (int i = 0; i < count; i++) PyBuffer_Release(&of[i]);
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    return wrong != NULL;
}

/* Whether frames lie one after the other in some memory, the first one at its beginning. */
static int are_begins(const Py_buffer *begins, Py_ssize_t count, Py_ssize_t size) {
    const int64_t *at = begins->buf;
    if (begins->len != (count + 1) * (Py_ssize_t)sizeof *at) return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (at[i] > at[i + 1]) return 0;
    return at[0] >= 0 && at[count] - at[0] <= size;
}

enum { BLOCK, BEGINS, ROW_OF, IMAGES, LABELS, KEYS, PROBLEMS, CRCS, BUFFERS };

/* Returns what does not fit together, a mistake of the caller; or NULL. */
static const char *mismatch(const Work *w, const Py_buffer *of) {
    if (!are_begins(&of[BEGINS], w->records, of[BLOCK].len)) return "begins: not those of the block's frames";
    if (of[ROW_OF].len != w->records * (Py_ssize_t)sizeof *w->row_of) return "row_of: not as many as problems";
    if (of[KEYS].len != 2 * w->records * (Py_ssize_t)sizeof *w->keys) return "keys: not as many as problems";
    if (of[CRCS].len != w->records * (Py_ssize_t)sizeof *w->crcs) return "crcs: not as many as problems";
    if (of[LABELS].len % (Py_ssize_t)sizeof *w->labels) return "labels: not whole numbers";
    if (w->rows ? of[IMAGES].len % w->rows : of[IMAGES].len) return "images: not a row of pixels per label";
    for (Py_ssize_t i = 0; i < w->records; i++)
        if (w->row_of[i] < 0 || w->row_of[i] >= w->rows) return "row_of: not a row";
    return NULL;
}

static PyObject *py_unpack(PyObject *Py_UNUSED(module), PyObject *args) {
    Work w;
    Py_buffer of[BUFFERS];
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*w*w*w*", &of[BLOCK], &of[BEGINS], &of[ROW_OF], &of[IMAGES], &of[LABELS],
                          &of[KEYS], &of[PROBLEMS], &of[CRCS]))
        return NULL;
    w.block = of[BLOCK].buf, w.begins = of[BEGINS].buf, w.row_of = of[ROW_OF].buf, w.images = of[IMAGES].buf;
    w.labels = of[LABELS].buf, w.keys = of[KEYS].buf, w.problems = of[PROBLEMS].buf, w.crcs = of[CRCS].buf;
    w.records = of[PROBLEMS].len;
    w.rows = of[LABELS].len / (Py_ssize_t)sizeof *w.labels;
    w.pixels = w.rows ? of[IMAGES].len / w.rows : 0;
    static const uint8_t sizes[BUFFERS] = {1, 8, 8, 1, 8, 8, 1, 4};
    const char *wrong = misplaced(of, sizes, IMAGES, BUFFERS);
    if (!wrong) wrong = mismatch(&w, of);
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        unpack(&w);
        Py_END_ALLOW_THREADS
    }
    if (released(of, BUFFERS, wrong)) return NULL;
    Py_RETURN_NONE;
}

/* ---- frames that are only checked ---- */

/* What is wrong with a frame of some size; its record's stored CRC. */
static uint8_t problems_of_frame(const uint8_t *frame, size_t size, uint32_t *stored) {
    if (size < HEADER + FOOTER) return BAD_LENGTH;
    memcpy(stored, frame + size - FOOTER, FOOTER);
    size -= HEADER + FOOTER;
    return problems_of_header(frame, size) | (*stored != masked_crc(frame + HEADER, size) ? BAD_RECORD : 0);
}

static PyObject *py_check(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { FRAMES, BEGINS, FOUND, CRCS, GIVEN };
    Py_buffer of[GIVEN];
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &of[FRAMES], &of[BEGINS], &of[FOUND], &of[CRCS])) return NULL;
    const uint8_t *frames = of[FRAMES].buf;
    const int64_t *begins = of[BEGINS].buf;
    uint8_t *problems = of[FOUND].buf;
    uint32_t *crcs = of[CRCS].buf;
    Py_ssize_t count = of[FOUND].len;
    static const uint8_t sizes[GIVEN] = {1, 8, 1, 4};
    const char *wrong = misplaced(of, sizes, FOUND, GIVEN);
    if (!wrong && !are_begins(&of[BEGINS], count, of[FRAMES].len)) wrong = "begins: not those of the frames";
    if (!wrong && of[CRCS].len != count * (Py_ssize_t)sizeof *crcs) wrong = "crcs: not as many as problems";
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            problems[i] = problems_of_frame(frames + (begins[i] - begins[0]), (size_t)(begins[i + 1] - begins[i]), crcs + i);
        Py_END_ALLOW_THREADS
    }
    if (released(of, GIVEN, wrong)) return NULL;
    Py_RETURN_NONE;
}

/* Whether a file's bytes from an offset on could be read. */
static int is_read(int file, uint8_t *to, size_t size, int64_t offset) {
    while (size) {
        ssize_t found = pread(file, to, size, (off_t)offset);
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) return 0;
        to += found, offset += found, size -= (size_t)found;
    }
    return 1;
}

/* Reads frames and checks them, those that follow each other in the file together. Returns how many. */
static Py_ssize_t read_frames(int file, const int64_t *begins, const int64_t *places, Py_ssize_t count, uint8_t *memory,
                              uint8_t *problems, uint32_t *crcs) {
    Py_ssize_t first = 0, stop;
    for (; first < count; first = stop) {
        for (stop = first + 1; stop < count; stop++)
            if (begins[stop] - begins[first] != places[stop] - places[first] ||
                places[stop + 1] - places[first] > TOGETHER)
                break;
        if (!is_read(file, memory + places[first], (size_t)(places[stop] - places[first]), begins[first])) break;
        for (Py_ssize_t i = first; i < stop; i++)
            problems[i] = problems_of_frame(memory + places[i], (size_t)(places[i + 1] - places[i]), crcs + i);
    }
    return first;
}

static PyObject *py_read(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { OFFSETS, PLACES, MEMORY, FOUND, CRCS, GIVEN };
    Py_buffer of[GIVEN];
    int file;
    if (!PyArg_ParseTuple(args, "iy*y*w*w*w*", &file, &of[OFFSETS], &of[PLACES], &of[MEMORY], &of[FOUND], &of[CRCS]))
        return NULL;
    const int64_t *begins = of[OFFSETS].buf, *places = of[PLACES].buf;
    Py_ssize_t count = of[FOUND].len, done = 0;
    static const uint8_t sizes[GIVEN] = {8, 8, 1, 1, 4};
    const char *wrong = misplaced(of, sizes, MEMORY, GIVEN);
    if (!wrong && of[OFFSETS].len != count * (Py_ssize_t)sizeof *begins) wrong = "begins: not as many as problems";
    if (!wrong && of[CRCS].len != count * (Py_ssize_t)sizeof(uint32_t)) wrong = "crcs: not as many as problems";
    if (!wrong && (!are_begins(&of[PLACES], count, of[MEMORY].len) || places[count] > of[MEMORY].len))
        wrong = "places: not those of frames in the memory";
    for (Py_ssize_t i = 0; !wrong && i < count; i++)
        if (begins[i] < 0) wrong = "begins: one is negative";
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        done = read_frames(file, begins, places, count, of[MEMORY].buf, of[FOUND].buf, of[CRCS].buf);
        Py_END_ALLOW_THREADS
    }
    return released(of, GIVEN, wrong) ? NULL : PyLong_FromSsize_t(done);
}

/* ---- pixels of a converter ---- */

static PyObject *py_interleave(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { SHAPE, PLANES, IMAGES_OF, GIVEN, COUNT = 0, BEFORE, PLANE, NUMBERS };
    Py_buffer of[GIVEN];
    if (!PyArg_ParseTuple(args, "y*y*w*", &of[SHAPE], &of[PLANES], &of[IMAGES_OF])) return NULL;
    const int64_t *shape = of[SHAPE].buf;
    static const uint8_t sizes[GIVEN] = {8, 1, 1};
    int64_t pixels, step, bytes;
    const char *wrong = misplaced(of, sizes, IMAGES_OF, GIVEN);
    if (!wrong && of[SHAPE].len != NUMBERS * (Py_ssize_t)sizeof *shape) wrong = "shape: not three numbers";
    if (!wrong && (shape[COUNT] < 0 || shape[BEFORE] < 0 || shape[PLANE] < 0 ||
                   __builtin_mul_overflow(shape[PLANE], RGB, &pixels) ||
                   __builtin_add_overflow(pixels, shape[BEFORE], &step) ||
                   __builtin_mul_overflow(shape[COUNT], step, &bytes) || bytes != of[PLANES].len))
        wrong = "planes: not of the shape";
    if (!wrong && shape[COUNT] * pixels != of[IMAGES_OF].len) wrong = "images: not as many bytes as the planes have";
    if (!wrong && of[IMAGES_OF].len) { /* else there may be no memory */
        Py_BEGIN_ALLOW_THREADS
        interleave((const uint8_t *)of[PLANES].buf + shape[BEFORE], step, shape[COUNT], shape[PLANE], of[IMAGES_OF].buf);
        Py_END_ALLOW_THREADS
    }
    if (released(of, GIVEN, wrong)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_sum(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { VALUES, SUMS, GIVEN };
    Py_buffer of[GIVEN];
    if (!PyArg_ParseTuple(args, "y*w*", &of[VALUES], &of[SUMS])) return NULL;
    int64_t *sums = of[SUMS].buf;
    static const uint8_t sizes[GIVEN] = {1, 8};
    const char *wrong = misplaced(of, sizes, SUMS, GIVEN);
    if (!wrong && of[SUMS].len != 2 * PERIOD * (Py_ssize_t)sizeof *sums) wrong = "sums: not those of values and of squares";
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        sum_values(of[VALUES].buf, of[VALUES].len, sums, sums + PERIOD);
        Py_END_ALLOW_THREADS
    }
    if (released(of, GIVEN, wrong)) return NULL;
    Py_RETURN_NONE;
}

static int prepare(PyObject *Py_UNUSED(module)) {
    if (has_instructions()) {
        make_zeros(large_zeros, LARGE_PART);
        make_zeros(small_zeros, SMALL_PART);
        return 0;
    }
    PyErr_SetString(PyExc_ImportError, "the processor has no instructions for CRC32C");
    return -1;
}

static PyMethodDef methods[] = {
    {"unpack", py_unpack, METH_VARARGS, NULL},
    {"check", py_check, METH_VARARGS, NULL},
    {"read", py_read, METH_VARARGS, NULL},
    {"interleave", py_interleave, METH_VARARGS, NULL},
    {"sum", py_sum, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "pipeline.read._unpack", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__unpack(void) { return PyModuleDef_Init(&definition); }
