#!/usr/bin/env python3
"""Prints each field of a structure of src/pool that more than one file writes. writers.sh explains the rules.

usage: writers.py SOURCE [--all]      SOURCE: the source tree; --all: prints the writer of every field
"""
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys

source = os.path.abspath(sys.argv[1])
# Values: structures that are arguments, results or copies of words of far memory. They contain no state of a handle.
values = set("""far_items far_queue far_pending_return far_retired far_false_free far_catalog_entry far_scan_chunk far_out far_request far_tables far_page_state far_client far_report far_walk far_geometry far_catalog_view
far_collect_result far_object far_visit far_other_clients far_index_record far_catalog_object far_status_record
far_suspects far_pool_usage far_usage far_load far_scan far_retry far_kind_op""".split())
locks = ("pthread_mutex_t", "far_mutex", "far_parker", "far_readers", "far_spin")


def own(path):
    """Returns the path relative to the tree, with .c instead of .h, or None for a file outside of src/."""
    path = os.path.abspath(os.path.join(source, path))
    if not path.startswith(source + "/src/"):
        return None
    path = re.sub(r"\.h$", ".c", os.path.relpath(path, source + "/src"))
    return re.sub(r"^index/(?!common/)\w+/", "index/KIND/", path)


class Unit:
    """One source file, as clang parses it."""

    def __init__(self, path):
        self.path, self.texts, self.fields, self.writes = path, {}, {}, set()
        self.structures, self.records = collections.defaultdict(list), set()
        command = ["clang", "-fsyntax-only", "-std=gnu11", "-w", "-DFARINDEX_RDMA", "-DFARINDEX_TLS", "-Iinclude", "-Isrc",
                   "-I/usr/include/libnl3", "-Xclang", "-ast-dump=json", path]
        tree = subprocess.run(command, cwd=source, stdout=subprocess.PIPE, check=True).stdout
        self.file, self.line = path, 0
        self.read(json.loads(tree), None, None)

    def place(self, node):
        """Follows the names of files, which clang prints only if they differ from the previous one."""
        places = [node.get("loc", {}), node.get("range", {}).get("begin", {}), node.get("range", {}).get("end", {})]
        first = None
        for place in places:
            for part in (place.get("spellingLoc"), place.get("expansionLoc"), place):
                if part and "file" in part:
                    self.file = part["file"]
                if part and "line" in part:
                    self.line = part["line"]
            if first is None and place:
                first = self.file
        return first or self.file

    def read(self, node, record, function):
        file, kind = self.place(node), node.get("kind")
        if kind == "RecordDecl":
            record = node.get("name") or record
            self.records.add(record)
        elif kind == "FieldDecl" and record:
            file = own(file)
            if file and file.startswith("pool/"):
                self.fields[node["id"]] = (record, node.get("name"), node["type"]["qualType"])
                if record not in values:
                    self.structures[record].append(node.get("name"))
        elif kind == "FunctionDecl":
            function = own(file)
        elif function:
            self.look(node, kind, function)
        for child in node.get("inner", []):
            self.read(child, record, function)

    def look(self, node, kind, function):
        inner = node.get("inner", [])
        if kind == "BinaryOperator" and node.get("opcode") == "=" or kind == "CompoundAssignOperator" or \
                kind == "UnaryOperator" and node.get("opcode") in ("++", "--"):
            self.write(inner[0], function)
        elif kind == "AtomicExpr":
            # an atomic load has a result, and no operand but the address and the memory order
            if len(inner) > 2 or node["type"]["qualType"] == "void":
                self.write(self.target(inner[0]), function)
        elif kind == "CallExpr":
            callee = re.search(r"\((.*)\)$", inner[0]["type"]["qualType"].split("(*)")[-1])
            types = re.split(r",\s*", callee.group(1)) if callee else []
            for number, argument in enumerate(inner[1:]):
                if number < len(types) and types[number] != "..." and not types[number].startswith("const "):
                    self.pass_address(argument, function)
        elif kind == "VarDecl" and inner and not node["type"]["qualType"].startswith("const "):
            self.pass_address(inner[-1], function)

    def target(self, node):
        while node.get("kind") in ("ParenExpr", "ImplicitCastExpr", "CStyleCastExpr"):
            node = node["inner"][0]
        return node["inner"][0] if node.get("kind") == "UnaryOperator" and node.get("opcode") == "&" else {}

    def pass_address(self, node, function):
        """Records a write if a pointer is passed on through which fields are written that this program cannot name."""
        while node.get("kind") in ("ParenExpr", "ImplicitCastExpr", "CStyleCastExpr"):
            if node.get("castKind") == "ArrayToPointerDecay":
                self.write(node["inner"][0], function)
                return
            if node.get("castKind") == "LValueToRValue":
                return
            node = node["inner"][0]
        if node.get("kind") == "UnaryOperator" and node.get("opcode") == "&":
            pointee = node["inner"][0]
            name = pointee["type"]["qualType"].replace("struct ", "")
            if name in values or name not in self.records:
                self.write(pointee, function)

    def write(self, node, function):
        """Records a write of this expression: the innermost field that belongs to no value."""
        while node.get("inner"):
            kind, inner = node["kind"], node["inner"]
            if kind == "MemberExpr":
                structure, field, words = self.fields.get(node["referencedMemberDecl"], (None, None, ""))
                if structure not in values:
                    if structure and not is_local(node) and not any(lock in words for lock in locks):
                        self.writes.add((structure, field, function, self.line))
                    return
                if node["isArrow"]:
                    return
            elif kind == "UnaryOperator" and node["opcode"] == "*":
                name = node["type"]["qualType"].replace("struct ", "")
                for field in self.structures.get(name, []) if name not in values else []:
                    self.writes.add((name, field, function, self.line))
                return
            elif kind not in ("ArraySubscriptExpr", "ParenExpr", "ImplicitCastExpr", "CStyleCastExpr"):
                return
            node = inner[0]


def is_local(node):
    """Returns whether the expression is a part of a local variable, and not of a structure that others can reach."""
    while node.get("kind") in ("MemberExpr", "ArraySubscriptExpr", "ParenExpr", "ImplicitCastExpr"):
        if node.get("isArrow") or node.get("castKind") == "LValueToRValue":
            return False
        node = node["inner"][0]
    return node.get("kind") == "DeclRefExpr" and node["referencedDecl"]["kind"] in ("VarDecl", "ParmVarDecl")


def scan(path):
    return Unit(path).writes


paths = sorted(os.path.relpath(os.path.join(folder, name), source) for part in ("pool", "client", "task", "index")
               for folder, _, names in os.walk(os.path.join(source, "src", part)) for name in names if name.endswith(".c"))
writers = collections.defaultdict(lambda: collections.defaultdict(set))
with concurrent.futures.ProcessPoolExecutor() as pool:
    for found in pool.map(scan, paths):
        for structure, field, function, line in found:
            writers[(structure, field)][function].add(line)
wrong = {field: by for field, by in writers.items() if len(by) > 1}
def words(by):
    return ", ".join(f"{function}:{'/'.join(map(str, sorted(by[function])))}" for function in sorted(by))


for (structure, field), by in sorted(wrong.items()):
    print(f"{structure}.{field} is written by {words(by)}")
if "--all" in sys.argv:
    for (structure, field), by in sorted(writers.items()):
        print(f"  {structure}.{field}: {words(by)}")
if len(writers) < 100:
    print(f"only {len(writers)} written fields were found")
sys.exit(bool(wrong) or len(writers) < 100)
