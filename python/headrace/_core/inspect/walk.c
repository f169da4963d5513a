/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/walk.h"

/*
 * _core.Walker visits the objects that pickle would visit, without recursion: the items of builtin containers, the
 * attributes of instances of plain classes, and the reductions of all other objects. It returns, with the steps that
 * lead to them, functions, classes, and objects that cannot be reduced. Python decides whether these can be pickled.
 *
 * A step is a tuple (kind, key, position). Objects that were met before are not visited again. An expansion visits the
 * contents of one object step by step. A container may change between two steps, so it is read again each time.
 *
 * A container or plain instance with one reference cannot be met twice, so it is not noted. Objects that are noted
 * while a reduction is visited are kept alive, because they may belong to the reduction only, and no other object may
 * get their address.
 */

enum { MOST_DEEP = 8, PAUSE = 4096 };

/* ---- kinds of objects ---- */

static PyObject *classified(struct walker *self, PyTypeObject *type) {
    PyObject *known = PyDict_GetItemWithError(self->classes, (PyObject *)type);
    if (known || PyErr_Occurred()) return known;
    known = PyObject_CallOneArg(self->classify, (PyObject *)type);
    if (!known) return NULL;
    int stored = PyDict_SetItem(self->classes, (PyObject *)type, known);
    Py_DECREF(known); /* the dict keeps it */
    return stored < 0 ? NULL : known;
}

/* Returns how instances of a class are treated; borrowed. */
static PyObject *class_of(struct expansion *self, PyTypeObject *type) {
    if (type != self->last) {
        PyObject *found = classified(self->walker, type);
        if (!found) return NULL;
        self->last = type;
        self->last_class = found;
    }
    return self->last_class;
}

static PyObject *take_exception(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
#endif
}

/* ---- reductions ---- */

static bool is_iterator_or_none(PyObject *part) {
    return part == Py_None || PyIter_Check(part);
}

/* Returns true if the reduction has a form that pickle accepts. If not, or if this is not certain, Python decides. */
static bool is_well_formed(const struct walker *self, PyObject *object, PyObject *reduction) {
    PyObject *parts[MOST_PARTS] = {Py_None, Py_None, Py_None, Py_None, Py_None, Py_None};
    if (!PyTuple_CheckExact(reduction)) return false;
    Py_ssize_t count = PyTuple_GET_SIZE(reduction);
    if (count < 2 || count > MOST_PARTS) return false;
    for (Py_ssize_t i = 0; i < count; i++) parts[i] = PyTuple_GET_ITEM(reduction, i);
    PyObject *arguments = parts[PART_ARGUMENTS];
    if (!PyCallable_Check(parts[PART_FUNCTION]) || !PyTuple_CheckExact(arguments)) return false;
    if (parts[PART_FUNCTION] == self->newobj &&
        (!PyTuple_GET_SIZE(arguments) || PyTuple_GET_ITEM(arguments, 0) != (PyObject *)Py_TYPE(object)))
        return false;
    return is_iterator_or_none(parts[PART_ITEMS]) && is_iterator_or_none(parts[PART_PAIRS]) &&
           (parts[PART_SETTER] == Py_None || PyCallable_Check(parts[PART_SETTER]));
}

/* ---- results ---- */

static PyObject *step_of(const struct walk_frame *frame) {
    bool is_counted = frame->kind == STEP_VALUE || frame->kind == STEP_KEY || frame->kind == STEP_ELEMENT;
    PyObject *key = frame->is_reduced ? frame->content : frame->key ? frame->key : Py_None;
    return Py_BuildValue("iOn", (int)frame->kind, key, is_counted ? frame->position - 1 : frame->position);
}

static PyObject *steps_of(const struct expansion *self) {
    PyObject *steps = PyTuple_New(self->depth);
    for (Py_ssize_t i = 0; steps && i < self->depth; i++) {
        PyObject *step = step_of(&self->frames[i]);
        if (step) {
            PyTuple_SET_ITEM(steps, i, step);
        } else {
            Py_CLEAR(steps);
        }
    }
    return steps;
}

/* The list of containers of the frames. */
static PyObject *objects_of(const struct expansion *self) {
    PyObject *objects = PyTuple_New(self->depth);
    for (Py_ssize_t i = 0; objects && i < self->depth; i++)
        PyTuple_SET_ITEM(objects, i, Py_NewRef(self->frames[i].container));
    return objects;
}

/* (steps, object, outcome, objects). `objects` is None unless it is needed to describe the parts of a reduction. */
static PyObject *found_with(const struct expansion *self, PyObject *object, PyObject *outcome) {
    PyObject *steps = steps_of(self);
    PyObject *objects = self->reductions ? objects_of(self) : Py_NewRef(Py_None);
    PyObject *found = steps && objects ? PyTuple_Pack(4, steps, object, outcome, objects) : NULL;
    Py_XDECREF(steps);
    Py_XDECREF(objects);
    return found;
}

