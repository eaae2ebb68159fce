/* Damaged dumps and damaged pools as users meet them: `load` refuses a dump that is truncated or damaged, and
 * `dump --salvage` and `copy --salvage` save the pairs of a damaged pool and of a pool that has lost a memory node. */
#define _GNU_SOURCE
#include "conform.h"
#include "daemons.h"
#include "shell.h"
#include "test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAIRS 1000


/* Proves that a dump is refused if any number of bytes is missing at its end, that nothing is loaded then, and
 * that the message names the line or the byte. Fails if check_item (load.c) does not require the trailer. */
TEST_WITH(a_truncated_dump_is_refused, fresh, remove_pool) {
    static const char *const formats[] = {"lines", "binary"};
    works("farindex create i dart && farindex put i apple red && farindex put i pear green", "");
    for (unsigned f = 0; f < 2; f++) {
        size_t size;
        char command[128];
        outcome o = run("farindex dump i whole --format %s", formats[f]);
        assert_int_equal(o.status, 0);
        done(&o);
        snprintf(command, sizeof(command), "%s/whole", folder);
        char *whole = read_file(command, &size);
        for (size_t length = 1; length < size; length += length + 8 < size ? 7 : 1) {
            write_file("short", whole, length);
            o = run("farindex load new short --format %s", formats[f]);
            bool named = strstr(o.err, f ? "pair " : "line ") && (f == 0 || strstr(o.err, "at byte "));
            if (o.status != 3 || !named || *o.out)
                fail_msg("%zu bytes of %zu: status %d, '%s', '%s'", length, size, o.status, o.out, o.err);
            done(&o);
            o = run("farindex load new --format %s <short; farindex list | cut -f1", formats[f]);
            assert_string_equal(o.out, "i\n"); /* the new index is removed again */
            done(&o);
        }
        free(whole);
        o = run("farindex load new whole --format %s && farindex scan new && farindex drop new", formats[f]);
        assert_string_equal(o.out, "load: 2 pairs\napple\tred\npear\tgreen\n");
        done(&o);
    }
}


/* Proves that a changed byte, a missing line and an added line are found, although the dump has a trailer. Fails if
 * verify_trailer (load.c) compares neither the checksum nor the counts. */
TEST_WITH(a_damaged_dump_is_refused, fresh, remove_pool) {
    works("farindex create i dart && farindex put i apple red && farindex put i pear green && farindex dump i d",
          "dump: 2 pairs\n");
    works(
        "sed s/red/rad/ d >a; sed /apple/d d >b; sed 's/^pear/apple\\tx\\npear/' d >c; printf 'x\\ty\\n' | cat d - >e",
        "");
    fails("farindex load new a", 3, "checksum is wrong");
    fails("farindex load new b", 3, "1 pairs of 2");
    fails("farindex load new c", 3, "3 pairs of 2");
    fails("farindex load new e", 3, "line 7: this does not belong to a dump");
    works("farindex list | cut -f1", "i\n");
    /* A pipe is read only once. An index that existed before keeps the loaded pairs, which are counted. */
    outcome o = run("farindex create there dart; cat a | farindex load there; farindex get there pear");
    assert_string_equal(o.out, "load: 2 pairs\ngreen\n");
    done(&o);
    works("cat d d | farindex load --all", "load: 4 pairs\n"); /* two dumps, one after the other */
}


/* Dumps of version 1 have no trailer. They are loaded with a warning. Dumps of newer versions are refused with a
 * message that says that they are newer. */
TEST_WITH(dumps_of_other_versions, fresh, remove_pool) {
    static const char old[] = "%farindex-dump 1\n%index i\n%kind dart\nk\tv\n",
                      future[] = "%farindex-dump 7\n%index i\n%kind dart\nk\tv\n";
    write_file("old", old, strlen(old));
    outcome o = run("farindex load i old && farindex get i k");
    assert_string_equal(o.out, "load: 1 pairs\nv\n");
    assert_non_null(strstr(o.err, "version 1"));
    done(&o);
    write_file("future", future, strlen(future));
    fails("farindex load i future", 3, "version 7, which is newer than this program");
}


/* Overwrites the 8 bytes at this distance from each occurrence of the text in the pool file. */
static void damage_pool(const char *text, int distance) {
    struct stat status;
    int file = open(path, O_RDWR);
    assert_true(file >= 0 && fstat(file, &status) == 0);
    char *pool = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), *at = pool;
    assert_ptr_not_equal(pool, MAP_FAILED);
    unsigned found = 0;
    for (; (at = memmem(at, (size_t)(pool + status.st_size - at), text, strlen(text))); at++, found++)
        memset(at + distance, 0xee, 8);
    assert_true(found > 0);
    munmap(pool, (size_t)status.st_size);
    close(file);
}


/* Makes a dart index `i` with PAIRS keys, which the shell command `keys` prints. */
static void fill_index(const char *keys) {
    outcome o = run("%s | sort | sed 's/$/\tvalue/' >pairs; farindex create i dart; farindex load i pairs", keys);
    assert_int_equal(o.status, 0);
    done(&o);
}


