/* The catalog as bytes, and what catalog.c and open_table.c share.
 *
 * catalog word (node 0)   address of the current catalog object 48 | how many indexes it lists << 48; 0 = no index
 * catalog object          head {magic, entries, check} and entries {record, name hash, uid}; immutable but for the flag
 *                         FAR_CATALOG_GONE of an entry whose index was dropped, set by CAS. That counts when the word
 *                         says how many are left: whoever looks at the list makes it so
 * record                  what an index is; immutable but for its drop mark and the count of its keys
 * drop mark               0, or the session (pool/owner.h) that is dropping the index | number 26 << 38, another for each
 *                         pin of the drop
 * table of open indexes   FAR_OPEN_TABLE_MAX words of one handle: 0, or uid 24 | user 1 << 32 (clear: only a walk has it
 *                         open); behind them what the handle tells of itself (far_bulletin). While it has no table, the
 *                         one word it has, with FAR_OPEN_TABLE_ALONE, stands where its address would */
#ifndef FAR_POOL_CATALOG_LAYOUT_H
#define FAR_POOL_CATALOG_LAYOUT_H

#include "pool/handle.h"
#include "pool/kind.h"

#define FAR_CATALOG_MAGIC 0x676c6174616366ull
#define FAR_RECORD_MAGIC  0x6365727869646e69ull
#define FAR_UID_MAX       ((1u << 24) - 1)

/* Types of the pool's own objects (far_alloc with index NULL). */
enum { FAR_POOL_TYPE_CATALOG, FAR_POOL_TYPE_RECORD, FAR_POOL_TYPE_OPEN_TABLE };

typedef struct far_catalog_entry {
    uint64_t record; /* its address; with FAR_CATALOG_GONE: dropped */
    uint64_t name_hash;
    uint32_t uid, unused;
    uint64_t place; /* 0; in a view: which entry of the object it is */
} far_catalog_entry;

#define FAR_CATALOG_GONE (0x6f6eull << 48) /* or'ed to the address of the record */

typedef struct far_catalog_head {
    uint64_t magic;
    uint64_t entries;
    uint64_t check; /* hash of the entries, without that flag */
    uint64_t unused;
} far_catalog_head;

typedef struct far_index_record {
    uint64_t magic;
    uint64_t mark; /* changed by CAS */
    uint64_t uid;
    uint64_t descriptor;
    uint8_t secret[32];
    char kind[16];
    char name[FAR_NAME_MAX + 1];
    char options[FAR_OPTIONS_TEXT_MAX + 1];
    uint64_t check; /* hash of all before it but magic and mark */
    uint64_t keys;  /* about how many there are: changed by FAA, by handles that have it open, now and then */
} far_index_record;

_Static_assert(sizeof(far_catalog_entry) == 32 && sizeof(far_catalog_head) == 32, "entries of 32 bytes");
_Static_assert(sizeof(far_index_record) == 672 && sizeof(far_index_record) % FAR_GRANULE == 0, "no padding");
_Static_assert(offsetof(far_index_record, mark) == 8, "the mark is a word");

#define FAR_CATALOG_ENTRIES_MAX 32000 /* one verb writes them */
_Static_assert(sizeof(far_catalog_head) + FAR_CATALOG_ENTRIES_MAX * sizeof(far_catalog_entry) < FAR_VERB_BYTES_MAX,
               "one verb");


static inline uint64_t far_catalog_word(far_addr addr, unsigned listed) {
    return addr | (uint64_t)listed << 48;
}


static inline far_addr far_catalog_word_addr(uint64_t word) {
    return word & ((1ull << 48) - 1);
}


static inline uint64_t far_catalog_bytes(uint64_t entries) {
    return sizeof(far_catalog_head) + entries * sizeof(far_catalog_entry);
}


#define FAR_OPEN_TABLE_USER  (1ull << 32)
#define FAR_OPEN_TABLE_ALONE (1ull << 63)
#define FAR_OPEN_TABLE_BYTES (FAR_OPEN_TABLE_MAX * 8ull + sizeof(far_bulletin))


static inline far_addr far_bulletin_of(far_addr table) {
    return table + FAR_OPEN_TABLE_MAX * 8ull;
}


static inline uint32_t far_open_table_uid(uint64_t word) {
    return (uint32_t)word & FAR_UID_MAX;
}


static inline far_addr far_open_table_word_of(unsigned client) {
    return far_client_entry(client) + offsetof(far_client, opened);
}


/* What a task saw of the catalog, in its scratch memory. */
typedef struct far_catalog_view {
    uint64_t word;
    far_catalog_head head;
    unsigned count;
    far_catalog_entry *entries; /* that are listed */
} far_catalog_view;

/* Takes a pin, if the task has none, which it keeps. */
int far_catalog_look(far_task *t, far_catalog_view *view);
int far_catalog_listed(far_task *t, far_catalog_view *view); /* without a pin: what is listed now */

/* With that pin. */
const far_catalog_entry *far_catalog_find_uid(const far_catalog_view *view, uint32_t uid);
int far_catalog_find(far_task *t, const far_catalog_view *view, const char *name, far_catalog_entry *entry,
                     far_index_record *record);
int far_catalog_read_record(far_task *t, const far_catalog_entry *entry, far_index_record *record);

/* Drop marks that an operation meets while it looks again and again. */
typedef struct far_met_mark {
    uint64_t mark;     /* the last one, of a client that lives; 0: none since the last rest */
    uint64_t stale;    /* nobody works under this one, whoever it names */
    uint64_t unproved; /* the epochs that would prove that of this one did not come for long */
} far_met_mark;

/* A drop mark was met: 1 = nobody works under it, and it is gone; 0 = its owner lives, wait for it. FAR_ERR_BUSY: it stands
 * still, and the epochs did not come that would prove that nobody works under it. */
int far_catalog_clear_mark(far_task *t, const far_catalog_entry *entry, uint64_t mark, far_met_mark *met);
/* Without a pin, before the catalog is looked at again. */
int far_catalog_rest(far_task *t, far_met_mark *met, unsigned attempt);

/* The pin goes when nothing of the task is under way. */
void far_catalog_unpin(far_task *t);

/* open_table.c: the indexes this handle has open. FAR_LATCH_OPEN_TABLE lets one task of the handle at a time change
 * them; its holder may wait for verbs, never for epochs or operations. */
int far_open_table_enter(far_task *t, uint32_t uid, bool user,
                         unsigned *slot); /* 1: look again; FAR_ERR_BUSY: too many */
int far_open_table_leave(far_task *t, unsigned slot);
int far_catalog_tell_keys(far_task *t, far_index *index); /* adds to the record what was not told yet */
/* seen: the registry's word for this handle's table, as somebody read it. If it is not what it should be, it is put right. */
int far_open_table_mend(far_task *t, uint64_t seen);
int far_open_table_prove(far_task *t); /* the same of the words in the table, which it reads */
int far_open_table_settle(far_task *t); /* unpinned: writes the table anew, if a session was lost that was writing it */
bool far_open_table_is_unsure(const far_pool *pool);
far_index *far_open_table_make(far_pool *pool, const far_index_kind *kind, const char *name, uint32_t uid);
void far_open_table_link(far_index *index, unsigned slot, bool user); /* from now on others find it */
void far_open_table_free(far_index *index);

/* Who has an index open: 0 nobody, 1 only walks, 2 a user; in *handle one of them. */
int far_open_table_anywhere(far_task *t, uint32_t uid, unsigned *handle);
int far_open_table_walk(far_task *t, far_walk *walk); /* reports the tables; those of dead handles are taken down */

#endif