static int note_depth(struct expansion *self) {
    struct walker *walker = self->walker;
    if (self->base + self->depth != walker->depth_limit || PyList_GET_SIZE(walker->deep) >= MOST_DEEP) return 0;
    PyObject *objects = objects_of(self), *steps = steps_of(self);
    PyObject *pair = objects && steps ? PyTuple_Pack(2, steps, objects) : NULL;
    int added = pair ? PyList_Append(walker->deep, pair) : -1;
    Py_XDECREF(pair);
    Py_XDECREF(objects);
    Py_XDECREF(steps);
    return added;
}

/* Does the same as meet while reductions are visited. */
static int meet_and_keep(struct expansion *self, PyObject *object) {
    int is_old = walk_meet(self->walker, object);
    return is_old || !self->reductions ? is_old : PyList_Append(self->walker->kept, object);
}

/* Enters the reduction of an object. FOUND: Python has to decide, and `ret_outcome` is the answer or the exception, a
 * new reference. */
static enum found reduce(struct expansion *self, PyObject *object, PyObject *reducer, PyObject **ret_outcome) {
    PyObject *reduction = PyObject_CallOneArg(reducer, object);
    self->walker->reduced++;
    if (!reduction) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return FOUND_ERROR;
        *ret_outcome = take_exception();
        return FOUND;
    }
    if (!is_well_formed(self->walker, object, reduction)) {
        *ret_outcome = reduction;
        return FOUND;
    }
    return walk_push_reduction(self, object, reduction) < 0 || note_depth(self) < 0 ? FOUND_ERROR : FOUND_NOT;
}

/* Returns true if the child of the last frame is one of the iterators of a reduction. */
static bool is_contents(const struct expansion *self) {
    const struct walk_frame *frame = self->depth ? &self->frames[self->depth - 1] : NULL;
    return frame && frame->is_reduced && (frame->position == PART_ITEMS || frame->position == PART_PAIRS);
}

/* FOUND_NOT: it has entered the object or left it out. FOUND: the object has to be returned, with the outcome of its
 * reduction. */
static enum found enter(struct expansion *self, PyObject *object, PyObject **ret_outcome) {
    PyTypeObject *type = Py_TYPE(object);
    if (is_atom(type)) return FOUND_NOT;
    if (is_contents(self)) return walk_push_iterator(self, object) < 0 ? FOUND_ERROR : FOUND_NOT;
    bool has_one_owner = is_lone(object, 2); /* and the caller */
    if (!has_one_owner && walk_was_met(self->walker, object)) return FOUND_NOT;
    PyObject *kind = is_container(type) ? NULL : class_of(self, type);
    if (kind == Py_True) return FOUND_NOT;
    if (!kind && PyErr_Occurred()) return FOUND_ERROR;
    bool is_plain = !kind || PyTuple_CheckExact(kind);
    int is_old = has_one_owner && is_plain ? 0 : meet_and_keep(self, object);
    if (is_old) return is_old < 0 ? FOUND_ERROR : FOUND_NOT;
    if (is_plain) return walk_push(self, object, kind) < 0 || note_depth(self) < 0 ? FOUND_ERROR : FOUND_NOT;
    if (kind == Py_None) {
        *ret_outcome = Py_NewRef(Py_None);
        return FOUND;
    }
    return reduce(self, object, kind, ret_outcome);
}

/* If an iterator of a reduction raises, the exception is reported for the object that was reduced. */
static PyObject *blame_reduced(struct expansion *self) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyObject *error = take_exception();
    walk_pop(self);
    PyObject *object = Py_NewRef(self->frames[self->depth - 1].container);
    walk_pop(self);
    PyObject *found = found_with(self, object, error);
    Py_DECREF(object);
    Py_DECREF(error);
    return found;
}

/* The next object to enter: a new reference, NULL at the end or with an exception. */
static PyObject *next_object(struct expansion *self) {
    PyObject *child = self->root;
    self->root = NULL;
    while (!child && self->depth) {
        child = walk_next_child(self->walker, &self->frames[self->depth - 1]);
        if (!child && PyErr_Occurred()) return NULL;
        if (!child) walk_pop(self);
    }
    return child;
}

static PyObject *expansion_next(PyObject *object) {
    struct expansion *self = (struct expansion *)object;
    size_t pause = self->walker->reduced + PAUSE;
    PyObject *child;
    while ((child = next_object(self))) {
        PyObject *outcome = NULL, *pair = NULL;
        enum found found = enter(self, child, &outcome);
        if (found == FOUND) pair = found_with(self, child, outcome);
        Py_XDECREF(outcome);
        Py_DECREF(child);
        if (found != FOUND_NOT) return pair;
        if (self->walker->reduced == pause) return Py_NewRef(Py_None);
    }
    return PyErr_Occurred() ? blame_reduced(self) : NULL;
}

