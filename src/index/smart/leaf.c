/* Reading and building leaves. There is one leaf, a far object, per key. The checksum of a leaf binds its key, address
 * and incarnation together, and for VI and VR leaves also the value, so that a leaf can certify itself (smart.h). */
#include "base/error.h"
#include "base/hash.h"
#include "index/smart/smart.h"

#include <string.h>


unsigned smart_kind_for(const smart_state *st, size_t key_length, size_t value_length) {
    if (st->update == SMART_UPDATE_WORD && value_length == 8)
        return key_length == 8 ? SMART_C8 : SMART_VW;
    if (st->update == SMART_UPDATE_RCU || value_length > st->in_place)
        return SMART_VR;
    return SMART_VI;
}


/* Mixes two words into one. It multiplies them and combines the halves of the product. */
static inline uint64_t fold_product(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}


static __attribute__((noinline)) uint64_t hash_bytes(const smart_state *st, far_bytes bytes) {
    return far_hash(bytes, st->chk_seed);
}


/* Returns the hash word of the key. A key of 8 bytes is used as it is, without hashing. */
static inline uint64_t key_as_word(const smart_state *st, far_bytes key) {
    uint64_t word;
    if (key.length != sizeof(word))
        return hash_bytes(st, key);
    memcpy(&word, key.data, sizeof(word));
    return word;
}


/* The incarnation of a LIVE or PENDING leaf is a random number. Therefore a checksum that is correct proves that the
 * READ returned no words of another incarnation of the same memory. */
static inline uint64_t leaf_checksum(uint64_t seed, far_addr addr, uint64_t ctl, uint64_t sizes, uint64_t key,
                                     uint64_t value) {
    uint64_t where = fold_product(addr ^ seed, smart_ctl_incarnation(ctl) ^ 0x9e3779b97f4a7c15ull);
    uint64_t what = fold_product(key ^ 0xd6e8feb86659fd93ull, sizes ^ seed);
    return fold_product(where ^ value ^ 0xa0761d6478bd642full, what ^ seed);
}


uint64_t smart_leaf_chk(const smart_state *st, const smart_leaf *leaf) {
    uint64_t sizes = leaf->key.length, value = leaf->kind;
    if (leaf->kind == SMART_VI || leaf->kind == SMART_VR) {
        sizes = leaf->meta;
        value ^= hash_bytes(st, leaf->value);
    }
    return leaf_checksum(st->chk_seed, leaf->addr, leaf->ctl, sizes, key_as_word(st, leaf->key), value);
}


static bool parse_sized_leaf(smart_leaf *leaf) {
    unsigned kind = leaf->kind;
    memcpy(&leaf->meta, leaf->image + smart_meta_offset(kind), 8);
    unsigned length = smart_meta_key(leaf->meta);
    uint64_t value = smart_meta_value(leaf->meta);
    if (length == 0 || smart_meta_class(leaf->meta) != leaf->class ||
        smart_leaf_bytes(kind, length, value) > smart_class_bytes(leaf->class) || (kind == SMART_VW && value != 8))
        return false;
    leaf->key = (far_bytes){leaf->image + smart_key_offset(kind), length};
    leaf->value = (far_bytes){leaf->image + smart_value_offset(kind, length), value};
    return true;
}


/* Sets key, value and meta from the image. Returns false if they do not fit into the size class. */
static inline bool parse_leaf(smart_leaf *leaf) {
    if (leaf->kind != SMART_C8)
        return parse_sized_leaf(leaf);
    leaf->meta = smart_meta(8, 0, 8, 0);
    leaf->key = (far_bytes){leaf->image + 16, 8};
    leaf->value = (far_bytes){leaf->image + 24, 8};
    return leaf->class == 0;
}


