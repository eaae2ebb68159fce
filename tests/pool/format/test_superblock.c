/* Tests of formatting, opening and restoring the superblock (pool/format/superblock.c): clients that fail or are
 * suspended between any two verbs, concurrent formatters, memory that is refused, and the restoration of damaged
 * constants. */
#include "base/error.h"
#include "pool/handle.h"
#include "staged.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

typedef struct opener { /* A client that only opens the superblock. */
    far_pool pool;
    far_session *session;
    int result;
    bool done;
    char words[FAR_MESSAGE_BYTES]; /* error text of the open */
} opener;


static const char *uri_of(unsigned number) {
    static char uri[64];
    snprintf(uri, sizeof(uri), "local:3x2M?name=superblock%u", number);
    return uri;
}


static void begin_opener_at(opener *o, const char *uri, bool staged) {
    memset(o, 0, sizeof(*o));
    assert_int_equal(far_fabric_open(uri, &o->pool.fabric), 0);
    if (staged)
        staged_install(o->pool.fabric);
    assert_int_equal(far_pool_session_new(&o->pool, &o->session), 0);
    o->pool.team.own = o->session;
    pthread_mutex_init(&o->pool.lock, NULL);
}


static void begin_opener(opener *o, unsigned number, bool staged) {
    begin_opener_at(o, uri_of(number), staged);
}


static void end_opener(opener *o) {
    far_session_free(o->session);
    o->pool.fabric->ops->close(o->pool.fabric);
}


static void run_open(far_task *t, void *arg) {
    opener *o = arg;
    o->result = far_superblock_open(t, &o->pool.geometry);
    snprintf(o->words, sizeof(o->words), "%s", far_last_error()); /* the error text belongs to the task */
    o->done = true;
}


static void start_opener(opener *o) {
    assert_non_null(far_task_new(o->session, FAR_STATS_OTHER, run_open, o));
    far_session_try_enter(o->session);
}


static int run_opener(opener *o) {
    start_opener(o);
    far_session_run_until(o->session, &o->done);
    far_session_leave(o->session);
    return o->result;
}


/* Runs the opener until the given number of its verbs took effect, or it has ended. */
static void run_to_verb(opener *o, unsigned verbs) {
    for (;;) {
        while (far_session_step(o->session))
            ;
        if (o->done || staged_count(o->session->conn) == verbs)
            return;
        assert_true(staged_apply_next_verb(o->session->conn));
    }
}


typedef struct word_write {
    far_addr addr;
    uint64_t word;
} word_write;


static int run_write(far_task *t, void *arg) {
    const word_write *w = arg;
    return far_write_word(t, w->addr, w->word);
}


static void write_word_at(opener *o, far_addr addr, uint64_t word) {
    word_write w = {addr, word};
    assert_int_equal(far_session_call(o->session, FAR_STATS_OTHER, true, run_write, &w), 0);
}


static int run_read(far_task *t, void *arg) {
    word_write *w = arg;
    return far_read_word(t, w->addr, &w->word);
}


static uint64_t read_word_at(opener *o, far_addr addr) {
    word_write w = {addr, 0};
    assert_int_equal(far_session_call(o->session, FAR_STATS_OTHER, true, run_read, &w), 0);
    return w.word;
}


/* The first client formats the pool; the second one derives the same layout, pool id and capabilities. */
TEST(the_first_formats_and_the_second_finds_the_same_pool) {
    opener a, b;
    begin_opener(&a, 1, false);
    begin_opener(&b, 1, false);
    assert_int_equal(run_opener(&a), 0);
    assert_int_equal(run_opener(&b), 0);
    assert_memory_equal(&a.pool.geometry, &b.pool.geometry, sizeof(far_geometry));
    assert_int_not_equal(a.pool.geometry.pool_id, 0);
    assert_int_equal(a.pool.geometry.nodes, 3);
    end_opener(&a);
    end_opener(&b);
}


/* Client A formats and fails after n of its verbs, for every n. Client B opens the pool successfully, and C finds the
 * same pool as B. */
