/* Formatting and opening: crashes between any two verbs, several formatters at once, sleepers, and what is refused. */
#include "base/error.h"
#include "pool/handle.h"
#include "staged.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct opener { /* a compute node that does nothing but open the superblock */
    far_pool pool;
    far_session *session;
    int result;
    bool done;
    char words[FAR_MESSAGE_BYTES]; /* of its failure */
} opener;


static const char *uri_of(unsigned number) {
    static char uri[64];
    snprintf(uri, sizeof(uri), "local:3x2M?name=superblock%u", number);
    return uri;
}


static void opener_begin_at(opener *o, const char *uri, bool staged) {
    memset(o, 0, sizeof(*o));
    assert_int_equal(far_fabric_open(uri, &o->pool.fabric), 0);
    if (staged)
        staged_install(o->pool.fabric);
    assert_int_equal(far_pool_session_new(&o->pool, &o->session), 0);
    o->pool.team.own = o->session;
    pthread_mutex_init(&o->pool.lock, NULL);
}


static void opener_begin(opener *o, unsigned number, bool staged) {
    opener_begin_at(o, uri_of(number), staged);
}


static void opener_end(opener *o) {
    far_session_free(o->session);
    o->pool.fabric->ops->close(o->pool.fabric);
}


static void run_open(far_task *t, void *arg) {
    opener *o = arg;
    o->result = far_superblock_open(t, &o->pool.geometry);
    snprintf(o->words, sizeof(o->words), "%s", far_last_error()); /* the task's own */
    o->done = true;
}


static void opener_start(opener *o) {
    assert_non_null(far_task_new(o->session, FAR_STATS_OTHER, run_open, o));
    far_session_try_enter(o->session);
}


static int open_now(opener *o) {
    opener_start(o);
    far_session_run_until(o->session, &o->done);
    far_session_leave(o->session);
    return o->result;
}


/* Lets the opener go on until so many of its verbs took effect, or it is done. */
static void go_to_verb(opener *o, unsigned verbs) {
    for (;;) {
        while (far_session_step(o->session))
            ;
        if (o->done || staged_count(o->session->conn) == verbs)
            return;
        assert_true(staged_effect(o->session->conn));
    }
}


typedef struct word_write {
    far_addr addr;
    uint64_t word;
} word_write;


static int write_it(far_task *t, void *arg) {
    const word_write *w = arg;
    return far_write_word(t, w->addr, w->word);
}


static void poke(opener *o, far_addr addr, uint64_t word) {
    word_write w = {addr, word};
    assert_int_equal(far_session_call(o->session, FAR_STATS_OTHER, true, write_it, &w), 0);
}


static int read_it(far_task *t, void *arg) {
    word_write *w = arg;
    return far_read_word(t, w->addr, &w->word);
}


static uint64_t peek(opener *o, far_addr addr) {
    word_write w = {addr, 0};
    assert_int_equal(far_session_call(o->session, FAR_STATS_OTHER, true, read_it, &w), 0);
    return w.word;
}


static void the_first_formats_and_the_second_finds_the_same_pool(void **state) {
    (void)state;
    opener a, b;
    opener_begin(&a, 1, false);
    opener_begin(&b, 1, false);
    assert_int_equal(open_now(&a), 0);
    assert_int_equal(open_now(&b), 0);
    assert_memory_equal(&a.pool.geometry, &b.pool.geometry, sizeof(far_geometry));
    assert_int_not_equal(a.pool.geometry.pool_id, 0);
    assert_int_equal(a.pool.geometry.nodes, 3);
    opener_end(&a);
    opener_end(&b);
}


static void a_formatter_that_dies_at_any_verb_is_made_up_for(void **state) {
    (void)state;
    bool finished = false;
    for (unsigned verbs = 0; !finished; verbs++) {
        opener a, b, c;
        opener_begin(&a, 2, true);
        opener_begin(&b, 2, false);
        opener_begin(&c, 2, false);
        opener_start(&a);
        go_to_verb(&a, verbs);
        finished = a.done;
        staged_kill(a.session->conn);
        assert_int_equal(open_now(&b), 0);
        go_to_verb(&a, UINT32_MAX);
        assert_int_equal(a.result, finished ? 0 : FAR_ERR_FENCED);
        assert_int_equal(open_now(&c), 0);
        assert_memory_equal(&b.pool.geometry, &c.pool.geometry, sizeof(far_geometry));
        opener_end(&a);
        opener_end(&b);
        opener_end(&c);
        assert_true(verbs < 100);
    }
}


