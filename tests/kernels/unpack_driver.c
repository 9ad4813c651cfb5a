/* Calls the functions of pipeline/read/_unpack.c with the arguments of cases, and gives back what they return and write:
 * tests/kernels/calls.py makes the cases and reads the results. */
#include "protocol.h"

#include <Python.h>
#include <stdarg.h>
#include <unistd.h>

enum { NUMBER, BUFFER, ALIAS, FILE_CONTENT, MOST = 16 }; /* kinds of arguments, as in calls.py; and how many at most */

static struct {
    int kind;
    int64_t number;
    Py_buffer buffer;
    void *whole;
} given[MOST];
static int count, held;
static int64_t returned;
static const char *raised;

PyObject *PyExc_ValueError, *PyExc_ImportError;

int PyArg_ParseTuple(PyObject *arguments, const char *format, ...) {
    (void)arguments;
    va_list targets;
    va_start(targets, format);
    for (int i = 0; i < count; i++, format += *format == 'i' ? 1 : 2) {
        if (*format == 'i')
            *va_arg(targets, int *) = (int)given[i].number;
        else if (*format == 'y' || *format == 'w') {
            *va_arg(targets, Py_buffer *) = given[i].buffer;
            held++;
        } else
            stop("a kind of argument that the driver does not know");
    }
    va_end(targets);
    if (*format) stop("not as many arguments as the function takes");
    return 1;
}

void PyErr_SetString(PyObject *kind, const char *message) {
    (void)kind;
    raised = message;
}

void PyBuffer_Release(Py_buffer *buffer) {
    (void)buffer;
    held--;
}

PyObject *PyLong_FromSsize_t(Py_ssize_t value) {
    returned = value;
    return (PyObject *)given; /* anything but NULL */
}

PyObject *PyModuleDef_Init(struct PyModuleDef *definition) { return (PyObject *)definition; }

static void take_argument(int i) {
    given[i].kind = (int)take_number();
    given[i].whole = NULL;
    if (given[i].kind == NUMBER) {
        given[i].number = take_number();
    } else if (given[i].kind == ALIAS) {
        int64_t of = take_number(), offset = take_number();
        given[i].buffer.buf = (uint8_t *)given[of].buffer.buf + offset;
        given[i].buffer.len = take_number();
    } else {
        int64_t size = take_number(), offset = take_number();
        uint8_t *memory = exact((size_t)size, (size_t)offset, &given[i].whole);
        take(memory, (size_t)size);
        given[i].buffer = (Py_buffer){memory, size};
        if (given[i].kind == FILE_CONTENT) {
            FILE *file = tmpfile();
            if (!file || fwrite(memory, 1, (size_t)size, file) != (size_t)size || fflush(file)) stop("no file");
            given[i].number = dup(fileno(file));
            fclose(file);
        }
    }
}

int main(int argument_count, char **arguments) {
    begin(argument_count, arguments);
    struct PyModuleDef *module = (struct PyModuleDef *)PyInit__unpack();
    if (((int (*)(PyObject *))module->m_slots[0].value)(NULL)) stop(raised);
    for (int64_t left = take_number(); left; left--) {
        char name[32] = {0};
        take(name, (size_t)take_number());
        count = (int)take_number();
        for (int i = 0; i < count; i++) take_argument(i);
        PyMethodDef *method = module->m_methods;
        while (method->ml_name && strcmp(method->ml_name, name)) method++;
        if (!method->ml_name) stop("no such function");
        raised = NULL;
        if (!method->ml_meth(NULL, NULL) != !!raised) stop("a function that raised returned something, or the reverse");
        if (held) stop("a buffer is not released, or twice");
        give_text(raised ? raised : "");
        give_number(raised ? 0 : returned);
        for (int i = 0; i < count; i++)
            if (given[i].kind == BUFFER) give(given[i].buffer.buf, (size_t)given[i].buffer.len);
        for (int i = 0; i < count; i++) {
            if (given[i].kind == FILE_CONTENT) close((int)given[i].number);
            free(given[i].whole);
        }
    }
    return fclose(results) != 0;
}