TEST(a_formatter_that_fails_at_any_verb_is_replaced_by_the_next) {
    bool finished = false;
    for (unsigned verbs = 0; !finished; verbs++) {
        opener a, b, c;
        begin_opener(&a, 2, true);
        begin_opener(&b, 2, false);
        begin_opener(&c, 2, false);
        start_opener(&a);
        run_to_verb(&a, verbs);
        finished = a.done;
        staged_kill(a.session->conn);
        assert_int_equal(run_opener(&b), 0);
        run_to_verb(&a, UINT32_MAX);
        assert_int_equal(a.result, finished ? 0 : FAR_ERR_FENCED);
        assert_int_equal(run_opener(&c), 0);
        assert_memory_equal(&b.pool.geometry, &c.pool.geometry, sizeof(far_geometry));
        end_opener(&a);
        end_opener(&b);
        end_opener(&c);
        assert_true(verbs < 100);
    }
}


/* Client A formats and is suspended after n of its verbs, for every n. Client B opens the pool and changes words of the
 * superblock, the registry and the tables. Then A continues: it finishes successfully and changes none of these words.
 * Fails if write_constants wrote words that change. */
TEST(a_formatter_that_is_suspended_at_any_verb_does_no_harm_later) {
    bool finished = false;
    for (unsigned verbs = 0; !finished; verbs++) {
        opener a, b, c;
        begin_opener(&a, 3, true);
        begin_opener(&b, 3, false);
        begin_opener(&c, 3, false);
        start_opener(&a);
        run_to_verb(&a, verbs);
        finished = a.done;
        assert_int_equal(run_opener(&b), 0);
        for (far_addr addr = FAR_SUPER_EPOCH; addr < 128; addr += 8)
            write_word_at(&b, addr, addr * 77);
        write_word_at(&b, FAR_SUPER_REGISTRY + 64, 99);
        write_word_at(&b, far_addr_make(1, b.pool.geometry.node[1].entries), 98);
        run_to_verb(&a, UINT32_MAX);
        assert_int_equal(a.result, 0);
        assert_int_equal(a.pool.geometry.pool_id, b.pool.geometry.pool_id);
        for (far_addr addr = FAR_SUPER_EPOCH; addr < 128; addr += 8)
            assert_int_equal(read_word_at(&b, addr), addr * 77);
        assert_int_equal(read_word_at(&b, FAR_SUPER_REGISTRY + 64), 99);
        assert_int_equal(read_word_at(&b, far_addr_make(1, b.pool.geometry.node[1].entries)), 98);
        assert_int_equal(run_opener(&c), 0);
        assert_memory_equal(&b.pool.geometry, &c.pool.geometry, sizeof(far_geometry));
        end_opener(&a);
        end_opener(&b);
        end_opener(&c);
    }
}


/* Two or three clients format the pool in random interleavings of single verbs (2000 seeds). They all derive the same
 * pool. Fails without the CASes in agree_on_constants. */
TEST(concurrent_formatters_agree_in_every_interleaving) {
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        far_random random;
        far_random_seed(&random, seed);
        opener o[3];
        unsigned count = 2 + seed % 2, running = count;
        for (unsigned i = 0; i < count; i++) {
            begin_opener(&o[i], 4, true);
            start_opener(&o[i]);
        }
        for (unsigned turns = 0; running > 0; turns++) {
            opener *next = &o[far_random_below(&random, count)];
            bool was_done = next->done;
            if (far_random_chance(&random, 1, 2))
                staged_apply_next_verb(next->session->conn);
            else
                far_session_step(next->session);
            running -= next->done && !was_done;
            assert_true(turns < 10000);
        }
        for (unsigned i = 0; i < count; i++) {
            if (o[i].result != 0)
                print_error("seed %llu: %s\n", (unsigned long long)seed, o[i].words);
            assert_int_equal(o[i].result, 0);
            assert_memory_equal(&o[i].pool.geometry, &o[0].pool.geometry, sizeof(far_geometry));
        }
        for (unsigned i = 0; i < count; i++)
            end_opener(&o[i]);
    }
}


static void expect_refusal_of_word(const far_addr addr, uint64_t word, bool after_format, const char *words) {
    opener a, b;
    begin_opener(&a, 5, false);
    begin_opener(&b, 5, false);
    if (after_format)
        assert_int_equal(run_opener(&a), 0);
    write_word_at(&a, addr, word);
    assert_int_equal(run_opener(&b), FAR_ERR_CORRUPT);
    if (!strstr(b.words, words))
        fail_msg("'%s' does not contain '%s'", b.words, words);
    assert_int_equal(read_word_at(&a, addr), word); /* A refused pool is not changed by the attempt to open it. */
    end_opener(&a);
    end_opener(&b);
}


/* Each case changes one word of empty memory or of a formatted pool to a value that this version does not write there.
 * Opening fails with FAR_ERR_CORRUPT and a text that states the reason, and changes nothing. */
