/* Tests of opening pools by URI: malformed URIs, sizes that are too small, fabrics that are not in this build, and
 * which handles share a pool. */
#include "conform.h"
#include "test.h"


/* Asserts that opening the URI fails with this code and a message, and stores no handle. */
static void assert_uri_is_refused(const char *uri, int expected) {
    far_pool *pool = NULL;
    int result = far_pool_open(uri, NULL, &pool);
    if (result != expected || strlen(far_last_error()) == 0 || pool)
        fail_msg("'%s' gave %d (%s), not %d", uri, result, far_last_error(), expected);
}


/* Every malformed URI fails with FAR_ERR_INVALID and a message. */
TEST(malformed_uris_are_refused) {
    static const char *const bad[] = {
        "",
        " ",
        "local",
        ":",
        ":64M",
        "lokal:64M",
        "LOCAL:64M",
        "Local:64M",
        " local:64M",
        "local :64M",
        "64M",
        "/tmp/pool",
        "local:",
        "local: ",
        "local:abc",
        "local:M",
        "local:64X",

        "local:64MM",
        "local:64MB",
        "local:64 M",
        "local: 64M",
        "local:64M ",
        "local:6 4M",
        "local:+64M",
        "local:-64M",
        "local:64.5M",
        "local:6.4e7",
        "local:\377",
        "local:2T",
        "local:2048G",
        "local:99999999999999999999",
        "local:99999999999999999999G",
        "local:17179869184G",
        "local:18446744073709551616",
        "local:100000001",
        "local:x64M",
        "local:2x",
        "local:x",
        "local:2xx64M",
        "local:2x64Mx2",
        "local:0x64M",
        "local:-2x64M",
        "local:+2x64M",
        "local:2 x64M",
        "local:2.5x64M",
        "local:100000x64M",
        "local:99999999999999999999x64M",
        "local:2X64M",
        "local:2*64M",
        "local:64M,64M",
        "local:64M?rtt",
        "local:64M?rtt=",
        "local:64M?rtt=us",
        "local:64M?rtt=2",
        "local:64M?rtt=2parsecs",
        "local:64M?rtt=-2us",
        "local:64M?rtt=2 us",
        "local:64M?rtt=99999999999999999999s",
        "local:64M?name",
        "local:64M?name=",
        "local:64M?name=0123456789012345678901234567890123456789012345678901234567890123456789",
        "local:64M?=a",
        "local:64M?=",
        "local:64M?&",
        "tcp://",
        "tcp:",
        "tcp://a",
        "tcp://a:",
        "tcp://:7000",
        "tcp://a:7000,",
        "tcp://,a:7000",
        "tcp://a:7000,a:7000",
        "tcp://a:0",
        "tcp://a:65536",
        "tcp://a:70000000000000000000",
        "tcp://a:seven",
        "tcp://::1:7000",
        "tcp://[::1:7000",
        "tcp://[::1]7000",
        "tcp://a b:7000",
        "tcp://a:7000?",
        "tcp://a:7000?timeout=1",
        "tcp://a:7000?timeout=1ms",
        "tcp://a:7000?port=1",
        "tcp://a:7000?insecure=perhaps",
        "tcp://127.0.0.1:7000?secret=/no/such/file",
        "tcp://127.0.0.1:7000?cert=/no/such/file",
        "local:64M?colour=red",
        "local:64M?Name=a",
        "local:64M?size=64M",
        "local:64M?rtt=1us&rtt=2us",
        "local:64M?name=a&name=b",
        "local:64M?rtt=1us&",
        "local:64M?&rtt=1us",
        "local:64M?rtt=1us&&name=a",
        "local:64M?rtt=1us?name=a",
        "local:64M&rtt=1us",
        "local:64M,name=a",
        "local://64M",
        "local:64M#a",
        "local:64M/a",
        "shm",
        "shm:",
        "shm:?size=64M",
        "shm:relative?size=64M",
        "shm:/",
        "shm:/dev/shm/?size=64M",
        "shm:/dev/shm/p?",
        "shm:/dev/shm/p?size",
        "shm:/dev/shm/p?size=",
        "shm:/dev/shm/p?size=x",
        "shm:/dev/shm/p?size=64MB",
        "shm:/dev/shm/p?size=100000001",
        "shm:/dev/shm/p?size=2T",
        "shm:/dev/shm/p?size=64M&size=64M",
        "shm:/dev/shm/p?size=64M&nodes=0",
        "shm:/dev/shm/p?size=64M&nodes=257",
        "shm:/dev/shm/p?size=64M&nodes=x",
        "shm:/dev/shm/p?size=1M&nodes=256",
        "shm:/dev/shm/p?colour=red",
        "shm:/dev/shm/p?size=64M,nodes=2",
        "sim",
        "sim:seed",
        "sim:seed=",
        "sim:seed=x",
        "sim:seed=-1",
        "sim:seed=1.5",
        "sim:seed=18446744073709551616",
        "sim:seed=1,",
        "sim:,seed=1",
        "sim:seed=1,,size=64M",
        "sim:=1",
        "sim:seed==1",
        "sim: seed=1",
        "sim:seed=1 ",
        "sim:seed=1;size=64M",
        "sim:seed=1&size=64M",
        "sim:bogus=1",
        "sim:SEED=1",
        "sim:memory_nodes=0",
        "sim:memory_nodes=100000",
        "sim:memory_nodes=x",
        "sim:size=0",
        "sim:size=x",
        "sim:size=64X",
        "sim:size=100000001",
        "sim:size=2048G",
        "sim:nic=",
        "sim:nic=cx7",
        "sim:atomic_bytes=0",
        "sim:atomic_bytes=7",
        "sim:atomic_bytes=32",
        "sim:atomic_bytes=128",
        "sim:masked_cas=maybe",
        "sim:masked_cas=",
        "sim:atomics_in_order=2",
        "sim:name=",
        "sim:faults=meteor",
        "sim:faults=",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_uri_is_refused(bad[i], FAR_ERR_INVALID);
}


/* A URI of a million characters is rejected. */
TEST(a_very_long_uri_is_refused) {
    static const char *const beginnings[] = {"", "local:", "local:64M?name=", "sim:", "sim:name=", "nowhere:"};
    char *uri = malloc(1000001);
    for (size_t i = 0; i < COUNT_OF(beginnings); i++) {
        memset(uri, '9', 1000000);
        uri[1000000] = '\0';
        memcpy(uri, beginnings[i], strlen(beginnings[i]));
        assert_uri_is_refused(uri, FAR_ERR_INVALID);
    }
    free(uri);
}


/* A size that leaves no space for the structures of a pool is rejected. */
TEST(a_pool_without_room_is_refused) {
    static const char *const small[] = {"local:0",
                                        "local:0K",
                                        "local:0G",
                                        "local:1",
                                        "local:4095",
                                        "local:1K",
                                        "local:4K",
                                        "local:8K",
                                        "local:2x4K",
                                        "sim:seed=1,size=4K",
                                        "shm:/dev/shm/farindex-small?size=0",
                                        "shm:/dev/shm/farindex-small?size=4K"};
    for (size_t i = 0; i < COUNT_OF(small); i++)
        assert_uri_is_refused(small[i], FAR_ERR_INVALID);
}


/* The message of a rejected URI quotes the part that is wrong. */
TEST(the_message_quotes_what_is_wrong) {
    static const char *const cases[][2] = {
        {"local:64M?colour=red", "colour"},     {"local:64Q", "64Q"},
        {"local:64M?rtt=2parsecs", "2parsecs"}, {"nowhere:64M", "nowhere"},
        {"sim:seed=1,bogus=1", "bogus"},        {"sim:nic=cx7", "cx7"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        far_pool *pool = NULL;
        assert_code(FAR_ERR_INVALID, far_pool_open(cases[i][0], NULL, &pool));
        if (!strstr(far_last_error(), cases[i][1]))
            fail_msg("'%s' was refused with \"%s\", without a word of %s", cases[i][0], far_last_error(), cases[i][1]);
    }
}


/* Opening an rdma: URI fails with an error, because the build has no RDMA or because no memory node listens at port 1
 * of this host. */
TEST(rdma_is_unsupported_or_finds_no_memory_node) {
#ifdef FARINDEX_RDMA
    assert_uri_is_refused("rdma://127.0.0.1:1?timeout=1s", FAR_ERR_UNREACHABLE);
#else
    assert_uri_is_refused("rdma://127.0.0.1:1?timeout=1s", FAR_ERR_UNSUPPORTED);
#endif
}


/* Opens a pool, uses it, and closes it. */
static void use_pool(const char *uri, unsigned memory_nodes) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    far_pool_usage usage = {0};
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, "index", "toy", NULL, &index));
    assert_ok(far_put(session, index, "k", 1, "v", 1));
    assert_value(session, index, "k", 1, "v", 1);
    assert_ok(far_pool_stat(session, &usage));
    assert_int_equal(usage.memory_nodes, memory_nodes);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


