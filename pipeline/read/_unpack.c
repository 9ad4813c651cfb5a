/* Copies framed records to the rows of a matrix: pipeline/read/unpack.py describes it, and does the same in NumPy.
 *
 * It runs without the interpreter's lock. The CRC of a record is one long chain of instructions that wait for each
 * other; records have one length here, so those of several are computed abreast. Pixels are written past the cache:
 * a window does not fit there, and a line that is written whole need not be read first. */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdint.h>
#include <string.h>

#ifndef __x86_64__
#error "written for x86-64: elsewhere NumPy does the same"
#endif
#include <nmmintrin.h>
#define TARGET __attribute__((target("sse4.2")))

enum { HEADER = 12, FOOTER = 4 };                          /* bytes of a record's frame */
enum { LINE = 64 };                                        /* bytes of a line of the cache */
enum { ABREAST = 4 };                                      /* CRCs: a step takes 3 cycles, each cycle begins one */
enum { MORE = 0x80 };                                      /* in a varint's byte: another one follows */
enum { BAD_LENGTH = 1, BAD_RECORD = 2, OTHER_LAYOUT = 4 }; /* as in unpack.py */
enum { BLOCK, FRAME, BETWEEN, ROW_OF, IMAGES, LABELS, PROBLEMS, BUFFERS };

typedef struct {
    const uint8_t *block, *frame;
    const int64_t *between, *row_of;
    uint8_t *images, *problems;
    int64_t *labels;
    Py_ssize_t stride, records, fixed, rows, pixels, image, label;
} Work;

/* The masked CRC32C of each of some records: the mask is that of tensorflow/core/lib/hash/crc32c.h. */
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
    for (int j = 0; j < ABREAST; j++) {
        uint32_t crc = ~(uint32_t)found[j];
        crcs[j] = (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8);
    }
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

static int has_instructions(PyObject *Py_UNUSED(module)) {
    if (__builtin_cpu_supports("sse4.2")) return 0;
    PyErr_SetString(PyExc_ImportError, "the processor has no SSE 4.2");
    return -1;
}

static PyMethodDef methods[] = {{"unpack", py_unpack, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)has_instructions}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "pipeline.read._unpack", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__unpack(void) { return PyModuleDef_Init(&definition); }
