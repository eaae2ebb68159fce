/* The catalog in far memory, and the functions that catalog.c and open_table.c share.
 *
 *     catalog word            (node 0) address of the current catalog object 48 bits | number of listed indexes << 48;
 *                             0 if there is no index
 *     catalog object          head {magic, entries, check, next} and at most FAR_CATALOG_ENTRIES_MAX entries {record,
 *                             name hash, uid}. A longer list is a chain of catalog objects: `next` is the address of
 *                             the following one, or 0. Constant, but a drop sets the flag FAR_CATALOG_DROPPED of its
 *                             entry by CAS.
 *     record                  description of an index; constant except for its drop mark and its count of keys
 *     drop mark               0, or the session that is dropping the index (pool/format/owner.h)
 *                             | number 26 bits << 38, a new one for each pin of the drop
 *     table of open indexes   FAR_OPEN_TABLE_MAX words of one handle: 0, or uid 24 bits | user 1 bit << 32. The user
 *                             bit is clear while only an index walk has the index open. The handle's status record
 *                             (far_status_record) follows the words. A handle without a table has at most one open index;
 *                             its word, with FAR_OPEN_TABLE_INLINE set, is stored in the registry in place of the
 *                             table's address.
 *
 * A drop takes effect in two steps: a client sets the flag of the entry, then any client that reads the catalog reduces
 * the number in the catalog word. The second step makes concurrent CASes of the catalog word fail, so a client that
 * copied the list before the drop cannot publish its copy. */
#ifndef FAR_POOL_CATALOG_LAYOUT_H
#define FAR_POOL_CATALOG_LAYOUT_H

#include "pool/handle.h"
#include "pool/kind.h"

#define FAR_CATALOG_MAGIC 0x676c6174616366ull
#define FAR_RECORD_MAGIC  0x6365727869646e69ull
#define FAR_UID_MAX       ((1u << 24) - 1)

/* Types of the pool's own objects, which are allocated by far_alloc with index NULL. */
enum { FAR_POOL_TYPE_CATALOG, FAR_POOL_TYPE_RECORD, FAR_POOL_TYPE_OPEN_TABLE };

typedef struct far_catalog_entry {
    uint64_t record; /* address of the record; or'ed with FAR_CATALOG_DROPPED if the index was dropped */
    uint64_t name_hash;
    uint32_t uid, unused;
    uint64_t addr; /* 0 in far memory; in a view, the address of the entry */
} far_catalog_entry;

#define FAR_CATALOG_DROPPED (0x6f6eull << 48) /* flag of a dropped index, or'ed to the address of the record */

typedef struct far_catalog_head {
    uint64_t magic;
    uint64_t entries; /* number of entries of this object, at least 1 */
    uint64_t check;   /* hash of `next` and of the entries without their flags */
    uint64_t next;    /* address of the next catalog object of the chain, or 0 */
} far_catalog_head;

typedef struct far_index_record {
    uint64_t magic;
    uint64_t mark; /* drop mark; changed by CAS */
    uint64_t uid;
    uint64_t descriptor;
    uint8_t secret[32];
    char kind[16];
    char name[FAR_NAME_MAX + 1];
    char options[FAR_OPTIONS_TEXT_MAX + 1];
    uint64_t check; /* hash of all preceding fields except magic and mark */
    uint64_t keys; /* approximate number of keys; handles that have the index open change it by FAA from time to time */
} far_index_record;

_Static_assert(sizeof(far_catalog_entry) == 32 && sizeof(far_catalog_head) == 32, "entries of 32 bytes");
_Static_assert(sizeof(far_index_record) == 672 && sizeof(far_index_record) % FAR_GRANULE == 0, "no padding");
_Static_assert(offsetof(far_index_record, mark) == 8, "the mark is a word");

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


#define FAR_OPEN_TABLE_USER   (1ull << 32)
#define FAR_OPEN_TABLE_INLINE (1ull << 63)
#define FAR_OPEN_TABLE_BYTES  (FAR_OPEN_TABLE_MAX * 8ull + sizeof(far_status_record))


static inline far_addr far_status_record_of(far_addr table) {
    return table + FAR_OPEN_TABLE_MAX * 8ull;
}