TEST(memory_that_is_no_pool_of_this_version_is_refused_and_not_changed) {
    expect_refusal_of_word(FAR_SUPER_MAGIC, 0x1234567890, true, "not a farindex pool");
    expect_refusal_of_word(FAR_SUPER_MAGIC, 0x1234567890, false, "not a farindex pool");
    expect_refusal_of_word(FAR_SUPER_MAGIC, FAR_POOL_MAGIC << 16 | 7, true,
                           "version 7, but this library supports only version 8");
    expect_refusal_of_word(FAR_SUPER_POOL_ID, 5, true, "damaged");
    expect_refusal_of_word(FAR_SUPER_CAPABILITIES, 8, true, "damaged");
    expect_refusal_of_word(FAR_SUPER_CAPABILITIES, 12, true, "capabilities are damaged");
    expect_refusal_of_word(FAR_SUPER_CAPABILITIES, 12, false, "neither");
    expect_refusal_of_word(FAR_SUPER_SHAPE, 3, true, "damaged");
    expect_refusal_of_word(FAR_SUPER_SHAPE, 2, true, "2 memory nodes, but the URI names 3");
    expect_refusal_of_word(FAR_SUPER_SHAPE, 17, false, "neither");
    expect_refusal_of_word(FAR_SUPER_CHECK, 17, true, "damaged");
    expect_refusal_of_word(FAR_SUPER_NODE_TABLE + 8, 4096, true, "node 1 was formatted with 4096 bytes");
    expect_refusal_of_word(FAR_SUPER_NODE_TABLE + 8, 4096, false, "neither");
    expect_refusal_of_word(FAR_SUPER_EPOCH, 1, false, "neither");
    expect_refusal_of_word(far_addr_make(2, 8), 77, true, "node 2 is not node 2 of this pool");
    expect_refusal_of_word(far_addr_make(2, 8), 77, false, "node 2 belongs to another pool");
}


/* ---- Restoring damaged constants ---- */

typedef struct restoring {
    /* `maker` formatted the pool; `opener` opens the pool with the option to restore damaged words */
    opener maker, opener;
    far_addr words[5 + FAR_NODES_MAX + 3 * FAR_NODES_MAX];
    unsigned count;
} restoring;


static void begin_restoring(restoring *r, const char *uri) {
    begin_opener_at(&r->maker, uri, false);
    begin_opener_at(&r->opener, uri, false);
    assert_int_equal(run_opener(&r->maker), 0);
    unsigned nodes = r->maker.pool.geometry.nodes;
    r->opener.pool.options.restore = 1;
    r->count = 0;
    for (far_addr addr = FAR_SUPER_MAGIC; addr <= FAR_SUPER_CHECK; addr += 8)
        r->words[r->count++] = addr;
    for (unsigned n = 0; n < nodes; n++)
        r->words[r->count++] = FAR_SUPER_NODE_TABLE + 8 * n;
    for (unsigned n = 1; n < nodes; n++)
        for (unsigned i = 0; i < 3; i++)
            r->words[r->count++] = far_addr_make(n, 8 * i);
}


static void end_restoring(restoring *r) {
    end_opener(&r->maker);
    end_opener(&r->opener);
}


static bool addr_is_pool_id(far_addr addr) {
    return far_addr_offset(addr) == FAR_SUPER_POOL_ID;
}


/* Damages one word and opens the pool. Returns 1 if the word was restored; 0 if the pool was refused with a text and
 * not changed. The pool is undamaged again afterwards. */
static int try_to_restore(restoring *r, far_addr addr, uint64_t damaged) {
    uint64_t right = read_word_at(&r->maker, addr), check = read_word_at(&r->maker, FAR_SUPER_CHECK);
    write_word_at(&r->maker, addr, damaged);
    r->opener.done = false;
    int err = run_opener(&r->opener);
    if (err < 0) {
        assert_int_equal(err, FAR_ERR_CORRUPT);
        assert_non_null(strstr(r->opener.words, "local:")); /* the text names the pool that was refused */
        assert_int_equal(read_word_at(&r->maker, addr), damaged);
        write_word_at(&r->maker, addr, right);
        return 0;
    }
    /* In a pool of one node, a lost pool id may be replaced by any other id. */
    if (read_word_at(&r->maker, addr) == damaged) {
        assert_true(addr_is_pool_id(addr) && r->maker.pool.geometry.nodes == 1);
        write_word_at(&r->maker, addr, right);
        write_word_at(&r->maker, FAR_SUPER_CHECK, check);
        return 1;
    }
    assert_int_equal(read_word_at(&r->maker, addr), right);
    assert_memory_equal(&r->maker.pool.geometry, &r->opener.pool.geometry, sizeof(far_geometry));
    return 1;
}