/* Not dead, only asleep: it goes on after the pool is in use. */
static void a_formatter_that_sleeps_at_any_verb_does_no_harm_later(void **state) {
    (void)state;
    bool finished = false;
    for (unsigned verbs = 0; !finished; verbs++) {
        opener a, b, c;
        opener_begin(&a, 3, true);
        opener_begin(&b, 3, false);
        opener_begin(&c, 3, false);
        opener_start(&a);
        go_to_verb(&a, verbs);
        finished = a.done;
        assert_int_equal(open_now(&b), 0);
        for (far_addr addr = FAR_SUPER_EPOCH; addr < 128; addr += 8)
            poke(&b, addr, addr * 77);
        poke(&b, FAR_SUPER_REGISTRY + 64, 99);
        poke(&b, far_addr_make(1, b.pool.geometry.node[1].entries), 98);
        go_to_verb(&a, UINT32_MAX);
        assert_int_equal(a.result, 0);
        assert_int_equal(a.pool.geometry.pool_id, b.pool.geometry.pool_id);
        for (far_addr addr = FAR_SUPER_EPOCH; addr < 128; addr += 8)
            assert_int_equal(peek(&b, addr), addr * 77);
        assert_int_equal(peek(&b, FAR_SUPER_REGISTRY + 64), 99);
        assert_int_equal(peek(&b, far_addr_make(1, b.pool.geometry.node[1].entries)), 98);
        assert_int_equal(open_now(&c), 0);
        assert_memory_equal(&b.pool.geometry, &c.pool.geometry, sizeof(far_geometry));
        opener_end(&a);
        opener_end(&b);
        opener_end(&c);
    }
}


static void formatters_at_once_agree_in_every_interleaving(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        far_random random;
        far_random_seed(&random, seed);
        opener o[3];
        unsigned count = 2 + seed % 2, running = count;
        for (unsigned i = 0; i < count; i++) {
            opener_begin(&o[i], 4, true);
            opener_start(&o[i]);
        }
        for (unsigned turns = 0; running > 0; turns++) {
            opener *next = &o[far_random_below(&random, count)];
            bool was_done = next->done;
            if (far_random_chance(&random, 1, 2))
                staged_effect(next->session->conn);
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
            opener_end(&o[i]);
    }
}


static void refuses(const far_addr addr, uint64_t word, bool after_format, const char *words) {
    opener a, b;
    opener_begin(&a, 5, false);
    opener_begin(&b, 5, false);
    if (after_format)
        assert_int_equal(open_now(&a), 0);
    poke(&a, addr, word);
    assert_int_equal(open_now(&b), FAR_ERR_CORRUPT);
    if (!strstr(b.words, words))
        fail_msg("'%s' lacks '%s'", b.words, words);
    assert_int_equal(peek(&a, addr), word); /* left untouched */
    opener_end(&a);
    opener_end(&b);
}


static void anything_but_a_pool_of_this_version_is_refused_and_left_alone(void **state) {
    (void)state;
    refuses(FAR_SUPER_MAGIC, 0x1234567890, true, "not a farindex pool");
    refuses(FAR_SUPER_MAGIC, 0x1234567890, false, "not a farindex pool");
    refuses(FAR_SUPER_MAGIC, FAR_POOL_MAGIC << 16 | 6, true, "version 6, this library knows version 7");
    refuses(FAR_SUPER_POOL_ID, 5, true, "damaged");
    refuses(FAR_SUPER_CAPABILITIES, 8, true, "damaged");
    refuses(FAR_SUPER_CAPABILITIES, 12, true, "capabilities are damaged");
    refuses(FAR_SUPER_CAPABILITIES, 12, false, "neither");
    refuses(FAR_SUPER_SHAPE, 3, true, "damaged");
    refuses(FAR_SUPER_SHAPE, 2, true, "2 memory nodes, there are 3");
    refuses(FAR_SUPER_SHAPE, 17, false, "neither");
    refuses(FAR_SUPER_CHECK, 17, true, "damaged");
    refuses(FAR_SUPER_NODE_TABLE + 8, 4096, true, "node 1 was formatted with 4096 bytes");
    refuses(FAR_SUPER_NODE_TABLE + 8, 4096, false, "neither");
    refuses(FAR_SUPER_EPOCH, 1, false, "neither");
    refuses(far_addr_make(2, 8), 77, true, "node 2 is not node 2 of this pool");
    refuses(far_addr_make(2, 8), 77, false, "node 2 belongs to another pool");
}


/* ---- Restoring ---- */

typedef struct restoring {
    opener maker, opener; /* the second one restores */
    far_addr words[5 + FAR_NODES_MAX + 3 * FAR_NODES_MAX];
    unsigned count;
} restoring;


static void begin_restoring(restoring *r, const char *uri) {
    opener_begin_at(&r->maker, uri, false);
    opener_begin_at(&r->opener, uri, false);
    assert_int_equal(open_now(&r->maker), 0);
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
    opener_end(&r->maker);
    opener_end(&r->opener);
}


static bool is_id(far_addr addr) {
    return far_addr_offset(addr) == FAR_SUPER_POOL_ID;
}


/* 1: that word is restored; 0: refused in words, and left alone. The pool is whole again afterwards. */
static int try_to_restore(restoring *r, far_addr addr, uint64_t damaged) {
    uint64_t right = peek(&r->maker, addr), check = peek(&r->maker, FAR_SUPER_CHECK);
    poke(&r->maker, addr, damaged);
    r->opener.done = false;
    int err = open_now(&r->opener);
    if (err < 0) {
        assert_int_equal(err, FAR_ERR_CORRUPT);
        assert_non_null(strstr(r->opener.words, "local:")); /* why open refused it */
        assert_int_equal(peek(&r->maker, addr), damaged);
        poke(&r->maker, addr, right);
        return 0;
    }
    if (peek(&r->maker, addr) == damaged) { /* of one node: a lost id may be any */
        assert_true(is_id(addr) && r->maker.pool.geometry.nodes == 1);
        poke(&r->maker, addr, right);
        poke(&r->maker, FAR_SUPER_CHECK, check);
        return 1;
    }
    assert_int_equal(peek(&r->maker, addr), right);
    assert_memory_equal(&r->maker.pool.geometry, &r->opener.pool.geometry, sizeof(far_geometry));
    return 1;
}


