#!/bin/sh
# Proves that each mutant in tests/mutants applies to the code, and that the tests that it names exist.
# SOURCE: the tree.
set -eu
exec "$SOURCE/scripts/mutants" --check