/* Every valid form of a URI gives a usable pool with the right number of memory nodes. */
TEST(all_forms_of_uris_work) {
    use_pool("local:67108864", 1);
    use_pool("local:65536K", 1);
    use_pool("local:64M", 1);
    use_pool("local:1G", 1);
    use_pool("local:1x64M", 1);
    use_pool("local:7x16M", 7);
    use_pool("local:64M?rtt=2us", 1);
    use_pool("local:64M?name=a", 1);
    use_pool("local:2x64M?rtt=1us&name=a", 2);
    use_pool("local:64M?name=a&rtt=1us", 1);
    use_pool("sim:", 1);
    use_pool("sim:seed=0", 1);
    use_pool("sim:seed=18446744073709551615,memory_nodes=3", 3);
    use_pool("sim:seed=1,nic=cx5,size=32M", 1);
    use_pool("sim:seed=1,atomic_bytes=8,masked_cas=off,atomics_in_order=on", 1);
    use_pool("sim:seed=1,atomic_bytes=64,masked_cas=on,atomics_in_order=off,name=b", 1);
}


static int result_of_open(far_pool *pool, const char *name) {
    far_session *session = NULL;
    far_index *index = NULL;
    assert_ok(far_session_open(pool, &session));
    int result = far_index_open(session, name, &index);
    far_index_close(index);
    far_session_close(session);
    return result;
}


