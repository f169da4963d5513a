/* SPDX-License-Identifier: Apache-2.0 */
/* Includes all headers that only the faces of this repository need: the extension and the program. They are not
 * installed. Each of them includes the public header of its subject, if there is one. */
#ifndef HEADRACE_FACE_FACE_H
#define HEADRACE_FACE_FACE_H

#include <headrace/face/arena.h>
#include <headrace/face/board.h>
#include <headrace/face/cache.h>
#include <headrace/face/cache_files.h>
#include <headrace/face/cache_samples.h>
#include <headrace/face/cache_shared.h>
#include <headrace/face/crew.h>
#include <headrace/face/error.h>
#include <headrace/face/fetcher.h>
#include <headrace/face/frozen.h>
#include <headrace/face/image.h>
#include <headrace/face/index.h>
#include <headrace/face/kept.h>
#include <headrace/face/launch.h>
#include <headrace/face/loader.h>
#include <headrace/face/machine.h>
#include <headrace/face/recorder.h>
#include <headrace/face/sampler.h>
#include <headrace/face/show.h>
#include <headrace/face/tuner.h>
#include <headrace/face/verdict.h>

#endif
