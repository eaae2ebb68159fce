# A thin front over CMake: see `make help`.
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= 2
SEEDS ?= 1..10000
KIND ?= $$(build/test/farindex kinds --json | sed -n 's/^ *{\"kind\":\"\([a-z]*\)\".*/\1/p')
MINUTES ?= 5
FUZZ_KIND ?= chime dart dolphin shard smart

.PHONY: all build build-test deps bench curves test test-all test-quick test-network test-rdma test-aarch64 torture torture-chime torture-dolphin fuzz churn install uninstall deb format clean help

all: build

build:
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS)

# With asserts that are checked.
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
	@ALL=1 JOBS=$(JOBS) scripts/test

test-quick: deps
	@JOBS=$(JOBS) scripts/test test

test-network: build-test
	@JOBS=$(JOBS) scripts/test-network

test-rdma: deps
	@scripts/deps rdma
	@cmake --preset test >/dev/null
	@cmake --build --preset test -j $(JOBS) --target farindex_cli test_rdma test_rdma_kills \
	    test_conformance_points test_conformance_scan test_conformance_indexes test_conformance_threads
	@scripts/test-rdma

test-aarch64: deps
	@scripts/test-aarch64

torture: build-test
	@kinds="$(KIND)"; [ -n "$$kinds" ] || { echo "torture: there is no kind" >&2; exit 1; }; \
	failed=0; for kind in $$kinds; do \
	    build/test/farindex torture --index $$kind --seeds $(SEEDS) --jobs $(JOBS) || failed=1; \
	done; exit $$failed

torture-chime torture-dolphin: build-test
	@SEEDS=$(SEEDS) JOBS=$(JOBS) scripts/$@

# Damaged pools and failing allocations, with the sanitizers.
fuzz: deps
	@cmake --preset asan >/dev/null
	@cmake --build --preset asan -j $(JOBS) --target test_damage test_damaged_words test_damaged_commands test_allocations
	@SEEDS="$(SEEDS)" KINDS="$(FUZZ_KIND)" scripts/fuzz

# Five minutes of each kind with a kill -9 every two seconds, and then nothing leaked.
churn: build-test
	@failed=0; for kind in $(FUZZ_KIND); do build/test/test_churn $$kind $(MINUTES) || failed=1; done; exit $$failed

install: build
	@DESTDIR=$(DESTDIR) cmake --install build/release --prefix $(PREFIX)

uninstall:
	@[ -f build/release/install_manifest.txt ] || { echo "uninstall: nothing was installed from here" >&2; exit 1; }
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
	@echo 'make              builds the library and the command into build/release/ (also: make build)'
	@echo 'make bench        installs what is missing, builds, and runs the benchmark on an embedded pool'
	@echo 'make curves       the same on the simulator for 1 to 256 clients: a page with curves, build/curves/report.html'
	@echo 'make test         installs what is missing, then builds and tests: plain and with sanitizers, by gcc and clang'
	@echo 'make test-all     the same with nothing left out for time (an hour and more)'
	@echo 'make test-quick   the plain part of make test'
	@echo 'make test-network all of the conformance suite on tcp:// daemons: one, three, with TLS, with chaos; kills, partitions, mutated messages'
	@echo 'make test-rdma    rdma:// on a machine with Soft-RoCE in qemu: no hardware is needed'
	@echo 'make test-aarch64 the tests on 64-bit ARM'
	@echo 'make torture      a long campaign on the simulator: SEEDS=FIRST..LAST, KIND="KIND .." (default: all there are)'
	@echo 'make torture-chime the same for chime with each of its switches, units and kinds of keys: SEEDS=FIRST..LAST'
	@echo 'make torture-dolphin the same for dolphin'
	@echo 'make fuzz         damaged pools and failing allocations, with sanitizers: SEEDS=FIRST..LAST, FUZZ_KIND="KIND .."'
	@echo 'make churn        processes that work on a pool and are killed, and then nothing is leaked: MINUTES=5 a kind, FUZZ_KIND="KIND .."'
	@echo 'make install      installs header, libraries, pkg-config file and command: PREFIX=/usr/local, DESTDIR='
	@echo 'make uninstall    removes what make install has installed: DESTDIR='
	@echo 'make deb          Debian packages (libfarindex0.1, libfarindex-dev, farindex) by dpkg-buildpackage, in build/deb, tried'
	@echo 'make deps         installs the Debian packages that are missing; silent when there are none'
	@echo 'make format       lays out the sources with clang-format'
	@echo 'make clean        removes build/'
	@echo
	@echo 'JOBS=N says how much to do at once (default 2).'
