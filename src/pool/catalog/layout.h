/* The catalog in far memory, and the functions that catalog.c and open.c share.
 *
 *     catalog word            (node 0) address of the current catalog object 48 bits | number of listed indexes << 48;
 *                             0 if there is no index
 *     catalog object          head {magic, entries, check, next} and at most FAR_CATALOG_ENTRIES_MAX entries {record,
 *                             name hash, uid}. A longer list is a chain of catalog objects: `next` is the address of
 *                             the following one, or 0. Constant, but a drop sets the flag FAR_CATALOG_DROPPED of its
 *                             entry by CAS.
 *     record                  description of an index; constant except for its claim word and its count of keys
 *     claim word              0, or 1 after one of the clients that unlisted the index has claimed the drop
 *     status record           statistics of one handle (far_status_record), named by the handle's registry entry
 *
 * A drop takes effect in two steps: a client sets the flag of the entry, then any client that reads the catalog reduces
 * the number in the catalog word. The second step makes concurrent CASes of the catalog word fail, so a client that
 * copied the list before the drop cannot publish its copy. */
#ifndef FAR_POOL_CATALOG_LAYOUT_H
#define FAR_POOL_CATALOG_LAYOUT_H

#include "pool/handle.h"
#include "pool/kind.h"

/* The first catalog object of a chain contains this number, the following ones contain it plus their position in the
 * chain. So no address but that of the first one leads to a valid catalog. */
#define FAR_CATALOG_MAGIC 0x676c6174616366ull
#define FAR_RECORD_MAGIC  0x6365727869646e69ull
#define FAR_UID_MAX       ((1u << 24) - 1)

/* Types of the pool's own objects, which are allocated by far_alloc with index NULL. */
enum { FAR_POOL_TYPE_CATALOG, FAR_POOL_TYPE_RECORD, FAR_POOL_TYPE_STATUS };

typedef struct far_catalog_entry {
    uint64_t record; /* address of the record; or'ed with FAR_CATALOG_DROPPED if the index was dropped */
    uint64_t name_hash;
    uint32_t uid, unused;
    uint64_t addr; /* 0 in far memory; in a view, the address of the entry */
} far_catalog_entry;

#define FAR_CATALOG_DROPPED (0x6f6eull << 48) /* flag of a dropped index, or'ed to the address of the record */

typedef struct far_catalog_head {
    uint64_t magic;   /* FAR_CATALOG_MAGIC plus the position in the chain */
    uint64_t entries; /* number of entries of this object, at least 1 */
    uint64_t check;   /* hash of `next` and of the entries without their flags */
    uint64_t next;    /* address of the next catalog object of the chain, or 0 */
} far_catalog_head;

typedef struct far_index_record {
    uint64_t magic;
    uint64_t claimed; /* claim word; changed by CAS */
    uint64_t uid;
    uint64_t descriptor;
    uint8_t secret[32];
    char kind[16];
    char name[FAR_NAME_MAX + 1];
    char options[FAR_OPTIONS_TEXT_MAX + 1];
    uint64_t check; /* hash of all preceding fields except magic and claimed */
    uint64_t keys; /* approximate number of keys; handles that have the index open change it by FAA from time to time */
} far_index_record;

_Static_assert(sizeof(far_catalog_entry) == 32 && sizeof(far_catalog_head) == 32, "entries of 32 bytes");
_Static_assert(sizeof(far_index_record) == 672 && sizeof(far_index_record) % FAR_GRANULE == 0, "no padding");

#define FAR_CATALOG_ENTRIES_MAX 1000 /* most entries of one catalog object, so that the object fits into a block */
#define FAR_CATALOG_OBJECTS_MAX 32   /* most objects of the chain, so that the catalog word can count the entries */
#define FAR_INDEXES_MAX         (FAR_CATALOG_ENTRIES_MAX * FAR_CATALOG_OBJECTS_MAX)
_Static_assert(sizeof(far_catalog_head) + FAR_CATALOG_ENTRIES_MAX * sizeof(far_catalog_entry) <=
                   FAR_BLOCK_BYTES_MIN / 2,
               "a catalog object fits into half of the smallest block");