static void create_index(far_pool *pool, const char *name) {
    far_session *session = NULL;
    far_index *index = NULL;
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, name, "toy", NULL, &index));
    far_index_close(index);
    far_session_close(session);
}


/* Handles share a pool of this process if their URIs give the same name. Handles without a name never share one. */
TEST(handles_share_a_pool_by_its_name_only) {
    static const char *const uris[][3] = {
        {"local:64M?name=a", "local:64M?name=b", "local:64M"},
        {"sim:seed=1,name=a", "sim:seed=1,name=b", "sim:seed=1"},
    };
    for (size_t i = 0; i < COUNT_OF(uris); i++) {
        far_pool *a = NULL, *a_again = NULL, *b = NULL, *nameless = NULL, *nameless_again = NULL;
        assert_ok(far_pool_open(uris[i][0], NULL, &a));
        assert_ok(far_pool_open(uris[i][0], NULL, &a_again));
        assert_ok(far_pool_open(uris[i][1], NULL, &b));
        assert_ok(far_pool_open(uris[i][2], NULL, &nameless));
        assert_ok(far_pool_open(uris[i][2], NULL, &nameless_again));
        create_index(a, "of_a");
        create_index(nameless, "of_nameless");
        assert_ok(result_of_open(a_again, "of_a"));
        assert_code(FAR_ERR_NOT_FOUND, result_of_open(b, "of_a"));
        assert_code(FAR_ERR_NOT_FOUND, result_of_open(nameless, "of_a"));
        assert_code(FAR_ERR_NOT_FOUND, result_of_open(nameless_again, "of_nameless"));
        far_pool_close(a);
        assert_ok(result_of_open(a_again, "of_a"));
        far_pool_close(a_again);
        far_pool_close(b);
        far_pool_close(nameless);
        far_pool_close(nameless_again);
    }
}


/* Opening a named pool with another size or another number of memory nodes fails while the pool exists. */
TEST(a_name_cannot_have_two_shapes) {
    far_pool *pool = NULL;
    assert_ok(far_pool_open("local:64M?name=shape", NULL, &pool));
    assert_uri_is_refused("local:32M?name=shape", FAR_ERR_INVALID);
    assert_uri_is_refused("local:2x64M?name=shape", FAR_ERR_INVALID);
    far_pool_close(pool);
    use_pool("local:2x32M?name=shape", 2);
}