int smart_make_leaf(smart_op *op, unsigned kind, far_bytes value, unsigned node, bool seen_early, smart_leaf *leaf) {
    far_object object;
    unsigned class = smart_class_for(smart_leaf_bytes(kind, op->key.length, value.length)),
             bytes = smart_class_bytes(class);
    uint8_t *image = far_scratch(op->t, bytes);
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    int err = far_alloc(op->t, op->index, SMART_TYPE_LEAF, bytes, node, 0, &object);
    if (err < 0)
        return err;
    smart_object_state state = object.used || seen_early ? SMART_PENDING : SMART_LIVE;
    uint64_t ctl = smart_leaf_ctl(kind, state, object.used, far_task_random(op->t) >> 8);
    uint64_t meta = smart_meta((unsigned)op->key.length, class, value.length, 0);
    *leaf = (smart_leaf){.addr = object.addr, .ctl = ctl, .kind = kind, .class = class, .image = image, .meta = meta};
    memset(image, 0, bytes);
    memcpy(image, &ctl, 8);
    if (kind != SMART_C8)
        memcpy(image + smart_meta_offset(kind), &meta, 8);
    memcpy(image + smart_key_offset(kind), op->key.data, op->key.length);
    if (value.length)
        memcpy(image + smart_value_offset(kind, (unsigned)op->key.length), value.data, value.length);
    parse_leaf(leaf);
    uint64_t chk = smart_leaf_chk(op->st, leaf);
    memcpy(image + smart_chk_offset(kind), &chk, 8);
    return 0;
}


void smart_free_leaf(smart_op *op, const smart_leaf *leaf) {
    far_free(op->t, op->index, SMART_TYPE_LEAF, leaf->addr, smart_class_bytes(leaf->class));
}


void smart_retire_leaf(smart_op *op, far_addr addr, unsigned class) {
    far_retire(op->t, op->index, SMART_TYPE_LEAF, addr, smart_class_bytes(class));
}


unsigned smart_fingerprint(const smart_state *st, far_bytes key) {
    return (unsigned)(far_hash(key, st->chk_seed) >> 57);
}


bool smart_fingerprint_differs(const smart_op *op, uint64_t word) {
    return op->st->has_fingerprints && smart_word_kind_of(word) == SMART_LEAF &&
           smart_word_hint(word) != smart_fingerprint(op->st, op->key);
}


uint64_t smart_leaf_word(const smart_state *st, const smart_leaf *leaf, unsigned part) {
    return smart_word(leaf->addr, part, SMART_LEAF,
                      st->has_fingerprints ? smart_fingerprint(st, leaf->key) : leaf->class);
}


/* Prepares the leaf and its image for a READ. After the READ, smart_take_leaf sets the other fields. */
static inline int prepare_leaf_read(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf) {
    if (class >= SMART_CLASSES)
        return smart_fail_corrupt(op->index, addr, "slot of the leaf");
    leaf->addr = addr;
    leaf->class = class;
    leaf->image = far_scratch(op->t, smart_class_bytes(class));
    return leaf->image ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
}


int smart_put_read_leaf(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf) {
    int err = prepare_leaf_read(op, addr, class, leaf);
    if (err == 0)
        far_read(op->t, addr, leaf->image, smart_class_bytes(class));
    return err;
}


int smart_fetch_leaf(smart_op *op, far_addr addr, unsigned class, unsigned flags, smart_leaf *leaf) {
    int err = prepare_leaf_read(op, addr, class, leaf);
    if (err < 0)
        return err;
    op->mark = far_rdwc_mark(op->t);
    return far_read_now(op->t, addr, leaf->image, smart_class_bytes(class), flags);
}


bool smart_take_leaf(smart_leaf *leaf, unsigned class) {
    leaf->class = class;
    memcpy(&leaf->ctl, leaf->image, 8);
    leaf->kind = smart_ctl_kind(leaf->ctl);
    smart_object_state state = smart_ctl_state(leaf->ctl);
    return leaf->kind >= SMART_C8 && leaf->kind <= SMART_VR && state <= SMART_REPLACED && state != SMART_FROZEN &&
           parse_leaf(leaf);
}