/* Each word of what never changes: zeroes, ones, each bit. Of one node it is not known whether a wrong version is damage, nor an id
 * that is gone. */
static void one_damaged_word_is_restored_where_the_others_tell_it(void **state) {
    static const struct {
        const char *uri;
        unsigned refused;
    } pools[] = {{"local:2M?name=restored1", 16 + 1}, {"local:3x2M?name=restored3", 0}};
    static restoring r;
    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        unsigned restored = 0;
        begin_restoring(&r, pools[p].uri);
        for (unsigned i = 0; i < r.count; i++) {
            uint64_t right = peek(&r.maker, r.words[i]);
            restored +=
                (unsigned)try_to_restore(&r, r.words[i], 0) + (unsigned)try_to_restore(&r, r.words[i], UINT64_MAX);
            for (unsigned bit = 0; bit < 64; bit++)
                restored += (unsigned)try_to_restore(&r, r.words[i], right ^ 1ull << bit);
        }
        assert_int_equal(restored, 66 * r.count - pools[p].refused);
        end_restoring(&r);
    }
}


/* More than a word is wrong, or a node may be another pool's: nothing is written. */
static void what_the_other_words_do_not_tell_is_not_restored(void **state) {
    static restoring r;
    (void)state;
    begin_restoring(&r, "local:3x2M?name=restored2");
    for (unsigned i = 0; i < r.count; i++) {
        uint64_t right = peek(&r.maker, r.words[i]);
        far_addr second = r.words[i] == FAR_SUPER_SHAPE ? FAR_SUPER_CHECK : FAR_SUPER_SHAPE;
        poke(&r.maker, r.words[i], right ^ 1ull << i);
        assert_int_equal(try_to_restore(&r, second, 17), 0);
        poke(&r.maker, r.words[i], right);
    }
    assert_int_equal(try_to_restore(&r, far_addr_make(2, 8), 0x123456789abcdef), 0);
    end_restoring(&r);
}


static int open_with(opener *o, far_capabilities capabilities) {
    o->pool.fabric->capabilities = capabilities;
    o->done = false;
    return open_now(o);
}


static void clients_that_offer_less_than_the_pool_relies_on_are_refused(void **state) {
    (void)state;
    opener a, b;
    opener_begin(&a, 6, false);
    opener_begin(&b, 6, false);
    assert_int_equal(open_with(&a, (far_capabilities){64, true, true, true, 0}), 0);
    assert_int_equal(open_with(&b, (far_capabilities){8, true, true, true, 0}), FAR_ERR_UNSUPPORTED);
    assert_int_equal(open_with(&b, (far_capabilities){64, false, true, true, 0}), FAR_ERR_UNSUPPORTED);
    assert_int_equal(open_with(&b, (far_capabilities){64, true, false, true, 0}), FAR_ERR_UNSUPPORTED);
    assert_int_equal(open_with(&b, (far_capabilities){64, true, true, true, 500}), 0);
    assert_int_equal(b.pool.geometry.capabilities.min_rtt, 500);
    opener_end(&a);
    opener_end(&b);
}


static void clients_that_offer_more_go_by_what_the_pool_says(void **state) {
    (void)state;
    opener a, b;
    opener_begin(&a, 7, false);
    opener_begin(&b, 7, false);
    assert_int_equal(open_with(&a, (far_capabilities){8, false, false, true, 0}), 0);
    assert_int_equal(open_with(&b, (far_capabilities){64, true, true, true, 0}), 0);
    assert_int_equal(b.pool.geometry.capabilities.atomic_bytes, 8);
    assert_false(b.pool.geometry.capabilities.masked_cas);
    assert_false(b.pool.geometry.capabilities.atomics_in_order);
    opener_end(&a);
    opener_end(&b);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_damaged_word_is_restored_where_the_others_tell_it),
        cmocka_unit_test(what_the_other_words_do_not_tell_is_not_restored),
        cmocka_unit_test(the_first_formats_and_the_second_finds_the_same_pool),
        cmocka_unit_test(a_formatter_that_dies_at_any_verb_is_made_up_for),
        cmocka_unit_test(a_formatter_that_sleeps_at_any_verb_does_no_harm_later),
        cmocka_unit_test(formatters_at_once_agree_in_every_interleaving),
        cmocka_unit_test(anything_but_a_pool_of_this_version_is_refused_and_left_alone),
        cmocka_unit_test(clients_that_offer_less_than_the_pool_relies_on_are_refused),
        cmocka_unit_test(clients_that_offer_more_go_by_what_the_pool_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