/* Proves that a dump of a damaged index fails, keeps no file and names --salvage, and that `dump --salvage` and
 * `copy --salvage` save all other pairs, report the broken keys and exit with status 6. */
TEST_WITH(a_salvage_saves_the_pairs_of_a_damaged_index, fresh, remove_pool) {
    fill_index("seq 10000 10999 | sed 's/.*/key-&-end/'");
    damage_pool("key-10100-end", -8);
    damage_pool("key-10500-end", -8);
    fails("farindex dump i saved", 3, "'farindex dump --salvage'");
    fails("farindex copy i j", 3, "'farindex copy --salvage'");
    works("ls saved 2>/dev/null; farindex list | cut -f1", "i\n");
    outcome o = run("farindex check --repair");
    assert_non_null(strstr(o.out, "'farindex dump --salvage' or 'copy --salvage'"));
    done(&o);
    o = run("farindex dump --salvage i saved --json");
    assert_int_equal(o.status, 6);
    assert_non_null(strstr(o.err, "index 'i' is damaged"));
    assert_non_null(strstr(o.out, "{\"pairs\":998,\"skipped\":"));
    done(&o);
    works("farindex load new saved; farindex scan new >x; comm -23 pairs x; comm -13 pairs x; stat -c %a saved",
          "load: 998 pairs\nkey-10100-end\tvalue\nkey-10500-end\tvalue\n600\n");
    o = run("farindex copy --salvage i j --kind smart");
    assert_int_equal(o.status, 6);
    assert_non_null(strstr(o.out, "copy: 998 pairs, "));
    done(&o);
    works("farindex scan j | cmp - x; farindex dump --salvage j y; farindex copy --salvage j k",
          "dump: 998 pairs, 0 keys skipped\ncopy: 998 pairs, 0 keys skipped\n");
    fails("farindex copy --salvage i j", 4, "exists already");
}


/* Proves that `dump --salvage` does not change the file of the pool. */
TEST_WITH(a_salvage_does_not_change_the_pool, fresh, remove_pool) {
    char words[512];
    fill_index("seq 10000 10999 | sed 's/.*/key-&-end/'");
    damage_pool("key-10100-end", -8);
    snprintf(words, sizeof(words), "cp %s before; farindex dump --salvage i saved; cmp before %s", path, path);
    outcome o = run("%s", words);
    assert_int_equal(o.status, 0); /* of cmp */
    assert_non_null(strstr(o.out, "dump: 999 pairs"));
    done(&o);
}


/* Proves that a message explains that an index without its descriptor is lost. */
TEST_WITH(an_index_without_its_descriptor_is_lost, fresh, remove_pool) {
    fill_index("seq 10000 10999 | sed 's/.*/key-&-end/'");
    damage_pool("ardart4", 0); /* the magic number of the descriptor */
    fails("farindex dump --salvage i saved", 3, "its descriptor is damaged");
    fails("farindex dump --salvage i saved", 3, "'farindex check'");
    works("ls saved 2>/dev/null; true", "");
}


/* Proves that a pool of which a memory node does not answer can be salvaged: all pairs with a path that avoids the node
 * are saved, and the node is reported. Without node 0, which has the catalog, the pool cannot be read, and the message
 * says that. */
TEST_WITH(a_pool_without_one_of_its_nodes_is_salvaged, fresh, remove_pool) {
    daemon_node nodes[2];
    char uri[160];
    for (unsigned i = 0; i < 2; i++)
        assert_true(daemon_start(&nodes[i], NULL, "--size 64M --insecure --memory %s/node%u", folder, i));
    snprintf(uri, sizeof(uri), "tcp://%s,%s?insecure=1&timeout=2s", nodes[0].address, nodes[1].address);
    assert_int_equal(setenv("FARINDEX_POOL", uri, 1), 0);
    fill_index("seq 10000 10999 | rev"); /* keys with many prefixes, whose nodes are on both memory nodes */
    works("farindex dump --salvage i all --plain && cmp all pairs", "dump: 1000 pairs, 0 keys skipped\n");
    unsigned last = daemon_read_status(nodes[0].address).node == 0; /* position of the node with number 1 */
    daemon_kill(&nodes[last]);
    fails("farindex dump i saved", 3, nodes[last].address);
    outcome o = run("farindex dump --salvage i saved");
    unsigned saved = (unsigned)strtoul(strstr(o.out, "dump: ") ? strstr(o.out, "dump: ") + 6 : "0", NULL, 10);
    assert_int_equal(o.status, 6);
    assert_non_null(strstr(o.err, nodes[last].address));
    assert_true(saved > 0 && saved < PAIRS);
    done(&o);
    works("grep value saved | sort | comm -23 - pairs", ""); /* only pairs that were written */
    assert_true(daemon_restart(&nodes[last]));               /* with its memory file */
    daemon_kill(&nodes[!last]);
    fails("farindex dump --salvage i saved", 3, "node 0");
    daemon_stop(&nodes[last]);
}


TEST_GROUP(make_folder, remove_folder);
