/* The reference model is an ordered map of byte strings in local memory (a skip list), with the results of the farindex
 * API. Tests compare an index with it where operations are not concurrent. The same calls always give the same
 * structure. Not thread-safe. */
#ifndef FAR_VERIFY_MODEL_H
#define FAR_VERIFY_MODEL_H

#include "farindex.h"

typedef struct far_model far_model;

far_model *far_model_new(void);
void far_model_free(far_model *model); /* frees the model; NULL is allowed */
size_t far_model_count(const far_model *model);

/* The following functions behave like the functions of the same name in farindex.h, except that get returns a pointer,
 * which is valid until the next change of the model. */
int far_model_get(const far_model *model, const void *key, size_t key_len, const void **value, size_t *value_len);
int far_model_insert(far_model *model, const void *key, size_t key_len, const void *value, size_t value_len);
int far_model_update(far_model *model, const void *key, size_t key_len, const void *value, size_t value_len);
int far_model_put(far_model *model, const void *key, size_t key_len, const void *value, size_t value_len);
int far_model_delete(far_model *model, const void *key, size_t key_len);
int64_t far_model_scan(const far_model *model, const void *from, size_t from_len, const void *to, size_t to_len,
                       size_t limit, far_pair_fn each, void *ctx);
int64_t far_model_scan_reverse(const far_model *model, const void *from, size_t from_len, const void *to, size_t to_len,
                               size_t limit, far_pair_fn each, void *ctx);

#endif
