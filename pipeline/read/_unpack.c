/* Checks framed records, and copies those of one length to the rows of a matrix: pipeline/read/frames.py and
 * rows_reader.py describe it, and do the same in NumPy.
 *
 * It runs without the interpreter's lock. A CRC is one long chain of instructions that wait for each other. So those of
 * several records are computed abreast where records have one length; else those of three parts of a record, which are
 * then joined. Pixels are written past the cache: a window does not fit there, and a line that is written whole need
 * not be read first. */
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

#ifndef __x86_64__
#error "written for x86-64: elsewhere NumPy does the same"
#endif
#include <nmmintrin.h>
#define TARGET __attribute__((target("sse4.2")))

enum { HEADER = 12, FOOTER = 4 };                          /* bytes of a record's frame */
enum { LINE = 64 };                                        /* bytes of a line of the cache */
enum { ABREAST = 4 };                                      /* CRCs: a step takes 3 cycles, each cycle begins one */
enum { MORE = 0x80 };                                      /* in a varint's byte: another one follows */
enum { BAD_LENGTH = 1, BAD_RECORD = 2, OTHER_LAYOUT = 4 }; /* as in frames.py */
enum { PARTS = 3 };                                        /* of a record, whose CRCs are computed abreast */
enum { CRC_BITS = 32, BYTE_VALUES = 256, CRC_BYTES = 4 };
enum { LARGE_PART = 4096, SMALL_PART = 256 };              /* bytes */
enum { TOGETHER = 1 << 18 };                               /* bytes that are read at once, if a frame is not longer */
enum { BLOCK, FRAME, BETWEEN, ROW_OF, IMAGES, LABELS, PROBLEMS, BUFFERS };

typedef struct {
    const uint8_t *block, *frame;
    const int64_t *between, *row_of;
    uint8_t *images, *problems;
    int64_t *labels;
    Py_ssize_t stride, records, fixed, rows, pixels, image, label;
} Work;

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
            crc = _mm_crc32_u64(crc, words[0]);
            second = _mm_crc32_u64(second, words[1]);
            third = _mm_crc32_u64(third, words[2]);
        }
        crc = after_zeros(zeros, (uint32_t)crc) ^ second;
        crc = after_zeros(zeros, (uint32_t)crc) ^ third;
    }
    return crc;
}

/* The mask is that of tensorflow/core/lib/hash/crc32c.h. */
static uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8); }

TARGET static uint32_t masked_crc(const uint8_t *data, size_t size) {
    uint64_t crc = UINT32_MAX;
    crc = crc_of_parts(crc, &data, &size, large_zeros, LARGE_PART);
    crc = crc_of_parts(crc, &data, &size, small_zeros, SMALL_PART);
    for (; size >= sizeof(uint64_t); data += sizeof(uint64_t), size -= sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size; data++, size--) crc = _mm_crc32_u8((uint32_t)crc, *data);
    return masked(~(uint32_t)crc);
}

/* The masked CRC32C of each of some records. */
TARGET static void masked_crcs(const uint8_t *const *records, size_t size, uint32_t *crcs) {
    uint64_t found[ABREAST];
    size_t done = 0;
    for (int j = 0; j < ABREAST; j++) found[j] = UINT32_MAX;
    for (; size - done >= sizeof(uint64_t); done += sizeof(uint64_t))
        for (int j = 0; j < ABREAST; j++) {
            uint64_t word;
            memcpy(&word, records[j] + done, sizeof word);
            found[j] = _mm_crc32_u64(found[j], word);
        }
    for (; done < size; done++)
        for (int j = 0; j < ABREAST; j++) found[j] = _mm_crc32_u8((uint32_t)found[j], records[j][done]);
    for (int j = 0; j < ABREAST; j++) crcs[j] = masked(~(uint32_t)found[j]);
}

