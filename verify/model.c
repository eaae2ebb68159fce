/* The reference model is a sorted map in local memory (a skip list). */
#include "verify/model.h"

#include "base/random.h"
#include "verify/history.h"
#include "verify/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEIGHT 16 /* each level has a quarter of the nodes of the level below, so this suffices for 4^16 keys */

typedef struct node {
    far_bytes key, value; /* key and value of this node, allocated with the node and freed with it */
    int height;
    struct node *next[];
} node;

struct far_model {
    size_t count;
    far_random random;
    node *first[MAX_HEIGHT];
};


far_model *far_model_new(void) {
    far_model *model = far_verify_alloc(sizeof *model);
    far_random_seed(&model->random, 1);
    return model;
}


static void free_node(node *n) {
    free((void *)n->key.data);
    free((void *)n->value.data);
    free(n);
}


void far_model_free(far_model *model) {
    if (!model)
        return;
    for (node *n = model->first[0]; n;) {
        node *next = n->next[0];
        free_node(n);
        n = next;
    }
    free(model);
}


size_t far_model_count(const far_model *model) {
    return model->count;
}


static far_bytes copy_bytes(const void *data, size_t len) {
    uint8_t *copy = far_verify_alloc(len);
    if (len)
        memcpy(copy, data, len);
    return (far_bytes){copy, len};
}


/* Returns the first node with a key of at least `key`. If links is not NULL, links[level] receives the address of the
 * pointer that leads to this node on each level. */
static node *find_from(const far_model *model, far_bytes key, node **links[MAX_HEIGHT]) {
    node **next = (node **)model->first;
    for (int level = MAX_HEIGHT - 1; level >= 0; level--) {
        while (next[level] && far_bytes_compare(next[level]->key, key) < 0)
            next = next[level]->next;
        if (links)
            links[level] = &next[level];
    }
    return next[0];
}


static node *find_node(const far_model *model, far_bytes key, node **links[MAX_HEIGHT]) {
    node *n = find_from(model, key, links);
    return n && far_bytes_compare(n->key, key) == 0 ? n : NULL;
}


static void set_value(node *n, const void *value, size_t value_len) {
    /* The new value is copied before the old value is freed, because `value` may point into the old value. */
    far_bytes copy = copy_bytes(value, value_len);
    free((void *)n->value.data);
    n->value = copy;
}


static void add_node(far_model *model, far_bytes key, node **links[MAX_HEIGHT], const void *value, size_t value_len) {
    int height = 1;
    while (height < MAX_HEIGHT && far_random_chance(&model->random, 1, 4))
        height++;
    node *n = far_verify_alloc(sizeof *n + (size_t)height * sizeof(node *));
    n->key = copy_bytes(key.data, key.length);
    n->value = copy_bytes(value, value_len);
    n->height = height;
    for (int level = 0; level < height; level++) {
        n->next[level] = *links[level];
        *links[level] = n;
    }
    model->count++;
}


int far_model_get(const far_model *model, const void *key, size_t key_len, const void **value, size_t *value_len) {
    node *n = find_node(model, (far_bytes){key, key_len}, NULL);
    if (!n)
        return FAR_ERR_NOT_FOUND;
    if (value)
        *value = n->value.data;
    if (value_len)
        *value_len = n->value.length;
    return FAR_OK;
}


int far_model_insert(far_model *model, const void *key, size_t key_len, const void *value, size_t value_len) {
    node **links[MAX_HEIGHT];
    if (find_node(model, (far_bytes){key, key_len}, links))
        return FAR_ERR_EXISTS;
    add_node(model, (far_bytes){key, key_len}, links, value, value_len);
    return FAR_OK;
}


int far_model_update(far_model *model, const void *key, size_t key_len, const void *value, size_t value_len) {
    node *n = find_node(model, (far_bytes){key, key_len}, NULL);
    if (!n)
        return FAR_ERR_NOT_FOUND;
    set_value(n, value, value_len);
    return FAR_OK;
}


int far_model_put(far_model *model, const void *key, size_t key_len, const void *value, size_t value_len) {
    node **links[MAX_HEIGHT];
    node *n = find_node(model, (far_bytes){key, key_len}, links);
    if (n)
        set_value(n, value, value_len);
    else
        add_node(model, (far_bytes){key, key_len}, links, value, value_len);
    return FAR_OK;
}


int far_model_delete(far_model *model, const void *key, size_t key_len) {
    node **links[MAX_HEIGHT];
    node *n = find_node(model, (far_bytes){key, key_len}, links);
    if (!n)
        return FAR_ERR_NOT_FOUND;
    for (int level = 0; level < n->height; level++)
        *links[level] = n->next[level];
    free_node(n);
    assert(model->count > 0);
    model->count--;
    return FAR_OK;
}


int64_t far_model_scan(const far_model *model, const void *from, size_t from_len, const void *to, size_t to_len,
                       size_t limit, far_pair_fn each, void *ctx) {
    node *n = from ? find_from(model, (far_bytes){from, from_len}, NULL) : model->first[0];
    int64_t given = 0;
    for (; n && (limit == 0 || given < (int64_t)limit); n = n->next[0]) {
        if (to && far_bytes_compare(n->key, (far_bytes){to, to_len}) >= 0)
            break;
        given++;
        if (each(ctx, n->key.data, n->key.length, n->value.data, n->value.length))
            break;
    }
    return given;
}


/* Returns the last node with a key less than `key`, or the last node of all if `key` is NULL; returns NULL if there is
 * none. */
static const node *find_before(const far_model *model, const far_bytes *key) {
    const node *before = NULL;
    node *const *next = model->first;
    for (int level = MAX_HEIGHT - 1; level >= 0; level--)
        while (next[level] && (!key || far_bytes_compare(next[level]->key, *key) < 0)) {
            before = next[level];
            next = before->next;
        }
    return before;
}


int64_t far_model_scan_reverse(const far_model *model, const void *from, size_t from_len, const void *to, size_t to_len,
                               size_t limit, far_pair_fn each, void *ctx) {
    far_bytes end = {to, to_len};
    const node *n = find_before(model, to ? &end : NULL);
    int64_t given = 0;
    for (; n && (limit == 0 || given < (int64_t)limit); n = find_before(model, &n->key)) {
        if (from && far_bytes_compare(n->key, (far_bytes){from, from_len}) < 0)
            break;
        given++;
        if (each(ctx, n->key.data, n->key.length, n->value.data, n->value.length))
            break;
    }
    return given;
}
