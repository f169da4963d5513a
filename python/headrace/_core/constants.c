/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/encode.h"
#include "exchange/exchange.h"
#include "inspect/walk.h"
#include "record/record.h"

/* The numbers of C that Python needs, as constants of the module. module.c adds them. */

#define PUBLIC(name)                                                                                                   \
    { #name, HR_##name }
#define INNER(name)                                                                                                    \
    { #name, name }

static const struct {
    const char *name;
    long value;
} constants[] = {
    INNER(SUBMIT_DRAW),
    INNER(SUBMIT_SEND),
    PUBLIC(STATUS_BATCH),
    PUBLIC(STATUS_ERROR),
    PUBLIC(STATUS_END),
    PUBLIC(STATUS_SKIPPED),
    PUBLIC(STATUS_TOO_BIG),
    {"STATUS_NOTED", HR_STATUS_USER},
    PUBLIC(WINDOW_STEP),
    PUBLIC(COMMIT_STEP),
    PUBLIC(LOOK_BUCKETS),
    {"NO_SAMPLE", (long)HR_NO_SAMPLE}, /* -1 */
    {"NO_STEP", CORE_NO_STEP},
    PUBLIC(TASK_EPOCH),
    PUBLIC(TASK_MAKE),
    PUBLIC(TASK_STOP),
    PUBLIC(FLAVOR_TENSOR),
    PUBLIC(FLAVOR_NUMPY),
    PUBLIC(PHASE_WAIT),
    PUBLIC(PHASE_FETCH),
    PUBLIC(DIAGNOSTICS_STACK_AT),
    PUBLIC(DIAGNOSTICS_STATUS_BYTES),
    PUBLIC(CACHE_KEEP_JOB),
    PUBLIC(CACHE_KEEP_BOOT),
    PUBLIC(CACHE_KEEP_DISK),
    PUBLIC(CACHE_READY),
    PUBLIC(CACHE_BUILDING),
    PUBLIC(CACHE_ORPHAN),
    PUBLIC(CACHE_REMOVED),
    PUBLIC(CACHE_DAMAGED),
    PUBLIC(SAMPLES_CHECK),
    PUBLIC(SAMPLES_CHECKING),
    PUBLIC(SAMPLES_RIGHT),
    PUBLIC(SAMPLES_WRONG),
    PUBLIC(SAMPLES_LEAST_BYTES),
    PUBLIC(FROZEN_MAX_FIELDS),
    PUBLIC(FROZEN_HEADER_BYTES),
    PUBLIC(MIXTURE_FIRST),
    PUBLIC(MIXTURE_ALL),
    PUBLIC(MIXTURE_LENGTH),
    PUBLIC(PLAN_PAD),
    PUBLIC(PLAN_DROP),
    PUBLIC(PLAN_EXACT),
    PUBLIC(TOKENS_WINDOWS),
    PUBLIC(TOKENS_SEQUENCES),
    PUBLIC(TOKENS_DOCUMENTS),
    PUBLIC(TOKENS_SEPARATED),
    PUBLIC(INDEX_VERSION),
    PUBLIC(INDEX_TAR),
    PUBLIC(INDEX_LINES),
    PUBLIC(TAR_FOLDERS),
    PUBLIC(TAR_LINKS),
    PUBLIC(TAR_OTHERS),
    PUBLIC(TAR_NAMELESS),
    PUBLIC(TAR_METADATA),
    PUBLIC(TAR_REPEATS),
    PUBLIC(TAR_BEHIND),
    PUBLIC(TAR_ENDLESS),
    PUBLIC(DAMAGE_EMPTY),
    PUBLIC(DAMAGE_COMPRESSED),
    PUBLIC(DAMAGE_HEADER),
    PUBLIC(DAMAGE_TRUNCATED),
    PUBLIC(DAMAGE_SPARSE),
    PUBLIC(DAMAGE_REFUSED),
    PUBLIC(DAMAGE_FIELDS),
    PUBLIC(IMAGE_MOST_SIDE),
    PUBLIC(IMAGE_MOST_FACTOR),
    PUBLIC(IMAGE_MOST_THREADS),
    PUBLIC(IMAGE_CROP),
    PUBLIC(IMAGE_RESIZE),
    PUBLIC(IMAGE_TRANSPOSE),
    PUBLIC(IMAGE_CONVERT),
    PUBLIC(IMAGE_BRIGHTNESS),
    PUBLIC(IMAGE_CONTRAST),
    PUBLIC(IMAGE_SATURATION),
    PUBLIC(IMAGE_HUE),
    PUBLIC(IMAGE_BLUR),
    PUBLIC(IMAGE_LANCZOS),
    PUBLIC(IMAGE_BILINEAR),
    PUBLIC(IMAGE_BICUBIC),
    PUBLIC(IMAGE_BOX),
    PUBLIC(IMAGE_HAMMING),
    PUBLIC(IMAGE_ROTATE_90),
    PUBLIC(IMAGE_ROTATE_270),
    PUBLIC(IMAGE_TRANSPOSED),
    PUBLIC(IMAGE_TRANSVERSE),
    PUBLIC(IMAGE_HORIZONTAL_FIRST),
    PUBLIC(IMAGE_SMALLER_FIRST),
    PUBLIC(IMAGE_PACKED),
    PUBLIC(IMAGE_PADDED),
    INNER(STEP_INDEX),
    INNER(STEP_VALUE),
    INNER(STEP_KEY),
    INNER(STEP_ELEMENT),
    INNER(STEP_ATTRIBUTE),
    INNER(STEP_PART),
    INNER(PART_FUNCTION),
    INNER(PART_ARGUMENTS),
    INNER(PART_STATE),
    INNER(PART_ITEMS),
    INNER(PART_PAIRS),
    INNER(PART_SETTER),
};

int core_add_constants(PyObject *module) {
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) return -1;
#ifdef HR_FAILPOINTS
    PyObject *has_failpoints = Py_True;
#else
    PyObject *has_failpoints = Py_False;
#endif
    if (PyModule_AddObjectRef(module, "FAILPOINTS", has_failpoints) < 0) return -1;
    if (PyModule_AddObjectRef(module, "HAS_JPEG", hr_image_has_jpeg() ? Py_True : Py_False) < 0) return -1;
    return PyModule_AddStringConstant(module, "VERSION", hr_version());
}