static void copy(uint8_t *to, const uint8_t *from, size_t size) {
    size_t head = -(uintptr_t)to & (LINE - 1);
    if (head < size) {
        memcpy(to, from, head);
        to += head, from += head, size -= head;
        for (; size >= LINE; to += LINE, from += LINE, size -= LINE)
            for (size_t i = 0; i < LINE; i += sizeof(__m128i))
                _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    }
    memcpy(to, from, size);
}

static uint8_t problems_of(const Work *w, const uint8_t *frame, uint32_t crc) {
    uint32_t stored;
    memcpy(&stored, frame + w->stride - FOOTER, FOOTER);
    const uint8_t *record = frame + HEADER, *expected = w->frame + HEADER;
    uint8_t other = record[w->label] & MORE;
    for (Py_ssize_t i = 0; i < w->fixed; i++) other |= record[w->between[i]] ^ expected[w->between[i]];
    return (memcmp(frame, w->frame, HEADER) ? BAD_LENGTH : 0) | (crc != stored ? BAD_RECORD : 0) |
           (other ? OTHER_LAYOUT : 0);
}

static void unpack(const Work *w) {
    const uint8_t *frames[ABREAST], *records[ABREAST];
    uint32_t crcs[ABREAST];
    for (Py_ssize_t first = 0; first < w->records; first += ABREAST) {
        Py_ssize_t count = w->records - first < ABREAST ? w->records - first : ABREAST;
        for (Py_ssize_t j = 0; j < ABREAST; j++) {
            frames[j] = w->block + (first + (j < count ? j : 0)) * w->stride;
            records[j] = frames[j] + HEADER;
        }
        masked_crcs(records, (size_t)(w->stride - HEADER - FOOTER), crcs);
        for (Py_ssize_t j = 0; j < count; j++) {
            int64_t row = w->row_of[first + j];
            copy(w->images + row * w->pixels, records[j] + w->image, (size_t)w->pixels);
            w->labels[row] = records[j][w->label];
            w->problems[first + j] = problems_of(w, frames[j], crcs[j]);
        }
    }
    _mm_sfence();
}

/* Returns what does not fit together, a mistake of the caller; or NULL. */
static const char *mismatch(const Work *w, const Py_buffer *of) {
    Py_ssize_t size = w->stride - HEADER - FOOTER;
    if (size <= 0) return "frame: no record";
    if (of[BLOCK].len != w->records * w->stride) return "block: not as many frames as row numbers";
    if (of[PROBLEMS].len != w->records) return "problems: not as many as row numbers";
    if (w->image < 0 || w->pixels < 0 || w->pixels > size - w->image) return "image: not within a record";
    if (of[IMAGES].len != w->rows * w->pixels) return "images: not a row of pixels per label";
    if (w->label < 0 || w->label >= size) return "label: not within a record";
    for (Py_ssize_t i = 0; i < w->fixed; i++)
        if (w->between[i] < 0 || w->between[i] >= size) return "between: not within a record";
    for (Py_ssize_t i = 0; i < w->records; i++)
        if (w->row_of[i] < 0 || w->row_of[i] >= w->rows) return "row_of: not a row";
    return NULL;
}

