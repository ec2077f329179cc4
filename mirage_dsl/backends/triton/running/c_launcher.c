/* Starts the kernels of a call: their parameters are put together and given to the
 * driver in one go, without Python in between.
 *
 * A `Launches` holds what never changes: functions, grids, and of each parameter the
 * part that is known.  A call brings the stream and the addresses of tensors.  All that
 * a call writes lies on its own stack, so threads may call at the same time.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda.h"

/* What a launch may have at most; those that have more go another way. */
#define MOST_PARAMS 128
#define MOST_MAPS 16
#define MOST_BASES 128

/* The driver's functions, by address: whoever loads this module looks them up. */
static CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                          const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                          const cuuint32_t *, CUtensorMapInterleave,
                          CUtensorMapSwizzle, CUtensorMapL2promotion,
                          CUtensorMapFloatOOBfill);
static CUresult (*replace)(CUtensorMap *, void *);
static CUresult (*retain)(CUcontext *, CUdevice);
static CUresult (*make_current)(CUcontext);

static PyObject *bind(PyObject *self, PyObject *args) {
  unsigned long long at[5];
  if (!PyArg_ParseTuple(args, "KKKKK", at, at + 1, at + 2, at + 3, at + 4))
    return NULL;
  launch = (void *)(uintptr_t)at[0];
  encode = (void *)(uintptr_t)at[1];
  replace = (void *)(uintptr_t)at[2];
  retain = (void *)(uintptr_t)at[3];
  make_current = (void *)(uintptr_t)at[4];
  Py_RETURN_NONE;
}

/* `count` numbers of a tuple, the last one first: the driver counts axes from the one
 * that is fastest in memory. */
static int reversed(PyObject *tuple, Py_ssize_t count, uint64_t *out) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
    PyErr_SetString(PyExc_ValueError, "tuples of different lengths");
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    out[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, count - 1 - i));
    if (PyErr_Occurred())
      return -1;
  }
  return 0;
}

static PyObject *tensor_map(PyObject *self, PyObject *args) {
  int dtype, swizzle;
  unsigned long long address;
  PyObject *shape, *strides, *box;
  if (!PyArg_ParseTuple(args, "iiKO!OO", &dtype, &swizzle, &address, &PyTuple_Type,
                        &shape, &strides, &box))
    return NULL;
  Py_ssize_t rank = PyTuple_GET_SIZE(shape);
  uint64_t sizes[5], steps[5], widths[5];
  if (rank < 1 || rank > 5)
    return PyErr_Format(PyExc_ValueError, "%zd axes", rank);
  if (reversed(shape, rank, sizes) || reversed(strides, rank - 1, steps) ||
      reversed(box, rank, widths))
    return NULL;
  cuuint32_t boxes[5], ones[5] = {1, 1, 1, 1, 1};
  for (Py_ssize_t i = 0; i < rank; ++i)
    boxes[i] = (cuuint32_t)widths[i];
  _Alignas(128) CUtensorMap map;
  CUresult status =
      encode(&map, dtype, rank, (void *)(uintptr_t)address, sizes, steps, boxes, ones,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return PyErr_Format(PyExc_ValueError, "CUDA error %d", (int)status);
  return PyBytes_FromStringAndSize((const char *)&map, sizeof map);
}

/* A parameter: an address, a tensor map or a number. */
typedef struct {
  Py_ssize_t base; /* whose address it is relative to; -1: a number */
  uint64_t value;  /* the number, or what is added to the address */
  CUtensorMap *map; /* the map, but for the address; NULL: there is none */
} Param;

typedef struct {
  PyObject *name;
  CUfunction function;
  CUlaunchConfig config; /* all but the stream */
  CUlaunchAttribute early;
  Py_ssize_t count;
  Param *params;
} Kernel;

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *error;
  int device;
  Py_ssize_t bases;
  Py_ssize_t count;
  Kernel *kernels;
} Launches;

/* One launch; nothing in here touches Python. */
static CUresult start(const Kernel *kernel, CUstream stream, const uint64_t *bases) {
  uint64_t values[MOST_PARAMS];
  void *places[MOST_PARAMS];
  _Alignas(128) CUtensorMap maps[MOST_MAPS];
  int used = 0;
  for (Py_ssize_t i = 0; i < kernel->count; ++i) {
    const Param *param = kernel->params + i;
    values[i] = param->value + (param->base < 0 ? 0 : bases[param->base]);
    places[i] = values + i;
    if (param->map != NULL) {
      places[i] = memcpy(maps + used, param->map, sizeof(CUtensorMap));
      CUresult status = replace(maps + used++, (void *)(uintptr_t)values[i]);
      if (status != CUDA_SUCCESS)
        return status;
    }
  }
  CUlaunchConfig config = kernel->config;
  config.hStream = stream;
  return launch(&config, kernel->function, places, NULL);
}

/* Make the device's own context this thread's; a new thread has none. */
static CUresult attach(int device) {
  CUcontext context;
  CUresult status = retain(&context, device);
  return status == CUDA_SUCCESS ? make_current(context) : status;
}

