# Short names for the common CMake commands and scripts. `make help` lists them.
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= 2
SEEDS ?= 1..10000
KIND ?= $$(build/test/farindex kinds --json | sed -n 's/^ *{\"kind\":\"\([a-z]*\)\".*/\1/p')
MINUTES ?= 5
FUZZ_KIND ?= chime dart dolphin shard smart
SOAK_KIND ?= dart dolphin
KEYS ?= 1000000 10000000 30000000

.PHONY: all build build-test deps bench curves test test-all test-sanitizers test-quick test-network test-rdma test-aarch64 torture torture-chime torture-dolphin mutants fuzz churn soak recovery stop-bound install uninstall deb format clean help

all: build

build:
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS)

# Builds the preset `test`, which checks asserts.
build-test: deps
	@cmake --preset test >/dev/null
	@cmake --build --preset test -j $(JOBS)

deps:
	@scripts/deps

bench:
	@scripts/deps build
	@$(MAKE) --no-print-directory build >&2
	@build/release/farindex bench

curves:
	@scripts/deps plot
	@$(MAKE) --no-print-directory build >&2
	@JOBS=$(JOBS) scripts/curves

test: deps
	@JOBS=$(JOBS) scripts/test

test-all: deps
	@ALL=1 JOBS=$(JOBS) scripts/test test asan tsan

test-sanitizers: deps
	@JOBS=$(JOBS) scripts/test asan tsan

test-quick: deps
	@JOBS=$(JOBS) scripts/test test

test-network: build-test
	@JOBS=$(JOBS) scripts/test-network

test-rdma: deps
	@scripts/deps rdma
	@cmake --preset test >/dev/null
	@cmake --build --preset test -j $(JOBS) --target farindex_cli farindex_bench test_rdma test_rdma_kills \
	    test_conformance_points test_conformance_scan test_conformance_indexes test_conformance_threads
	@scripts/test-rdma

test-aarch64: deps
	@scripts/test-aarch64

torture: build-test
	@kinds="$(KIND)"; [ -n "$$kinds" ] || { echo "torture: no kind was found; set KIND" >&2; exit 1; }; \
	failed=0; for kind in $$kinds; do \
	    build/test/farindex torture --index $$kind --seeds $(SEEDS) --jobs $(JOBS) || failed=1; \
	done; exit $$failed

torture-chime torture-dolphin: build-test
	@SEEDS=$(SEEDS) JOBS=$(JOBS) scripts/$@

# Removes the guards of the code one after the other, and runs the tests that must notice that.
mutants: deps
	@scripts/mutants --jobs $(JOBS) $(MUTANTS)

# Runs the tests of damaged pools and failing allocations, with the sanitizers.
fuzz: deps
	@cmake --preset asan >/dev/null
	@cmake --build --preset asan -j $(JOBS) --target test_damage test_damaged_words test_damaged_commands test_allocations
	@SEEDS="$(SEEDS)" KINDS="$(FUZZ_KIND)" scripts/fuzz

# Kills a working process every two seconds, for five minutes with each kind, and then checks that no memory has leaked.
churn: build-test
	@failed=0; for kind in $(FUZZ_KIND); do build/test/test_churn $$kind $(MINUTES) || failed=1; done; exit $$failed

# Prints the allocated and the resident memory of processes that insert and delete for a long time.
soak: build-test
	@failed=0; for kind in $(SOAK_KIND); do build/test/test_soak $$kind $(MINUTES) || failed=1; done; exit $$failed

# Prints the time from the failure of a client until its memory is free again, for indexes of several sizes.
recovery: build-test
	@failed=0; for kind in $(FUZZ_KIND); do for keys in $(KEYS); do \
	    build/test/test_recovery_time $$kind $$keys || failed=1; done; done; exit $$failed

# Stops a client of each kind and measures the longest call of the other clients: on shm, on daemons, and over a relay.
stop-bound: build-test
	@failed=0; for kind in $(FUZZ_KIND); do build/test/test_stop_bound $$kind || failed=1; done; exit $$failed

install: build
	@DESTDIR=$(DESTDIR) cmake --install build/release --prefix $(PREFIX)

uninstall:
	@[ -f build/release/install_manifest.txt ] || { echo "uninstall: there is no build/release/install_manifest.txt, so nothing was installed from this tree" >&2; exit 1; }
	@while read -r file || [ -n "$$file" ]; do rm -f "$(DESTDIR)$$file"; done <build/release/install_manifest.txt
	@rmdir $(DESTDIR)$(PREFIX)/share/farindex $(DESTDIR)$(PREFIX)/lib*/cmake/farindex \
	    $(DESTDIR)$(PREFIX)/lib/*/cmake/farindex 2>/dev/null || true

deb:
	@scripts/deps deb
	@JOBS=$(JOBS) scripts/deb

format:
	@command -v clang-format >/dev/null || { echo "format: please install clang-format" >&2; exit 1; }
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	@rm -rf build

help:
	@echo 'make                  build the library and the programs into build/release/ (also: make build)'
	@echo 'make bench            install missing packages, build, and run the benchmark on an embedded pool'
	@echo 'make curves           measure all kinds on the simulator for 1 to 256 clients, and draw build/curves/report.html'
	@echo 'make test             install missing packages, build, and run all tests, then a part of them with sanitizers'
	@echo 'make test-quick       the tests without sanitizers'
	@echo 'make test-sanitizers  all tests that can run with the address or thread sanitizer'
	@echo 'make test-all         all tests without and with each sanitizer, nothing excluded (an hour and more)'
	@echo 'make test-network     the conformance suite on tcp:// daemons (one, three, TLS, chaos), kills, partitions, mutated messages'
	@echo 'make test-rdma        rdma:// on a Soft-RoCE device in qemu, without RDMA hardware'
	@echo 'make test-aarch64     the tests on emulated 64-bit ARM'
	@echo 'make torture          a long campaign on the simulator: SEEDS=FIRST..LAST, KIND="KIND .." (default: all kinds)'
	@echo 'make torture-chime    the same for chime with each option, tearing granule and kind of keys: SEEDS=FIRST..LAST'
	@echo 'make torture-dolphin  the same for dolphin'
	@echo 'make mutants          remove the guards of the code one by one; the tests must notice (some hours): MUTANTS="KIND .."'
	@echo 'make fuzz             damaged pools and failing allocations, with sanitizers: SEEDS=FIRST..LAST, FUZZ_KIND="KIND .."'
	@echo 'make churn            kill processes that work on a pool, then check that no memory has leaked: MINUTES=5 per kind, FUZZ_KIND'
	@echo 'make soak             allocated and resident memory of four processes that insert and delete: MINUTES=5 per kind, SOAK_KIND'
	@echo 'make recovery         the time from the failure of a client until its memory is free (6 GB of memory): KEYS="N ..", FUZZ_KIND'
	@echo 'make stop-bound       the longest call of live clients while another client is stopped (20 minutes): FUZZ_KIND'
	@echo 'make install          install the header, libraries, programs and manual pages: PREFIX=/usr/local, DESTDIR='
	@echo 'make uninstall        remove the files that make install installed: DESTDIR='
	@echo 'make deb              build Debian packages in build/deb with dpkg-buildpackage, and test them'
	@echo 'make deps             install missing Debian packages; prints nothing if none is missing'
	@echo 'make format           format the sources with clang-format'
	@echo 'make clean            remove build/'
	@echo
	@echo 'JOBS=N sets the number of parallel jobs (default 2).'