static PyObject *py_unpack(PyObject *Py_UNUSED(module), PyObject *args) {
    Work w;
    Py_buffer of[BUFFERS];
    if (!PyArg_ParseTuple(args, "y*y*y*nnny*w*w*w*", &of[BLOCK], &of[FRAME], &of[BETWEEN], &w.image, &w.pixels,
                          &w.label, &of[ROW_OF], &of[IMAGES], &of[LABELS], &of[PROBLEMS]))
        return NULL;
    w.block = of[BLOCK].buf, w.frame = of[FRAME].buf, w.between = of[BETWEEN].buf, w.row_of = of[ROW_OF].buf;
    w.images = of[IMAGES].buf, w.labels = of[LABELS].buf, w.problems = of[PROBLEMS].buf;
    w.stride = of[FRAME].len;
    w.fixed = of[BETWEEN].len / (Py_ssize_t)sizeof(int64_t);
    w.records = of[ROW_OF].len / (Py_ssize_t)sizeof(int64_t);
    w.rows = of[LABELS].len / (Py_ssize_t)sizeof(int64_t);
    const char *wrong = mismatch(&w, of);
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        unpack(&w);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < BUFFERS; i++) PyBuffer_Release(&of[i]);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* What is wrong with a frame of some size; its record's stored CRC. */
static uint8_t problems_of_frame(const uint8_t *frame, size_t size, uint32_t *stored) {
    uint64_t length;
    uint32_t crc;
    if (size < HEADER + FOOTER) return BAD_LENGTH;
    memcpy(&length, frame, sizeof length);
    memcpy(&crc, frame + sizeof length, sizeof crc);
    memcpy(stored, frame + size - FOOTER, FOOTER);
    size -= HEADER + FOOTER;
    return (length != size || crc != masked_crc(frame, sizeof length) ? BAD_LENGTH : 0) |
           (*stored != masked_crc(frame + HEADER, size) ? BAD_RECORD : 0);
}

static PyObject *py_check(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { FRAMES, BEGINS, FOUND, CRCS, CHECKED };
    Py_buffer of[CHECKED];
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &of[FRAMES], &of[BEGINS], &of[FOUND], &of[CRCS])) return NULL;
    const uint8_t *frames = of[FRAMES].buf;
    const int64_t *begins = of[BEGINS].buf;
    uint8_t *problems = of[FOUND].buf;
    uint32_t *crcs = of[CRCS].buf;
    Py_ssize_t count = of[FOUND].len;
    int fit = of[BEGINS].len == (count + 1) * (Py_ssize_t)sizeof *begins && of[CRCS].len == count * (Py_ssize_t)sizeof *crcs;
    for (Py_ssize_t i = 0; fit && i < count; i++) fit = begins[i] <= begins[i + 1];
    if (fit && begins[count] - begins[0] <= of[FRAMES].len) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            problems[i] = problems_of_frame(frames + (begins[i] - begins[0]), (size_t)(begins[i + 1] - begins[i]), crcs + i);
        Py_END_ALLOW_THREADS
    } else
        fit = 0;
    for (int i = 0; i < CHECKED; i++) PyBuffer_Release(&of[i]);
    if (!fit) {
        PyErr_SetString(PyExc_ValueError, "begins: not those of the frames");
        return NULL;
    }
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
    const int64_t *places = of[PLACES].buf;
    Py_ssize_t count = of[FOUND].len, done = 0, size = sizeof *places;
    int fit = of[OFFSETS].len == count * size && of[PLACES].len == (count + 1) * size &&
              of[CRCS].len == count * (Py_ssize_t)sizeof(uint32_t) && places[0] >= 0 && places[count] <= of[MEMORY].len;
    for (Py_ssize_t i = 0; fit && i < count; i++) fit = places[i] <= places[i + 1];
    if (fit) {
        Py_BEGIN_ALLOW_THREADS
        done = read_frames(file, of[OFFSETS].buf, places, count, of[MEMORY].buf, of[FOUND].buf, of[CRCS].buf);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < GIVEN; i++) PyBuffer_Release(&of[i]);
    if (fit) return PyLong_FromSsize_t(done);
    PyErr_SetString(PyExc_ValueError, "places: not those of frames in the memory");
    return NULL;
}

static int prepare(PyObject *Py_UNUSED(module)) {
    if (__builtin_cpu_supports("sse4.2")) {
        make_zeros(large_zeros, LARGE_PART);
        make_zeros(small_zeros, SMALL_PART);
        return 0;
    }
    PyErr_SetString(PyExc_ImportError, "the processor has no SSE 4.2");
    return -1;
}

static PyMethodDef methods[] = {
    {"unpack", py_unpack, METH_VARARGS, NULL},
    {"check", py_check, METH_VARARGS, NULL},
    {"read", py_read, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "pipeline.read._unpack", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__unpack(void) { return PyModuleDef_Init(&definition); }