static inline uint32_t far_open_table_uid(uint64_t word) {
    return (uint32_t)word & FAR_UID_MAX;
}


static inline far_addr far_open_table_word_of(unsigned client) {
    return far_client_entry(client) + offsetof(far_client, opened);
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
    unsigned count;
    far_catalog_entry *entries; /* the entries that are listed, without dropped ones */
} far_catalog_view;

/* Reads the catalog. Takes a pin if the task has none, and returns with the pin held, because it protects the objects
 * that the view refers to. Completes pending drops first: entries that are flagged are never in the view. */
int far_catalog_read(far_task *t, far_catalog_view *view);
/* Like far_catalog_read, for callers that only need the list. Returns without a pin. */
int far_catalog_read_unpinned(far_task *t, far_catalog_view *view);

/* Search the view by uid or by name; read the record of an entry. The pin of far_catalog_read must still be held. */
const far_catalog_entry *far_catalog_find_uid(const far_catalog_view *view, uint32_t uid);
int far_catalog_find(far_task *t, const far_catalog_view *view, const char *name, far_catalog_entry *entry,
                     far_index_record *record);
int far_catalog_read_record(far_task *t, const far_catalog_entry *entry, far_index_record *record);

/* Drop marks that a task observed while it waits for another client's drop to end. */
typedef struct far_mark_history {
    uint64_t mark;      /* drop mark of a live client that was observed since the last wait; 0 if there was none */
    uint64_t abandoned; /* a drop mark under which no operation is running, whichever client the mark names */
    /* a drop mark for which far_catalog_wait_for_drop gave up, because the two epochs that would prove the mark
     * abandoned did not come in time */
    uint64_t unproven;
} far_mark_history;

/* Called when the task reads a drop mark. Returns 1 if no operation is running under the mark and it was cleared.
 * Returns 0 if the owner of the mark lives, so the caller must wait. Returns FAR_ERR_BUSY if the mark is still there
 * after far_catalog_wait_for_drop gave up waiting for epochs. */
int far_catalog_resolve_mark(far_task *t, const far_catalog_entry *entry, uint64_t mark, far_mark_history *met);
/* Waits, without a pin, before the task reads the catalog again. After several short waits it waits for two epochs, to
 * prove that no operation is running under the mark. */
int far_catalog_wait_for_drop(far_task *t, far_mark_history *met, unsigned attempt);

/* Waits for all verbs of the task, then drops its pin. */
void far_catalog_unpin(far_task *t);

/* The table of the indexes that this handle has open (open_table.c). FAR_LATCH_OPEN_TABLE lets one task of the handle
 * change it at a time. The holder of the latch may wait for verbs, but never for epochs or operations.
 *
 * far_open_table_add enters a uid and sets `slot`. It returns 1 if the caller must try again, and FAR_ERR_BUSY if the
 * table is full. */
int far_open_table_add(far_task *t, uint32_t uid, bool user, unsigned *slot);
int far_open_table_remove(far_task *t, unsigned slot);
/* adds the unpublished change of the key count to the index's record */
int far_catalog_publish_key_counts(far_task *t, far_index *index);
/* Repairs the registry's word for this handle's table if it is damaged. `seen` is the word as a registry scan read it.
 */
int far_open_table_repair_address(far_task *t, uint64_t seen);
int far_open_table_repair_words(far_task *t); /* repairs damaged words in the handle's table of open indexes */
/* Called without a pin. Writes the table of open indexes again if a session was lost while it wrote to the table. */
int far_open_table_retry_write(far_task *t);
bool far_open_table_is_unconfirmed(const far_pool *pool);
far_index *far_index_new(far_pool *pool, const far_index_kind *kind, const char *name, uint32_t uid);
/* adds the index to the handle's list, so that other tasks find it */
void far_index_link(far_index *index, unsigned slot, bool user);
void far_index_free(far_index *index);

/* Returns how any handle of the pool has the index open: 0 if no handle has, 1 if only index walks have, 2 if a user
 * has. Sets `handle` to one of the handles that have it open. */
int far_open_table_find_users(far_task *t, uint32_t uid, unsigned *handle);
/* reports the tables of open indexes of live handles as linked, and detaches the tables of failed handles */
int far_open_table_report(far_task *t, far_walk *walk);

#endif
