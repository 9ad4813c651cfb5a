/* As much of Python as pipeline/read/_unpack.c needs, so that it can run where there is no Python for the processor:
 * tests/kernels/unpack_driver.c has the functions. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef ssize_t Py_ssize_t;
typedef struct PyObject PyObject;
typedef struct {
    void *buf;
    Py_ssize_t len;
} Py_buffer;
typedef struct {
    const char *ml_name;
    PyObject *(*ml_meth)(PyObject *module, PyObject *arguments);
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
typedef struct {
    int slot;
    void *value;
} PyModuleDef_Slot;
struct PyModuleDef {
    int m_base;
    const char *m_name;
    PyMethodDef *m_methods;
    PyModuleDef_Slot *m_slots;
};

#define PyModuleDef_HEAD_INIT 0
#define METH_VARARGS 1
#define Py_mod_exec 2
#define Py_UNUSED(name) name __attribute__((unused))
#define PyMODINIT_FUNC PyObject *
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }
#define Py_RETURN_NONE return PyLong_FromSsize_t(-1)

extern PyObject *PyExc_ValueError, *PyExc_ImportError;
int PyArg_ParseTuple(PyObject *arguments, const char *format, ...);
void PyErr_SetString(PyObject *kind, const char *message);
void PyBuffer_Release(Py_buffer *buffer);
PyObject *PyLong_FromSsize_t(Py_ssize_t value);
PyObject *PyModuleDef_Init(struct PyModuleDef *definition);
PyObject *PyInit__unpack(void);