static __attribute__((noinline)) bool take_hit_of_any_kind(const smart_op *op, smart_leaf *leaf) {
    uint64_t chk;
    if (!smart_take_leaf(leaf, leaf->class) || smart_ctl_is_recycled(leaf->ctl) ||
        smart_ctl_state(leaf->ctl) != SMART_LIVE || !far_bytes_equal(leaf->key, op->key))
        return false;
    memcpy(&chk, leaf->image + smart_chk_offset(leaf->kind), 8);
    return chk == smart_leaf_chk(op->st, leaf);
}


bool smart_take_hit(const smart_op *op, smart_leaf *leaf) {
    uint64_t words[3], key; /* the ctl word, the checksum and the key of a C8 leaf */
    memcpy(words, leaf->image, sizeof(words));
    if (smart_ctl_kind(words[0]) != SMART_C8 || op->key.length != sizeof(key))
        return take_hit_of_any_kind(op, leaf);
    memcpy(&key, op->key.data, sizeof(key));
    if (words[2] != key || smart_ctl_state(words[0]) != SMART_LIVE || smart_ctl_is_recycled(words[0]) ||
        words[1] != leaf_checksum(op->st->chk_seed, leaf->addr, words[0], sizeof(key), key, SMART_C8))
        return false;
    leaf->ctl = words[0];
    leaf->kind = SMART_C8;
    return parse_leaf(leaf);
}


bool smart_leaf_is_whole(const smart_op *op, const smart_leaf *leaf) {
    uint64_t chk;
    if (leaf->kind != SMART_VI || smart_ctl_state(leaf->ctl) == SMART_DEAD)
        return true;
    memcpy(&chk, leaf->image + smart_chk_offset(leaf->kind), 8);
    return chk == smart_leaf_chk(op->st, leaf);
}


/* Called when a READ of a VI leaf showed an unfinished update. If the client that holds the leaf's lock has failed, the
 * function completes the update of that client. Returns 0 if the caller must READ the leaf again, SMART_SEARCH_AGAIN if
 * the pin was renewed, or an error. */
static int handle_torn_leaf(smart_op *op, const smart_leaf *leaf, unsigned attempt) {
    uint64_t lock;
    memcpy(&lock, leaf->image + smart_class_bytes(leaf->class) - 8, 8);
    far_count_retry(op->t);
    if (attempt >= op->st->attempts_per_pin) {
        int err = smart_renew_pin(op);
        return err < 0 ? err : SMART_SEARCH_AGAIN;
    }
    if (lock && smart_liveness_check_is_due(op->st, attempt)) {
        int err = smart_recover_lock(op, leaf->addr + smart_class_bytes(leaf->class) - 8, lock);
        if (err != 0)
            return err < 0 ? err : 0;
    }
    far_back_off(op->t, attempt);
    return 0;
}


int smart_read_leaf(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf, unsigned *chain,
                    smart_old_leaf old[SMART_CHAIN_MAX]) {
    *chain = 0;
    for (unsigned attempt = 0;;) {
        int err = smart_fetch_leaf(op, addr, class, 0, leaf);
        if (err < 0)
            return err;
        if (!smart_take_leaf(leaf, class)) {
            /* An unfinished update may show the new meta word with old content, because a writer changes the meta word
             * first. */
            if (leaf->kind != SMART_VI || attempt >= op->st->attempts_per_pin)
                return smart_fail_corrupt(op->index, addr, "leaf");
            if ((err = handle_torn_leaf(op, leaf, attempt++)) != 0)
                return err;
            continue;
        }
        if (smart_ctl_state(leaf->ctl) == SMART_REPLACED) {
            if (*chain < SMART_CHAIN_MAX)
                old[*chain] = (smart_old_leaf){addr, class};
            (*chain)++;
            addr = smart_ctl_forward(leaf->ctl);
            class = smart_ctl_forward_class(leaf->ctl);
            continue;
        }
        if (smart_leaf_is_whole(op, leaf))
            return 0;
        if ((err = handle_torn_leaf(op, leaf, attempt++)) != 0)
            return err;
    }
}