static PyObject *walker_expand(PyObject *object, PyObject *arguments) {
    PyObject *root, *reduction = NULL;
    Py_ssize_t base;
    if (!PyArg_ParseTuple(arguments, "On|O!:expand", &root, &base, &PyTuple_Type, &reduction)) return NULL;
    struct expansion *self = PyObject_GC_New(struct expansion, &ExpansionType);
    if (!self) return NULL;
    self->walker = (struct walker *)Py_NewRef(object);
    self->root = reduction ? NULL : Py_NewRef(root);
    self->frames = NULL;
    self->depth = self->room = self->reductions = 0;
    self->base = base;
    self->last = NULL;
    self->last_class = NULL;
    PyObject_GC_Track((PyObject *)self);
    if (reduction && walk_push_reduction(self, root, Py_NewRef(reduction)) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static int expansion_clear(PyObject *object) {
    struct expansion *self = (struct expansion *)object;
    while (self->depth) walk_pop(self);
    Py_CLEAR(self->root);
    Py_CLEAR(self->walker);
    return 0;
}

static int expansion_traverse(PyObject *object, visitproc visit, void *arg) {
    struct expansion *self = (struct expansion *)object;
    Py_VISIT(self->walker);
    Py_VISIT(self->root);
    for (Py_ssize_t i = 0; i < self->depth; i++) {
        Py_VISIT(self->frames[i].container);
        Py_VISIT(self->frames[i].content);
        Py_VISIT(self->frames[i].key);
        Py_VISIT(self->frames[i].value);
    }
    return 0;
}

static void expansion_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    expansion_clear(object);
    PyMem_Free(((struct expansion *)object)->frames);
    PyObject_GC_Del(object);
}

static PyObject *walker_attributes(PyObject *module, PyObject *object) {
    (void)module;
    PyObject *dict = walk_instance_dict(object);
    return dict ? dict : Py_NewRef(Py_None);
}

/* ---- the type ---- */

static PyObject *walker_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *classify;
    Py_ssize_t depth_limit;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "On:Walker", &classify, &depth_limit)) return NULL;
    struct walker *self = (struct walker *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->classify = Py_NewRef(classify);
    self->depth_limit = depth_limit;
    self->classes = PyDict_New();
    self->deep = PyList_New(0);
    self->kept = PyList_New(0);
    PyObject *copyreg = PyImport_ImportModule("copyreg");
    self->newobj = copyreg ? PyObject_GetAttrString(copyreg, "__newobj__") : NULL;
    Py_XDECREF(copyreg);
    if (!self->classes || !self->deep || !self->kept || !self->newobj) Py_CLEAR(self);
    return (PyObject *)self;
}

static int walker_clear(PyObject *object) {
    struct walker *self = (struct walker *)object;
    Py_CLEAR(self->classify);
    Py_CLEAR(self->classes);
    Py_CLEAR(self->newobj);
    Py_CLEAR(self->deep);
    Py_CLEAR(self->kept);
    return 0;
}

static int walker_traverse(PyObject *object, visitproc visit, void *arg) {
    struct walker *self = (struct walker *)object;
    Py_VISIT(self->classify);
    Py_VISIT(self->classes);
    Py_VISIT(self->newobj);
    Py_VISIT(self->deep);
    Py_VISIT(self->kept);
    return 0;
}

static void walker_dealloc(PyObject *object) {
    struct walker *self = (struct walker *)object;
    PyObject_GC_UnTrack(object);
    walker_clear(object);
    PyMem_RawFree(self->seen);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *walker_deep(PyObject *object, void *ignored) {
    (void)ignored;
    return Py_NewRef(((struct walker *)object)->deep);
}

static PyMethodDef methods[] = {
    {"expand", walker_expand, METH_VARARGS,
     "expand(object, depth, reduction=...) -> iterator of (steps, object, outcome, objects) | None\n\nReturns an "
     "iterator over the objects that Python has to check, in an object that is nested `depth` deep, or in its "
     "reduction. outcome: the result of reducing the object, if this was tried. objects: the objects at which the "
     "steps begin, if one of the steps leads to a part of a reduction. The iterator gives None after it has reduced "
     "many objects."},
    {"attributes", walker_attributes, METH_O | METH_STATIC,
     "attributes(object) -> dict | None\n\nReturns the dict of an instance without calling code of its class."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"deep", walker_deep, NULL, "[(steps, objects)]: the first objects that are nested as deep as the limit.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject ExpansionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Expansion",
    .tp_basicsize = sizeof(struct expansion),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = expansion_next,
    .tp_dealloc = expansion_dealloc,
    .tp_traverse = expansion_traverse,
    .tp_clear = expansion_clear,
};

PyTypeObject WalkerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Walker",
    .tp_doc = "Walker(classify, depth_limit): see walk.c. classify(class) returns True to leave instances out; None to "
              "have them returned; a tuple of slot names to visit their slots and their dict; a callable that reduces "
              "an instance to visit its reduction.",
    .tp_basicsize = sizeof(struct walker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = walker_new,
    .tp_dealloc = walker_dealloc,
    .tp_traverse = walker_traverse,
    .tp_clear = walker_clear,
    .tp_methods = methods,
    .tp_getset = properties,
};

static PyObject *call_with_set(PyObject *called, PyObject *value) {
    if (!PyAnySet_CheckExact(value)) Py_RETURN_NONE;
    return PyObject_CallFunctionObjArgs(called, value, NULL);
}

PyObject *walk_for_sets(PyObject *module, PyObject *called) {
    static PyMethodDef method = {"for_sets", call_with_set, METH_O, NULL};
    (void)module;
    return PyCFunction_New(&method, called);
}