_Static_assert(FAR_INDEXES_MAX < 1 << 16, "the catalog word contains the number of indexes");


static inline uint64_t far_catalog_word(far_addr addr, unsigned listed) {
    return addr | (uint64_t)listed << 48;
}


static inline far_addr far_catalog_word_addr(uint64_t word) {
    return word & ((1ull << 48) - 1);
}


static inline uint64_t far_catalog_bytes(uint64_t entries) {
    return sizeof(far_catalog_head) + entries * sizeof(far_catalog_entry);
}


static inline far_addr far_status_word_of(unsigned client) {
    return far_client_entry(client) + offsetof(far_client, status);
}


typedef struct far_catalog_object { /* a catalog object of a chain */
    far_addr addr;
    uint64_t entries;
} far_catalog_object;

/* The catalog as a task read it, in the task's scratch memory. */
typedef struct far_catalog_view {
    uint64_t word;
    unsigned objects; /* number of catalog objects in the chain */
    far_catalog_object chain[FAR_CATALOG_OBJECTS_MAX];
    unsigned count, capacity;   /* number of entries, and number for which there is memory */
    far_catalog_entry *entries; /* the entries that are listed, without dropped ones */
    /* Value of far_pool.indexes_linked before the catalog was read. If an index was in the handle's list by then and is
     * not in the view, it was dropped. */
    uint64_t linked;
} far_catalog_view;

/* Reads the catalog. Takes a pin if the task has none, and returns with the pin held, because it protects the objects
 * that the view refers to. Completes pending drops first: entries that are flagged are never in the view. */
int far_catalog_read(far_task *t, far_catalog_view *view);
/* Like far_catalog_read, but drops the pin before it returns. For callers that only use the entries in the view, and do
 * not read the objects to which they refer. */
int far_catalog_read_unpinned(far_task *t, far_catalog_view *view);

/* Search the view by uid or by name; read the record of an entry. The pin of far_catalog_read must still be held. */
const far_catalog_entry *far_catalog_find_uid(const far_catalog_view *view, uint32_t uid);
int far_catalog_find(far_task *t, const far_catalog_view *view, const char *name, far_catalog_entry *entry,
                     far_index_record *record);
int far_catalog_read_record(far_task *t, const far_catalog_entry *entry, far_index_record *record);

/* Waits for all verbs of the task, then drops its pin. */
void far_catalog_unpin(far_task *t);

/* adds the unpublished change of the key count to the index's record; returns with a pin if there is a change */
int far_catalog_publish_key_counts(far_task *t, far_index *index);
far_index *far_index_new(far_pool *pool, const far_index_kind *kind, const char *name, uint32_t uid);
/* Set what a creation of the index determines step by step. far_index_set_options returns an error if the options are
 * not valid for the kind. */
void far_index_set_uid(far_index *index, uint32_t uid);
void far_index_set_secret(far_index *index, const uint8_t secret[FAR_SECRET_BYTES]);
void far_index_set_record(far_index *index, far_addr record);
int far_index_set_options(far_index *index, const char *options);
void far_index_free(far_index *index);
/* Adds the index, with one reference, to the handle's list of open indexes. The caller confirms afterwards, under the
 * pin under which it read the catalog or published the index, that the index is still listed. */
void far_index_link(far_index *index);
/* Returns 0 if the index is still listed. `word` is a catalog word under which it was listed. Otherwise marks it as
 * dropped and returns FAR_ERR_DROPPED. */
int far_index_confirm_listed(far_task *t, far_index *index, uint64_t word);
/* Drops the pin, and removes the reference of an index that was added to the list. */
void far_index_give_up(far_task *t, far_index *index);

/* Marks the open indexes as dropped that the view does not list. */
void far_catalog_mark_dropped(far_pool *pool, const far_catalog_view *view);
/* Marks the index as dropped if it is open; its uid is known to be no longer listed. */
void far_catalog_mark_uid_dropped(far_pool *pool, uint32_t uid);

#endif
