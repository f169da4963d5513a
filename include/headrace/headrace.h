/* SPDX-License-Identifier: Apache-2.0 */
/* The whole public C API. Each header can also be included alone. */
#ifndef HEADRACE_HEADRACE_H
#define HEADRACE_HEADRACE_H

#include <headrace/arena.h>
#include <headrace/batch.h>
#include <headrace/cache.h>
#include <headrace/cache_files.h>
#include <headrace/cache_samples.h>
#include <headrace/cache_shared.h>
#include <headrace/crew.h>
#include <headrace/error.h>
#include <headrace/frozen.h>
#include <headrace/image.h>
#include <headrace/index.h>
#include <headrace/lines.h>
#include <headrace/loader.h>
#include <headrace/look.h>
#include <headrace/objects.h>
#include <headrace/record.h>
#include <headrace/remote.h>
#include <headrace/sampler.h>
#include <headrace/source.h>
#include <headrace/tar.h>
#include <headrace/tokens.h>
#include <headrace/version.h>
#include <headrace/visibility.h>

#endif
