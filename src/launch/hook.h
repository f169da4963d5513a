/* SPDX-License-Identifier: Apache-2.0 */
/* The array that embed_hook.py writes. */
#ifndef HR_LAUNCH_HOOK_H
#define HR_LAUNCH_HOOK_H

#include <stddef.h>

/* A zip with sitecustomize.py: hook.py, which runs in the interpreter of each rank and writes its page (page.h). The
 * front puts it into a file in memory, and the path of that file first into PYTHONPATH. */
extern const unsigned char hr__hook_zip[];
extern const size_t hr__hook_zip_bytes;

#endif
