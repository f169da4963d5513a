/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of frozen data, for our own faces: lookups of many keys at once, and strided tensors. */
#ifndef HEADRACE_FACE_FROZEN_H
#define HEADRACE_FACE_FROZEN_H

#include <headrace/frozen.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of the text at `index` of a packed list or tuple whose `is_ascii` is set, borrowed from the frozen data.
 * This is faster than hr_frozen_at. Errors as hr_frozen_at; -EINVAL: it is not such a list. */
HR_API int hr_frozen_text(const hr_frozen *frozen, const struct hr_item *texts, uint64_t index, const void **ret_bytes,
                          uint64_t *ret_count);

/* The place of a dict's entry at `index`, for hr_frozen_value. Errors as hr_frozen_at. */
HR_API int hr_frozen_place(const hr_frozen *frozen, const struct hr_item *dict, uint64_t index, uint64_t *ret_place);

/* Asks the processor to fetch the memory that hr_frozen_at will read. `stage` 0: the item itself; 1: the memory that it
 * refers to, after stage 0 has arrived. This is a hint and never fails. */
HR_API void hr_frozen_prefetch(const hr_frozen *frozen, const struct hr_item *container, uint64_t index, int stage);

/* These do the same as hr_frozen_find in steps, to look up many keys at once: first compute all hashes, then give the
 * hints of each stage for all keys, then find all keys. */
HR_API uint64_t hr_frozen_hash(const hr_frozen *frozen, const struct hr_key *key);

/* `stage` 0: the slot; 1: the entry; 2: the memory that its key and value refer to. This is a hint and never fails. */
HR_API void hr_frozen_prefetch_hash(const hr_frozen *frozen, const struct hr_item *dict, uint64_t hash, int stage);
HR_API int hr_frozen_find_hashed(const hr_frozen *frozen, const struct hr_item *dict, const struct hr_key *key,
                                 uint64_t hash, uint64_t *ret_place);

/* Makes an array in which several places may be the same stored element, such as a broadcast array. The fields
 * is_strided, dtype and data of `layout` are not read. The caller fills `*ret_data`, which has layout->bytes bytes. If
 * `other` is the value of another such array (0: none), the new one shares its elements, and `*ret_data` is NULL.
 * -EINVAL: `dtype` is not a text, a place is not one of the stored elements, or `other` does not have as many bytes. */
HR_API int hr_builder_strided(hr_builder *builder, const struct hr_frozen_array *layout, hr_value dtype, hr_value other,
                              hr_value *ret_value, void **ret_data);

#ifdef __cplusplus
}
#endif
#endif
