/* Nothing: Python.h beside it has all that the extension needs. */