/* Damages every constant word in turn (sets it to zeros, to ones, or flips one bit) and opens the pool with the option
 * to restore. The word is restored. In a pool of one node, two cases cannot be restored: a wrong format version,
 * because the version may be right for another program, and a pool id of 0. */
TEST(one_damaged_word_is_restored_if_the_others_determine_it) {
    static const struct {
        const char *uri;
        unsigned refused;
    } pools[] = {{"local:2M?name=restored1", 16 + 1}, {"local:3x2M?name=restored3", 0}};
    static restoring r;
    for (unsigned p = 0; p < 2; p++) {
        unsigned restored = 0;
        begin_restoring(&r, pools[p].uri);
        for (unsigned i = 0; i < r.count; i++) {
            uint64_t right = read_word_at(&r.maker, r.words[i]);
            restored +=
                (unsigned)try_to_restore(&r, r.words[i], 0) + (unsigned)try_to_restore(&r, r.words[i], UINT64_MAX);
            for (unsigned bit = 0; bit < 64; bit++)
                restored += (unsigned)try_to_restore(&r, r.words[i], right ^ 1ull << bit);
        }
        assert_int_equal(restored, 66 * r.count - pools[p].refused);
        end_restoring(&r);
    }
}


/* If two constant words are damaged, or if a node may belong to another pool, opening fails and nothing is written. */
TEST(words_that_the_others_do_not_determine_are_not_restored) {
    static restoring r;
    begin_restoring(&r, "local:3x2M?name=restored2");
    for (unsigned i = 0; i < r.count; i++) {
        uint64_t right = read_word_at(&r.maker, r.words[i]);
        far_addr second = r.words[i] == FAR_SUPER_SHAPE ? FAR_SUPER_CHECK : FAR_SUPER_SHAPE;
        write_word_at(&r.maker, r.words[i], right ^ 1ull << i);
        assert_int_equal(try_to_restore(&r, second, 17), 0);
        write_word_at(&r.maker, r.words[i], right);
    }
    assert_int_equal(try_to_restore(&r, far_addr_make(2, 8), 0x123456789abcdef), 0);
    end_restoring(&r);
}


static int open_with_capabilities(opener *o, far_capabilities capabilities) {
    o->pool.fabric->capabilities = capabilities;
    o->done = false;
    return run_opener(o);
}


/* A client is refused if its fabric lacks a capability that the pool was formatted with. min_rtt does not count,
 * because each client has its own. */
TEST(clients_that_offer_less_than_the_pool_relies_on_are_refused) {
    opener a, b;
    begin_opener(&a, 6, false);
    begin_opener(&b, 6, false);
    assert_int_equal(open_with_capabilities(&a, (far_capabilities){64, true, true, true, 0}), 0);
    assert_int_equal(open_with_capabilities(&b, (far_capabilities){8, true, true, true, 0}), FAR_ERR_UNSUPPORTED);
    assert_int_equal(open_with_capabilities(&b, (far_capabilities){64, false, true, true, 0}), FAR_ERR_UNSUPPORTED);
    assert_int_equal(open_with_capabilities(&b, (far_capabilities){64, true, false, true, 0}), FAR_ERR_UNSUPPORTED);
    assert_int_equal(open_with_capabilities(&b, (far_capabilities){64, true, true, true, 500}), 0);
    assert_int_equal(b.pool.geometry.capabilities.min_rtt, 500);
    end_opener(&a);
    end_opener(&b);
}


/* If the fabric of a client offers more than the pool relies on, the client uses only the capabilities of the pool. */
TEST(clients_that_offer_more_use_the_capabilities_of_the_pool) {
    opener a, b;
    begin_opener(&a, 7, false);
    begin_opener(&b, 7, false);
    assert_int_equal(open_with_capabilities(&a, (far_capabilities){8, false, false, true, 0}), 0);
    assert_int_equal(open_with_capabilities(&b, (far_capabilities){64, true, true, true, 0}), 0);
    assert_int_equal(b.pool.geometry.capabilities.atomic_bytes, 8);
    assert_false(b.pool.geometry.capabilities.masked_cas);
    assert_false(b.pool.geometry.capabilities.atomics_in_order);
    end_opener(&a);
    end_opener(&b);
}
