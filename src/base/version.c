/* SPDX-License-Identifier: Apache-2.0 */
/* hr_version: the version of the library. */
#include <headrace/version.h>

const char *hr_version(void) {
    return HR_VERSION; /* from the build */
}
