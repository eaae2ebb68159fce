/* Cache. */
#include "index/smart/smart.h"
int smart_cache_new(far_index *index, bool fifo, smart_cache **cache) { (void)index; (void)fifo; *cache = NULL; return 0; }
void smart_cache_free(smart_cache *cache) { (void)cache; }
size_t smart_cache_bytes(far_index *index) { (void)index; return 0; }
bool smart_cache_probe(smart_cache *cache, far_bytes key, unsigned below, smart_hint *hint) { (void)cache; (void)key; (void)below; (void)hint; return false; }
void smart_cache_node(smart_cache *cache, far_bytes key, const smart_node *node) { (void)cache; (void)key; (void)node; }
void smart_cache_word(smart_cache *cache, far_bytes key, far_addr node, unsigned depth, uint64_t word) { (void)cache; (void)key; (void)node; (void)depth; (void)word; }
void smart_cache_drop(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) { (void)cache; (void)key; (void)node; (void)depth; }