static PyObject *launches_call(PyObject *callable, PyObject *const *args, size_t flags,
                               PyObject *names) {
  Launches *self = (Launches *)callable;
  uint64_t given[MOST_BASES + 1];
  if (PyVectorcall_NARGS(flags) != self->bases + 1 || names != NULL) {
    PyErr_Format(PyExc_TypeError, "expected a stream and %zd addresses", self->bases);
    return NULL;
  }
  for (Py_ssize_t i = 0; i <= self->bases; ++i) {
    given[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (given[i] == (uint64_t)-1 && PyErr_Occurred())
      return NULL;
  }
  CUstream stream = (CUstream)(uintptr_t)given[0];
  CUresult status = CUDA_SUCCESS;
  Py_ssize_t at = 0;
  /* A full queue makes the driver wait; other threads go on. */
  Py_BEGIN_ALLOW_THREADS;
  for (; at < self->count && status == CUDA_SUCCESS; ++at) {
    status = start(self->kernels + at, stream, given + 1);
    if (status == CUDA_ERROR_INVALID_CONTEXT && attach(self->device) == CUDA_SUCCESS)
      status = start(self->kernels + at, stream, given + 1);
  }
  Py_END_ALLOW_THREADS;
  if (status != CUDA_SUCCESS)
    return PyErr_Format(self->error, "%U does not start: CUDA error %d",
                        self->kernels[at - 1].name, (int)status);
  Py_RETURN_NONE;
}

static int fill_param(Param *param, PyObject *item, Py_ssize_t bases) {
  const char *map;
  Py_ssize_t size;
  unsigned long long value;
  if (!PyArg_ParseTuple(item, "nKz#", &param->base, &value, &map, &size))
    return -1;
  param->value = value;
  if (param->base >= bases || (map != NULL && size != sizeof(CUtensorMap))) {
    PyErr_SetString(PyExc_ValueError, "a parameter of no tensor, or not a tensor map");
    return -1;
  }
  if (map == NULL)
    return 0;
  param->map = PyMem_Malloc(size);
  if (param->map == NULL)
    return -1;
  memcpy(param->map, map, size);
  return 0;
}

static int fill_kernel(Kernel *kernel, PyObject *item, Py_ssize_t bases) {
  unsigned long long function;
  CUlaunchConfig *config = &kernel->config;
  PyObject *params;
  int maps = 0;
  if (!PyArg_ParseTuple(item, "UK(III)IIpO!", &kernel->name, &function,
                        &config->gridDimX, &config->gridDimY, &config->gridDimZ,
                        &config->blockDimX, &config->sharedMemBytes, &config->numAttrs,
                        &PyTuple_Type, &params)) {
    kernel->name = NULL;
    return -1;
  }
  Py_INCREF(kernel->name);
  kernel->function = (CUfunction)(uintptr_t)function;
  config->blockDimY = config->blockDimZ = 1;
  kernel->early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  kernel->early.value.programmaticStreamSerializationAllowed = 1;
  config->attrs = &kernel->early;
  Py_ssize_t count = PyTuple_GET_SIZE(params);
  kernel->params = PyMem_Calloc(count ? count : 1, sizeof(Param));
  if (kernel->params == NULL)
    return -1;
  kernel->count = count;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (fill_param(kernel->params + i, PyTuple_GET_ITEM(params, i), bases))
      return -1;
    maps += kernel->params[i].map != NULL;
  }
  if (count > MOST_PARAMS || maps > MOST_MAPS) {
    PyErr_SetString(PyExc_ValueError, "too many parameters");
    return -1;
  }
  return 0;
}

static PyObject *launches_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  PyObject *error, *kernels;
  int device;
  Py_ssize_t bases;
  if (!PyArg_ParseTuple(args, "OinO!", &error, &device, &bases, &PyTuple_Type,
                        &kernels))
    return NULL;
  if (bases > MOST_BASES)
    return PyErr_Format(PyExc_ValueError, "%zd addresses", bases);
  Launches *self = (Launches *)type->tp_alloc(type, 0);
  if (self == NULL)
    return NULL;
  self->call = launches_call;
  self->error = Py_NewRef(error);
  self->device = device;
  self->bases = bases;
  self->kernels = PyMem_Calloc(PyTuple_GET_SIZE(kernels) + 1, sizeof(Kernel));
  if (self->kernels == NULL) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  for (; self->count < PyTuple_GET_SIZE(kernels); ) {
    PyObject *item = PyTuple_GET_ITEM(kernels, self->count);
    if (fill_kernel(self->kernels + self->count++, item, bases)) {
      Py_DECREF(self);
      return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
  }
  return (PyObject *)self;
}

static void launches_dealloc(PyObject *object) {
  Launches *self = (Launches *)object;
  for (Py_ssize_t k = 0; k < self->count; ++k) {
    Kernel *kernel = self->kernels + k;
    for (Py_ssize_t i = 0; i < kernel->count; ++i)
      PyMem_Free(kernel->params[i].map);
    PyMem_Free(kernel->params);
    Py_XDECREF(kernel->name);
  }
  PyMem_Free(self->kernels);
  Py_XDECREF(self->error);
  Py_TYPE(object)->tp_free(object);
}

static PyTypeObject LaunchesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mirage_dsl_c_launcher.Launches",
    .tp_doc = "Launches(error, device, bases, kernels): kernels that start in turn",
    .tp_basicsize = sizeof(Launches),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launches, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = launches_new,
    .tp_dealloc = launches_dealloc,
};

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "Take the addresses of the driver's functions."},
    {"tensor_map", tensor_map, METH_VARARGS, "Encode a tensor map."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mirage_dsl_c_launcher",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_mirage_dsl_c_launcher(void) {
  if (PyType_Ready(&LaunchesType) < 0)
    return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module != NULL &&
      PyModule_AddObjectRef(module, "Launches", (PyObject *)&LaunchesType) < 0)
    Py_CLEAR(module);
  return module;
}
